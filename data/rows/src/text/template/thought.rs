//! The marks with which models and templates set a thought apart from the answer.

use std::ops::Range;

/// What opens and closes a thought.
struct Tags {
    open: &'static str,
    close: &'static str,
}

/// Those of the field, by the families that write them.
const KNOWN: [Tags; 11] = [
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
    // Hunyuan writes its answers between marks, too; the thought is what matters.
    tags("<reason>", "</reason>"),
];

const fn tags(open: &'static str, close: &'static str) -> Tags {
    Tags { open, close }
}

/// Whether a template's source names the marks of a thought.
pub(super) fn is_written_by(source: &str) -> bool {
    KNOWN.iter().any(|tags| source.contains(tags.close))
}

/// Whether a text is what a generation prompt adds to let a model think, or not think: an opened
/// thought, an empty one, or a border between the two.
pub(super) fn is_frame(text: &str) -> bool {
    let text = text.trim();
    text.is_empty()
        || KNOWN.iter().any(|Tags { open, close }| {
            let rest = text.strip_prefix(open).unwrap_or(text).trim_start();
            rest.len() < text.len() && rest.is_empty() || rest == *close
        })
}

/// Bytes of an empty thought at the end of `before` and the beginning of `after`, as lengths of
/// `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EmptyThought {
    /// Up to its closing mark, that included.
    pub(super) closed: usize,
    /// With the white space behind that.
    pub(super) end: usize,
}

/// The empty thought that `after` begins with; its opening mark may stand at the end of `before`.
pub(super) fn empty_thought(before: &str, after: &str) -> Option<EmptyThought> {
    KNOWN.iter().find_map(|Tags { open, close }| {
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

/// The white space behind the thought that a prompt closes at its end.
pub(super) fn space_behind_closed(prompt: &str) -> Option<&str> {
    let closed = prompt.trim_end();
    let is_closed = KNOWN.iter().any(|tags| closed.ends_with(tags.close));
    is_closed.then(|| &prompt[closed.len()..])
}

/// How a template treats the thoughts that stand in the text of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    AsGiven,
    /// Fewer are rendered than the text holds.
    LeftOut(&'static str),
    /// The template adds another one.
    Twice(&'static str),
}

/// Compares the thoughts of a content with those of the text that a template made of it, words that
/// open the turn included.
///
/// Closing marks are counted, because generation prompts supply opening ones.
pub(super) fn kept(content: &str, rendered: &str) -> Kept {
    for Tags { open, close } in &KNOWN {
        let n_given = content.matches(close).count();
        if n_given == 0 {
            continue;
        }
        // An empty thought that is left out is no loss.
        let thoughts = content.split(close).take(n_given);
        let thoughts = thoughts.map(|part| part.rsplit(open).next().unwrap_or(part));
        let n_full = thoughts
            .filter(|thought| !thought.trim().is_empty())
            .count();
        let n_rendered = rendered.matches(close).count();
        if n_rendered < n_full {
            return Kept::LeftOut(open);
        }
        if n_rendered > n_given {
            return Kept::Twice(open);
        }
    }
    Kept::AsGiven
}

/// Whether a part of a text ends a thought that is empty.
pub(super) fn ends_empty(text: &str, range: Range<usize>) -> bool {
    let Some(part) = text.get(range) else {
        return false;
    };
    KNOWN
        .iter()
        .any(|tags| part.trim_end().ends_with(tags.close))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_opened_or_empty_thoughts_and_nothing_else() {
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
    fn an_empty_thought_is_found_whoever_opened_it() {
        for (before, after, rest) in [
            ("assistant\n", "<think>\n\n</think>\n\nYes.", Some("Yes.")),
            ("assistant\n<think>\n", "\n</think>\n\nYes.", Some("Yes.")),
            ("assistant\n<think>", "</think>Yes.", Some("Yes.")),
            ("assistant\n", "<think>\nNo.\n</think>\n\nYes.", None),
            ("assistant\n", "</think>Yes.", None),
            ("assistant\n", "Yes. <think></think>", None),
        ] {
            let found = empty_thought(before, after);
            let end = found.map(|found| &after[found.end..]);
            assert_eq!(end, rest, "{before:?} {after:?}");
            assert!(found.is_none_or(|found| after[..found.closed].ends_with("</think>")));
        }
    }

    #[test]
    fn the_space_behind_a_closed_thought_is_that_of_the_prompt() {
        for (prompt, space) in [
            ("assistant\n<think>\n\n</think>\n\n", Some("\n\n")),
            ("<|assistant|>\n<think></think>", Some("")),
            ("assistant\n<think>\n", None),
        ] {
            assert_eq!(space_behind_closed(prompt), space, "{prompt:?}");
        }
    }

    #[test]
    fn thoughts_of_a_content_are_counted_by_what_closes_them() {
        let content = "<think>\nA.\n</think>\n\nB.";
        assert_eq!(kept(content, content), Kept::AsGiven);
        assert_eq!(kept("A.\n</think>\n\nB.", content), Kept::AsGiven);
        assert_eq!(kept(content, "B."), Kept::LeftOut("<think>"));
        let doubled = format!("<think>\n\n</think>\n\n{content}");
        assert_eq!(kept(content, &doubled), Kept::Twice("<think>"));
        assert_eq!(kept("B.", &doubled), Kept::AsGiven);
        assert_eq!(kept("<think>\n\n</think>\n\nB.", "B."), Kept::AsGiven);
    }
}
