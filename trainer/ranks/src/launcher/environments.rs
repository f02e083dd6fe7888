//! Launchers that start every rank themselves, recognised by their variables.

use super::{
    LISTEN_VARIABLE, Launch, LaunchError, Launcher, LeaderAddress, PARENT_VARIABLE, Reader,
    Variables, check_below, check_world, expand_hostlist, parse_port,
};

/// The launcher of this process, if there is one.
///
/// Launchers can be nested: srun may start torchrun or the daemons of mpirun, and then its variables
/// describe those. So the innermost launcher counts: torchrun's elastic agent, then MPI, then srun.
/// Where nesting cannot explain a difference, it is an error.
pub(super) fn find(variables: &Variables) -> Result<Option<Launch>, LaunchError> {
    let reader = |launcher| Reader {
        launcher,
        variables,
    };
    if variables.contains_key(PARENT_VARIABLE) {
        return torchrun(reader(Launcher::Own));
    }
    let torchrun = torchrun(reader(Launcher::Torchrun))?;
    if torchrun.is_some() && variables.contains_key("TORCHELASTIC_RUN_ID") {
        return Ok(torchrun);
    }
    let open_mpi = open_mpi(reader(Launcher::OpenMpi))?;
    let slurm = slurm(reader(Launcher::Slurm))?;
    // srun sets variables of PMI for MPI programs that it starts itself.
    let mpich = match &slurm {
        Some(slurm) if is_set_by_srun(variables, slurm) => None,
        _ => mpich(reader(Launcher::Mpich))?,
    };
    if let (Some(one), Some(other)) = (&mpich, &open_mpi) {
        must_agree(one, other)?;
    }
    let mpi = open_mpi.or(mpich);
    if let (Some(mpi), Some(slurm)) = (&mpi, &slurm) {
        // srun starts one daemon per host, and each starts several ranks.
        if slurm.world_size >= mpi.world_size {
            must_agree(mpi, slurm)?;
        }
    }
    let inner = mpi.or(slurm);
    match (torchrun, inner) {
        (Some(torchrun), Some(other)) => {
            must_agree(&torchrun, &other)?;
            Ok(Some(torchrun))
        }
        (torchrun, other) => Ok(torchrun.or(other)),
    }
}

/// Whether srun started this process as an MPI program, with the same numbers in both sets.
fn is_set_by_srun(variables: &Variables, slurm: &Launch) -> bool {
    let is = |name: &str, n: usize| variables.get(name).is_some_and(|v| *v == n.to_string());
    is("PMI_RANK", slurm.rank)
        && is("PMI_SIZE", slurm.world_size)
        && !variables.contains_key("MPI_LOCALRANKID")
}

fn must_agree(one: &Launch, other: &Launch) -> Result<(), LaunchError> {
    if (one.rank, one.world_size) == (other.rank, other.world_size) {
        return Ok(());
    }
    let describe = |launch: &Launch| {
        let [rank, world] = variables_of(launch.launcher);
        format!("{rank}={} of {world}={}", launch.rank, launch.world_size)
    };
    Err(LaunchError::Contradiction {
        one: describe(one),
        other: describe(other),
        advice: "start the program by one launcher, or unset the variables of the other",
    })
}

/// The variables of rank and world size.
fn variables_of(launcher: Launcher) -> [&'static str; 2] {
    match launcher {
        Launcher::Slurm => ["SLURM_PROCID", "SLURM_NTASKS"],
        Launcher::Mpich => ["PMI_RANK", "PMI_SIZE"],
        Launcher::OpenMpi => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        _ => ["RANK", "WORLD_SIZE"],
    }
}

/// Variables of torchrun, of programs that set the same ones, and of our own launcher.
fn torchrun(reader: Reader) -> Result<Option<Launch>, LaunchError> {
    let own = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
    let Some((present, _)) = reader.first_of(&own) else {
        return Ok(None);
    };
    let rank = reader.required_number("RANK", present)?;
    let world_size = reader.required_number("WORLD_SIZE", present)?;
    check_world("WORLD_SIZE", world_size)?;
    check_below("RANK", rank, "WORLD_SIZE", world_size)?;
    // A PyTorchJob has one process per pod and sets no local rank.
    let (local_rank, local_world_size) = match reader.number("LOCAL_RANK")? {
        None => (0, reader.number("LOCAL_WORLD_SIZE")?.unwrap_or(1)),
        Some(_) if world_size == 1 => (0, 1),
        Some(local_rank) => {
            let n = reader.required_number("LOCAL_WORLD_SIZE", "LOCAL_RANK")?;
            (local_rank, n)
        }
    };
    check_local(
        ("LOCAL_RANK", local_rank),
        ("LOCAL_WORLD_SIZE", local_world_size),
        ("WORLD_SIZE", world_size),
    )?;
    let node = reader
        .number("GROUP_RANK")?
        .unwrap_or(rank / local_world_size);
    let mut leader = reader.leader_override()?;
    let mut run_id = reader
        .get("TORCHELASTIC_RUN_ID")
        .unwrap_or("run")
        .to_owned();
    if world_size > 1 && leader.is_none() {
        let host = reader.required("MASTER_ADDR", present)?.to_owned();
        let port = reader.required("MASTER_PORT", present)?;
        let port = parse_port("MASTER_PORT", port)?;
        // torchrun's default name is the same for all runs.
        run_id = format!("{run_id}:{port}");
        leader = Some(LeaderAddress { host, port });
    }
    if let Some(n) = reader.get("TORCHELASTIC_RESTART_COUNT") {
        run_id = format!("{run_id}:attempt {n}");
    }
    Ok(Some(Launch {
        launcher: reader.launcher,
        rank,
        world_size,
        local_rank,
        local_world_size,
        node,
        leader,
        listen_on: reader.get(LISTEN_VARIABLE).map(str::to_owned),
        run_id: reader.run_id_or(run_id),
        token: reader.token(),
        serves_mpi: false,
        parent: reader.get(PARENT_VARIABLE).map(str::to_owned),
    }))
}

fn check_local(
    (rank_name, rank): (&str, usize),
    (local_name, local_world_size): (&str, usize),
    (world_name, world_size): (&str, usize),
) -> Result<(), LaunchError> {
    check_world(local_name, local_world_size)?;
    check_below(rank_name, rank, local_name, local_world_size)?;
    if local_world_size > world_size {
        return Err(LaunchError::Contradiction {
            one: format!("{local_name}={local_world_size}"),
            other: format!("{world_name}={world_size}"),
            advice: "a host cannot have more ranks than the run",
        });
    }
    Ok(())
}

/// A task of srun. A batch script has `SLURM_PROCID=0` as well, but no variables of a step.
fn slurm(reader: Reader) -> Result<Option<Launch>, LaunchError> {
    let step = [
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_STEP_NODELIST",
        "SLURM_STEP_NUM_TASKS",
    ];
    let is_in_step = reader.first_of(&step).is_some();
    if !is_in_step || reader.get("SLURM_PROCID").is_none() {
        return Ok(None);
    }
    let because = "SLURM_PROCID";
    let rank = reader.required_number("SLURM_PROCID", because)?;
    // The step may have fewer tasks than the job.
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
    let world_name = reader.first_of(&sizes).map_or("SLURM_NTASKS", |(n, _)| n);
    let world_size = reader.required_number(world_name, because)?;
    check_world(world_name, world_size)?;
    check_below("SLURM_PROCID", rank, world_name, world_size)?;
    if world_size == 1 {
        return Ok(Some(Launch {
            launcher: reader.launcher,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            node: 0,
            leader: None,
            listen_on: None,
            run_id: "step".to_owned(),
            token: None,
            serves_mpi: false,
            parent: None,
        }));
    }
    let local_rank = reader.required_number("SLURM_LOCALID", because)?;
    let list_name = [
        "SLURM_STEP_NODELIST",
        "SLURM_NODELIST",
        "SLURM_JOB_NODELIST",
    ];
    let (list_name, list) = match reader.first_of(&list_name) {
        Some(found) => found,
        None => (
            list_name[0],
            reader.required("SLURM_STEP_NODELIST", because)?,
        ),
    };
    let hosts = expand_hostlist(list).ok_or_else(|| LaunchError::Invalid {
        variable: list_name.to_owned(),
        value: list.to_owned(),
        expected: "a list of hosts such as a[03-07],b1",
    })?;
    let node = reader.number("SLURM_NODEID")?.unwrap_or(0);
    let local_world_size = tasks_on(reader, node, hosts.len(), world_size, local_rank)?;
    let job = reader.required("SLURM_JOB_ID", because)?;
    let step = reader.first_of(&["SLURM_STEP_ID", "SLURM_STEPID"]);
    let mut run_id = format!("{job}.{}", step.map_or("0", |(_, id)| id));
    if let Some(n) = reader.get("SLURM_RESTART_COUNT") {
        run_id = format!("{run_id}:attempt {n}");
    }
    let leader = match reader.leader_override()? {
        Some(leader) => leader,
        None => LeaderAddress {
            host: hosts[0].clone(),
            port: 15_000 + last_digits(job)?,
        },
    };
    Ok(Some(Launch {
        launcher: reader.launcher,
        rank,
        world_size,
        local_rank,
        local_world_size,
        node,
        leader: Some(leader),
        listen_on: reader.get(LISTEN_VARIABLE).map(str::to_owned),
        run_id: reader.run_id_or(run_id),
        token: reader.token(),
        serves_mpi: reader
            .first_of(&["PMI_FD", "PMI_RANK", "PMIX_RANK"])
            .is_some(),
        parent: None,
    }))
}

/// The last four digits of a job's number.
fn last_digits(job: &str) -> Result<u16, LaunchError> {
    let number = super::parse_number("SLURM_JOB_ID", job)?;
    Ok(u16::try_from(number % 10_000).expect("below 10,000"))
}

/// The tasks of this step on one host, from `SLURM_STEP_TASKS_PER_NODE`, such as `2(x3),1`.
fn tasks_on(
    reader: Reader,
    node: usize,
    n_nodes: usize,
    world_size: usize,
    local_rank: usize,
) -> Result<usize, LaunchError> {
    let names = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    if n_nodes == 1 {
        check_below("SLURM_LOCALID", local_rank, "SLURM_NTASKS", world_size)?;
        return Ok(world_size);
    }
    let Some((name, value)) = reader.first_of(&names) else {
        // Slurm fills hosts evenly by default.
        let evenly = world_size.div_ceil(n_nodes);
        return Ok(evenly.max(local_rank + 1));
    };
    let invalid = || LaunchError::Invalid {
        variable: name.to_owned(),
        value: value.to_owned(),
        expected: "a list such as 2(x3),1",
    };
    let mut first = 0usize;
    for part in value.split(',') {
        let (tasks, repeats) = match part.split_once("(x") {
            Some((tasks, rest)) => (tasks, rest.strip_suffix(')').ok_or_else(invalid)?),
            None => (part, "1"),
        };
        let tasks: usize = tasks.parse().map_err(|_| invalid())?;
        let repeats: usize = repeats.parse().map_err(|_| invalid())?;
        first = first.checked_add(repeats).ok_or_else(invalid)?;
        if node < first {
            check_local(
                ("SLURM_LOCALID", local_rank),
                (name, tasks),
                ("SLURM_NTASKS", world_size),
            )?;
            return Ok(tasks);
        }
    }
    Err(LaunchError::Contradiction {
        one: format!("SLURM_NODEID={node}"),
        other: format!("{name}={value}"),
        advice: "it must be below the number of hosts in that list",
    })
}

/// A process of hydra, the mpiexec of MPICH and Intel MPI.
fn mpich(reader: Reader) -> Result<Option<Launch>, LaunchError> {
    let own = ["PMI_RANK", "PMI_SIZE"];
    let Some((present, _)) = reader.first_of(&own) else {
        return Ok(None);
    };
    let rank = reader.required_number("PMI_RANK", present)?;
    let world_size = reader.required_number("PMI_SIZE", present)?;
    let local_rank = reader.required_number("MPI_LOCALRANKID", present)?;
    let local_world_size = reader.required_number("MPI_LOCALNRANKS", present)?;
    // hydra does not name the run. The token in `ranks.json` tells runs apart.
    mpi(
        reader,
        [rank, world_size, local_rank, local_world_size],
        ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        "mpiexec".to_owned(),
    )
}

/// A process of Open MPI's mpirun.
fn open_mpi(reader: Reader) -> Result<Option<Launch>, LaunchError> {
    let names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];
    let Some((present, _)) = reader.first_of(&names) else {
        return Ok(None);
    };
    let mut numbers = [0; 4];
    for (number, name) in numbers.iter_mut().zip(names) {
        *number = reader.required_number(name, present)?;
    }
    let run_id = reader.first_of(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]);
    let run_id = run_id.map_or("mpirun", |(_, id)| id).to_owned();
    mpi(reader, numbers, names, run_id)
}

/// A process of MPI. Its launchers give no address, so the ranks meet by a file.
fn mpi(
    reader: Reader,
    [rank, world_size, local_rank, local_world_size]: [usize; 4],
    [rank_name, world_name, local_name, local_world_name]: [&str; 4],
    run_id: String,
) -> Result<Option<Launch>, LaunchError> {
    check_world(world_name, world_size)?;
    check_below(rank_name, rank, world_name, world_size)?;
    check_local(
        (local_name, local_rank),
        (local_world_name, local_world_size),
        (world_name, world_size),
    )?;
    Ok(Some(Launch {
        launcher: reader.launcher,
        rank,
        world_size,
        local_rank,
        local_world_size,
        node: rank / local_world_size,
        leader: reader.leader_override()?,
        listen_on: reader.get(LISTEN_VARIABLE).map(str::to_owned),
        run_id: reader.run_id_or(run_id),
        token: reader.token(),
        serves_mpi: true,
        parent: None,
    }))
}
