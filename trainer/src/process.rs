//! What the operating system says of this process.

use std::fs::read_to_string;

/// Largest resident set so far, in bytes; `None` where the system does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    let status = read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
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
