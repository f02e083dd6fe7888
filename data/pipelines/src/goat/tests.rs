//! Runs the whole pipeline on the synthetic world, with a rule-based model.

mod bench;
mod oracle;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_agents::executors::CallResult;
use tooltune_apis::read_checked_trajectories;
use tooltune_json::faults::collect_rows;
use tooltune_json::{Style, dumps};
use tooltune_suites::HashEncoder;
use tooltune_synth::goat::{self, GoatExecutor};

use self::oracle::{Oracle, number};
use super::*;
use crate::generator::{Prompt, Reply};
use crate::journal::JOURNAL_FILE;
use crate::run::Limits;
use crate::tests::{TestModel, reply_of};

/// One in `REPLIES_PER_SLIP` first replies is not JSON.
const REPLIES_PER_SLIP: u64 = 50;

/// The oracle as a model, counting its prompts.
struct Model {
    oracle: Oracle,
    n_asked: Cell<usize>,
}

impl TestModel for Model {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn reply(&self, prompt: &Prompt) -> Reply {
        self.n_asked.set(self.n_asked.get() + 1);
        let original = prompt.text.split("\n\nYour earlier reply").next();
        let original = original.unwrap_or_default();
        let is_first = original == prompt.text;
        let slips =
            is_first && number(&format!("slip {original}")).is_multiple_of(REPLIES_PER_SLIP);
        let text = if slips {
            "I would rather not.".to_owned()
        } else {
            let json = self.oracle.reply_for(original, prompt.seed);
            format!("Here it is:\n```json\n{json}\n```")
        };
        reply_of(prompt, text)
    }
}

/// The synthetic world, counting its calls.
struct CountedExecutor<'a> {
    world: GoatExecutor,
    calls: &'a RefCell<BTreeMap<String, (usize, bool)>>,
    /// A tool whose APIs are refused.
    refused: &'a str,
}

impl Executor for CountedExecutor<'_> {
    fn refusal(&self, name: &str) -> Option<String> {
        let is_refused = !self.refused.is_empty() && name.starts_with(self.refused);
        is_refused.then(|| format!("{name} may change data"))
    }

    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let result = self.world.call(name, arguments);
        let call = format!("{name} {}", Value::Object(arguments.clone()));
        let mut calls = self.calls.borrow_mut();
        let entry = calls.entry(call).or_insert((0, result.is_failure()));
        entry.0 += 1;
        result
    }
}

/// A folder with the documents of some tools, and the prompts and calls made there.
struct Work {
    dir: TempDir,
    names: BTreeSet<String>,
    model: Model,
    calls: RefCell<BTreeMap<String, (usize, bool)>>,
    refused: &'static str,
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
            refused: "",
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
        let n_looks_left = Cell::new(n_looks);
        let pipeline = GoatPipeline::read(options, None)?;
        pipeline.run(GoatContext {
            place: RunContext {
                dir: &self.dir.path().join(out),
                generator: &self.model,
                limits,
                only,
                ask_again: None,
                watch: &mut |_| {
                    n_looks_left.set(n_looks_left.get().saturating_sub(1));
                    n_looks_left.get() > 0
                },
            },
            encoder: Some(&HashEncoder),
            executor: &mut CountedExecutor {
                world: GoatExecutor::new(),
                calls: &self.calls,
                refused: self.refused,
            },
        })
    }

    fn run_all(&self, out: &str) -> GoatOutcome {
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
fn precision_and_recall(file: &str, truth: &BTreeSet<String>) -> (f64, f64) {
    let edges = file
        .lines()
        .map(|line| serde_json::from_str::<NamedEdge>(line).unwrap());
    let edges: BTreeSet<String> = edges.map(|edge| edge.label()).collect();
    let n_true = edges.intersection(truth).count() as f64;
    (n_true / edges.len() as f64, n_true / truth.len() as f64)
}

#[test]
fn documents_become_trajectories_and_each_filter_raises_precision() {
    let work = Work::new();
    let outcome = work.run_all("out");
    let files = work.files("out");
    for stage in STAGES {
        let report = outcome.report.stage(stage.name).unwrap();
        let n_dropped: usize = report.dropped.values().sum();
        assert_eq!(report.n_in, report.n_kept + n_dropped, "{report:?}");
        assert_eq!(files[stage.file].lines().count(), report.n_kept);
    }
    let truth = work.model.oracle.true_edges(&work.names);
    let [similar, filtered, executed] = ["edges.jsonl", "filtered.jsonl", "executed.jsonl"]
        .map(|name| precision_and_recall(&files[name], &truth));
    assert!(similar.1 > 0.6, "{similar:?}");
    assert!(
        similar.0 < filtered.0 && filtered.0 < executed.0,
        "{filtered:?} {executed:?}"
    );
    assert!(executed.0 > 0.7 && executed.1 > 0.5, "{executed:?}");
    let execute = outcome.report.stage(EXECUTE).unwrap();
    let reason = "the second call failed";
    assert!(
        execute.dropped.contains_key(reason),
        "{:?}",
        execute.dropped
    );
    // At most two calls per edge, and each call is made only once.
    assert!(execute.counts["API calls"] <= 2 * execute.n_in);
    assert!(work.calls.borrow().values().all(|(n, _)| *n == 1));

    let data_set = outcome.data_set.unwrap();
    assert!(
        data_set
            .edges
            .iter()
            .all(|edge| edge.reason.is_some() && edge.score.is_some())
    );
    let rows = work.dir.path().join("out").join(TRAJECTORIES_FILE);
    let catalogue = ApiCatalogue::read(&work.options().documents).unwrap();
    let rows = collect_rows(read_checked_trajectories(&rows, &catalogue).unwrap()).unwrap();
    assert!(rows.len() > 30, "{:?}", outcome.report);
    let sizes: BTreeSet<usize> = rows.iter().map(|row| row.calls.len()).collect();
    assert_eq!(sizes, BTreeSet::from([2, 3, 4]));
    let mut world = GoatExecutor::new();
    for row in &rows {
        for call in &row.calls {
            // The output is the world's answer, and derived values occur at the recorded path.
            assert_eq!(world.call(&call.name, &call.arguments).output, call.output);
            for (parameter, origin) in &call.derived {
                let value = &call.arguments[parameter];
                let value_json = dumps(&row.calls[origin.call].output, Style::Compact);
                assert!(
                    value_json.contains(&dumps(value, Style::Compact)),
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
    let n_rows: usize = data_set
        .splits
        .named_splits()
        .iter()
        .map(|(_, rows)| rows.len())
        .sum();
    assert_eq!(n_rows, rows.len());
    assert_eq!(files[PAIRS_FILE].lines().count(), data_set.n_pairs);
    assert!(data_set.n_pairs > data_set.splits.train.len());
    for (name, rows) in data_set.splits.named_splits() {
        assert_eq!(files[&format!("{name}.jsonl")].lines().count(), rows.len());
    }

    // A second run sends nothing and calls nothing.
    let n_asked = work.model.n_asked.get();
    work.run_all("out");
    assert_eq!(
        (work.files("out"), work.model.n_asked.get()),
        (files, n_asked)
    );
    assert!(work.calls.borrow().values().all(|(n, _)| *n == 1));
}

#[test]
fn apis_that_the_executor_refuses_cost_no_request_and_are_in_no_row() {
    let mut work = Work::new();
    work.refused = "FerryLine/";
    let outcome = work.run_all("out");
    let graph = outcome.report.stage("graph").unwrap();
    let n_refused: Vec<_> = graph
        .dropped
        .iter()
        .filter(|(reason, _)| reason.contains("may change data"))
        .collect();
    assert!(
        matches!(n_refused.as_slice(), [(_, 1..)]),
        "{:?}",
        graph.dropped
    );
    let files = work.files("out");
    for stage in ["edges.jsonl", "executed.jsonl", TRAJECTORIES_FILE] {
        assert!(
            !files[stage].is_empty() && !files[stage].contains("FerryLine/"),
            "{stage}"
        );
    }
    let calls = work.calls.borrow();
    assert!(!calls.is_empty() && calls.keys().all(|call| !call.starts_with("FerryLine/")));
}

/// Invariant: A pipeline makes each API call once, whatever interrupts it.
#[test]
fn an_interrupted_pipeline_repeats_no_call_and_no_request() {
    let work = Work::new();
    work.run_all("whole");
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
        // A call that fails during the shutdown does not count as answered.
        let calls = work.calls.borrow();
        assert!(calls.values().all(|(n, is_failure)| *n == 1 || *is_failure));
    }
}

#[test]
fn a_single_stage_can_run_and_the_budget_of_calls_is_never_exceeded() {
    let work = Work::new();
    work.run_all("whole");
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
                error.contains("calls are left; to continue, run the same command with a larger --max-api-calls"),
                "{error}"
            );
            assert_eq!(work.calls.borrow().len(), n_calls + 20);
            work.run("alone", usize::MAX, Limits::default(), only)
                .unwrap();
        }
    }
    assert_eq!(work.files("alone"), work.files("whole"));
    let outcome = work.run("early", usize::MAX, Limits::default(), Some(CALLS));
    let outcome = outcome.unwrap_err().to_string();
    assert!(
        outcome.contains("the earlier stage parse is not done"),
        "{outcome}"
    );
}

#[test]
fn a_plan_sends_nothing_and_is_exact_for_existing_items_else_a_bound() {
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
    let plan_before = plan(&work);
    assert!(!work.dir.path().join("out").exists() && work.model.n_asked.get() == 0);
    assert_eq!(plan_before[PARSE].n_requests, work.names.len());
    let outcome = work.run_all("out");
    let plan_after = plan(&work);
    for (stage, plan) in &plan_before {
        let report = outcome.report.stage(stage).unwrap();
        let n_first_replies = report.requests.n_replies - report.requests.n_asked_again;
        assert!(
            n_first_replies <= plan.n_requests,
            "{stage}: {n_first_replies} {plan:?}"
        );
        let n_calls = report.counts.get("API calls").copied().unwrap_or(0);
        assert!(n_calls <= plan.n_api_calls, "{stage}");
        let stage_plan = &plan_after[stage];
        assert_eq!(
            (stage_plan.n_requests, stage_plan.n_stored),
            (n_first_replies, n_first_replies),
            "{stage}"
        );
        assert_eq!(
            (
                stage_plan.n_prompt_tokens,
                stage_plan.n_api_calls,
                stage_plan.is_at_most
            ),
            (0, 0, false)
        );
    }
}
