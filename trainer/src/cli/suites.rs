//! The options of single suites of `eval`, which are laid over the config's tables.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tooltune_agents::truncation::check_filter;
use tooltune_suites::toolqa::Setting;

use crate::config::{
    NestfulConfig, ResponseReduction, SandboxConfig, ToolQaConfig, nestful_family,
};
use crate::error::Error;

/// Options of the suite toolqa.
#[derive(Debug, Args)]
#[command(next_help_heading = "Suite toolqa")]
pub struct ToolQaArgs {
    /// JSON Lines file of the responses that the questions are about.
    #[arg(long)]
    pub responses: Option<PathBuf>,
    /// What the prompt shows and asks for; "answer" by default.
    #[arg(long, value_parser = setting_parser())]
    pub setting: Option<Setting>,
    /// Longest answer, with its reasoning, or function, in tokens; 1000 by default, as in the paper.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_new_tokens: Option<u64>,
    /// Folder of released schemas by endpoint; inferred from each response by default.
    #[arg(long)]
    pub schemas: Option<PathBuf>,
    /// Shorten responses in every setting, for models whose context does not hold the whole.
    #[arg(long, value_enum)]
    pub reduce: Option<ResponseReduction>,
    /// Items of a list that stay, for --reduce truncate; 10 by default.
    #[arg(long)]
    pub max_items: Option<usize>,
    /// Levels that stay, for --reduce truncate; 4 by default.
    #[arg(long)]
    pub max_depth: Option<usize>,
    /// Characters that stay, for --reduce truncate; 50000 by default.
    #[arg(long)]
    pub max_chars: Option<usize>,
    /// JMESPath expression that picks parts first, for --reduce truncate.
    #[arg(long)]
    pub jmespath: Option<String>,
    /// Show responses to code settings as Python writes them, as in the published runs.
    #[arg(long)]
    pub python_repr: bool,
    /// Run the functions that the model writes, each in a sandbox; settings for code need it.
    #[arg(long)]
    pub run_code: bool,
    /// Ask for the type of each question instead of its answer, as the paper's classifier does.
    #[arg(long, conflicts_with_all = ["predictions", "run_code"])]
    pub classify: bool,
}

/// Options of the suite nestful.
#[derive(Debug, Args)]
#[command(next_help_heading = "Suite nestful")]
pub struct NestfulArgs {
    /// The prompt and the parser of this model family.
    #[arg(long, help = nestful_family("the file of --prompts"))]
    pub family: Option<String>,
    /// Examples in the prompt: 0, 1 and 3 in the paper, 3 by default.
    #[arg(long)]
    pub n_examples: Option<usize>,
    /// Write the tools as a JSON string that holds JSON, as the published scripts do.
    #[arg(long)]
    pub tools_twice: bool,
    /// Have the model call one function after another, each result shown before the next (ReAct).
    #[arg(long)]
    pub react: bool,
    /// The benchmark's data_v2/executable_functions, run in the sandbox; without it only rows of
    /// arithmetic have win rates.
    #[arg(long)]
    pub exec_dir: Option<PathBuf>,
}

/// What runs functions for these suites.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox of toolqa and nestful")]
pub struct SandboxArgs {
    /// Run functions even where the machine cannot isolate them: only code that is trusted, or a
    /// machine that is thrown away.
    #[arg(long)]
    pub allow_unisolated: bool,
    /// The Python that runs them, a path or a name in PATH; python3 by default.
    #[arg(long)]
    pub python: Option<String>,
}

fn setting_parser() -> impl TypedValueParser<Value = Setting> {
    let names = PossibleValuesParser::new(Setting::ALL.map(Setting::name));
    names.try_map(|name| Setting::named(&name).ok_or("no setting has this name"))
}

impl ToolQaArgs {
    /// The config's table with what was typed in place of its own; `prompts` is `--prompts`.
    ///
    /// # Errors
    ///
    /// An option of `--reduce truncate` where responses are not shortened so, or an expression that
    /// is none.
    pub fn over(
        &self,
        table: Option<&ToolQaConfig>,
        prompts: Option<&PathBuf>,
    ) -> Result<ToolQaConfig, Error> {
        let table = table.cloned().unwrap_or_default();
        let reduce = self.reduce.or(table.reduce);
        self.check_truncation(reduce)?;
        Ok(ToolQaConfig {
            responses: self.responses.clone().or(table.responses),
            setting: self.setting.unwrap_or(table.setting),
            max_new_tokens: self
                .max_new_tokens
                .map_or(table.max_new_tokens, |most| most as usize),
            schemas: self.schemas.clone().or(table.schemas),
            reduce,
            max_items: self.max_items.or(table.max_items),
            max_depth: self.max_depth.or(table.max_depth),
            max_chars: self.max_chars.or(table.max_chars),
            jmespath: self.jmespath.clone().or(table.jmespath),
            python_repr: self.python_repr || table.python_repr,
            run_code: self.run_code || table.run_code,
            prompts: prompts.cloned().or(table.prompts),
            ..table
        })
    }

    /// Refuses options of `--reduce truncate` where responses are not shortened so.
    fn check_truncation(&self, reduce: Option<ResponseReduction>) -> Result<(), Error> {
        let typed = [
            ("--max-items", self.max_items.is_some()),
            ("--max-depth", self.max_depth.is_some()),
            ("--max-chars", self.max_chars.is_some()),
            ("--jmespath", self.jmespath.is_some()),
        ];
        let typed = typed.into_iter().find(|(_, is_typed)| *is_typed);
        if let (Some((option, _)), true) = (typed, reduce != Some(ResponseReduction::Truncate)) {
            return Err(Error::Usage(format!(
                "{option} is for responses that are truncated: add --reduce truncate, or leave \
                 {option} out"
            )));
        }
        match self.jmespath.as_deref().map(check_filter) {
            Some(Err(error)) => Err(Error::Usage(format!(
                "--jmespath: {error}; write an expression such as \"data[].{{id: id, name: name}}\""
            ))),
            _ => Ok(()),
        }
    }
}

impl NestfulArgs {
    /// The config's table with what was typed in place of its own; `prompts` is `--prompts`.
    pub fn over(&self, table: Option<&NestfulConfig>, prompts: Option<&PathBuf>) -> NestfulConfig {
        let table = table.cloned().unwrap_or_default();
        NestfulConfig {
            family: self.family.clone().unwrap_or(table.family),
            n_examples: self.n_examples.unwrap_or(table.n_examples),
            tools_twice: self.tools_twice || table.tools_twice,
            react: self.react || table.react,
            exec_dir: self.exec_dir.clone().or(table.exec_dir),
            prompts: prompts.cloned().or(table.prompts),
            ..table
        }
    }
}

impl SandboxArgs {
    /// The config's table with what was typed in place of its own.
    pub fn over(&self, table: &SandboxConfig) -> SandboxConfig {
        SandboxConfig {
            python: self.python.clone().unwrap_or_else(|| table.python.clone()),
            allow_unisolated: self.allow_unisolated || table.allow_unisolated,
        }
    }
}
