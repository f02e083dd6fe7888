//! Weights that a GPU dequantises or copies before each product.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::lora_linear::{LinearExtras, lora_linear};
use tooltune_kernels::{
    AdapterLayout, AdapterPart, ComputeDtype, FrozenWeight, StackedAdapter, StackedLinear,
};

use crate::nf4;
use crate::support::{Numbers, device, leaf, on_device, values};

/// The dtypes of products that the device supports.
const DTYPES: &[DType] = match cfg!(feature = "cuda") {
    true => &[DType::F32, DType::BF16],
    false => &[DType::F32],
};

#[test]
fn weights_in_nf4_have_the_bits_of_the_reference() {
    nf4::dequantised_values(&device(), DTYPES, cfg!(feature = "cuda"));
}

fn compute(dtype: DType) -> ComputeDtype {
    match dtype {
        DType::F32 => ComputeDtype::F32,
        _ => ComputeDtype::Bf16,
    }
}

/// Output and gradients of a stack, `[y, dx, factors]`.
fn pass(
    weight: &FrozenWeight,
    outputs: &[usize],
    adapter: (&Tensor<1>, &Arc<AdapterLayout>),
    [x, dy]: [&Tensor<2>; 2],
) -> [Vec<f32>; 3] {
    let dtype = weight.compute_dtype().dtype();
    let x = leaf(&on_device(x).cast(dtype));
    let factors = leaf(&on_device(adapter.0));
    let linear = StackedLinear {
        weight: weight.clone(),
        bias: None,
        out_features: outputs.into(),
        adapter: Some(StackedAdapter::new(factors.clone(), adapter.1.clone())),
    };
    let y = lora_linear(x.clone(), &linear, LinearExtras::default());
    let grads = backward_with_gradient(y.clone(), on_device(dy).cast(dtype));
    [
        values(y.inner()),
        values(x.grad(&grads).unwrap()),
        values(factors.grad(&grads).unwrap()),
    ]
}

/// Invariant: A weight that is dequantised for each product gives the bits of the dense weight.
#[test]
fn products_with_nf4_have_the_bits_of_dense_products() {
    let mut numbers = Numbers::new(58);
    let (columns, outputs) = (136, [72, 16, 40]);
    let parts = nf4::stacked(&mut numbers, &outputs, columns, true, DType::F32);
    let shape = [128, columns];
    // Many rows for our low-rank kernels; few rows and odd ranks for separate products.
    for (rows, rank) in [(150, 8), (5, 8), (150, 3)] {
        let part = Some(AdapterPart { rank, scaling: 0.5 });
        let layout = Arc::new(AdapterLayout::new(columns, &outputs, &[part, None, part]));
        let factors = numbers.tensor([layout.len()]);
        let [x, dy] = [columns, 128].map(|width| numbers.tensor([rows, width]));
        for dtype in DTYPES {
            let codes = FrozenWeight::from_nf4(parts.clone(), shape, compute(*dtype), &device());
            let codes = codes.expect("the parts are valid");
            let run = |weight| pass(weight, &outputs, (&factors, &layout), [&x, &dy]);
            let [ours, expected] = [&codes, &codes.dequantised()].map(run);
            assert!(ours == expected, "{rows} rows, rank {rank}, {dtype:?}");
            assert!(ours[1].iter().any(|value| *value != 0.0));
        }
    }
}

/// Blocks of two stacks, in the compute dtype and in NF4 in turn.
#[cfg(feature = "cuda")]
fn blocks(numbers: &mut Numbers, n_blocks: usize, width: usize) -> Vec<[FrozenWeight; 2]> {
    let shape = [width, width];
    let mut stack = |is_nf4: bool| {
        if is_nf4 {
            let parts = nf4::stacked(numbers, &[width / 2, width / 2], width, true, DType::BF16);
            let weight = FrozenWeight::from_nf4(parts, shape, ComputeDtype::Bf16, &device());
            return weight.expect("the parts are valid");
        }
        let values = numbers.floats(width * width);
        FrozenWeight::new(values, shape, ComputeDtype::Bf16, &device())
    };
    (0..n_blocks)
        .map(|block| [stack(block % 3 == 0), stack(block % 2 == 0)])
        .collect()
}

/// Invariant: Weights that are copied from host memory before each block give the bits of weights on
/// the GPU.
#[cfg(feature = "cuda")]
#[test]
fn weights_from_host_memory_give_the_bits_of_resident_weights() {
    use tooltune_kernels::host_memory::stream_blocks;

    let mut numbers = Numbers::new(59);
    let (rows, width, rank) = (130, 64, 8);
    let resident = blocks(&mut numbers, 5, width);
    let part = Some(AdapterPart { rank, scaling: 0.1 });
    let layout = Arc::new(AdapterLayout::new(width, &[width], &[part]));
    let factors: Vec<Tensor<1>> = (0..10).map(|_| numbers.tensor([layout.len()])).collect();
    let [x, dy] = [0; 2].map(|_| numbers.tensor([rows, width]));
    let host: Vec<[FrozenWeight; 2]> = resident
        .iter()
        .map(|stacks| {
            stacks
                .clone()
                .map(|weight| weight.into_host_memory().unwrap())
        })
        .collect();
    // Without a place, each use copies the weight.
    for (ours, expected) in host.iter().flatten().zip(resident.iter().flatten()) {
        assert_eq!(ours.is_quantised(), expected.is_quantised());
        assert_eq!(values(ours.to_tensor()), values(expected.to_tensor()));
    }
    stream_blocks(host.iter().map(|stacks| stacks.iter().collect()));
    // A step goes through the blocks and back; nothing waits for the GPU before its end.
    let step = |blocks: &[[FrozenWeight; 2]]| {
        let x = leaf(&on_device(&x).cast(DType::BF16));
        let mut tracked = Vec::new();
        let mut y = x.clone();
        for (weight, factors) in blocks.iter().flatten().zip(&factors) {
            let factors = leaf(&on_device(factors));
            let linear = StackedLinear {
                weight: weight.clone(),
                bias: None,
                out_features: [width].into(),
                adapter: Some(StackedAdapter::new(factors.clone(), layout.clone())),
            };
            y = lora_linear(y, &linear, LinearExtras::default());
            tracked.push(factors);
        }
        let grads = backward_with_gradient(y.clone(), on_device(&dy).cast(DType::BF16));
        let gradients = tracked.iter().map(|factors| factors.grad(&grads).unwrap());
        let mut results: Vec<Vec<f32>> = gradients.map(values).collect();
        results.extend([values(y.inner()), values(x.grad(&grads).unwrap())]);
        results
    };
    let expected = step(&resident);
    assert!(expected.iter().flatten().all(|value| value.is_finite()));
    for _ in 0..3 {
        assert!(step(&host) == expected);
    }
    // Blocks in any order, and a copy of the weights outlives the first owner.
    let last = host.clone();
    drop(host);
    for block in [3, 0, 4, 4, 2, 1, 0] {
        let [ours, expected] =
            [&last, &resident].map(|blocks| values(blocks[block][1].to_tensor()));
        assert!(ours == expected, "block {block}");
    }
}

/// Invariant: A block input that was in host memory returns with the same bits.
#[cfg(feature = "cuda")]
#[test]
fn block_inputs_return_from_host_memory() {
    use tooltune_kernels::host_memory::BlockInputs;

    let mut numbers = Numbers::new(60);
    // The second pass reuses the host memory of the first one, the third has other sizes.
    for (n_blocks, shape) in [(6, [40, 24]), (5, [40, 24]), (4, [7, 3]), (1, [2, 2])] {
        let first = numbers.tensor(shape);
        let mut inputs = BlockInputs::default();
        let mut x = on_device(&first);
        // Each block overwrites memory that is no longer in use.
        for block in 0..n_blocks {
            inputs.push(x.clone()).expect("host memory");
            x = x.mul_scalar(2.0).add_scalar(block as f32);
        }
        let mut expected = vec![first];
        for block in 1..n_blocks {
            let next = expected[block - 1].clone().mul_scalar(2.0);
            expected.push(next.add_scalar((block - 1) as f32));
        }
        let mut gradient = x;
        let mut found = Vec::new();
        while let Some(input) = inputs.pop() {
            gradient = gradient.mul(input.clone().mul_scalar(0.5));
            found.push(input.mul_scalar(3.0));
        }
        assert_eq!(found.len(), n_blocks);
        for (block, (ours, expected)) in found.into_iter().rev().zip(expected).enumerate() {
            let expected = values(expected.mul_scalar(3.0));
            assert_eq!(values(ours), expected, "input {block} of {shape:?}");
        }
    }
    // A pass that ends early.
    let mut inputs = BlockInputs::default();
    for _ in 0..3 {
        inputs
            .push(on_device(&numbers.tensor([9, 9])))
            .expect("host memory");
    }
    drop(inputs.pop());
    drop(inputs);
}
