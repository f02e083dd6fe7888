//! `tooltune generate`: texts beside what transformers writes, and beside what training taught.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, FILES, ROWS, assert_refused};
use crate::suites::lines;
use crate::support::{fixture, model};
use crate::workplace::Workplace;

/// Settings of the tests' config for rows of messages, those of `chats.jsonl` to evaluate on.
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

/// A call, an answer to the result of one, and a chat without tools, learned and evaluated on.
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

#[test]
fn a_trained_checkpoint_writes_its_references_and_the_base_model_does_not() {
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
            .contains("writing with run/checkpoint-000150 (step 150"),
        "{}",
        answer.stderr
    );
    let shown = answer.success();
    for said in [
        "chats.jsonl:1\n  user       Weather in Oslo?\n  written    <tool_call>\n             {\"name\"",
        "chats.jsonl:2\n  user       Weather in Oslo?\n  tool       rain\n  written    Rain.\n  \
         reference  the same\n  ended      at a stop token; ",
        "  written    Hello,\n             friend.\n",
        "3 texts in last.jsonl",
        "3 of 3 texts are their reference",
    ] {
        assert!(shown.contains(said), "{said:?} is not in\n{shown}");
    }
    let texts = lines(&workplace.read("last.jsonl"));
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
        base.stderr.contains("2 of 2 texts are CUT OFF"),
        "{}",
        base.stderr
    );
    let shown = base.success();
    assert!(
        shown.contains("CUT OFF at eval.max_new_tokens = 60; 60 tokens after "),
        "{shown}"
    );
    assert!(
        shown.contains("0 of 2 texts are their reference"),
        "{shown}"
    );
    let texts = lines(&workplace.read("base.jsonl"));
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
    let asked = |turn: &str| {
        let words = format!(
            "generate run --checkpoint last --set eval.max_new_tokens=60 {turn} --output turn.jsonl"
        );
        workplace.run(words.split_whitespace()).success();
        let texts = lines(&workplace.read("turn.jsonl"));
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
    let of = |id: &str, text: &str| (id.to_owned(), text.to_owned());
    let friend = of("chats.jsonl:3", "Hello,\nfriend.");
    let calls = [of("chats.jsonl:1#1", CALL), of("chats.jsonl:2#1", CALL)];
    assert_eq!(asked(""), [calls.to_vec(), vec![friend]].concat());
    let all = [
        calls.to_vec(),
        vec![
            of("chats.jsonl:2#3", "Rain."),
            of("chats.jsonl:3#1", "Hello,\nfriend."),
        ],
    ];
    assert_eq!(asked("--turn all"), all.concat());
    let words = "generate run --turn 2".split(' ').collect::<Vec<_>>();
    assert_refused(
        workplace,
        &words,
        CONFIG,
        &["chats.jsonl:1: --turn 2", "1 turn of the assistant"],
    );
}

/// The result of the call is typed, and the answer is that of the row with the same history.
fn a_conversation_has_calls_and_results(workplace: &Workplace) {
    let words = "chat run --checkpoint last --tools tools.json --set eval.max_new_tokens=60";
    let said = workplace.run_with_input(
        words.split(' '),
        "Weather in Oslo?\nrain\n/unknown\n/reset\nHi\n/exit\nnever read\n",
    );
    for part in ["/unknown is no command", "the conversation begins anew"] {
        assert!(said.stderr.contains(part), "{}", said.stderr);
    }
    let shown = said.success();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[..2],
        ["call> weather {\"city\": \"Oslo\"}", "model> Rain."],
        "{shown}"
    );
    assert!(lines[2].starts_with("model> "), "{shown}");
    calls_are_answered_by_the_executor(workplace);
}

/// With `--execute` the canned response is the result, and nothing of the input is.
fn calls_are_answered_by_the_executor(workplace: &Workplace) {
    let city = json!({"name": "city", "type": "string"});
    let document = json!({"api_name": "weather", "required_parameters": [city]});
    workplace.write("apis.jsonl", format!("{document}\n"));
    let canned = json!({"api": "weather", "response": {"sky": "rain"}});
    workplace.write("canned.jsonl", format!("{canned}\n"));
    let words = [
        "chat run --checkpoint last --tools tools.json --execute --set eval.max_new_tokens=60",
        "--set goat.documents=apis.jsonl --set goat.executor.kind=canned",
        "--set goat.executor.responses=canned.jsonl",
    ];
    let words = words.join(" ");
    let said = workplace.run_with_input(words.split(' '), "Weather in Oslo?\n/exit\n");
    let shown = said.success();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "call> weather {\"city\": \"Oslo\"}",
            "result> {\"sky\": \"rain\"}"
        ],
        "{shown}"
    );
    assert!(lines[2].starts_with("model> "), "{shown}");
    let without = "chat run --checkpoint last --tools tools.json --execute";
    let words: Vec<&str> = without.split(' ').collect();
    assert_refused(
        workplace,
        &words,
        CONFIG,
        &["calls are answered by [goat.executor]", "type the results"],
    );
}

/// A run, its checkpoint by step, name and path, and its export.
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
    let shown = workplace.run(words.split(' ')).success();
    assert!(shown.contains("4 tokens after"), "{shown}");
    let refused = |words: &str, said: &[&str]| {
        assert_refused(
            workplace,
            &words.split(' ').collect::<Vec<_>>(),
            CONFIG,
            said,
        );
    };
    refused(
        "generate run --checkpoint 7 --message Hi",
        &["step 7", "no such checkpoint in run", "150"],
    );
    refused(
        &format!("generate {base} --checkpoint best --message Hi"),
        &["a model alone has no checkpoints"],
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
        &["sentence-transformers", "writes none"],
    );
    let config = std::fs::read_to_string(workplace.path("exported/adapter_config.json")).unwrap();
    workplace.write(
        "exported/adapter_config.json",
        config.replace(&base, "org/base"),
    );
    refused(
        "generate exported --message Hi",
        &[
            "the adapter is of the base model",
            "org/base",
            "--set model.model_name_or_path=FOLDER",
        ],
    );
    assert_eq!(
        ask(&format!("exported --set model.model_name_or_path={base}")),
        expected
    );
}

/// `inspect` shows the tokens of the training examples, and how they are learned.
fn assert_prompts_begin_the_examples(workplace: &Workplace, chats: &[String], texts: &[Value]) {
    let inspect = "inspect config.toml --format json --set train.output_dir=other".split(' ');
    let inspect = inspect.chain(chats.iter().map(String::as_str));
    let rows = lines(&workplace.run(inspect).success());
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

/// With the tools of the row from a file; as a prompt the same text needs no template.
fn a_question_is_answered_as_the_row_that_asks_it(workplace: &Workplace) {
    workplace.write("tools.json", tools().to_string());
    let generate = "generate run --checkpoint last --set eval.max_new_tokens=60 --output";
    let ask = |output: &str, source: &[&str]| {
        let words = generate.split(' ').chain([output]);
        let shown = workplace.run(words.chain(source.iter().copied())).success();
        (shown, lines(&workplace.read(output)).remove(0))
    };
    let question = ["--message", "Weather in Oslo?", "--tools", "tools.json"];
    let (shown, answer) = ask("asked.jsonl", &question);
    assert!(
        shown.starts_with("1 texts in asked.jsonl\n--message\n  user       Weather"),
        "{shown}"
    );
    assert!(!shown.contains("reference"), "{shown}");
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
fn texts_after_messages_are_those_of_transformers() {
    let workplace = Workplace::new();
    let greedy = std::fs::read_to_string(fixture("smollm2/greedy.json")).unwrap();
    let greedy: Vec<Value> = serde_json::from_str(&greedy).unwrap();
    let rows = greedy.iter().map(|expected| {
        let asked = json!({"role": "user", "content": expected["prompt"]});
        let row = json!({"messages": [asked, {"role": "assistant", "content": "?"}]});
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
    let texts = lines(&workplace.read("texts.jsonl"));
    assert_eq!(texts.len(), greedy.len());
    let mut n_stopped = 0;
    for (text, expected) in texts.iter().zip(&greedy) {
        // transformers was not told to stop at the end of the turn, which is token 2.
        let whole = expected["text"].as_str().unwrap();
        let until_stop = whole.split("<|im_end|>").next().unwrap();
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
fn slot_rows_and_trajectories_are_asked_as_they_are_learned() {
    let workplace = Workplace::new();
    let written = |words: &str| {
        let words = format!("generate config.toml --checkpoint base --max-samples 2 {words}");
        workplace.run(words.split_whitespace()).success();
        lines(&workplace.read(words.rsplit(' ').next().unwrap()))
    };
    let rows = lines(&workplace.read("dev.jsonl"));
    let texts = written("--output slot.jsonl");
    assert_eq!(texts.len(), 2);
    for (text, row) in texts.iter().zip(&rows) {
        let reference = text["reference"].as_str().unwrap();
        let reference: Value = serde_json::from_str(reference).unwrap();
        assert_eq!(reference, row["gold"]);
    }

    let synth = "data synth goat --split dev --rows 2 --output goat.jsonl --documents apis.jsonl";
    workplace.run(synth.split(' ')).success();
    let texts = written(
        "--set data.format=goat --set data.eval=[\"goat.jsonl\"] --set eval.suites=[] \
         --set eval.metric_for_best_model=loss --set goat.documents=apis.jsonl \
         --set goat.method=global --set goat.distractors=random \
         --set eval.max_new_tokens=4 --output plans.jsonl",
    );
    let trajectory = &lines(&workplace.read("goat.jsonl"))[0];
    assert_eq!(texts[0]["id"], "dev-00000/plan-1");
    let plan = texts[0]["reference"].as_str().unwrap();
    for call in trajectory["calls"].as_array().unwrap() {
        assert!(plan.contains(call["name"].as_str().unwrap()), "{plan}");
    }
    let query = trajectory["query"].as_str().unwrap();
    assert!(texts[0]["prompt"].as_str().unwrap().contains(query));
}

#[test]
fn what_cannot_be_written_after_is_refused_before_anything_is_written() {
    let workplace = workplace();
    let open = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let chat = json!({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}]});
    workplace.write("open.jsonl", format!("{chat}\n{open}\n"));
    workplace.write("tools.json", "{\"tools\": []}");
    workplace.write("kept.jsonl", "old\n");
    let chats = chats();
    let start = ["generate", "config.toml", "--checkpoint", "base"];
    let refused = |words: &[&str], status: i32, said: &[&str]| {
        let words = start
            .into_iter()
            .chain(chats.iter().map(String::as_str))
            .chain(words.to_vec());
        assert_refused(&workplace, &words.collect::<Vec<_>>(), status, said);
    };
    let nothing: &[&str] = &["nothing to write after", "--data", "--message", "--prompt"];
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
            "--text is for models that learned from rows of data.format = \"slot\"",
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
            "chats.jsonl:1#1: a prompt of",
            "8100",
            "the 8192 positions of the model",
        ],
    );
    let kept: &[&str] = &["kept.jsonl exists already", "name another --output"];
    refused(&["--output", "kept.jsonl"], CONFIG, kept);
    let gone = "generate config.toml --checkpoint gone --message Hi".split(' ');
    assert_refused(
        &workplace,
        &gone.collect::<Vec<_>>(),
        FILES,
        &["gone: cannot open"],
    );

    // A row that ends with a question is asked for its answer.
    let open = ["--data", "open.jsonl", "--set", "eval.max_new_tokens=4"];
    let words = start
        .into_iter()
        .chain(chats.iter().map(String::as_str))
        .chain(open);
    let shown = workplace.run(words).success();
    for part in [
        "open.jsonl:1",
        "open.jsonl:2\n  user       Hi\n",
        "0 of 1 texts are their",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}

/// A text with its schema is asked as the row with that text, from the command line and from a file;
/// constrained, the answer keeps to the schema.
#[test]
fn a_text_is_asked_as_the_row_that_has_it_and_a_row_needs_no_gold() {
    let workplace = Workplace::new();
    let row = lines(&workplace.read("dev.jsonl")).remove(0);
    let text = row["input_text"].as_str().unwrap();
    workplace.write("schema.json", row["json_schema"].to_string());
    let without = json!({"input_text": text, "json_schema": row["json_schema"]});
    workplace.write("asked.jsonl", format!("{without}\n"));
    let n_runs = std::cell::Cell::new(0);
    let written = |words: &[&str], input: &str| {
        n_runs.set(n_runs.get() + 1);
        let output = format!("written{}.jsonl", n_runs.get());
        let start = "generate config.toml --checkpoint base --output".split(' ');
        let words = start.chain([output.as_str()]).chain(words.iter().copied());
        let shown = workplace.run_with_input(words, input).success();
        assert!(shown.contains("\n  text       "), "{shown}");
        let mut texts = lines(&workplace.read(&output));
        assert_eq!(texts.len(), 1);
        texts.remove(0)
    };
    let of_row = written(&["--max-samples", "1"], "");
    assert!(of_row.get("reference").is_some());
    let same = |other: &Value| {
        assert_eq!(other["prompt"], of_row["prompt"]);
        assert_eq!(other["text"], of_row["text"]);
        assert_eq!(other.get("reference"), None);
    };
    same(&written(&["--text", text, "--schema", "schema.json"], ""));
    same(&written(&["--text", "-", "--schema", "schema.json"], text));
    same(&written(&["--data", "asked.jsonl"], ""));
    same(&written(&["--data", "-"], &without.to_string()));

    workplace.write(
        "closed.json",
        json!({"type": "object", "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"], "additionalProperties": false})
        .to_string(),
    );
    let held = [
        "--text",
        text,
        "--schema",
        "closed.json",
        "--set",
        "eval.constrained=true",
    ];
    let held = written(&held, "");
    let answer: Value = serde_json::from_str(held["text"].as_str().unwrap()).unwrap();
    assert!(answer["ok"].is_boolean(), "{answer}");
    assert_eq!(held["finish_reason"], "stop");
}
