//! The judge of the success rate: its prompt, and the verdict in its reply.
//!
//! The paper uses GPT-4.1. Any model that follows the prompt can be used, so prose around the
//! verdict is allowed.

use serde_json::{Deserializer, Value};
use tooltune_json::{Style, dumps};
use tooltune_template::{Message, Role};

/// The instructions of the paper's Figure 21, with line breaks inside sentences removed.
const INSTRUCTIONS: &str = r#"Given a user query, a sequence of tool execution details (including successes and failures), and the final answer, determine whether the answer sufficiently and correctly solves the original query, strictly based on the tool execution results.
Evaluation Rules:
1. The final answer must be based on the tool execution results.
- If the answer is generated independently without using the tool results, return "Unsolved".
2. The final answer must address and resolve **all parts** of the user query. Partial answers are not accepted.
- If the answer does not fully respond or give valid answer to every part of the query, return "Unsolved".
3. Only if the answer is fully based on tool results **and** correctly answers all aspects of the query, return "Solved".
No "Unsure" status is allowed.
Output format:
{
"content": "<Step-by-step reasoning and explanation>",
"answer_status": "Solved" | "Unsolved"
}"#;

/// The messages that ask whether `answer` solves `query`.
///
/// `executions` are the calls with their results, including failed calls, as one JSON value each in
/// execution order. The paper does not show the layout of the three parts after its instructions.
/// Here each part has a heading in the user message.
///
/// # Source
///
/// GOAT, Figure 21.
pub fn judge_messages(query: &str, executions: &[Value], answer: &str) -> Vec<Message> {
    let details: Vec<String> = executions
        .iter()
        .enumerate()
        .map(|(idx, execution)| format!("{}. {}", idx + 1, dumps(execution, Style::Python)))
        .collect();
    let details = if details.is_empty() {
        "(no tool was called)".to_owned()
    } else {
        details.join("\n")
    };
    let case = format!(
        "User query:\n{query}\n\nTool execution details:\n{details}\n\nFinal answer:\n{answer}"
    );
    vec![
        Message::new(Role::System, INSTRUCTIONS),
        Message::new(Role::User, case),
    ]
}

/// Parses the verdict in a judge's reply: whether the query is solved, or `None` if there is no
/// verdict.
///
/// The last object with `answer_status` determines the verdict. Its value is `Solved` or
/// `Unsolved`, in upper or lower case and with any surrounding whitespace. If there is no verdict,
/// ask the judge again; after the last attempt the query counts as unsolved.
///
/// The object need not be valid JSON, because judges write raw line breaks and quotes in strings or
/// omit the closing brace. In such objects the pattern `"answer_status": "..."` finds the field.
/// After a valid JSON object, the pattern is not searched for, unless another object starts there.
pub fn parse_judge(reply: &str) -> Option<bool> {
    let mut status = None;
    let mut position = 0;
    let mut may_be_broken = true;
    while let Some(offset) = reply[position..].find(['{', '"']) {
        position += offset;
        let rest = &reply[position..];
        if rest.starts_with('{') {
            let object = object_with_status(rest);
            may_be_broken = object.is_none();
            position += object.as_ref().map_or(1, |(_, n_bytes)| *n_bytes);
            status = object.map(|(value, _)| value).or(status);
        } else {
            let field = status_field(rest).filter(|_| may_be_broken);
            position += field.map_or(1, |(_, n_bytes)| n_bytes);
            status = field.map(|(word, _)| Value::from(word)).or(status);
        }
    }
    match status?.as_str()?.trim().to_lowercase().as_str() {
        "solved" => Some(true),
        "unsolved" => Some(false),
        _ => None,
    }
}

/// The `answer_status` of the object at the start of the text, and the length of that object.
fn object_with_status(text: &str) -> Option<(Value, usize)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let object = values.next()?.ok()?;
    let status = object.get("answer_status")?.clone();
    Some((status, values.byte_offset()))
}

/// The string in the `answer_status` field at the start of the text, and the length of that field.
/// The text `"Solved" | "Unsolved"` repeats the instruction, so it is not a verdict.
fn status_field(text: &str) -> Option<(&str, usize)> {
    let value = text.strip_prefix("\"answer_status\"")?.trim_start();
    let value = value.strip_prefix(':')?.trim_start();
    let (word, after) = value.strip_prefix('"')?.split_once('"')?;
    let is_choice = after.trim_start().starts_with('|');
    (!is_choice).then_some((word, text.len() - after.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_judge_messages_contain_the_instructions_and_the_case() {
        let executions = [
            json!({"name": "Tides/Low Water", "arguments": {"port": "Emden"}, "output": {"at": "06:10"}}),
            json!({"name": "Tides/Pilot", "arguments": {}, "output": {"error": "no row"}}),
        ];
        let messages = judge_messages("When is low water?", &executions, "At 06:10.");
        assert_eq!(messages.len(), 2);
        let texts: Vec<&str> = messages
            .iter()
            .filter_map(|m| m.content.as_deref())
            .collect();
        assert!(texts[0].starts_with("Given a user query, a sequence of tool execution details"));
        assert!(texts[0].ends_with("\"answer_status\": \"Solved\" | \"Unsolved\"\n}"));
        assert_eq!(
            texts[1],
            "User query:\nWhen is low water?\n\nTool execution details:\n\
             1. {\"name\": \"Tides/Low Water\", \"arguments\": {\"port\": \"Emden\"}, \
             \"output\": {\"at\": \"06:10\"}}\n\
             2. {\"name\": \"Tides/Pilot\", \"arguments\": {}, \"output\": {\"error\": \"no row\"}}\n\n\
             Final answer:\nAt 06:10."
        );
        let without = judge_messages("q", &[], "a");
        let case = without[1].content.as_deref().expect("a text");
        assert!(case.contains("(no tool was called)"), "{case}");
    }

    #[test]
    fn the_verdict_is_found_anywhere_in_the_reply() {
        let rows = [
            (
                r#"{"content": "fine", "answer_status": "Solved"}"#,
                Some(true),
            ),
            (
                "```json\n{\"answer_status\": \" UNSOLVED \"}\n```",
                Some(false),
            ),
            (
                r#"First {oops, then {"answer_status": "solved"} as said."#,
                Some(true),
            ),
            (
                r#"{"answer_status": "Solved"} no: {"answer_status": "Unsolved"}"#,
                Some(false),
            ),
            (
                r#"{"answer_status": "Solved"} {"note": "done"}"#,
                Some(true),
            ),
            (r#"{"result": {"answer_status": "Solved"}}"#, Some(true)),
            (
                r#"{"content": "was {\"answer_status\": \"Solved\"}", "answer_status": "Unsolved"}"#,
                Some(false),
            ),
        ];
        for (reply, expected) in rows {
            assert_eq!(parse_judge(reply), expected, "{reply}");
        }
    }

    #[test]
    fn a_verdict_is_read_from_an_invalid_json_object() {
        let rows = [
            (
                "{\"content\": \"low water\nis at six\", \"answer_status\": \"Solved\"}",
                Some(true),
            ),
            (
                "{\"content\": \"a\ttab\", \"answer_status\": \"Unsolved\"}",
                Some(false),
            ),
            (
                r#"{"content": "the "low" water", "answer_status": "Solved"}"#,
                Some(true),
            ),
            (
                r#"{"answer_status" : "Unsolved", "content": "the "low" water"}"#,
                Some(false),
            ),
            // These objects are cut off by a token limit, or written without braces.
            (r#"{"answer_status": "Solved""#, Some(true)),
            (
                r#"{"answer_status": "Solved", "content": "Low wat"#,
                Some(true),
            ),
            (r#""answer_status": "Unsolved""#, Some(false)),
            // The last object determines the verdict, whether or not it is valid JSON.
            (
                r#"{"answer_status": "Solved"} no: {"content": "the "low" one", "answer_status": "Unsolved"}"#,
                Some(false),
            ),
            (
                r#"{"content": "the "low" one", "answer_status": "Unsolved"} no: {"answer_status": "Solved"}"#,
                Some(true),
            ),
            // A verdict that is only mentioned in prose does not count.
            (
                r#"{"answer_status": "Solved"} where "answer_status": "Unsolved" would be wrong"#,
                Some(true),
            ),
            (
                "{\"content\": \"a\nb\", \"answer_status\": \"Solved\" | \"Unsolved\"}",
                None,
            ),
            (
                "{\"content\": \"a\nb \\\"answer_status\\\": \\\"Solved\\\"\"}",
                None,
            ),
        ];
        for (reply, expected) in rows {
            assert_eq!(parse_judge(reply), expected, "{reply}");
        }
    }

    #[test]
    fn a_reply_without_a_verdict_has_none() {
        let rows = [
            "",
            "Solved",
            "{",
            r#"{"answer_status": "Unsure"}"#,
            r#"{"answer_status": true}"#,
            r#"{"status": "Solved"}"#,
            r#"{"answer_status": "Solved"} {"answer_status": "Unsure"}"#,
            r#"{"answer_status": Solved}"#,
            r#"{"answer_status": "Solved"#,
        ];
        for reply in rows {
            assert_eq!(parse_judge(reply), None, "{reply}");
        }
        assert_eq!(parse_judge(&"{".repeat(2_000)), None);
        assert_eq!(parse_judge(&"{\"a\":".repeat(1_000)), None);
    }
}
