//! Fixtures and the device of the integration tests; [`bounds`] has the tolerances.
//!
//! The tests find the repository and the program where Cargo built them. `TOOLTUNE_TEST_ROOT` and
//! `TOOLTUNE_TEST_PROGRAM` set their locations on another machine.

pub(crate) mod bounds;
pub(crate) mod server;
pub(crate) mod test_device;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::SafeTensors;
use test_device::TestDevice;
use tooltune::config;
use tooltune::device;
use tooltune::lora::{Adapters, adapter_slots, whole_weights};
use tooltune::models::load::{LoadOptions, Placement, Projections, load_decoder};
use tooltune::models::{Decoder, DecoderConfig};
use tooltune_checkpoints::adapter::load_adapter;
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::Weights;
use tooltune_kernels::ComputeDtype;
use tooltune_rows::batches::{Example, MicroBatch, Padding, collate};

/// The device under test.
pub(crate) fn test_device() -> Device {
    let name = match TestDevice::from_env() {
        TestDevice::Cpu => config::Device::Cpu,
        TestDevice::Cuda(index) => config::Device::Cuda(index),
    };
    device::open(name).unwrap_or_else(|error| panic!("{error}"))
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    match std::env::var_os("TOOLTUNE_TEST_ROOT") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("a workspace")
            .to_path_buf(),
    }
}

/// The built program.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("TOOLTUNE_TEST_PROGRAM")
        .unwrap_or(env!("CARGO_BIN_EXE_tooltune").into())
        .into()
}

/// A path below `tests/fixtures`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    root().join("tests/fixtures").join(path)
}

/// A file of `models/`, which `scripts/fetch-models` downloads.
pub(crate) fn model(path: &str) -> PathBuf {
    let path = root().join("models").join(path);
    assert!(
        path.exists(),
        "{} is missing; run scripts/fetch-models",
        path.display()
    );
    path
}

/// A safetensors file in memory.
pub(crate) struct Tensors(Vec<u8>);

impl Tensors {
    pub(crate) fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.names().into_iter().map(str::to_string).collect()
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).unwrap().shape().to_vec()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = file.tensor(name).unwrap().data().to_vec();
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn ints(&self, name: &str) -> Vec<i64> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap();
        match view.dtype() {
            safetensors::Dtype::I64 => view
                .data()
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            safetensors::Dtype::I32 => view
                .data()
                .chunks_exact(4)
                .map(|b| i64::from(i32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.ints(name).into_iter().map(|id| id as u32).collect()
    }
}

/// Loads the base model from a directory or a GGUF file.
pub(crate) fn load_base(path: &Path) -> Decoder {
    load_base_with(ComputeDtype::F32, Projections::AsIs, path)
}

/// Loads the base model with matrix multiplication in `compute_dtype`.
pub(crate) fn load_base_with(
    compute_dtype: ComputeDtype,
    projections: Projections<'_>,
    path: &Path,
) -> Decoder {
    let (config, weights) = open_base(path);
    let options = LoadOptions {
        compute_dtype,
        projections,
        placement: Placement::Resident,
    };
    load_decoder(&config, &weights, options, &test_device()).unwrap()
}

fn open_base(path: &Path) -> (DecoderConfig, Weights) {
    // The tiny fixtures have weights but no tokenizer.
    let (config, weights) = if path.is_dir() {
        let config = ModelFiles::read_config(path).unwrap();
        (config, Weights::open(path).unwrap())
    } else {
        let files = ModelFiles::open(path).unwrap();
        (files.config, files.weights)
    };
    (DecoderConfig::from_json(&config).unwrap(), weights)
}

/// Loads a PEFT adapter and attaches it to `decoder`.
pub(crate) fn attach_adapter(decoder: &mut Decoder, dir: &Path) -> Adapters {
    let adapter = load_adapter(dir).unwrap();
    let slots = adapter_slots(&adapter.config, &decoder.config).unwrap();
    let saved_modules = whole_weights(&adapter.config, &decoder.config, &slots).unwrap();
    let expected: Vec<_> = slots
        .iter()
        .flat_map(|s| s.tensors())
        .chain(saved_modules.iter().map(|weight| weight.tensor()))
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(dir, &expected).unwrap();
    let adapters = Adapters::from_tensors(slots, &adapter.tensors, &test_device());
    let adapters = adapters.with_whole(saved_modules, &adapter.tensors);
    adapters.attach(decoder);
    adapters
}

/// Reads the rows of a step, which are right-padded and have unshifted weights, as one micro-batch.
pub(crate) fn micro_batch(file: &Tensors, step: &str) -> MicroBatch {
    let shape = file.shape(&format!("{step}.input_ids"));
    let ids = file.ids(&format!("{step}.input_ids"));
    let real = file.ints(&format!("{step}.attention_mask"));
    let weights_name = format!("{step}.loss_weights");
    let weights: Vec<f32> = if file.names().contains(&weights_name) {
        file.floats(&weights_name)
    } else {
        let labels = file.ints(&format!("{step}.labels"));
        labels
            .iter()
            .map(|&label| if label == -100 { 0.0 } else { 1.0 })
            .collect()
    };
    let width = shape[1];
    let rows: Vec<(Vec<u32>, Vec<f32>)> = (0..shape[0])
        .map(|row| {
            let length = real[row * width..(row + 1) * width].iter().sum::<i64>() as usize;
            let range = row * width..row * width + length;
            (ids[range.clone()].to_vec(), weights[range].to_vec())
        })
        .collect();
    let examples: Vec<Example> = rows
        .iter()
        .map(|(input_ids, loss_weights)| Example {
            id: step,
            input_ids,
            loss_weights,
        })
        .collect();
    collate(&examples, Padding::None).unwrap()
}

/// Largest absolute difference of two slices of the same length.
pub(crate) fn max_abs_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let worst = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst, d| {
            if d.is_nan() {
                f32::INFINITY
            } else {
                worst.max(d)
            }
        });
    f64::from(worst)
}

/// `‖a - b‖ / ‖b‖`.
pub(crate) fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = sum(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / sum(&mut b.iter().map(|b| f64::from(*b))).max(1e-30)
}

/// Splits a command line into words like a shell.
pub(crate) fn words(line: &str) -> Vec<String> {
    shlex::split(line).unwrap_or_else(|| panic!("a quotation mark is not closed: {line}"))
}
