//! `tooltune generate`: completions compared with transformers, and with the training data.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, FILES, ROWS, assert_refused};
use crate::support::{fixture, model};
use crate::workplace::{Workplace, parse_lines};

/// Settings for rows of messages, with `chats.jsonl` as evaluation rows.
fn chats() -> Vec<String> {
    let settings = [
        "data.format=messages",
        "data.train=[\"learned.jsonl\"]",
        "data.eval=[\"chats.jsonl\"]",
        "eval.suites=[]",
        "eval.metric_for_best_model=loss",
        "data.chat_template=chatml-tools",
    ];
    settings.iter().flat_map(|one| set(one)).collect()
}

fn set(setting: &str) -> [String; 2] {
    ["--set".to_owned(), setting.to_owned()]
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}])
}

/// A call, an answer to a call's result, and a chat without tools, for training and evaluation.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    let ask = json!({"role": "user", "content": "Weather in Oslo?"});
    let call = json!({"role": "assistant",
        "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]});
    let rows = [
        json!({"messages": [ask, call], "tools": tools()}),
        json!({"messages": [ask, call, {"role": "tool", "content": "rain"},
            {"role": "assistant", "content": "Rain."}], "tools": tools()}),
        json!({"messages": [{"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello,\nfriend."}]}),
    ];
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    workplace.write("learned.jsonl", &text);
    workplace.write("chats.jsonl", text);
    workplace
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

/// Invariant: The prompt of `generate` is the start of the row's training example.
#[test]
fn a_trained_checkpoint_generates_its_references_and_the_base_model_does_not() {
    let workplace = workplace();
    let chats = chats();
    let settings = chats.iter().map(String::as_str);
    let more = "--set train.max_steps=150 --set train.learning_rate=2e-2 --set lora.r=16 \
                --set lora.lora_alpha=32 --set train.per_device_train_batch_size=3 \
                --set eval.eval_steps=150 --set checkpoint.save_steps=150";
    let train = ["train", "config.toml"].into_iter().chain(settings);
    workplace
        .run(train.chain(more.split_whitespace()))
        .success();

    let generate = |words: &str| {
        let words = format!("generate run --set eval.max_new_tokens=60 --turn last {words}");
        workplace.run(words.split_whitespace())
    };
    let references = [CALL, "Rain.", "Hello,\nfriend."];
    let answer = generate("--checkpoint last --output last.jsonl");
    assert!(
        answer
            .stderr
            .contains("generating with run/checkpoint-000150 (step 150"),
        "{}",
        answer.stderr
    );
    let output = answer.success();
    for expected in [
        "chats.jsonl:1\n  user       Weather in Oslo?\n  written    <tool_call>\n             {\"name\"",
        "chats.jsonl:2\n  user       Weather in Oslo?\n  tool       rain\n  written    Rain.\n  \
         reference  (same)\n  ended      at a stop token; ",
        "  written    Hello,\n             friend.\n",
        "3 texts in last.jsonl",
        "3 of 3 replies match their reference",
    ] {
        assert!(
            output.contains(expected),
            "{expected:?} is not in\n{output}"
        );
    }
    let texts = parse_lines(&workplace.read("last.jsonl"));
    assert_eq!(texts.len(), 3);
    for (i, (text, reference)) in texts.iter().zip(references).enumerate() {
        assert_eq!(text["id"], format!("chats.jsonl:{}", i + 1));
        assert_eq!(text["text"], reference);
        assert_eq!(text["reference"], reference);
        assert_eq!(text["finish_reason"], "stop");
    }
    assert_prompts_begin_the_examples(&workplace, &chats, &texts);

    let base = generate("--checkpoint base --max-samples 2 --output base.jsonl");
    assert!(
        base.stderr.contains("2 of 2 replies are CUT OFF"),
        "{}",
        base.stderr
    );
    let output = base.success();
    assert!(
        output.contains("CUT OFF at eval.max_new_tokens = 60; 60 tokens after "),
        "{output}"
    );
    assert!(
        output.contains("0 of 2 replies match their reference"),
        "{output}"
    );
    let texts = parse_lines(&workplace.read("base.jsonl"));
    assert_eq!(texts.len(), 2);
    for text in &texts {
        assert_eq!(text["finish_reason"], "length");
        assert_eq!(text["n_tokens"], 60);
        assert_ne!(text["text"], text["reference"]);
    }
    a_question_is_answered_as_the_row_that_asks_it(&workplace);
    turns_with_calls_are_asked_unless_others_are_named(&workplace);
    a_conversation_has_calls_and_results(&workplace);
    every_target_is_the_same_model(&workplace);
}

fn turns_with_calls_are_asked_unless_others_are_named(workplace: &Workplace) {
    let ask = |turn: &str| {
        let words = format!(
            "generate run --checkpoint last --set eval.max_new_tokens=60 {turn} --output turn.jsonl"
        );
        workplace.run(words.split_whitespace()).success();
        let texts = parse_lines(&workplace.read("turn.jsonl"));
        std::fs::remove_file(workplace.path("turn.jsonl")).unwrap();
        let pairs = texts.iter().map(|text| {
            assert_eq!(text["text"], text["reference"], "{text}");
            (
                text["id"].as_str().unwrap().to_owned(),
                text["text"].as_str().unwrap().to_owned(),
            )
        });
        pairs.collect::<Vec<_>>()
    };
    let pair = |id: &str, text: &str| (id.to_owned(), text.to_owned());
    let friend = pair("chats.jsonl:3", "Hello,\nfriend.");
    let calls = [pair("chats.jsonl:1#1", CALL), pair("chats.jsonl:2#1", CALL)];
    assert_eq!(ask(""), [calls.to_vec(), vec![friend]].concat());
    let all = [
        calls.to_vec(),
        vec![
            pair("chats.jsonl:2#3", "Rain."),
            pair("chats.jsonl:3#1", "Hello,\nfriend."),
        ],
    ];
    assert_eq!(ask("--turn all"), all.concat());
    let words = "generate run --turn 2".split(' ').collect::<Vec<_>>();
    assert_refused(
        workplace,
        &words,
        CONFIG,
        &["chats.jsonl:1: --turn 2", "1 turn of the assistant"],
    );
}

/// The user types the result of the call, and the model writes the answer that it was trained on.
fn a_conversation_has_calls_and_results(workplace: &Workplace) {
    let words = "chat run --checkpoint last --tools tools.json --set eval.max_new_tokens=60";
    let output = workplace.run_with_input(
        words.split(' '),
        "Weather in Oslo?\nrain\n/unknown\n/reset\nHi\n/exit\nnever read\n",
    );
    for part in ["unknown command /unknown", "started a new conversation"] {
        assert!(output.stderr.contains(part), "{}", output.stderr);
    }
    let output = output.success();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        lines[..2],
        ["call> weather {\"city\": \"Oslo\"}", "model> Rain."],
        "{output}"
    );
    assert!(lines[2].starts_with("model> "), "{output}");
    calls_are_answered_by_the_executor(workplace);
}

/// With `--execute`, the executor returns the result, and no result is read from the input.
fn calls_are_answered_by_the_executor(workplace: &Workplace) {
    let city = json!({"name": "city", "type": "string"});
    let document = json!({"api_name": "weather", "required_parameters": [city]});
    workplace.write("apis.jsonl", format!("{document}\n"));
    // A terminal would interpret these two control characters.
    let sky = "rain\u{9b}2J\u{202e}";
    let canned = json!({"api": "weather", "response": {"sky": sky}});
    workplace.write("canned.jsonl", format!("{canned}\n"));
    let words = [
        "chat run --checkpoint last --tools tools.json --execute --set eval.max_new_tokens=60",
        "--set goat.documents=apis.jsonl --set goat.executor.kind=canned",
        "--set goat.executor.responses=canned.jsonl",
    ];
    let words = words.join(" ");
    let output = workplace.run_with_input(words.split(' '), "Weather in Oslo?\n/exit\n");
    let output = output.success();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "call> weather {\"city\": \"Oslo\"}",
            "result> {\"sky\": \"rain\\u{9b}2J\\u{202e}\"}"
        ],
        "{output}"
    );
    assert!(lines[2].starts_with("model> "), "{output}");
    let command = "chat run --checkpoint last --tools tools.json --execute";
    let words: Vec<&str> = command.split(' ').collect();
    assert_refused(
        workplace,
        &words,
        CONFIG,
        &[
            "--execute needs a [goat.executor] table",
            "type the results",
        ],
    );
}

/// `generate` accepts a run, a checkpoint by step, name or path, and an export.
fn every_target_is_the_same_model(workplace: &Workplace) {
    workplace
        .run("export run --checkpoint last --output exported".split(' '))
        .success();
    let ask = |target: &str| {
        let words =
            format!("generate {target} --set eval.max_new_tokens=60 --tools tools.json --message");
        let words = words.split_whitespace().chain(["Weather in Oslo?"]);
        workplace.run(words.collect::<Vec<_>>()).success()
    };
    let expected = ask("run --checkpoint last");
    assert!(expected.contains("\"Oslo\""), "{expected}");
    for target in [
        "run --checkpoint 150",
        "run --checkpoint checkpoint-000150",
        "run/checkpoint-000150",
        "exported",
        "exported --set model.compute_dtype=auto",
    ] {
        assert_eq!(ask(target), expected, "{target}");
    }
    let base = fixture("tiny_chat_model").display().to_string();
    let words = format!("generate {base} --set eval.max_new_tokens=4 --message Hi");
    let output = workplace.run(words.split(' ')).success();
    assert!(output.contains("4 tokens after"), "{output}");
    let refused = |words: &str, expected: &[&str]| {
        assert_refused(
            workplace,
            &words.split(' ').collect::<Vec<_>>(),
            CONFIG,
            expected,
        );
    };
    refused(
        "generate run --checkpoint 7 --message Hi",
        &["step 7", "no such checkpoint in run", "150"],
    );
    refused(
        &format!("generate {base} --checkpoint best --message Hi"),
        &["a base model has no checkpoints"],
    );
    std::fs::create_dir(workplace.path("empty")).unwrap();
    refused(
        "eval empty",
        &[
            "empty: this is a folder without config.resolved.toml",
            "an exported adapter",
        ],
    );
    let encoder = model("all-minilm-l6-v2").display().to_string();
    refused(
        &format!("eval {encoder}"),
        &["sentence-transformers", "does not generate"],
    );
    let config = std::fs::read_to_string(workplace.path("exported/adapter_config.json")).unwrap();
    workplace.write(
        "exported/adapter_config.json",
        config.replace(&base, "org/base"),
    );
    refused(
        "generate exported --message Hi",
        &[
            "its base model",
            "org/base",
            "--set model.model_name_or_path=FOLDER",
        ],
    );
    assert_eq!(
        ask(&format!("exported --set model.model_name_or_path={base}")),
        expected
    );
}

/// `inspect` shows the tokens of the training examples, and which are supervised.
fn assert_prompts_begin_the_examples(workplace: &Workplace, chats: &[String], texts: &[Value]) {
    let inspect = "inspect config.toml --format json --set train.output_dir=other".split(' ');
    let inspect = inspect.chain(chats.iter().map(String::as_str));
    let rows = parse_lines(&workplace.run(inspect).success());
    assert_eq!(rows.len(), texts.len());
    for (row, text) in rows.iter().zip(texts) {
        let tokens = row["tokens"].as_array().unwrap();
        let prompt = text["prompt"].as_str().unwrap();
        let n_prompt_tokens = text["n_prompt_tokens"].as_u64().unwrap() as usize;
        assert_eq!(tokens[n_prompt_tokens - 1]["weight"], json!(0.0));
        assert_eq!(tokens[n_prompt_tokens]["weight"], json!(1.0));
        assert_eq!(tokens[n_prompt_tokens]["start"], prompt.len());
        assert!(row["text"].as_str().unwrap().starts_with(prompt));
    }
}

/// `--message` with the row's tools from a file gives the row's prompt; `--prompt` with the
/// rendered text needs no template.
fn a_question_is_answered_as_the_row_that_asks_it(workplace: &Workplace) {
    workplace.write("tools.json", tools().to_string());
    let generate = "generate run --checkpoint last --set eval.max_new_tokens=60 --output";
    let ask = |output: &str, source: &[&str]| {
        let words = generate.split(' ').chain([output]);
        let inspected = workplace.run(words.chain(source.iter().copied())).success();
        (inspected, parse_lines(&workplace.read(output)).remove(0))
    };
    let question = ["--message", "Weather in Oslo?", "--tools", "tools.json"];
    let (stdout, answer) = ask("asked.jsonl", &question);
    assert!(
        stdout.starts_with("1 texts in asked.jsonl\n--message\n  user       Weather"),
        "{stdout}"
    );
    assert!(!stdout.contains("reference"), "{stdout}");
    assert_eq!(answer["text"], CALL);
    assert_eq!(answer.get("reference"), None);
    let prompt = answer["prompt"].as_str().unwrap();
    let (_, again) = ask("prompt.jsonl", &["--prompt", prompt]);
    for field in [
        "prompt",
        "text",
        "finish_reason",
        "n_prompt_tokens",
        "n_tokens",
    ] {
        assert_eq!(again[field], answer[field], "{field}");
    }
    let (_, other) = ask(
        "system.jsonl",
        &["--message", "Hi", "--system", "Be brief."],
    );
    assert_eq!(
        other["prompt"],
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

#[test]
fn completions_of_messages_equal_transformers() {
    let workplace = Workplace::new();
    let greedy = std::fs::read_to_string(fixture("smollm2/greedy.json")).unwrap();
    let greedy: Vec<Value> = serde_json::from_str(&greedy).unwrap();
    let rows = greedy.iter().map(|expected| {
        let question = json!({"role": "user", "content": expected["prompt"]});
        let row = json!({"messages": [question, {"role": "assistant", "content": "?"}]});
        format!("{row}\n")
    });
    workplace.write("chats.jsonl", rows.collect::<String>());
    let gguf = model("smollm2-135m-instruct.gguf");
    let gguf = format!("model.model_name_or_path={}", gguf.display());
    let words = "generate config.toml --checkpoint base --data chats.jsonl --output texts.jsonl \
                 --set data.format=messages --set eval.suites=[] \
                 --set eval.metric_for_best_model=loss --set eval.max_new_tokens=32 \
                 --set model.compute_dtype=f32 --set";
    let words = words.split_whitespace().chain([gguf.as_str()]);
    workplace.run(words).success();
    let texts = parse_lines(&workplace.read("texts.jsonl"));
    assert_eq!(texts.len(), greedy.len());
    let mut n_stopped = 0;
    for (text, expected) in texts.iter().zip(&greedy) {
        // transformers was not configured to stop at the end-of-turn token, 2.
        let expected_text = expected["text"].as_str().unwrap();
        let until_stop = expected_text.split("<|im_end|>").next().unwrap();
        assert_eq!(text["text"], until_stop);
        let new_ids = expected["new_ids"].as_array().unwrap();
        let stop = new_ids.iter().position(|id| *id == json!(2));
        let reason = if stop.is_some() { "stop" } else { "length" };
        assert_eq!(text["finish_reason"], reason);
        assert_eq!(text["n_tokens"], stop.unwrap_or(new_ids.len()));
        let n_prompt_tokens = expected["input_ids"].as_array().unwrap().len();
        assert_eq!(text["n_prompt_tokens"], n_prompt_tokens);
        n_stopped += usize::from(stop.is_some());
    }
    assert!((1..texts.len()).contains(&n_stopped));
}

#[test]
fn slot_rows_and_trajectories_are_prompted_as_in_training() {
    let workplace = Workplace::new();
    let generate_text = |words: &str| {
        let words = format!("generate config.toml --checkpoint base --max-samples 2 {words}");
        workplace.run(words.split_whitespace()).success();
        parse_lines(&workplace.read(words.rsplit(' ').next().unwrap()))
    };
    let rows = parse_lines(&workplace.read("dev.jsonl"));
    let texts = generate_text("--output slot.jsonl");
    assert_eq!(texts.len(), 2);
    for (text, row) in texts.iter().zip(&rows) {
        let reference = text["reference"].as_str().unwrap();
        let reference: Value = serde_json::from_str(reference).unwrap();
        assert_eq!(reference, row["gold"]);
    }

    let synth = "data synth goat --split dev --rows 2 --output goat.jsonl --documents apis.jsonl";
    workplace.run(synth.split(' ')).success();
    let texts = generate_text(
        "--set data.format=goat --set data.eval=[\"goat.jsonl\"] --set eval.suites=[] \
         --set eval.metric_for_best_model=loss --set goat.documents=apis.jsonl \
         --set goat.method=global --set goat.distractors=random \
         --set eval.max_new_tokens=4 --output plans.jsonl",
    );
    let trajectory = &parse_lines(&workplace.read("goat.jsonl"))[0];
    assert_eq!(texts[0]["id"], "dev-00000/plan-1");
    let plan = texts[0]["reference"].as_str().unwrap();
    for call in trajectory["calls"].as_array().unwrap() {
        assert!(plan.contains(call["name"].as_str().unwrap()), "{plan}");
    }
    let query = trajectory["query"].as_str().unwrap();
    assert!(texts[0]["prompt"].as_str().unwrap().contains(query));
}

#[test]
fn unusable_prompts_are_refused_before_anything_is_written() {
    let workplace = workplace();
    let open = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let chat = json!({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}]});
    workplace.write("open.jsonl", format!("{chat}\n{open}\n"));
    workplace.write("tools.json", "{\"tools\": []}");
    workplace.write("kept.jsonl", "old\n");
    let chats = chats();
    let start = ["generate", "config.toml", "--checkpoint", "base"];
    let refused = |words: &[&str], status: i32, expected: &[&str]| {
        let words = start
            .into_iter()
            .chain(chats.iter().map(String::as_str))
            .chain(words.to_vec());
        assert_refused(&workplace, &words.collect::<Vec<_>>(), status, expected);
    };
    let nothing: &[&str] = &[
        "nothing to generate from",
        "--data",
        "--message",
        "--prompt",
    ];
    let fields = ["--data", "chats.jsonl"];
    refused(&["--set", "data.eval=[]"], CONFIG, nothing);
    for source in [["--message", "Hi"], ["--prompt", "Hi"]] {
        let two = [source, fields].concat();
        refused(&two, CONFIG, &[source[0], "cannot be used with", "--data"]);
    }
    refused(
        &["--message", "a", "--prompt", "b"],
        CONFIG,
        &["cannot be used with"],
    );
    refused(&["--system", "Be brief."], CONFIG, &["--message"]);
    refused(&["--tools", "tools.json"], CONFIG, &["--message"]);
    refused(
        &["--data", "gone.jsonl"],
        FILES,
        &["gone.jsonl: cannot read"],
    );
    refused(&["--text", "Hi"], CONFIG, &["--schema"]);
    workplace.write("schema.json", "{\"type\": \"object\"}");
    refused(
        &["--text", "Hi", "--schema", "schema.json"],
        CONFIG,
        &[
            "--text needs a model trained on rows of data.format = \"slot\"",
            "messages",
        ],
    );
    let no_list: &[&str] = &["tools.json: the file is an object, but must be a list of tools"];
    refused(&["--message", "Hi", "--tools", "tools.json"], ROWS, no_list);
    refused(
        &["--prompt", ""],
        CONFIG,
        &["--prompt: the prompt is empty"],
    );
    refused(
        &["--set", "eval.max_new_tokens=8100"],
        CONFIG,
        &[
            "chats.jsonl:1#1: the prompt has",
            "8100",
            "context of 8192 tokens",
        ],
    );
    let already_there: &[&str] = &["kept.jsonl already exists", "name another --output"];
    refused(&["--output", "kept.jsonl"], CONFIG, already_there);
    let missing = "generate config.toml --checkpoint gone --message Hi".split(' ');
    assert_refused(
        &workplace,
        &missing.collect::<Vec<_>>(),
        FILES,
        &["gone: cannot open"],
    );

    // A row that ends with a user message is answered.
    let open = ["--data", "open.jsonl", "--set", "eval.max_new_tokens=4"];
    let words = start
        .into_iter()
        .chain(chats.iter().map(String::as_str))
        .chain(open);
    let output = workplace.run(words).success();
    for part in [
        "open.jsonl:1",
        "open.jsonl:2\n  user       Hi\n",
        "0 of 1 replies match their reference",
    ] {
        assert!(output.contains(part), "{output}");
    }
}

/// A text with a schema gives the same prompt as a slot row, both from the command line and from a
/// file. A constrained answer matches the schema.
#[test]
fn a_text_gets_the_prompt_of_its_row_and_rows_need_no_gold() {
    let workplace = Workplace::new();
    let row = parse_lines(&workplace.read("dev.jsonl")).remove(0);
    let text = row["input_text"].as_str().unwrap();
    workplace.write("schema.json", row["json_schema"].to_string());
    let unlabelled = json!({"input_text": text, "json_schema": row["json_schema"]});
    workplace.write("asked.jsonl", format!("{unlabelled}\n"));
    let n_runs = std::cell::Cell::new(0);
    let generate_line = |words: &[&str], input: &str| {
        n_runs.set(n_runs.get() + 1);
        let output = format!("written{}.jsonl", n_runs.get());
        let start = "generate config.toml --checkpoint base --output".split(' ');
        let all = start.chain([output.as_str()]).chain(words.iter().copied());
        let inspected = workplace.run_with_input(all, input).success();
        let is_told = inspected.contains("\n  text       ") || words.starts_with(&["--prompt"]);
        assert!(is_told, "{inspected}");
        let mut texts = parse_lines(&workplace.read(&output));
        assert_eq!(texts.len(), 1);
        texts.remove(0)
    };
    let row_line = generate_line(&["--max-samples", "1"], "");
    assert!(row_line.get("reference").is_some());
    let same = |other: &Value| {
        assert_eq!(other["prompt"], row_line["prompt"]);
        assert_eq!(other["text"], row_line["text"]);
        assert_eq!(other.get("reference"), None);
    };
    same(&generate_line(
        &["--text", text, "--schema", "schema.json"],
        "",
    ));
    same(&generate_line(
        &["--text", "-", "--schema", "schema.json"],
        text,
    ));
    same(&generate_line(&["--data", "asked.jsonl"], ""));
    same(&generate_line(&["--data", "-"], &unlabelled.to_string()));
    // `--prompt` is used byte for byte.
    for beginning in ["Once\n", "Once", "Once \r\n\n"] {
        let piped = generate_line(&["--prompt", "-"], beginning);
        assert_eq!(piped["prompt"], beginning);
        assert_eq!(
            piped["text"],
            generate_line(&["--prompt", beginning], "")["text"]
        );
    }

    workplace.write(
        "closed.json",
        json!({"type": "object", "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"], "additionalProperties": false})
        .to_string(),
    );
    let constrained = [
        "--text",
        text,
        "--schema",
        "closed.json",
        "--set",
        "eval.constrained=true",
    ];
    let line = generate_line(&constrained, "");
    let answer: Value = serde_json::from_str(line["text"].as_str().unwrap()).unwrap();
    assert!(answer["ok"].is_boolean(), "{answer}");
    assert_eq!(line["finish_reason"], "stop");
}
