//! Prompts of every setting, our own and user-provided.

use std::sync::Arc;

use serde_json::json;
use tooltune_agents::truncation::{PruneOptions, ShapeOptions, TruncationOptions};

use super::*;
use crate::shortening::Reduction;
use crate::toolqa::{AnswerFacts, AnswerMetric, TaskType, ToolResponse};

fn row() -> ToolQaRow {
    let response = json!({"berths": [{"id": 1, "free": true}, {"id": 2, "note": "é {question}"}]});
    ToolQaRow {
        uid: "q1".to_owned(),
        task: "GetNote".to_owned(),
        task_type: TaskType::Extractive,
        metric: AnswerMetric::AccuracyString,
        question: "What is the NOTE of berth 2?".to_owned(),
        gold_answer: "é {question}".to_owned(),
        facts: AnswerFacts::default(),
        read_keys: None,
        response: Arc::new(ToolResponse {
            response_id: "b-1".to_owned(),
            endpoint: "Berths".to_owned(),
            split: "paper".to_owned(),
            response,
        }),
    }
}

fn built_in_prompt(setting: Setting, options: &PromptOptions) -> String {
    let prompts = PromptSet::default();
    let prompt = prompts.prompt(&row(), setting, &Schemas::Inferred, options);
    prompt.expect("a prompt")
}

#[test]
fn every_setting_shows_its_parts_and_leaves_no_placeholder() {
    for setting in Setting::ALL {
        let prompt = built_in_prompt(setting, &PromptOptions::default());
        let question = if setting.is_code() {
            "what is the note of berth 2?"
        } else {
            "What is the NOTE of berth 2?"
        };
        assert_eq!(prompt.matches(question).count(), 1, "{prompt}");
        let is_shown = prompt.contains("\"free\": true");
        assert_eq!(is_shown, setting.shows_response(), "{prompt}");
        let has_schema = prompt.contains("\"properties\": {\"berths\": ");
        assert_eq!(has_schema, setting.shows_schema(), "{prompt}");
        let n_left = ["{api_response}", "{question}", "<<", ">>", "{json_schema}"]
            .map(|placeholder| prompt.matches(placeholder).count());
        // The response contains a string that looks like a placeholder.
        let n_in_response = usize::from(setting.shows_response());
        assert_eq!(n_left, [0, n_in_response, 0, 0, 0], "{prompt}");
        assert_eq!(prompt.contains("```python"), setting.is_code(), "{prompt}");
    }
}

#[test]
fn responses_are_indented_json_for_answers_and_one_line_for_code() {
    let answer = built_in_prompt(Setting::Answer, &PromptOptions::default());
    let indented = "{\n    \"berths\": [\n        {\n            \"id\": 1,";
    assert!(answer.contains(indented), "{answer}");
    assert!(answer.contains("\\u00e9 {question}"), "{answer}");
    let code = built_in_prompt(Setting::Code, &PromptOptions::default());
    let indented = "data = {\"berths\": [{\"id\": 1, \"free\": true}, ";
    assert!(code.contains(indented), "{code}");
    let options = PromptOptions {
        response_text: ResponseText::PythonRepr,
        ..PromptOptions::default()
    };
    let code = built_in_prompt(Setting::Code, &options);
    let indented =
        "data = {'berths': [{'id': 1, 'free': True}, {'id': 2, 'note': 'é {question}'}]}";
    assert!(code.contains(indented), "{code}");
}

fn text_of(response: &Value, setting: Setting, reduce_all: Option<&Shortening>) -> String {
    let options = PromptOptions {
        reduce_all: reduce_all.cloned(),
        ..PromptOptions::default()
    };
    response_text(response, setting, &options).expect("a text")
}

#[test]
fn reduction_applies_to_its_setting_or_to_all() {
    let long = json!({"a": [{"b": [7, 8]}, {"b": [9]}]});
    let text = |setting, reduce_all| text_of(&long, setting, reduce_all);
    assert_eq!(
        text(Setting::CodeSchema, None),
        "{\"a\": [{\"b\": [7, 8]}, {\"b\": [9]}]}"
    );
    assert_eq!(
        text(Setting::CodeSchemaReduced, None),
        "{\"a\": [{\"b\": []}]}"
    );
    let by_paths = Shortening::Reduce(Reduction::Paths);
    assert_eq!(
        text(Setting::CodeSchema, Some(&by_paths)),
        "{\"a\": [{\"b\": [7]}]}"
    );
    assert_eq!(
        text(Setting::CodeSchemaReduced, Some(&by_paths)),
        "{\"a\": [{\"b\": []}]}"
    );
    assert_eq!(text(Setting::CodeSchemaNoResponse, Some(&by_paths)), "");
}

#[test]
fn a_truncated_response_reports_the_omission_in_the_format_of_its_setting() {
    let long = json!({"a": [7, 8, 9], "b": {"c": {"d": {"e": 1}}}});
    let truncated = |filter: Option<&str>, max_chars| {
        Shortening::Truncate(TruncationOptions {
            shape: ShapeOptions {
                filter: filter.map(str::to_owned),
                prune: PruneOptions {
                    max_items: 1,
                    max_depth: 2,
                    ..PruneOptions::default()
                },
            },
            max_chars,
        })
    };
    let text = |setting, by: &Shortening| text_of(&long, setting, Some(by));
    let meta = "{\"_meta\": \"showing 1 of 3 items. Use offset/limit to paginate.\"}";
    assert_eq!(
        text(Setting::Code, &truncated(None, 900)),
        format!("{{\"a\": [7, {meta}], \"b\": {{\"c\": {{\"d\": \"[object(1 keys)]\"}}}}}}")
    );
    assert_eq!(
        text(Setting::Answer, &truncated(Some("b.c.d"), 900)),
        "{\n    \"e\": 1\n}"
    );
    assert_eq!(
        text(Setting::Answer, &truncated(Some("b.c.d"), 8)),
        "{\n    \"e\n\n... [truncated, 6 characters omitted]"
    );
    let truncated_text = text(Setting::Answer, &truncated(Some("z"), 900));
    assert!(
        truncated_text.contains("the filter z finds nothing"),
        "{truncated_text}"
    );

    let options = PromptOptions {
        reduce_all: Some(truncated(Some("length(z)"), 900)),
        ..PromptOptions::default()
    };
    let prompt = PromptSet::default().prompt(&row(), Setting::Answer, &Schemas::Inferred, &options);
    let error = prompt.expect_err("not a list").to_string();
    for expected in ["question \"q1\"", "length(z)", "fix the expression"] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn settings_have_names_and_limits() {
    for setting in Setting::ALL {
        assert_eq!(Setting::from_name(setting.name()), Some(setting));
        assert_eq!(
            serde_json::to_value(setting).expect("written"),
            json!(setting.name())
        );
    }
    assert_eq!(Setting::from_name("chat"), None);
}

#[test]
fn the_prompts_of_judge_and_classifier_contain_their_texts() {
    let prompts = PromptSet::default();
    let judge = prompts.judge("Quay {predicted_answer}", "at quay 4");
    let judge_prompt = "Right answer: Quay {predicted_answer}\nPredicted answer: at quay 4\n";
    assert!(judge.contains(judge_prompt), "{judge}");
    let classifier = prompts.classifier("How many?", "{\"type\": \"object\"}");
    let judge_prompt =
        "Question: \"How many?\"\nJSON Schema of the data: \"{\"type\": \"object\"}\"\n";
    assert!(classifier.contains(judge_prompt), "{classifier}");
    assert_eq!(TaskType::from_output(&classifier), None);
}

#[test]
fn a_message_is_the_prompt_as_a_users_turn() {
    let prompts = PromptSet::default();
    let options = PromptOptions::default();
    let messages = prompts.messages(&row(), Setting::Code, &Schemas::Inferred, &options);
    let messages = messages.expect("messages");
    assert_eq!(
        messages,
        [Message::new(
            Role::User,
            built_in_prompt(Setting::Code, &options)
        )]
    );
}

fn prompt_file(value: &Value) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), value.to_string()).expect("written");
    file
}

fn prompt_set() -> Value {
    let mut prompts = json!({
        "judge": "{gold_answer} or {predicted_answer}",
        "classifier": "{nl_query} on {schema}",
    });
    for setting in Setting::ALL {
        prompts[setting.name()] = json!("<<task_prefix>> <<json_obj>> <<json_schema>>");
    }
    prompts["answer_schema"] = json!("{question} of {api_response} under {json_schema}");
    prompts
}

#[test]
fn user_prompts_replace_the_built_in_ones() {
    for file in [
        prompt_set(),
        json!({"source": "mine", "prompts": prompt_set()}),
    ] {
        let prompts = PromptSet::read(prompt_file(&file).path()).expect("prompts");
        assert_eq!(prompts.judge("a", "b"), "a or b");
        assert_eq!(prompts.classifier("q", "s"), "q on s");
        let schemas = Schemas::Given([("Berths".to_owned(), "SCHEMA".to_owned())].into());
        let options = PromptOptions::default();
        let prompt = prompts.prompt(&row(), Setting::AnswerSchema, &schemas, &options);
        let prompt = prompt.expect("a prompt");
        assert!(
            prompt.starts_with("What is the NOTE of berth 2? of {\n"),
            "{prompt}"
        );
        assert!(prompt.ends_with("} under SCHEMA"), "{prompt}");
        let prompt = prompts.prompt(&row(), Setting::CodeSchemaNoResponse, &schemas, &options);
        assert_eq!(
            prompt.expect("a prompt"),
            "what is the note of berth 2?  SCHEMA"
        );
    }
}

#[test]
fn prompts_without_a_required_placeholder_are_refused() {
    let mut absent = prompt_set();
    absent
        .as_object_mut()
        .expect("an object")
        .remove("cot_code_schema");
    let mut incomplete = prompt_set();
    incomplete["code_schema"] = json!("<<task_prefix>> <<json_obj>>");
    let rows = [
        (
            absent,
            "no string \"cot_code_schema\"; the file must contain answer, answer_schema,",
        ),
        (
            incomplete,
            "prompt \"code_schema\" lacks <<json_schema>> or {json_schema}; add it",
        ),
        (json!([]), "no string \"answer\""),
    ];
    for (file, part) in rows {
        let file = prompt_file(&file);
        let message = PromptSet::read(file.path()).expect_err(part).to_string();
        assert!(message.contains(part), "{message}");
        assert!(
            message.starts_with(&file.path().display().to_string()),
            "{message}"
        );
    }
}

#[test]
fn schemas_are_read_from_a_folder_by_endpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = Schemas::read(folder.path()).expect_err("empty").to_string();
    assert!(empty.contains("has no schemas"), "{empty}");
    let text = "{\n \"type\": \"object\"\n}";
    std::fs::write(folder.path().join("Berths.json"), text).expect("written");
    std::fs::write(folder.path().join("README.md"), "# Schemas").expect("written");
    let schemas = Schemas::read(folder.path()).expect("schemas");
    assert_eq!(schemas.text(&row()).expect("its schema"), text);
    let other = Schemas::Given([("Tides".to_owned(), text.to_owned())].into());
    let message = other.text(&row()).expect_err("none").to_string();
    assert!(message.contains("add Berths.json"), "{message}");
    std::fs::write(folder.path().join("Tides.json"), "{").expect("written");
    let message = Schemas::read(folder.path())
        .expect_err("no JSON")
        .to_string();
    assert!(message.contains("Tides.json: not valid JSON"), "{message}");
    assert!(Schemas::read(&folder.path().join("none")).is_err());
}
