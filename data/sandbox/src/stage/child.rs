//! The cell stage: drops all privileges that the program must not have, and becomes the program.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};

use super::{files, private_root, syscalls};
use crate::isolation::Part;
use crate::limits::Limits;
use crate::protocol::{self, Program, RunOrder, StageFailure};

/// Becomes the program of the order. Without a program, it returns when all parts are active.
pub(super) fn run(folder: &Path) -> Result<(), StageFailure> {
    // If the guard is killed, this process must not be left running.
    map_failure("prctl", set_parent_process_death_signal(Some(Signal::KILL)))?;
    let order: RunOrder = protocol::read(&folder.join(protocol::ORDER))
        .map_err(|error| StageFailure::new(None, error.to_string()))?;
    let inherited = inherited_descriptors()?;
    let request = map_failure("request", File::open(folder.join(protocol::REQUEST)))?;
    let result = OpenOptions::new()
        .write(true)
        .open(folder.join(protocol::RESULT));
    let result = map_failure("result", result)?;
    let work = if order.parts.namespaces {
        private_root::enter_private_root(folder, &order.read_only, &order.limits)
            .map_err(|reason| StageFailure::new(Part::Namespaces, reason))?;
        PathBuf::from(private_root::WORK)
    } else {
        folder.join(protocol::WORK)
    };
    map_failure("chdir", env::set_current_dir(&work))?;
    drop_capabilities()?;
    map_failure("prctl", set_no_new_privs(true))?;
    if order.parts.landlock {
        files::restrict(&order.read_only, &work)
            .map_err(|reason| StageFailure::new(Part::Landlock, reason))?;
    }
    let filters = if order.parts.seccomp {
        Some(syscalls::filters())
    } else {
        None
    };
    let filters = filters.transpose().map_err(no_seccomp)?;
    apply_limits(&order)?;
    if let Some(filters) = filters {
        filters.apply().map_err(no_seccomp)?;
    }
    match order.program {
        None => Ok(()),
        Some(program) => Err(become_program(
            &program, &work, request, &result, &inherited,
        )),
    }
}

fn map_failure<T, E: std::fmt::Display>(
    call_name: &str,
    result: Result<T, E>,
) -> Result<T, StageFailure> {
    result.map_err(|error| StageFailure::new(None, format!("{call_name}: {error}")))
}

fn no_seccomp(reason: String) -> StageFailure {
    StageFailure::new(Part::Seccomp, reason)
}

/// Descriptors, other than the standard ones, that the program would inherit. They are leaks from
/// the caller's parents, because Rust opens everything with close-on-exec.
fn inherited_descriptors() -> Result<Vec<String>, StageFailure> {
    const CLOSED_BY_EXEC: u32 = 0o2_000_000;
    let mut inherited = Vec::new();
    for entry in map_failure("/proc/self/fdinfo", fs::read_dir("/proc/self/fdinfo"))? {
        let entry = map_failure("/proc/self/fdinfo", entry)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = map_failure("/proc/self/fdinfo", fs::read_to_string(entry.path()))?;
        let flags = text
            .lines()
            .find_map(|line| line.strip_prefix("flags:"))
            .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        let is_closed = flags.is_some_and(|flags| flags & CLOSED_BY_EXEC != 0);
        if !is_closed && !["0", "1", "2"].contains(&name.as_str()) {
            inherited.push(name);
        }
    }
    Ok(inherited)
}

/// Drops all capabilities. It also sets the locked bits, because otherwise a root process (real, or
/// in its namespaces) would regain all capabilities by `exec`.
fn drop_capabilities() -> Result<(), StageFailure> {
    let held_sets = map_failure("capget", capabilities(None))?;
    if held_sets.effective.contains(CapabilitySet::SETPCAP) {
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        map_failure("securebits", set_capabilities_secure_bits(bits))?;
    }
    let empty_sets = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    map_failure("capset", set_capabilities(None, empty_sets))
}

fn apply_limits(order: &RunOrder) -> Result<(), StageFailure> {
    let Limits {
        wall_secs: _,
        cpu_secs,
        memory_bytes,
        file_bytes,
        disk_bytes: _,
        n_open_files,
        n_threads,
        output_bytes,
    } = order.limits;
    set_limit(Resource::Cpu, cpu_secs, cpu_secs.saturating_add(1))?;
    set_limit(Resource::As, memory_bytes, memory_bytes)?;
    let file_bytes = file_bytes.max(output_bytes);
    set_limit(Resource::Fsize, file_bytes, file_bytes)?;
    set_limit(Resource::Nofile, n_open_files, n_open_files)?;
    set_limit(Resource::Core, 0, 0)?;
    set_limit(Resource::Msgqueue, 0, 0)?;
    set_limit(Resource::Memlock, 0, 0)?;
    if order.parts.namespaces {
        // The guard and the program also count as tasks. Without namespaces there is no limit,
        // because all processes of the user would count.
        let tasks = n_threads.saturating_add(2);
        set_limit(Resource::Nproc, tasks, tasks)?;
    }
    Ok(())
}

/// Sets a limit. A limit that is already lower is unchanged.
fn set_limit(resource: Resource, soft: u64, hard: u64) -> Result<(), StageFailure> {
    let hard_limit = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limits = Rlimit {
        current: Some(soft.min(hard_limit)),
        maximum: Some(hard.min(hard_limit)),
    };
    map_failure(&format!("{resource:?} limit"), setrlimit(resource, limits))
}

fn become_program(
    program: &Program,
    work: &Path,
    request: File,
    result: &File,
    inherited: &[String],
) -> StageFailure {
    if let Err(error) = fcntl_setfd(result, FdFlags::empty()) {
        return StageFailure::new(None, format!("result: {error}"));
    }
    let path = &program.path;
    let error = Command::new(path)
        .args(&program.arguments)
        .arg(result.as_raw_fd().to_string())
        .args(inherited)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LANG", "C.UTF-8")
        .env("TZ", "UTC")
        .env("HOME", work)
        .env("TMPDIR", work)
        .envs(program.environment.iter().map(|(k, v)| (k, v)))
        .stdin(request)
        .exec();
    StageFailure::new(None, format!("{}: {error}", path.display()))
}
