//! Refuses NF4 tensors that are damaged, incomplete or in another layout.

use super::*;

const STATE: &str = "w.weight.quant_state.bitsandbytes__nf4";

/// The error for the parts of a case after this change.
fn refused(name: &str, change: impl FnOnce(&mut BTreeMap<String, Stored>)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut tensors = case(name);
    write(&path, &tensors);
    assert!(Weights::open(&path).unwrap().read_f32("w.weight").is_ok());
    change(&mut tensors);
    write(&path, &tensors);
    let error = Weights::open(&path).unwrap_err().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
    assert!(error.len() < 1_000, "{error}");
    error
}

/// The error after these fields of the JSON were replaced; null removes a field.
fn refused_state(name: &str, fields: Value) -> String {
    refused(name, |tensors| {
        let (dtype, shape, bytes) = tensors.get_mut(STATE).unwrap();
        let mut state: Value = serde_json::from_slice(bytes).unwrap();
        let object = state.as_object_mut().unwrap();
        for (key, value) in fields.as_object().unwrap() {
            match value {
                Value::Null => drop(object.remove(key)),
                value => drop(object.insert(key.clone(), value.clone())),
            }
        }
        *bytes = state.to_string().into_bytes();
        (*dtype, *shape) = (Dtype::U8, vec![bytes.len()]);
    })
}

/// Gives a part these bytes of a data type, as a vector.
fn replace(part: &str, dtype: Dtype, bytes: Vec<u8>) -> impl FnOnce(&mut BTreeMap<String, Stored>) {
    let width = dtype.bitsize() / 8;
    move |tensors| {
        let shape = vec![bytes.len() / width];
        tensors.insert(format!("w.weight{part}"), (dtype, shape, bytes));
    }
}

#[test]
fn incomplete_weights_name_the_part() {
    for (name, parts) in [
        (
            "f16_nested",
            &[
                "",
                ".absmax",
                ".quant_map",
                ".nested_absmax",
                ".nested_quant_map",
            ][..],
        ),
        ("bf16_plain", &["", ".absmax", ".quant_map"]),
    ] {
        for part in parts {
            let part = format!("w.weight{part}");
            let error = refused(name, |tensors| drop(tensors.remove(&part)));
            assert!(
                error.contains(&part) && error.contains("missing"),
                "{error}"
            );
        }
    }
    // Without its state, the weight would be a matrix of bytes.
    let error = refused("f16_nested", |tensors| drop(tensors.remove(STATE)));
    assert!(error.contains("is a part of w.weight"), "{error}");
    // Parts that the state does not mention.
    let error = refused_state(
        "f16_nested",
        json!({"nested_blocksize": null, "nested_dtype": null, "nested_offset": null}),
    );
    assert!(error.contains("no nested_offset"), "{error}");
    let error = refused("bf16_plain", |tensors| {
        let map = tensors["w.weight.quant_map"].clone();
        tensors.insert("w.weight.nested_quant_map".to_owned(), map);
    });
    assert!(error.contains("no nested_offset"), "{error}");
}

#[test]
fn parts_of_wrong_size_type_or_values_are_refused() {
    let error = |part: &str, dtype: Dtype, bytes: Vec<u8>| {
        let error = refused("f16_nested", replace(part, dtype, bytes));
        assert!(error.contains(&format!("tensor w.weight{part}")), "{error}");
        error
    };
    for (part, dtype, n) in [
        (".absmax", Dtype::U8, 2),
        (".absmax", Dtype::U8, 4),
        (".absmax", Dtype::I8, 3),
        (".absmax", Dtype::F32, 12),
        (".nested_absmax", Dtype::F32, 0),
        (".nested_absmax", Dtype::F32, 8),
        (".nested_absmax", Dtype::F16, 2),
        (".quant_map", Dtype::F32, 60),
        (".nested_quant_map", Dtype::F32, 1_020),
        (".nested_quant_map", Dtype::BF16, 512),
    ] {
        let error = error(part, dtype, vec![0; n]);
        assert!(error.contains("expected ["), "{error}");
    }
    for (part, mut map) in [
        (".quant_map", NF4_TABLE.to_vec()),
        (".nested_quant_map", nf4_dynamic_map().to_vec()),
    ] {
        for wrong in [map[3] * 1.00001, f32::NAN, 0.0] {
            map[3] = wrong;
            let bytes = map.iter().flat_map(|value| value.to_le_bytes()).collect();
            let error = error(part, Dtype::F32, bytes);
            assert!(
                error.contains("not those of NF4") || error.contains("dynamic map"),
                "{error}"
            );
        }
    }
    let error = error("", Dtype::U8, vec![0; 85]);
    assert!(error.contains("in a column"), "{error}");
    for (dtype, shape, n) in [
        (Dtype::U8, vec![1, 85], 85),
        (Dtype::U8, vec![84, 1], 84),
        (Dtype::U8, vec![86, 1], 86),
        (Dtype::BF16, vec![43, 1], 86),
        (Dtype::F32, vec![85, 1], 340),
    ] {
        let error = refused("f16_nested", |tensors| {
            tensors.insert("w.weight".to_owned(), (dtype, shape, vec![0; n]));
        });
        assert!(error.contains("need 85 bytes in a column"), "{error}");
    }
    let error = refused("f16_nested", |tensors| {
        tensors.insert(
            "w.weight".to_owned(),
            (Dtype::I64, vec![85, 1], vec![0; 680]),
        );
    });
    assert!(error.contains("stored as I64"), "{error}");
}

#[test]
fn states_with_wrong_fields_are_refused() {
    let huge = 1_u64 << 40;
    for (fields, named) in [
        (json!({"shape": [huge, huge]}), "overflows"),
        (json!({"shape": [huge]}), "bytes in a column"),
        (json!({"shape": [u64::MAX]}), "bytes in a column"),
        (json!({"shape": vec![1; 9]}), "TENSOR_DIMENSIONS"),
        (json!({"shape": [5, 35]}), "bytes in a column"),
        (json!({"shape": [-5, 34]}), "invalid value"),
        (json!({"shape": 170}), "invalid type"),
        (json!({"shape": null}), "missing field `shape`"),
        (json!({"blocksize": 128}), "blocksize 128 of tensor"),
        (json!({"blocksize": 0}), "blocksize 0 of tensor"),
        (json!({"nested_blocksize": 64}), "nested_blocksize 64"),
        (
            json!({"nested_dtype": "float16"}),
            "nested_dtype \"float16\"",
        ),
        (json!({"nested_offset": null}), "only some of"),
        (json!({"nested_blocksize": null}), "only some of"),
        (json!({"nested_offset": 1e300}), "is not an f32"),
        (json!({"nested_offset": "0.1"}), "invalid type"),
        (json!({"dtype": "int8"}), "dtype \"int8\""),
        (json!({"dtype": "F16"}), "dtype \"F16\""),
        (json!({"quant_type": "fp4"}), "its quant_type is \"fp4\""),
        (json!({"other": 1}), "unknown field `other`"),
        (json!({"shape": vec![0; 2_500]}), "QUANT_STATE_BYTES"),
        (json!({"dtype": "x".repeat(3_000)}), "dtype \"xxx"),
    ] {
        let error = refused_state("f16_nested", fields.clone());
        assert!(error.contains(named), "{fields}: {error}");
        assert!(error.contains("w.weight"), "{error}");
    }
    for (text, named) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid length 0"),
        (
            r#"{"shape":[5,34],"shape":[5,34]}"#,
            "duplicate field `shape`",
        ),
        ("{}x", "missing field"),
    ] {
        let part = &STATE["w.weight".len()..];
        let error = refused(
            "f16_nested",
            replace(part, Dtype::U8, text.as_bytes().to_vec()),
        );
        assert!(error.contains(named), "{text}: {error}");
    }
    let part = &STATE["w.weight".len()..];
    let error = refused("f16_nested", replace(part, Dtype::F32, vec![0; 8]));
    assert!(error.contains("8 bytes of F32"), "{error}");
}

#[test]
fn other_layouts_of_bitsandbytes_are_refused_by_name() {
    let fp4 = "w.weight.quant_state.bitsandbytes__fp4".to_owned();
    let error = refused("bf16_plain", |tensors| {
        let state = tensors.remove(STATE).unwrap();
        tensors.insert(fp4.clone(), state);
    });
    assert!(
        error.contains("\"fp4\"") && error.contains("nf4"),
        "{error}"
    );
    // Two states for one weight.
    let error = refused("bf16_plain", |tensors| {
        let state = tensors[STATE].clone();
        tensors.insert(fp4, state);
    });
    assert!(error.contains("\"fp4\""), "{error}");
    let error = refused("bf16_plain", |tensors| {
        tensors.insert("v.weight".to_owned(), (Dtype::I8, vec![2, 2], vec![0; 4]));
        tensors.insert("v.SCB".to_owned(), (Dtype::F32, vec![2], vec![0; 8]));
    });
    assert!(
        error.contains("load_in_8bit") && error.contains("of v"),
        "{error}"
    );
}
