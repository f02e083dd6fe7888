//! Sums and maxima over the units of a cube, in shared memory.
//!
//! A tree of pairs in a fixed order: the same numbers give the same sum on every run. It needs no
//! operations between the lanes of a warp, so that the same text runs where there are none.

use cubecl::prelude::*;

/// Sum of `value` over the units of a group, given to each of them; all units of the cube take part.
///
/// `scratch` holds one number a unit; `units`, those of a group side by side, is a power of two that
/// divides the size of the cube, or is that size.
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

/// Largest `value` of all units, given to each of them; a NaN may be passed over.
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
