//! The suite calls, which scores turns of conversations with tools: in a run, with `eval`, on a
//! server, and with flattened tools.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::server::{Response, TestServer};
use crate::workplace::{CommandOutput, Workplace, json_lines, parse_lines};

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer",
                "default": 1}}, "required": ["city"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
            "properties": {}, "additionalProperties": false}}}
    ])
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// A turn with two calls and one with text; a turn with one call; a chat without tools.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    let user = |text: &str| json!({"role": "user", "content": text});
    let both = json!({"role": "assistant", "tool_calls": [
        call("weather", json!({"city": "Oslo"})), call("now", json!({}))]});
    let rows = [
        json!({"messages": [user("Weather in Oslo, and the time?"), both,
            {"role": "tool", "content": "rain"}, {"role": "tool", "content": "noon"},
            {"role": "assistant", "content": "Rain at noon."}], "tools": tools()}),
        json!({"messages": [user("Rome?"), {"role": "assistant", "tool_calls": [
            call("weather", json!({"city": "Rome", "days": 2}))]}], "tools": tools()}),
        json!({"messages": [user("Hi"), {"role": "assistant", "content": "Hello."}]}),
    ];
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    workplace.write("learned.jsonl", &text);
    workplace.write("chats.jsonl", text);
    workplace
}

fn settings() -> Vec<String> {
    let settings = [
        "data.format=messages",
        "data.train=[\"learned.jsonl\"]",
        "data.eval=[\"chats.jsonl\"]",
        "mask.train_on=assistant",
        "eval.suites=[\"calls\"]",
        "eval.metric_for_best_model=calls.balanced",
        "eval.max_new_tokens=80",
        "data.chat_template=chatml-tools",
    ];
    let settings = settings.iter();
    settings
        .flat_map(|one| ["--set".to_owned(), (*one).to_owned()])
        .collect()
}

fn assert_report_has_groups(workplace: &Workplace) {
    workplace
        .run("report run --by tool --eval best".split(' '))
        .success();
    let page = workplace.read("run/report.html");
    for expected in [
        "groups &#x2f; tool",
        "leaf errors &#x2f; by depth",
        "leaf errors &#x2f; wrong paths",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    let unknown = workplace.run("report run --by colour".split(' '));
    assert_eq!(unknown.status, Some(2));
    assert!(
        unknown.stderr.contains("the suite calls has the groups"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn a_run_selects_the_checkpoint_with_the_right_calls_and_eval_gives_the_same_scores() {
    let workplace = workplace();
    let settings = settings();
    let settings = settings.iter().map(String::as_str);
    let more = "--set train.max_steps=150 --set train.learning_rate=2e-2 --set lora.r=16 \
                --set lora.lora_alpha=32 --set train.per_device_train_batch_size=3 \
                --set eval.eval_steps=75 --set checkpoint.save_steps=75";
    let train = ["train", "config.toml"].into_iter().chain(settings);
    workplace
        .run(train.chain(more.split_whitespace()))
        .success();
    let metrics = parse_lines(&workplace.read("run/metrics.jsonl"));
    let values_of = |name: &str| -> Vec<f64> {
        let values = metrics.iter().filter_map(|line| line[name].as_f64());
        values.collect()
    };
    let (right, losses) = (values_of("eval/calls.balanced"), values_of("eval/loss"));
    // One turn expects text. An untrained model never calls a tool, so only this turn is right.
    assert_eq!(*right.last().unwrap(), 1.0, "{right:?}");
    assert!(right[0] < 0.5, "{right:?}");
    assert_eq!(losses.len(), right.len());
    assert!(losses.last().unwrap() < &(losses[0] / 2.0), "{losses:?}");

    let answer = workplace.run("eval run --output best".split(' '));
    for expected in [
        "evaluating 3 turns of 3 rows; the references have 3 calls, and 1 turn without calls",
        "1 turn skipped: the row has no tools",
    ] {
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
    let output = answer.success();
    for expected in [
        "| best | 3 | 100.0 [25.8, 100.0] | 100.0",
        "| schema depth 1 | 3 | 100.0",
        "| weather | 2 | 100.0",
        "\nloss ",
    ] {
        assert!(
            output.contains(expected),
            "{expected:?} is not in\n{output}"
        );
    }
    let best: Value = serde_json::from_str(&workplace.read("best/metrics.json")).unwrap();
    assert_eq!(best["right"]["value"], 1.0);
    assert_eq!(best["finish_reasons"], json!({"stop": 3}));
    // If several evaluations have the best value, the first is chosen.
    let chosen = right.iter().position(|value| *value == 1.0).unwrap();
    let loss = best["loss"].as_f64().unwrap();
    assert!((loss - losses[chosen]).abs() < 1e-6, "{loss} {losses:?}");
    let predictions = parse_lines(&workplace.read("best/predictions.jsonl"));
    let ids: Vec<&str> = predictions
        .iter()
        .map(|line| line["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        ["chats.jsonl:1#1", "chats.jsonl:1#4", "chats.jsonl:2#1"]
    );
    assert_eq!(predictions[0]["prompt"], "Weather in Oslo, and the time?");
    assert_eq!(predictions[0]["gold"][1]["name"], "now");
    assert_eq!(predictions[1]["gold"], "Rain at noon.");
    let again = "eval run --predictions best/predictions.jsonl --output again";
    workplace.run(again.split(' ')).success();
    let again: Value = serde_json::from_str(&workplace.read("again/metrics.json")).unwrap();
    assert_eq!(again["by_tool"], best["by_tool"]);

    workplace
        .run("eval run --checkpoint base --output base".split(' '))
        .success();
    let compared = workplace.run("compare base best".split(' ')).success();
    let base: Value = serde_json::from_str(&workplace.read("base/metrics.json")).unwrap();
    for key in [
        "right",
        "text_right",
        "name",
        "arguments",
        "call_exact",
        "missed_rate",
    ] {
        // Metrics with the same score for every turn share a line.
        let has_key = |line: &&str| {
            let cell = line
                .strip_prefix("| calls.")
                .and_then(|rest| rest.split(" | ").next());
            let cell = cell.map(|cell| cell.trim_end_matches(" (lower is better)"));
            cell.is_some_and(|cell| cell.split(" = ").any(|name| name == key))
        };
        let line = compared.lines().find(has_key);
        let line = line.unwrap_or_else(|| panic!("no {key}: {compared}"));
        let [before, after] =
            [&base, &best].map(|values_of| values_of[key]["value"].as_f64().unwrap());
        assert!(
            line.contains(&format!("| {before:.3} | {after:.3} |")),
            "{key} is {before} and {after}: {line}"
        );
    }

    assert_report_has_groups(&workplace);
    let loss_only = "eval run --loss-only --output loss";
    let output = workplace.run(loss_only.split(' ')).success();
    assert!(output.starts_with("loss "), "{output}");
    let rows = parse_lines(&workplace.read("loss/losses.jsonl"));
    assert_eq!(rows.len(), 3);
    let alone: Value = serde_json::from_str(&workplace.read("loss/metrics.json")).unwrap();
    assert_eq!(alone["loss"], best["loss"]);
}

/// With constrained decoding, even an untrained model calls only the given tools.
#[test]
fn a_constrained_model_calls_the_tools_of_its_row() {
    let workplace = workplace();
    let settings = settings();
    let words = "eval config.toml --checkpoint base --output held --set eval.constrained=true";
    let words = words.split(' ').chain(settings.iter().map(String::as_str));
    workplace.run(words).success();
    let predictions = parse_lines(&workplace.read("held/predictions.jsonl"));
    for line in &predictions {
        let (text, score) = (line["prediction"].as_str().unwrap(), &line["score"]);
        if score["n_wanted"] == 0 {
            assert!(!text.starts_with("<tool_call>"), "{text}");
        } else {
            assert!(text.starts_with("<tool_call>\n{\"name\": \""), "{text}");
            assert_eq!(score["invented"], false, "{line}");
            assert_eq!(score["missed"], false, "{line}");
        }
    }
}

#[test]
fn a_server_receives_the_tools_and_its_calls_are_scored() {
    let workplace = workplace();
    let server = TestServer::start(|request, _| {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body["tools"], tools());
        let last = body["messages"].as_array().unwrap().last().unwrap().clone();
        let calls =
            |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
        let function = |name: &str, arguments: &str| {
            json!({"id": "c", "type": "function",
                "function": {"name": name, "arguments": arguments}})
        };
        let message = match last["content"].as_str().unwrap() {
            "Rome?" => calls(json!([function(
                "weather",
                "{\"city\": \"Rome\", \"days\": 2}"
            )])),
            "noon" => json!({"role": "assistant", "content": "It rains at noon."}),
            // The arguments are in another order, and the default value is written explicitly.
            _ => calls(json!([
                function("now", ""),
                function("weather", "{\"days\": 1, \"city\": \"Oslo\"}")
            ])),
        };
        Response::json(
            200,
            &json!({"model": "m", "choices": [{"index": 0, "message": message,
            "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}),
        )
    });
    let evaluated = |output: &str, more: &str| {
        let words = format!(
            "eval config.toml --endpoint {}/v1 --endpoint-model m --output {output} {more}",
            server.url()
        );
        let settings = settings();
        let words = words
            .split_whitespace()
            .chain(settings.iter().map(String::as_str));
        workplace.run(words.collect::<Vec<_>>()).success();
        serde_json::from_str::<Value>(&workplace.read(&format!("{output}/metrics.json"))).unwrap()
    };
    let metrics = evaluated("free", "");
    assert_eq!(metrics["right"]["value"], 1.0, "{metrics}");
    assert_eq!(metrics["n_calls"], 3);
    let n_free = server.received().len();
    evaluated("held", "--set eval.constrained=true");
    let bodies = server.received();
    let bodies = bodies.iter().enumerate();
    let required = bodies.filter(|(_, request)| request.body.contains("\"tool_choice\""));
    let required: Vec<usize> = required.map(|(number, _)| number).collect();
    assert_eq!(required.len(), 2, "{required:?}");
    assert!(
        required.iter().all(|&number| number >= n_free),
        "{required:?}"
    );
}

/// Answers are joined with turns by id. A truncated or empty answer is wrong if text is expected.
#[test]
fn saved_predictions_are_joined_by_id_and_incomplete_ones_are_wrong() {
    let workplace = workplace();
    let tagged = |calls: &[Value]| {
        let calls = calls.iter();
        calls
            .map(|call| format!("<tool_call>\n{call}\n</tool_call>"))
            .collect::<String>()
    };
    let both = tagged(&[
        call("weather", json!({"city": "Oslo"})),
        call("now", json!({})),
    ]);
    let rome = tagged(&[call("weather", json!({"city": "Rome", "days": 2}))]);
    let scored = |text: &str, finish_reason: &str, output: &str| {
        // The predictions are not in the order of the turns.
        let saved = [
            json!({"id": "chats.jsonl:2#1", "prediction": rome}),
            json!({"id": "chats.jsonl:1#4", "prediction": text, "finish_reason": finish_reason}),
            json!({"id": "chats.jsonl:1#1", "prediction": both}),
        ];
        workplace.write(
            "saved.jsonl",
            saved.map(|line| format!("{line}\n")).concat(),
        );
        let words = format!("eval config.toml --predictions saved.jsonl --output {output}");
        let settings = settings();
        let words = words.split(' ').chain(settings.iter().map(String::as_str));
        workplace.run(words.collect::<Vec<_>>()).success();
        let metrics = workplace.read(&format!("{output}/metrics.json"));
        let metrics: Value = serde_json::from_str(&metrics).unwrap();
        let value_of = |name: &str| metrics[name]["value"].as_f64().unwrap();
        (
            value_of("exact"),
            value_of("text_right"),
            value_of("balanced"),
        )
    };
    assert_eq!(scored("It rains.", "stop", "whole"), (1.0, 1.0, 1.0));
    assert_eq!(scored("It rains and", "length", "cut"), (1.0, 0.0, 0.0));
    assert_eq!(scored("", "stop", "empty"), (1.0, 0.0, 0.0));
    assert_eq!(scored("<think>It", "stop", "thought"), (1.0, 0.0, 0.0));
}

/// A template whose call format is unknown is refused, because every completion would score 0.
#[test]
fn a_template_with_unparsable_calls_is_refused_before_generation() {
    let workplace = workplace();
    workplace.write(
        "own.jinja",
        "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content or '' }}\
         {%- for c in m.tool_calls or [] -%}CALL {{ c.function.name }} WITH \
         {{ c.function.arguments | tojson }}{%- endfor -%}<|im_end|>\n{%- endfor -%}\
         {{- tools | tojson if tools else '' -}}\
         {%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}",
    );
    let settings = settings();
    let words = "eval config.toml --checkpoint base".split(' ');
    let words = words.chain(settings.iter().map(String::as_str));
    let words: Vec<&str> = words
        .chain(["--set", "data.chat_template=own.jinja"])
        .collect();
    let answer = workplace.run(words);
    assert_eq!(answer.status, Some(2), "{}", answer.stderr);
    for expected in ["own.jinja", "CALL probe_depth WITH", "data.chat_template"] {
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
}

/// Prompts contain flattened tools, and the arguments of calls are nested again before scoring.
#[test]
fn flat_calls_are_nested_before_they_are_scored() {
    let workplace = Workplace::new();
    let tools = json!([{"type": "function", "function": {"name": "ship", "parameters": {
        "type": "object", "properties": {"to": {"type": "object", "properties": {
            "city": {"type": "string"}, "zip": {"type": "string"}}, "required": ["city"]}},
        "required": ["to"]}}}]);
    let row = json!({"messages": [{"role": "user", "content": "Ship it to Oslo."},
        {"role": "assistant", "tool_calls": [call("ship", json!({"to": {"city": "Oslo"}}))]}],
        "tools": tools});
    workplace.write("learned.jsonl", format!("{row}\n"));
    workplace.write("chats.jsonl", format!("{row}\n"));
    let scored = |arguments: Value, output: &str| {
        let text = format!("<tool_call>\n{}\n</tool_call>", call("ship", arguments));
        let line = json!({"id": "chats.jsonl:1#1", "prediction": text});
        workplace.write("predictions.jsonl", format!("{line}\n"));
        let words = format!(
            "eval config.toml --predictions predictions.jsonl --output {output} \
             --set data.flatten=always"
        );
        let settings = settings();
        let words = words
            .split_whitespace()
            .chain(settings.iter().map(String::as_str));
        workplace.run(words.collect::<Vec<_>>()).success();
        parse_lines(&workplace.read(&format!("{output}/predictions.jsonl"))).remove(0)
    };
    let flat = scored(json!({"to_city": "Oslo"}), "flat");
    assert_eq!(flat["score"]["right"], true, "{flat}");
    let nested = scored(json!({"to": {"city": "Oslo"}}), "nested");
    assert_eq!(nested["score"]["malformed"], true, "{nested}");
    assert_eq!(
        flat["gold"],
        json!([call("ship", json!({"to": {"city": "Oslo"}}))])
    );
}

/// An evaluation of the chats with a server.
fn evaluate_served(workplace: &Workplace, server: &TestServer, more: &str) -> CommandOutput {
    let words = format!(
        "eval config.toml --endpoint {}/v1 --endpoint-model m {more}",
        server.url()
    );
    let settings = settings();
    let words = words.split_whitespace();
    let words = words.chain(settings.iter().map(String::as_str));
    workplace.run(words.collect::<Vec<_>>())
}

/// A server whose first answers are rejected: a call to an unknown tool, and a call that cannot be
/// parsed. After the errors it answers with the right calls, unless `refuses` says otherwise.
fn server_with_errors(refuses: &'static AtomicBool) -> TestServer {
    TestServer::start(|request, _| {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let messages = body["messages"].as_array().unwrap();
        let last = messages.last().unwrap();
        let function = |name: &str, arguments: Value| {
            json!({"id": "c", "type": "function",
                "function": {"name": name, "arguments": arguments.to_string()}})
        };
        let calls =
            |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
        let text = last["content"].as_str().unwrap();
        if text.contains("error: ") && refuses.load(Ordering::SeqCst) {
            return Response::json(401, &json!({"error": {"message": "no"}}));
        }
        let message = match text {
            "Rome?" => calls(json!([function("wether", json!({"city": "Rome"}))])),
            "noon" => json!({"role": "assistant", "content": "It rains at noon."}),
            text if text.starts_with("error: unknown tool wether") => {
                assert_eq!(last["role"], "tool");
                let called = &messages[messages.len() - 2]["tool_calls"][0];
                assert_eq!(called["id"], last["tool_call_id"]);
                calls(json!([function(
                    "weather",
                    json!({"city": "Rome", "days": 2})
                )]))
            }
            text if text.starts_with("error: ") => {
                assert_eq!(last["role"], "user");
                let before = &messages[messages.len() - 2];
                assert_eq!(
                    before["content"],
                    "<tool_call>{\"name\": \"weather\", </tool_call>"
                );
                calls(json!([
                    function("weather", json!({"city": "Oslo"})),
                    function("now", json!({}))
                ]))
            }
            _ => json!({"role": "assistant",
                "content": "<tool_call>{\"name\": \"weather\", </tool_call>"}),
        };
        Response::json(
            200,
            &json!({"model": "m", "choices": [{"index": 0, "message": message,
            "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}),
        )
    })
}

#[test]
fn rejected_calls_are_tried_again_with_their_errors() {
    static REFUSES: AtomicBool = AtomicBool::new(true);
    let workplace = workplace();
    let server = server_with_errors(&REFUSES);
    let metrics = |folder: &str| -> Value {
        serde_json::from_str(&workplace.read(&format!("{folder}/metrics.json"))).unwrap()
    };
    evaluate_served(&workplace, &server, "--output once").success();
    let once = metrics("once");
    assert_eq!(once["right"]["value"], json!(1.0 / 3.0));
    assert_eq!(once.get("retries"), None);

    // An interrupted evaluation keeps its first tries.
    let retried = "--output twice --set eval.calls.retries=2";
    let stopped = evaluate_served(&workplace, &server, retried);
    assert_ne!(stopped.status, Some(0), "{}", stopped.stderr);
    REFUSES.store(false, Ordering::SeqCst);
    let n_before = server.received().len();
    let output = evaluate_served(&workplace, &server, retried).success();
    assert_eq!(server.received().len() - n_before, 2);
    let expected = "retries: 1.67 tries per turn; right turns: 33.3 % after 1, 100.0 % after 2, \
                    100.0 % after 3; 0 turns without a valid call in the end";
    assert!(output.contains(expected), "{output}");
    let twice = metrics("twice");
    assert_eq!(twice["right"]["value"], 1.0);
    assert_eq!(twice["retries"]["mean_tries"]["value"], json!(5.0 / 3.0));
    assert_eq!(twice["retries"]["after"][0]["call_exact"]["value"], 0.0);
    assert_eq!(twice["retries"]["after"][1]["call_exact"]["value"], 1.0);
    let predictions = parse_lines(&workplace.read("twice/predictions.jsonl"));
    let tries = |line: usize| predictions[line]["failed_tries"].as_array().map(Vec::len);
    assert_eq!([tries(0), tries(1), tries(2)], [Some(1), None, Some(1)]);
    let feedback = predictions[2]["failed_tries"][0]["feedback"][0]
        .as_str()
        .unwrap();
    assert!(
        feedback.starts_with("error: unknown tool wether"),
        "{feedback}"
    );

    let settings = settings();
    let words = "eval config.toml --predictions twice/predictions.jsonl --output again";
    let words = words.split(' ').chain(settings.iter().map(String::as_str));
    workplace.run(words.collect::<Vec<_>>()).success();
    // Without the setting, the longest series of tries is the limit.
    let again = &metrics("again")["retries"]["after"];
    assert_eq!(again.as_array().map(Vec::len), Some(2));
    assert_eq!(again[1], twice["retries"]["after"][1]);
}

#[test]
fn errors_of_arguments_and_groups_are_printed_and_compared() {
    let workplace = workplace();
    let tagged = |call: Value| format!("<tool_call>\n{call}\n</tool_call>");
    let scored = |rome: &str, output: &str, more: &str| {
        let saved = [
            json!({"id": "chats.jsonl:1#1", "prediction": tagged(call("now", json!({})))}),
            json!({"id": "chats.jsonl:1#4", "prediction": "It rains."}),
            json!({"id": "chats.jsonl:2#1", "prediction": rome}),
        ];
        workplace.write("saved.jsonl", json_lines(&saved));
        let words = format!("eval config.toml --predictions saved.jsonl --output {output} {more}");
        let settings = settings();
        let words = words
            .split_whitespace()
            .chain(settings.iter().map(String::as_str));
        workplace.run(words.collect::<Vec<_>>())
    };
    let unknown = scored("", "none", "--by colour");
    assert_eq!(unknown.status, Some(2));
    let expected = "--by colour: the suite calls has the groups tool, n_calls, depth, file";
    assert!(unknown.stderr.contains(expected), "{}", unknown.stderr);

    let wrong = tagged(call(
        "weather",
        json!({"city": "Oslo", "place": {"days": 2}}),
    ));
    let output = scored(&wrong, "before", "--by tool --by n_calls").success();
    for expected in [
        "\n| tool | n | right %",
        "\n| no call | 1 | 100.0",
        "\n| n_calls | n |",
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    let right = tagged(call("weather", json!({"city": "Rome", "days": 2})));
    scored(&right, "after", "").success();
    let before: Value = serde_json::from_str(&workplace.read("before/metrics.json")).unwrap();
    let errors = &before["leaf_errors"];
    // weather of the first turn is missing with its one argument; in the second turn, the city has
    // another value, and the days are in an object that the tool does not have.
    assert_eq!(errors["n_leaves"], 4);
    let kinds = [
        "missing",
        "wrong_value",
        "wrong_level",
        "invented",
        "malformed",
    ];
    let kinds = kinds.map(|kind| errors[kind].as_u64().unwrap());
    assert_eq!(kinds, [1, 1, 1, 0, 0], "{errors}");
    assert_eq!(errors["by_tool"][0]["tool"], "weather");
    assert_eq!(errors["by_tool"][0]["n"], 3);
    assert_eq!(errors["wrong_paths"][0]["path"], "weather.city");
    assert_eq!(errors["wrong_paths"][0]["example"], "chats.jsonl:1#1");
    assert_eq!(before["groups"]["tool"][0]["tool"], "weather");
    assert_eq!(before["groups"]["tool"][0]["n"], 2);

    let compared = workplace
        .run("compare before after --by tool".split(' '))
        .success();
    for expected in [
        "\n| metric | group | n | before | after |",
        "| weather | 2 | 0.000 | 0.500 | +0.500",
        "\n| leaf errors | before | after |",
        "\n| reference leaves | 4 | 4 |",
        "\n| missing | 1 (25.0 %) | 1 (25.0 %) |",
        "\n| wrong_level | 1 (25.0 %) | 0 (0.0 %) |",
    ] {
        assert!(compared.contains(expected), "{expected}: {compared}");
    }
    let unknown = workplace.run("compare before after --by colour".split(' '));
    assert_eq!(unknown.status, Some(2));
    assert!(
        unknown.stderr.contains("tool, n_calls, depth, file"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn plan_and_inspect_count_the_functions_that_training_rows_also_have() {
    let workplace = workplace();
    let chats = workplace.read("chats.jsonl");
    // The function has the same name, but another parameter.
    let changed = chats
        .replace("\"days\":{", "\"hours\":{")
        .replace("\"days\":2", "\"hours\":2");
    assert_ne!(changed, chats);
    workplace.write("chats.jsonl", changed);
    let settings = settings();
    let settings = || settings.iter().map(String::as_str);
    let expected = "functions: 1 of the 2 in evaluation rows (50.0 %) also occur in training rows, \
                    with the same parameters; 1 more only share a name";
    let plan = workplace.run(["plan", "config.toml"].into_iter().chain(settings()));
    assert!(plan.stdout.contains(expected), "{}", plan.stdout);
    let words = ["inspect", "config.toml", "--rows", "1"];
    let inspect = workplace.run(words.into_iter().chain(settings()));
    assert!(inspect.stderr.contains(expected), "{}", inspect.stderr);
}
