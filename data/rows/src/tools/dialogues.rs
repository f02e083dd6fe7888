//! API-Bank's dialogues of levels 1 and 2 as steps: what was said and called so far, and the right
//! call or reply that comes next.
//!
//! A step is made of every call of a tool and of every reply that follows one directly. The
//! decision to question: replies without a call before them (greetings, questions back) are no
//! steps, as in API-Bank's test of replies; calls of `ToolSearcher` are part of the history only.

use std::path::Path;

use serde_json::{Map, Value};

use super::catalogue::ApiCatalogue;
use super::error::ToolsError;
use super::fields::{Fields, wrong_type};
use super::gold::GoldCall;
use super::source::JsonLines;

const ROW: &str = "a dialogue needs file and turns";
const TURN: &str = "a turn needs role and text, a call api_name, param_dict and result";

/// The call that looks for APIs and is no step.
const SEARCHER: &str = "ToolSearcher";

/// One turn of a dialogue.
#[derive(Debug, Clone, PartialEq)]
pub enum DialogueTurn {
    /// What the user said.
    User(String),
    /// What the assistant said.
    Assistant(String),
    /// What the assistant called, with the result.
    Call(GoldCall),
}

/// What comes next in a dialogue.
#[derive(Debug, Clone, PartialEq)]
pub enum DialogueGold {
    /// A call.
    Call(GoldCall),
    /// A reply to the user.
    Reply(String),
}

/// A dialogue up to a call or a reply, and what that is.
#[derive(Debug, Clone, PartialEq)]
pub struct DialogueStep {
    /// The dialogue's file and the number of the turn from 0, such as `a.jsonl[3]`.
    pub id: String,
    /// The APIs that the whole dialogue calls, each once, in the order of their first calls.
    pub apis: Vec<String>,
    /// The turns before, in order.
    pub turns: Vec<DialogueTurn>,
    /// The right next turn.
    pub gold: DialogueGold,
}

impl DialogueStep {
    /// What the user said last; empty where the user said nothing yet.
    pub fn query(&self) -> &str {
        let said = self.turns.iter().rev().find_map(|turn| match turn {
            DialogueTurn::User(text) => Some(text.as_str()),
            _ => None,
        });
        said.unwrap_or("")
    }
}

/// Reads the steps of dialogues: JSON Lines of `{"file", "turns": [{"role": "User" or "AI",
/// "text"} or {"role": "API", "api_name", "param_dict", "result": {"output", "exception"},
/// "check_input"?}]}`.
///
/// # Errors
///
/// - the file cannot be read, or has no step
/// - a line is no such dialogue, or calls an API that is not in `catalogue`
pub fn import_apibank_dialogues(
    path: &Path,
    catalogue: &ApiCatalogue,
) -> Result<Vec<DialogueStep>, ToolsError> {
    let mut steps = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, row) = line?;
        push_steps(&row, catalogue, &mut steps).map_err(|error| error.at(place))?;
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
    let turn = |(i, value)| turn(value, &format!("turns[{i}]"), catalogue);
    let turns: Vec<DialogueTurn> = fields
        .list("turns")?
        .iter()
        .enumerate()
        .map(turn)
        .collect::<Result<_, _>>()?;
    let mut apis: Vec<String> = Vec::new();
    for name in turns.iter().filter_map(called) {
        if !apis.iter().any(|known| known == name) {
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

fn called(turn: &DialogueTurn) -> Option<&str> {
    match turn {
        DialogueTurn::Call(call) if call.name != SEARCHER => Some(&call.name),
        _ => None,
    }
}

fn turn(value: &Value, place: &str, catalogue: &ApiCatalogue) -> Result<DialogueTurn, ToolsError> {
    let fields = Fields::new(value, place, TURN)?;
    let text = || Ok::<_, ToolsError>(fields.text("text")?.trim().to_owned());
    match fields.text("role")? {
        "User" => Ok(DialogueTurn::User(text()?)),
        "AI" => Ok(DialogueTurn::Assistant(text()?)),
        "API" => Ok(DialogueTurn::Call(call(&fields, catalogue)?)),
        _ => {
            let role = fields.get("role").unwrap_or(&Value::Null);
            Err(wrong_type(&fields.place("role"), role, "User, AI or API"))
        }
    }
}

fn call(fields: &Fields<'_>, catalogue: &ApiCatalogue) -> Result<GoldCall, ToolsError> {
    let name = fields.text("api_name")?.trim();
    if name != SEARCHER && catalogue.get(name).is_none() {
        return Err(catalogue.unknown_api(&fields.place("api_name"), name));
    }
    let arguments: Map<String, Value> = fields
        .object("param_dict")?
        .ok_or_else(|| fields.missing("param_dict"))?
        .clone();
    let Some(result) = fields.get("result") else {
        return Err(fields.missing("result"));
    };
    let place = fields.place("result");
    let result = Fields::new(result, &place, "a result needs output and exception")?;
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
    use crate::tools::ApiDocument;

    fn read(rows: &[Value]) -> Result<Vec<DialogueStep>, ToolsError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("said.jsonl");
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(&path, text).expect("written");
        let documents = ["Tide", "Pilot"].map(|name| ApiDocument::new("", name));
        let catalogue = ApiCatalogue::new(documents.to_vec()).expect("two names");
        import_apibank_dialogues(&path, &catalogue)
    }

    fn said(role: &str, text: &str) -> Value {
        json!({"role": role, "text": text})
    }

    fn called(name: &str) -> Value {
        json!({"role": "API", "api_name": name, "param_dict": {"port": "Emden"},
            "result": {"output": "06:10", "exception": null}})
    }

    #[test]
    fn calls_and_the_replies_after_them_are_steps() {
        let turns = json!([
            said("User", "When is low water?"),
            said("AI", "Where?"),
            said("User", "Emden "),
            called("ToolSearcher"),
            called("Tide"),
            called("Tide"),
            said("AI", "At 06:10."),
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
    fn what_is_no_dialogue_is_named_with_its_place() {
        let row = |turn: Value| json!({"file": "a", "turns": [turn]});
        let cases = [
            (
                json!({"file": "a"}),
                "said.jsonl:1: field \"turns\" is missing",
            ),
            (row(said("Bot", "x")), "turns[0].role"),
            (row(json!({"role": "User"})), "turns[0].text"),
            (
                row(called("Tides")),
                "no API is called \"Tides\", did you mean \"Tide\"?",
            ),
            (
                row(json!({"role": "API", "api_name": "Tide", "param_dict": {}})),
                "turns[0].result",
            ),
            (
                row(said("User", "x")),
                "said.jsonl: the file holds no steps of dialogues",
            ),
        ];
        for (row, expected) in cases {
            let message = read(&[row]).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
