//! Memory that the C library retains after large blocks are freed; a separate program, because the
//! setting applies to the whole process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use tooltune_kernels::cpu::malloc_tuning::return_large_blocks;

const MIB: usize = 1 << 20;

/// The resident set, in MiB.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status is readable");
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kibibytes.map_or(0, |kibibytes: usize| kibibytes / 1024)
}

#[test]
fn freed_blocks_between_live_ones_are_returned_to_the_system() {
    return_large_blocks();
    // Without the setting, glibc now allocates all blocks of up to 30 MiB from its heap.
    drop(vec![1u8; 30 * MIB]);
    let initial = resident();
    let mut blocks: Vec<Vec<u8>> = (0..100).map(|_| vec![1u8; 3 * MIB]).collect();
    assert!(
        resident() >= initial + 290,
        "{} after {initial}",
        resident()
    );
    let mut index = 0;
    blocks.retain(|_| {
        index += 1;
        index % 10 == 0
    });
    assert!(resident() <= initial + 40, "{} after {initial}", resident());
    assert!(blocks.iter().flatten().all(|&byte| byte == 1));
}
