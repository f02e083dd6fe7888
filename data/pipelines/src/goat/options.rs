//! What is made of which documents, and what of it replies follow from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::global_functions;
use tooltune_rows::tools::{ApiCatalogue, ApiDocument};

use super::earlier::Earlier;
use super::splits::SplitShares;
use crate::error::PipelineError;
use crate::run::digest_of;
use crate::run::{MAX_TOKENS, check_range};

/// What is made.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatOptions {
    /// The file of API documents.
    pub documents: PathBuf,
    /// Whether the global functions are among the APIs.
    pub has_global_functions: bool,
    /// The folder of a run whose rows of training are made anew, with other values.
    pub seen_from: Option<PathBuf>,
    /// Tools, or APIs, that the test on unseen ones alone calls; drawn by default.
    pub hold_out: Vec<String>,
    /// Least cosine of an edge.
    pub threshold: f64,
    /// Most edges that a model is asked about, the most alike ones; all by default.
    pub max_edges: Option<usize>,
    /// Fewest calls of a task.
    pub min_calls: usize,
    /// Most calls of a task.
    pub max_calls: usize,
    /// Most sub-graphs that are met.
    pub max_subgraphs: usize,
    /// Most tasks that are drawn, of which each may become a row.
    pub rows: usize,
    /// The parts of the splits.
    pub shares: SplitShares,
    /// Seed of all draws.
    pub seed: u64,
    /// At which values are made up.
    pub temperature: f64,
    /// Characters of a result in a prompt.
    pub output_limit: usize,
    /// Tokens that a reply may have.
    pub reply_tokens: usize,
    /// What tells the encoder from others, such as a digest of its weights.
    pub encoder: String,
    /// What tells the executor from others.
    pub executor: Value,
}

/// Calls of a task: sixteen times those of the paper.
const MAX_CALLS: usize = 64;

/// Refuses numbers that cannot be.
pub(super) fn check(options: &GoatOptions) -> Result<(), PipelineError> {
    let SplitShares {
        dev,
        test_seen,
        test_unseen,
    } = options.shares;
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    let sum = dev + test_seen + test_unseen;
    let fault = if options.rows == 0 {
        "--rows 0: nothing is made; give at least 1".to_owned()
    } else if !(-1.0..=1.0).contains(&options.threshold) {
        let threshold = options.threshold;
        format!("--threshold {threshold}: give a cosine, a number from -1 to 1")
    } else if options.min_calls == 0 || options.min_calls > options.max_calls {
        let (min, max) = (options.min_calls, options.max_calls);
        format!("--min-calls {min} and --max-calls {max}: give the fewest first, at least 1")
    } else if options.max_calls > MAX_CALLS {
        let max = options.max_calls;
        format!("--max-calls {max}: give at most {MAX_CALLS}, as a task has no more APIs")
    } else if options.max_edges == Some(0) {
        "--max-edges 0: no edge is asked about; give at least 1".to_owned()
    } else if !(0.0..=2.0).contains(&options.temperature) {
        let temperature = options.temperature;
        format!("--temperature {temperature}: give a number from 0 to 2")
    } else if ![dev, test_seen, test_unseen].into_iter().all(is_share) || sum > 1.0 {
        "the shares of the splits: give numbers from 0 to 1 that are at most 1 together".to_owned()
    } else {
        return check_range("--reply-tokens", options.reply_tokens, MAX_TOKENS);
    };
    Err(PipelineError::Usage(fault))
}

/// The documents of the file, and those of the global functions.
pub(super) fn catalogue_of(options: &GoatOptions) -> Result<ApiCatalogue, PipelineError> {
    let catalogue = ApiCatalogue::read(&options.documents)?;
    if !options.has_global_functions {
        return Ok(catalogue);
    }
    let mut documents = catalogue.documents().to_vec();
    let ours = global_functions();
    documents.extend(
        ours.into_iter()
            .filter(|ours| !catalogue.documents().contains(ours)),
    );
    Ok(ApiCatalogue::new(documents)?)
}

/// Refuses names that are of no tool, and those of all.
pub(super) fn check_held_out(
    hold_out: &[String],
    catalogue: &ApiCatalogue,
) -> Result<(), PipelineError> {
    let is_of = |document: &ApiDocument, name: &String| {
        document.tool_name == *name || document.call_name() == *name
    };
    for name in hold_out {
        if !catalogue.iter().any(|document| is_of(document, name)) {
            let tools: BTreeSet<&str> = catalogue.iter().map(|d| d.tool_name.as_str()).collect();
            let tools = tools.into_iter().filter(|tool| !tool.is_empty());
            return Err(PipelineError::Usage(format!(
                "--hold-out {name}: no tool and no API has this name{}; the tools are {}",
                catalogue.hint(name),
                tools.collect::<Vec<_>>().join(", ")
            )));
        }
    }
    let is_held_out = |document: &ApiDocument| hold_out.iter().any(|name| is_of(document, name));
    if !catalogue.is_empty() && catalogue.iter().all(is_held_out) {
        return Err(PipelineError::Usage(
            "--hold-out names every API, so that nothing is left for training; name fewer"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Everything that replies follow from, besides prompts and generator.
pub(super) fn settings_of(
    options: &GoatOptions,
    earlier: Option<&Earlier>,
) -> Result<Map<String, Value>, PipelineError> {
    let mut settings = json!({
        "pipeline": "goat",
        "documents": digest_of(&options.documents)?,
        "global-functions": options.has_global_functions,
        "rows": options.rows,
        "seed": options.seed,
        "temperature": options.temperature,
        "output-limit": options.output_limit,
        "reply-tokens": options.reply_tokens,
        "executor": options.executor,
    });
    let of_origin = match earlier {
        Some(earlier) => json!({"seen-from": earlier.digest}),
        None => json!({
            "threshold": options.threshold,
            "max-edges": options.max_edges,
            "min-calls": options.min_calls,
            "max-calls": options.max_calls,
            "max-subgraphs": options.max_subgraphs,
            "encoder": options.encoder,
        }),
    };
    if let (Some(settings), Value::Object(of_origin)) = (settings.as_object_mut(), of_origin) {
        settings.extend(of_origin);
    }
    Ok(settings.as_object().cloned().unwrap_or_default())
}
