//! What a chat template is given beside the messages, and what rows say of their own turns: through
//! training, prompts, requests and exports.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, ROWS, assert_refused};
use crate::support::server::{TestServer, chat};
use crate::workplace::{Workplace, put_begin_token};

/// ChatML that begins answers with an empty thought where the model is not to think.
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

fn thinking() -> Workplace {
    let workplace = Workplace::new();
    workplace.write("thinking.jinja", THINKING);
    let config = workplace.read("config.toml");
    let config = config.replace("[train]", "chat_template = \"thinking.jinja\"\n[train]");
    workplace.write("config.toml", config);
    workplace
}

fn said(workplace: &Workplace, command: &str) -> String {
    workplace.run(command.split_whitespace()).success()
}

#[test]
fn variables_of_the_template_reach_training_prompts_requests_and_exports() {
    let workplace = thinking();
    let inspected = |more: &str| {
        let text = said(&workplace, &format!("inspect config.toml --rows 1 {more}"));
        assert!(text.contains("<|im_start|>assistant"), "{text}");
        text
    };
    assert!(!inspected("").contains("<think>"));
    // What the model is asked with is not learned.
    let shown = inspected(OFF);
    assert!(shown.contains("\n<think></think"), "{shown}");

    said(
        &workplace,
        &format!("train config.toml {OFF} --set train.max_steps=2"),
    );
    let config = workplace.read("run/config.resolved.toml");
    let table = "[data.chat_template_kwargs]\nenable_thinking = false\n";
    assert!(config.contains(table), "{config}");
    // Checkpoints and exports carry the variable, and the rest of the template as it was.
    let served = format!(
        "{{%- if enable_thinking is not defined %}}{{%- set enable_thinking = false %}}{{%- endif %}}\n{THINKING}"
    );
    assert_eq!(
        workplace.read("run/checkpoint-000002/chat_template.jinja"),
        served
    );
    for (to, folder) in [("peft", "adapter"), ("merged", "merged")] {
        said(
            &workplace,
            &format!("export run --checkpoint last --to {to} --output {folder}"),
        );
        assert_eq!(
            workplace.read(&format!("{folder}/chat_template.jinja")),
            served
        );
    }
    said(
        &workplace,
        "generate run --checkpoint last --max-samples 1 --output texts.jsonl",
    );
    let line: Value = serde_json::from_str(workplace.read("texts.jsonl").trim()).unwrap();
    let prompt = line["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("assistant\n<think></think>"), "{prompt}");
    // It is part of what makes a run the same.
    let other = OFF.replace("false", "true");
    let resumed = format!("train config.toml --set train.max_steps=2 {other}");
    let resumed: Vec<&str> = resumed.split_whitespace().collect();
    let change =
        "data.chat_template_kwargs: {\"enable_thinking\":false} -> {\"enable_thinking\":true}";
    assert_refused(&workplace, &resumed, CONFIG, &[change]);
}

#[test]
fn a_server_is_told_the_variables_of_the_template() {
    let workplace = thinking();
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
    let news = "--extra-body says true for chat_template_kwargs.enable_thinking, and \
                data.chat_template_kwargs false";
    assert_refused(&workplace, &arguments, CONFIG, &[news]);
}

#[test]
fn a_variable_that_no_template_reads_or_every_one_is_given_is_refused() {
    let workplace = thinking();
    for (setting, said) in [
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
        assert_refused(&workplace, &arguments, CONFIG, &[said]);
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

/// Two turns, of which the first is switched off, with thoughts that the template does not print.
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
fn turns_that_are_not_learned_are_said_by_plan_train_and_inspect() {
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
    let shown = said(&workplace, &format!("inspect config.toml --rows 3 {keep}"));
    for line in [
        "1 turn not learned, switched off by train, weight or loss: messages 1",
        "1 turn not learned, the chat template leaves out their reasoning: messages 3",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let off = "2 turns are not learned: switched off by train, weight or loss";
    let lost = "1 turn is not learned: without their reasoning, which the chat template leaves out";
    for command in ["plan", "train"] {
        let text = said(&workplace, &format!("{command} config.toml {keep}"));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(off) && text.contains(lost), "{text}");
    }
    let json = said(
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
fn a_begin_token_that_chats_lack_is_said_and_plain_prompts_have_it() {
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
        said(
            &workplace,
            "generate config.toml --checkpoint base --prompt Once --output text.jsonl",
        );
        let line: Value = serde_json::from_str(workplace.read("text.jsonl").trim()).unwrap();
        line["prompt"].as_str().unwrap().to_owned()
    };
    let news = "which the tokenizer puts before plain texts";
    assert!(!said(&workplace, "inspect config.toml --rows 1").contains(news));
    assert_eq!(prompt(), "Once");
    put_begin_token(&model);
    let shown = said(&workplace, "inspect config.toml --rows 1");
    assert!(
        shown.contains(&format!("begins without <|endoftext|>, {news}")),
        "{shown}"
    );
    for command in ["plan", "train"] {
        let text = said(
            &workplace,
            &format!("{command} config.toml --set train.max_steps=1"),
        );
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains(&format!("24 examples begin without <|endoftext|>, {news}")),
            "{text}"
        );
    }
    assert_eq!(prompt(), "<|endoftext|>Once");
}
