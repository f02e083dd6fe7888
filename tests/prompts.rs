//! What a model is asked with: the prompt of SLOT rows, chat templates by name, and system messages,
//! through training, texts, requests and exports.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, assert_complains, assert_refused};
use crate::support::server::{TestServer, chat};
use crate::workplace::Workplace;

const PROMPT: &str = "Read: {{ input_text }}\nSchema: {{ json_schema }}\n";

/// The config with further settings of `[data]`.
fn workplace(settings: &str) -> Workplace {
    let workplace = Workplace::new();
    workplace.write("mine.jinja", PROMPT);
    let config = workplace.read("config.toml");
    workplace.write(
        "config.toml",
        config.replace("[train]", &format!("{settings}\n[train]")),
    );
    workplace
}

fn said(workplace: &Workplace, command: &str) -> String {
    workplace.run(command.split_whitespace()).success()
}

/// The prompt that a run, or a config, gives its first row to evaluate on.
fn asked(workplace: &Workplace, target: &str) -> String {
    let first = if target.contains("--message") || target.contains("--text") {
        ""
    } else {
        "--max-samples 1"
    };
    let command = format!("generate {target} {first} --output texts.jsonl");
    said(workplace, &command);
    let line: Value = serde_json::from_str(workplace.read("texts.jsonl").trim()).unwrap();
    std::fs::remove_file(workplace.path("texts.jsonl")).unwrap();
    line["prompt"].as_str().unwrap().to_owned()
}

/// The messages that a server is sent for the first row.
fn sent(workplace: &Workplace, target: &str) -> Value {
    let server = TestServer::start(|_, _| chat("{}"));
    let url = server.url();
    let command = format!("eval {target} --endpoint {url}/v1 --endpoint-model m --max-samples 1");
    said(workplace, &command);
    let body: Value = serde_json::from_str(&server.received()[0].body).unwrap();
    body["messages"].clone()
}

/// What the prompt makes of the first row.
fn rendered(workplace: &Workplace) -> String {
    let row: Value =
        serde_json::from_str(workplace.read("dev.jsonl").lines().next().unwrap()).unwrap();
    let text = row["input_text"].as_str().unwrap();
    format!("Read: {text}\nSchema: {}", row["json_schema"])
}

#[test]
fn a_prompt_of_the_users_is_that_of_training_texts_requests_and_exports() {
    let workplace = workplace("slot_prompt = \"mine.jinja\"");
    let shown = said(&workplace, "inspect config.toml --rows 1");
    assert!(
        shown.contains("user\nRead: ") && shown.contains("\nSchema: {"),
        "{shown}"
    );
    said(&workplace, "train config.toml --set train.max_steps=2");
    let wanted = rendered(&workplace);
    let prompt = asked(&workplace, "run --checkpoint last");
    assert!(
        prompt.contains(&format!("<|im_start|>user\n{wanted}<|im_end|>")),
        "{prompt}"
    );
    let messages = sent(&workplace, "run");
    assert_eq!(messages, json!([{"role": "user", "content": wanted}]));

    for (to, output, prompt) in [
        ("peft", "adapter", "adapter/prompt.jinja"),
        ("merged", "merged", "merged/prompt.jinja"),
        ("gguf", "my.gguf", "my.prompt.jinja"),
    ] {
        said(
            &workplace,
            &format!("export run --checkpoint last --to {to} --output {output}"),
        );
        assert_eq!(workplace.read(prompt), PROMPT, "{to}");
        let template = prompt.replace("prompt.jinja", "chat_template.jinja");
        let of_run = workplace.read("run/checkpoint-000002/chat_template.jinja");
        assert_eq!(workplace.read(&template), of_run, "{to}");
    }

    // An export alone asks as training did.
    assert_eq!(asked(&workplace, "adapter --data dev.jsonl"), prompt);
    workplace.write("schema.json", "{\"type\": \"object\"}");
    let text = asked(&workplace, "adapter --text Hallo --schema schema.json");
    let wanted = "user\nRead: Hallo\nSchema: {\"type\":\"object\"}<|im_end|>";
    assert!(text.contains(wanted), "{text}");

    // Another text under the same name is another prompt.
    workplace.write("mine.jinja", PROMPT.replace("Read", "Hear"));
    let train: Vec<&str> = "train config.toml --set train.max_steps=2"
        .split(' ')
        .collect();
    assert_refused(&workplace, &train, CONFIG, &["other inputs: mine.jinja"]);
    for command in [
        "generate run --max-samples 1",
        "select run --evaluate --metric loss",
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        let complaint = ["other files than those that the run was trained with: mine.jinja"];
        assert_complains(&workplace.run(command), CONFIG, &complaint);
    }
    // Who asks otherwise on purpose names another.
    let other = asked(
        &workplace,
        "run --checkpoint last --set data.slot_prompt=paper",
    );
    assert!(
        other.contains("Convert the following text into JSON format"),
        "{other}"
    );
    workplace.write("mine.jinja", PROMPT);
    let other = "train config.toml --set train.max_steps=2 --set data.slot_prompt=typed";
    let other: Vec<&str> = other.split(' ').collect();
    let change = "data.slot_prompt: \"mine.jinja\" -> \"typed\"";
    assert_refused(&workplace, &other, CONFIG, &[change]);
}

#[test]
fn a_run_keeps_the_built_in_prompt_that_it_was_trained_with() {
    let workplace = workplace("");
    said(&workplace, "train config.toml --set train.max_steps=2");
    let config = workplace.read("run/config.resolved.toml");
    assert!(config.contains("slot_prompt = \"typed\"\n"), "{config}");
    let of_checkpoint = workplace.read("run/checkpoint-000002/prompt.jinja");
    assert!(
        of_checkpoint.contains("numbers and booleans without quotes"),
        "{of_checkpoint}"
    );
    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    let key = "data.slot_prompt = \"typed\"";
    assert!(lock["built_in"][key].is_string(), "{lock}");

    // As of a version with another text.
    let mut other = lock.clone();
    other["built_in"][key] = json!("0".repeat(64));
    workplace.write("run/run.lock.json", other.to_string());
    let complaint = ["data.slot_prompt = \"typed\" (its text is another one in this version)"];
    for command in [
        "train config.toml --set train.max_steps=2",
        "generate run --max-samples 1",
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        assert_complains(&workplace.run(command), CONFIG, &complaint);
    }
    workplace.write("run/run.lock.json", lock.to_string());

    // As of a version without the setting.
    workplace.write(
        "run/config.resolved.toml",
        config.replace("slot_prompt = \"typed\"\n", ""),
    );
    let prompt = asked(&workplace, "run --checkpoint last");
    assert!(
        prompt.contains("Convert the following text into JSON format"),
        "{prompt}"
    );
    let train: Vec<&str> = "train config.toml --set train.max_steps=2"
        .split(' ')
        .collect();
    let change = "data.slot_prompt: \"paper\" -> \"typed\"";
    assert_refused(&workplace, &train, CONFIG, &[change]);
}

#[test]
fn a_prompt_that_is_none_is_refused_with_its_file() {
    let workplace = workplace("");
    workplace.write("half.jinja", "{{ input_text }}");
    let refused = |prompt: &str, status: i32, said: &[&str]| {
        let setting = format!("data.slot_prompt={prompt}");
        for verb in ["inspect", "plan", "train"] {
            let command = [verb, "config.toml", "--set", &setting];
            assert_refused(&workplace, &command, status, said);
        }
    };
    refused(
        "half.jinja",
        3,
        &["half.jinja: the template never prints json_schema"],
    );
    let names = "it can be \"typed\", \"paper\" or a Jinja file";
    refused("papers", CONFIG, &["papers, which does not exist", names]);
    let command = "generate config.toml --checkpoint base --set data.chat_template=chatml";
    let command: Vec<&str> = command.split(' ').collect();
    let names = ["chatml, which does not exist; it can be \"chatml-tools\" or a Jinja file"];
    assert_refused(&workplace, &command, CONFIG, &names);
}

#[test]
fn the_system_message_is_told_with_who_gives_it_and_reaches_texts_requests_and_exports() {
    let workplace = workplace("system = \"Be \\\"brief\\\".\"\nchat_template = \"chatml-tools\"");
    let line = |more: &str| {
        let shown = said(&workplace, &format!("inspect config.toml --rows 1 {more}"));
        let mut lines = shown.lines().filter(|line| line.contains("system message"));
        lines.next().unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    assert_eq!(
        line(""),
        "system message of data.system: \"Be \\\"brief\\\".\""
    );
    let own = "{\"messages\": [{\"role\": \"system\", \"content\": \"Aye.\"}, {\"role\": \"user\", \
               \"content\": \"A?\"}, {\"role\": \"assistant\", \"content\": \"B.\"}]}";
    workplace.write("own.jsonl", own);
    workplace.write("other.jsonl", own);
    let messages = "--set data.train=['own.jsonl'] --set data.format=messages --set eval.suites=[] \
                    --set eval.metric_for_best_model=loss --set data.eval=['other.jsonl']";
    assert_eq!(line(messages), "system message of the row: \"Aye.\"");
    let default = "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nOf mine.<|im_end|>\\n' }}\
                   {% endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + \
                   '<|im_end|>\\n' }}{%- endfor %}{% if add_generation_prompt %}\
                   {{ '<|im_start|>assistant\\n' }}{% endif %}";
    workplace.write("default.jinja", default);
    let config = workplace.read("config.toml");
    workplace.write(
        "plain.toml",
        config.replace("system = \"Be \\\"brief\\\".\"", ""),
    );
    let shown = said(
        &workplace,
        "inspect plain.toml --rows 1 --set data.chat_template=default.jinja",
    );
    let words = "system message of the chat template, as neither the row nor data.system gives one: \
                 \"Of mine.\"";
    assert!(shown.contains(words), "{shown}");
    let shown = said(&workplace, "inspect plain.toml --rows 1");
    assert!(shown.contains("\nno system message\n"), "{shown}");
    let shown = said(&workplace, "inspect config.toml --rows 1 --format json");
    let shown: Value = serde_json::from_str(shown.trim()).unwrap();
    assert_eq!(
        shown["system"],
        json!({"from": "data.system", "text": "Be \"brief\"."})
    );

    said(&workplace, "train config.toml --set train.max_steps=2");
    let system = "<|im_start|>system\nBe \"brief\".<|im_end|>\n<|im_start|>user\n";
    let prompt = asked(&workplace, "run --checkpoint last");
    assert!(prompt.starts_with(system), "{prompt}");
    let flat = "config.toml --checkpoint base --set data.flatten=always";
    let prompt = asked(&workplace, flat);
    assert!(prompt.starts_with(system), "{prompt}");
    let question = asked(&workplace, "run --checkpoint last --message Hi");
    assert!(
        question.starts_with(&format!("{system}Hi<|im_end|>")),
        "{question}"
    );
    let messages = sent(&workplace, "run");
    assert_eq!(
        messages[0],
        json!({"role": "system", "content": "Be \"brief\"."})
    );
    assert_eq!(messages[1]["role"], "user");

    // A server that is sent no system message writes that of training.
    said(
        &workplace,
        "export run --checkpoint last --to merged --output merged",
    );
    let served = "--checkpoint base --message Hi --set model.model_name_or_path=merged";
    let served = asked(
        &workplace,
        &format!("plain.toml {served} --set data.chat_template=merged/chat_template.jinja"),
    );
    assert_eq!(served, question);
}
