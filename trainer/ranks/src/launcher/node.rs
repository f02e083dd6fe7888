//! Environments in which each host starts one process, which then starts the ranks of its host.

use std::fmt;
use std::str::FromStr;

use super::{
    LEADER_VARIABLE, LISTEN_VARIABLE, LaunchError, Launcher, LeaderAddress, NODES_VARIABLE,
    PARENT_VARIABLE, RUN_ID_VARIABLE, Reader, TOKEN_VARIABLE, Variables, check_below, check_world,
    parse_port, port_of,
};
use crate::token::Token;

/// The option `--ranks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedRanks {
    /// `--ranks auto`: the number in the environment, or one per device of this host.
    Auto,
    /// `--ranks N` on this host.
    Number(usize),
}

impl fmt::Display for RequestedRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestedRanks::Auto => f.write_str("auto"),
            RequestedRanks::Number(n) => write!(f, "{n}"),
        }
    }
}

impl FromStr for RequestedRanks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(RequestedRanks::Auto);
        }
        let n = text
            .parse()
            .ok()
            .filter(|n| (1..=crate::budgets::RANKS).contains(n));
        n.map(RequestedRanks::Number).ok_or_else(|| {
            format!(
                "{text:?} is not \"auto\" or a number from 1 to {}",
                crate::budgets::RANKS
            )
        })
    }
}

/// The ranks that this process has to start on its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The program that started this process on each host; [`Launcher::Own`] with one host.
    pub launcher: Launcher,
    /// The number of this host, from 0.
    pub node: usize,
    /// The number of hosts.
    pub n_nodes: usize,
    /// Ranks per host.
    pub n_local: usize,
    /// Where the leader can be reached. `None` with one host: then
    /// the launcher finds free ports.
    pub leader: Option<LeaderAddress>,
    /// On which address or host name the leader listens, if the user chose it.
    pub listen_on: Option<String>,
    /// A name of the run, equal on all hosts. `None` with one host.
    pub run_id: Option<String>,
    /// The secret of the run, if the user gave one.
    pub token: Option<Token>,
}

impl Node {
    pub(super) fn find(
        variables: &Variables,
        requested: RequestedRanks,
        n_devices: usize,
    ) -> Result<Node, LaunchError> {
        let reader = |launcher| Reader {
            launcher,
            variables,
        };
        let found = [
            kubeflow(reader(Launcher::Kubeflow), n_devices)?,
            sky_pilot(reader(Launcher::SkyPilot), n_devices)?,
            // An array of independent jobs has the same variable as one job of several pods.
            match requested {
                RequestedRanks::Auto => job_set(reader(Launcher::JobSet), n_devices)?,
                RequestedRanks::Number(_) => None,
            },
        ];
        let mut found = found.into_iter().flatten();
        let own = reader(Launcher::Own);
        let mut node = match found.next() {
            Some(node) => node,
            None => Node {
                launcher: Launcher::Own,
                node: 0,
                n_nodes: 1,
                n_local: n_devices.max(1),
                leader: None,
                listen_on: None,
                run_id: None,
                token: None,
            },
        };
        if let Some(other) = found.next()
            && (other.node, other.n_nodes) != (node.node, node.n_nodes)
        {
            let describe =
                |n: &Node| format!("node {} of {} by {}", n.node, n.n_nodes, n.launcher.name());
            return Err(LaunchError::Contradiction {
                one: describe(&node),
                other: describe(&other),
                advice: "unset the variables of one of them",
            });
        }
        if let RequestedRanks::Number(n) = requested {
            let is_given = match node.launcher {
                Launcher::Kubeflow => own.number("PET_NPROC_PER_NODE").ok().flatten(),
                _ => None,
            };
            if let Some(given) = is_given.filter(|given| *given != n) {
                return Err(LaunchError::Contradiction {
                    one: format!("--ranks {n}"),
                    other: format!("PET_NPROC_PER_NODE={given}"),
                    advice: "use --ranks auto",
                });
            }
            node.n_local = n;
        }
        check_world("--ranks", node.n_local)?;
        check_world("--ranks", node.n_local.saturating_mul(node.n_nodes))?;
        node.listen_on = own.get(LISTEN_VARIABLE).map(str::to_owned);
        node.token = own.token();
        if node.n_nodes == 1 {
            node.leader = None;
        }
        Ok(node)
    }

    /// The environment of one of its ranks, with `leader` where its ranks find each other.
    pub(crate) fn variables_of(
        &self,
        local_rank: usize,
        leader: &LeaderAddress,
        run_id: &str,
        token: Option<&Token>,
    ) -> Vec<(&'static str, String)> {
        let rank = self.node * self.n_local + local_rank;
        let mut variables = vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", (self.n_nodes * self.n_local).to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.n_local.to_string()),
            ("GROUP_RANK", self.node.to_string()),
            ("MASTER_ADDR", leader.host.clone()),
            ("MASTER_PORT", leader.port.to_string()),
            (RUN_ID_VARIABLE, run_id.to_owned()),
            (PARENT_VARIABLE, std::process::id().to_string()),
        ];
        if let Some(token) = token {
            variables.push((TOKEN_VARIABLE, token.secret().to_owned()));
        }
        if let Some(address) = &self.listen_on {
            variables.push((LISTEN_VARIABLE, address.clone()));
        }
        variables
    }
}

/// A pod of Kubeflow Trainer v2.
fn kubeflow(reader: Reader, n_devices: usize) -> Result<Option<Node>, LaunchError> {
    let Some((present, _)) = reader.first_of(&["PET_NNODES", "PET_NODE_RANK"]) else {
        return Ok(None);
    };
    let n_nodes = reader.required_number("PET_NNODES", present)?;
    check_world("PET_NNODES", n_nodes)?;
    let node = reader.required_number("PET_NODE_RANK", present)?;
    check_below("PET_NODE_RANK", node, "PET_NNODES", n_nodes)?;
    let n_local = match reader.get("PET_NPROC_PER_NODE") {
        None | Some("auto" | "gpu" | "cpu") => n_devices.max(1),
        Some(_) => reader.required_number("PET_NPROC_PER_NODE", present)?,
    };
    let mut leader = reader.leader_override()?;
    if leader.is_none() && n_nodes > 1 {
        let host = reader.required("PET_MASTER_ADDR", present)?.to_owned();
        let port = reader.required("PET_MASTER_PORT", present)?;
        let port = parse_port("PET_MASTER_PORT", port)?;
        leader = Some(LeaderAddress { host, port });
    }
    // The name of the first pod contains the name of the job.
    let host = leader.as_ref().map(|leader| leader.host.clone());
    let mut run_id = match reader.get("PET_RDZV_ID") {
        Some(id) => id.to_owned(),
        None => host.unwrap_or_else(|| "job".to_owned()),
    };
    if let Some(n) = reader.get("JOBSET_RESTART_ATTEMPT") {
        run_id = format!("{run_id}:attempt {n}");
    }
    Ok(Some(node_of(
        reader, node, n_nodes, n_local, leader, run_id,
    )))
}

/// A host of SkyPilot.
fn sky_pilot(reader: Reader, n_devices: usize) -> Result<Option<Node>, LaunchError> {
    let names = ["SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"];
    let Some((present, _)) = reader.first_of(&names) else {
        return Ok(None);
    };
    let n_nodes = reader.required_number("SKYPILOT_NUM_NODES", present)?;
    check_world("SKYPILOT_NUM_NODES", n_nodes)?;
    let node = reader.required_number("SKYPILOT_NODE_RANK", present)?;
    check_below("SKYPILOT_NODE_RANK", node, "SKYPILOT_NUM_NODES", n_nodes)?;
    let n_local = match reader.number("SKYPILOT_NUM_GPUS_PER_NODE")? {
        None | Some(0) => n_devices.max(1),
        Some(n) => n,
    };
    let task = reader.get("SKYPILOT_TASK_ID").unwrap_or("task");
    let mut leader = reader.leader_override()?;
    if leader.is_none() && n_nodes > 1 {
        let ips = reader.required("SKYPILOT_NODE_IPS", present)?;
        let host = ips.split_whitespace().next().unwrap_or_default().to_owned();
        let port = port_of(task);
        leader = Some(LeaderAddress { host, port });
    }
    Ok(Some(node_of(
        reader,
        node,
        n_nodes,
        n_local,
        leader,
        task.to_owned(),
    )))
}

/// A pod of an indexed job, which knows its index but not the number of pods.
fn job_set(reader: Reader, n_devices: usize) -> Result<Option<Node>, LaunchError> {
    let present = "JOB_COMPLETION_INDEX";
    let Some(node) = reader.number(present)? else {
        return Ok(None);
    };
    let n_nodes = reader.required_number(NODES_VARIABLE, present)?;
    check_world(NODES_VARIABLE, n_nodes)?;
    let leader = reader.leader_override()?;
    if n_nodes == 1 {
        // Each pod of an array of jobs trains on its own.
        let run_id = "job".to_owned();
        return Ok(Some(node_of(reader, 0, 1, n_devices.max(1), None, run_id)));
    }
    check_below(present, node, NODES_VARIABLE, n_nodes)?;
    if leader.is_none() {
        reader.required(LEADER_VARIABLE, present)?;
    }
    let host = leader.as_ref().map(|leader| leader.host.clone());
    let mut run_id = host.unwrap_or_default();
    if let Some(n) = reader.get("JOBSET_RESTART_ATTEMPT") {
        run_id = format!("{run_id}:attempt {n}");
    }
    let n_local = n_devices.max(1);
    Ok(Some(node_of(
        reader, node, n_nodes, n_local, leader, run_id,
    )))
}

fn node_of(
    reader: Reader,
    node: usize,
    n_nodes: usize,
    n_local: usize,
    leader: Option<LeaderAddress>,
    run_id: String,
) -> Node {
    Node {
        launcher: reader.launcher,
        node,
        n_nodes,
        n_local,
        leader,
        listen_on: None,
        run_id: Some(reader.run_id_or(run_id)),
        token: None,
    }
}
