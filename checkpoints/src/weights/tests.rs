//! Compares weights of every format with their original values, and tests damaged files.

mod shards;

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::gguf_writer::GgufWriter;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn tensor(shape: &[usize], begin: f32) -> HostTensor {
    let n_values = shape.iter().product::<usize>();
    HostTensor {
        shape: shape.to_vec(),
        values: (0..n_values).map(|i| begin + i as f32).collect(),
    }
}

/// A safetensors file with this header and this number of zero data bytes.
fn write_header(dir: &TempDir, header: &str, n_data_bytes: usize) -> PathBuf {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data_bytes, 0);
    let path = dir.path().join("model.safetensors");
    fs::write(&path, bytes).unwrap();
    path
}

fn open_error(path: &Path) -> String {
    let error = Weights::open(path).unwrap_err().to_string();
    assert!(
        error.contains(&path.display().to_string()),
        "no path in: {error}"
    );
    error
}

#[test]
fn every_block_format_decodes_to_the_bits_of_the_gguf_package() {
    let text = fs::read(fixture("gguf_blocks.json")).unwrap();
    let cases: Vec<BTreeMap<String, String>> = serde_json::from_slice(&text).unwrap();
    let mut formats_seen = std::collections::BTreeSet::new();
    for case in &cases {
        let name = case["format"].as_str();
        let format = (0..40).find_map(|n| {
            let format = encoding::Format::from_gguf(n).ok()?;
            (Encoding::Decodable(format).name() == name).then_some(format)
        });
        let bytes: Vec<u8> = (0..case["bytes"].len() / 2)
            .map(|i| u8::from_str_radix(&case["bytes"][2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let mut values = Vec::new();
        format.unwrap().decode(&bytes, &mut values);
        let bits: String = values
            .iter()
            .map(|v| format!("{:08x}", v.to_bits()))
            .collect();
        assert_eq!(bits, case["values"], "{name}");
        formats_seen.insert(name);
    }
    assert_eq!(formats_seen.len(), 11);
}

#[test]
fn a_gguf_model_reads_as_its_original_hugging_face_tensors() {
    let gguf = Weights::open(&fixture("tiny_llama.gguf")).unwrap();
    let hugging_face = Weights::open(&fixture("tiny_llama.safetensors")).unwrap();
    assert_eq!(
        gguf.names().collect::<Vec<_>>(),
        hugging_face.names().collect::<Vec<_>>()
    );
    for name in gguf.names() {
        let (ours, theirs) = (
            gguf.read_f32(name).unwrap(),
            hugging_face.read_f32(name).unwrap(),
        );
        assert_eq!(gguf.shape(name), Some(ours.shape.as_slice()));
        assert_eq!(ours, theirs, "{name}");
    }
    assert_eq!(
        gguf.stored_as("model.layers.0.self_attn.v_proj.weight"),
        Some("Q4_0")
    );
}

#[test]
fn tensors_longer_than_a_chunk_are_read_completely() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.safetensors");
    let long = tensor(&[3, CHUNK_BYTES / 4 - 5], 0.0);
    write_tensors(&path, &BTreeMap::from([("long".to_owned(), &long)])).unwrap();
    assert_eq!(
        Weights::open(&path).unwrap().read_f32("long").unwrap(),
        long
    );
}

#[test]
fn written_tensors_are_the_same_bytes_each_time_and_load_again() {
    let dir = tempfile::tempdir().unwrap();
    let tensors: BTreeMap<String, HostTensor> = [
        ("b", tensor(&[2, 3], 1.0)),
        ("a", tensor(&[], 7.0)),
        ("c", tensor(&[0, 4], 0.0)),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into();
    let paths = ["one", "two"].map(|name| dir.path().join(format!("{name}.safetensors")));
    for path in &paths {
        write_tensors(path, &tensors).unwrap();
    }
    assert_eq!(fs::read(&paths[0]).unwrap(), fs::read(&paths[1]).unwrap());
    let weights = Weights::open(&paths[0]).unwrap();
    for (name, tensor) in &tensors {
        assert_eq!(weights.read_f32(name).unwrap(), *tensor);
    }
}

#[test]
fn a_tensor_that_is_not_finite_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let mut bad = tensor(&[4], 0.0);
    bad.values[2] = f32::NAN;
    let error = write_tensors(&path, &BTreeMap::from([("w".to_owned(), bad)])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tensor w has the value NaN at element 2"),
        "{error}"
    );
    assert!(!path.exists());
}

#[test]
fn half_precision_is_widened_and_integers_are_refused_when_read() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"f":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},
        "g":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},
        "ids":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}"#;
    let path = write_header(&dir, header, 0);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([0x00, 0x3c, 0x01, 0x00, 0x80, 0x3f, 0x20, 0xc0]);
    bytes.extend(1_i64.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(
        weights.read_f32("f").unwrap().values,
        [1.0, 2_f32.powi(-24)]
    );
    assert_eq!(weights.read_f32("g").unwrap().values, [1.0, -2.5]);
    let error = weights.read_f32("ids").unwrap_err().to_string();
    assert!(
        error.contains(
            "stored as I64, which is not supported; convert the model to one of F32, F16 and BF16"
        ),
        "{error}"
    );
}

#[test]
fn one_error_lists_all_tensor_differences() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let names = [
        "a",
        "b",
        "surplus",
        "lm_head.weight",
        "model.rotary_emb.inv_freq",
    ];
    let tensors = names
        .map(|name| (name.to_owned(), tensor(&[2], 0.0)))
        .into();
    write_tensors(&path, &tensors).unwrap();
    let weights = Weights::open(&path).unwrap();
    let expected = [("a", vec![2]), ("b", vec![3, 2]), ("c", vec![1])]
        .map(|(name, shape)| (name.to_owned(), shape));
    let error = weights.check(&expected).unwrap_err().to_string();
    for part in [
        "1 missing tensor(s): c",
        "1 extra tensor(s): surplus;",
        "b is [2] instead of [3, 2]; ",
        "fetch both from the same repository",
    ] {
        assert!(error.contains(part), "no \"{part}\" in: {error}");
    }
    let fitting = names[..3]
        .iter()
        .map(|name| ((*name).to_owned(), vec![2]))
        .collect::<Vec<_>>();
    weights.check(&fitting).unwrap();
    let many: Vec<_> = (0..200).map(|i| (format!("t{i}"), vec![1])).collect();
    let error = weights.check(&many).unwrap_err().to_string();
    assert!(
        error.contains("t102, t103, t104 and 192 more; 3 extra"),
        "{error}"
    );
}

#[test]
fn an_unknown_tensor_is_an_error_that_suggests_existing_ones() {
    let weights = Weights::open(&fixture("tiny_llama.gguf")).unwrap();
    let error = weights.read_f32("norm.weight").unwrap_err().to_string();
    assert!(
        error.contains("no tensor norm.weight; it has model.norm.weight"),
        "{error}"
    );
}

/// Invariant: A file truncated at any length is an error, not a panic.
#[test]
fn a_truncated_safetensors_file_is_an_error_at_every_length() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = fs::read(fixture("tiny_llama.safetensors")).unwrap();
    let path = dir.path().join("model.safetensors");
    for length in [0, 7, 8, 9, 500, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = open_error(&path);
        assert!(error.contains("truncated"), "{length} bytes: {error}");
        assert!(error.contains("again"), "{error}");
    }
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::copy(fixture("tiny_llama.safetensors"), &path).unwrap();
    let weights = Weights::open(&path).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4000)
        .unwrap();
    let error = weights.read_f32("model.norm.weight").unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Disk(tooltune_disk::DiskError::Io { .. })
        ),
        "{error}"
    );
}

#[test]
fn headers_that_break_a_rule_are_errors_that_name_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let huge = u64::MAX;
    for (fields, problem) in [
        (
            r#""shape":[2],"data_offsets":[8,0]"#.to_owned(),
            "run backwards",
        ),
        (
            r#""shape":[3],"data_offsets":[0,8]"#.to_owned(),
            "does not fill the 8 bytes",
        ),
        (
            r#""shape":[2],"data_offsets":[4,12]"#.to_owned(),
            "begins at 4",
        ),
        (
            r#""shape":[1],"data_offsets":[0,4]"#.to_owned(),
            "8 bytes follow the last",
        ),
        (
            r#""shape":[25],"data_offsets":[0,100]"#.to_owned(),
            "outside",
        ),
        (
            format!(r#""shape":[{huge},2],"data_offsets":[0,8]"#),
            "overflows",
        ),
        (
            format!(r#""shape":[2],"data_offsets":[0,{huge}]"#),
            "overflows",
        ),
        (
            r#""shape":"many","data_offsets":[0,8]"#.to_owned(),
            "expected a sequence",
        ),
    ] {
        let header = format!(r#"{{"w":{{"dtype":"F32",{fields}}}}}"#);
        let error = open_error(&write_header(&dir, &header, 12));
        let problem = if problem == "outside" {
            "ends at byte"
        } else {
            problem
        };
        assert!(error.contains(problem), "no \"{problem}\" in: {error}");
        assert!(
            error.contains("tensor w") || problem.contains("follow"),
            "{error}"
        );
    }
}

#[test]
fn an_html_page_is_not_loaded_as_weights() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "model.gguf"] {
        let path = dir.path().join(name);
        fs::write(&path, "<!DOCTYPE html><html><body>404</body></html>").unwrap();
        let error = open_error(&path);
        assert!(error.contains("begins with \"<!DOCTYP\""), "{error}");
    }
}

#[test]
fn a_directory_without_weights_is_an_error_that_lists_the_expected_files() {
    let dir = tempfile::tempdir().unwrap();
    assert!(open_error(dir.path()).contains("model.safetensors.index.json"));
    fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    assert!(open_error(dir.path()).contains("safe_serialization=True"));
    fs::write(dir.path().join("adapter_model.safetensors"), "").unwrap();
    assert!(open_error(dir.path()).contains("it is an adapter"));
    assert!(open_error(&dir.path().join("absent.gguf")).contains("cannot open"));
}

/// Invariant: A file truncated at any length is an error, not a panic.
#[test]
fn a_truncated_gguf_file_is_an_error_at_every_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let bytes = GgufWriter::tiny("llama").bytes();
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = open_error(&path);
        assert!(error.contains("truncated"), "{length} bytes: {error}");
    }
    fs::write(&path, &bytes).unwrap();
    Weights::open(&path).unwrap();
}

#[test]
fn unsupported_gguf_versions_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for (version, part) in [
        (1, "version 1"),
        (3_u32.swap_bytes(), "big-endian"),
        (4, "version 4"),
    ] {
        let mut gguf = GgufWriter::tiny("llama");
        gguf.version = version;
        gguf.write(&path);
        assert!(open_error(&path).contains(part));
    }
}

#[test]
fn an_unsupported_gguf_tensor_is_an_error_with_name_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for (shape, gguf_type, part) in [
        (vec![256], 10, "tensor w is stored as Q2_K"),
        (vec![256], 20, "tensor w is stored as IQ4_NL"),
        (vec![256], 77, "tensor w is stored as GGUF type 77"),
        (
            vec![33],
            2,
            "rows of 33 values do not divide into blocks of 32",
        ),
        (vec![1 << 20], 0, "tensor w ends at byte"),
        (vec![1 << 40, 1 << 40], 0, "overflows"),
        (vec![1; 5], 0, "5 dimensions"),
    ] {
        GgufWriter::new()
            .tensor("w", &shape, gguf_type, vec![0; 64])
            .write(&path);
        let error = open_error(&path);
        assert!(error.contains(part), "no \"{part}\" in: {error}");
    }
}

#[test]
fn lengths_far_beyond_the_file_cost_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let gguf = GgufWriter::new().texts("tokens", &["a"]).bytes();
    // Offsets of the tensor count, the entry count, and the key, array and string lengths.
    for offset in [8, 16, 24, 24 + 8 + 6 + 8, 24 + 8 + 6 + 16] {
        let mut bytes = gguf.clone();
        bytes[offset..offset + 8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
        fs::write(&path, bytes).unwrap();
        assert!(open_error(&path).contains("truncated"));
    }
}

#[test]
fn metadata_of_millions_of_items_is_refused_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    // One byte per item, and the file contains them all.
    let n_items = (1_u64 << 24) + 1;
    let mut bytes = GgufWriter::new().texts("flags", &["a"]).bytes();
    let offset = 24 + 8 + "flags".len() + 4;
    bytes[offset..offset + 4].copy_from_slice(&7_u32.to_le_bytes());
    bytes[offset + 4..offset + 12].copy_from_slice(&n_items.to_le_bytes());
    bytes.resize(bytes.len() + n_items as usize, 0);
    fs::write(&path, bytes).unwrap();
    let error = open_error(&path);
    assert!(error.contains("flags: its metadata lists more"), "{error}");
}

#[test]
fn an_error_quotes_only_an_excerpt_of_a_long_header() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(1_000_000);
    for header in [format!(r#"{{"a":"{long}"}}"#), format!(r#"{{"{long}":1}}"#)] {
        let error = open_error(&write_header(&dir, &header, 0));
        assert!(error.contains("of the header"), "{}", &error[..500]);
        assert!(error.len() < 1_000, "{} bytes", error.len());
    }
}

#[test]
fn heads_that_do_not_divide_the_rows_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    GgufWriter::new()
        .text("general.architecture", "llama")
        .u32("llama.attention.head_count", 3)
        .f32_tensor("blk.0.attn_q.weight", &[8, 8])
        .write(&path);
    assert!(open_error(&path).contains("8 rows do not divide into 3 heads"));
}

#[test]
fn qwen2_rows_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let values = tensor(&[8], 0.0);
    let data: Vec<u8> = values.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    GgufWriter::new()
        .text("general.architecture", "qwen2")
        .u32("qwen2.attention.head_count", 2)
        .tensor("blk.12.attn_q.bias", &[8], 0, data)
        .write(&path);
    let weights = Weights::open(&path).unwrap();
    assert_eq!(
        weights
            .read_f32("model.layers.12.self_attn.q_proj.bias")
            .unwrap(),
        values
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn scrambled_headers_give_errors_or_readable_tensors(
        at in 0_usize..3000,
        replacement in proptest::collection::vec(any::<u8>(), 1..12),
        cut in proptest::option::of(0_usize..3000),
    ) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tiny_llama.gguf", "tiny_llama.safetensors"] {
            let mut bytes = fs::read(fixture(name)).unwrap();
            bytes[at..at + replacement.len()].copy_from_slice(&replacement);
            bytes.truncate(cut.unwrap_or(bytes.len()));
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            if let Ok(weights) = Weights::open(&path) {
                for name in weights.names() {
                    let tensor = weights.read_f32(name);
                    prop_assert!(tensor.is_ok() || weights.stored_as(name) != Some("F32"));
                }
            }
        }
    }

    #[test]
    fn any_tensors_survive_writing_and_reading(
        shapes in proptest::collection::btree_map("[a-z.]{1,12}", proptest::collection::vec(0_usize..5, 0..4), 0..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let tensors: BTreeMap<String, HostTensor> =
            shapes.iter().map(|(name, shape)| (name.clone(), tensor(shape, 0.5))).collect();
        write_tensors(&path, &tensors).unwrap();
        let weights = Weights::open(&path).unwrap();
        let expected: Vec<(String, Vec<usize>)> = shapes.into_iter().collect();
        prop_assert!(weights.check(&expected).is_ok());
        for (name, tensor) in &tensors {
            prop_assert_eq!(&weights.read_f32(name).unwrap(), tensor);
        }
        prop_assert_eq!(fs::read(&path).unwrap(), serialized(&tensors));
    }
}

/// The file that the `safetensors` crate writes for `tensors`, in memory.
fn serialized(tensors: &BTreeMap<String, HostTensor>) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors
        .values()
        .map(|tensor| tensor.values.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, tensor), bytes)| {
        let dtype = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(dtype, tensor.shape.clone(), bytes);
        (name.as_str(), view.unwrap())
    });
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views.collect::<Vec<_>>(), Some(metadata)).unwrap()
}

#[test]
fn tensors_of_several_formats_equal_the_file_of_the_safetensors_crate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let formats = [
        ("b", FloatDtype::BF16),
        ("a", FloatDtype::F16),
        ("d", FloatDtype::F32),
        ("c", FloatDtype::BF16),
    ];
    let planned = formats.map(|(name, dtype)| {
        FileTensor::Floats(NewTensor {
            name: name.to_owned(),
            shape: vec![3],
            dtype,
        })
    });
    write_file_tensors(&path, planned.to_vec(), |name| {
        assert!(formats.iter().any(|(known, _)| *known == name));
        let values = std::borrow::Cow::Owned(tensor(&[3], 1.5));
        Ok(Content::Floats(values))
    })
    .unwrap();
    let written = fs::read(&path).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&written).unwrap();
    let views = parsed.tensors();
    let again =
        safetensors::serialize(views, Some([("format".to_owned(), "pt".to_owned())].into()));
    assert_eq!(written, again.unwrap());
    let weights = Weights::open(&path).unwrap();
    for (name, dtype) in formats {
        assert_eq!(weights.float_dtype(name), Some(dtype));
        assert_eq!(weights.read_f32(name).unwrap(), tensor(&[3], 1.5));
    }
}
