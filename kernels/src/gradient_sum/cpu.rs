//! Sums of integers on slices.

use crate::cpu::rows::{for_rows, for_tasks};
use crate::cpu::shared::Shared;

use super::LIMIT;

/// Elements per task.
const TASK: usize = 1 << 15;

/// Adds `round(part * scale)` to the elements of `sums` from `first`. The last element of `sums`
/// becomes 1 if an element is out of range.
pub(super) fn add(sums: &mut [i64], first: usize, part: &[f32], scale: f32) {
    let (flag, sums) = sums.split_last_mut().expect("a sum has its flag");
    let sums = &mut sums[first..first + part.len()];
    let tasks: Vec<usize> = (0..part.len()).step_by(TASK).collect();
    let is_in_range = std::sync::atomic::AtomicBool::new(true);
    let shared = Shared::new(sums);
    for_tasks(&tasks, |&start| {
        let part = &part[start..(start + TASK).min(part.len())];
        // SAFETY: tasks work on disjoint ranges.
        let sums = unsafe { shared.slice(start, part.len()) };
        let mut is_near = true;
        for (sum, &x) in sums.iter_mut().zip(part) {
            is_near &= x.abs() < LIMIT;
            *sum = sum.wrapping_add((x * scale).round_ties_even() as i64);
        }
        if !is_near {
            is_in_range.store(false, std::sync::atomic::Ordering::Relaxed);
        }
    });
    if !is_in_range.into_inner() {
        *flag = 1;
    }
}

/// The sums as floats: each is rounded once and multiplied by `factor`, a power of 2. All are NaN
/// if the flag is set.
pub(super) fn to_floats(sums: &[i64], factor: f32) -> Vec<f32> {
    let (&flag, sums) = sums.split_last().expect("a sum has its flag");
    if flag != 0 {
        return vec![f32::NAN; sums.len()];
    }
    let mut floats = vec![0.0; sums.len()];
    for_rows(&mut floats, 1, |rows, floats: &mut [f32]| {
        for (float, &sum) in floats.iter_mut().zip(&sums[rows]) {
            *float = sum as f32 * factor;
        }
    });
    floats
}

/// The bits of floats, as integers that can be added to zeros.
pub(super) fn to_bits(part: &[f32]) -> Vec<i64> {
    part.iter().map(|x| i64::from(x.to_bits())).collect()
}

/// The floats of [`to_bits`].
pub(super) fn of_bits(bits: &[i64]) -> Vec<f32> {
    let bits = bits.iter();
    bits.map(|&bits| f32::from_bits(u32::try_from(bits).unwrap_or(f32::NAN.to_bits())))
        .collect()
}
