//! The cell: gives up everything that the program shall not have, and becomes it.

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
use crate::protocol::{self, Order, Program, StageFailure};

/// Becomes the program of the order; where there is none, returns once all parts are in force.
pub(super) fn run(folder: &Path) -> Result<(), StageFailure> {
    // Should the guard be killed, this process must not stay behind.
    step("prctl", set_parent_process_death_signal(Some(Signal::KILL)))?;
    let order: Order = protocol::read(&folder.join(protocol::ORDER))
        .map_err(|error| StageFailure::new(None, error.to_string()))?;
    let inherited = inherited_descriptors()?;
    let request = step("request", File::open(folder.join(protocol::REQUEST)))?;
    let result = OpenOptions::new()
        .write(true)
        .open(folder.join(protocol::RESULT));
    let result = step("result", result)?;
    let work = if order.parts.namespaces {
        private_root::enter(folder, &order.read_only, &order.limits)
            .map_err(|reason| StageFailure::new(Part::Namespaces, reason))?;
        PathBuf::from(private_root::WORK)
    } else {
        folder.join(protocol::WORK)
    };
    step("chdir", env::set_current_dir(&work))?;
    drop_capabilities()?;
    step("prctl", set_no_new_privs(true))?;
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

fn step<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Result<T, StageFailure> {
    result.map_err(|error| StageFailure::new(None, format!("{what}: {error}")))
}

fn no_seccomp(reason: String) -> StageFailure {
    StageFailure::new(Part::Seccomp, reason)
}

/// Descriptors beyond the standard ones that would reach the program: leaks of the caller's
/// caller, for everything that Rust opens is closed by `exec`.
fn inherited_descriptors() -> Result<Vec<String>, StageFailure> {
    const CLOSED_BY_EXEC: u32 = 0o2_000_000;
    let mut inherited = Vec::new();
    for entry in step("/proc/self/fdinfo", fs::read_dir("/proc/self/fdinfo"))? {
        let entry = step("/proc/self/fdinfo", entry)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = step("/proc/self/fdinfo", fs::read_to_string(entry.path()))?;
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

/// A process that is root, in its namespaces or in earnest, would get everything back by `exec`
/// without the locked bits.
fn drop_capabilities() -> Result<(), StageFailure> {
    let held = step("capget", capabilities(None))?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        step("securebits", set_capabilities_secure_bits(bits))?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    step("capset", set_capabilities(None, none))
}

fn apply_limits(order: &Order) -> Result<(), StageFailure> {
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
    limit(Resource::Cpu, cpu_secs, cpu_secs.saturating_add(1))?;
    limit(Resource::As, memory_bytes, memory_bytes)?;
    let file_bytes = file_bytes.max(output_bytes);
    limit(Resource::Fsize, file_bytes, file_bytes)?;
    limit(Resource::Nofile, n_open_files, n_open_files)?;
    limit(Resource::Core, 0, 0)?;
    limit(Resource::Msgqueue, 0, 0)?;
    limit(Resource::Memlock, 0, 0)?;
    if order.parts.namespaces {
        // Guard and program count, too. Outside namespaces all processes of the user would.
        let tasks = n_threads.saturating_add(2);
        limit(Resource::Nproc, tasks, tasks)?;
    }
    Ok(())
}

/// A limit that is already lower stays.
fn limit(resource: Resource, soft: u64, hard: u64) -> Result<(), StageFailure> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limits = Rlimit {
        current: Some(soft.min(most)),
        maximum: Some(hard.min(most)),
    };
    step(&format!("{resource:?} limit"), setrlimit(resource, limits))
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
