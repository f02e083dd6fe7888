//! Lets a language model make trajectories of API documents, and draws their dependencies
//! (`data goat`).

use std::path::Path;

use serde_json::{Value, json};
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_pipelines::goat::{
    EdgeTruth, GoatMade, GoatOptions, GoatPipeline, GoatPlace, PAIRS_FILE, SplitShares,
    TRAJECTORIES_FILE,
};
use tooltune_pipelines::{Limits, Place};
use tooltune_report::{GraphEdge, render_graph};
use tooltune_rows::tools::{ApiCatalogue, Trajectory};
use tooltune_synth::statistics::trajectory_statistics;

use super::pipelines::{
    Atomic, View, print_notes, print_plan, print_report, table, with_generator, with_model_info,
    with_report,
};
use super::{DeviceOption, data_stats, print_line};
use crate::cli::DataGoatArgs;
use crate::config::{self, ExecutorConfig, ExecutorKind, GoatConfig, LoadedConfig, Source};
use crate::encoder::MiniLmEncoder;
use crate::error::Error;
use crate::eval::suites::open_executor;

/// The page with the drawing.
const PAGE_FILE: &str = "graph.html";
/// How right the edges are.
const SCORES_FILE: &str = "edge_scores.json";
/// The weights of an encoder.
const ENCODER_WEIGHTS: &str = "model.safetensors";

pub(super) fn run(args: &DataGoatArgs, place: &DeviceOption) -> Result<(), Error> {
    let goat = goat_settings(args)?;
    let pipeline = GoatPipeline::read(
        options(args, &goat.executor)?,
        args.pipeline.prompts.as_deref(),
    )?;
    if args.pipeline.dry_run {
        let dir = &args.pipeline.output;
        let plans = with_model_info(&args.generator, |model| Ok(pipeline.plan(dir, model)?))?;
        return print_plan(&args.pipeline, &plans);
    }
    let catalogue = pipeline.catalogue().clone();
    // What is wrong with them is said before anything is paid for.
    let truth = match &args.true_edges {
        Some(path) => Some(EdgeTruth::read(path, &catalogue)?),
        None => None,
    };
    let mut executor = open_executor(&goat, &catalogue)?;
    let encoder = match args.seen_from {
        Some(_) => None,
        None => {
            let device = place.open(config::Device::Cpu)?;
            Some(MiniLmEncoder::open(&args.retriever, &device)?)
        }
    };
    let _lock = args.pipeline.lock()?;
    let outcome = with_generator(&args.generator, place, |generator| {
        let mut view = View::begin(&args.pipeline);
        let outcome = pipeline.run(GoatPlace {
            place: Place {
                dir: &args.pipeline.output,
                generator,
                files: &Atomic,
                limits: Limits {
                    max_api_calls: args.max_api_calls,
                    ..args.pipeline.limits()
                },
                only: args.pipeline.stage.as_deref(),
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
    match &outcome.made {
        Some(made) if args.seen_from.is_some() => {
            show_rows(&args.pipeline.output, made, &catalogue)
        }
        Some(made) => show(&args.pipeline.output, made, &catalogue),
        None => Ok(()),
    }
}

/// How right the edges are after each stage, as the paper's Table 7.
fn print_scores(dir: &Path, truth: &EdgeTruth) -> Result<(), Error> {
    let scores = truth.scores(dir)?;
    let mut shown = table(&["edges", "kept", "settled", "right", "precision", "recall"]);
    let cell = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{part:.2}"));
    for of in &scores {
        shown.add_row([
            of.stage.to_owned(),
            of.n_edges.to_string(),
            of.n_settled.to_string(),
            of.n_right.to_string(),
            cell(of.precision),
            cell(of.recall),
        ]);
    }
    print_line(&shown.trim_fmt())?;
    let path = dir.join(SCORES_FILE);
    let mut bytes =
        serde_json::to_vec_pretty(&scores).map_err(|error| Error::Usage(error.to_string()))?;
    bytes.push(b'\n');
    Ok(write_atomic(&path, &bytes)?)
}

/// The table `[goat]` with the executor of the command line.
fn goat_settings(args: &DataGoatArgs) -> Result<GoatConfig, Error> {
    // Nothing is learned; a config has to say all the same of what, from what, and where to.
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

/// What tells an executor from others: its settings but for those of patience and of recording, and its file. The
/// settings are hidden in a digest, since an address may say what nobody else should read.
fn identity(args: &DataGoatArgs, executor: &ExecutorConfig) -> Result<Value, Error> {
    let file = match executor.kind {
        ExecutorKind::Replay => Some(&executor.recorded),
        ExecutorKind::Canned => Some(&executor.responses),
        ExecutorKind::Http => Some(&executor.specification),
        ExecutorKind::Synthetic | ExecutorKind::Mcp | ExecutorKind::Stabletoolbench => None,
    };
    let changes_nothing = |setting: &&String| {
        let key = setting.split('=').next().unwrap_or_default().trim();
        key.ends_with("_secs") || key == "record"
    };
    let mut settings: Vec<&str> = args
        .executor
        .iter()
        .filter(|setting| !changes_nothing(setting))
        .map(String::as_str)
        .collect();
    settings.sort_unstable();
    Ok(json!({
        "kind": executor.kind.to_string(),
        "settings": sha256_bytes(settings.join("\n").as_bytes()),
        "file": file.map(|file| sha256_file(file)).transpose()?,
    }))
}

/// Says what the rows are like, and where they are if all are in one file.
fn show_rows(dir: &Path, made: &GoatMade, catalogue: &ApiCatalogue) -> Result<(), Error> {
    print_statistics(dir, made, catalogue)?;
    let n = made.splits.test_seen.len();
    print_line(&format!("rows: {n} in test_seen.jsonl"))
}

fn print_statistics(dir: &Path, made: &GoatMade, catalogue: &ApiCatalogue) -> Result<(), Error> {
    let rows: Vec<Trajectory> = made
        .splits
        .named()
        .iter()
        .flat_map(|(_, rows)| rows.iter().cloned())
        .collect();
    let file = dir.join(TRAJECTORIES_FILE);
    if rows.is_empty() {
        return Ok(());
    }
    let statistics = trajectory_statistics(&rows, Some(catalogue), None);
    print_line(&data_stats::tables(&file, &statistics).join("\n"))
}

/// Says what the rows are like, and draws the graph.
fn show(dir: &Path, made: &GoatMade, catalogue: &ApiCatalogue) -> Result<(), Error> {
    print_statistics(dir, made, catalogue)?;
    let splits: Vec<String> = made
        .splits
        .named()
        .iter()
        .map(|(name, rows)| format!("{} in {name}.jsonl", rows.len()))
        .collect();
    print_line(&format!(
        "rows: {}; {} pairs in {PAIRS_FILE}",
        splits.join(", "),
        made.n_pairs
    ))?;
    if !made.splits.held_out.is_empty() {
        let held_out = made.splits.held_out.join(", ");
        print_line(&format!("test_unseen alone calls {held_out}"))?;
    }
    let edges: Vec<GraphEdge> = made
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
    print_line(&format!("the graph of the APIs in {}", page.display()))
}
