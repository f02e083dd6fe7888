//! The options of the data pipelines that a language model drives.

use std::path::PathBuf;

use clap::{Args, value_parser};

use super::json_object;

/// What generates: a server, or a model here.
#[derive(Debug, Args)]
#[group(skip)]
pub struct GeneratorArgs {
    /// Ask this OpenAI-compatible server, such as vLLM, llama.cpp or a provider: the URL before
    /// /chat/completions, as in http://localhost:8000/v1.
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "model",
        conflicts_with = "model"
    )]
    pub endpoint: Option<String>,
    /// The server's name for the model.
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub endpoint_model: Option<String>,
    /// The environment variable that holds the server's key.
    #[arg(long, value_name = "VARIABLE", requires = "endpoint")]
    pub api_key_env: Option<String>,
    /// Requests to the server at once, at most 1024.
    #[arg(long, default_value_t = 8, requires = "endpoint", value_parser = value_parser!(u16).range(1..=1024))]
    pub concurrency: u16,
    /// Attempts after the first of a request that a busy or failing server does not answer, at most
    /// 20.
    #[arg(long, default_value_t = 4, requires = "endpoint")]
    pub retries: usize,
    /// Seconds for one attempt; a reply is waited for as a whole.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600.0,
        requires = "endpoint"
    )]
    pub timeout: f64,
    /// A JSON object of further fields of every request.
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "endpoint")]
    pub extra_body: Option<serde_json::Map<String, serde_json::Value>>,
    /// Name no schema in requests, for a server that knows no response_format.
    #[arg(long, requires = "endpoint")]
    pub no_response_format: bool,
    /// Write with a model here: a run, a config, a checkpoint, an adapter or a model alone.
    #[arg(long, value_name = "TARGET")]
    pub model: Option<PathBuf>,
    /// base, best, last, a step or an adapter directory, with --model.
    #[arg(long, requires = "model")]
    pub checkpoint: Option<String>,
    /// Replace a setting of that model's config, as in --set eval.batch_size=32; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "model")]
    pub overrides: Vec<String>,
}

/// Where a pipeline runs, how far, and what it may take.
#[derive(Debug, Args)]
pub struct PipelineArgs {
    /// Folder of the pipeline. Every reply is kept there before it is used, so that the same command
    /// continues after an interruption and sends nothing twice but what was under way.
    #[arg(long)]
    pub output: PathBuf,
    /// Make this stage alone, also if it is done; those before it must be.
    #[arg(long)]
    pub stage: Option<String>,
    /// Folder with prompts to take in place of the built-in ones of the same names
    /// (configs/prompts).
    #[arg(long, value_name = "DIR")]
    pub prompts: Option<PathBuf>,
    /// Count the requests and tokens of each stage; nothing is sent or written.
    #[arg(long)]
    pub dry_run: bool,
    /// Requests that may be sent, over all runs in this folder; one that is repeated counts once.
    #[arg(long)]
    pub max_requests: Option<usize>,
    /// Tokens that prompts and replies may take together, over all runs in this folder.
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Price of a million tokens of prompts, for the costs that are shown.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0)]
    pub input_price: f64,
    /// Price of a million tokens of replies.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0)]
    pub output_price: f64,
    /// Equal seeds give equal requests.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
}

/// `tooltune data slot --output pairs --endpoint http://localhost:8000/v1 --rows 900`
#[derive(Debug, Args)]
pub struct DataSlotArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub pipeline: PipelineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generator: GeneratorArgs,
    /// Pairs to ask for; those that fail a validation are not asked for again.
    #[arg(long, default_value_t = 300, conflicts_with = "texts")]
    pub rows: usize,
    /// Let the model write schema and JSON of the texts of this file instead of whole pairs: JSON
    /// Lines or a JSON array of texts, of objects with input_text or text, of ToTTo's tables, or of
    /// GitHub issues.
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// SLOT rows of which one to three are shown in each prompt; rows made by rule by default.
    #[arg(long, value_name = "FILE")]
    pub demonstrations: Option<PathBuf>,
    /// Show how complex these SLOT rows are beside the result; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub compare: Vec<PathBuf>,
    /// Tokens that a reply with pairs may have.
    #[arg(long, default_value_t = 4096)]
    pub reply_tokens: usize,
    /// Tokens that a verdict of the judge may have.
    #[arg(long, default_value_t = 512)]
    pub verdict_tokens: usize,
}
