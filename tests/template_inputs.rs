//! Inputs of a chat template other than messages, and switches that exclude turns from supervision:
//! in training, prompts, requests and exports.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, ROWS, assert_refused};
use crate::support::server::{TestServer, chat};
use crate::workplace::{Workplace, put_begin_token};

/// ChatML that starts answers with an empty thought if thinking is disabled.
const THINKING: &str = "{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and enable_thinking is defined and not enable_thinking %}
        {{- '<think></think>' }}
    {%- endif %}
    {{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}
";

const OFF: &str = "--set data.chat_template_kwargs.enable_thinking=false";

fn thinking_workplace() -> Workplace {
    let workplace = Workplace::new();
    workplace.write("thinking.jinja", THINKING);
    let config = workplace.read("config.toml");
    let config = config.replace("[train]", "chat_template = \"thinking.jinja\"\n[train]");
    workplace.write("config.toml", config);
    workplace
}

fn run_successfully(workplace: &Workplace, command: &str) -> String {
    workplace.run(command.split_whitespace()).success()
}

#[test]
fn variables_of_the_template_reach_training_prompts_requests_and_exports() {
    let workplace = thinking_workplace();
    let inspected = |more: &str| {
        let text = run_successfully(&workplace, &format!("inspect config.toml --rows 1 {more}"));
        assert!(text.contains("<|im_start|>assistant"), "{text}");
        text
    };
    assert!(!inspected("").contains("<think>"));
    // The prompt is not supervised.
    let output = inspected(OFF);
    assert!(output.contains("\n<think></think"), "{output}");

    run_successfully(
        &workplace,
        &format!("train config.toml {OFF} --set train.max_steps=2"),
    );
    let config = workplace.read("run/config.resolved.toml");
    let table = "[data.chat_template_kwargs]\nenable_thinking = false\n";
    assert!(config.contains(table), "{config}");
    // The template in checkpoints and exports sets the variable and is otherwise unchanged.
    let served = format!(
        "{{%- if enable_thinking is not defined %}}{{%- set enable_thinking = false %}}{{%- endif %}}\n{THINKING}"
    );
    assert_eq!(
        workplace.read("run/checkpoint-000002/chat_template.jinja"),
        served
    );
    for (to, folder) in [("peft", "adapter"), ("merged", "merged")] {
        run_successfully(
            &workplace,
            &format!("export run --checkpoint last --to {to} --output {folder}"),
        );
        assert_eq!(
            workplace.read(&format!("{folder}/chat_template.jinja")),
            served
        );
    }
    run_successfully(
        &workplace,
        "generate run --checkpoint last --max-samples 1 --output texts.jsonl",
    );
    let line: Value = serde_json::from_str(workplace.read("texts.jsonl").trim()).unwrap();
    let prompt = line["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("assistant\n<think></think>"), "{prompt}");
    // A run refuses to resume with another value.
    let other = OFF.replace("false", "true");
    let resumed = format!("train config.toml --set train.max_steps=2 {other}");
    let resumed: Vec<&str> = resumed.split_whitespace().collect();
    let change =
        "data.chat_template_kwargs: {\"enable_thinking\":false} -> {\"enable_thinking\":true}";
    assert_refused(&workplace, &resumed, CONFIG, &[change]);
}

#[test]
fn requests_contain_the_variables_of_the_template() {
    let workplace = thinking_workplace();
    let server = TestServer::start(|_, _| chat("{}"));
    let command = format!(
        "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --max-samples 1",
        server.url()
    );
    let sent = |more: &[&str]| {
        let n_before = server.received().len();
        workplace
            .run(command.split(' ').chain(more.iter().copied()))
            .success();
        let requests = server.received();
        assert_eq!(requests.len(), n_before + 1);
        let body: Value = serde_json::from_str(&requests[n_before].body).unwrap();
        body.get("chat_template_kwargs").cloned()
    };
    let off: Vec<&str> = OFF.split(' ').collect();
    assert_eq!(sent(&[]), None);
    assert_eq!(sent(&off), Some(json!({"enable_thinking": false})));
    let more = [
        "--extra-body",
        "{\"chat_template_kwargs\": {\"effort\": 1}}",
    ];
    let both = [off.as_slice(), &more].concat();
    assert_eq!(
        sent(&both),
        Some(json!({"enable_thinking": false, "effort": 1}))
    );
    let against = [
        "--extra-body",
        "{\"chat_template_kwargs\": {\"enable_thinking\": true}}",
    ];
    let arguments: Vec<&str> = command.split(' ').chain(off).chain(against).collect();
    let news = "--extra-body sets chat_template_kwargs.enable_thinking to true, but \
                data.chat_template_kwargs sets it to false";
    assert_refused(&workplace, &arguments, CONFIG, &[news]);
}

#[test]
fn an_unused_or_reserved_template_variable_is_refused() {
    let workplace = thinking_workplace();
    for (setting, expected) in [
        (
            "enable_thinkin=false",
            "never reads data.chat_template_kwargs.enable_thinkin, so it would",
        ),
        ("enable_thinkin=false", "did you mean enable_thinking?"),
        (
            "messages=1",
            "`data.chat_template_kwargs` cannot have the key `messages`",
        ),
        (
            "enable_thinking=2026-01-31",
            "`data.chat_template_kwargs.enable_thinking` cannot be a date",
        ),
    ] {
        let command = format!("inspect config.toml --set data.chat_template_kwargs.{setting}");
        let arguments: Vec<&str> = command.split(' ').collect();
        assert_refused(&workplace, &arguments, CONFIG, &[expected]);
    }
    let table = [
        "inspect",
        "config.toml",
        "--set",
        "data.chat_template_kwargs=false",
    ];
    assert_refused(
        &workplace,
        &table,
        CONFIG,
        &["must be a table, not `false`"],
    );
}

/// A row with two turns; a switch excludes the first from supervision. The template drops their
/// reasoning.
fn rows() -> String {
    let row = |switch: Value, thought: &str| {
        let mut first = json!({"role": "assistant", "content": "A guess."});
        first
            .as_object_mut()
            .unwrap()
            .extend(switch.as_object().unwrap().clone());
        let messages = json!([
            {"role": "user", "content": "How deep?"},
            first,
            {"role": "user", "content": "Look it up."},
            {"role": "assistant", "content": "7 metres.", "reasoning_content": thought},
        ]);
        format!("{}\n", json!({ "messages": messages }))
    };
    row(json!({"train": false}), "") + &row(json!({"weight": 0}), "") + &row(json!({}), "I look.")
}

#[test]
fn untrained_turns_are_reported_by_plan_train_and_inspect() {
    let workplace = Workplace::new();
    workplace.write("chats.jsonl", rows());
    let settings = "--set data.format=messages --set data.train=[\"chats.jsonl\"] \
                    --set data.eval=[] --set eval.eval_strategy=no --set train.max_steps=1 \
                    --set eval.suites=[] --set eval.metric_for_best_model=loss";
    let plain: Vec<&str> = ["inspect", "config.toml"]
        .into_iter()
        .chain(settings.split_whitespace())
        .collect();
    assert_refused(
        &workplace,
        &plain,
        ROWS,
        &["chats.jsonl:3: the chat template leaves out the reasoning of message 3"],
    );
    let keep = format!("{settings} --set mask.on_lost_reasoning=keep");
    let output = run_successfully(&workplace, &format!("inspect config.toml --rows 3 {keep}"));
    for line in [
        "1 turn not supervised (switched off by train, weight or loss): messages 1",
        "1 turn not supervised (the chat template removes the reasoning): messages 3",
    ] {
        assert!(output.contains(line), "{output}");
    }
    let off = "2 turns are not supervised: switched off by train, weight or loss";
    let lost = "1 turn is not supervised: the chat template removes the reasoning";
    for command in ["plan", "train"] {
        let text = run_successfully(&workplace, &format!("{command} config.toml {keep}"));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(off) && text.contains(lost), "{text}");
    }
    let json = run_successfully(
        &workplace,
        &format!("plan config.toml {keep} --set train.output_dir=other --format json"),
    );
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["unlearned_turns"],
        json!({"n_switched_off": 2, "n_without_reasoning": 1})
    );
}

#[test]
fn a_missing_bos_token_in_chats_is_reported_and_plain_prompts_have_it() {
    let workplace = Workplace::new();
    let model = workplace.copy_model("model");
    let config = workplace.read("config.toml");
    let own = config
        .lines()
        .find(|line| line.starts_with("model_name_or_path"))
        .unwrap();
    workplace.write(
        "config.toml",
        config.replace(own, "model_name_or_path = \"model\""),
    );
    let prompt = || {
        let file = workplace.path("text.jsonl");
        std::fs::remove_file(&file).ok();
        run_successfully(
            &workplace,
            "generate config.toml --checkpoint base --prompt Once --output text.jsonl",
        );
        let line: Value = serde_json::from_str(workplace.read("text.jsonl").trim()).unwrap();
        line["prompt"].as_str().unwrap().to_owned()
    };
    let news = "which the tokenizer adds to plain text";
    assert!(!run_successfully(&workplace, "inspect config.toml --rows 1").contains(news));
    assert_eq!(prompt(), "Once");
    put_begin_token(&model);
    let output = run_successfully(&workplace, "inspect config.toml --rows 1");
    assert!(
        output.contains(&format!("does not start with <|endoftext|>, {news}")),
        "{output}"
    );
    for command in ["plan", "train"] {
        let text = run_successfully(
            &workplace,
            &format!("{command} config.toml --set train.max_steps=1"),
        );
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains(&format!("24 examples start without <|endoftext|>, {news}")),
            "{text}"
        );
    }
    assert_eq!(prompt(), "<|endoftext|>Once");
}
