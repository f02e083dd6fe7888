//! Computes `W + scaling · B·A` in place. With DoRA, each row is then rescaled to its magnitude.

use rayon::prelude::*;

use crate::adapter::Pair;
use crate::weights::HostTensor;

/// Adds `scaling · B·A` to `weight` in f32. `weight` is `[out, in]`, A `[rank, in]` and B `[out,
/// rank]`; the caller has checked the shapes.
///
/// Each row of the product is summed before it is added, so that a large weight does not reduce its
/// precision. If there are DoRA magnitudes, each row is then rescaled to its magnitude, as in PEFT.
pub(super) fn add(weight: &mut HostTensor, pair: &Pair<'_>, scaling: f64) {
    let (rank, n_in) = (pair.rank(), pair.a.shape[1]);
    if rank == 0 || n_in == 0 {
        return;
    }
    let scaling = scaling as f32;
    let magnitude = |row: usize| Some(pair.magnitudes?.values[row]);
    let rows = weight.values.par_chunks_mut(n_in);
    let rows = rows.zip(pair.b.values.par_chunks(rank)).enumerate();
    rows.for_each_init(
        || vec![0.0_f32; n_in],
        |product, (index, (row, factors))| {
            product.fill(0.0);
            for (factor, a_row) in factors.iter().zip(pair.a.values.chunks(n_in)) {
                for (sum, a) in product.iter_mut().zip(a_row) {
                    *sum += factor * a;
                }
            }
            for (value, change) in row.iter_mut().zip(product) {
                *value += scaling * *change;
            }
            if let Some(magnitude) = magnitude(index) {
                let squares = row.iter().map(|x| f64::from(*x) * f64::from(*x));
                let gain = (f64::from(magnitude) / squares.sum::<f64>().sqrt()) as f32;
                row.iter_mut().for_each(|value| *value *= gain);
            }
        },
    );
}
