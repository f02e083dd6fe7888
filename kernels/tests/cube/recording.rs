//! A token that was recorded, against launches of its own.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};
use tooltune_kernels::attention::{HeldColumns, decode_step};
use tooltune_kernels::embedding::embedding_held;
use tooltune_kernels::lora_linear::{InputTransform, LinearExtras, lora_linear};
use tooltune_kernels::recording::{Inputs, Recordable, Recording, RecordingError, record, records};
use tooltune_kernels::rope::rope;
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, FrozenWeight, HeldNumbers, RopeTable, StackedAdapter,
    StackedLinear,
};

use crate::support::{Numbers, assert_near, device, values};

/// Rows, query and key heads, size of a head, vocabulary, columns of the cache.
const B: usize = 3;
const H: usize = 4;
const G: usize = 2;
const C: usize = 6;
const V: usize = 19;
const CAPACITY: usize = 300;
const D: usize = H * C;
/// Columns that rows begin at, and the column of the first token: runs of 256 columns begin on the way.
const STARTS: [usize; B] = [0, 100, 252];
const FIRST: usize = 253;
const FREQUENCIES: [f64; C / 2] = [1.0, 0.3, 0.01];

/// Numbers of which models are made on each device.
struct Given {
    table: Tensor<2>,
    qkv: Tensor<2>,
    factors: Tensor<1>,
    layout: Arc<AdapterLayout>,
    cache: [Tensor<4>; 2],
}

impl Given {
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
            factors: numbers.tensor([layout.len()]).mul_scalar(0.3),
            layout: Arc::new(layout),
            cache: [(); 2].map(|()| numbers.tensor([B, G, CAPACITY, C])),
        }
    }
}

/// A layer that decodes a token a row.
struct Layer {
    table: FrozenWeight,
    qkv: StackedLinear,
    norm: Tensor<1>,
    cache: [Tensor<4>; 2],
    ids: HeldNumbers,
    rope: RopeTable,
    columns: HeldColumns,
    /// Number and ids of the token.
    own: (usize, Vec<u32>),
    /// A number that is an argument of a launch, which a recording does not read again.
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
    fn new(given: &Given, ids: &[u32], device: &Device) -> Self {
        let there = |x: &Tensor<4>| x.clone().to_device(device);
        Self {
            table: frozen(&given.table, device),
            qkv: StackedLinear {
                weight: frozen(&given.qkv, device),
                bias: None,
                out_features: [H * C, G * C, G * C].into(),
                adapter: Some(StackedAdapter::new(
                    given.factors.clone().to_device(device),
                    given.layout.clone(),
                )),
            },
            norm: Tensor::ones([D], (device, DType::F32)),
            cache: [there(&given.cache[0]), there(&given.cache[1])],
            ids: HeldNumbers::new(ids.to_vec()),
            rope: RopeTable::new(&positions(0), &FREQUENCIES, 1.0, device),
            columns: HeldColumns::new(&STARTS, FIRST + 1),
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
        let x = embedding_held(&self.table, &self.ids);
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
    type Given = Tensor<2>;

    fn launch(&mut self) -> Tensor<2> {
        self.step()
    }

    fn place_inputs(&mut self, inputs: Inputs) {
        let (token, ids) = self.own.clone();
        match inputs {
            Inputs::Own => self.place(token, &ids),
            Inputs::Other => self.place(token + 1, &[V as u32 - 1; B]),
        }
        let other = if inputs == Inputs::Own { 1.0 } else { -1.0 };
        self.multiplier = self.multiplier.map(|_| other);
    }

    fn numbers(given: &Tensor<2>) -> Vec<f32> {
        values(given.clone())
    }
}

#[test]
fn a_token_that_was_recorded_is_computed_again_with_other_numbers() {
    let device = device();
    let mut numbers = Numbers::new(71);
    let given = Given::new(&mut numbers);
    let n_tokens = 6;
    let ids: Vec<[u32; B]> = (0..n_tokens)
        .map(|_| [(); B].map(|()| numbers.below(V) as u32))
        .collect();
    let mut on_cpu = Layer::new(&given, &ids[0], &Device::flex());
    let mut plain = Layer::new(&given, &ids[0], &device);
    let mut recorded = Layer::new(&given, &ids[0], &device);
    let mut recording: Option<(Tensor<2>, Recording)> = None;
    let refuses = std::env::var_os("FAKE_CUDA_NO_GRAPHS").is_some();
    let is_forced = std::env::var("TOOLTUNE_CUDA_GRAPHS").as_deref() == Ok("1");
    assert_eq!(
        records(&device),
        cfg!(all(feature = "cuda", not(feature = "fusion")))
    );
    for (token, ids) in ids.iter().enumerate() {
        for layer in [&mut on_cpu, &mut plain, &mut recorded] {
            layer.next(token, ids);
        }
        let expected = values(on_cpu.step());
        let name = format!("token {token}");
        let own = values(plain.step());
        assert_near(&format!("{name}, launches of its own"), &own, &expected);
        let found = match &recording {
            Some((found, recording)) => {
                recording.replay().unwrap();
                values(found.clone())
            }
            // The first token is none that the recording was made with.
            None if token > 0 && records(&device) => match record(&device, &mut recorded) {
                Ok((found, None)) => {
                    // Of a GPU that takes longer than the host.
                    assert!(!is_forced, "TOOLTUNE_CUDA_GRAPHS=1 records always");
                    values(found)
                }
                Ok((found, Some(made))) => {
                    assert!(!refuses, "a driver that refuses");
                    values(recording.insert((found, made)).0.clone())
                }
                Err(error) => {
                    assert!(refuses, "{error}");
                    values(recorded.step())
                }
            },
            None => values(recorded.step()),
        };
        assert_eq!(found, own, "{name}");
    }
    // Keys and values are those of each token, and where they belong.
    for (ours, expected) in recorded.cache.into_iter().zip(on_cpu.cache) {
        assert_near("the cache", &values(ours), &values(expected));
    }
}

#[test]
fn a_recording_that_gives_something_else_is_refused() {
    let device = device();
    let given = Given::new(&mut Numbers::new(73));
    let mut layer = Layer::new(&given, &[1, 2, 3], &device);
    layer.next(0, &[1, 2, 3]);
    let expected = values(layer.step());
    layer.multiplier = Some(1.0);
    let refuses = std::env::var_os("FAKE_CUDA_NO_GRAPHS").is_some() || !records(&device);
    let is_forced = std::env::var("TOOLTUNE_CUDA_GRAPHS").as_deref() == Ok("1");
    match record(&device, &mut layer) {
        // Of a GPU that takes longer than the host.
        Ok((found, None)) if !is_forced => assert_eq!(values(found), expected),
        Ok((_, recording)) => panic!("{recording:?} multiplies with what the launch was given"),
        Err(RecordingError::OtherResults) => assert!(!refuses),
        Err(RecordingError::Refused(reason)) => assert!(refuses, "{reason}"),
    }
    assert_eq!(
        values(layer.step()),
        expected,
        "its own inputs are there again"
    );
}

#[test]
fn adapters_that_are_joined_compute_what_each_of_them_does() {
    let device = device();
    let mut numbers = Numbers::new(72);
    let given = Given::new(&mut numbers);
    let x = numbers.tensor([B, D]);
    // With maps of the stack that have no adapter, and with a residual.
    let residual = numbers.tensor([B, (H + 2 * G) * C]);
    let of = |layer: &Layer, linear: &StackedLinear, residual: Option<&Tensor<2>>| {
        let there = |x: &Tensor<2>| x.clone().to_device(&layer.norm.device());
        let extras = LinearExtras {
            residual: residual.map(there),
            ..LinearExtras::default()
        };
        values(lora_linear(there(&x), linear, extras))
    };
    let on_cpu = Layer::new(&given, &[0; B], &Device::flex());
    let layer = Layer::new(&given, &[0; B], &device);
    let joined = layer.qkv.joined();
    assert_eq!(joined.out_features.len(), 1);
    for residual in [None, Some(&residual)] {
        let expected = of(&on_cpu, &on_cpu.qkv, residual);
        assert_near("each", &of(&layer, &layer.qkv, residual), &expected);
        assert_near("joined", &of(&layer, &joined, residual), &expected);
    }
    // The CPU has no products to save.
    assert_eq!(on_cpu.qkv.joined().out_features.len(), 3);
}
