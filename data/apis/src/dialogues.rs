//! API-Bank's dialogues of levels 1 and 2 as steps: the history of turns and calls, and the
//! reference call or reply that comes next.
//!
//! Each tool call and each reply directly after a call is a step. Replies without a call before
//! them (greetings, questions to the user) are not steps, as in API-Bank's reply test. Calls of
//! `ToolSearcher` appear only in the history.

use std::path::Path;

use serde_json::{Map, Value};

use super::catalogue::ApiCatalogue;
use super::error::ToolsError;
use super::fields::{Fields, wrong_type};
use super::gold::GoldCall;
use super::source::JsonLines;

const ROW: &str = "a dialogue needs file and turns";
const TURN: &str = "a turn needs role and text, a call api_name, param_dict and result";

/// The call that searches for APIs; not a step.
const SEARCHER: &str = "ToolSearcher";

/// One turn of a dialogue.
#[derive(Debug, Clone, PartialEq)]
pub enum DialogueTurn {
    /// A message of the user.
    User(String),
    /// A message of the assistant.
    Assistant(String),
    /// A call of the assistant with its result.
    Call(GoldCall),
}

/// The next turn of a dialogue.
#[derive(Debug, Clone, PartialEq)]
pub enum DialogueGold {
    /// A call.
    Call(GoldCall),
    /// A reply to the user.
    Reply(String),
}

/// A dialogue up to a call or reply, with the reference for that turn.
#[derive(Debug, Clone, PartialEq)]
pub struct DialogueStep {
    /// Dialogue file and index of the turn, such as `a.jsonl[3]`.
    pub id: String,
    /// The APIs called in the whole dialogue, once each, in the order of their first calls.
    pub apis: Vec<String>,
    /// The turns before the predicted one.
    pub turns: Vec<DialogueTurn>,
    /// The reference next turn.
    pub gold: DialogueGold,
}

impl DialogueStep {
    /// The last user message; empty if there is none yet.
    pub fn query(&self) -> &str {
        let query = self.turns.iter().rev().find_map(|turn| match turn {
            DialogueTurn::User(text) => Some(text.as_str()),
            _ => None,
        });
        query.unwrap_or("")
    }
}

/// Reads dialogue steps from JSON Lines of `{"file", "turns": [{"role": "User" or "AI", "text"} or
/// {"role": "API", "api_name", "param_dict", "result": {"output", "exception"}, "check_input"?}]}`.
///
/// # Errors
///
/// - the file cannot be read or has no steps
/// - a line is not such a dialogue, or calls an API that is not in `catalogue`
pub fn import_apibank_dialogues(
    path: &Path,
    catalogue: &ApiCatalogue,
) -> Result<Vec<DialogueStep>, ToolsError> {
    let mut steps = Vec::new();
    for line in JsonLines::open(path)? {
        let (location, row) = line?;
        push_steps(&row, catalogue, &mut steps).map_err(|error| error.at(location))?;
    }
    if steps.is_empty() {
        let what = "steps of dialogues";
        return Err(ToolsError::Empty { what }.at(path.display().to_string()));
    }
    Ok(steps)
}

fn push_steps(
    row: &Value,
    catalogue: &ApiCatalogue,
    steps: &mut Vec<DialogueStep>,
) -> Result<(), ToolsError> {
    let fields = Fields::new(row, "", ROW)?;
    let file = fields.text("file")?;
    if fields.get("turns").is_none() {
        return Err(fields.missing("turns"));
    }
    let turn = |(i, value)| parse_turn(value, &format!("turns[{i}]"), catalogue);
    let turns: Vec<DialogueTurn> = fields
        .list("turns")?
        .iter()
        .enumerate()
        .map(turn)
        .collect::<Result<_, _>>()?;
    let mut apis: Vec<String> = Vec::new();
    for name in turns.iter().filter_map(called_api) {
        if !apis.iter().any(|listed| listed == name) {
            apis.push(name.to_owned());
        }
    }
    for (i, turn) in turns.iter().enumerate() {
        let follows_call = i > 0 && matches!(turns[i - 1], DialogueTurn::Call(_));
        let gold = match turn {
            DialogueTurn::Call(call) if call.name != SEARCHER => DialogueGold::Call(call.clone()),
            DialogueTurn::Assistant(text) if follows_call => DialogueGold::Reply(text.clone()),
            _ => continue,
        };
        steps.push(DialogueStep {
            id: format!("{file}[{i}]"),
            apis: apis.clone(),
            turns: turns[..i].to_vec(),
            gold,
        });
    }
    Ok(())
}

fn called_api(turn: &DialogueTurn) -> Option<&str> {
    match turn {
        DialogueTurn::Call(call) if call.name != SEARCHER => Some(&call.name),
        _ => None,
    }
}

fn parse_turn(
    value: &Value,
    location: &str,
    catalogue: &ApiCatalogue,
) -> Result<DialogueTurn, ToolsError> {
    let fields = Fields::new(value, location, TURN)?;
    let text = || Ok::<_, ToolsError>(fields.text("text")?.trim().to_owned());
    match fields.text("role")? {
        "User" => Ok(DialogueTurn::User(text()?)),
        "AI" => Ok(DialogueTurn::Assistant(text()?)),
        "API" => Ok(DialogueTurn::Call(call(&fields, catalogue)?)),
        _ => {
            let role = fields.get("role").unwrap_or(&Value::Null);
            Err(wrong_type(&fields.path("role"), role, "User, AI or API"))
        }
    }
}

fn call(fields: &Fields<'_>, catalogue: &ApiCatalogue) -> Result<GoldCall, ToolsError> {
    let name = fields.text("api_name")?.trim();
    if name != SEARCHER && catalogue.get(name).is_none() {
        return Err(catalogue.unknown_api(&fields.path("api_name"), name));
    }
    let arguments: Map<String, Value> = fields
        .object("param_dict")?
        .ok_or_else(|| fields.missing("param_dict"))?
        .clone();
    let Some(result) = fields.get("result") else {
        return Err(fields.missing("result"));
    };
    let path = fields.path("result");
    let result = Fields::new(result, &path, "a result needs output and exception")?;
    Ok(GoldCall {
        name: name.to_owned(),
        arguments: Some(arguments),
        output: result.raw("output").cloned().unwrap_or(Value::Null),
        exception: result.optional_text("exception")?.map(str::to_owned),
        check_input: fields.flag("check_input")?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::ApiDocument;

    fn read(rows: &[Value]) -> Result<Vec<DialogueStep>, ToolsError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("said.jsonl");
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(&path, text).expect("written");
        let documents = ["Tide", "Pilot"].map(|name| ApiDocument::new("", name));
        let catalogue = ApiCatalogue::new(documents.to_vec()).expect("two names");
        import_apibank_dialogues(&path, &catalogue)
    }

    fn text_turn(role: &str, text: &str) -> Value {
        json!({"role": role, "text": text})
    }

    fn called_api(name: &str) -> Value {
        json!({"role": "API", "api_name": name, "param_dict": {"port": "Emden"},
            "result": {"output": "06:10", "exception": null}})
    }

    #[test]
    fn calls_and_the_replies_after_them_are_steps() {
        let turns = json!([
            text_turn("User", "When is low water?"),
            text_turn("AI", "Where?"),
            text_turn("User", "Emden "),
            called_api("ToolSearcher"),
            called_api("Tide"),
            called_api("Tide"),
            text_turn("AI", "At 06:10."),
        ]);
        let steps = read(&[json!({"file": "a.jsonl", "turns": turns})]).expect("reads");
        let ids: Vec<&str> = steps.iter().map(|step| step.id.as_str()).collect();
        assert_eq!(ids, ["a.jsonl[4]", "a.jsonl[5]", "a.jsonl[6]"]);
        assert_eq!(steps[0].apis, ["Tide"]);
        assert_eq!((steps[0].turns.len(), steps[0].query()), (4, "Emden"));
        let DialogueGold::Call(call) = &steps[1].gold else {
            panic!("{:?}", steps[1]);
        };
        assert_eq!(
            (call.name.as_str(), &call.output),
            ("Tide", &json!("06:10"))
        );
        assert_eq!(steps[2].gold, DialogueGold::Reply("At 06:10.".to_owned()));
    }

    #[test]
    fn an_invalid_dialogue_is_reported_with_its_location() {
        let row = |turn: Value| json!({"file": "a", "turns": [turn]});
        let cases = [
            (
                json!({"file": "a"}),
                "said.jsonl:1: field \"turns\" is missing",
            ),
            (row(text_turn("Bot", "x")), "turns[0].role"),
            (row(json!({"role": "User"})), "turns[0].text"),
            (
                row(called_api("Tides")),
                "no API is called \"Tides\", did you mean \"Tide\"?",
            ),
            (
                row(json!({"role": "API", "api_name": "Tide", "param_dict": {}})),
                "turns[0].result",
            ),
            (
                row(text_turn("User", "x")),
                "said.jsonl: the file has no steps of dialogues",
            ),
        ];
        for (row, expected) in cases {
            let message = read(&[row]).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
