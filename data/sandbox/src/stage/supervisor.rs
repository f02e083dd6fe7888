//! The guard stage: the parent of the program, outside its namespaces.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getegid, geteuid, pidfd_open};

use super::CELL;
use crate::isolation::Part;
use crate::protocol::{self, ExitEnd, RunOrder, StageFailure};

/// Starts the cell, kills it when the leash is released, and records how it ended.
pub(super) fn run(folder: &Path) -> Result<(), StageFailure> {
    let order: RunOrder = protocol::read(&folder.join(protocol::ORDER)).map_err(without_part)?;
    if order.parts.namespaces {
        leave_namespaces().map_err(|reason| StageFailure::new(Part::Namespaces, reason))?;
    }
    // This path works even if another file has replaced the executable.
    let cell = Command::new("/proc/self/exe")
        .args(&order.launcher_arguments)
        .args([OsStr::new(CELL), folder.as_os_str()])
        .env_clear()
        .stdin(Stdio::null())
        .spawn();
    let mut cell = cell.map_err(|error| call_failure("the second stage", &error))?;
    let status =
        wait_while_parent_lives(&mut cell).map_err(|error| call_failure("waiting", &error))?;
    let end = exit_end(status).map_err(|error| call_failure("getrusage", &error))?;
    protocol::write(&folder.join(protocol::END), &end).map_err(without_part)
}

fn without_part(error: impl ToString) -> StageFailure {
    StageFailure::new(None, error.to_string())
}

fn call_failure(call_name: &str, error: &io::Error) -> StageFailure {
    StageFailure::new(None, format!("{call_name}: {error}"))
}

/// Enters new namespaces of every kind except time and mount. Child processes are in the new
/// process namespace.
///
/// The cell creates the mount namespace itself, because otherwise its change of root would affect
/// the guard.
fn leave_namespaces() -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let all_namespaces = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(all_namespaces).map_err(|error| format!("unshare: {}", io::Error::from(error)))?;
    // The user is root inside, so that the cell has capabilities over these namespaces when it
    // starts. It drops them before it becomes the program.
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ];
    maps.iter().try_for_each(|(path, line)| {
        fs::write(path, line).map_err(|error| format!("{path}: {error}"))
    })
}

fn wait_while_parent_lives(cell: &mut Child) -> io::Result<ExitStatus> {
    let pid = i32::try_from(cell.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("the process has no ID"))?;
    let pid_fd = pidfd_open(pid, PidfdFlags::empty())?;
    let leash = io::stdin();
    loop {
        let mut events = [
            PollFd::new(&pid_fd, PollFlags::IN),
            PollFd::new(&leash, PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let [pid_fd, leash] = events.map(|event| !event.revents().is_empty());
        if leash && !pid_fd {
            cell.kill()?;
        }
        if leash || pid_fd {
            return cell.wait();
        }
    }
}

fn exit_end(status: ExitStatus) -> io::Result<ExitEnd> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = [usage.user_time(), usage.system_time()];
    let cpu_secs = times
        .iter()
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
        .sum();
    Ok(ExitEnd {
        code: status.code(),
        signal: status.signal(),
        cpu_secs,
    })
}
