//! Files in API-Bank's formats, with synthetic content.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_agents::executors::{Executor, ReplayExecutor};
use tooltune_apis::{ApiBankSet, ApiCatalogue, import_apibank_dialogues};

use crate::import::{
    ImportError, import_apibank_calls, import_apibank_dialogue_files, import_apibank_sources,
};

const TIDE: &str = r#"from apis.api import API

class Helper:
    description = "No API."

class Tide(API):
    description = "The tide " \
                  'at a "port".'
    input_parameters = {
        'port': {'type': 'str', 'description': "The port's name."},  
        "day": {'type': 'int', 'description': 'A day.'},
    }
    output_parameters = {'height': {'type': 'float', 'description': 'In metres.'}}
    database_name = 'Tides'

    def call(self, port: str, day: int) -> dict:
        input_parameters = {'port': port}
        return input_parameters
"#;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn sources(text: &str) -> Result<ApiCatalogue, ImportError> {
    let folder = folder(&[("tide.py", text), ("api.py", "class API:\n    pass\n")]);
    let documents = import_apibank_sources(folder.path(), ApiBankSet::Level3)?;
    Ok(ApiCatalogue::new(documents)?)
}

#[test]
fn classes_of_python_become_documents() {
    let catalogue = sources(TIDE).unwrap();
    assert_eq!(catalogue.len(), 1);
    let tide_document = catalogue.get("Tide").unwrap();
    assert_eq!(tide_document.category_name, "lv3");
    assert_eq!(tide_document.api_description, "The tide at a \"port\".");
    let port = tide_document.parameter("port").unwrap();
    assert_eq!(
        (port.kind.as_str(), port.description.as_str()),
        ("str", "The port's name.")
    );
    assert_eq!(tide_document.output_description, "height: In metres.");
    let error = sources(&TIDE.replace("\"day\": {", "\"day\": dict(")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("tide.py:9: input_parameters is not a string or object"),
        "{error}"
    );
    let error = sources("x = 1\n").unwrap_err().to_string();
    assert!(error.contains("has no API documents"), "{error}");
    let empty = import_apibank_sources(TempDir::new().unwrap().path(), ApiBankSet::Level3);
    let error = empty.unwrap_err().to_string();
    assert!(error.contains("no .py file"), "{error}");
}

fn api(port: &str, output: Value, exception: Value) -> Value {
    let input = json!({"port": port, "day": "1"});
    let result =
        json!({"api_name": "Tide", "input": input, "output": output, "exception": exception});
    json!({"role": "API", "api_name": " Tide ", "param_dict": input, "result": result})
}

fn write_file(folder: &Path, name: &str, text: String) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn right_api_answers_become_a_recording_for_replay() {
    let user_turn = json!({"role": "User", "text": "When?"});
    let ai_turn = json!({"role": "AI", "text": "At one."});
    let emden = api("Emden", json!({"height": 2}), Value::Null);
    let atlantis = api("Atlantis", Value::Null, json!("no such port"));
    let duplicate_call = api("Emden", json!({"height": 3}), Value::Null);
    let files = [
        (
            "level-2/b.jsonl",
            format!("{user_turn}\n{atlantis}\n{duplicate_call}\n"),
        ),
        (
            "level-1/a.jsonl",
            format!("{user_turn}\n{emden}\n{ai_turn}\n"),
        ),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let dir = folder(&files);
    let rows = import_apibank_dialogue_files(dir.path()).unwrap();
    assert_eq!(rows[0]["file"], "level-1/a.jsonl");
    assert_eq!(
        rows[1]["turns"],
        json!([user_turn, atlantis, duplicate_call])
    );
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let dialogues = write_file(dir.path(), "dialogues.jsonl", lines);
    let catalogue = sources(TIDE).unwrap();
    assert_eq!(
        import_apibank_dialogues(&dialogues, &catalogue)
            .unwrap()
            .len(),
        4
    );

    let call = json!({"api_name": "Tide", "input": {"port": "Emden", "day": 1},
        "output": {"output": {"height": 9}, "exception": null}});
    let level_3 = json!([{"requirement": "x", "response": "y", "apis": [call]}]);
    let level_3 = write_file(dir.path(), "level-3.json", level_3.to_string());
    let calls = import_apibank_calls(&[dialogues.clone(), level_3]).unwrap();
    assert_eq!(
        (calls.rows.len(), calls.n_repeated, calls.n_different),
        (3, 1, 1)
    );
    let lines: String = calls.rows.iter().map(|row| format!("{row}\n")).collect();
    let recording = write_file(dir.path(), "replay.jsonl", lines);
    for (set, port, expected) in [
        (ApiBankSet::Levels1And2, "Emden", json!({"height": 2})),
        (ApiBankSet::Level3, "Emden", json!({"height": 9})),
        (
            ApiBankSet::All,
            "Atlantis",
            json!({"error": "no such port"}),
        ),
    ] {
        let mut replay = ReplayExecutor::read(&recording, set, catalogue.clone()).unwrap();
        let arguments = json!({"port": port, "day": 1});
        let result = replay.call("Tide", arguments.as_object().unwrap());
        assert_eq!(result.shown_value(), expected);
    }
}

#[test]
fn an_invalid_answer_is_an_error_with_its_location() {
    let dir = TempDir::new().unwrap();
    for (text, expected) in [
        ("[]", "has no calls of API-Bank"),
        (
            "[{\"apis\": [{\"api_name\": \"Tide\", \"input\": {}}]}]",
            "field \"[0].apis[0].output\" is missing",
        ),
        ("{\"role\": \"User\"}", "the row has no turns"),
        (
            "{\"file\": \"a\", \"turns\": [{\"role\": \"API\", \"api_name\": \"T\"}]}",
            "field \"turns[0].param_dict\" is missing",
        ),
    ] {
        let path = write_file(dir.path(), "x.jsonl", text.to_owned());
        let error = import_apibank_calls(&[path]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
