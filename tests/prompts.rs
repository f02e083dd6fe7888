//! Prompts in training, generation, requests and exports: the prompt of SLOT rows, built-in chat
//! templates, and system messages.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, assert_error, assert_refused};
use crate::support::server::{TestServer, chat};
use crate::workplace::Workplace;

const PROMPT: &str = "Read: {{ input_text }}\nSchema: {{ json_schema }}\n";

/// The config with additional settings in `[data]`.
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

fn run_successfully(workplace: &Workplace, command: &str) -> String {
    workplace.run(command.split_whitespace()).success()
}

/// The prompt of the first evaluation row of a run or config.
fn generated_prompt(workplace: &Workplace, target: &str) -> String {
    let first = if target.contains("--message") || target.contains("--text") {
        ""
    } else {
        "--max-samples 1"
    };
    let command = format!("generate {target} {first} --output texts.jsonl");
    run_successfully(workplace, &command);
    let line: Value = serde_json::from_str(workplace.read("texts.jsonl").trim()).unwrap();
    std::fs::remove_file(workplace.path("texts.jsonl")).unwrap();
    line["prompt"].as_str().unwrap().to_owned()
}

/// The messages sent to a server for the first row.
fn sent_messages(workplace: &Workplace, target: &str) -> Value {
    let server = TestServer::start(|_, _| chat("{}"));
    let url = server.url();
    let command = format!("eval {target} --endpoint {url}/v1 --endpoint-model m --max-samples 1");
    run_successfully(workplace, &command);
    let body: Value = serde_json::from_str(&server.received()[0].body).unwrap();
    body["messages"].clone()
}

/// Renders the prompt of the first row.
fn expected_prompt(workplace: &Workplace) -> String {
    let row: Value =
        serde_json::from_str(workplace.read("dev.jsonl").lines().next().unwrap()).unwrap();
    let text = row["input_text"].as_str().unwrap();
    format!("Read: {text}\nSchema: {}", row["json_schema"])
}

/// Invariant: Evaluations, server requests and exports use the prompt of training.
#[test]
fn a_custom_prompt_is_used_in_training_generation_requests_and_exports() {
    let workplace = workplace("slot_prompt = \"mine.jinja\"");
    let inspected = run_successfully(&workplace, "inspect config.toml --rows 1");
    assert!(
        inspected.contains("user\nRead: ") && inspected.contains("\nSchema: {"),
        "{inspected}"
    );
    run_successfully(&workplace, "train config.toml --set train.max_steps=2");
    let rendered = expected_prompt(&workplace);
    let prompt = generated_prompt(&workplace, "run --checkpoint last");
    assert!(
        prompt.contains(&format!("<|im_start|>user\n{rendered}<|im_end|>")),
        "{prompt}"
    );
    let messages = sent_messages(&workplace, "run");
    assert_eq!(messages, json!([{"role": "user", "content": rendered}]));

    for (to, output, prompt) in [
        ("peft", "adapter", "adapter/prompt.jinja"),
        ("merged", "merged", "merged/prompt.jinja"),
        ("gguf", "my.gguf", "my.prompt.jinja"),
    ] {
        run_successfully(
            &workplace,
            &format!("export run --checkpoint last --to {to} --output {output}"),
        );
        assert_eq!(workplace.read(prompt), PROMPT, "{to}");
        let template = prompt.replace("prompt.jinja", "chat_template.jinja");
        let run_template = workplace.read("run/checkpoint-000002/chat_template.jinja");
        assert_eq!(workplace.read(&template), run_template, "{to}");
    }

    // `generate` with an export also uses the training prompt.
    assert_eq!(
        generated_prompt(&workplace, "adapter --data dev.jsonl"),
        prompt
    );
    workplace.write("schema.json", "{\"type\": \"object\"}");
    let text = generated_prompt(&workplace, "adapter --text Hallo --schema schema.json");
    let expected = "user\nRead: Hallo\nSchema: {\"type\":\"object\"}<|im_end|>";
    assert!(text.contains(expected), "{text}");

    // A changed file under the same name is a different prompt.
    workplace.write("mine.jinja", PROMPT.replace("Read", "Hear"));
    let train: Vec<&str> = "train config.toml --set train.max_steps=2"
        .split(' ')
        .collect();
    assert_refused(
        &workplace,
        &train,
        CONFIG,
        &["the inputs changed since the run started: mine.jinja"],
    );
    for command in [
        "generate run --max-samples 1",
        "select run --evaluate --metric loss",
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        let complaint = ["files changed since the run was trained: mine.jinja"];
        assert_error(&workplace.run(command), CONFIG, &complaint);
    }
    // To use a different prompt, set another name.
    let other = generated_prompt(
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

/// Invariant: Evaluations, server requests and exports use the prompt of training.
#[test]
fn a_run_keeps_the_built_in_prompt_that_it_was_trained_with() {
    let workplace = workplace("");
    run_successfully(&workplace, "train config.toml --set train.max_steps=2");
    let config = workplace.read("run/config.resolved.toml");
    assert!(config.contains("slot_prompt = \"typed\"\n"), "{config}");
    let checkpoint_prompt = workplace.read("run/checkpoint-000002/prompt.jinja");
    assert!(
        checkpoint_prompt.contains("numbers and booleans without quotes"),
        "{checkpoint_prompt}"
    );
    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    let key = "data.slot_prompt = \"typed\"";
    assert!(lock["built_in"][key].is_string(), "{lock}");

    // The lock of a version whose built-in prompt was different.
    let mut other = lock.clone();
    other["built_in"][key] = json!("0".repeat(64));
    workplace.write("run/run.lock.json", other.to_string());
    let complaint = [
        "data.slot_prompt = \"typed\" (its built-in template differs in this version of tooltune)",
    ];
    for command in [
        "train config.toml --set train.max_steps=2",
        "generate run --max-samples 1",
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        assert_error(&workplace.run(command), CONFIG, &complaint);
    }
    workplace.write("run/run.lock.json", lock.to_string());

    // The lock of a version without this setting.
    workplace.write(
        "run/config.resolved.toml",
        config.replace("slot_prompt = \"typed\"\n", ""),
    );
    let prompt = generated_prompt(&workplace, "run --checkpoint last");
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
fn an_invalid_prompt_template_is_refused_with_its_file() {
    let workplace = workplace("");
    workplace.write("half.jinja", "{{ input_text }}");
    let refused = |prompt: &str, status: i32, expected: &[&str]| {
        let setting = format!("data.slot_prompt={prompt}");
        for verb in ["inspect", "plan", "train"] {
            let command = [verb, "config.toml", "--set", &setting];
            assert_refused(&workplace, &command, status, expected);
        }
    };
    refused(
        "half.jinja",
        3,
        &["half.jinja: the template never prints json_schema"],
    );
    let names = "use \"typed\", \"paper\" or a Jinja file";
    refused("papers", CONFIG, &["papers, which does not exist", names]);
    let command = "generate config.toml --checkpoint base --set data.chat_template=chatml";
    let command: Vec<&str> = command.split(' ').collect();
    let names = [
        "chatml, which does not exist; it can be \"chatml-tools\", \"gemma-tools\", \"llama3-tools\", \"phi3-tools\" or a Jinja file",
    ];
    assert_refused(&workplace, &command, CONFIG, &names);
}

/// Invariant: Evaluations, server requests and exports use the prompt of training.
#[test]
fn the_system_message_is_shown_with_its_source_and_used_everywhere() {
    let workplace = workplace("system = \"Be \\\"brief\\\".\"\nchat_template = \"chatml-tools\"");
    let line = |more: &str| {
        let output = run_successfully(&workplace, &format!("inspect config.toml --rows 1 {more}"));
        let mut lines = output
            .lines()
            .filter(|line| line.contains("system message"));
        lines
            .next()
            .unwrap_or_else(|| panic!("{output}"))
            .to_owned()
    };
    assert_eq!(
        line(""),
        "system message from data.system: \"Be \\\"brief\\\".\""
    );
    let own = "{\"messages\": [{\"role\": \"system\", \"content\": \"Aye.\"}, {\"role\": \"user\", \
               \"content\": \"A?\"}, {\"role\": \"assistant\", \"content\": \"B.\"}]}";
    workplace.write("own.jsonl", own);
    workplace.write("other.jsonl", own);
    let messages = "--set data.train=['own.jsonl'] --set data.format=messages --set eval.suites=[] \
                    --set eval.metric_for_best_model=loss --set data.eval=['other.jsonl']";
    assert_eq!(line(messages), "system message from the row: \"Aye.\"");
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
    let output = run_successfully(
        &workplace,
        "inspect plain.toml --rows 1 --set data.chat_template=default.jinja",
    );
    let words = "system message from the chat template (neither the row nor data.system sets one): \
                 \"Of mine.\"";
    assert!(output.contains(words), "{output}");
    let output = run_successfully(&workplace, "inspect plain.toml --rows 1");
    assert!(output.contains("\nno system message\n"), "{output}");
    let output = run_successfully(&workplace, "inspect config.toml --rows 1 --format json");
    let inspected: Value = serde_json::from_str(output.trim()).unwrap();
    assert_eq!(
        inspected["system"],
        json!({"from": "data.system", "text": "Be \"brief\"."})
    );

    run_successfully(&workplace, "train config.toml --set train.max_steps=2");
    let system = "<|im_start|>system\nBe \"brief\".<|im_end|>\n<|im_start|>user\n";
    let prompt = generated_prompt(&workplace, "run --checkpoint last");
    assert!(prompt.starts_with(system), "{prompt}");
    let flat = "config.toml --checkpoint base --set data.flatten=always";
    let prompt = generated_prompt(&workplace, flat);
    assert!(prompt.starts_with(system), "{prompt}");
    let question = generated_prompt(&workplace, "run --checkpoint last --message Hi");
    assert!(
        question.starts_with(&format!("{system}Hi<|im_end|>")),
        "{question}"
    );
    let messages = sent_messages(&workplace, "run");
    assert_eq!(
        messages[0],
        json!({"role": "system", "content": "Be \"brief\"."})
    );
    assert_eq!(messages[1]["role"], "user");

    // If a request has no system message, the template adds the system message of training.
    run_successfully(
        &workplace,
        "export run --checkpoint last --to merged --output merged",
    );
    let served = "--checkpoint base --message Hi --set model.model_name_or_path=merged";
    let served = generated_prompt(
        &workplace,
        &format!("plain.toml {served} --set data.chat_template=merged/chat_template.jinja"),
    );
    assert_eq!(served, question);
}
