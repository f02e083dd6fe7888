//! Tests of launchers, as tables of variables.

use super::*;

fn variables(text: &str) -> Variables {
    let pairs = text.split_whitespace().map(|pair| {
        let (name, value) = pair.split_once('=').expect("NAME=VALUE");
        (name.to_owned(), value.replace('~', " "))
    });
    pairs.collect()
}

/// The role of a process in one line.
fn described(role: &Role) -> String {
    let at = |leader: &Option<LeaderAddress>| {
        leader
            .as_ref()
            .map_or("-".to_owned(), |l| format!("{}:{}", l.host, l.port))
    };
    match role {
        Role::Alone => "alone".to_owned(),
        Role::Rank(l) => format!(
            "{} rank {}/{} local {}/{} node {} at {} run {}{}",
            l.launcher.name(),
            l.rank,
            l.world_size,
            l.local_rank,
            l.local_world_size,
            l.node,
            at(&l.leader),
            l.run_id,
            if l.serves_mpi { " with MPI" } else { "" }
        ),
        Role::Start(n) => format!(
            "{} node {}/{} starts {} at {} run {}",
            n.launcher.name(),
            n.node,
            n.n_nodes,
            n.n_local,
            at(&n.leader),
            n.run_id.as_deref().unwrap_or("-")
        ),
    }
}

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 \
    MASTER_ADDR=node-a MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2";

const SRUN: &str = "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 \
    SLURM_STEP_NODELIST=a[03-06] SLURM_STEP_TASKS_PER_NODE=2(x4) SLURM_JOB_ID=4711234 SLURM_STEP_ID=0";

/// Variables, the option `--ranks`, and the role.
const RECOGNISED: &[(&str, Option<RequestedRanks>, &str)] = &[
    ("", None, "alone"),
    (
        "HOME=x MASTER_ADDR=x MASTER_PORT=1 LOCAL_WORLD_SIZE=",
        None,
        "alone",
    ),
    (
        TORCHRUN,
        None,
        "torchrun rank 5/8 local 1/4 node 1 at node-a:29500 run none:29500:attempt 2",
    ),
    (
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0",
        None,
        "torchrun rank 0/1 local 0/1 node 0 at - run run",
    ),
    // PyTorchJob: one process per pod.
    (
        "RANK=2 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456",
        None,
        "torchrun rank 2/3 local 0/1 node 2 at job-master-0:23456 run run:23456",
    ),
    (
        SRUN,
        None,
        "srun rank 3/8 local 1/2 node 1 at a03:16234 run 4711234.0",
    ),
    // Evenly, without the list of tasks; the step has fewer tasks than the job.
    (
        "SLURM_PROCID=3 SLURM_NTASKS=99 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 \
         SLURM_STEP_NODELIST=n[1-2] SLURM_JOB_ID=12 SLURM_STEPID=3 SLURM_RESTART_COUNT=1",
        None,
        "srun rank 3/4 local 1/2 node 1 at n1:15012 run 12.3:attempt 1",
    ),
    // One host.
    (
        "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_STEP_NODELIST=n1 SLURM_JOB_ID=12",
        None,
        "srun rank 1/2 local 1/2 node 0 at n1:15012 run 12.0",
    ),
    // A batch script, an allocation, an interactive step.
    (
        "SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a[1-2]",
        None,
        "alone",
    ),
    (
        "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_NODELIST=a[1-2]",
        None,
        "alone",
    ),
    (
        "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0",
        None,
        "srun rank 0/1 local 0/1 node 0 at - run step",
    ),
    // srun starts torchrun once per host.
    (
        "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_ID=0 \
         SLURM_STEP_NODELIST=a[1-2] SLURM_JOB_ID=9 RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 \
         LOCAL_WORLD_SIZE=4 MASTER_ADDR=a1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r",
        None,
        "torchrun rank 5/8 local 1/4 node 1 at a1:29500 run r:29500",
    ),
    (
        "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=9",
        None,
        "mpiexec rank 1/4 local 1/2 node 0 at - run mpiexec with MPI",
    ),
    (
        "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 TOOLTUNE_LEADER=h:99 \
         TOOLTUNE_RUN_ID=r",
        None,
        "mpiexec rank 1/4 local 1/2 node 0 at h:99 run r with MPI",
    ),
    (
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
         OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-7",
        None,
        "mpirun rank 3/4 local 1/2 node 1 at - run prterun-7 with MPI",
    ),
    // srun with its own PMI, and mpirun's daemon started by srun.
    (
        "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_STEP_NODELIST=n1 SLURM_JOB_ID=12 \
         PMI_RANK=1 PMI_SIZE=2",
        None,
        "srun rank 1/2 local 1/2 node 0 at n1:15012 run 12.0 with MPI",
    ),
    (
        "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[1-2] \
         SLURM_NODEID=1 SLURM_JOB_ID=12 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 \
         OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
        None,
        "mpirun rank 3/4 local 1/2 node 1 at - run mpirun with MPI",
    ),
    // A script that sets torchrun's variables from those of mpirun.
    (
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
         OMPI_COMM_WORLD_LOCAL_SIZE=2 RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=5",
        None,
        "torchrun rank 1/2 local 0/1 node 1 at h:5 run run:5",
    ),
    // Ours: the marker counts, whatever else is set, and the option is repeated.
    (
        "TOOLTUNE_RANKS_PARENT=7 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 \
         MASTER_ADDR=127.0.0.1 MASTER_PORT=40000 TOOLTUNE_RUN_ID=r OMPI_COMM_WORLD_RANK=9",
        Some(RequestedRanks::Number(2)),
        "--ranks rank 1/2 local 1/2 node 0 at 127.0.0.1:40000 run r",
    ),
    ("", Some(RequestedRanks::Number(1)), "alone"),
    (
        "",
        Some(RequestedRanks::Number(3)),
        "--ranks node 0/1 starts 3 at - run -",
    ),
    (
        "",
        Some(RequestedRanks::Auto),
        "--ranks node 0/1 starts 4 at - run -",
    ),
    (
        "RANK=0 WORLD_SIZE=1",
        Some(RequestedRanks::Number(2)),
        "--ranks node 0/1 starts 2 at - run -",
    ),
    (
        "PET_NNODES=2 PET_NPROC_PER_NODE=8 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job \
         PET_MASTER_PORT=29400 JOBSET_RESTART_ATTEMPT=1",
        Some(RequestedRanks::Auto),
        "Kubeflow Trainer node 1/2 starts 8 at job-node-0-0.job:29400 run \
         job-node-0-0.job:attempt 1",
    ),
    (
        "PET_NNODES=1 PET_NPROC_PER_NODE=auto PET_NODE_RANK=0",
        Some(RequestedRanks::Auto),
        "Kubeflow Trainer node 0/1 starts 4 at - run job",
    ),
    (
        "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=8 \
         SKYPILOT_NODE_IPS=10.0.0.3~10.0.0.4 SKYPILOT_TASK_ID=sky-1",
        Some(RequestedRanks::Auto),
        "SkyPilot node 1/2 starts 8 at 10.0.0.3:15000 run sky-1",
    ),
    (
        "JOB_COMPLETION_INDEX=1 TOOLTUNE_NODES=2 TOOLTUNE_LEADER=job-0.job:29500",
        Some(RequestedRanks::Auto),
        "the Kubernetes job node 1/2 starts 4 at job-0.job:29500 run job-0.job",
    ),
    (
        "JOB_COMPLETION_INDEX=7 TOOLTUNE_NODES=1",
        Some(RequestedRanks::Auto),
        "the Kubernetes job node 0/1 starts 4 at - run job",
    ),
    ("JOB_COMPLETION_INDEX=7", None, "alone"),
];

#[test]
fn every_launcher_is_recognised_by_its_variables() {
    for (text, requested, expected) in RECOGNISED {
        let found = role(&variables(text), *requested, 4).unwrap_or_else(|e| panic!("{text}: {e}"));
        let found = described(&found);
        let expected = match *expected {
            // The port is a hash of the task.
            e if e.starts_with("SkyPilot") => e.replace("15000", &port_of("sky-1").to_string()),
            e => e.to_owned(),
        };
        assert_eq!(found, expected, "{text}");
    }
}

type Refused = (String, Option<RequestedRanks>, &'static [&'static str]);

fn incomplete_variables() -> Vec<Refused> {
    vec![
        ("RANK=0".into(), None, &["RANK is set", "WORLD_SIZE is not"]),
        (
            "WORLD_SIZE=2".into(),
            None,
            &["WORLD_SIZE is set", "RANK is not"],
        ),
        (
            "LOCAL_RANK=2".into(),
            None,
            &["LOCAL_RANK is set", "RANK is not"],
        ),
        ("RANK=1 WORLD_SIZE=2".into(), None, &["MASTER_ADDR is not"]),
        (
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a".into(),
            None,
            &["MASTER_PORT is not"],
        ),
        (
            "RANK=2 WORLD_SIZE=2".into(),
            None,
            &["RANK=2 contradicts WORLD_SIZE=2"],
        ),
        (
            "RANK=-1 WORLD_SIZE=2".into(),
            None,
            &["RANK=\"-1\" is not a whole number"],
        ),
        ("RANK=+1 WORLD_SIZE=2".into(), None, &["RANK="]),
        (
            "RANK=0 WORLD_SIZE=0".into(),
            None,
            &["WORLD_SIZE", "at least 1"],
        ),
        (
            "RANK=0 WORLD_SIZE=9999".into(),
            None,
            &["9999 ranks", "at most 1024"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65530".into(),
            None,
            &["MASTER_PORT", "65527"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=a MASTER_PORT=1".into(),
            None,
            &["LOCAL_RANK is set", "LOCAL_WORLD_SIZE is not"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2".into(),
            None,
            &["LOCAL_RANK=3 contradicts LOCAL_WORLD_SIZE=2"],
        ),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4".into(),
            None,
            &["LOCAL_WORLD_SIZE=4 contradicts WORLD_SIZE=2"],
        ),
        (
            "SLURM_PROCID=1 SLURM_STEP_ID=0".into(),
            None,
            &["SLURM_PROCID is set", "SLURM_NTASKS is not"],
        ),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0".into(),
            None,
            &["SLURM_LOCALID is not"],
        ),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_STEP_ID=0".into(),
            None,
            &["SLURM_STEP_NODELIST is not"],
        ),
        (
            SRUN.replace("a[03-06]", "a[03-"),
            None,
            &["SLURM_STEP_NODELIST", "list of hosts"],
        ),
        (
            SRUN.replace("2(x4)", "2(x1)"),
            None,
            &["SLURM_NODEID=1 contradicts"],
        ),
        (
            SRUN.replace("2(x4)", "1(x4)"),
            None,
            &["SLURM_LOCALID=1 contradicts"],
        ),
        (
            SRUN.replace("2(x4)", "2x4"),
            None,
            &["SLURM_STEP_TASKS_PER_NODE"],
        ),
    ]
}

fn contradictory_variables() -> Vec<Refused> {
    let auto = Some(RequestedRanks::Auto);
    let two = Some(RequestedRanks::Number(2));
    let mpirun = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
        OMPI_COMM_WORLD_LOCAL_SIZE=2";
    vec![
        (SRUN.replace("4711234", "x"), None, &["SLURM_JOB_ID=\"x\""]),
        ("PMI_RANK=0".into(), None, &["PMI_SIZE is not"]),
        (
            "PMI_RANK=0 PMI_SIZE=2".into(),
            None,
            &["MPI_LOCALRANKID is not"],
        ),
        (
            "OMPI_COMM_WORLD_RANK=0".into(),
            None,
            &["OMPI_COMM_WORLD_SIZE is not"],
        ),
        (
            format!("{mpirun} RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1"),
            None,
            &["RANK=0 of WORLD_SIZE=2 contradicts OMPI_COMM_WORLD_RANK=1"],
        ),
        (
            format!("{mpirun} {}", SRUN.replace("PROCID=3", "PROCID=2")),
            None,
            &["OMPI_COMM_WORLD_RANK=1", "contradicts SLURM_PROCID=2"],
        ),
        (
            format!("{mpirun} PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2"),
            None,
            &["PMI_RANK=0", "OMPI_COMM_WORLD_RANK=1"],
        ),
        (
            format!("{mpirun} TOOLTUNE_LEADER=host"),
            None,
            &["TOOLTUNE_LEADER", "HOST:PORT"],
        ),
        (
            format!("{mpirun} TOOLTUNE_LEADER=:1"),
            None,
            &["TOOLTUNE_LEADER", "HOST:PORT"],
        ),
        (
            TORCHRUN.into(),
            two,
            &["--ranks 2 contradicts the 8 ranks", "remove --ranks"],
        ),
        (TORCHRUN.into(), auto, &["--ranks auto contradicts"]),
        ("PET_NNODES=2".into(), auto, &["PET_NODE_RANK is not"]),
        (
            "PET_NNODES=2 PET_NODE_RANK=2".into(),
            auto,
            &["PET_NODE_RANK=2 contradicts"],
        ),
        (
            "PET_NNODES=2 PET_NODE_RANK=1".into(),
            auto,
            &["PET_MASTER_ADDR is not"],
        ),
        (
            "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=8".into(),
            two,
            &["--ranks 2 contradicts PET_NPROC_PER_NODE=8"],
        ),
        (
            "SKYPILOT_NODE_RANK=0".into(),
            auto,
            &["SKYPILOT_NUM_NODES is not"],
        ),
        (
            "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2".into(),
            auto,
            &["SKYPILOT_NODE_IPS is not"],
        ),
        (
            "JOB_COMPLETION_INDEX=0".into(),
            auto,
            &["TOOLTUNE_NODES is not"],
        ),
        (
            "JOB_COMPLETION_INDEX=0 TOOLTUNE_NODES=2".into(),
            auto,
            &["TOOLTUNE_LEADER is not"],
        ),
        (
            "PET_NNODES=400 PET_NODE_RANK=0 PET_NPROC_PER_NODE=8 PET_MASTER_ADDR=a \
             PET_MASTER_PORT=1"
                .into(),
            auto,
            &["3200 ranks"],
        ),
        (
            "PET_NNODES=1 PET_NODE_RANK=0 SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 \
             SKYPILOT_NODE_IPS=a"
                .into(),
            auto,
            &["node 0 of 1 by Kubeflow Trainer contradicts node 1 of 2 by SkyPilot"],
        ),
    ]
}

/// Invariant: Incomplete or contradictory variables of launchers are errors that name them.
#[test]
fn incomplete_and_contradictory_variables_are_named() {
    let cases = incomplete_variables().into_iter();
    let cases = cases.chain(contradictory_variables());
    for (text, requested, expected) in cases {
        // A "~" in the table is a blank.
        let found = role(&variables(&text), requested, 4);
        let error = found.err().unwrap_or_else(|| panic!("{text}")).to_string();
        for part in expected {
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

#[test]
fn a_node_gives_its_ranks_what_our_own_launcher_reads() {
    let requested = Some(RequestedRanks::Auto);
    let text = "PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h \
                PET_MASTER_PORT=29400 TOOLTUNE_RANKS_TOKEN=t TOOLTUNE_RANKS_ADDRESS=10.0.0.1";
    let outer = variables(text);
    let Role::Start(node) = role(&outer, requested, 1).expect("a node") else {
        panic!("not a node");
    };
    let leader = node.leader.clone().expect("an address");
    let run_id = node.run_id.clone().expect("a name");
    for local_rank in 0..2 {
        let mut inner = outer.clone();
        let own = node.variables_of(local_rank, &leader, &run_id, node.token.as_ref());
        inner.extend(
            own.into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        let Role::Rank(launch) = role(&inner, requested, 1).expect("a rank") else {
            panic!("not a rank");
        };
        let expected = Launch {
            launcher: Launcher::Own,
            rank: 2 + local_rank,
            world_size: 4,
            local_rank,
            local_world_size: 2,
            node: 1,
            leader: Some(leader.clone()),
            listen_on: Some("10.0.0.1".to_owned()),
            run_id: run_id.clone(),
            token: Some(Token::new("t".to_owned())),
            serves_mpi: false,
            parent: Some(std::process::id().to_string()),
        };
        assert_eq!(launch, expected);
        assert!(!launch.is_on_one_host());
    }
}

#[test]
fn the_option_is_auto_or_a_number() {
    assert_eq!("auto".parse(), Ok(RequestedRanks::Auto));
    assert_eq!("8".parse(), Ok(RequestedRanks::Number(8)));
    for text in ["0", "-1", "", "two", "1025"] {
        assert!(text.parse::<RequestedRanks>().is_err(), "{text}");
    }
}
