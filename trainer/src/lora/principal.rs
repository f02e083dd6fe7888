//! PiSSA: initialises the factors from the principal singular values of each weight, and subtracts
//! their product from the weight.
//!
//! The model computes `(W - s B₀ A₀) + s B A`. A checkpoint stores it as plain LoRA of twice the
//! rank, `[B, -B₀] [A; A₀]` on the original `W`, like PEFT's conversion. Any program can load this
//! adapter on the original base, and a resumed run recovers the initial factors exactly.

use std::collections::BTreeMap;

use tooltune_checkpoints::merged::add_product;
use tooltune_checkpoints::weights::{HostTensor, Weights};
use tooltune_rows::batches::SeededRandom;

use super::adapters::AdapterSlot;
use super::matching::LoraError;
use super::singular::Matrix;
use crate::config::PrincipalInit;
use tooltune_terminal::Counted;

/// First random stream for computing singular values.
const PRINCIPAL_STREAM: u64 = 1 << 34;

/// Initial factors from the principal singular values of the weights, in the order of the flat
/// buffer: `A = √(S / s) Vᵀ`, `B = U √(S / s)`.
///
/// # Errors
///
/// A weight cannot be read, or has a value that is not finite.
///
/// # Panics
///
/// Panics if a rank exceeds the rows or columns of its weight. Call
/// [`check_principal_ranks`](crate::lora::LoraLayout::check_principal_ranks) first.
///
/// # Source
///
/// Meng et al. 2024 ("PiSSA: Principal Singular Values and Singular Vectors Adaptation of Large
/// Language Models"); `LoraLayer.pissa_init`, peft 0.21.
pub fn principal_factors(
    init: PrincipalInit,
    slots: &[AdapterSlot],
    weights: &Weights,
    seed: u64,
) -> Result<Vec<f32>, LoraError> {
    let mut progress = Counted::begin("singular values", slots.len());
    let mut values = Vec::new();
    for (i, slot) in slots.iter().enumerate() {
        progress.advance(i);
        let is_too_large = slot.rank > slot.in_features.min(slot.out_features);
        assert!(!is_too_large, "singular values for a rank of {}", slot.rank);
        let name = slot.weight();
        let weight = weights.read_f32(&name)?;
        if weight.values.iter().any(|value| !value.is_finite()) {
            return Err(LoraError::NoSingularValues(slot.module.clone()));
        }
        let matrix = Matrix {
            values: &weight.values,
            columns: slot.in_features,
        };
        let mut random = SeededRandom::new(seed, PRINCIPAL_STREAM + i as u64);
        let svd = match init {
            PrincipalInit::Exact => matrix.largest(slot.rank, &mut random),
            PrincipalInit::Sketched(n) => matrix.sketch(slot.rank, n, &mut random),
        };
        let roots = svd.values.iter().map(|s| (s / slot.scaling).sqrt());
        let roots: Vec<f64> = roots.collect();
        for (root, right) in roots.iter().zip(&svd.right) {
            values.extend(right.iter().map(|x| (root * x) as f32));
        }
        for row in 0..slot.out_features {
            let columns = roots.iter().zip(&svd.left);
            values.extend(columns.map(|(root, left)| (root * left[row]) as f32));
        }
    }
    Ok(values)
}

/// Subtracts the product of the `initial` factors from the weight `name`. Weights without a slot
/// are unchanged.
pub fn subtract_initial(
    slots: &[AdapterSlot],
    initial: &[f32],
    name: &str,
    weight: &mut HostTensor,
) {
    let Some(slot) = slots.iter().find(|slot| slot.weight() == name) else {
        return;
    };
    let [a, b] = slot.factors().map(|(_, shape, range)| HostTensor {
        shape,
        values: initial[range].to_vec(),
    });
    add_product(weight, &a, &b, -slot.scaling);
}

/// The factors with twice the rank, `[B, -B₀] [A; A₀]`, by name.
pub(super) fn with_doubled_rank(
    slots: &[AdapterSlot],
    values: &[f32],
    initial: &[f32],
) -> BTreeMap<String, HostTensor> {
    let mut tensors = BTreeMap::new();
    for slot in slots {
        let [(a_name, _, a), (b_name, _, b)] = slot.factors();
        let both = [&values[a.clone()], &initial[a]].concat();
        let rows = values[b.clone()].chunks(slot.rank);
        let rows = rows.zip(initial[b].chunks(slot.rank));
        let b = rows.flat_map(|(row, initial)| {
            let negated = initial.iter().map(|value| -value);
            row.iter().copied().chain(negated)
        });
        let twice = slot.with_doubled_rank();
        let shapes = twice.factors().map(|(_, shape, _)| shape);
        let [a_shape, b_shape] = shapes;
        tensors.insert(
            a_name,
            HostTensor {
                shape: a_shape,
                values: both,
            },
        );
        let b = b.collect();
        tensors.insert(
            b_name,
            HostTensor {
                shape: b_shape,
                values: b,
            },
        );
    }
    tensors
}

/// Splits the output of [`with_doubled_rank`] into current and initial factors. Check names and shapes
/// against the doubled slots first.
pub(super) fn split_doubled(
    slots: &[AdapterSlot],
    tensors: &BTreeMap<String, HostTensor>,
) -> [Vec<f32>; 2] {
    let (mut values, mut initial) = (Vec::new(), Vec::new());
    for slot in slots {
        let [(a_name, ..), (b_name, ..)] = slot.factors();
        let (current, subtracted) = tensors[&a_name]
            .values
            .split_at(slot.rank * slot.in_features);
        values.extend_from_slice(current);
        initial.extend_from_slice(subtracted);
        for row in tensors[&b_name].values.chunks(2 * slot.rank) {
            values.extend_from_slice(&row[..slot.rank]);
            initial.extend(row[slot.rank..].iter().map(|value| -value));
        }
    }
    [values, initial]
}
