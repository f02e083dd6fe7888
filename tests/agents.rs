//! Trajectories in every command: they are generated, inspected and trained on, and agent loops
//! answer their queries by calling APIs.

use serde_json::{Value, json};

use crate::suites;
use crate::support::server::{TestServer, chat};
use crate::support::{fixture, model};
use crate::workplace::{GOAT_DATA, Workplace, parse_lines, tiny_model_lora};

fn config(method: &str, extra: &str) -> String {
    format!(
        r#"{lora}{GOAT_DATA}[goat]
documents = "goat/documents.jsonl"
method = "{method}"
{extra}
[retriever]
model_name_or_path = "{retriever}"
[mask]
arguments = "all"
[train]
output_dir = "run-{method}"
max_steps = 2
per_device_train_batch_size = 2
[eval]
eval_steps = 2
suites = ["goat"]
max_samples = 2
max_new_tokens = 8
"#,
        lora = tiny_model_lora(),
        retriever = model("all-minilm-l6-v2").display(),
    )
}

/// A workplace with trajectories of both splits, their documents, and a config for each method.
fn workplace() -> Workplace {
    let workplace = Workplace::new();
    workplace.generate_trajectories();
    for method in METHODS {
        workplace.write(&format!("{method}.toml"), config(method, ""));
    }
    workplace
}

const METHODS: [&str; 4] = ["global", "react", "global-id", "react-id"];

#[test]
fn argument_values_are_tokenized_but_not_supervised() {
    let workplace = workplace();
    for method in METHODS {
        let file = format!("{method}.toml");
        let output = workplace.run(["inspect", &file, "--format", "json", "-n", "20"]);
        let rows = parse_lines(&output.success());
        assert_eq!(rows.len(), 20, "{method}");
        let mut n_values = 0;
        for row in &rows {
            let tokens = row["tokens"].as_array().unwrap();
            let supervised: String = tokens
                .iter()
                .filter(|token| token["weight"].as_f64() > Some(0.0))
                .map(|token| token["text"].as_str().unwrap())
                .collect();
            // Rows without a call have no tools.
            for value in row["argument_values"].as_array().into_iter().flatten() {
                assert_eq!(value["is_masked"], true, "{row}");
                n_values += 1;
            }
            assert!(supervised.contains("<|im_end|>"), "{method}: {supervised}");
        }
        assert!(n_values > 0, "{method}: no call among the rows");
    }
}

#[test]
fn agents_of_every_method_are_trained_evaluated_and_selected() {
    let workplace = workplace();
    for method in METHODS {
        let file = format!("{method}.toml");
        workplace.run(["train", &file]).success();
        let run = format!("run-{method}");
        let best = workplace.read(&format!("{run}/BEST"));
        assert!(best.contains("checkpoint-"), "{method}: {best}");
        let metrics = parse_lines(&workplace.read(&format!("{run}/metrics.jsonl")));
        let measured = metrics
            .iter()
            .filter(|line| line.to_string().contains("goat.ia"))
            .count();
        assert!(
            measured >= 2,
            "{method}: expected an evaluation before and one after training, not {measured}"
        );

        let output = format!("{method}-results");
        let arguments = ["eval", &run, "--suite", "goat", "--output", &output];
        let table = workplace.run(arguments).success();
        assert!(table.contains("SA") || table.contains("sa"), "{table}");
        let predictions = parse_lines(&workplace.read(&format!("{output}/predictions.jsonl")));
        assert_eq!(predictions.len(), 2, "{method}");
        for prediction in &predictions {
            let retrievals = &prediction["outcome"]["retrievals"];
            for retrieval in retrievals.as_array().unwrap() {
                assert_eq!(
                    retrieval["documents"].as_array().unwrap().len(),
                    5,
                    "{method}"
                );
            }
            assert_eq!(prediction["outcome"]["method"], method);
        }
        let report: Value =
            serde_json::from_str(&workplace.read(&format!("{output}/metrics.json"))).unwrap();
        assert_eq!(report["goat"]["n"], 2, "{method}");
    }
}

/// `inspect --row LINE` shows all examples of the trajectory in that line, even if it has an id.
#[test]
fn inspect_selects_a_trajectory_by_its_line() {
    let workplace = workplace();
    let inspect_row = |row: &str| {
        let words = ["inspect", "global.toml", "--format", "json", "--row", row];
        parse_lines(&workplace.run(words).success())
    };
    let text = workplace.read("goat/train.jsonl");
    let own_id = parse_lines(&text)[1]["id"].as_str().unwrap().to_owned();
    let all = inspect_row("2");
    assert!(all.len() > 1, "{}", all.len());
    for row in &all {
        let id = row["id"].as_str().unwrap();
        assert!(id.starts_with(&format!("{own_id}/")), "{id}");
    }
    assert_eq!(inspect_row("goat/train.jsonl:2"), all);
    assert_eq!(inspect_row(all[0]["id"].as_str().unwrap()), all[..1]);
    let without_ids = text.replace("\"id\"", "\"no_id\"");
    let without_ids = parse_lines(&without_ids).into_iter().map(|mut row| {
        row.as_object_mut().unwrap().shift_remove("no_id");
        format!("{row}\n")
    });
    workplace.write("goat/train.jsonl", without_ids.collect::<String>());
    let unnamed = inspect_row("goat/train.jsonl:2");
    assert_eq!(unnamed.len(), all.len());
    assert!(
        unnamed[0]["id"]
            .as_str()
            .unwrap()
            .starts_with("goat/train.jsonl:2/")
    );
    let refused = workplace.run(["inspect", "global.toml", "--row", "99"]);
    assert!(
        refused.stderr.contains("--row 99: no such row"),
        "{}",
        refused.stderr
    );
}

#[test]
fn distractor_documents_can_be_the_highest_ranked_ones() {
    let workplace = workplace();
    workplace.write("near.toml", config("global", "distractors = \"retriever\""));
    let plans = |file: &str| {
        let output = workplace.run(["inspect", file, "--format", "json", "-n", "1"]);
        let tokens = parse_lines(&output.success())[0]["tokens"].clone();
        let tokens = tokens.as_array().unwrap().clone();
        tokens
            .iter()
            .map(|token| token["text"].as_str().unwrap().to_string())
            .collect::<String>()
    };
    let (near, random) = (plans("near.toml"), plans("global.toml"));
    assert_ne!(
        near, random,
        "the retriever chooses different documents than random choice"
    );
    assert_eq!(near, plans("near.toml"), "the choice is deterministic");
}

#[test]
fn invalid_trajectories_are_refused_with_location_and_remedy() {
    let workplace = workplace();
    let first = workplace.read("goat/train.jsonl");
    let mut row: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let name = row["calls"][0]["name"].clone();
    for (change, expected) in [
        ("unknown", "calls[0].name: no API is called \"No Such/Api\""),
        ("arguments", "calls[0].arguments is a string"),
        ("derived", "takes its value from calls[0], the same call"),
    ] {
        let mut bad = row.clone();
        match change {
            "unknown" => bad["calls"][0]["name"] = "No Such/Api".into(),
            "arguments" => bad["calls"][0]["arguments"] = "town".into(),
            _ => {
                let argument = bad["calls"][0]["arguments"].as_object().unwrap();
                let argument = argument.keys().next().unwrap().clone();
                bad["calls"][0]["derived"] = json!({ argument: {"call": 0, "path": "x"} });
            }
        }
        workplace.write("goat/train.jsonl", format!("{bad}\n"));
        let answer = workplace.run(["train", "global.toml"]);
        assert_eq!(answer.status, Some(3), "{change}: {}", answer.stderr);
        assert!(
            answer.stderr.contains(expected),
            "{change}: {}",
            answer.stderr
        );
        assert!(
            answer.stderr.contains("train.jsonl:1: "),
            "{change}: {}",
            answer.stderr
        );
        assert!(!workplace.path("run-global/checkpoint-000002").exists());
    }
    row["calls"][0]["name"] = name;
    workplace.write("goat/train.jsonl", format!("{row}\n"));
    workplace.write(
        "lost.toml",
        config("global", "").replace("documents = \"goat/documents.jsonl\"\n", ""),
    );
    let answer = workplace.run(["train", "lost.toml"]);
    assert_eq!(answer.status, Some(2), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("goat.documents"),
        "{}",
        answer.stderr
    );
}

#[test]
fn an_openapi_specification_is_imported_as_documents() {
    let workplace = Workplace::new();
    let parameter = r#"{"name": "city", "in": "query", "required": true,
        "schema": {"type": "string"}, "description": "Name of the city."}"#;
    let operation = format!(
        r#"{{"summary": "Weather of a city", "parameters": [{parameter}],
            "responses": {{"200": {{"description": "Degrees and sky."}}}}}}"#
    );
    workplace.write(
        "weather.json",
        format!(
            r#"{{"openapi": "3.0.0", "info": {{"title": "Sky", "version": "1"}},
                "paths": {{"/weather": {{"get": {operation}}}}}}}"#
        ),
    );
    let import = "data import openapi weather.json --output documents.jsonl";
    workplace.run(import.split(' ')).success();
    let documents = parse_lines(&workplace.read("documents.jsonl"));
    assert_eq!(documents.len(), 1);
    assert_eq!(documents[0]["api_name"], "GET /weather");
    assert_eq!(documents[0]["required_parameters"][0]["name"], "city");
}

/// Writes a config whose model and retriever do not exist, so that only errors before loading them
/// can occur.
fn write_config_of_missing_models(workplace: &Workplace) {
    let missing = config("global", "")
        .replace(
            &fixture("tiny_chat_model").display().to_string(),
            "no_such_model",
        )
        .replace(
            &model("all-minilm-l6-v2").display().to_string(),
            "no_such_retriever",
        );
    workplace.write("unopened.toml", missing);
}

#[test]
fn impossible_gold_calls_are_refused_by_file_line_and_id() {
    let workplace = workplace();
    write_config_of_missing_models(&workplace);
    let rows = parse_lines(&workplace.read("goat/train.jsonl"));
    let derived = |row: &&Value| row["calls"][1]["derived"].is_object();
    let row = rows.iter().find(derived).unwrap();
    let id = row["id"].as_str().unwrap();
    let changed = |pointer: &str, value: Value| {
        let mut row = row.clone();
        *row.pointer_mut(pointer).unwrap() = value;
        row
    };
    let origins = row["calls"][1]["derived"].as_object().unwrap();
    let path = format!("/calls/1/derived/{}/path", origins.keys().next().unwrap());
    let mut argument = row.clone();
    argument["calls"][0]["arguments"]["harbour_moon"] = 1.into();
    for (bad, expected) in [
        (
            changed("/calls/0/name", "No Such/Api".into()),
            "calls[0].name: no API is called",
        ),
        (
            changed(&path, "no.such".into()),
            "has nothing at \"no.such\"",
        ),
        (argument, "calls[0].arguments.harbour_moon: "),
    ] {
        workplace.write("rows.jsonl", format!("{row}\n\n{bad}\n"));
        let location = format!("rows.jsonl:3: {id}: ");
        let eval = "eval unopened.toml --suite goat --checkpoint base --data rows.jsonl";
        let pairs = "data pairs rows.jsonl --documents goat/documents.jsonl";
        for verb in [eval, pairs] {
            let refused = workplace.run(verb.split(' '));
            assert_eq!(refused.status, Some(3), "{verb}: {}", refused.stderr);
            for part in [location.as_str(), expected] {
                assert!(refused.stderr.contains(part), "{verb}: {}", refused.stderr);
            }
        }
    }
}

#[test]
fn a_duplicate_trajectory_is_refused_in_evaluations() {
    let workplace = workplace();
    write_config_of_missing_models(&workplace);
    let rows = workplace.read("goat/dev.jsonl");
    workplace.write("twice.jsonl", rows.repeat(2));
    let eval = "eval unopened.toml --suite goat --checkpoint base --data twice.jsonl";
    let refused = workplace.run(eval.split(' '));
    assert_eq!(refused.status, Some(3), "{}", refused.stderr);
    for part in ["twice.jsonl:5: duplicate id ", "twice.jsonl:1; give"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
}

#[test]
fn an_executor_that_lacks_an_api_is_refused_before_the_retriever_is_loaded() {
    let workplace = workplace();
    write_config_of_missing_models(&workplace);
    let foreign = r#"{"tool_name": "Harbour", "api_name": "Tides"}"#;
    let documents = workplace.read("goat/documents.jsonl");
    workplace.write("goat/documents.jsonl", format!("{documents}{foreign}\n"));
    let eval = "eval unopened.toml --suite goat --checkpoint base";
    let refused = workplace.run(eval.split(' '));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let expected = "no executor handles \"Harbour/Tides\"";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
}

#[test]
fn constrained_agents_call_only_retrieved_apis() {
    let workplace = workplace();
    let eval = "eval global.toml --suite goat --checkpoint base --set eval.max_new_tokens=400";
    for (constrained, folder) in [("false", "free"), ("true", "held")] {
        let set = format!("eval.constrained={constrained}");
        let arguments = eval.split(' ').chain(["--set", &set, "--output", folder]);
        workplace.run(arguments).success();
    }
    let outcomes =
        |folder: &str| parse_lines(&workplace.read(&format!("{folder}/predictions.jsonl")));
    // Without a constraint, a random model writes no plan.
    for row in outcomes("free") {
        assert!(row["outcome"].get("plan").is_none(), "{row}");
    }
    for row in outcomes("held") {
        let outcome = &row["outcome"];
        let retrieved = &outcome["retrievals"][0]["documents"];
        let plan = outcome["plan"].as_array().unwrap();
        assert!(!plan.is_empty(), "{row}");
        for (name, call) in plan.iter().zip(outcome["calls"].as_array().unwrap()) {
            assert!(
                retrieved.as_array().unwrap().contains(name),
                "{name} of {retrieved}"
            );
            assert_eq!(&call["name"], name, "the call of the plan");
        }
    }
}

/// Writes a specification with one operation, and a trajectory that calls it as both splits.
fn write_port(workplace: &Workplace, berths: &Value) {
    std::fs::create_dir(workplace.path("goat")).unwrap();
    let parameter = json!({"name": "port", "in": "query", "required": true,
        "schema": {"type": "string"}, "description": "Name of the port."});
    let operation = json!({"summary": "Berths of a port.", "parameters": [parameter],
        "responses": {"200": {"description": "The berths."}}});
    let specification = json!({"openapi": "3.0.0", "info": {"title": "Port", "version": "1"},
        "paths": {"/berths": {"get": operation}}});
    workplace.write("port.json", specification.to_string());
    let import = "data import openapi port.json --output goat/documents.jsonl";
    workplace.run(import.split(' ')).success();
    let call = json!({"sub_query": "List the berths.", "name": "GET /berths",
        "arguments": {"port": "Emden"}, "output": berths});
    let row = json!({"id": "a", "query": "Which berth of Emden comes first?", "calls": [call],
        "response": "Berth 7.", "facts": ["7"]});
    for split in ["train", "dev"] {
        workplace.write(&format!("goat/{split}.jsonl"), format!("{row}\n"));
    }
    let canned = json!({"api": "GET /berths", "response": berths});
    workplace.write("goat/canned.jsonl", format!("{canned}\n"));
}

#[test]
fn agents_see_the_shortened_outputs_that_they_were_trained_on() {
    let workplace = Workplace::new();
    let berths = json!({"berths": [{"id": 7, "free": true}, {"id": 8, "free": false},
        {"id": 9, "free": true}]});
    write_port(&workplace, &berths);
    let table = "truncate = { max_items = 1, jmespath = \"berths[].{id: id}\" }\n\
                 [goat.executor]\nkind = \"canned\"\nresponses = \"goat/canned.jsonl\"";
    workplace.write("short.toml", config("react", table));
    let result = |prompt: &str| {
        let mut lines = prompt.lines();
        let line = lines.find(|line| line.starts_with("Result 1: "));
        line.unwrap_or_else(|| panic!("no result in {prompt}"))
            .to_string()
    };

    let output = workplace.run(["inspect", "short.toml", "--format", "json", "-n", "2"]);
    let texts = parse_lines(&output.success()).into_iter().map(|row| {
        let tokens = row["tokens"].as_array().unwrap().clone();
        let texts = tokens.iter().map(|token| token["text"].as_str().unwrap());
        texts.collect::<String>()
    });
    let mut with_result = texts.filter(|text| text.contains("Result 1: "));
    let trained = result(&with_result.next().unwrap());
    assert_eq!(
        trained,
        "Result 1: [{\"id\": 7}, {\"_meta\": \"showing 1 of 3 items. Use offset/limit to \
         paginate.\"}]"
    );

    let call = json!({"name": "GET /berths", "arguments": {"port": "Emden"}});
    let step = format!("Thought: List the berths.\nAction: {call}");
    let server = TestServer::start(move |request, _| {
        chat(if request.body.contains("Result 1: ") {
            "Finish: Berth 7."
        } else {
            &step
        })
    });
    let eval = format!(
        "eval short.toml --suite goat --checkpoint base --endpoint {}/v1 \
         --endpoint-model scripted --output out",
        server.url()
    );
    workplace.run(eval.split(' ')).success();
    let received = server.received();
    let body: Value = serde_json::from_str(&received.last().unwrap().body).unwrap();
    let prompt = body["messages"][0]["content"].as_str().unwrap();
    assert_eq!(result(prompt), trained);
    // The saved outcome has the full output.
    let prediction = &parse_lines(&workplace.read("out/predictions.jsonl"))[0];
    assert_eq!(prediction["outcome"]["calls"][0]["output"], berths);
}

/// Config tables of both benchmarks, each with its own executor.
const BENCHMARKS: &str = r#"
[eval.restbench]
data = ["queries.json"]
documents = "own.jsonl"
executor = { kind = "canned", responses = "responses.jsonl" }
[eval.apibank]
data = ["level3.json"]
executor = { kind = "replay", recorded = "recorded.jsonl", set = "lv3" }
"#;

#[test]
fn several_agent_benchmarks_select_a_checkpoint_together() {
    let workplace = suites::workplace();
    suites::write_calls(&workplace);
    suites::write_api_bank(&workplace);
    let response = json!({"api": "GET /weather", "response": {"degrees": -3}});
    workplace.write("responses.jsonl", response.to_string());
    workplace.write("own.jsonl", workplace.read("documents.jsonl"));
    let metric = "restbench.correct_path + apibank.correctness";
    let settings = format!(
        "eval_steps = 12\nmax_samples = 1\nsuites = [\"restbench\", \"apibank\"]\n\
         metric_for_best_model = \"{metric}\"\n{BENCHMARKS}"
    );
    let run = suites::training_config("run").replace("eval_strategy = \"no\"\n", &settings);
    let run = run.replace("eval = [\"queries.json\"]\n", "");
    let limited = "method = \"react\"\nlimits = { max_steps = 2 }";
    workplace.write("run.toml", run.replace("method = \"react\"", limited));
    workplace.run(["train", "run.toml"]).success();

    let evaluated = parse_lines(&workplace.read("run/metrics.jsonl"));
    let values = |name: &str| -> Vec<f64> {
        let name = format!("eval/{name}");
        let values = evaluated.iter().filter_map(|line| line[&name].as_f64());
        values.collect()
    };
    let (paths, calls) = (
        values("restbench.correct_path"),
        values("apibank.correctness"),
    );
    assert_eq!(
        (paths.len(), calls.len()),
        (2, 2),
        "one evaluation before and one after training"
    );
    // A model that is trained on a single call repeats it, so the path and one of two calls are
    // correct.
    assert_eq!((paths[1], calls[1]), (1.0, 0.5));
    let best_sum = f64::max(paths[0] + calls[0], paths[1] + calls[1]);
    let best: Value = serde_json::from_str(&workplace.read("run/BEST")).unwrap();
    assert_eq!(best["metric"], metric);
    assert_eq!(best["value"], best_sum);

    let saved_prediction = |suite: &str| {
        let file = format!("run/checkpoint-000012/eval.{suite}.predictions.jsonl");
        parse_lines(&workplace.read(&file))[0].clone()
    };
    assert_eq!(
        saved_prediction("restbench")["gold"],
        json!(["GET /weather"])
    );
    let gold = &saved_prediction("apibank")["gold"];
    assert_eq!(gold["response"], "It is -3.");
    assert_eq!(gold["calls"][0]["arguments"], json!({"city": "Oslo"}));
    // Evaluations from the command line also use these tables.
    let eval = "eval run --suite restbench --output again";
    workplace.run(eval.split(' ')).success();
    assert_eq!(
        workplace.read("again/predictions.jsonl"),
        workplace.read("run/checkpoint-000012/eval.restbench.predictions.jsonl")
    );

    for (set, expected) in [
        (
            "eval.restbench.data=[]",
            "`eval.restbench.data` is an empty list",
        ),
        (
            "eval.apibank.executor={ kind = \"canned\" }",
            "eval.apibank.executor.responses",
        ),
        (
            "eval.apibank.executor.recorded=nowhere",
            "eval.apibank.executor.recorded",
        ),
        (
            "data.format=slot",
            "the suite restbench uses the prompts of [goat]",
        ),
    ] {
        let other = "train.output_dir=other";
        let answer = workplace.run(["train", "run.toml", "--set", other, "--set", set]);
        assert_eq!(answer.status, Some(2), "{set}");
        assert!(answer.stderr.contains(expected), "{set}: {}", answer.stderr);
    }
}
