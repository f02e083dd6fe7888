//! The most memory that this process has held.

/// Peak resident set size in bytes; `None` where the system does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    if cfg!(target_os = "linux") {
        parse_vm_hwm(&std::fs::read_to_string("/proc/self/status").ok()?)
    } else {
        None
    }
}

/// Reads the line `VmHWM:   123456 kB`.
fn parse_vm_hwm(status: &str) -> Option<u64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_in_bytes() {
        let status = "Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t  2048 kB\nVmRSS:\t  1 kB\n";
        assert_eq!(parse_vm_hwm(status), Some(2048 * 1024));
        assert_eq!(parse_vm_hwm("VmHWM:\t x kB\n"), None);
        assert_eq!(parse_vm_hwm(""), None);
    }

    #[test]
    fn the_peak_covers_memory_that_was_given_back() {
        let before = peak_rss_bytes();
        assert_eq!(before.is_some(), cfg!(target_os = "linux"));
        let Some(before) = before else { return };
        let block = vec![1_u8; 64 << 20];
        assert_eq!(
            block.iter().map(|byte| u64::from(*byte)).sum::<u64>(),
            64 << 20
        );
        drop(block);
        assert!(peak_rss_bytes() >= Some(before.max(64 << 20)));
    }
}
