//! The tags that separate a model's thought from its answer.

use std::ops::Range;

/// The opening and closing tags of a thought.
struct Tags {
    open: &'static str,
    close: &'static str,
}

/// The tags in use, by the model families that write them.
const TAGS: [Tags; 11] = [
    // Qwen, DeepSeek, GLM, Nemotron, SmolLM3, LFM2.5 and most others.
    tags("<think>", "</think>"),
    tags("<thinking>", "</thinking>"),
    tags("<thought>", "</thought>"),
    tags("<reasoning>", "</reasoning>"),
    // Seed-OSS.
    tags("<seed:think>", "</seed:think>"),
    // Magistral and Ministral.
    tags("[THINK]", "[/THINK]"),
    // Gemma 4.
    tags("<|channel>thought", "<channel|>"),
    // Command A Reasoning.
    tags("<|START_THINKING|>", "<|END_THINKING|>"),
    // Kimi.
    tags("◁think▷", "◁/think▷"),
    tags("<|begin_of_thought|>", "<|end_of_thought|>"),
    // Hunyuan also puts its answers between tags; only the thought matters here.
    tags("<reason>", "</reason>"),
];

const fn tags(open: &'static str, close: &'static str) -> Tags {
    Tags { open, close }
}

/// Whether a template's source contains thought tags.
pub(super) fn has_thought_tags(source: &str) -> bool {
    TAGS.iter().any(|tags| source.contains(tags.close))
}

/// Whether the text in a generation prompt only turns thinking on or off: it is an opening tag, a
/// closing tag, both, or white space.
pub(super) fn is_frame(text: &str) -> bool {
    let text = text.trim();
    text.is_empty()
        || TAGS.iter().any(|Tags { open, close }| {
            let rest = text.strip_prefix(open).unwrap_or(text).trim_start();
            rest.len() < text.len() && rest.is_empty() || rest == *close
        })
}

/// An empty thought that may begin at the end of `before`. Lengths are in bytes of `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EmptyThought {
    /// Length up to and including the closing tag.
    pub(super) closed: usize,
    /// Length up to and including the white space after the closing tag.
    pub(super) end: usize,
}

/// Finds the empty thought at the start of `after`; its opening tag may be at the end of `before`.
pub(super) fn empty_thought(before: &str, after: &str) -> Option<EmptyThought> {
    TAGS.iter().find_map(|Tags { open, close }| {
        let start = after.trim_start();
        let inside = match start.strip_prefix(open) {
            Some(inside) => inside,
            None if before.trim_end().ends_with(open) => start,
            None => return None,
        };
        let rest = inside.trim_start().strip_prefix(close)?;
        Some(EmptyThought {
            closed: after.len() - rest.len(),
            end: after.len() - rest.trim_start().len(),
        })
    })
}

/// Returns the white space after a closed thought at the end of a prompt; `None` if the prompt does
/// not end with one.
pub(super) fn space_after_closed_thought(prompt: &str) -> Option<&str> {
    let closed = prompt.trim_end();
    let is_closed = TAGS.iter().any(|tags| closed.ends_with(tags.close));
    is_closed.then(|| &prompt[closed.len()..])
}

/// How a template changes the thoughts in the text of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThoughtComparison {
    Same,
    /// The rendering has fewer thoughts than the text.
    LeftOut(&'static str),
    /// The rendering has an additional thought.
    Added(&'static str),
}

/// Compares the thoughts of a content with the thoughts in the rendered turn, including the turn's
/// opening text.
///
/// Closing tags are counted, because generation prompts may contain the opening tags.
pub(super) fn compare_thoughts(content: &str, rendered: &str) -> ThoughtComparison {
    for Tags { open, close } in &TAGS {
        let n_given = content.matches(close).count();
        if n_given == 0 {
            continue;
        }
        // Leaving out an empty thought loses nothing.
        let thoughts = content.split(close).take(n_given);
        let thoughts = thoughts.map(|part| part.rsplit(open).next().unwrap_or(part));
        let n_full = thoughts
            .filter(|thought| !thought.trim().is_empty())
            .count();
        let n_rendered = rendered.matches(close).count();
        if n_rendered < n_full {
            return ThoughtComparison::LeftOut(open);
        }
        if n_rendered > n_given {
            return ThoughtComparison::Added(open);
        }
    }
    ThoughtComparison::Same
}

/// Whether the text in `range` ends with the closing tag of a thought.
pub(super) fn ends_empty(text: &str, range: Range<usize>) -> bool {
    let Some(part) = text.get(range) else {
        return false;
    };
    TAGS.iter()
        .any(|tags| part.trim_end().ends_with(tags.close))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_opened_or_empty_thoughts_are_frames() {
        for text in [
            "<think>\n",
            "<think>\n\n</think>\n\n",
            "\n<think></think>",
            "\n</think>\n\n",
            "<|channel>thought\n",
            "\n",
            "",
        ] {
            assert!(is_frame(text), "{text:?}");
        }
        for text in [
            "<think>\nyes",
            "model>",
            "<think>a</think>",
            "x</think>",
            "<|im_end|>",
        ] {
            assert!(!is_frame(text), "{text:?}");
        }
    }

    #[test]
    fn an_empty_thought_is_found_whether_the_prompt_or_the_answer_opens_it() {
        for (before, after, rest) in [
            ("assistant\n", "<think>\n\n</think>\n\nYes.", Some("Yes.")),
            ("assistant\n<think>\n", "\n</think>\n\nYes.", Some("Yes.")),
            ("assistant\n<think>", "</think>Yes.", Some("Yes.")),
            ("assistant\n", "<think>\nNo.\n</think>\n\nYes.", None),
            ("assistant\n", "</think>Yes.", None),
            ("assistant\n", "Yes. <think></think>", None),
        ] {
            let thought = empty_thought(before, after);
            let end = thought.map(|thought| &after[thought.end..]);
            assert_eq!(end, rest, "{before:?} {after:?}");
            assert!(thought.is_none_or(|thought| after[..thought.closed].ends_with("</think>")));
        }
    }

    #[test]
    fn white_space_after_a_closed_thought_matches_the_prompt() {
        for (prompt, space) in [
            ("assistant\n<think>\n\n</think>\n\n", Some("\n\n")),
            ("<|assistant|>\n<think></think>", Some("")),
            ("assistant\n<think>\n", None),
        ] {
            assert_eq!(space_after_closed_thought(prompt), space, "{prompt:?}");
        }
    }

    #[test]
    fn thoughts_in_a_content_are_counted_by_closing_tags() {
        let content = "<think>\nA.\n</think>\n\nB.";
        assert_eq!(compare_thoughts(content, content), ThoughtComparison::Same);
        assert_eq!(
            compare_thoughts("A.\n</think>\n\nB.", content),
            ThoughtComparison::Same
        );
        assert_eq!(
            compare_thoughts(content, "B."),
            ThoughtComparison::LeftOut("<think>")
        );
        let doubled = format!("<think>\n\n</think>\n\n{content}");
        assert_eq!(
            compare_thoughts(content, &doubled),
            ThoughtComparison::Added("<think>")
        );
        assert_eq!(compare_thoughts("B.", &doubled), ThoughtComparison::Same);
        assert_eq!(
            compare_thoughts("<think>\n\n</think>\n\nB.", "B."),
            ThoughtComparison::Same
        );
    }
}
