//! Streams a growing text, without parts that may still change.
//!
//! All tokens are decoded together, because a character can span several tokens and a tokenizer may
//! change spaces before the next word. Incomplete characters, trailing spaces, and a possible start
//! of a stop string are held back.

/// The part of a growing text that was printed.
#[derive(Debug, Clone, Default)]
pub struct TextStream<'a> {
    stop_strings: &'a [String],
    printed: String,
}

impl<'a> TextStream<'a> {
    /// The state before the first token. The text ends at any of the `stop_strings`.
    pub fn new(stop_strings: &'a [String]) -> Self {
        Self {
            stop_strings,
            printed: String::new(),
        }
    }

    /// Whether anything was printed.
    pub fn has_begun(&self) -> bool {
        !self.printed.is_empty()
    }

    /// Returns the new part of `text` that can be printed; `text` is everything so far.
    pub fn next<'t>(&mut self, text: &'t str) -> &'t str {
        // Incomplete characters are decoded as U+FFFD.
        let text = text.trim_end_matches('\u{fffd}');
        let starts = self.stop_strings.iter().map(|stop| stop_index(text, stop));
        let end = starts.min().unwrap_or(text.len());
        self.advance(text[..end].trim_end()).unwrap_or_default()
    }

    /// Returns the rest of the complete `text`; `None` if it does not start with the printed part.
    pub fn rest<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        self.advance(text)
    }

    fn advance<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let new = text.strip_prefix(self.printed.as_str())?;
        self.printed.push_str(new);
        Some(new)
    }
}

/// The index of `stop` in the text, or of a prefix of `stop` at its end.
fn stop_index(text: &str, stop: &str) -> usize {
    if let Some(start) = text.find(stop) {
        return start;
    }
    let lengths = stop.char_indices().map(|(idx, _)| idx).rev();
    let mut beginnings = lengths.filter(|&n| n > 0 && text.ends_with(&stop[..n]));
    text.len() - beginnings.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The printed part of each text; the last text is complete.
    fn printed_parts(texts: &[&str], stop: &[&str]) -> Vec<String> {
        let stop: Vec<String> = stop.iter().map(|&text| text.to_owned()).collect();
        let mut stream = TextStream::new(&stop);
        let (last, growing) = texts.split_last().expect("a text");
        let mut parts: Vec<String> = growing
            .iter()
            .map(|text| stream.next(text).to_owned())
            .collect();
        parts.push(stream.rest(last).unwrap_or("OTHER").to_owned());
        parts
    }

    #[test]
    fn text_that_may_still_change_is_held_back() {
        let growing = ["a", "a ", "a \u{fffd}", "a 😀", "a 😀\n", "a 😀\n"];
        assert_eq!(printed_parts(&growing, &[]), ["a", "", "", " 😀", "", "\n"]);
        // A character that the model wrote itself is printed with the next one, or at the end.
        assert_eq!(
            printed_parts(&["\u{fffd}", "\u{fffd}x", "\u{fffd}x"], &[]),
            ["", "\u{fffd}x", ""]
        );
        let growing = ["one #", "one ##", "one ## two ###", "one ## two"];
        assert_eq!(
            printed_parts(&growing, &["###", "END"]),
            ["one", "", " ## two", ""]
        );
        assert_eq!(
            printed_parts(&["x EN", "x ENTER", "x ENTER"], &["END"]),
            ["x", " ENTER", ""]
        );
        // If decoding changes the printed part, nothing more is printed.
        assert_eq!(
            printed_parts(&["do n't", "don't"], &[]),
            ["do n't", "OTHER"]
        );
    }

    #[test]
    fn streamed_parts_always_join_to_the_text() {
        let full_text = "Grüße 😀 an\n\nalle. ## Ende ";
        let stop = ["##".to_owned()];
        for step in 1..7 {
            let mut stream = TextStream::new(&stop);
            let mut parts = String::new();
            for end in (0..full_text.len()).step_by(step) {
                let text = String::from_utf8_lossy(&full_text.as_bytes()[..end]).into_owned();
                let part = stream.next(&text);
                assert!(!part.contains('\u{fffd}'), "{part:?}");
                parts.push_str(part);
            }
            let cut = "Grüße 😀 an\n\nalle. ";
            parts.push_str(stream.rest(cut).expect("its beginning was printed"));
            assert_eq!(parts, cut, "step {step}");
        }
    }
}
