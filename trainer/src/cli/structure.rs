//! The options of `structure`.

use std::path::PathBuf;

use clap::{Args, value_parser};

use super::{ModelArgs, extra_body};

/// `tooltune structure runs/slot --data texts.jsonl --output answers.jsonl`
#[derive(Debug, Args)]
pub struct StructureArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// JSON Lines file of {"id", "text", "json_schema"}, of any length; may be repeated; - for standard
    /// input. Rows without an id are named by their position. SLOT rows are also accepted.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// Structure only this text, by --schema; - for standard input, without its final line break.
    #[arg(
        long,
        value_name = "TEXT",
        requires = "schema",
        conflicts_with = "data"
    )]
    pub text: Option<String>,
    /// Send this prompt to the first model and structure its answer by --schema; - for standard
    /// input.
    #[arg(
        long,
        value_name = "TEXT",
        requires_all = ["schema", "upstream_endpoint"],
        conflicts_with_all = ["data", "text"]
    )]
    pub prompt: Option<String>,
    /// JSON file with the JSON Schema for --text, or for rows without their own schema.
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Output file (JSON Lines) of {"id", "json", "valid", "violations"}, in the order of the rows;
    /// standard output by default. Results are written to FILE.partial first, from which the same
    /// command resumes. An existing FILE is not overwritten.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Generate without constrained decoding. Answers are validated, and an invalid one is
    /// generated once more.
    #[arg(long)]
    pub free: bool,
    /// Skip and count invalid rows. By default, an invalid row gets an answer with its error, and
    /// the command fails at the end.
    #[arg(long)]
    pub skip_broken: bool,
    /// Send the "prompt" of each row to a first model on this OpenAI-compatible server, and
    /// structure its answer. Rows then need no text. Give the part of the URL before
    /// /chat/completions, as in http://localhost:8000/v1.
    #[arg(
        long,
        value_name = "URL",
        requires = "upstream_model",
        conflicts_with = "text"
    )]
    pub upstream_endpoint: Option<String>,
    /// Name of the first model on the server.
    #[arg(long, value_name = "NAME", requires = "upstream_endpoint")]
    pub upstream_model: Option<String>,
    /// Maximum number of tokens of an answer of the first model.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        requires = "upstream_endpoint"
    )]
    pub upstream_max_tokens: usize,
    /// Environment variable that contains the server's key.
    #[arg(long, value_name = "VARIABLE", requires = "upstream_endpoint")]
    pub api_key_env: Option<String>,
    /// Maximum number of concurrent requests, up to 1024.
    #[arg(long, default_value_t = 8, requires = "upstream_endpoint", value_parser = value_parser!(u16).range(1..=1024))]
    pub concurrency: u16,
    /// JSON object of additional request fields.
    #[arg(long, value_name = "JSON", value_parser = extra_body, requires = "upstream_endpoint")]
    pub extra_body: Option<serde_json::Map<String, serde_json::Value>>,
}
