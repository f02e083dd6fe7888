//! The options of `structure`.

use std::path::PathBuf;

use clap::{Args, value_parser};

use super::{ModelArgs, json_object};

/// `tooltune structure runs/slot --data texts.jsonl --output answers.jsonl`
#[derive(Debug, Args)]
pub struct StructureArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// JSON Lines of texts, {"id", "text", "json_schema"}, of any length; may be repeated, and a hyphen
    /// reads the standard input. Without an id a row is named by its place; rows of SLOT serve, too.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<PathBuf>,
    /// Structure this text alone, by --schema. A hyphen reads it from standard input.
    #[arg(
        long,
        value_name = "TEXT",
        requires = "schema",
        conflicts_with = "data"
    )]
    pub text: Option<String>,
    /// Ask the first model this, and structure its answer, by --schema. A hyphen reads it from
    /// standard input.
    #[arg(
        long,
        value_name = "TEXT",
        requires_all = ["schema", "upstream_endpoint"],
        conflicts_with_all = ["data", "text"]
    )]
    pub prompt: Option<String>,
    /// JSON file with the JSON Schema of --text, or of rows that have none of their own.
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// JSON Lines file of answers, {"id", "json", "valid", "violations"}, in the order of the rows; the
    /// terminal by default. It grows as FILE.partial, from which the same command resumes, and an
    /// existing FILE is never overwritten.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write texts freely, in place of allowing only tokens that keep to their schema. Free texts are
    /// validated, and one that is not valid is asked for once more.
    #[arg(long)]
    pub free: bool,
    /// Count rows that cannot be read, and give them no answer; by default each has one with its
    /// error, and the command fails at its end.
    #[arg(long)]
    pub skip_broken: bool,
    /// A first model: rows have a "prompt" in place of a text, which this OpenAI-compatible server
    /// answers, and its answer is structured. The URL before /chat/completions, as in
    /// http://localhost:8000/v1.
    #[arg(
        long,
        value_name = "URL",
        requires = "upstream_model",
        conflicts_with = "text"
    )]
    pub upstream_endpoint: Option<String>,
    /// That server's name for the model.
    #[arg(long, value_name = "NAME", requires = "upstream_endpoint")]
    pub upstream_model: Option<String>,
    /// Longest answer of the first model, in tokens.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        requires = "upstream_endpoint"
    )]
    pub upstream_max_tokens: usize,
    /// The environment variable that holds the server's key.
    #[arg(long, value_name = "VARIABLE", requires = "upstream_endpoint")]
    pub api_key_env: Option<String>,
    /// Requests to the server at once, at most 1024.
    #[arg(long, default_value_t = 8, requires = "upstream_endpoint", value_parser = value_parser!(u16).range(1..=1024))]
    pub concurrency: u16,
    /// A JSON object of further fields of every request.
    #[arg(long, value_name = "JSON", value_parser = json_object, requires = "upstream_endpoint")]
    pub extra_body: Option<serde_json::Map<String, serde_json::Value>>,
}
