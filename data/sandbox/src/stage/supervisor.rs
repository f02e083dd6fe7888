//! The guard: parent of the program, outside its namespaces.

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
use crate::protocol::{self, End, Order, StageFailure};

/// Starts the cell, kills it once the leash is let go, and writes how it ended.
pub(super) fn run(folder: &Path) -> Result<(), StageFailure> {
    let order: Order = protocol::read(&folder.join(protocol::ORDER)).map_err(plain)?;
    if order.parts.namespaces {
        leave_namespaces().map_err(|reason| StageFailure::new(Part::Namespaces, reason))?;
    }
    // By this name the file is found even if another one has taken its path since.
    let cell = Command::new("/proc/self/exe")
        .args(&order.launcher_arguments)
        .args([OsStr::new(CELL), folder.as_os_str()])
        .env_clear()
        .stdin(Stdio::null())
        .spawn();
    let mut cell = cell.map_err(|error| failed("the second stage", &error))?;
    let status = wait_on_leash(&mut cell).map_err(|error| failed("waiting", &error))?;
    let end = end(status).map_err(|error| failed("getrusage", &error))?;
    protocol::write(&folder.join(protocol::END), &end).map_err(plain)
}

fn plain(error: impl ToString) -> StageFailure {
    StageFailure::new(None, error.to_string())
}

fn failed(what: &str, error: &io::Error) -> StageFailure {
    StageFailure::new(None, format!("{what}: {error}"))
}

/// Enters new namespaces of every kind but time and mounts; children are in a new one of processes.
///
/// That of mounts is the cell's own, for its change of root would change the guard's.
fn leave_namespaces() -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let all = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(all).map_err(|error| format!("unshare: {}", io::Error::from(error)))?;
    // Root inside, so that the cell keeps its capabilities over these namespaces when it is
    // started; it gives them up before it becomes the program.
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ];
    maps.iter().try_for_each(|(path, line)| {
        fs::write(path, line).map_err(|error| format!("{path}: {error}"))
    })
}

fn wait_on_leash(cell: &mut Child) -> io::Result<ExitStatus> {
    let pid = i32::try_from(cell.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let leash = io::stdin();
    loop {
        let mut events = [
            PollFd::new(&ended, PollFlags::IN),
            PollFd::new(&leash, PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let [ended, leash] = events.map(|event| !event.revents().is_empty());
        if leash && !ended {
            cell.kill()?;
        }
        if leash || ended {
            return cell.wait();
        }
    }
}

fn end(status: ExitStatus) -> io::Result<End> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = [usage.user_time(), usage.system_time()];
    let cpu_secs = times
        .iter()
        .map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
        .sum();
    Ok(End {
        code: status.code(),
        signal: status.signal(),
        cpu_secs,
    })
}
