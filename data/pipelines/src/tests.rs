//! The ground under every pipeline, with a generator that answers by rule and a real server.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Map, Value, json};
use tooltune_endpoint::ChatEndpoint;
use tooltune_endpoint::chat_server::{chat_server, completion, environment, last_content, options};
use tooltune_endpoint::http::test_server::{Answer, TestServer};

use super::*;
use crate::files::Staged;

const STAGES: &[Stage] = &[
    Stage {
        name: "double",
        file: "doubled.jsonl",
    },
    Stage {
        name: "sum",
        file: "summed.jsonl",
    },
];

/// Answers `double N` with `{"n": 2N}` and asks nothing twice.
#[derive(Debug, Default)]
struct ByRule {
    asked: RefCell<Vec<String>>,
}

fn by_rule(text: &str) -> String {
    let n: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    match n {
        // One that is never read, and one that is read when it is asked for again.
        7 => "seven".to_owned(),
        9 if !text.contains("could not be used") => "{\"n\": ".to_owned(),
        n => format!("Here: {{\"n\": {}}}", 2 * n),
    }
}

impl ModelInfo for ByRule {
    fn identity(&self) -> Map<String, Value> {
        Map::from_iter([("model".to_owned(), json!("by rule"))])
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }
}

impl Generator for ByRule {
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<Came>) -> bool,
    ) -> Result<(), GeneratorFailure> {
        // The last one is done first.
        for (number, prompt) in prompts.iter().enumerate().rev() {
            self.asked.borrow_mut().push(prompt.text.clone());
            let text = by_rule(&prompt.text);
            let reply = Reply {
                n_prompt_tokens: prompt.text.len(),
                n_tokens: text.len(),
                text,
                ..Reply::default()
            };
            if !take(Some(Came {
                number,
                result: Ok(reply),
            })) {
                break;
            }
        }
        Ok(())
    }
}

fn prompt(text: String) -> Prompt {
    Prompt {
        text,
        schema: None,
        max_tokens: 20,
        temperature: 0.0,
        seed: 0,
    }
}

fn read_n(text: &str) -> Result<u64, String> {
    let value = reply::json_value(text)?;
    value["n"]
        .as_u64()
        .ok_or_else(|| "\"n\" is no number".to_owned())
}

struct Given<'a> {
    n_items: u64,
    limits: Limits,
    only: Option<&'a str>,
    prompts: Option<&'a Path>,
    /// Looks at the progress before the work is ended.
    n_looks: usize,
}

impl Default for Given<'_> {
    fn default() -> Self {
        Self {
            n_items: 12,
            limits: Limits::default(),
            only: None,
            prompts: None,
            n_looks: usize::MAX,
        }
    }
}

/// Doubles each number, then doubles the numbers again in one sum.
fn run(dir: &Path, generator: &dyn Generator, given: &Given<'_>) -> Result<Report, PipelineError> {
    let left = Cell::new(given.n_looks);
    let mut watch = |_: &Progress| {
        left.set(left.get().saturating_sub(1));
        left.get() > 0
    };
    let mut run = Run::open(Opening {
        place: Place {
            dir,
            generator,
            files: &Staged,
            limits: given.limits,
            only: given.only,
            watch: &mut watch,
        },
        stages: STAGES,
        settings: Map::from_iter([("items".to_owned(), json!(given.n_items))]),
        prompts: Prompts::open(&[AGAIN_PROMPT], given.prompts)?,
    })?;
    let doubled = run.stage("double", |run| {
        let asked: Vec<Asked> = (0..given.n_items)
            .map(|n| Asked {
                id: n.to_string(),
                prompt: prompt(format!("double {n}")),
            })
            .collect();
        Ok(Made::of(
            run.ask("double", &asked, &|_, text| read_n(text))?,
        ))
    })?;
    let Some(doubled) = doubled else {
        return Ok(run.report().clone());
    };
    run.stage("sum", |run| {
        let asked: Vec<Asked> = doubled
            .iter()
            .map(|n| Asked {
                id: format!("of {n}"),
                prompt: prompt(format!("double {n} now")),
            })
            .collect();
        Ok(Made::of(run.ask("sum", &asked, &|_, text| read_n(text))?))
    })?;
    Ok(run.report().clone())
}

fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with(JOURNAL_FILE))
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

#[test]
fn a_run_keeps_drops_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let generator = ByRule::default();
    let report = run(dir.path(), &generator, &Given::default()).unwrap();
    let double = report.of("double").unwrap();
    assert_eq!((double.n_in, double.n_kept), (12, 11));
    assert_eq!(double.dropped, BTreeMap::from([(UNREADABLE.to_owned(), 1)]));
    assert_eq!(
        (double.requests.n_replies, double.requests.n_asked_again),
        (14, 2)
    );
    let files = files(dir.path());
    let expected: String = (0..12)
        .filter(|n| *n != 7)
        .map(|n| format!("{}\n", 2 * n))
        .collect();
    assert_eq!(files["doubled.jsonl"], expected);
    assert!(files["doubled.dropped.jsonl"].contains("the reply holds no JSON: seven"));
    let asked = generator.asked.borrow().clone();
    assert!(
        asked
            .iter()
            .any(|text| text.contains("double 7") && text.contains("the reply holds no JSON"))
    );
    // A run that is done asks nothing.
    run(dir.path(), &generator, &Given::default()).unwrap();
    assert_eq!(*generator.asked.borrow(), asked);
}

#[test]
fn a_run_that_is_ended_at_any_moment_ends_as_one_that_was_not_and_asks_nothing_twice() {
    let whole = tempfile::tempdir().unwrap();
    let once = ByRule::default();
    run(whole.path(), &once, &Given::default()).unwrap();
    let mut asked_once = once.asked.borrow().clone();
    asked_once.sort();
    // The first look comes before the first request, the second after its reply.
    for n_looks in 2..32 {
        let dir = tempfile::tempdir().unwrap();
        let generator = ByRule::default();
        let given = Given {
            n_looks,
            ..Given::default()
        };
        while let Err(error) = run(dir.path(), &generator, &given) {
            assert!(matches!(error, PipelineError::Stopped { .. }), "{error}");
        }
        let mut asked = generator.asked.borrow().clone();
        asked.sort();
        assert_eq!(asked, asked_once, "{n_looks}");
        assert_eq!(files(dir.path()), files(whole.path()), "{n_looks}");
    }
}

#[test]
fn whatever_of_its_files_a_kill_has_left_the_next_run_ends_the_same() {
    let whole = tempfile::tempdir().unwrap();
    run(whole.path(), &ByRule::default(), &Given::default()).unwrap();
    let journal = std::fs::read(whole.path().join(JOURNAL_FILE)).unwrap();
    let head = journal.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in (head..=journal.len()).step_by(97) {
        for left in [
            &[][..],
            &["doubled.jsonl"],
            &["doubled.jsonl", "report.json"],
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(JOURNAL_FILE), &journal[..length]).unwrap();
            if length == journal.len() {
                for name in left {
                    std::fs::copy(whole.path().join(name), dir.path().join(name)).unwrap();
                }
            }
            run(dir.path(), &ByRule::default(), &Given::default()).unwrap();
            assert_eq!(files(dir.path()), files(whole.path()), "{length}");
        }
    }
}

#[test]
fn one_stage_is_made_alone_and_a_file_that_was_edited_is_taken_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let only = |only| Given {
        only: Some(only),
        ..Given::default()
    };
    let generator = ByRule::default();
    let error = run(dir.path(), &generator, &only("sum"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("the stage double comes first"), "{error}");
    let error = run(dir.path(), &generator, &only("some"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("the stages are double, sum"), "{error}");
    let report = run(dir.path(), &generator, &only("double")).unwrap();
    assert_eq!(report.stages.len(), 1);
    assert!(!dir.path().join("summed.jsonl").exists());
    run(dir.path(), &generator, &Given::default()).unwrap();
    let n_asked = generator.asked.borrow().len();
    std::fs::write(dir.path().join("doubled.jsonl"), "2\n4\n100\n").unwrap();
    let report = run(dir.path(), &generator, &Given::default()).unwrap();
    assert_eq!(report.of("sum").unwrap().n_in, 3);
    assert_eq!(files(dir.path())["summed.jsonl"], "4\n8\n200\n");
    assert_eq!(
        generator.asked.borrow().len(),
        n_asked + 1,
        "only what is new is asked"
    );
}

#[test]
fn a_budget_is_never_passed_and_a_larger_one_continues() {
    let whole = tempfile::tempdir().unwrap();
    run(whole.path(), &ByRule::default(), &Given::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let generator = ByRule::default();
    for most in [1, 5, 5, 13, 20] {
        let limits = Limits {
            max_requests: Some(most),
            max_tokens: None,
            max_api_calls: None,
        };
        let error = run(
            dir.path(),
            &generator,
            &Given {
                limits,
                ..Given::default()
            },
        )
        .unwrap_err();
        assert!(error.to_string().contains("--max-requests"), "{error}");
        assert_eq!(generator.asked.borrow().len(), most);
    }
    let dir = tempfile::tempdir().unwrap();
    for most in [10, 100, 600, 900] {
        let limits = Limits {
            max_requests: None,
            max_tokens: Some(most),
            max_api_calls: None,
        };
        let given = Given {
            limits,
            ..Given::default()
        };
        if let Err(error) = run(dir.path(), &generator, &given) {
            assert!(error.to_string().contains("--max-tokens"), "{error}");
        }
        let journal = Journal::look(dir.path(), &journal_settings(dir.path())).unwrap();
        let used: usize = journal
            .entries()
            .map(|(_, entry)| match entry {
                Entry::Reply(reply) => reply.n_prompt_tokens + reply.n_tokens,
                Entry::Unanswered(_) | Entry::Output(_) => 0,
            })
            .sum();
        assert!(used <= most, "{used}");
    }
    run(dir.path(), &generator, &Given::default()).unwrap();
    assert_eq!(files(dir.path()), files(whole.path()));
}

fn journal_settings(dir: &Path) -> Map<String, Value> {
    let text = std::fs::read_to_string(dir.join(JOURNAL_FILE)).unwrap();
    let head: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    head["settings"].as_object().unwrap().clone()
}

#[test]
fn other_prompts_and_settings_are_named_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &ByRule::default(), &Given::default()).unwrap();
    let own = tempfile::tempdir().unwrap();
    let given = |prompts| Given {
        prompts: Some(prompts),
        n_items: 13,
        ..Given::default()
    };
    std::fs::write(own.path().join("again.jinja"), "{{ prompt }} {{ reason }}").unwrap();
    let error = run(dir.path(), &ByRule::default(), &given(own.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("items was 12 and is 13; prompts/again.jinja was"),
        "{error}"
    );
    std::fs::write(own.path().join("agian.jinja"), "x").unwrap();
    let error = run(dir.path(), &ByRule::default(), &given(own.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("agian.jinja is no prompt of this pipeline, which has again.jinja"),
        "{error}"
    );
    std::fs::remove_file(own.path().join("agian.jinja")).unwrap();
    std::fs::write(own.path().join("again.jinja"), "{{ prompt }}").unwrap();
    let error = run(dir.path(), &ByRule::default(), &given(own.path()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("never prints reason"), "{error}");
    std::fs::remove_file(own.path().join("again.jinja")).unwrap();
    let error = run(dir.path(), &ByRule::default(), &given(own.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("there is no prompt; the pipeline has again.jinja"),
        "{error}"
    );
}

fn endpoint(server: &TestServer, concurrency: usize) -> EndpointGenerator {
    let options = tooltune_endpoint::EndpointOptions {
        timeout_secs: 5.0,
        ..options(&server.url())
    };
    let endpoint = ChatEndpoint::with_environment(&options, &environment).unwrap();
    EndpointGenerator::of(
        endpoint,
        Asking {
            concurrency,
            extra_body: Map::new(),
            is_constrained: true,
        },
    )
}

#[test]
fn a_thousand_requests_at_once_to_a_server_with_every_fault_lose_nothing() {
    let whole = tempfile::tempdir().unwrap();
    let given = Given {
        n_items: 1_000,
        ..Given::default()
    };
    run(whole.path(), &ByRule::default(), &given).unwrap();
    // Of each prompt the first request meets a fault that its number chooses, the second an answer.
    let seen: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let server = chat_server(move |request, _| {
        let text = last_content(request).to_owned();
        let n_before = {
            let mut seen = seen.lock().unwrap();
            let n = seen.entry(text.clone()).or_default();
            *n += 1;
            *n - 1
        };
        let n: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
        match (n_before, n % 11) {
            (0, 1) => Answer::json(429, &json!({"error": "slow down"})),
            (0, 2) => Answer::json(500, &json!({"error": "oops"})),
            (0, 3) => Answer::html(503, "<html>busy</html>"),
            (0, 4) => {
                Answer::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"choices".to_vec())
            }
            (0, 5) => Answer::Raw(Vec::new()),
            // Not repeated by the client, but by the stage.
            (0, 6) if n < 20 => Answer::html(200, "<html>a page</html>"),
            (0, 7) if n < 20 => Answer::json(200, &json!({"choices": [{}]})),
            _ => completion(&by_rule(&text)),
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &endpoint(&server, 1_000), &given).unwrap();
    assert_eq!(report.of("double").unwrap().n_kept, 999);
    assert_eq!(
        report.of("double").unwrap().requests.unanswered,
        BTreeMap::new()
    );
    for name in ["doubled.jsonl", "summed.jsonl", "doubled.dropped.jsonl"] {
        assert_eq!(files(dir.path())[name], files(whole.path())[name], "{name}");
    }
}

#[test]
fn a_request_that_never_has_a_reply_costs_itself_alone_and_is_counted() {
    let server = chat_server(|request, _| match last_content(request) {
        "double 3" => Answer::html(200, "<html>a page</html>"),
        "double 4" => Answer::json(
            400,
            &json!({"error": {"message": "maximum context length"}}),
        ),
        text => completion(&by_rule(text)),
    });
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &endpoint(&server, 4), &Given::default()).unwrap();
    let double = report.of("double").unwrap();
    assert_eq!((double.n_in, double.n_kept), (12, 9));
    let expected = [
        ("no reply: context", 1),
        ("no reply: no chat completion", 1),
        (UNREADABLE, 1),
    ];
    let expected = expected.map(|(reason, n)| (reason.to_owned(), n));
    assert_eq!(double.dropped, BTreeMap::from(expected));
    let n_of = |text: &str| {
        let received = server.received();
        let is_it = |body: &&str| last_content(&serde_json::from_str(body).unwrap()) == text;
        received
            .iter()
            .map(|request| request.body.as_str())
            .filter(is_it)
            .count()
    };
    assert_eq!(
        (n_of("double 3"), n_of("double 4"), n_of("double 5")),
        (2, 1, 1)
    );
    let n_sent = server.received().len();
    run(
        dir.path(),
        &endpoint(&server, 4),
        &Given {
            only: Some("double"),
            ..Given::default()
        },
    )
    .unwrap();
    assert_eq!(
        server.received().len(),
        n_sent,
        "what has no reply is not asked for again"
    );
}

#[test]
fn a_server_that_is_at_fault_ends_the_work_and_what_came_is_kept() {
    for (status, said) in [(401, "answered 401"), (500, "several requests in a row")] {
        let server = chat_server(move |request, number| match number {
            0..=3 => completion(&by_rule(last_content(request))),
            _ => Answer::json(status, &json!({"error": "no"})),
        });
        let dir = tempfile::tempdir().unwrap();
        let error = run(dir.path(), &endpoint(&server, 1), &Given::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{error}");
        assert!(error.contains("4 replies are kept"), "{error}");
    }
    let server = chat_server(|_, _| Answer::html(200, "<html>"));
    let dir = tempfile::tempdir().unwrap();
    let given = Given {
        n_items: 3,
        ..Given::default()
    };
    let error = run(dir.path(), &endpoint(&server, 1), &given)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no request has a reply"), "{error}");
}

#[test]
fn what_is_no_prompt_is_made_once_for_each_request_of_an_item() {
    let dir = tempfile::tempdir().unwrap();
    let generator = ByRule::default();
    let n_made = Cell::new(0);
    let made = |id: &str, request: Value| {
        let mut watch = |_: &Progress| true;
        let mut run = Run::open(Opening {
            place: Place {
                dir: dir.path(),
                generator: &generator,
                files: &Staged,
                limits: Limits::default(),
                only: None,
                watch: &mut watch,
            },
            stages: STAGES,
            settings: Map::new(),
            prompts: Prompts::open(&[AGAIN_PROMPT], None).unwrap(),
        })
        .unwrap();
        let output = run.once("double", id, &request, || {
            n_made.set(n_made.get() + 1);
            match request == json!("refused") {
                true => Err(PipelineError::Usage("refused".to_owned())),
                false => Ok(json!({"number": n_made.get()})),
            }
        });
        output.map_err(|error| error.to_string())
    };
    let one = json!({"call": "GET /x"});
    assert_eq!(made("a", one.clone()), Ok(json!({"number": 1})));
    assert_eq!(made("a", one.clone()), Ok(json!({"number": 1})));
    assert_eq!(made("b", one), Ok(json!({"number": 2})));
    assert_eq!(
        made("a", json!({"call": "GET /y"})),
        Ok(json!({"number": 3}))
    );
    // What failed is not kept.
    assert_eq!(made("a", json!("refused")), Err("refused".to_owned()));
    assert_eq!(made("a", json!("refused")), Err("refused".to_owned()));
    assert_eq!(n_made.get(), 5);
}
