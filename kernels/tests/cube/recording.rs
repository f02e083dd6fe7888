//! Replayed tokens against tokens with normal launches.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use tooltune_kernels::attention::{DeviceColumns, decode_step};
use tooltune_kernels::embedding::embedding_of_device_ids;
use tooltune_kernels::frozen_weight::quantised::Nf4;
use tooltune_kernels::lora_linear::{InputTransform, LinearExtras, lora_linear};
use tooltune_kernels::recording::{
    Inputs, Recordable, Recording, RecordingError, can_record, record,
};
use tooltune_kernels::rope::rope;
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, DeviceIntegers, FrozenWeight, RopeTable,
    StackedAdapter, StackedLinear,
};

use crate::nf4;
#[cfg(feature = "cuda")]
use crate::support::use_device_alone;
use crate::support::{Numbers, assert_near, device, values};

/// Rows, query and key heads, head size, vocabulary, columns of the cache.
const B: usize = 3;
const H: usize = 4;
const G: usize = 2;
const C: usize = 6;
const V: usize = 19;
const CAPACITY: usize = 300;
const D: usize = H * C;
/// First column of each row, and the column of the first token; the tokens cross a boundary between
/// runs of 256 columns.
const STARTS: [usize; B] = [0, 100, 252];
const FIRST: usize = 253;
const FREQUENCIES: [f64; C / 2] = [1.0, 0.3, 0.01];

/// Values from which the models on each device are built.
struct RandomWeights {
    table: Tensor<2>,
    qkv: Tensor<2>,
    /// The same layers in NF4, if they are quantised.
    nf4: Option<Vec<Nf4>>,
    factors: Tensor<1>,
    layout: Arc<AdapterLayout>,
    cache: [Tensor<4>; 2],
}

impl RandomWeights {
    fn new(numbers: &mut Numbers) -> Self {
        let part = AdapterPart {
            rank: 3,
            scaling: 0.5,
        };
        let outputs = [H * C, G * C, G * C];
        let layout = AdapterLayout::new(D, &outputs, &[Some(part), None, Some(part)]);
        Self {
            table: numbers.tensor([V, D]),
            qkv: numbers.tensor([(H + 2 * G) * C, D]).mul_scalar(0.3),
            nf4: None,
            factors: numbers.tensor([layout.len()]).mul_scalar(0.3),
            layout: Arc::new(layout),
            cache: [(); 2].map(|()| numbers.tensor([B, G, CAPACITY, C])),
        }
    }

    fn qkv(&self, device: &Device) -> FrozenWeight {
        let Some(parts) = &self.nf4 else {
            return frozen(&self.qkv, device);
        };
        let shape = self.qkv.dims();
        let weight = FrozenWeight::from_nf4(parts.clone(), shape, ComputeDtype::F32, device);
        weight.expect("the parts are valid")
    }
}

/// A layer that decodes one token per row.
struct Layer {
    table: FrozenWeight,
    qkv: StackedLinear,
    norm: Tensor<1>,
    cache: [Tensor<4>; 2],
    ids: DeviceIntegers,
    rope: RopeTable,
    columns: DeviceColumns,
    /// Token index and ids.
    own: (usize, Vec<u32>),
    /// A launch argument, which a replay does not read again.
    multiplier: Option<f32>,
}

fn frozen(x: &Tensor<2>, device: &Device) -> FrozenWeight {
    FrozenWeight::new(values(x.clone()), x.dims(), ComputeDtype::F32, device)
}

fn positions(token: usize) -> Vec<u32> {
    STARTS
        .iter()
        .map(|start| (FIRST + token - start) as u32)
        .collect()
}

impl Layer {
    fn new(weights: &RandomWeights, ids: &[u32], device: &Device) -> Self {
        let there = |x: &Tensor<4>| x.clone().to_device(device);
        Self {
            table: frozen(&weights.table, device),
            qkv: StackedLinear {
                weight: weights.qkv(device),
                bias: None,
                out_features: [H * C, G * C, G * C].into(),
                adapter: Some(StackedAdapter::new(
                    weights.factors.clone().to_device(device),
                    weights.layout.clone(),
                )),
            },
            norm: Tensor::ones([D], (device, DType::F32)),
            cache: [there(&weights.cache[0]), there(&weights.cache[1])],
            ids: DeviceIntegers::new(ids.to_vec()),
            rope: RopeTable::new(&positions(0), &FREQUENCIES, 1.0, device),
            columns: DeviceColumns::new(&STARTS, FIRST + 1),
            own: (0, ids.to_vec()),
            multiplier: None,
        }
    }

    fn next(&mut self, token: usize, ids: &[u32]) {
        self.own = (token, ids.to_vec());
        self.place(token, ids);
    }

    fn place(&mut self, token: usize, ids: &[u32]) {
        self.ids.replace(ids.to_vec());
        self.rope
            .replace(&positions(token), |_| &FREQUENCIES[..], 1.0);
        self.columns.replace(&STARTS, FIRST + token + 1);
    }

    fn step(&mut self) -> Tensor<2> {
        let x = embedding_of_device_ids(&self.table, &self.ids);
        let extras = LinearExtras {
            transform: InputTransform::Normed {
                weight: Box::new(self.norm.clone()),
                eps: 1e-5,
            },
            ..LinearExtras::default()
        };
        let qkv = lora_linear(x, &self.qkv, extras).reshape([B, H + 2 * G, C]);
        let qkv = rope(qkv, &self.rope, H + G);
        let y = decode_step(qkv, H, &mut self.cache, &self.columns).reshape([B, D]);
        match self.multiplier {
            Some(multiplier) => y.mul_scalar(multiplier),
            None => y,
        }
    }
}

impl Recordable for Layer {
    type Output = Tensor<2>;

    fn launch(&mut self) -> Tensor<2> {
        self.step()
    }

    fn place_inputs(&mut self, inputs: Inputs) {
        let (token, ids) = self.own.clone();
        match inputs {
            Inputs::Own => self.place(token, &ids),
            Inputs::Different => self.place(token + 1, &[V as u32 - 1; B]),
        }
        let multiplier = if inputs == Inputs::Own { 1.0 } else { -1.0 };
        self.multiplier = self.multiplier.map(|_| multiplier);
    }

    fn numbers(output: &Tensor<2>) -> Vec<f32> {
        values(output.clone())
    }
}

/// Invariant: A token from a recorded CUDA graph equals the token from plain launches.
#[test]
fn a_recorded_token_is_replayed_with_new_values() {
    #[cfg(feature = "cuda")]
    let _alone = use_device_alone();
    let mut numbers = Numbers::new(71);
    let dense = RandomWeights::new(&mut numbers);
    let outputs = [H * C, G * C, G * C];
    let quantised = RandomWeights {
        nf4: Some(nf4::stacked(&mut numbers, &outputs, D, true, DType::F32)),
        ..RandomWeights::new(&mut numbers)
    };
    for weights in [dense, quantised] {
        replay_tokens(&weights, &mut numbers);
    }
}

fn replay_tokens(weights: &RandomWeights, numbers: &mut Numbers) {
    let device = device();
    let n_tokens = 6;
    let ids: Vec<[u32; B]> = (0..n_tokens)
        .map(|_| [(); B].map(|()| numbers.below(V) as u32))
        .collect();
    let mut on_cpu = Layer::new(weights, &ids[0], &Device::flex());
    let mut plain = Layer::new(weights, &ids[0], &device);
    let mut recorded = Layer::new(weights, &ids[0], &device);
    let mut recording: Option<(Tensor<2>, Recording)> = None;
    let refuses = std::env::var_os("FAKE_CUDA_NO_GRAPHS").is_some();
    let is_forced = std::env::var("TOOLTUNE_CUDA_GRAPHS").as_deref() == Ok("1");
    assert_eq!(can_record(&device), cfg!(feature = "cuda"));
    for (token, ids) in ids.iter().enumerate() {
        for layer in [&mut on_cpu, &mut plain, &mut recorded] {
            layer.next(token, ids);
        }
        let expected = values(on_cpu.step());
        let name = format!("token {token}");
        let own = values(plain.step());
        assert_near(&format!("{name}, without recording"), &own, &expected);
        let output = match &recording {
            Some((output, recording)) => {
                recording.replay().unwrap();
                values(output.clone())
            }
            // The recording was made with inputs other than the first token's.
            None if token > 0 && can_record(&device) => match record(&device, &mut recorded) {
                Ok((output, None)) => {
                    // The GPU takes longer than the host.
                    assert!(!is_forced, "TOOLTUNE_CUDA_GRAPHS=1 always records");
                    values(output)
                }
                Ok((output, Some(graph))) => {
                    assert!(!refuses, "the driver rejects recordings");
                    values(recording.insert((output, graph)).0.clone())
                }
                Err(error) => {
                    assert!(refuses, "{error}");
                    values(recorded.step())
                }
            },
            None => values(recorded.step()),
        };
        assert_eq!(output, own, "{name}");
    }
    // The keys and values of each token are in their positions.
    for (ours, expected) in recorded.cache.into_iter().zip(on_cpu.cache) {
        assert_near("the cache", &values(ours), &values(expected));
    }
}

#[test]
fn a_recording_with_a_different_result_is_rejected() {
    #[cfg(feature = "cuda")]
    let _alone = use_device_alone();
    let device = device();
    let weights = RandomWeights::new(&mut Numbers::new(73));
    let mut layer = Layer::new(&weights, &[1, 2, 3], &device);
    layer.next(0, &[1, 2, 3]);
    let expected = values(layer.step());
    layer.multiplier = Some(1.0);
    let refuses = std::env::var_os("FAKE_CUDA_NO_GRAPHS").is_some() || !can_record(&device);
    let is_forced = std::env::var("TOOLTUNE_CUDA_GRAPHS").as_deref() == Ok("1");
    match record(&device, &mut layer) {
        // The GPU takes longer than the host.
        Ok((found, None)) if !is_forced => assert_eq!(values(found), expected),
        Ok((_, recording)) => panic!("{recording:?} uses the launch argument"),
        Err(RecordingError::ResultsDiffer) => assert!(!refuses),
        Err(RecordingError::Device(reason)) => assert!(refuses, "{reason}"),
    }
    assert_eq!(
        values(layer.step()),
        expected,
        "the original inputs are restored"
    );
}

#[test]
fn combined_adapters_match_separate_adapters() {
    let device = device();
    let mut numbers = Numbers::new(72);
    let weights = RandomWeights::new(&mut numbers);
    let x = numbers.tensor([B, D]);
    // Maps of the stack without an adapter, and a residual.
    let residual = numbers.tensor([B, (H + 2 * G) * C]);
    let run = |layer: &Layer, linear: &StackedLinear, residual: Option<&Tensor<2>>| {
        let there = |x: &Tensor<2>| x.clone().to_device(&layer.norm.device());
        let extras = LinearExtras {
            residual: residual.map(there),
            ..LinearExtras::default()
        };
        values(lora_linear(there(&x), linear, extras))
    };
    let on_cpu = Layer::new(&weights, &[0; B], &Device::flex());
    let layer = Layer::new(&weights, &[0; B], &device);
    let joined = layer.qkv.with_combined_adapter();
    assert_eq!(joined.out_features.len(), 1);
    for residual in [None, Some(&residual)] {
        let expected = run(&on_cpu, &on_cpu.qkv, residual);
        assert_near("each", &run(&layer, &layer.qkv, residual), &expected);
        assert_near("joined", &run(&layer, &joined, residual), &expected);
    }
    // On the CPU adapters are not separate products.
    assert_eq!(on_cpu.qkv.with_combined_adapter().out_features.len(), 3);
}
