//! What the operating system says of this process.

use std::fs::read_to_string;

/// Largest resident set so far, in bytes; `None` where the system does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

/// Resident set now, in bytes; `None` where the system does not tell.
pub fn rss_bytes() -> Option<u64> {
    kibibytes("/proc/self/status", "VmRSS:")
}

/// Memory that a new process can have without swapping, in bytes; `None` where the system does not
/// tell. A limit of the process's control group counts, less what cannot be given up of it.
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
    [of_machine, of_group].into_iter().flatten().min()
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
