//! Tests of the common parts of pipelines, with a rule-based generator.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::*;

mod server;
mod unread;

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

/// Answers `double N` with `{"n": 2N}`, and checks that no prompt is repeated.
#[derive(Debug, Default)]
struct RuleGenerator {
    sent_prompts: RefCell<Vec<String>>,
}

fn by_rule(text: &str) -> String {
    let n: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    match n {
        // The first reply is never parsable; the second becomes parsable when it is requested
        // again.
        7 => "seven".to_owned(),
        9 if !text.contains("could not be used") => "{\"n\": ".to_owned(),
        n => format!("Here: {{\"n\": {}}}", 2 * n),
    }
}

/// A model of tests, which replies to one prompt at a time.
pub(crate) trait TestModel {
    fn name(&self) -> &'static str;

    fn reply(&self, prompt: &Prompt) -> Reply;
}

impl<M: TestModel> ModelInfo for M {
    fn identity(&self) -> Map<String, Value> {
        Map::from_iter([("model".to_owned(), json!(self.name()))])
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }
}

impl<M: TestModel> Generator for M {
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<PromptResult>) -> bool,
    ) -> Result<(), GeneratorFailure> {
        // The last prompt is completed first.
        for (number, prompt) in prompts.iter().enumerate().rev() {
            let result = Ok(self.reply(prompt));
            if !take(Some(PromptResult { number, result })) {
                break;
            }
        }
        Ok(())
    }
}

/// A reply with one token per byte.
pub(crate) fn reply_of(prompt: &Prompt, text: String) -> Reply {
    Reply {
        n_prompt_tokens: prompt.text.len(),
        n_tokens: text.len(),
        text,
        ..Reply::default()
    }
}

impl TestModel for RuleGenerator {
    fn name(&self) -> &'static str {
        "by rule"
    }

    fn reply(&self, prompt: &Prompt) -> Reply {
        self.sent_prompts.borrow_mut().push(prompt.text.clone());
        reply_of(prompt, by_rule(&prompt.text))
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
        .ok_or_else(|| "\"n\" is not a number".to_owned())
}

struct Setup<'a> {
    n_items: u64,
    limits: Limits,
    only: Option<&'a str>,
    ask_again: Option<&'a str>,
    prompts: Option<&'a Path>,
    /// Number of progress reports after which the run is stopped.
    n_looks: usize,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            n_items: 12,
            limits: Limits::default(),
            only: None,
            ask_again: None,
            prompts: None,
            n_looks: usize::MAX,
        }
    }
}

/// Doubles each number, and then doubles the sum of the results.
fn run(dir: &Path, generator: &dyn Generator, setup: &Setup<'_>) -> Result<Report, PipelineError> {
    let n_looks_left = Cell::new(setup.n_looks);
    let mut watch = |_: &Progress| {
        n_looks_left.set(n_looks_left.get().saturating_sub(1));
        n_looks_left.get() > 0
    };
    let mut run = Run::open(RunInput {
        place: RunContext {
            dir,
            generator,
            limits: setup.limits,
            only: setup.only,
            ask_again: setup.ask_again,
            watch: &mut watch,
        },
        stages: STAGES,
        settings: Map::from_iter([("items".to_owned(), json!(setup.n_items))]),
        prompts: Prompts::open(&[RETRY_PROMPT], setup.prompts)?,
    })?;
    let ask = |run: &mut Run<'_>, stage, prompts: Vec<(String, String)>| {
        let prompts = prompts.into_iter().map(|(id, text)| ItemPrompt {
            id,
            prompt: prompt(text),
        });
        let prompts: Vec<ItemPrompt> = prompts.collect();
        let results = run.ask(stage, &prompts, &|_, text| read_n(text))?;
        Ok(StageResult::from_results(results))
    };
    let doubled = run.stage("double", |run| {
        let numbers = 0..setup.n_items;
        let prompts = numbers.map(|n| (n.to_string(), format!("double {n}")));
        ask(run, "double", prompts.collect())
    })?;
    let Some(doubled) = doubled else {
        return Ok(run.report().clone());
    };
    run.stage("sum", |run| {
        let numbers = doubled.iter();
        let prompts = numbers.map(|n| (format!("of {n}"), format!("double {n} now")));
        ask(run, "sum", prompts.collect())
    })?;
    Ok(run.report().clone())
}

/// A run without settings and limits.
fn unlimited<'a>(
    dir: &'a Path,
    generator: &'a dyn Generator,
    watch: &'a mut dyn FnMut(&Progress) -> bool,
) -> RunInput<'a> {
    RunInput {
        place: RunContext {
            dir,
            generator,
            limits: Limits::default(),
            only: None,
            ask_again: None,
            watch,
        },
        stages: STAGES,
        settings: Map::new(),
        prompts: Prompts::open(&[RETRY_PROMPT], None).unwrap(),
    }
}

pub(crate) fn files(dir: &Path) -> BTreeMap<String, String> {
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
fn a_run_counts_kept_and_dropped_items() {
    let dir = tempfile::tempdir().unwrap();
    let generator = RuleGenerator::default();
    let report = run(dir.path(), &generator, &Setup::default()).unwrap();
    let double = report.stage("double").unwrap();
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
    assert!(files["doubled.dropped.jsonl"].contains("the reply contains no JSON: seven"));
    let prompts = generator.sent_prompts.borrow().clone();
    assert!(
        prompts
            .iter()
            .any(|text| text.contains("double 7") && text.contains("the reply contains no JSON"))
    );
    // A completed run sends nothing.
    run(dir.path(), &generator, &Setup::default()).unwrap();
    assert_eq!(*generator.sent_prompts.borrow(), prompts);
}

/// Invariant: A pipeline never repeats a request that has its reply, and ends the same after any
/// interruption.
#[test]
fn an_interrupted_run_resumes_with_the_same_files_and_repeats_no_request() {
    let complete_dir = tempfile::tempdir().unwrap();
    let uninterrupted = RuleGenerator::default();
    run(complete_dir.path(), &uninterrupted, &Setup::default()).unwrap();
    let mut sent_once = uninterrupted.sent_prompts.borrow().clone();
    sent_once.sort();
    // The first progress report comes before the first request, the second after its reply.
    for n_looks in 2..32 {
        let dir = tempfile::tempdir().unwrap();
        let generator = RuleGenerator::default();
        let setup = Setup {
            n_looks,
            ..Setup::default()
        };
        while let Err(error) = run(dir.path(), &generator, &setup) {
            assert!(matches!(error, PipelineError::Stopped { .. }), "{error}");
        }
        let mut prompts = generator.sent_prompts.borrow().clone();
        prompts.sort();
        assert_eq!(prompts, sent_once, "{n_looks}");
        assert_eq!(files(dir.path()), files(complete_dir.path()), "{n_looks}");
    }
}

/// Invariant: A pipeline never repeats a request that has its reply, and ends the same after any
/// interruption.
#[test]
fn a_killed_run_resumes_with_the_same_files_whichever_files_are_left() {
    let complete_dir = tempfile::tempdir().unwrap();
    run(
        complete_dir.path(),
        &RuleGenerator::default(),
        &Setup::default(),
    )
    .unwrap();
    let journal = std::fs::read(complete_dir.path().join(JOURNAL_FILE)).unwrap();
    let head = journal.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for length in (head..=journal.len()).step_by(97) {
        for state in [
            &[][..],
            &["doubled.jsonl"],
            &["doubled.jsonl", "report.json"],
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(JOURNAL_FILE), &journal[..length]).unwrap();
            if length == journal.len() {
                for name in state {
                    std::fs::copy(complete_dir.path().join(name), dir.path().join(name)).unwrap();
                }
            }
            run(dir.path(), &RuleGenerator::default(), &Setup::default()).unwrap();
            assert_eq!(files(dir.path()), files(complete_dir.path()), "{length}");
        }
    }
}

#[test]
fn a_single_stage_can_run_and_an_edited_file_is_used_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let with_stage = |with_stage| Setup {
        only: Some(with_stage),
        ..Setup::default()
    };
    let generator = RuleGenerator::default();
    let error = run(dir.path(), &generator, &with_stage("sum"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the earlier stage double is not done"),
        "{error}"
    );
    let error = run(dir.path(), &generator, &with_stage("some"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("the stages are double, sum"), "{error}");
    let report = run(dir.path(), &generator, &with_stage("double")).unwrap();
    assert_eq!(report.stages.len(), 1);
    assert!(!dir.path().join("summed.jsonl").exists());
    run(dir.path(), &generator, &Setup::default()).unwrap();
    let n_sent = generator.sent_prompts.borrow().len();
    std::fs::write(dir.path().join("doubled.jsonl"), "2\n4\n100\n").unwrap();
    let report = run(dir.path(), &generator, &Setup::default()).unwrap();
    assert_eq!(report.stage("sum").unwrap().n_in, 3);
    assert_eq!(files(dir.path())["summed.jsonl"], "4\n8\n200\n");
    assert_eq!(
        generator.sent_prompts.borrow().len(),
        n_sent + 1,
        "only new items are requested"
    );
}

/// Invariant: A faulty server loses no pipeline item, and no budget is exceeded.
#[test]
fn a_budget_is_never_exceeded_and_a_larger_one_continues() {
    let complete_dir = tempfile::tempdir().unwrap();
    run(
        complete_dir.path(),
        &RuleGenerator::default(),
        &Setup::default(),
    )
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let generator = RuleGenerator::default();
    for max_requests in [1, 5, 5, 13, 20] {
        let limits = Limits {
            max_requests: Some(max_requests),
            max_tokens: None,
            max_api_calls: None,
        };
        let error = run(
            dir.path(),
            &generator,
            &Setup {
                limits,
                ..Setup::default()
            },
        )
        .unwrap_err();
        assert!(error.to_string().contains("--max-requests"), "{error}");
        assert_eq!(generator.sent_prompts.borrow().len(), max_requests);
    }
    let dir = tempfile::tempdir().unwrap();
    for max_requests in [10, 100, 600, 900] {
        let limits = Limits {
            max_requests: None,
            max_tokens: Some(max_requests),
            max_api_calls: None,
        };
        let setup = Setup {
            limits,
            ..Setup::default()
        };
        if let Err(error) = run(dir.path(), &generator, &setup) {
            assert!(error.to_string().contains("--max-tokens"), "{error}");
        }
        let journal = Journal::open_read_only(dir.path(), &journal_settings(dir.path())).unwrap();
        let used: usize = journal
            .entries()
            .map(|(_, entry)| match entry {
                Entry::Reply(reply) => reply.n_prompt_tokens + reply.n_tokens,
                Entry::Unanswered(_) | Entry::Output(_) => 0,
            })
            .sum();
        assert!(used <= max_requests, "{used}");
    }
    run(dir.path(), &generator, &Setup::default()).unwrap();
    assert_eq!(files(dir.path()), files(complete_dir.path()));
}

fn journal_settings(dir: &Path) -> Map<String, Value> {
    let text = std::fs::read_to_string(dir.join(JOURNAL_FILE)).unwrap();
    let head: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    head["settings"].as_object().unwrap().clone()
}

#[test]
fn changed_prompts_and_settings_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &RuleGenerator::default(), &Setup::default()).unwrap();
    let prompts_dir = tempfile::tempdir().unwrap();
    let error_with_prompts = || {
        let setup = Setup {
            prompts: Some(prompts_dir.path()),
            n_items: 13,
            ..Setup::default()
        };
        let outcome = run(dir.path(), &RuleGenerator::default(), &setup);
        outcome.unwrap_err().to_string()
    };
    std::fs::write(
        prompts_dir.path().join("again.jinja"),
        "{{ prompt }} {{ reason }}",
    )
    .unwrap();
    let error = error_with_prompts();
    assert!(
        error.contains("items was 12, now 13; prompts/again.jinja was"),
        "{error}"
    );
    std::fs::write(prompts_dir.path().join("agian.jinja"), "x").unwrap();
    let error = error_with_prompts();
    assert!(
        error.contains("agian.jinja is not a prompt of this pipeline; its prompts are again.jinja"),
        "{error}"
    );
    std::fs::remove_file(prompts_dir.path().join("agian.jinja")).unwrap();
    std::fs::write(prompts_dir.path().join("again.jinja"), "{{ prompt }}").unwrap();
    let error = error_with_prompts();
    assert!(error.contains("never prints reason"), "{error}");
    std::fs::remove_file(prompts_dir.path().join("again.jinja")).unwrap();
    let error = error_with_prompts();
    assert!(
        error.contains("the folder has no prompts; the pipeline's prompts are again.jinja"),
        "{error}"
    );
}

#[test]
fn run_once_computes_each_request_of_an_item_once() {
    let dir = tempfile::tempdir().unwrap();
    let generator = RuleGenerator::default();
    let n_made = Cell::new(0);
    let make_once = |id: &str, request: Value| {
        let mut watch = |_: &Progress| true;
        let mut run = Run::open(unlimited(dir.path(), &generator, &mut watch)).unwrap();
        let output = run.run_once("double", id, &request, || {
            n_made.set(n_made.get() + 1);
            match request == json!("refused") {
                true => Err(PipelineError::Usage("refused".to_owned())),
                false => Ok(json!({"number": n_made.get()})),
            }
        });
        output.map_err(|error| error.to_string())
    };
    let first_request = json!({"call": "GET /x"});
    assert_eq!(
        make_once("a", first_request.clone()),
        Ok(json!({"number": 1}))
    );
    assert_eq!(
        make_once("a", first_request.clone()),
        Ok(json!({"number": 1}))
    );
    assert_eq!(make_once("b", first_request), Ok(json!({"number": 2})));
    assert_eq!(
        make_once("a", json!({"call": "GET /y"})),
        Ok(json!({"number": 3}))
    );
    // A failure is not stored.
    assert_eq!(make_once("a", json!("refused")), Err("refused".to_owned()));
    assert_eq!(make_once("a", json!("refused")), Err("refused".to_owned()));
    assert_eq!(n_made.get(), 5);
}
