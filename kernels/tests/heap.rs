//! What the C library keeps of large blocks that were freed; a program of its own, because the setting
//! is the whole process's.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use tooltune_kernels::cpu::malloc_tuning::give_large_blocks_back;

const MIB: usize = 1 << 20;

/// The resident set, in MiB.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("what the system says");
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    kibibytes.map_or(0, |kibibytes: usize| kibibytes / 1024)
}

#[test]
fn blocks_between_others_that_stay_are_given_back() {
    give_large_blocks_back();
    // Without the setting, glibc now takes all blocks of up to 30 MiB from its heap.
    drop(vec![1u8; 30 * MIB]);
    let before = resident();
    let mut blocks: Vec<Vec<u8>> = (0..100).map(|_| vec![1u8; 3 * MIB]).collect();
    assert!(resident() >= before + 290, "{} after {before}", resident());
    let mut place = 0;
    blocks.retain(|_| {
        place += 1;
        place % 10 == 0
    });
    assert!(resident() <= before + 40, "{} after {before}", resident());
    assert!(blocks.iter().flatten().all(|&byte| byte == 1));
}
