//! The suite calls: turns of conversations with tools, in a run, by `eval`, on a server, and with flat
//! tools.

use serde_json::{Value, json};

use crate::suites::lines;
use crate::support::server::{Response, TestServer};
use crate::workplace::Workplace;

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

/// A turn of two calls and one of a text; a turn of one call; a chat without tools.
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
        "eval.metric_for_best_model=calls.right",
        "eval.max_new_tokens=80",
        "data.chat_template=chatml-tools",
    ];
    let settings = settings.iter();
    settings
        .flat_map(|one| ["--set".to_owned(), (*one).to_owned()])
        .collect()
}

#[test]
fn a_run_chooses_the_checkpoint_whose_calls_are_right_and_eval_scores_the_same() {
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
    let metrics = lines(&workplace.read("run/metrics.jsonl"));
    let of = |name: &str| -> Vec<f64> {
        let values = metrics.iter().filter_map(|line| line[name].as_f64());
        values.collect()
    };
    let (right, losses) = (of("eval/calls.right"), of("eval/loss"));
    // One turn wants a text, and an untrained model calls nothing.
    assert_eq!(*right.last().unwrap(), 1.0, "{right:?}");
    assert!(right[0] < 0.5, "{right:?}");
    assert_eq!(losses.len(), right.len());
    assert!(losses.last().unwrap() < &(losses[0] / 2.0), "{losses:?}");

    let answer = workplace.run("eval run --output best".split(' '));
    for said in [
        "3 turns of 3 rows are asked, with 3 wanted calls; in 1 of them a text is wanted",
        "1 turn is not asked: no tools in the row",
    ] {
        assert!(answer.stderr.contains(said), "{}", answer.stderr);
    }
    let shown = answer.success();
    for said in [
        "| best | 3 | 100.0",
        "| schema depth 1 | 3 | 100.0",
        "| weather | 2 | 100.0",
        "\nloss ",
    ] {
        assert!(shown.contains(said), "{said:?} is not in\n{shown}");
    }
    let best: Value = serde_json::from_str(&workplace.read("best/metrics.json")).unwrap();
    assert_eq!(best["right"]["value"], 1.0);
    assert_eq!(best["finish_reasons"], json!({"stop": 3}));
    // Of several evaluations with the best value the first was chosen.
    let chosen = right.iter().position(|value| *value == 1.0).unwrap();
    let loss = best["loss"].as_f64().unwrap();
    assert!((loss - losses[chosen]).abs() < 1e-6, "{loss} {losses:?}");
    let predictions = lines(&workplace.read("best/predictions.jsonl"));
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
    for key in ["right", "name", "arguments", "call_exact", "missed_rate"] {
        let line = compared
            .lines()
            .find(|line| line.starts_with(&format!("| calls.{key} ")));
        let line = line.unwrap_or_else(|| panic!("no {key}: {compared}"));
        let [before, after] = [&base, &best].map(|of| of[key]["value"].as_f64().unwrap());
        assert!(
            line.contains(&format!("| {before:.3} | {after:.3} |")),
            "{key} is {before} and {after}: {line}"
        );
    }

    let loss_only = "eval run --loss-only --output loss";
    let shown = workplace.run(loss_only.split(' ')).success();
    assert!(shown.starts_with("loss "), "{shown}");
    let rows = lines(&workplace.read("loss/losses.jsonl"));
    assert_eq!(rows.len(), 3);
    let alone: Value = serde_json::from_str(&workplace.read("loss/metrics.json")).unwrap();
    assert_eq!(alone["loss"], best["loss"]);
}

/// An untrained model that is held to the tools calls nothing but them.
#[test]
fn a_constrained_model_calls_the_tools_of_the_row_where_calls_are_wanted() {
    let workplace = workplace();
    let settings = settings();
    let words = "eval config.toml --checkpoint base --output held --set eval.constrained=true";
    let words = words.split(' ').chain(settings.iter().map(String::as_str));
    workplace.run(words).success();
    let predictions = lines(&workplace.read("held/predictions.jsonl"));
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
fn a_server_is_shown_the_tools_and_its_calls_are_scored() {
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
            // In another order, and with the default written out.
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

/// The model is shown flat tools; what it writes is nested before it is scored.
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
        lines(&workplace.read(&format!("{output}/predictions.jsonl"))).remove(0)
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
