//! The options of single suites of `eval`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tooltune_data::benchmarks::toolqa::Setting;

/// How a response is shortened in prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PromptReduction {
    /// As the benchmark does: a list item stays if it brings a new key.
    Official,
    /// The first item of a list, and those that bring a new path of keys.
    Paths,
}

/// The settings of the tool-output benchmark by their names.
fn setting() -> impl TypedValueParser<Value = Setting> {
    let names = PossibleValuesParser::new(Setting::ALL.map(Setting::name));
    names.try_map(|name| Setting::named(&name).ok_or("no such setting"))
}

/// Options of the suite toolqa.
#[derive(Debug, Args)]
#[command(next_help_heading = "Suite toolqa")]
pub struct ToolQaArgs {
    /// JSON Lines file of the responses that the questions are about.
    #[arg(long)]
    pub responses: Option<PathBuf>,
    /// What the prompt shows and asks for.
    #[arg(long, value_parser = setting(), default_value = Setting::Answer.name())]
    pub setting: Setting,
    /// Folder of released schemas by endpoint; inferred from each response by default.
    #[arg(long)]
    pub schemas: Option<PathBuf>,
    /// Shorten responses in every setting, for models whose context does not hold the whole.
    #[arg(long, value_enum)]
    pub reduce: Option<PromptReduction>,
    /// Show responses to code settings as Python writes them, as in the published runs.
    #[arg(long)]
    pub python_repr: bool,
    /// Run the functions that the model writes, each in a sandbox; settings for code need it.
    #[arg(long)]
    pub run_code: bool,
    /// Run them even where the machine cannot isolate them: only code that is trusted, or a machine
    /// that is thrown away.
    #[arg(long, requires = "run_code")]
    pub allow_unisolated: bool,
    /// The Python that runs them, a path or a name in PATH.
    #[arg(long, default_value = "python3")]
    pub python: String,
}

/// Options of the suite nestful.
#[derive(Debug, Args)]
#[command(next_help_heading = "Suite nestful")]
pub struct NestfulArgs {
    /// The prompt and the parser of this model family: json_list, granite31, llama, hammer, hermes,
    /// xlam, tool_ace or lenient, or a name in the file of --prompts.
    #[arg(long, default_value = "json_list")]
    pub family: String,
    /// Examples in the prompt, 0, 1 and 3 in the paper.
    #[arg(long, default_value_t = 3)]
    pub n_examples: usize,
    /// Write the tools as a JSON string that holds JSON, as the published scripts do.
    #[arg(long)]
    pub tools_twice: bool,
}
