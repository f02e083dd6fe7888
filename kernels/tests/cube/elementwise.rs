//! Operations that work row by row or element by element.

use burn::tensor::{DType, Tensor};
use tooltune_kernels::gradient_sum::{self, GradientSum};
use tooltune_kernels::{
    AdamW, AdamWState, ComputeDtype, FrozenWeight, RopeTable, RowIndices, SpanNorm, Supervision,
    adamw, embedding, head_norm, linear_cross_entropy, masked_argmax, rms_norm, rope, select_rows,
    swiglu,
};

use crate::support::{
    Numbers, assert_both_near, assert_near, device_numbers, device_values, differentiate, leaf,
    on_device, pair, values,
};

/// Single tokens and elements, widths that are not multiples of a vector, and rows longer than a
/// cube.
const ROWS: [[usize; 2]; 7] = [
    [1, 1],
    [3, 7],
    [1, 64],
    [5, 130],
    [33, 576],
    [2, 1028],
    [300, 12],
];

#[test]
fn rms_norm_and_its_gradient_match_the_reference() {
    let mut numbers = Numbers::new(1);
    for shape in ROWS {
        let [x, dy] = [0; 2].map(|_| numbers.tensor(shape));
        let weight = numbers.tensor([shape[1]]);
        let frozen = Tensor::from_inner(on_device(&weight));
        let ours = differentiate(&on_device(&x), &on_device(&dy), |x| {
            rms_norm::rms_norm(x, &frozen, 1e-5, DType::F32)
        });
        let frozen = Tensor::from_inner(weight);
        let expected = differentiate(&x, &dy, |x| {
            rms_norm::reference::rms_norm(x, &frozen, 1e-5, DType::F32)
        });
        assert_both_near(&format!("{shape:?}"), &ours, &expected);
    }
}

#[test]
fn span_norm_and_its_gradient_match_the_reference() {
    let mut numbers = Numbers::new(9);
    for ([n, heads, c], spans) in [
        ([1, 1, 2], vec![2]),
        ([7, 8, 24], vec![24; 6]),
        ([50, 8, 16], vec![64, 32]),
        ([3, 5, 70], vec![70, 140]),
        ([9, 3, 7], vec![7; 3]),
        ([40, 4, 128], vec![128; 3]),
        // More than two lengths: the reference runs on both sides.
        ([4, 4, 8], vec![8, 16, 8]),
    ] {
        let weight = numbers.tensor([spans.iter().sum()]);
        let norm = |weight| SpanNorm {
            weight: Tensor::from_inner(weight),
            spans: spans.clone().into(),
            eps: 1e-6,
        };
        let [x, dy] = [0; 2].map(|_| numbers.tensor([n, heads, c]));
        let frozen = norm(on_device(&weight));
        let ours = differentiate(&on_device(&x), &on_device(&dy), |x| {
            head_norm::head_norm(x, &frozen)
        });
        let frozen = norm(weight);
        let expected = differentiate(&x, &dy, |x| head_norm::reference::head_norm(x, &frozen));
        assert_both_near(&format!("{n} {heads} {c} {spans:?}"), &ours, &expected);
    }
}

#[test]
fn lookup_returns_the_rows_of_the_ids() {
    let mut numbers = Numbers::new(4);
    for [v, d] in ROWS {
        let table = numbers.tensor([v, d]);
        let floats = values(table.clone());
        let device = on_device(&table).device();
        let frozen = FrozenWeight::new(floats, [v, d], ComputeDtype::F32, &device);
        let some: Vec<u32> = (0..40).map(|_| numbers.below(v) as u32).collect();
        for ids in [&[][..], &[v as u32 - 1], &some] {
            let ours = embedding::embedding(&frozen, ids);
            assert_eq!(ours.dims(), [ids.len(), d]);
            let expected: Vec<f32> = match ids {
                [] => Vec::new(),
                ids => values(embedding::reference::embedding(&table, ids)),
            };
            assert_eq!(values(ours), expected, "{ids:?} of {v} rows of {d}");
        }
    }
}

/// Only on CUDA: Vulkan's software device does not support bf16.
#[cfg(feature = "cuda")]
#[test]
fn a_weight_loaded_in_pieces_equals_one_loaded_whole() {
    let mut numbers = Numbers::new(5);
    // Less than a piece; several pieces with a last one of odd length; rows that no pitch divides.
    for [v, d] in [[3, 5], [4101, 1025]] {
        let floats: Vec<f32> = (0..v * d)
            .map(|_| numbers.below(1 << 20) as f32 - 5e5)
            .collect();
        let device = crate::support::device();
        let at_once = FrozenWeight::new(floats.clone(), [v, d], ComputeDtype::Bf16, &device);
        let in_pieces = FrozenWeight::from_fill([v, d], &device, |start, to| {
            for (to, from) in to.iter_mut().zip(&floats[start..]) {
                *to = burn::tensor::bf16::from_f32(*from);
            }
            Ok::<_, ()>(())
        });
        let in_pieces = in_pieces.expect("fill returns no error");
        let ours = values(in_pieces.to_tensor());
        let is_right = |(ours, float): (&f32, &f32)| {
            ours.to_bits() == burn::tensor::bf16::from_f32(*float).to_f32().to_bits()
        };
        assert!(ours.iter().zip(&floats).all(is_right), "{v} rows of {d}");
        let ids: Vec<u32> = (0..v as u32).rev().step_by(97).collect();
        assert_eq!(
            values(embedding::embedding(&in_pieces, &ids)),
            values(embedding::embedding(&at_once, &ids))
        );
    }
}

#[test]
fn swiglu_and_its_gradient_match_the_reference() {
    let mut numbers = Numbers::new(2);
    for [n, width] in ROWS {
        let gate_up = numbers.tensor([n, 2 * width]);
        let dy = numbers.tensor([n, width]);
        let ours = differentiate(&on_device(&gate_up), &on_device(&dy), swiglu::swiglu);
        let expected = differentiate(&gate_up, &dy, swiglu::reference::swiglu);
        assert_both_near(&format!("{n} rows of {width}"), &ours, &expected);
    }
}

#[test]
fn rope_and_its_gradient_match_the_reference() {
    let mut numbers = Numbers::new(3);
    for ([n, heads, c], turned) in [
        ([1, 1, 2], 1),
        ([5, 15, 64], 12),
        ([3, 18, 6], 16),
        ([70, 48, 16], 40),
        ([2, 3, 10], 0),
    ] {
        let [qkv, dy] = [0; 2].map(|_| numbers.tensor([n, heads, c]));
        let [cos, sin] = [0; 2].map(|_| numbers.tensor([n, 1, c / 2]));
        let [ours, expected] = [on_device, Tensor::clone].map(|place: fn(&_) -> _| {
            let [cos, sin] = [&cos, &sin].map(|table| Tensor::from_inner(place(table)));
            (RopeTable { cos, sin }, place(&qkv), place(&dy))
        });
        let (table, x, dy) = ours;
        let ours = differentiate(&x, &dy, |x| rope::rope(x, &table, turned));
        let (table, x, dy) = expected;
        let expected = differentiate(&x, &dy, |x| rope::reference::rope(x, &table, turned));
        let name = format!("{n} tokens, {turned} of {heads} heads of {c}");
        assert_both_near(&name, &ours, &expected);
    }
}

#[test]
fn row_losses_and_their_gradients_match_the_reference() {
    let mut numbers = Numbers::new(5);
    for [m, v] in [[1, 1], [3, 2], [7, 50], [5, 257], [2, 2052], [40, 1000]] {
        let (logits, _) = numbers.pair([m, v]);
        let (logits, logits_device) = pair(values(logits.mul_scalar(8.0)), [m, v]);
        let supervision = Supervision {
            rows: (0..m).collect(),
            targets: (0..m).map(|_| numbers.below(v) as u32).collect(),
            weights: (0..m).map(|i| 0.5 + i as f32).collect(),
        };
        let targets = device_numbers(&supervision.targets);
        let (_, weights) = pair(supervision.weights.clone(), [m]);
        let losses = |scale| {
            linear_cross_entropy::cuda::losses(
                logits_device.clone(),
                targets.clone(),
                weights.clone(),
                scale,
            )
        };
        let [alone, kept] = losses(None);
        assert_eq!(device_values(kept), values(logits.clone()));
        let [with_gradient, d_logits] = losses(Some(0.25));

        let leaf = leaf(&logits);
        let identity = Tensor::<2>::from_inner(Tensor::eye(v, &logits.device()));
        let expected = linear_cross_entropy::reference::linear_cross_entropy(
            leaf.clone(),
            &identity,
            &supervision,
        );
        let grads = expected.clone().mul_scalar(0.25).backward();
        let name = format!("{m} rows of {v}");
        let sum = |losses| [device_values(losses).iter().sum::<f32>()];
        let expected = values(expected.inner());
        assert_near(&name, &sum(alone), &expected);
        assert_near(&name, &sum(with_gradient), &expected);
        assert_near(
            &name,
            &device_values(d_logits),
            &values(leaf.grad(&grads).unwrap()),
        );
    }
}

#[test]
fn exact_sums_of_gradients_equal_the_reference() {
    let mut numbers = Numbers::new(61);
    for (n, n_parts) in [(1, 2), (7, 1), (1000, 3), (70_003, 5)] {
        let parts: Vec<Tensor<1>> = (0..n_parts)
            .map(|i| numbers.tensor([n]).mul_scalar(10.0_f64.powi(-2 * i)))
            .collect();
        let placed: Vec<Tensor<1>> = parts.iter().map(|part| on_device(part)).collect();
        let sum = || {
            let mut sum = GradientSum::new(n, parts.len());
            placed.iter().for_each(|part| sum.add(part.clone()));
            sum
        };
        let bits = |x: &Tensor<1>| {
            values(x.clone())
                .iter()
                .map(|x| x.to_bits())
                .collect::<Vec<_>>()
        };
        let expected = bits(&gradient_sum::reference::sum(&parts));
        let alone = sum()
            .finish::<()>(&placed[0], None)
            .expect("no other process");
        assert_eq!(bits(&alone), expected, "{n} values, {n_parts} parts");
        let mut n_calls = 0;
        let mut add_all = |_: &mut [i64]| {
            n_calls += 1;
            Ok::<(), ()>(())
        };
        let with_others = sum().finish(&placed[0], Some(&mut add_all));
        assert_eq!(
            bits(&with_others.expect("no error")),
            expected,
            "{n} values"
        );
        assert_eq!(n_calls, 1);
    }
    for value in [1024.0, -2000.0, f32::NAN] {
        let parts = [vec![0.5, 1.0], vec![value, 0.0]];
        let mut sum = GradientSum::new(2, 2);
        for part in parts {
            sum.add(on_device(&pair(part, [2]).0));
        }
        let like = on_device(&pair(vec![0.0; 2], [2]).0);
        let sum = values(sum.finish::<()>(&like, None).expect("no other process"));
        assert!(sum.iter().all(|x| x.is_nan()), "{value}: {sum:?}");
    }
}

#[test]
fn twenty_adamw_updates_match_the_reference() {
    let mut numbers = Numbers::new(6);
    let adamw = AdamW {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
    };
    for length in [1, 7, 1000, 5003] {
        let (mut parameters, ours) = numbers.pair([length]);
        let mut state = AdamWState::new(&parameters);
        let zeros = || pair(vec![0.0; length], [length]).1;
        let mut flat = adamw::cuda::Flat {
            parameters: ours,
            gradient: zeros(),
            first_moment: zeros(),
            second_moment: zeros(),
        };
        for step in 1..=20 {
            let (gradient, gradient_device) = numbers.pair([length]);
            let [learning_rate, clip_factor] = [1e-2 / step as f64, 0.7];
            parameters = adamw.update(
                parameters,
                gradient.mul_scalar(clip_factor),
                &mut state,
                learning_rate,
            );
            flat.gradient = gradient_device;
            adamw::cuda::update_flat(&adamw, &flat, [learning_rate, clip_factor], step);
        }
        let name = format!("{length} parameters");
        assert_near(&name, &device_values(flat.parameters), &values(parameters));
        assert_near(
            &name,
            &device_values(flat.first_moment),
            &values(state.first_moment),
        );
        assert_near(
            &name,
            &device_values(flat.second_moment),
            &values(state.second_moment),
        );
    }
}

#[test]
fn gradient_norm_of_any_length_matches_the_reference() {
    let mut numbers = Numbers::new(7);
    for length in [1, 3, 256, 1025, 300_000, 600_004] {
        let (x, x_device) = numbers.pair([length]);
        let expected = adamw::global_norm(&x) as f32;
        let ours = device_values(adamw::cuda::norm(x_device));
        assert_near(&format!("{length}"), &ours, &[expected]);
    }
}

#[test]
fn masked_argmax_matches_the_reference() {
    let mut numbers = Numbers::new(11);
    for [rows, width] in [[1, 1], [3, 31], [2, 300], [4, 1024], [2, 5001]] {
        // Few distinct values, so that ties occur.
        let coarse: Tensor<2> = numbers.tensor([rows, width]).mul_scalar(4.0).round();
        let n_words = width.div_ceil(32);
        let mask_words: Vec<Vec<u32>> = (0..rows)
            .map(|row| {
                // One row allows all tokens, one allows none, and one has a word too few.
                let n = if row == 2 { n_words - 1 } else { n_words };
                let mut word = || numbers.below(1 << 20) as u32 * 4099;
                (0..n).map(|_| if row == 1 { 0 } else { word() }).collect()
            })
            .collect();
        let masks: Vec<Option<&[u32]>> = mask_words
            .iter()
            .enumerate()
            .map(|(row, mask_words)| (row > 0).then_some(mask_words.as_slice()))
            .collect();
        let unmasked = vec![None; rows];
        let nan = coarse.clone().slice_fill([0..1, 0..1], f32::NAN);
        for (logits, masks) in [(&coarse, &masks), (&nan, &masks), (&nan, &unmasked)] {
            let ours = masked_argmax::masked_argmax(on_device(logits), masks);
            let expected = masked_argmax::reference::masked_argmax(logits.clone(), masks);
            assert_eq!(ours, expected, "{rows} rows of {width}");
        }
    }
}

#[test]
fn selected_rows_and_their_gradient_match_the_reference() {
    let mut numbers = Numbers::new(12);
    for ([n, d], rows) in [
        ([1, 1], vec![0]),
        ([9, 7], vec![0, 3, 8]),
        ([300, 12], (0..300).step_by(7).collect::<Vec<u32>>()),
        ([5, 64], vec![]),
    ] {
        let rows = RowIndices::new(&rows);
        let x = numbers.tensor([n, d]);
        let dy = numbers.tensor([rows.numbers().len(), d]);
        let ours = differentiate(&on_device(&x), &on_device(&dy), |x| {
            select_rows::select_rows(x, &rows)
        });
        let on_cpu = differentiate(&x, &dy, |x| select_rows::select_rows(x, &rows));
        let expected = differentiate(&x, &dy, |x| select_rows::reference::select_rows(x, &rows));
        assert_eq!(ours, expected, "[{n}, {d}]");
        assert_eq!(on_cpu, expected, "[{n}, {d}]");
    }
}
