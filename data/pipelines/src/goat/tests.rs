//! The whole pipeline over the invented world, with a model that answers by rule.

mod bench;
mod oracle;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_agents::executors::CallResult;
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::text::all_rows;
use tooltune_rows::tools::read_checked_trajectories;
use tooltune_suites::HashEncoder;
use tooltune_synth::goat::{self, GoatExecutor};

use self::oracle::{Oracle, number};
use super::*;
use crate::files::Staged;
use crate::generator::{Came, Generator, GeneratorFailure, Prompt, Reply};
use crate::journal::JOURNAL_FILE;
use crate::run::Limits;

/// One first reply of so many is no JSON.
const SLIPS: u64 = 50;

/// The oracle as a model, which counts what it is asked.
struct Model {
    oracle: Oracle,
    n_asked: Cell<usize>,
}

impl ModelInfo for Model {
    fn identity(&self) -> Map<String, Value> {
        Map::from_iter([("model".to_owned(), json!("oracle"))])
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.len()
    }
}

impl Generator for Model {
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<Came>) -> bool,
    ) -> Result<(), GeneratorFailure> {
        for (idx, prompt) in prompts.iter().enumerate() {
            self.n_asked.set(self.n_asked.get() + 1);
            let again = prompt.text.split("\n\nYour earlier reply").next();
            let asked = Prompt {
                text: again.unwrap_or_default().to_owned(),
                ..(*prompt).clone()
            };
            let is_first = asked.text == prompt.text;
            let slips = is_first && number(&format!("slip {}", asked.text)).is_multiple_of(SLIPS);
            let text = if slips {
                "I would rather not.".to_owned()
            } else {
                format!(
                    "Here it is:\n```json\n{}\n```",
                    self.oracle.says(&asked.text, asked.seed)
                )
            };
            let reply = Reply {
                n_prompt_tokens: prompt.text.len(),
                n_tokens: text.len(),
                text,
                ..Reply::default()
            };
            if !take(Some(Came {
                number: idx,
                result: Ok(reply),
            })) {
                break;
            }
        }
        Ok(())
    }
}

/// The invented world, which counts what it is asked.
struct Counted<'a> {
    world: GoatExecutor,
    calls: &'a RefCell<BTreeMap<String, (usize, bool)>>,
}

impl Executor for Counted<'_> {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let result = self.world.call(name, arguments);
        let call = format!("{name} {}", Value::Object(arguments.clone()));
        let mut calls = self.calls.borrow_mut();
        let entry = calls.entry(call).or_insert((0, result.is_failure()));
        entry.0 += 1;
        result
    }
}

/// A folder with the documents of some tools, and what asked and was called there.
struct Work {
    dir: TempDir,
    names: BTreeSet<String>,
    model: Model,
    calls: RefCell<BTreeMap<String, (usize, bool)>>,
}

impl Work {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let documents: Vec<_> = goat::documents()
            .into_iter()
            .filter(|document| {
                let tools = [
                    "RoomKey",
                    "TownDesk",
                    "SkyLedger",
                    "FerryLine",
                    "StageNight",
                    "TrailBook",
                ];
                tools.contains(&document.tool_name.as_str())
            })
            .collect();
        let lines: Vec<String> = documents
            .iter()
            .map(|document| serde_json::to_string(document).unwrap())
            .collect();
        std::fs::write(dir.path().join("documents.jsonl"), lines.join("\n")).unwrap();
        Self {
            names: documents
                .iter()
                .map(|document| document.call_name())
                .collect(),
            dir,
            model: Model {
                oracle: Oracle::new(),
                n_asked: Cell::new(0),
            },
            calls: RefCell::default(),
        }
    }

    fn options(&self) -> GoatOptions {
        GoatOptions {
            documents: self.dir.path().join("documents.jsonl"),
            has_global_functions: false,
            seen_from: None,
            hold_out: Vec::new(),
            threshold: -0.05,
            max_edges: None,
            min_calls: 2,
            max_calls: 4,
            max_subgraphs: 100_000,
            rows: 60,
            shares: SplitShares {
                dev: 0.1,
                test_seen: 0.15,
                test_unseen: 0.2,
            },
            seed: 3,
            temperature: 0.7,
            output_limit: 4_000,
            reply_tokens: 500,
            encoder: "hash".to_owned(),
            executor: json!({"kind": "synthetic"}),
        }
    }

    fn run(
        &self,
        out: &str,
        n_looks: usize,
        limits: Limits,
        only: Option<&str>,
    ) -> Result<GoatOutcome, PipelineError> {
        self.run_with(self.options(), out, n_looks, limits, only)
    }

    fn run_with(
        &self,
        options: GoatOptions,
        out: &str,
        n_looks: usize,
        limits: Limits,
        only: Option<&str>,
    ) -> Result<GoatOutcome, PipelineError> {
        let left = Cell::new(n_looks);
        let pipeline = GoatPipeline::read(options, None)?;
        pipeline.run(GoatPlace {
            place: Place {
                dir: &self.dir.path().join(out),
                generator: &self.model,
                files: &Staged,
                limits,
                only,
                watch: &mut |_| {
                    left.set(left.get().saturating_sub(1));
                    left.get() > 0
                },
            },
            encoder: Some(&HashEncoder),
            executor: &mut Counted {
                world: GoatExecutor::new(),
                calls: &self.calls,
            },
        })
    }

    fn whole(&self, out: &str) -> GoatOutcome {
        self.run(out, usize::MAX, Limits::default(), None).unwrap()
    }

    fn files(&self, out: &str) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(self.dir.path().join(out)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| !path.ends_with(JOURNAL_FILE))
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(&path).unwrap())
            })
            .collect()
    }
}

/// Precision and recall of the edges of a file.
fn measured(file: &str, truth: &BTreeSet<String>) -> (f64, f64) {
    let edges = file
        .lines()
        .map(|line| serde_json::from_str::<NamedEdge>(line).unwrap());
    let edges: BTreeSet<String> = edges.map(|edge| edge.label()).collect();
    let n_right = edges.intersection(truth).count() as f64;
    (n_right / edges.len() as f64, n_right / truth.len() as f64)
}

#[test]
fn documents_become_trajectories_and_each_filter_is_more_precise() {
    let work = Work::new();
    let outcome = work.whole("out");
    let files = work.files("out");
    for stage in STAGES {
        let report = outcome.report.of(stage.name).unwrap();
        let n_dropped: usize = report.dropped.values().sum();
        assert_eq!(report.n_in, report.n_kept + n_dropped, "{report:?}");
        assert_eq!(files[stage.file].lines().count(), report.n_kept);
    }
    let truth = work.model.oracle.true_edges(&work.names);
    let [similar, filtered, executed] = ["edges.jsonl", "filtered.jsonl", "executed.jsonl"]
        .map(|name| measured(&files[name], &truth));
    assert!(similar.1 > 0.6, "{similar:?}");
    assert!(
        similar.0 < filtered.0 && filtered.0 < executed.0,
        "{filtered:?} {executed:?}"
    );
    assert!(executed.0 > 0.7 && executed.1 > 0.5, "{executed:?}");
    let execute = outcome.report.of(EXECUTE).unwrap();
    let reason = "the second call failed";
    assert!(
        execute.dropped.contains_key(reason),
        "{:?}",
        execute.dropped
    );
    // Two calls an edge at most, and each is made once whatever needs it.
    assert!(execute.counts["calls of APIs"] <= 2 * execute.n_in);
    assert!(work.calls.borrow().values().all(|(n, _)| *n == 1));

    let made = outcome.made.unwrap();
    assert!(
        made.edges
            .iter()
            .all(|edge| edge.reason.is_some() && edge.score.is_some())
    );
    let rows = work.dir.path().join("out").join(TRAJECTORIES_FILE);
    let catalogue = ApiCatalogue::read(&work.options().documents).unwrap();
    let rows = all_rows(read_checked_trajectories(&rows, &catalogue).unwrap()).unwrap();
    assert!(rows.len() > 30, "{:?}", outcome.report);
    let sizes: BTreeSet<usize> = rows.iter().map(|row| row.calls.len()).collect();
    assert_eq!(sizes, BTreeSet::from([2, 3, 4]));
    let mut world = GoatExecutor::new();
    for row in &rows {
        for call in &row.calls {
            // The output is what the world says, and what is derived stands where it is said to.
            assert_eq!(world.call(&call.name, &call.arguments).output, call.output);
            for (parameter, origin) in &call.derived {
                let value = &call.arguments[parameter];
                let shown = dumps(&row.calls[origin.call].output, Style::Compact);
                assert!(
                    shown.contains(&dumps(value, Style::Compact)),
                    "{parameter}: {row:?}"
                );
            }
        }
        for fact in &row.facts {
            assert!(row.response.contains(fact) && !row.query.contains(&format!(" {fact},")));
        }
    }
    let n_derived: usize = rows
        .iter()
        .flat_map(|row| &row.calls)
        .map(|call| call.derived.len())
        .sum();
    assert!(n_derived > rows.len() / 2, "{n_derived}");
    assert!(rows.iter().filter(|row| !row.facts.is_empty()).count() > rows.len() / 2);
    let n_rows: usize = made.splits.named().iter().map(|(_, rows)| rows.len()).sum();
    assert_eq!(n_rows, rows.len());
    assert_eq!(files[PAIRS_FILE].lines().count(), made.n_pairs);
    assert!(made.n_pairs > made.splits.train.len());
    for (name, rows) in made.splits.named() {
        assert_eq!(files[&format!("{name}.jsonl")].lines().count(), rows.len());
    }

    // The same again asks and calls nothing.
    let n_asked = work.model.n_asked.get();
    work.whole("out");
    assert_eq!(
        (work.files("out"), work.model.n_asked.get()),
        (files, n_asked)
    );
    assert!(work.calls.borrow().values().all(|(n, _)| *n == 1));
}

#[test]
fn a_pipeline_that_is_ended_at_any_moment_calls_and_asks_nothing_twice() {
    let work = Work::new();
    work.whole("whole");
    let n_once = work.model.n_asked.replace(0);
    for n_looks in [97, 400] {
        work.calls.borrow_mut().clear();
        work.model.n_asked.set(0);
        let out = format!("ended-{n_looks}");
        let mut n_stops = 0;
        while let Err(error) = work.run(&out, n_looks, Limits::default(), None) {
            assert!(matches!(error, PipelineError::Stopped { .. }), "{error}");
            n_stops += 1;
        }
        assert!(n_stops > 2);
        assert_eq!(work.files(&out), work.files("whole"), "{n_looks}");
        assert_eq!(work.model.n_asked.get(), n_once);
        // A call that fails while the work ends is not taken for answered.
        let calls = work.calls.borrow();
        assert!(calls.values().all(|(n, is_failure)| *n == 1 || *is_failure));
    }
}

#[test]
fn stages_are_made_alone_and_a_budget_of_calls_is_never_passed() {
    let work = Work::new();
    work.whole("whole");
    work.calls.borrow_mut().clear();
    for stage in STAGES {
        let n_calls = work.calls.borrow().len();
        let limits = Limits {
            max_api_calls: Some(n_calls + 20),
            ..Limits::default()
        };
        let only = Some(stage.name);
        if let Err(error) = work.run("alone", usize::MAX, limits, only) {
            let error = error.to_string();
            assert!(
                error.contains("calls are left; the same command with a larger --max-api-calls"),
                "{error}"
            );
            assert_eq!(work.calls.borrow().len(), n_calls + 20);
            work.run("alone", usize::MAX, Limits::default(), only)
                .unwrap();
        }
    }
    assert_eq!(work.files("alone"), work.files("whole"));
    let early = work.run("early", usize::MAX, Limits::default(), Some(CALLS));
    let early = early.unwrap_err().to_string();
    assert!(early.contains("the stage parse comes first"), "{early}");
}

#[test]
fn a_plan_sends_nothing_is_a_bound_and_exact_where_it_can_be() {
    let work = Work::new();
    let plan = |work: &Work| {
        let pipeline = GoatPipeline::read(work.options(), None).unwrap();
        let plans = pipeline
            .plan(&work.dir.path().join("out"), &work.model)
            .unwrap();
        plans
            .into_iter()
            .map(|plan| (plan.stage, plan))
            .collect::<BTreeMap<_, _>>()
    };
    let before = plan(&work);
    assert!(!work.dir.path().join("out").exists() && work.model.n_asked.get() == 0);
    assert_eq!(before[PARSE].n_requests, work.names.len());
    let outcome = work.whole("out");
    let after = plan(&work);
    for (stage, plan) in &before {
        let report = outcome.report.of(stage).unwrap();
        let n_first = report.requests.n_replies - report.requests.n_asked_again;
        assert!(n_first <= plan.n_requests, "{stage}: {n_first} {plan:?}");
        let n_calls = report.counts.get("calls of APIs").copied().unwrap_or(0);
        assert!(n_calls <= plan.n_api_calls, "{stage}");
        let left = &after[stage];
        assert_eq!(
            (left.n_requests, left.n_there),
            (n_first, n_first),
            "{stage}"
        );
        assert_eq!(
            (left.n_prompt_tokens, left.n_api_calls, left.is_at_most),
            (0, 0, false)
        );
    }
}
