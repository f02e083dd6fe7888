//! Frozen weights that the GPUs of several processes divide.

use std::convert::Infallible;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, bf16};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::frozen_weight::quantised::Nf4;
use tooltune_kernels::gradient_sum::{GradientSum, reference};
use tooltune_kernels::host_memory::stream_blocks;
use tooltune_kernels::lora_linear::{LinearExtras, lora_linear};
use tooltune_kernels::node_memory::{Gathers, NodeGroup, Pass, ShareLoader};
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, FrozenWeight, StackedAdapter, StackedLinear,
    WeightSource,
};

use crate::nf4;
use crate::ranks::in_ranks_with;
use crate::support::{Numbers, leaf, values};

const WIDTH: usize = 64;
const N_BLOCKS: usize = 5;
/// The first block whose adapters are trained.
const FIRST_TRAINED: usize = 1;

/// The elements of a stack.
#[derive(Clone)]
enum Elements {
    Bf16(Vec<f32>),
    Nf4(Vec<Nf4>),
}

impl Elements {
    /// A source that reads no element twice.
    fn source(&self, is_f32: bool) -> WeightSource<'_, Infallible> {
        let shape = [WIDTH, WIDTH];
        match self {
            Self::Nf4(parts) => WeightSource::nf4(parts.clone(), shape, ComputeDtype::Bf16)
                .expect("the parts are valid"),
            Self::Bf16(values) if is_f32 => {
                WeightSource::values(values.clone(), shape, ComputeDtype::Bf16)
            }
            Self::Bf16(values) => WeightSource::filled(shape, |start, to| {
                let values = values[start..].iter();
                to.iter_mut()
                    .zip(values)
                    .for_each(|(to, x)| *to = bf16::from_f32(*x));
                Ok(())
            }),
        }
    }
}

/// Blocks of two stacks, in the compute dtype and in NF4 in turn.
fn blocks(numbers: &mut Numbers) -> Vec<[Elements; 2]> {
    let mut stack = |is_nf4: bool| match is_nf4 {
        true => {
            let half = [WIDTH / 2; 2];
            Elements::Nf4(nf4::stacked(numbers, &half, WIDTH, true, DType::BF16))
        }
        false => Elements::Bf16(numbers.floats(WIDTH * WIDTH)),
    };
    let blocks = 0..N_BLOCKS;
    blocks
        .map(|block| [stack(block % 3 == 0), stack(block % 2 == 0)])
        .collect()
}

/// The weights of all blocks, in each of the three places.
struct Model {
    resident: Vec<[FrozenWeight; 2]>,
    host: Vec<[FrozenWeight; 2]>,
    node: Vec<[FrozenWeight; 2]>,
    gathers: Gathers,
}

impl Model {
    fn new(numbers: &mut Numbers, group: &NodeGroup, device: &Device) -> Self {
        let blocks = blocks(numbers);
        let load = |elements: &Elements| {
            let Ok(weight) = elements.source(false).load(device);
            weight
        };
        let resident: Vec<[FrozenWeight; 2]> = blocks
            .iter()
            .map(|stacks| stacks.each_ref().map(load))
            .collect();
        let to_host = |weight: FrozenWeight| weight.into_host_memory().expect("host memory");
        let host: Vec<[FrozenWeight; 2]> = resident
            .iter()
            .map(|stacks| stacks.clone().map(to_host))
            .collect();
        stream_blocks(host.iter().map(|stacks| stacks.iter().collect()));
        let mut loader = ShareLoader::new(group);
        let add = |(block, stacks): (usize, &[Elements; 2])| {
            let sources = stacks.iter().map(|stack| stack.source(block % 2 == 1));
            let Ok(weights) = loader.add_block(sources.collect());
            weights.try_into().expect("two stacks")
        };
        let node = blocks.iter().enumerate().map(add).collect();
        Self {
            resident,
            host,
            node,
            gathers: loader.finish(),
        }
    }
}

/// The adapters of a pass and its data.
struct Data {
    layout: Arc<AdapterLayout>,
    factors: Vec<Tensor<1>>,
    x: Tensor<2>,
    dy: Tensor<2>,
}

impl Data {
    fn new(numbers: &mut Numbers, device: &Device) -> Self {
        let part = Some(AdapterPart {
            rank: 8,
            scaling: 0.1,
        });
        let layout = Arc::new(AdapterLayout::new(WIDTH, &[WIDTH], &[part]));
        let len = layout.len();
        let mut on_device = |shape| numbers.tensor::<2>(shape).to_device(device);
        let [x, dy] = [0; 2].map(|_| on_device([130, WIDTH]));
        let mut factors = || numbers.tensor::<1>([len]).to_device(device);
        Self {
            factors: (0..2 * N_BLOCKS).map(|_| factors()).collect(),
            layout,
            x,
            dy,
        }
    }

    /// The output of a block and its factors, which are leaves.
    fn block(
        &self,
        stacks: &[FrozenWeight; 2],
        block: usize,
        x: Tensor<2>,
    ) -> (Tensor<2>, Vec<Tensor<1>>) {
        let mut y = x;
        let mut tracked = Vec::new();
        for (weight, factors) in stacks.iter().zip(&self.factors[2 * block..]) {
            let factors = leaf(factors);
            let linear = StackedLinear {
                weight: weight.clone(),
                bias: None,
                out_features: [WIDTH].into(),
                adapter: Some(StackedAdapter::new(factors.clone(), self.layout.clone())),
            };
            y = lora_linear(y, &linear, LinearExtras::default());
            tracked.push(factors);
        }
        (y, tracked)
    }

    /// Output and gradients of a pass from the first block to the last one and back to
    /// [`FIRST_TRAINED`], block by block. The last `n_kept` blocks keep their graphs, the others
    /// are computed again.
    fn train(&self, blocks: &[[FrozenWeight; 2]], n_kept: usize) -> Vec<Tensor<1>> {
        let mut inputs = Vec::new();
        let mut graphs = Vec::new();
        let mut x = self.x.clone().cast(DType::BF16);
        for (block, stacks) in blocks.iter().enumerate() {
            let input = leaf(&x);
            let (y, factors) = self.block(stacks, block, input.clone());
            x = y.clone().inner();
            inputs.push(input.clone().inner());
            graphs.push((block + n_kept >= N_BLOCKS).then_some((input, y, factors)));
        }
        let mut results = vec![x.cast(DType::F32).reshape([-1])];
        let mut d_output = self.dy.clone().cast(DType::BF16);
        for block in (FIRST_TRAINED..N_BLOCKS).rev() {
            let (input, y, factors) = graphs[block].take().unwrap_or_else(|| {
                let input = leaf(&inputs[block]);
                let (y, factors) = self.block(&blocks[block], block, input.clone());
                (input, y, factors)
            });
            let gradients = backward_with_gradient(y, d_output);
            let gradient = |factors: &Tensor<1>| factors.grad(&gradients).expect("a gradient");
            results.extend(factors.iter().map(gradient));
            d_output = input.grad(&gradients).expect("a gradient");
        }
        results.push(d_output.cast(DType::F32).reshape([-1]));
        results
    }

    /// The output of a pass forward.
    fn infer(&self, blocks: &[[FrozenWeight; 2]]) -> Tensor<2> {
        let mut x = self.x.clone().cast(DType::BF16);
        for (block, stacks) in blocks.iter().enumerate() {
            x = self.block(stacks, block, leaf(&x)).0.inner();
        }
        x.cast(DType::F32)
    }
}

fn all_values(results: Vec<Tensor<1>>) -> Vec<Vec<f32>> {
    results.into_iter().map(values).collect()
}

/// Invariant: Weights that the GPUs of a node divide give the bits of weights on every GPU and of
/// weights in host memory, whatever the other ranks compute.
#[test]
fn weights_of_a_node_give_the_bits_of_resident_weights() {
    let name = "node::weights_of_a_node_give_the_bits_of_resident_weights";
    in_ranks_with(name, |[world, node], device| {
        let (rank, n_ranks) = (world.rank(), world.world_size());
        let group = NodeGroup::new(node).expect("a group");
        let mut numbers = Numbers::new(61);
        let model = Model::new(&mut numbers, &group, device);
        let parts: Vec<Tensor<1>> = (0..n_ranks).map(|_| numbers.tensor([999])).collect();
        // Every rank has data of its own.
        let mut numbers = Numbers::new(70 + rank as u64);
        let data = Data::new(&mut numbers, device);
        let numbers_of_ranks: Vec<u32> = (0..n_ranks as u32).map(|rank| 3 * rank).collect();
        assert_eq!(group.exchange(3 * rank as u32), Ok(numbers_of_ranks));
        world.warm_up(1000).expect("the first sum");

        let training = Pass::Training {
            first_trained: FIRST_TRAINED,
        };
        for n_kept in [N_BLOCKS, 0, 2] {
            let expected = all_values(data.train(&model.resident, n_kept));
            assert!(expected.iter().flatten().all(|value| value.is_finite()));
            // In the second micro-batch, the last rank has nothing to compute.
            for round in 0..2 {
                model.gathers.begin(training);
                let computes = round == 0 || rank + 1 < n_ranks || n_ranks == 1;
                let results = computes.then(|| data.train(&model.node, n_kept));
                model.gathers.finish();
                // Sums and gathers do not overlap: NCCL may hang otherwise.
                if round == 1 {
                    group.wait_for_gathers();
                    let mut sum = GradientSum::new(999, n_ranks).for_ranks(n_ranks);
                    sum.add(parts[rank].clone().to_device(device));
                    let like = parts[0].clone().to_device(device);
                    let sum = sum.finish_on_gpus(&like, &world).expect("a sum");
                    assert_eq!(values(sum), values(reference::sum(&parts)));
                }
                if let Some(results) = results {
                    assert!(
                        all_values(results) == expected,
                        "{n_kept} blocks kept, micro-batch {round}"
                    );
                }
                assert!(group.exchange(0).is_ok());
            }
            assert!(all_values(data.train(&model.host, n_kept)) == expected);
        }
        // Ranks infer different numbers of tokens.
        let expected = values(data.infer(&model.resident));
        assert!(values(data.infer(&model.host)) == expected);
        for token in 0..=n_ranks {
            let computes = token <= rank;
            let any = group.exchange(u32::from(computes)).expect("a vote");
            if any.iter().all(|&computes| computes == 0) {
                assert_eq!(token, n_ranks);
                break;
            }
            model.gathers.begin(Pass::Forward);
            if computes {
                assert!(values(data.infer(&model.node)) == expected, "token {token}");
            }
            model.gathers.finish();
        }
        for (ours, expected) in model
            .node
            .iter()
            .flatten()
            .zip(model.resident.iter().flatten())
        {
            assert_eq!(ours.is_quantised(), expected.is_quantised());
            assert!(ours.bytes() * n_ranks < expected.bytes() + n_ranks);
            assert!(ours.is_streamed() && !expected.is_streamed());
        }
        group.wait_for_gathers();
        group.close().expect("the node closes");
        world.close().expect("the world closes");
    });
}
