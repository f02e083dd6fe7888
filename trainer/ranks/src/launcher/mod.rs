//! The launcher's environment variables, as the place of this process in its run.
//!
//! Everything here is a pure function of the variables.

mod environments;
mod hostlist;
mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use hostlist::expand_hostlist;
pub use node::{Node, RequestedRanks};

use crate::token::Token;

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// Variable with the secret of the run, for all ranks. Optional with launchers of others.
pub const TOKEN_VARIABLE: &str = "TOOLTUNE_RANKS_TOKEN";

/// Variable with the leader's `HOST:PORT`, for launchers that do not give it.
pub const LEADER_VARIABLE: &str = "TOOLTUNE_LEADER";

/// Variable with the address or host name on which the leader listens, instead of the launcher's.
pub const LISTEN_VARIABLE: &str = "TOOLTUNE_RANKS_ADDRESS";

/// Variable with a name of the run that all its ranks share and no other run has.
pub const RUN_ID_VARIABLE: &str = "TOOLTUNE_RUN_ID";

/// Variable with the number of hosts, for `--ranks auto` in an indexed Kubernetes job.
pub const NODES_VARIABLE: &str = "TOOLTUNE_NODES";

/// Variable with the process ID of our own launcher. It marks the processes that `--ranks` started.
pub const PARENT_VARIABLE: &str = "TOOLTUNE_RANKS_PARENT";

/// The program that started the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `--ranks` of this program.
    Own,
    /// torchrun and launchers with its variables: Kubeflow's PyTorchJob, Ray Train, DeepSpeed.
    Torchrun,
    /// Kubeflow Trainer v2 (`PET_*`) with `--ranks auto`.
    Kubeflow,
    /// Slurm's srun.
    Slurm,
    /// MPICH's and Intel MPI's mpiexec (hydra).
    Mpich,
    /// Open MPI's mpirun.
    OpenMpi,
    /// SkyPilot with `--ranks auto`.
    SkyPilot,
    /// An indexed Kubernetes job, such as a JobSet's, with `--ranks auto`.
    JobSet,
}

impl Launcher {
    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Own => "--ranks",
            Launcher::Torchrun => "torchrun",
            Launcher::Kubeflow => "Kubeflow Trainer",
            Launcher::Slurm => "srun",
            Launcher::Mpich => "mpiexec",
            Launcher::OpenMpi => "mpirun",
            Launcher::SkyPilot => "SkyPilot",
            Launcher::JobSet => "the Kubernetes job",
        }
    }

    /// Whether this launcher may kill all ranks as soon as one has ended with an error.
    pub fn kills_other_ranks(self) -> bool {
        matches!(self, Launcher::Mpich | Launcher::OpenMpi | Launcher::Slurm)
    }
}

/// Where the leader can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderAddress {
    /// Host name or IP address.
    pub host: String,
    /// The launcher's port. The leader listens on one of the [`PORTS`](crate::PORTS) ports after it.
    pub port: u16,
}

/// The place of this process in its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The program that started this process.
    pub launcher: Launcher,
    /// The rank of this process, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank among those on this host, from 0.
    pub local_rank: usize,
    /// The number of ranks on this host.
    pub local_world_size: usize,
    /// The number of this host, from 0.
    pub node: usize,
    /// Where the leader can be reached; `None` if the launcher does not say.
    pub leader: Option<LeaderAddress>,
    /// On which address or host name the leader listens, if the user chose it.
    pub listen_on: Option<String>,
    /// A name of the run, equal on all ranks. Another attempt of the same job has another one, if
    /// the launcher counts attempts.
    pub run_id: String,
    /// The secret of the run, if there is one.
    pub token: Option<Token>,
    /// Whether the launcher serves MPI libraries (PMI or PMIx), so that MPI can start.
    pub serves_mpi: bool,
    /// The process ID of our own launcher, with which this process ends.
    pub parent: Option<String>,
}

impl Launch {
    /// Whether all ranks are on this host.
    pub fn is_on_one_host(&self) -> bool {
        self.local_world_size == self.world_size
    }
}

/// The role of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Train alone.
    Alone,
    /// Be one rank of a run.
    Rank(Launch),
    /// Start the ranks of this host and wait for them, see [`local`](crate::local).
    Start(Node),
}

/// Why the environment does not describe a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A launcher's variables are incomplete.
    #[error("{present} is set, but {missing} is not ({launcher}); set both or neither")]
    Missing {
        /// The launcher that the variables belong to.
        launcher: &'static str,
        /// The variable that is set.
        present: String,
        /// The variable that is missing.
        missing: String,
    },

    /// A variable does not have the expected format.
    #[error("{variable}={value:?} is not {expected}")]
    Invalid {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },

    /// A variable's value does not match another one.
    #[error("{one} contradicts {other}; {advice}")]
    Contradiction {
        /// A variable and its value.
        one: String,
        /// Another variable and its value.
        other: String,
        /// What to do.
        advice: &'static str,
    },

    /// More ranks than [`RANKS`](crate::budgets::RANKS).
    #[error(
        "{variable} asks for {n} ranks; at most {limit} are possible (RANKS in docs/limits.md)"
    )]
    TooMany {
        /// The variable or option.
        variable: String,
        /// The number of ranks.
        n: usize,
        /// The limit.
        limit: usize,
    },
}

/// Finds out what this process has to do.
///
/// `requested` is the option `--ranks`, and `n_devices` the number of ranks that fit on this host,
/// for `--ranks auto`. Empty variables count as absent.
///
/// # Errors
///
/// - A launcher's variables are incomplete, invalid, or contradict each other.
/// - Two launchers are active and contradict each other, or `--ranks` contradicts one.
/// - There would be more than [`RANKS`](crate::budgets::RANKS) ranks.
pub fn role(
    variables: &Variables,
    requested: Option<RequestedRanks>,
    n_devices: usize,
) -> Result<Role, LaunchError> {
    let variables: Variables = variables
        .iter()
        .filter(|(_, value)| !value.trim().is_empty())
        .map(|(name, value)| (name.clone(), value.trim().to_owned()))
        .collect();
    let launch = environments::find(&variables)?;
    match (launch, requested) {
        // The processes that `--ranks` started have the same option.
        (Some(launch), _) if launch.launcher == Launcher::Own => Ok(Role::Rank(launch)),
        (Some(launch), Some(requested)) if launch.world_size > 1 => {
            Err(LaunchError::Contradiction {
                one: format!("--ranks {requested}"),
                other: format!(
                    "the {} ranks that {} has started",
                    launch.world_size,
                    launch.launcher.name()
                ),
                advice: "remove --ranks",
            })
        }
        (Some(launch), None) => Ok(Role::Rank(launch)),
        (_, None) => Ok(Role::Alone),
        (_, Some(requested)) => {
            let node = Node::find(&variables, requested, n_devices)?;
            if node.n_nodes * node.n_local == 1 {
                Ok(Role::Alone)
            } else {
                Ok(Role::Start(node))
            }
        }
    }
}

/// Reads variables, with errors that name them.
#[derive(Clone, Copy)]
struct Reader<'v> {
    launcher: Launcher,
    variables: &'v Variables,
}

impl<'v> Reader<'v> {
    fn get(self, name: &str) -> Option<&'v str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The first of these variables that is set, with its name.
    fn first_of<'n>(self, names: &[&'n str]) -> Option<(&'n str, &'v str)> {
        names
            .iter()
            .find_map(|name| self.get(name).map(|value| (*name, value)))
    }

    /// A variable that must be set because `because` is.
    fn required(self, name: &str, because: &str) -> Result<&'v str, LaunchError> {
        self.get(name).ok_or_else(|| LaunchError::Missing {
            launcher: self.launcher.name(),
            present: because.to_owned(),
            missing: name.to_owned(),
        })
    }

    fn number(self, name: &str) -> Result<Option<usize>, LaunchError> {
        self.get(name)
            .map(|value| parse_number(name, value))
            .transpose()
    }

    fn required_number(self, name: &str, because: &str) -> Result<usize, LaunchError> {
        parse_number(name, self.required(name, because)?)
    }

    /// The leader's address of the user's variable, if set.
    fn leader_override(self) -> Result<Option<LeaderAddress>, LaunchError> {
        let Some(value) = self.get(LEADER_VARIABLE) else {
            return Ok(None);
        };
        let invalid = || LaunchError::Invalid {
            variable: LEADER_VARIABLE.to_owned(),
            value: value.to_owned(),
            expected: "HOST:PORT",
        };
        let (host, port) = value.rsplit_once(':').ok_or_else(invalid)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(invalid());
        }
        Ok(Some(LeaderAddress {
            host: host.to_owned(),
            port: parse_port(LEADER_VARIABLE, port)?,
        }))
    }

    fn token(self) -> Option<Token> {
        self.get(TOKEN_VARIABLE)
            .map(|secret| Token::new(secret.to_owned()))
    }

    /// The user's name of the run, or this one.
    fn run_id_or(self, own: String) -> String {
        self.get(RUN_ID_VARIABLE).map_or(own, str::to_owned)
    }
}

fn parse_number(name: &str, value: &str) -> Result<usize, LaunchError> {
    let is_plain = value.bytes().all(|b| b.is_ascii_digit());
    value
        .parse()
        .ok()
        .filter(|_| is_plain)
        .ok_or_else(|| LaunchError::Invalid {
            variable: name.to_owned(),
            value: value.to_owned(),
            expected: "a whole number",
        })
}

/// A port with [`PORTS`](crate::PORTS) ports after it.
fn parse_port(name: &str, value: &str) -> Result<u16, LaunchError> {
    let port = value.parse().ok().filter(|port| *port > 0);
    port.filter(|port: &u16| port.checked_add(crate::PORTS).is_some())
        .ok_or_else(|| LaunchError::Invalid {
            variable: name.to_owned(),
            value: value.to_owned(),
            expected: "a port from 1 to 65527 (the eight ports after it are used)",
        })
}

/// A port for a run whose launcher gives none: the same for all ranks of a run, and rarely that of
/// another run on the same host.
fn port_of(run_id: &str) -> u16 {
    let number = crc32c::crc32c(run_id.as_bytes()) % 10_000;
    15_000 + u16::try_from(number).expect("below 10,000")
}

/// Checks a number that counts from 0 against the count.
fn check_below(name: &str, value: usize, limit: &str, n: usize) -> Result<(), LaunchError> {
    if value < n {
        return Ok(());
    }
    Err(LaunchError::Contradiction {
        one: format!("{name}={value}"),
        other: format!("{limit}={n}"),
        advice: "it must be below that number",
    })
}

/// Checks the number of ranks.
fn check_world(name: &str, n: usize) -> Result<(), LaunchError> {
    match n {
        0 => Err(LaunchError::Invalid {
            variable: name.to_owned(),
            value: "0".to_owned(),
            expected: "at least 1",
        }),
        n if n > crate::budgets::RANKS => Err(LaunchError::TooMany {
            variable: name.to_owned(),
            n,
            limit: crate::budgets::RANKS,
        }),
        _ => Ok(()),
    }
}
