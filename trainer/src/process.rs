//! What the operating system says of this process, and the limits that it is held to.

use std::fs::read_to_string;
use std::path::PathBuf;
#[cfg(unix)]
use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;

#[cfg(unix)]
use rustix::io::Errno;
#[cfg(unix)]
use rustix::process::{Resource, getrlimit};

/// The environment variable that names the folder of what is kept for later processes.
pub const CACHE_VARIABLE: &str = "TOOLTUNE_CACHE";

/// The folder of what is kept for later processes: that of [`CACHE_VARIABLE`], else `tooltune` in
/// `XDG_CACHE_HOME` or `~/.cache`; `None` where there is no home either.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = variable(CACHE_VARIABLE) {
        return Some(PathBuf::from(folder));
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.filter(|folder| folder.is_absolute());
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Some(cache.or_else(home)?.join("tooltune"))
}

/// Largest resident set so far, in bytes; `None` where the system does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// Resident set now, in bytes; `None` where the system does not tell.
pub fn rss_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmRSS:")
}

/// Memory that a new process can have without swapping, in bytes; `None` where the system does not
/// tell. A limit of the process's control group counts, less what cannot be given up of it, and one of
/// its address space (`ulimit -v`), less what it has of that.
pub fn available_memory_bytes() -> Option<u64> {
    let of_machine = kibibytes("/proc/meminfo", "MemAvailable:");
    let limit: Option<u64> = read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let stat = read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let anonymous = stat
        .lines()
        .find_map(|line| line.strip_prefix("anon ")?.parse::<u64>().ok());
    let of_group = limit
        .zip(anonymous)
        .map(|(limit, used)| limit.saturating_sub(used));
    let of_space = address_space_left();
    [of_machine, of_group, of_space].into_iter().flatten().min()
}

/// Bytes that this process may still map, where that is limited.
#[cfg(unix)]
fn address_space_left() -> Option<u64> {
    let most = getrlimit(Resource::As).current?;
    let mapped = kibibytes("/proc/self/status", "VmSize:").unwrap_or_default();
    Some(most.saturating_sub(mapped))
}

/// Nothing where there is no such limit.
#[cfg(not(unix))]
fn address_space_left() -> Option<u64> {
    None
}

/// The line `key` of a file of the proc file system, which counts in kibibytes, in bytes.
fn kibibytes(file: &str, key: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Processor seconds of all threads so far, user and system; 0 where the system does not tell.
pub fn cpu_seconds() -> f64 {
    // Fields 14 and 15 of proc(5), after the name, which may hold blanks; in ticks of 1/100 s.
    let Ok(stat) = read_to_string("/proc/self/stat") else {
        return 0.0;
    };
    let fields: Vec<&str> = match stat.rfind(')') {
        Some(end) => stat[end + 1..].split_whitespace().collect(),
        None => return 0.0,
    };
    let ticks = |idx: usize| {
        fields
            .get(idx)
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}

/// Has writes beyond a limit of the length of files fail as those on a full disk do, with an error,
/// and not end the process. Programs that this one starts are not concerned.
#[cfg(unix)]
pub fn survive_file_limit() {
    // A handler that does nothing is not handed on, as a signal that is ignored would be.
    let nothing = Arc::new(AtomicBool::new(false));
    if signal_hook::flag::register(signal_hook::consts::SIGXFSZ, nothing).is_err() {
        tracing::warn!("a write beyond `ulimit -f` will end this program without a message");
    }
}

/// Nothing where there are no such signals.
#[cfg(not(unix))]
pub fn survive_file_limit() {}

/// What limits of this process may be behind an error whose message holds the number of a fault of
/// the system; nothing where none of them is set.
#[cfg(unix)]
pub fn limits_behind(message: &str) -> Option<String> {
    let limits = [
        (
            Errno::FBIG,
            Resource::Fsize,
            "a file may have",
            "bytes (ulimit -f)",
        ),
        (
            Errno::MFILE,
            Resource::Nofile,
            "at once there may be",
            "open files (ulimit -n)",
        ),
        (
            Errno::NOMEM,
            Resource::As,
            "the address space may have",
            "bytes (ulimit -v)",
        ),
        (
            Errno::AGAIN,
            Resource::As,
            "the address space may have",
            "bytes (ulimit -v)",
        ),
        (
            Errno::AGAIN,
            Resource::Nproc,
            "the user may have",
            "threads and processes (ulimit -u)",
        ),
    ];
    let said = limits
        .into_iter()
        .filter_map(|(errno, resource, subject, unit)| {
            let is_named = message.contains(&format!("(os error {})", errno.raw_os_error()));
            // Locks and sockets are busy with the same number.
            let is_meant = is_named && (errno != Errno::AGAIN || message.contains("thread"));
            let most = getrlimit(resource).current.filter(|_| is_meant)?;
            Some(format!("{subject} at most {most} {unit}"))
        });
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| format!("{}; raise that limit", said.join(", ")))
}

/// Nothing where there are no such limits.
#[cfg(not(unix))]
pub fn limits_behind(_: &str) -> Option<String> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_system_names_the_limit_behind_it() {
        let most = getrlimit(Resource::Nofile).current;
        let said = limits_behind("a.jsonl: cannot read: Too many open files (os error 24)");
        let expected = most.map(|most| {
            format!("at once there may be at most {most} open files (ulimit -n); raise that limit")
        });
        assert_eq!(said, expected);
        for other in [
            "No such file or directory (os error 2)",
            "run/lock: Resource temporarily unavailable (os error 11)",
        ] {
            assert_eq!(limits_behind(other), None);
        }
    }
}
