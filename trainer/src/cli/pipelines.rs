//! The options of the data pipelines that use a language model.

use std::path::PathBuf;

use clap::{Args, value_parser};

use super::extra_body;

/// The language model: on a server, or local.
#[derive(Debug, Args)]
#[group(skip)]
pub struct GeneratorArgs {
    /// Use this OpenAI-compatible server, such as vLLM, llama.cpp or a provider. Give the part of
    /// the URL before /chat/completions, as in http://localhost:8000/v1.
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "model",
        conflicts_with = "model"
    )]
    pub endpoint: Option<String>,
    /// Name of the model on the server.
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub endpoint_model: Option<String>,
    /// Environment variable that contains the server's key.
    #[arg(long, value_name = "VARIABLE", requires = "endpoint")]
    pub api_key_env: Option<String>,
    /// Maximum number of concurrent requests, up to 1024.
    #[arg(long, default_value_t = 8, requires = "endpoint", value_parser = value_parser!(u16).range(1..=1024))]
    pub concurrency: u16,
    /// Maximum number of retries if the server is busy or fails, up to 20.
    #[arg(long, default_value_t = 4, requires = "endpoint")]
    pub retries: usize,
    /// Timeout of one attempt in seconds, including the whole reply.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600.0,
        requires = "endpoint"
    )]
    pub timeout: f64,
    /// JSON object of additional request fields.
    #[arg(long, value_name = "JSON", value_parser = extra_body, requires = "endpoint")]
    pub extra_body: Option<serde_json::Map<String, serde_json::Value>>,
    /// Send no schema, for servers without response_format.
    #[arg(long, requires = "endpoint")]
    pub no_response_format: bool,
    /// Use a local model: run directory, config, checkpoint, adapter or base model.
    #[arg(long, value_name = "TARGET")]
    pub model: Option<PathBuf>,
    /// With --model: base, best, last, a step or an adapter directory.
    #[arg(long, requires = "model")]
    pub checkpoint: Option<String>,
    /// Override a setting of the model's config, as in --set eval.batch_size=32; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "model")]
    pub overrides: Vec<String>,
}

/// The folder of a pipeline, its stages and its budget.
#[derive(Debug, Args)]
pub struct PipelineArgs {
    /// Folder of the pipeline. Every reply is saved before it is used. After an interruption, the same
    /// command continues and repeats only the requests that were in flight.
    #[arg(long)]
    pub output: PathBuf,
    /// Run only this stage, even if it is done. Earlier stages must be done.
    #[arg(long)]
    pub stage: Option<String>,
    /// Repeat the requests of this stage that have no reply or an unparsable reply, even if the
    /// stage is done.
    #[arg(long, value_name = "STAGE", conflicts_with = "dry_run")]
    pub ask_again: Option<String>,
    /// Folder of prompts that replace the built-in prompts of the same names (configs/prompts).
    #[arg(long, value_name = "DIR")]
    pub prompts: Option<PathBuf>,
    /// Print the number of requests and tokens of each stage, without sending or writing anything.
    #[arg(long)]
    pub dry_run: bool,
    /// Maximum number of requests, over all runs in this folder; a retried request counts once.
    #[arg(long)]
    pub max_requests: Option<usize>,
    /// Maximum number of tokens in prompts and replies together, over all runs in this folder.
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Price of a million prompt tokens, for the printed costs.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0, value_parser = parse_price)]
    pub input_price: f64,
    /// Price of a million reply tokens.
    #[arg(long, value_name = "PRICE", default_value_t = 0.0, value_parser = parse_price)]
    pub output_price: f64,
    /// Random seed; equal seeds give equal requests.
    #[arg(long, default_value_t = 17)]
    pub seed: u64,
}

/// The maximum price of a million tokens. The most expensive models cost some hundred dollars.
const MAX_PRICE: f64 = 1e6;

/// A price of a million tokens.
fn parse_price(text: &str) -> Result<f64, String> {
    let price: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match (0.0..=MAX_PRICE).contains(&price) {
        true => Ok(price),
        false => Err(format!("give a price from 0 to {MAX_PRICE}")),
    }
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
    /// Number of pairs to request; pairs that fail a validation are not replaced.
    #[arg(long, default_value_t = 300, conflicts_with = "texts")]
    pub rows: usize,
    /// Generate schema and JSON for the texts of this file instead of whole pairs. The file has JSON
    /// Lines or a JSON array of strings, of objects with input_text or text, of ToTTo tables, or of
    /// GitHub issues.
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// SLOT rows from which one to three examples per prompt are drawn; synthetic rows by default.
    #[arg(long, value_name = "FILE")]
    pub demonstrations: Option<PathBuf>,
    /// Also print the complexity of these SLOT rows, for comparison; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub compare: Vec<PathBuf>,
    /// Maximum number of tokens of a reply with pairs.
    #[arg(long, default_value_t = 4096)]
    pub reply_tokens: usize,
    /// Maximum number of tokens of a judge's verdict.
    #[arg(long, default_value_t = 512)]
    pub verdict_tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_prices_are_refused() {
        for (text, expected) in [("0", 0.0), ("0.15", 0.15), ("1000000", 1e6)] {
            assert_eq!(parse_price(text), Ok(expected));
        }
        for text in ["nan", "inf", "-1", "1e308", "cheap", ""] {
            assert!(parse_price(text).is_err(), "{text}");
        }
    }
}
