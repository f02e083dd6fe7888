//! Resource use and limits of this process, as reported by the operating system.

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

/// Environment variable that sets the cache folder shared by all runs.
pub const CACHE_VARIABLE: &str = "TOOLTUNE_CACHE";

/// Cache folder shared by all runs: [`CACHE_VARIABLE`], or `tooltune` in `XDG_CACHE_HOME` or
/// `~/.cache`; `None` without a home directory.
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

/// Peak resident set size in bytes; `None` if the system does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// Current resident set size in bytes; `None` if the system does not report it.
pub fn rss_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmRSS:")
}

/// Memory available to a new process without swapping, in bytes; `None` if the system does not
/// report it. The value is limited by the control group (minus memory that cannot be reclaimed) and
/// by the address space (`ulimit -v`, minus mapped memory).
pub fn available_memory_bytes() -> Option<u64> {
    let machine_bytes = kibibytes("/proc/meminfo", "MemAvailable:");
    let limit: Option<u64> = read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let stat = read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let anonymous = stat
        .lines()
        .find_map(|line| line.strip_prefix("anon ")?.parse::<u64>().ok());
    let group_bytes = limit
        .zip(anonymous)
        .map(|(limit, used)| limit.saturating_sub(used));
    let address_space_bytes = address_space_left();
    [machine_bytes, group_bytes, address_space_bytes]
        .into_iter()
        .flatten()
        .min()
}

/// Bytes that this process may still map, if limited.
#[cfg(unix)]
fn address_space_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let mapped = kibibytes("/proc/self/status", "VmSize:").unwrap_or_default();
    Some(limit.saturating_sub(mapped))
}

/// Always `None` on this system.
#[cfg(not(unix))]
fn address_space_left() -> Option<u64> {
    None
}

/// Returns the value of line `key` of a proc file, which is in kibibytes, in bytes.
fn kibibytes(file: &str, key: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// CPU seconds of all threads so far, user and system; 0 if the system does not report them.
pub fn cpu_seconds() -> f64 {
    // Fields 14 and 15 of proc_pid_stat(5), in ticks of 1/100 s. Count after the process name,
    // which may contain spaces.
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

/// Makes a write beyond the file size limit fail with an error, as on a full disk, instead of
/// ending the process. Child processes are not affected.
#[cfg(unix)]
pub fn handle_file_limit_signal() {
    // Child processes would inherit an ignored signal, but not a handler that does nothing.
    let nothing = Arc::new(AtomicBool::new(false));
    if signal_hook::flag::register(signal_hook::consts::SIGXFSZ, nothing).is_err() {
        tracing::warn!(
            "cannot handle SIGXFSZ: a write beyond `ulimit -f` will end this program without a \
             message"
        );
    }
}

/// Does nothing: this platform has no SIGXFSZ.
#[cfg(not(unix))]
pub fn handle_file_limit_signal() {}

/// Describes the process limits that may have caused an error whose message contains an OS error
/// number; `None` if no such limit is set.
#[cfg(unix)]
pub fn exceeded_limits(message: &str) -> Option<String> {
    let limits = [
        (
            Errno::FBIG,
            Resource::Fsize,
            "a file can have",
            "bytes (ulimit -f)",
        ),
        (
            Errno::MFILE,
            Resource::Nofile,
            "this process can open",
            "files at once (ulimit -n)",
        ),
        (
            Errno::NOMEM,
            Resource::As,
            "the address space can have",
            "bytes (ulimit -v)",
        ),
        (
            Errno::AGAIN,
            Resource::As,
            "the address space can have",
            "bytes (ulimit -v)",
        ),
        (
            Errno::AGAIN,
            Resource::Nproc,
            "the user can have",
            "threads and processes (ulimit -u)",
        ),
    ];
    let reached = limits
        .into_iter()
        .filter_map(|(errno, resource, subject, unit)| {
            let is_named = message.contains(&format!("(os error {})", errno.raw_os_error()));
            // EAGAIN also means a busy lock or socket.
            let is_this_limit = is_named && (errno != Errno::AGAIN || message.contains("thread"));
            let limit = getrlimit(resource).current.filter(|_| is_this_limit)?;
            Some(format!("{subject} at most {limit} {unit}"))
        });
    let reached: Vec<String> = reached.collect();
    (!reached.is_empty()).then(|| format!("{}; raise that limit", reached.join(", ")))
}

/// Always `None` on this system.
#[cfg(not(unix))]
pub fn exceeded_limits(_: &str) -> Option<String> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_names_the_exceeded_limit() {
        let limit = getrlimit(Resource::Nofile).current;
        let hint = exceeded_limits("a.jsonl: cannot read: Too many open files (os error 24)");
        let expected = limit.map(|limit| {
            format!(
                "this process can open at most {limit} files at once (ulimit -n); raise that limit"
            )
        });
        assert_eq!(hint, expected);
        for other in [
            "No such file or directory (os error 2)",
            "run/lock: Resource temporarily unavailable (os error 11)",
        ] {
            assert_eq!(exceeded_limits(other), None);
        }
    }
}
