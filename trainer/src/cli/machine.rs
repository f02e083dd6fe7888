//! The options for the device and the number of threads.

use clap::Args;

/// The device and the number of threads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// Device: cpu, cuda or cuda:INDEX; overrides the config's `device`.
    #[arg(long)]
    pub device: Option<String>,
    /// CPU threads: by default one per core, at most 8 per core or 256.
    #[arg(long)]
    pub threads: Option<usize>,
}

/// The options of a command that computes, with the options for the machine.
#[derive(Debug, Args)]
pub struct OnMachine<T: Args> {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub args: T,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineArgs,
}
