//! Fused operations against their references for random shapes: single tokens and columns, odd
//! sizes, documents of any length.

use tooltune_kernels::ComputeDtype;
use tooltune_kernels::swiglu::{self, swiglu};

use crate::backend::elementwise::{self, Gate};
use crate::backend::{attention, compare};
use crate::linear_cross_entropy;
use crate::lora_linear::{self, KINDS, Shape};
use crate::support::{BOTH_TYPES, Numbers, under_test};

const BOTH: [ComputeDtype; 2] = [ComputeDtype::F32, ComputeDtype::Bf16];

/// From 1 to `most`; a fifth are 1, and at least half of the others are odd.
fn size(numbers: &mut Numbers, most: usize) -> usize {
    match numbers.below(5) {
        0 => 1,
        1 | 2 => numbers.below(most) | 1,
        _ => 1 + numbers.below(most),
    }
}

#[test]
fn rms_norm_matches_the_reference() {
    let mut numbers = Numbers::new(111);
    for turn in 0..60 {
        let shape = [size(&mut numbers, 40), size(&mut numbers, 300)];
        elementwise::compare_rms_norm(&under_test(), &mut numbers, shape, BOTH_TYPES[turn % 2]);
    }
}

#[test]
fn swiglu_matches_the_reference() {
    let mut numbers = Numbers::new(112);
    let gates: [Gate; 2] = [swiglu, swiglu::reference::swiglu];
    for turn in 0..60 {
        let [n, f] = [size(&mut numbers, 40), size(&mut numbers, 300)];
        let dtype = BOTH_TYPES[turn % 2];
        let gate_up = numbers.tensor([n, 2 * f]).mul_scalar(12.0).cast(dtype);
        let dy = numbers.tensor([n, f]).cast(dtype);
        let name = format!("{n} {f} {dtype:?}");
        compare(&under_test(), &name, (&gate_up, &dy), &gates[0], &gates[1]);
    }
}

#[test]
fn rope_matches_the_reference() {
    let mut numbers = Numbers::new(113);
    for turn in 0..60 {
        let [n, heads] = [40, 12].map(|most| size(&mut numbers, most));
        let c = 2 * size(&mut numbers, 70);
        let rotated = [c, numbers.below(heads + 1)];
        let dtype = BOTH_TYPES[turn % 2];
        elementwise::compare_rope(&under_test(), &mut numbers, [n, heads, c], rotated, dtype);
    }
}

#[test]
fn stacked_layers_match_the_reference() {
    let mut numbers = Numbers::new(114);
    for turn in 0..60 {
        let [n, inputs] = [70, 200].map(|most| size(&mut numbers, most));
        let layers = 1 + numbers.below(3);
        let outputs: Vec<usize> = (0..layers).map(|_| size(&mut numbers, 100)).collect();
        let ranks: Vec<usize> = (0..layers).map(|_| numbers.below(10)).collect();
        let shape = Shape::new(n, inputs, &outputs, &ranks);
        let kind = KINDS[numbers.below(KINDS.len())];
        lora_linear::compare(&mut numbers, shape, kind, BOTH[turn % 2]);
    }
}

#[test]
fn attention_matches_the_reference() {
    let mut numbers = Numbers::new(115);
    for turn in 0..30 {
        // The heads of SmolLM2, Llama 3 and Qwen2-0.5B.
        let [h, g] = [[9, 3], [32, 8], [14, 2]][turn % 3];
        let c = size(&mut numbers, 24);
        let mut borders = vec![0];
        for _ in 0..size(&mut numbers, 6) {
            borders.push(borders[borders.len() - 1] + size(&mut numbers, 40));
        }
        let n = borders[borders.len() - 1] + numbers.below(3);
        for causality in attention::BOTH {
            let case = attention::Case::new(&mut numbers, [h, g, c], (&borders, n), causality);
            let name = format!("{h} {g} {c}, {borders:?} of {n}, {causality:?}");
            case.check(&under_test(), &name);
        }
    }
}

#[test]
fn cross_entropy_matches_the_reference() {
    let mut numbers = Numbers::new(116);
    for turn in 0..60 {
        let [rows, d] = [40, 60].map(|most| size(&mut numbers, most));
        let vocab = 1 + size(&mut numbers, 700);
        // Similar logits: if one row were almost certain, its gradient would be only rounding
        // error.
        let hidden = numbers
            .tensor([rows, d])
            .mul_scalar(2.0 / (d as f64).sqrt());
        let chunks = [size(&mut numbers, rows), rows];
        linear_cross_entropy::compare(&mut numbers, &hidden, vocab, BOTH[turn % 2], &chunks);
    }
}
