//! The options of the sandbox, which override its table in the config.

use clap::Args;

use crate::config::SandboxConfig;

/// The sandbox for functions.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxArgs {
    /// Run functions even if this machine cannot isolate them. Use it only for trusted code or on a
    /// disposable machine.
    #[arg(long)]
    pub allow_unisolated: bool,
    /// Python interpreter for the functions, a path or a name in PATH; python3 by default.
    #[arg(long)]
    pub python: Option<String>,
}

impl SandboxArgs {
    /// The table of the config, overridden by these options.
    pub fn override_table(&self, table: &SandboxConfig) -> SandboxConfig {
        SandboxConfig {
            python: self.python.clone().unwrap_or_else(|| table.python.clone()),
            allow_unisolated: self.allow_unisolated || table.allow_unisolated,
        }
    }
}
