//! Sums and maxima over the units of a cube, in shared memory.
//!
//! Pairwise reduction in a fixed order: the same values give the same sum in every run. It needs no
//! warp operations, so the same code runs on devices without them.

use cubecl::prelude::*;

/// Sum of `value` over the units of a group, returned to each of them; all units of the cube must
/// call this.
///
/// `scratch` has one element per unit. A group has `units` adjacent units: a power of two that
/// divides the cube size, or the cube size itself.
#[cube]
pub(crate) fn group_sum(scratch: &mut Shared<[f32]>, value: f32, #[comptime] units: u32) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = UNIT_POS % units;
    scratch[unit] = value;
    sync_cube();
    let mut half = comptime!(units / 2).runtime();
    while half > 0 {
        if lane < half {
            let other = scratch[unit + half as usize];
            scratch[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    let total = scratch[unit - lane as usize];
    sync_cube();
    total
}

/// Largest `value` of all units, returned to each of them; NaN may be ignored.
#[cube]
pub(crate) fn cube_max(scratch: &mut Shared<[f32]>, value: f32, #[comptime] units: u32) -> f32 {
    let unit = UNIT_POS as usize;
    scratch[unit] = value;
    sync_cube();
    let mut half = comptime!(units / 2).runtime();
    while half > 0 {
        if UNIT_POS < half {
            let other = scratch[unit + half as usize];
            scratch[unit] = max(scratch[unit], other);
        }
        sync_cube();
        half /= 2;
    }
    let total = scratch[0];
    sync_cube();
    total
}
