//! `data goat`: generates trajectories from API documents with a language model, and draws their
//! dependency graph.

use std::path::Path;

use serde_json::{Value, json};
use tooltune_apis::{ApiCatalogue, Trajectory};
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_disk::atomic::write_atomic;
use tooltune_pipelines::goat::{
    EdgeTruth, GoatContext, GoatDataSet, GoatOptions, GoatPipeline, PAIRS_FILE, SplitShares,
    TRAJECTORIES_FILE,
};
use tooltune_pipelines::{Limits, RunContext};
use tooltune_report::{GraphEdge, render_graph};
use tooltune_synth::statistics::trajectory_statistics;

use crate::cli::DataGoatArgs;
use crate::commands::data::pipelines::{
    View, print_notes, print_plan, print_report, table, with_generator, with_model_info,
    with_report,
};
use crate::commands::data::stats;
use crate::commands::executor_options::{CallLimits, allow, print_calls};
use crate::commands::{DeviceOption, eprint_line, print_line};
use crate::config::{self, ExecutorConfig, ExecutorKind, GoatConfig, LoadedConfig, Source};
use crate::encoder::MiniLmEncoder;
use crate::error::Error;
use crate::eval::suites::{RefusedApis, open_executor};

/// Page that shows the graph.
const PAGE_FILE: &str = "graph.html";
/// File with the accuracy of the edges.
const SCORES_FILE: &str = "edge_scores.json";
/// Weight file of an encoder.
const ENCODER_WEIGHTS: &str = "model.safetensors";

pub(in crate::commands) fn run(
    args: &DataGoatArgs,
    device_option: &DeviceOption,
) -> Result<(), Error> {
    let mut goat = goat_settings(args)?;
    allow(&mut goat.executor, &args.allow)?;
    let pipeline = GoatPipeline::read(
        options(args, &goat.executor)?,
        args.pipeline.prompts.as_deref(),
    )?;
    if args.pipeline.dry_run {
        let dir = &args.pipeline.output;
        let plans = with_model_info(&args.generator, |model| Ok(pipeline.plan(dir, model)?))?;
        print_plan(&args.pipeline, &plans)?;
        let limits = CallLimits {
            edges: args
                .seen_from
                .is_none()
                .then_some(args.max_edges.unwrap_or(usize::MAX)),
            tasks: args.rows,
            all: args.max_api_calls,
        };
        return print_calls(&goat, pipeline.catalogue(), limits);
    }
    let catalogue = pipeline.catalogue().clone();
    // Read this file first, so that errors in it cost no request.
    let truth = match &args.true_edges {
        Some(path) => Some(EdgeTruth::read(path, &catalogue)?),
        None => None,
    };
    let mut executor = open_executor(&goat, &catalogue)?;
    if let Some(refused) = RefusedApis::find(&*executor, &catalogue) {
        if refused.are_all() {
            return Err(Error::Usage(format!(
                "{refused}; no API remains to be called"
            )));
        }
        eprint_line(&refused.to_string())?;
    }
    let encoder = match args.seen_from {
        Some(_) => None,
        None => {
            let device = device_option.open(config::Device::Cpu)?;
            Some(MiniLmEncoder::open(&args.retriever, &device)?)
        }
    };
    let _lock = args.pipeline.lock()?;
    let outcome = with_generator(&args.generator, device_option, |generator| {
        let mut view = View::begin(&args.pipeline);
        let outcome = pipeline.run(GoatContext {
            place: RunContext {
                dir: &args.pipeline.output,
                generator,
                limits: Limits {
                    max_api_calls: args.max_api_calls,
                    ..args.pipeline.limits()
                },
                only: args.pipeline.stage.as_deref(),
                ask_again: args.pipeline.ask_again.as_deref(),
                watch: &mut |progress| view.show(progress),
            },
            encoder: encoder.as_ref().map(|encoder| encoder as _),
            executor: executor.as_mut(),
        });
        drop(view);
        with_report(&args.pipeline, outcome)
    })?;
    print_notes(&outcome.notes)?;
    print_report(&args.pipeline, &outcome.report)?;
    if let Some(truth) = truth {
        print_scores(&args.pipeline.output, &truth)?;
    }
    match &outcome.data_set {
        Some(data_set) if args.seen_from.is_some() => {
            show_rows(&args.pipeline.output, data_set, &catalogue)
        }
        Some(data_set) => show(&args.pipeline.output, data_set, &catalogue),
        None => Ok(()),
    }
}

/// Prints and saves the accuracy of the edges after each stage, as in Table 7 of the paper.
fn print_scores(dir: &Path, truth: &EdgeTruth) -> Result<(), Error> {
    let scores = truth.scores(dir)?;
    let mut stages = table(&["edges", "kept", "settled", "right", "precision", "recall"]);
    let cell = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{part:.2}"));
    for score in &scores {
        stages.add_row([
            score.stage.to_owned(),
            score.n_edges.to_string(),
            score.n_labelled.to_string(),
            score.n_true.to_string(),
            cell(score.precision),
            cell(score.recall),
        ]);
    }
    print_line(&stages.trim_fmt())?;
    let path = dir.join(SCORES_FILE);
    let mut bytes =
        serde_json::to_vec_pretty(&scores).map_err(|error| Error::Usage(error.to_string()))?;
    bytes.push(b'\n');
    Ok(write_atomic(&path, &bytes)?)
}

/// Builds the `[goat]` settings, with the executor from the command line.
fn goat_settings(args: &DataGoatArgs) -> Result<GoatConfig, Error> {
    // Nothing is trained, but a config requires these keys.
    let text = format!(
        "[model]\nmodel_name_or_path = \"-\"\n[lora]\n[train]\noutput_dir = \"-\"\n[eval]\n\
         eval_strategy = \"no\"\n[data]\ntrain = [\"-\"]\nformat = \"goat\"\n[goat]\n\
         documents = {}\ndistractors = \"random\"\n",
        Value::from(args.documents.display().to_string())
    );
    let source = Source {
        name: "--executor".to_owned(),
        text,
    };
    let overrides: Vec<String> = args
        .executor
        .iter()
        .map(|setting| format!("goat.executor.{setting}"))
        .collect();
    let loaded = LoadedConfig::parse(source, &overrides)?;
    Ok(crate::rows::goat_config(&loaded.config)?.clone())
}

fn options(args: &DataGoatArgs, executor: &ExecutorConfig) -> Result<GoatOptions, Error> {
    Ok(GoatOptions {
        documents: args.documents.clone(),
        has_global_functions: args.global_functions,
        seen_from: args.seen_from.clone(),
        hold_out: args.hold_out.clone(),
        threshold: args.threshold,
        max_edges: args.max_edges,
        min_calls: args.min_calls,
        max_calls: args.max_calls,
        max_subgraphs: args.max_subgraphs,
        rows: args.rows,
        shares: SplitShares {
            dev: args.dev_share,
            test_seen: args.seen_share,
            test_unseen: args.unseen_share,
        },
        seed: args.pipeline.seed,
        temperature: args.temperature,
        output_limit: args.output_limit,
        reply_tokens: args.reply_tokens,
        encoder: match args.seen_from {
            Some(_) => String::new(),
            None => sha256_file(&args.retriever.join(ENCODER_WEIGHTS))?,
        },
        executor: identity(args, executor)?,
    })
}

/// Identifies an executor by its files and settings, ignoring timeouts and recording. The settings
/// are hashed, because a URL may contain secrets.
fn identity(args: &DataGoatArgs, executor: &ExecutorConfig) -> Result<Value, Error> {
    let file = match executor.kind {
        ExecutorKind::Replay => Some(&executor.recorded),
        ExecutorKind::Canned => Some(&executor.responses),
        ExecutorKind::Http => Some(&executor.specification),
        ExecutorKind::Synthetic | ExecutorKind::Mcp | ExecutorKind::Stabletoolbench => None,
    };
    let is_irrelevant = |setting: &&String| {
        let key = setting.split('=').next().unwrap_or_default().trim();
        key.ends_with("_secs") || ["record", "allow_methods", "allow_tools"].contains(&key)
    };
    let mut settings: Vec<&str> = args
        .executor
        .iter()
        .filter(|setting| !is_irrelevant(setting))
        .map(String::as_str)
        .collect();
    settings.sort_unstable();
    let allowed = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    let mut identity = json!({
        "kind": executor.kind.to_string(),
        "settings": sha256_bytes(settings.join("\n").as_bytes()),
        "file": file.map(|file| sha256_file(file)).transpose()?,
    });
    let allowed = [
        allowed(&executor.allow_methods),
        allowed(&executor.allow_tools),
    ];
    // Omit empty permissions, so that the identity matches folders that were written before
    // permissions existed.
    if allowed.iter().any(|names| !names.is_empty()) {
        identity["allowed"] = json!(allowed);
    }
    Ok(identity)
}

/// Prints statistics of the rows, and their number in `test_seen.jsonl`, the only split of
/// `--seen-from`.
fn show_rows(dir: &Path, data_set: &GoatDataSet, catalogue: &ApiCatalogue) -> Result<(), Error> {
    print_statistics(dir, data_set, catalogue)?;
    let n = data_set.splits.test_seen.len();
    print_line(&format!("rows: {n} in test_seen.jsonl"))
}

fn print_statistics(
    dir: &Path,
    data_set: &GoatDataSet,
    catalogue: &ApiCatalogue,
) -> Result<(), Error> {
    let rows: Vec<Trajectory> = data_set
        .splits
        .named_splits()
        .iter()
        .flat_map(|(_, rows)| rows.iter().cloned())
        .collect();
    let file = dir.join(TRAJECTORIES_FILE);
    if rows.is_empty() {
        return Ok(());
    }
    let statistics = trajectory_statistics(&rows, Some(catalogue), None);
    print_line(&stats::tables(&file, &statistics).join("\n"))
}

/// Prints row statistics and draws the graph.
fn show(dir: &Path, data_set: &GoatDataSet, catalogue: &ApiCatalogue) -> Result<(), Error> {
    print_statistics(dir, data_set, catalogue)?;
    let splits: Vec<String> = data_set
        .splits
        .named_splits()
        .iter()
        .map(|(name, rows)| format!("{} in {name}.jsonl", rows.len()))
        .collect();
    print_line(&format!(
        "rows: {}; {} pairs in {PAIRS_FILE}",
        splits.join(", "),
        data_set.n_pairs
    ))?;
    if !data_set.splits.held_out.is_empty() {
        let held_out = data_set.splits.held_out.join(", ");
        print_line(&format!("only test_unseen calls {held_out}"))?;
    }
    let edges: Vec<GraphEdge> = data_set
        .edges
        .iter()
        .map(|edge| GraphEdge {
            source: edge.source.clone(),
            target: edge.target.clone(),
            parameter: edge.parameter.clone(),
            reason: edge.reason.clone().unwrap_or_default(),
        })
        .collect();
    let page = dir.join(PAGE_FILE);
    let title = format!("Dependencies between the APIs of {}", dir.display());
    write_atomic(&page, render_graph(&title, &edges)?.as_bytes())?;
    print_line(&format!("API graph in {}", page.display()))
}
