//! Generation: single or batched, greedy or sampled, truncated, constrained to a schema, and on a
//! server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jsonschema::Validator;
use serde_json::{Value, json};
use tooltune::base_model::BaseModel;
use tooltune::eval::generate::{
    FinishReason, Generation, GenerationOptions, Jobs, Sampling, StopStrings, complete, generate,
};
use tooltune::models::Decoder;
use tooltune_grammar::{Constraint, Grammar, GrammarOptions, Vocabulary};
use tooltune_kernels::ComputeDtype;
use tooltune_rows::text::Specials;

use crate::support::server::{Response, TestServer, chat};
use crate::support::{fixture, load_base, model, test_device};
use crate::workplace::Workplace;

/// Prompts of 1 to 40 tokens.
fn prompts(n: u32, vocabulary: u32) -> Vec<Vec<u32>> {
    let len = |i: u32| 1 + (i * 17) % 40;
    (0..n)
        .map(|i| {
            (0..len(i))
                .map(|j| (i * 101 + j * 37 + 5) % vocabulary)
                .collect()
        })
        .collect()
}

fn generate_all(
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    options: &GenerationOptions,
) -> Vec<Generation> {
    let generations = generate(decoder, prompts, options, &mut |_| true).unwrap();
    generations.expect("generation was not stopped")
}

#[test]
fn a_completion_does_not_depend_on_its_batch() {
    let decoder = load_base(&fixture("models/llama31"));
    let prompts = prompts(23, 256);
    // A quarter of all tokens are stop tokens, so rows leave and join the batch continually.
    let stop_ids: Vec<u32> = (0..256).step_by(4).collect();
    // Sampled, because a random model's greedy tokens soon repeat.
    let options = |batch_size| GenerationOptions {
        sampling: Sampling {
            temperature: 2.0,
            top_k: None,
            top_p: 1.0,
        },
        ..GenerationOptions::greedy(19, batch_size, stop_ids.clone())
    };
    let alone = generate_all(&decoder, &prompts, &options(1));
    let lens: std::collections::BTreeSet<usize> = alone.iter().map(|g| g.ids.len()).collect();
    assert!(lens.len() > 4, "{lens:?}");
    for batch_size in [2, 5, 23, 64] {
        assert_eq!(
            generate_all(&decoder, &prompts, &options(batch_size)),
            alone
        );
    }
    for tokens in [1, 70, 200, 400] {
        let mut options = options(8);
        options.kv_cache_tokens = Some(tokens);
        assert_eq!(
            generate_all(&decoder, &prompts, &options),
            alone,
            "{tokens}"
        );
    }
}

#[test]
fn no_completion_exceeds_the_context() {
    let mut decoder = load_base(&fixture("models/llama31"));
    let free = {
        let prompts = prompts(6, 256);
        generate_all(
            &decoder,
            &prompts,
            &GenerationOptions::greedy(8, 3, Vec::new()),
        )
    };
    decoder.config.max_position_embeddings = 36;
    let prompts = prompts(6, 256);
    let constrained = generate_all(
        &decoder,
        &prompts,
        &GenerationOptions::greedy(8, 3, Vec::new()),
    );
    let lens: Vec<usize> = prompts.iter().map(Vec::len).collect();
    assert_eq!(lens, [1, 18, 35, 12, 29, 6]);
    for ((constrained, free), len) in constrained.iter().zip(&free).zip(lens) {
        let room = 8.min(36 - len);
        assert_eq!(
            (constrained.finish, &constrained.ids[..]),
            (FinishReason::Length, &free.ids[..room])
        );
    }
    decoder.config.max_position_embeddings = 18;
    let none = generate_all(
        &decoder,
        &prompts,
        &GenerationOptions::greedy(8, 3, Vec::new()),
    );
    let finished: Vec<FinishReason> = none.iter().map(|generation| generation.finish).collect();
    use FinishReason::{Context, Length};
    assert_eq!(
        finished,
        [Length, Context, Context, Length, Context, Length]
    );
    assert!(none[1].ids.is_empty());
}

#[test]
fn a_real_model_completes_the_same_alone_and_in_a_batch() {
    let decoder = load_base(&model("smollm2-135m-instruct.gguf"));
    let prompts = prompts(6, 20_000);
    // The most frequent tokens are punctuation and line breaks.
    let options = |n| GenerationOptions::greedy(12, n, vec![28, 30, 198]);
    let alone = generate_all(&decoder, &prompts, &options(1));
    assert_eq!(generate_all(&decoder, &prompts, &options(3)), alone);
}

#[test]
fn sampling_depends_only_on_the_seed_and_the_row() {
    let decoder = load_base(&fixture("models/llama31"));
    let prompts = prompts(9, 256);
    let drawn = |batch_size, seed, temperature| {
        let options = GenerationOptions {
            sampling: Sampling {
                temperature,
                top_k: Some(50),
                top_p: 0.9,
            },
            seed,
            ..GenerationOptions::greedy(8, batch_size, vec![3])
        };
        generate_all(&decoder, &prompts, &options)
    };
    let first = drawn(1, 7, 1.0);
    assert_eq!(drawn(4, 7, 1.0), first);
    assert_ne!(drawn(4, 8, 1.0), first);
    // A temperature near zero selects the most likely token.
    let greedy = generate_all(
        &decoder,
        &prompts,
        &GenerationOptions::greedy(8, 4, vec![3]),
    );
    assert_eq!(drawn(4, 7, 1e-6), greedy);
}

fn tiny_chat_model() -> (BaseModel, Decoder) {
    let base = BaseModel::open(&fixture("tiny_chat_model"), None).unwrap();
    let decoder = base.decoder(ComputeDtype::F32, &test_device()).unwrap();
    (base, decoder)
}

fn complete_all(
    (base, decoder): &(BaseModel, Decoder),
    constraints: &[Option<Constraint>],
    prompts: &[Vec<u32>],
    options: &GenerationOptions,
) -> Vec<Generation> {
    let jobs = Jobs {
        prompts,
        constraints,
        streams: &[],
        stop: Some(StopStrings {
            tokenizer: &base.tokenizer,
            strings: &options.stop_strings,
        }),
    };
    let generations = complete(decoder, jobs, options, &mut &mut |_| true).unwrap();
    generations.expect("generation was not stopped")
}

#[test]
fn stop_strings_and_max_time_end_a_completion() {
    let model = tiny_chat_model();
    let prompts = prompts(3, 200);
    let options = GenerationOptions::greedy(16, 2, model.0.stop_ids.clone());
    let free = complete_all(&model, &[], &prompts, &options);
    let text = |generation: &Generation| {
        let tokenizer = &model.0.tokenizer;
        tokenizer.decode(&generation.ids, Specials::Skip).unwrap()
    };
    let full_text = text(&free[0]);
    let (middle, stop) = full_text
        .char_indices()
        .map(|(at, letter)| (at, letter.to_string()))
        .find(|(at, _)| *at >= full_text.len() / 2)
        .unwrap();
    let first = full_text.find(&stop).unwrap();
    let options_with = GenerationOptions {
        stop_strings: vec![stop],
        ..options.clone()
    };
    let cut = &complete_all(&model, &[], &prompts, &options_with)[0];
    assert_eq!(cut.finish, FinishReason::Stop);
    assert!(text(cut).len() <= full_text.len() && first <= middle);
    let stops = StopStrings {
        tokenizer: &model.0.tokenizer,
        strings: &options_with.stop_strings,
    };
    assert_eq!(stops.text(cut, Specials::Skip).unwrap(), full_text[..first]);

    let late = GenerationOptions {
        max_time: Some(Duration::ZERO),
        ..options
    };
    for generation in complete_all(&model, &[], &prompts, &late) {
        assert_eq!(generation.ids.len(), 1);
        assert_eq!(generation.finish, FinishReason::Time);
    }
}

#[test]
fn random_weights_write_valid_json_under_a_schema() {
    let model = tiny_chat_model();
    let base = &model.0;
    let vocabulary =
        Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids).unwrap();
    // Every part of the schema is bounded, so that even random weights finish.
    let schema = json!({
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "kind": {"enum": ["a", "bc", null]},
            "n": {"type": "integer", "minimum": -3, "maximum": 12},
            "rest": {"type": "array", "items": {"const": "x"}, "maxItems": 2},
        },
        "required": ["ok", "kind", "n"],
        "additionalProperties": false,
    });
    let grammar = Grammar::json_schema(&vocabulary, &schema, &GrammarOptions::default()).unwrap();
    let validator: Validator = jsonschema::validator_for(&schema).unwrap();
    let prompts = prompts(10, 200);
    // Every third row is unconstrained.
    let constraints: Vec<Option<Constraint>> = (0..10)
        .map(|i| (i % 3 != 0).then(|| grammar.constraint()))
        .collect();
    let options_at = |temperature, batch_size| GenerationOptions {
        sampling: Sampling {
            temperature,
            top_k: None,
            top_p: 1.0,
        },
        ..GenerationOptions::greedy(120, batch_size, base.stop_ids.clone())
    };
    let mut texts = std::collections::BTreeSet::new();
    for temperature in [0.0, 1.0, 3.0] {
        let generations = complete_all(&model, &constraints, &prompts, &options_at(temperature, 4));
        for (generation, _) in generations
            .iter()
            .zip(&constraints)
            .filter(|(_, c)| c.is_some())
        {
            let text = base
                .tokenizer
                .decode(&generation.ids, Specials::Skip)
                .unwrap();
            assert_eq!(generation.finish, FinishReason::Stop, "{text}");
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert!(validator.is_valid(&value), "{text}");
            texts.insert(text);
        }
        let alone = complete_all(&model, &constraints, &prompts, &options_at(temperature, 1));
        assert_eq!(generations, alone);
    }
    assert!(texts.len() > 5, "{texts:?}");
}

const CONSTRAINED: &str = "eval config.toml --checkpoint base --set eval.constrained=true";

#[test]
fn eval_names_unenforceable_schemas_and_enforces_the_others() {
    let workplace = Workplace::new();
    let mut rows: Vec<Value> = workplace
        .read("dev.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    rows[0]["json_schema"] = json!({"type": "array", "uniqueItems": true, "items": {}});
    rows[0]["gold"] = json!([]);
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    workplace.write("dev.jsonl", lines);
    workplace
        .run(format!("{CONSTRAINED} --output out").split(' '))
        .success();
    let refused = workplace.read("out/unsupported_schemas.jsonl");
    assert_eq!(refused.lines().count(), 1, "{refused}");
    assert!(refused.contains("dev.jsonl:1") && refused.contains("uniqueItems"));
    for line in workplace.read("out/predictions.jsonl").lines().skip(1) {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = line["prediction"].as_str().unwrap();
        assert!(text.starts_with('{'), "{line}");
    }
}

#[test]
fn an_interrupted_server_evaluation_resumes() {
    let workplace = Workplace::new();
    let is_well = Arc::new(AtomicBool::new(false));
    let server = {
        let is_well = is_well.clone();
        TestServer::start(move |_, number| {
            if number == 0 || is_well.load(Ordering::SeqCst) {
                chat("{\"a\": 1}")
            } else {
                Response::json(400, &json!({"error": {"message": "no such model"}}))
            }
        })
    };
    let command = format!(
        "{CONSTRAINED} --endpoint {}/v1 --endpoint-model m --concurrency 1 --output out \
         --extra-body {{\"repeat_penalty\":1.0}}",
        server.url()
    );
    let answer = workplace.run(command.split(' '));
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    assert!(answer.stderr.contains("no such model"), "{}", answer.stderr);
    assert_eq!(workplace.read("out/texts.partial.jsonl").lines().count(), 2);
    let n_before = server.received().len();
    is_well.store(true, Ordering::SeqCst);
    workplace.run(command.split(' ')).success();
    // Of three rows, one was answered before the failure and two after it.
    let requests = server.received();
    assert_eq!(requests.len() - n_before, 2);
    assert!(!workplace.path("out/texts.partial.jsonl").exists());
    assert_eq!(workplace.read("out/predictions.jsonl").lines().count(), 3);
    for request in requests {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body["response_format"]["type"], "json_schema");
        assert!(body["response_format"]["json_schema"]["schema"].is_object());
        assert_eq!(body["repeat_penalty"], 1.0);
        assert_eq!(
            (&body["max_tokens"], &body["temperature"]),
            (&json!(12), &json!(0.0))
        );
        let messages = body["messages"].as_array().unwrap();
        assert_eq!(
            messages.last().unwrap()["role"],
            "user",
            "the expected answer must not be sent"
        );
    }
}

#[test]
fn a_server_reply_without_text_counts_as_empty_also_after_a_resume() {
    let workplace = Workplace::new();
    let is_well = Arc::new(AtomicBool::new(false));
    let answer = |content: Value, finish_reason: &str, n_tokens: usize| {
        let reasoning = content.is_null().then_some("Let me count them");
        let message =
            json!({"role": "assistant", "content": content, "reasoning_content": reasoning});
        let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason});
        Response::json(
            200,
            &json!({"choices": [choice], "usage": {"completion_tokens": n_tokens}}),
        )
    };
    let server = {
        let is_well = is_well.clone();
        TestServer::start(move |_, number| match number {
            0 => answer(Value::Null, "length", 12),
            _ if is_well.load(Ordering::SeqCst) => answer(json!("{\"a\": 1}"), "stop", 6),
            _ => Response::json(400, &json!({"error": {"message": "no such model"}})),
        })
    };
    let command = format!(
        "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --concurrency 1 \
         --max-samples 3 --output out",
        server.url()
    );
    let failed = workplace.run(command.split(' '));
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    is_well.store(true, Ordering::SeqCst);
    let done = workplace.run(command.split(' '));
    assert!(
        done.stderr
            .contains("1 of 3 replies were cut off at the token limit"),
        "{}",
        done.stderr
    );
    let expected = "1 of 3 server answers have no text and are scored as empty; by finish_reason \
                   and content: 1 length, reasoning";
    assert!(done.stderr.contains(expected), "{}", done.stderr);
    done.success();
    let predictions: Vec<Value> = workplace
        .read("out/predictions.jsonl")
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| line.get(name).cloned().unwrap_or_default();
            let names = ["prediction", "finish_reason", "n_tokens", "without_text"];
            Value::from(names.map(field).to_vec())
        })
        .collect();
    assert_eq!(
        predictions,
        [
            json!(["", "length", 12, "reasoning"]),
            json!(["{\"a\": 1}", "stop", 6, null]),
            json!(["{\"a\": 1}", "stop", 6, null]),
        ]
    );
    // Saved predictions are scored unchanged.
    workplace
        .run([
            "eval",
            "config.toml",
            "--max-samples",
            "3",
            "--predictions",
            "out/predictions.jsonl",
        ])
        .success();
}

#[test]
fn requests_have_the_sampling_settings_of_the_config() {
    let workplace = Workplace::new();
    let server = TestServer::start(|_, _| chat("{}"));
    let greedy = format!(
        "eval config.toml --checkpoint base --endpoint {}/v1 --endpoint-model m --max-samples 1 \
         --set eval.top_k=40",
        server.url()
    );
    let sampled = format!("{greedy} --set eval.temperature=0.7 --set eval.top_p=0.9");
    let news = "eval.top_k = 40 is sent as \"top_k\"";
    for (command, is_sampled) in [(greedy, false), (sampled, true)] {
        let n_before = server.received().len();
        let answer = workplace.run(command.split(' '));
        assert_eq!(
            answer.stderr.contains(news),
            is_sampled,
            "{}",
            answer.stderr
        );
        answer.success();
        let requests = server.received();
        assert_eq!(requests.len() - n_before, 1);
        let body: Value = serde_json::from_str(&requests[n_before].body).unwrap();
        let sent = |field: &str| body.get(field).and_then(Value::as_f64);
        let expected = if is_sampled {
            [Some(0.7), Some(0.9), Some(40.0)]
        } else {
            [Some(0.0), None, None]
        };
        let fields = ["temperature", "top_p", "top_k"];
        assert_eq!(fields.map(sent), expected, "{body}");
    }
}

#[test]
fn completions_of_an_evaluation_with_other_settings_are_not_reused() {
    let workplace = Workplace::new();
    std::fs::create_dir(workplace.path("out")).unwrap();
    workplace.write("out/texts.partial.jsonl", "{\"evaluation\": \"other\"}\n");
    let command = "eval config.toml --checkpoint base --output out";
    let answer = workplace.run(command.split(' '));
    assert_eq!(answer.status, Some(2));
    assert!(
        answer.stderr.contains("a different evaluation"),
        "{}",
        answer.stderr
    );
}
