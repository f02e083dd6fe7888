//! The options of the sandbox, which are laid over its table.

use clap::Args;

use crate::config::SandboxConfig;

/// What runs functions for these suites.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxArgs {
    /// Run functions even where the machine cannot isolate them: only code that is trusted, or a
    /// machine that is thrown away.
    #[arg(long)]
    pub allow_unisolated: bool,
    /// The Python that runs them, a path or a name in PATH; python3 by default.
    #[arg(long)]
    pub python: Option<String>,
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
