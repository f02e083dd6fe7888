//! Options of the pipeline, and the settings that replies depend on.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::global_functions;
use tooltune_apis::{ApiCatalogue, ApiDocument};

use super::earlier::EarlierRun;
use super::splits::SplitShares;
use crate::error::PipelineError;
use crate::run::digest_of;
use crate::run::{MAX_TOKENS, check_range};

/// Options of the pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct GoatOptions {
    /// File of API documents.
    pub documents: PathBuf,
    /// Whether the global functions are included.
    pub has_global_functions: bool,
    /// Folder of a run whose training rows are generated again with other values.
    pub seen_from: Option<PathBuf>,
    /// Tools or APIs that only the unseen test split calls; drawn by default.
    pub hold_out: Vec<String>,
    /// Minimum cosine similarity of an edge.
    pub threshold: f64,
    /// Maximum number of edges shown to the model, the most similar ones; all by default.
    pub max_edges: Option<usize>,
    /// Minimum number of calls per task.
    pub min_calls: usize,
    /// Maximum number of calls per task.
    pub max_calls: usize,
    /// Maximum number of sub-graphs enumerated.
    pub max_subgraphs: usize,
    /// Maximum number of tasks drawn; each may become a row.
    pub rows: usize,
    /// Fractions of the splits.
    pub shares: SplitShares,
    /// Seed of all draws.
    pub seed: u64,
    /// Temperature for values that the model makes up.
    pub temperature: f64,
    /// Maximum number of characters of a result in a prompt.
    pub output_limit: usize,
    /// Maximum number of tokens of a reply.
    pub reply_tokens: usize,
    /// Identity of the encoder, such as a digest of its weights.
    pub encoder: String,
    /// Identity of the executor.
    pub executor: Value,
}

/// Upper limit of calls per task, sixteen times the paper's limit.
const MAX_CALLS: usize = 64;

/// Rejects invalid numbers.
pub(super) fn check(options: &GoatOptions) -> Result<(), PipelineError> {
    let SplitShares {
        dev,
        test_seen,
        test_unseen,
    } = options.shares;
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    let sum = dev + test_seen + test_unseen;
    let fault = if options.rows == 0 {
        "--rows 0: set it to at least 1".to_owned()
    } else if !(-1.0..=1.0).contains(&options.threshold) {
        let threshold = options.threshold;
        format!("--threshold {threshold}: set it to a cosine from -1 to 1")
    } else if options.min_calls == 0 || options.min_calls > options.max_calls {
        let (min, max) = (options.min_calls, options.max_calls);
        format!(
            "--min-calls {min} and --max-calls {max}: the minimum must be at least 1 and at most the maximum"
        )
    } else if options.max_calls > MAX_CALLS {
        let max = options.max_calls;
        format!(
            "--max-calls {max}: set it to at most {MAX_CALLS}, the maximum number of APIs per task"
        )
    } else if options.max_edges == Some(0) {
        "--max-edges 0: set it to at least 1".to_owned()
    } else if !(0.0..=2.0).contains(&options.temperature) {
        let temperature = options.temperature;
        format!("--temperature {temperature}: set it to a number from 0 to 2")
    } else if ![dev, test_seen, test_unseen].into_iter().all(is_share) || sum > 1.0 {
        "split fractions: each must be from 0 to 1, and their sum at most 1".to_owned()
    } else {
        return check_range("--reply-tokens", options.reply_tokens, MAX_TOKENS);
    };
    Err(PipelineError::Usage(fault))
}

/// The documents of the file and the global functions.
pub(super) fn catalogue_of(options: &GoatOptions) -> Result<ApiCatalogue, PipelineError> {
    let catalogue = ApiCatalogue::read(&options.documents)?;
    if !options.has_global_functions {
        return Ok(catalogue);
    }
    let mut documents = catalogue.documents().to_vec();
    let builtin = global_functions();
    documents.extend(
        builtin
            .into_iter()
            .filter(|builtin| !catalogue.documents().contains(builtin)),
    );
    Ok(ApiCatalogue::new(documents)?)
}

/// Rejects unknown tools, and a list that holds out all tools.
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
                "--hold-out {name}: unknown tool or API (the tools are {}){}",
                tools.collect::<Vec<_>>().join(", "),
                catalogue.hint(name)
            )));
        }
    }
    let is_held_out = |document: &ApiDocument| hold_out.iter().any(|name| is_of(document, name));
    if !catalogue.is_empty() && catalogue.iter().all(is_held_out) {
        return Err(PipelineError::Usage(
            "--hold-out covers every API, which leaves none for training; hold out fewer"
                .to_owned(),
        ));
    }
    Ok(())
}

/// All settings that replies depend on, except prompts and generator.
pub(super) fn settings_of(
    options: &GoatOptions,
    earlier: Option<&EarlierRun>,
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
    let origin_settings = match earlier {
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
    if let (Some(settings), Value::Object(origin_settings)) =
        (settings.as_object_mut(), origin_settings)
    {
        settings.extend(origin_settings);
    }
    Ok(settings.as_object().cloned().unwrap_or_default())
}
