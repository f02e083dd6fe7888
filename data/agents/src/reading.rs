//! What a model wrote, read as a plan, a call, a step or a sub-query.
//!
//! Whatever surrounds the JSON (a fence, a sentence) is passed over; the JSON itself is read
//! strictly, because a lenient reader hides a model's mistakes.

use serde_json::{Map, Value};
use tooltune_rows::json;

use super::completions::{ACTION, DONE, FINISH};
use super::prompts::one_line;

/// A call as the model wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrittenCall {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// Why no call could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnreadableCall {
    /// The name, where at least that was there.
    pub(super) name: Option<String>,
    pub(super) reason: &'static str,
}

/// A step of ReACT.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum WrittenStep {
    Action(Result<WrittenCall, UnreadableCall>),
    Finish(String),
}

/// The first JSON array of nothing but texts.
pub(super) fn read_texts(text: &str) -> Option<Vec<String>> {
    values(text, '[').find_map(|value| match value {
        Value::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Some(text),
                _ => None,
            })
            .collect(),
        _ => None,
    })
}

/// The first JSON object with a name is the call.
pub(super) fn read_call(text: &str) -> Result<WrittenCall, UnreadableCall> {
    let mut is_json = false;
    for value in values(text, '{') {
        let Value::Object(mut fields) = value else {
            continue;
        };
        is_json = true;
        let Some(Value::String(name)) = fields.get("name").cloned() else {
            continue;
        };
        return match fields.remove("arguments") {
            Some(Value::Object(arguments)) => Ok(WrittenCall { name, arguments }),
            Some(_) => Err(UnreadableCall {
                name: Some(name),
                reason: "the arguments are not a JSON object",
            }),
            None => Err(UnreadableCall {
                name: Some(name),
                reason: "the call has no arguments",
            }),
        };
    }
    Err(UnreadableCall {
        name: None,
        reason: if is_json {
            "the call has no name"
        } else {
            "this is no JSON object"
        },
    })
}

/// The first line that begins an action or the answer decides; what is neither may be a bare call.
pub(super) fn read_step(text: &str) -> WrittenStep {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let begun = line.trim_start();
        let after = |word: &str| at + (line.len() - begun.len()) + word.len();
        if begun.starts_with(ACTION) {
            return WrittenStep::Action(read_call(&text[after(ACTION)..]));
        }
        if begun.starts_with(FINISH) {
            return WrittenStep::Finish(text[after(FINISH)..].trim().to_owned());
        }
        at += line.len();
    }
    WrittenStep::Action(read_call(text))
}

/// The sub-query, on one line; `None` if there is none left.
pub(super) fn read_sub_query(text: &str) -> Option<String> {
    let line = one_line(text);
    let is_done = line.trim_end_matches(['.', '!']) == DONE;
    (!is_done && !line.is_empty()).then_some(line)
}

/// The JSON values of a text that begin with `opening`, outer ones before those inside them.
fn values(text: &str, opening: char) -> impl Iterator<Item = Value> {
    // A text of nothing but brackets would otherwise take a time that grows with its square.
    const MAX_TRIED: usize = 256;
    text.match_indices(opening)
        .take(MAX_TRIED)
        .filter_map(|(start, _)| {
            let end = start + value_length(&text[start..])?;
            json::parse(&text[start..end]).ok()
        })
}

/// Bytes up to the bracket that closes the first one, brackets within quotes not counted.
fn value_length(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in json::outside_strings(text.as_bytes()) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str, arguments: Value) -> Result<WrittenCall, UnreadableCall> {
        Ok(WrittenCall {
            name: name.to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
        })
    }

    #[test]
    fn a_plan_is_found_in_prose_and_fences_and_must_be_texts() {
        for (text, names) in [
            ("[\"a\", \"b]\"]", Some(vec!["a", "b]"])),
            ("I [1] plan:\n```json\n[\"a\"]\n```", Some(vec!["a"])),
            ("[]", Some(vec![])),
            ("[[\"a\"]]", Some(vec!["a"])),
            ("[\"a\", 1]", None),
            ("['a']", None),
            ("[\"a\"", None),
            ("a, b", None),
            ("", None),
        ] {
            let names = names.map(|names| names.into_iter().map(str::to_owned).collect());
            assert_eq!(read_texts(text), names, "{text}");
        }
    }

    #[test]
    fn a_call_is_the_first_object_with_a_name() {
        let good = call("T/A", json!({"q": "}\"{", "n": [1, {"m": null}]}));
        let text =
            "{\"name\": \"T/A\", \"arguments\": {\"q\": \"}\\\"{\", \"n\": [1, {\"m\": null}]}}";
        for surrounded in [
            text.to_owned(),
            format!("Sure {{so}}:\n```json\n{text}\n```\nDone."),
            format!("{{\"call\": {text}}}"),
            format!("{text}{{\"name\": \"second\", \"arguments\": {{}}}}"),
        ] {
            assert_eq!(read_call(&surrounded), good, "{surrounded}");
        }
    }

    #[test]
    fn what_is_no_call_says_what_is_missing() {
        for (text, name, reason) in [
            ("I cannot.", None, "this is no JSON object"),
            ("{'name': 'a'}", None, "this is no JSON object"),
            ("{\"arguments\": {}}", None, "the call has no name"),
            (
                "{\"name\": 3, \"arguments\": {}}",
                None,
                "the call has no name",
            ),
            ("{\"name\": \"a\"}", Some("a"), "the call has no arguments"),
            (
                "{\"name\": \"a\", \"arguments\": \"{}\"}",
                Some("a"),
                "the arguments are not a JSON object",
            ),
            (
                "{\"name\": \"a\", \"arguments\": {\"b\": 1",
                None,
                "this is no JSON object",
            ),
        ] {
            let wanted = UnreadableCall {
                name: name.map(str::to_owned),
                reason,
            };
            assert_eq!(read_call(text), Err(wanted), "{text}");
        }
    }

    #[test]
    fn a_step_is_its_first_action_or_finish() {
        let a = WrittenStep::Action(call("a", json!({})));
        let text = "{\"name\": \"a\", \"arguments\": {}}";
        for written in [
            format!("Thought: I use Finish: or not\nAction: {text}"),
            format!("Thought: x\n Action: {text}\nResult: 1\nFinish: made up"),
            text.to_owned(),
        ] {
            assert_eq!(read_step(&written), a, "{written}");
        }
        assert_eq!(
            read_step("Thought: enough\nFinish: It is 3.\nReally.\n"),
            WrittenStep::Finish("It is 3.\nReally.".to_owned())
        );
        assert_eq!(read_step("Finish:"), WrittenStep::Finish(String::new()));
        assert!(matches!(
            read_step("Thought: x"),
            WrittenStep::Action(Err(_))
        ));
    }

    #[test]
    fn done_ends_the_sub_queries_and_so_does_silence() {
        for (text, wanted) in [
            ("Find\n it.", Some("Find it.")),
            ("DONE", None),
            (" DONE.\n", None),
            ("", None),
            ("Is it DONE?", Some("Is it DONE?")),
        ] {
            assert_eq!(read_sub_query(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn a_text_of_brackets_is_read_in_time() {
        let text = "[".repeat(200_000);
        assert_eq!(read_texts(&text), None);
        assert!(read_call(&"{\"a\":".repeat(50_000)).is_err());
    }
}
