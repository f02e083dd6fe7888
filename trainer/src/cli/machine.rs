//! The options of verbs that compute: where, and with how many threads.

use clap::Args;

/// Where a verb computes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// Where to compute, in place of the config's `device`: cpu, cuda or cuda:INDEX.
    #[arg(long)]
    pub device: Option<String>,
    /// Threads on the CPU, at most 8 for each core or 256; one for each core by default.
    #[arg(long)]
    pub threads: Option<usize>,
}

/// A verb that computes: its own options, and where.
#[derive(Debug, Args)]
pub struct OnMachine<T: Args> {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub args: T,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineArgs,
}
