//! Compares NF4 tensors with bitsandbytes.

mod refused;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::digest::hex;
use crate::weights::{FloatDtype, HostTensor, INDEX, Weights};

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nf4");
    folder.join(name)
}

/// Data type, shape and bytes of a stored tensor.
type Stored = (Dtype, Vec<usize>, Vec<u8>);

/// The tensors of a safetensors file as they are stored.
fn stored(path: &Path) -> BTreeMap<String, Stored> {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors.iter().map(|(name, tensor)| {
        let stored = (
            tensor.dtype(),
            tensor.shape().to_vec(),
            tensor.data().to_vec(),
        );
        (name.to_owned(), stored)
    });
    tensors.collect()
}

fn write(path: &Path, tensors: &BTreeMap<String, Stored>) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    fs::write(path, serialize(views, None).unwrap()).unwrap();
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// SHA-256 of values in the data type that they had.
fn sha256(values: &[f32], dtype: FloatDtype) -> String {
    let bytes: Vec<u8> = match dtype {
        FloatDtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        FloatDtype::F16 => values
            .iter()
            .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
            .collect(),
        FloatDtype::BF16 => values
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect(),
    };
    hex(&Sha256::digest(bytes))
}

/// The cases, and the model.
fn files() -> [Weights; 2] {
    ["cases.safetensors", "model"].map(|name| Weights::open(&fixture(name)).unwrap())
}

/// Invariant: NF4 weights have the bits of bitsandbytes.
#[test]
fn values_have_the_bits_of_bitsandbytes() {
    let expected = fs::read(fixture("expected.json")).unwrap();
    let expected: BTreeMap<String, String> = serde_json::from_slice(&expected).unwrap();
    let mut n_compared = 0;
    for weights in files() {
        let names = weights
            .names()
            .filter(|name| weights.stored_as(name) == Some("NF4"));
        for name in names {
            let dtype = weights.float_dtype(name).unwrap();
            let tensor = weights.read_f32(name).unwrap();
            assert_eq!(Some(tensor.shape.as_slice()), weights.shape(name));
            assert_eq!(sha256(&tensor.values, dtype), expected[name], "{name}");
            let parts = weights.read_nf4(name).unwrap().unwrap();
            assert_eq!(bits(&parts.dequantise().values), bits(&tensor.values));
            n_compared += 1;
        }
    }
    assert_eq!(n_compared, expected.len());
    let [cases, model] = files();
    assert_eq!((cases.n_nf4(), model.n_nf4()), (15, 13));
    // Modules that are not quantised are plain.
    for plain in [
        "model.layers.1.self_attn.o_proj.weight",
        "model.norm.weight",
    ] {
        assert_eq!(model.stored_as(plain), Some("BF16"));
        assert_eq!(model.read_nf4(plain).unwrap(), None);
    }
    assert!(
        model
            .names()
            .all(|name| !name.contains("absmax") && !name.contains("quant"))
    );
    assert_eq!(model.not_finite().unwrap(), []);
}

#[test]
fn any_range_has_the_values_of_the_whole() {
    for weights in files() {
        let names: Vec<String> = weights.names().map(str::to_owned).collect();
        let names = names
            .into_iter()
            .filter(|name| weights.stored_as(name) == Some("NF4"));
        let names: Vec<String> = names.collect();
        let plain = weights.plain(&names).unwrap().unwrap();
        let values: Vec<u16> = names
            .iter()
            .flat_map(|name| weights.read_f32(name).unwrap().values)
            .map(|value| bf16::from_f32(value).to_bits())
            .collect();
        assert_eq!(plain.n_values(), values.len());
        let read = |start: usize, n: usize| {
            let mut read = vec![bf16::ONE; n];
            plain.read_bf16(start, &mut read).unwrap();
            read.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        assert!(read(0, values.len()) == values);
        // Starts and lengths within a byte, across blocks, nested blocks and tensors.
        for start in (0..values.len()).step_by(997) {
            for n in [0, 1, 2, 63, 65, 1000, 20_001] {
                let n = n.min(values.len() - start);
                assert!(
                    read(start, n) == values[start..start + n],
                    "{n} from {start} on"
                );
            }
        }
    }
}

/// Invariant: NF4 weights have the bits of bitsandbytes.
#[test]
fn codes_and_absmax_have_the_bits_of_bitsandbytes() {
    let stored = stored(&fixture("cases.safetensors"));
    let [weights, _] = files();
    let cases = stored.keys().filter_map(|name| name.strip_suffix(".input"));
    let (mut n_cases, mut n_moved) = (0, 0);
    for case in cases {
        let input = weights.read_f32(&format!("{case}.input")).unwrap();
        let theirs = weights
            .read_nf4(&format!("{case}.weight"))
            .unwrap()
            .unwrap();
        let plain = Nf4Tensor::quantise(&input, theirs.dtype, false).unwrap();
        assert_eq!(plain.codes, theirs.codes, "{case}");
        assert_eq!(plain.shape, theirs.shape, "{case}");
        n_cases += 1;
        let Nf4Absmax::Plain(absmax) = &plain.absmax else {
            panic!("nested")
        };
        let (codes, scales, offset, map) = match &theirs.absmax {
            Nf4Absmax::Plain(theirs) => {
                assert_eq!(bits(absmax), bits(theirs), "{case}");
                continue;
            }
            Nf4Absmax::Nested {
                codes,
                scales,
                offset,
                map,
            } => (codes, scales, *offset, map),
        };
        // torch sums the mean in another order.
        let mean = Nf4Absmax::mean(absmax);
        assert!(
            mean.to_bits().abs_diff(offset.to_bits()) <= 1,
            "{case}: {mean} {offset}"
        );
        assert_eq!(bits(map.as_slice()), bits(nf4_dynamic_map()));
        let Nf4Absmax::Nested {
            codes: ours,
            scales: our_scales,
            ..
        } = Nf4Absmax::nested(absmax, offset)
        else {
            panic!("plain")
        };
        assert_eq!(bits(&our_scales), bits(scales), "{case}");
        let is_zero = scales.iter().all(|scale| *scale == 0.0);
        if !is_zero {
            // The portable kernel gives a nested block of zeros the code of 0 instead of the first.
            assert_eq!(ours, stored[&format!("{case}.nearest")].2, "{case}");
        }
        // The CPU kernel rounds to 65,535 steps before it looks for the nearest value.
        for (index, (ours, theirs)) in ours.iter().zip(codes).enumerate() {
            if ours == theirs {
                continue;
            }
            n_moved += 1;
            let value = (absmax[index] - offset) / scales[index / NF4_NESTED_BLOCK];
            let [first, second] = [ours, theirs].map(|code| map[usize::from(*code)]);
            let step = 2.0 / 65_535.0;
            let farther = (value - second).abs() - (value - first).abs();
            assert!(
                (0.0..2.0 * step).contains(&farther),
                "{case}: {value} {first} {second}"
            );
        }
    }
    assert_eq!(n_cases, 15);
    assert!(n_moved <= 2, "{n_moved} codes differ from the CPU kernel");
}

#[test]
fn only_finite_values_are_quantised() {
    let tensor = |values: &[f32]| HostTensor {
        shape: vec![values.len()],
        values: values.to_vec(),
    };
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let wrong = tensor(&[1.0, wrong]);
        assert_eq!(Nf4Tensor::quantise(&wrong, FloatDtype::F32, true), Err(1));
    }
    for nested in [false, true] {
        let empty = Nf4Tensor::quantise(&tensor(&[]), FloatDtype::F32, nested).unwrap();
        assert!(empty.codes.is_empty() && empty.absmax.is_empty());
        assert_eq!(empty.dequantise(), tensor(&[]));
        let one = Nf4Tensor::quantise(&tensor(&[-3.0]), FloatDtype::F32, nested).unwrap();
        assert_eq!(
            (one.codes.as_slice(), one.absmax.len()),
            (&[0x07_u8][..], 1)
        );
        assert_eq!(one.dequantise(), tensor(&[-3.0]));
    }
}

proptest! {
    #[test]
    fn an_error_is_at_most_half_of_the_widest_gap(
        values in prop::collection::vec(-1e3_f32..1e3, 1..300)
    ) {
        let tensor = HostTensor { shape: vec![values.len()], values };
        let quantised = Nf4Tensor::quantise(&tensor, FloatDtype::F32, false).unwrap();
        let restored = quantised.dequantise();
        for (index, (value, restored)) in tensor.values.iter().zip(&restored.values).enumerate() {
            let absmax = quantised.absmax.of_block(index / NF4_BLOCK);
            let limit = absmax * (1.0 - NF4_TABLE[14]) / 2.0 * 1.2;
            prop_assert!((value - restored).abs() <= limit, "{} {}", value, restored);
        }
        // Values that were quantised once stay the same.
        let again = Nf4Tensor::quantise(&restored, FloatDtype::F32, false).unwrap();
        prop_assert_eq!(again.dequantise(), restored);
    }
}

/// The parts of one case, named `w.weight…`.
fn case(name: &str) -> BTreeMap<String, Stored> {
    let tensors = stored(&fixture("cases.safetensors")).into_iter();
    let tensors = tensors.filter_map(|(key, tensor)| {
        let part = key.strip_prefix(name)?.strip_prefix(".weight")?;
        Some((format!("w.weight{part}"), tensor))
    });
    tensors.collect()
}

#[test]
fn maps_of_other_machines_are_used_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors = case("bf16_nested");
    let map = nf4_dynamic_map().map(|value| f32::from_bits(value.to_bits() + 2));
    let bytes: Vec<u8> = map.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (.., stored) = tensors.get_mut("w.weight.nested_quant_map").unwrap();
    // 0 stays 0.
    let zero = 4 * map.iter().position(|value| value.abs() < 1e-9).unwrap();
    *stored = bytes;
    stored[zero..zero + 4].fill(0);
    write(&path, &tensors);
    let weights = Weights::open(&path).unwrap();
    let parts = weights.read_nf4("w.weight").unwrap().unwrap();
    let Nf4Absmax::Nested { map: read, .. } = &parts.absmax else {
        panic!("plain")
    };
    assert_eq!(read[255], map[255]);
    let values = weights.read_f32("w.weight").unwrap().values;
    assert_eq!(bits(&values), bits(&parts.dequantise().values));
}

#[test]
fn parts_may_be_in_other_shards() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = stored(&fixture("model/model.safetensors"));
    let mut shards = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
    let mut weight_map = BTreeMap::new();
    for (index, (name, tensor)) in tensors.into_iter().enumerate() {
        weight_map.insert(name.clone(), format!("{}.safetensors", index % 3));
        shards[index % 3].insert(name, tensor);
    }
    for (index, shard) in shards.iter().enumerate() {
        write(&dir.path().join(format!("{index}.safetensors")), shard);
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(dir.path().join(INDEX), index.to_string()).unwrap();
    let [_, whole] = files();
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(
        weights.names().collect::<Vec<_>>(),
        whole.names().collect::<Vec<_>>()
    );
    for name in weights.names() {
        assert_eq!(
            weights.read_f32(name).unwrap(),
            whole.read_f32(name).unwrap()
        );
    }
}

#[test]
fn only_the_language_model_of_a_larger_model_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = stored(&fixture("model/model.safetensors")).into_iter();
    let renamed = |name: String| name.replacen("model.", "model.language_model.", 1);
    let mut tensors: BTreeMap<_, _> = tensors.map(|(name, t)| (renamed(name), t)).collect();
    // The vision model may have another layout, because it is left out.
    for (name, tensor) in case("bf16_plain") {
        let name = name.replace("nf4", "fp4").replace("w.", "model.visual.w.");
        tensors.insert(name, tensor);
    }
    write(&path, &tensors);
    let [_, whole] = files();
    let weights = Weights::open(&path).unwrap();
    assert_eq!((weights.n_nf4(), weights.n_vision()), (13, 4));
    assert!(weights.names().eq(whole.names()));
    let name = "model.layers.1.mlp.up_proj.weight";
    assert_eq!(
        weights.read_f32(name).unwrap(),
        whole.read_f32(name).unwrap()
    );
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::copy(fixture("model/model.safetensors"), &path).unwrap();
    let weights = Weights::open(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(20_000).unwrap();
    let name = "model.layers.0.mlp.down_proj.weight";
    for error in [
        weights.read_f32(name).unwrap_err().to_string(),
        weights.read_nf4(name).unwrap_err().to_string(),
    ] {
        assert!(error.contains("model.safetensors"), "{error}");
    }
}
