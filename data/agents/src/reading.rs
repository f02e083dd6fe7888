//! Parses a model's text as a plan, a call, a step or a sub-query.
//!
//! Text around the JSON, such as a fence or a sentence, is ignored. The JSON itself is parsed
//! strictly, because a lenient parser would hide a model's mistakes.

use serde_json::{Map, Value};
use tooltune_json as json;

use super::completions::{ACTION, DONE, FINISH};
use super::prompts::one_line;

/// A call as the model wrote it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ParsedCall {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// Why no call could be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallParseError {
    /// The name, if at least the name could be parsed.
    pub(super) name: Option<String>,
    pub(super) reason: &'static str,
}

/// A step of ReACT.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ParsedStep {
    Action(Result<ParsedCall, CallParseError>),
    Finish(String),
}

/// The first JSON array that contains only strings.
pub(super) fn read_texts(text: &str) -> Option<Vec<String>> {
    json_values(text, '[').find_map(|value| match value {
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

/// Parses the first JSON object with a name as the call.
pub(super) fn read_call(text: &str) -> Result<ParsedCall, CallParseError> {
    let mut is_json = false;
    for value in json_values(text, '{') {
        let Value::Object(mut fields) = value else {
            continue;
        };
        is_json = true;
        let Some(Value::String(name)) = fields.get("name").cloned() else {
            continue;
        };
        return match fields.remove("arguments") {
            Some(Value::Object(arguments)) => Ok(ParsedCall { name, arguments }),
            Some(_) => Err(CallParseError {
                name: Some(name),
                reason: "the arguments are not a JSON object",
            }),
            None => Err(CallParseError {
                name: Some(name),
                reason: "the call has no arguments",
            }),
        };
    }
    Err(CallParseError {
        name: None,
        reason: if is_json {
            "the call has no name"
        } else {
            "this is no JSON object"
        },
    })
}

/// Parses a step: the first line that starts an action or the answer decides which. Without such a
/// line, the text may be a bare call.
pub(super) fn read_step(text: &str) -> ParsedStep {
    let mut position = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let end_of_word = |word: &str| position + (line.len() - trimmed.len()) + word.len();
        if trimmed.starts_with(ACTION) {
            return ParsedStep::Action(read_call(&text[end_of_word(ACTION)..]));
        }
        if trimmed.starts_with(FINISH) {
            return ParsedStep::Finish(text[end_of_word(FINISH)..].trim().to_owned());
        }
        position += line.len();
    }
    ParsedStep::Action(read_call(text))
}

/// The sub-query on one line; `None` if there is none left.
pub(super) fn read_sub_query(text: &str) -> Option<String> {
    let line = one_line(text);
    let is_done = line.trim_end_matches(['.', '!']) == DONE;
    (!is_done && !line.is_empty()).then_some(line)
}

/// The JSON values in a text that start with `opening`; outer values come before inner ones.
fn json_values(text: &str, opening: char) -> impl Iterator<Item = Value> {
    // Without a limit, a text of opening brackets would take quadratic time.
    const MAX_TRIED: usize = 256;
    text.match_indices(opening)
        .take(MAX_TRIED)
        .filter_map(|(start, _)| {
            let end = start + value_length(&text[start..])?;
            json::parse(&text[start..end]).ok()
        })
}

/// Length of the text up to the bracket that closes the first one, ignoring brackets in quotes.
fn value_length(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (position, byte) in json::bytes_outside_strings(text.as_bytes()) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(position + 1);
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

    fn call(name: &str, arguments: Value) -> Result<ParsedCall, CallParseError> {
        Ok(ParsedCall {
            name: name.to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
        })
    }

    #[test]
    fn a_plan_is_parsed_from_prose_and_fences_and_must_be_a_list_of_strings() {
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
        let valid_call = call("T/A", json!({"q": "}\"{", "n": [1, {"m": null}]}));
        let text =
            "{\"name\": \"T/A\", \"arguments\": {\"q\": \"}\\\"{\", \"n\": [1, {\"m\": null}]}}";
        for surrounded in [
            text.to_owned(),
            format!("Sure {{so}}:\n```json\n{text}\n```\nDone."),
            format!("{{\"call\": {text}}}"),
            format!("{text}{{\"name\": \"second\", \"arguments\": {{}}}}"),
        ] {
            assert_eq!(read_call(&surrounded), valid_call, "{surrounded}");
        }
    }

    #[test]
    fn an_unparsable_call_reports_the_missing_part() {
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
            let expected = CallParseError {
                name: name.map(str::to_owned),
                reason,
            };
            assert_eq!(read_call(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_step_is_its_first_action_or_finish() {
        let a = ParsedStep::Action(call("a", json!({})));
        let text = "{\"name\": \"a\", \"arguments\": {}}";
        for reply in [
            format!("Thought: I use Finish: or not\nAction: {text}"),
            format!("Thought: x\n Action: {text}\nResult: 1\nFinish: made up"),
            text.to_owned(),
        ] {
            assert_eq!(read_step(&reply), a, "{reply}");
        }
        assert_eq!(
            read_step("Thought: enough\nFinish: It is 3.\nReally.\n"),
            ParsedStep::Finish("It is 3.\nReally.".to_owned())
        );
        assert_eq!(read_step("Finish:"), ParsedStep::Finish(String::new()));
        assert!(matches!(
            read_step("Thought: x"),
            ParsedStep::Action(Err(_))
        ));
    }

    #[test]
    fn done_or_an_empty_reply_ends_the_sub_queries() {
        for (text, expected) in [
            ("Find\n it.", Some("Find it.")),
            ("DONE", None),
            (" DONE.\n", None),
            ("", None),
            ("Is it DONE?", Some("Is it DONE?")),
        ] {
            assert_eq!(read_sub_query(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn many_brackets_are_parsed_in_linear_time() {
        let text = "[".repeat(200_000);
        assert_eq!(read_texts(&text), None);
        assert!(read_call(&"{\"a\":".repeat(50_000)).is_err());
    }
}
