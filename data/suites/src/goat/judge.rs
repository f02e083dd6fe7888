//! The success rate's judge: its prompt, and its verdict out of what it replies.
//!
//! The paper asks GPT-4.1; any model that follows the prompt will do, which is why the verdict is
//! looked for in the middle of prose, too.

use serde_json::{Deserializer, Value};
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::text::{Message, Role};

/// The instructions of the paper's Figure 21, its line breaks inside sentences taken out.
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
/// `executions` are the calls with what they returned, failed ones too, one JSON value each, in
/// the order of their execution. The paper does not show how the three are laid out under its
/// instructions; here each stands under its own heading in the user's turn.
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

/// The verdict of a judge's reply: whether the query is solved, or nothing that can be read.
///
/// The last object of the reply that has `answer_status` decides; its value is `Solved` or
/// `Unsolved` in any case with any blanks around it. Without a verdict the judge is to be asked
/// again, and after the last time the query counts as unsolved.
///
/// An object need not be JSON: judges write line breaks and quotes into its strings as they are,
/// or end before the closing brace. There the field is found by its pattern,
/// `"answer_status": "..."`. The pattern is not looked for behind an object that is JSON, unless
/// another object begins there.
pub fn parse_judge(reply: &str) -> Option<bool> {
    let mut status = None;
    let mut at = 0;
    let mut may_be_broken = true;
    while let Some(found) = reply[at..].find(['{', '"']) {
        at += found;
        let rest = &reply[at..];
        if rest.starts_with('{') {
            let object = object_with_status(rest);
            may_be_broken = object.is_none();
            at += object.as_ref().map_or(1, |(_, n_bytes)| *n_bytes);
            status = object.map(|(value, _)| value).or(status);
        } else {
            let field = status_field(rest).filter(|_| may_be_broken);
            at += field.map_or(1, |(_, n_bytes)| n_bytes);
            status = field.map(|(word, _)| Value::from(word)).or(status);
        }
    }
    match status?.as_str()?.trim().to_lowercase().as_str() {
        "solved" => Some(true),
        "unsolved" => Some(false),
        _ => None,
    }
}

/// The `answer_status` of the object that the text begins with, and the length of that object.
fn object_with_status(text: &str) -> Option<(Value, usize)> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    let object = values.next()?.ok()?;
    let status = object.get("answer_status")?.clone();
    Some((status, values.byte_offset()))
}

/// What stands between the quotes of the field `answer_status` that the text begins with, and the
/// length of that field. A choice, `"Solved" | "Unsolved"`, is the instruction and no verdict.
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
    fn the_messages_hold_the_instructions_and_the_whole_case() {
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
    fn the_verdict_is_found_wherever_it_stands() {
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
    fn an_object_that_is_no_json_has_its_verdict_too() {
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
            // Cut by a limit of tokens, or written without braces.
            (r#"{"answer_status": "Solved""#, Some(true)),
            (
                r#"{"answer_status": "Solved", "content": "Low wat"#,
                Some(true),
            ),
            (r#""answer_status": "Unsolved""#, Some(false)),
            // The last one decides, whichever of them is JSON.
            (
                r#"{"answer_status": "Solved"} no: {"content": "the "low" one", "answer_status": "Unsolved"}"#,
                Some(false),
            ),
            (
                r#"{"content": "the "low" one", "answer_status": "Unsolved"} no: {"answer_status": "Solved"}"#,
                Some(true),
            ),
            // Words about a verdict are none.
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
    fn what_is_no_verdict_is_none() {
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
