//! Tensors on the CPU and on the device under test, random numbers, and how near two results must
//! be.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
#[cfg(not(feature = "cuda"))]
use burn::tensor::DeviceKind;
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use burn_cubecl::ops::into_data_sync;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};

use crate::bounds::Quantity;

/// The device under test: a GPU by CUDA, or whatever Vulkan finds.
pub(crate) fn device() -> Device {
    #[cfg(feature = "cuda")]
    {
        keep_kernels();
        return Device::cuda(0);
    }
    #[cfg(not(feature = "cuda"))]
    Device::wgpu(DeviceKind::DefaultDevice)
}

/// Before the first tensor on the GPU.
#[cfg(feature = "cuda")]
fn keep_kernels() {
    if let Some(folder) = std::env::var_os("TOOLTUNE_CACHE") {
        tooltune_kernels::gpu::keep_kernels_in(std::path::Path::new(&folder));
    }
}

fn cube_device() -> CubeDevice {
    #[cfg(feature = "cuda")]
    {
        keep_kernels();
        return CubeDevice::Cuda(Default::default());
    }
    #[cfg(not(feature = "cuda"))]
    CubeDevice::Wgpu(Default::default())
}

/// Numbers in -1..1 that depend on the seed alone.
#[derive(Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.pair(shape).0
    }

    /// The same numbers for the reference on the CPU and for a kernel.
    pub(crate) fn pair<const D: usize>(&mut self, shape: [usize; D]) -> (Tensor<D>, CubeTensor) {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0)
            .collect();
        pair(values, shape)
    }
}

/// `values` for the reference on the CPU and for a kernel.
pub(crate) fn pair<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> (Tensor<D>, CubeTensor) {
    let data = TensorData::new(values, shape);
    (
        Tensor::from_data(data.clone(), &Device::flex()),
        CubeBackend::float_from_data(data, &cube_device()),
    )
}

/// Positions for the device.
pub(crate) fn device_numbers(numbers: &[u32]) -> CubeTensor {
    let data = TensorData::new(numbers.to_vec(), [numbers.len()]);
    CubeBackend::int_from_data(data, &cube_device())
}

/// The tensor on the device under test.
pub(crate) fn on_device<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    x.clone().to_device(&device())
}

/// The tensor as a leaf under autodiff.
pub(crate) fn leaf<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x.clone()).require_grad()
}

/// Gradient of `x` for the sum of `y` weighted by `dy`.
pub(crate) fn gradients<const D: usize>(y: Tensor<D>, dy: &Tensor<D>) -> Gradients {
    y.mul(Tensor::from_inner(dy.clone())).sum().backward()
}

/// Value of `operation` and the gradient of its input, for `dy` as the gradient of its result.
pub(crate) fn differentiate<const D: usize, const E: usize>(
    x: &Tensor<D>,
    dy: &Tensor<E>,
    operation: impl Fn(Tensor<D>) -> Tensor<E>,
) -> [Vec<f32>; 2] {
    let x = leaf(x);
    let y = operation(x.clone());
    let found = gradients(y.clone(), dy);
    let gradient = x.grad(&found).expect("the result depends on the input");
    [values(y.inner()), values(gradient)]
}

/// Compares values and gradients, of the device first.
pub(crate) fn assert_both_near(name: &str, ours: &[Vec<f32>; 2], expected: &[Vec<f32>; 2]) {
    assert_near(name, &ours[0], &expected[0]);
    assert_near(&format!("{name}, gradient"), &ours[1], &expected[1]);
}

pub(crate) fn device_values(x: CubeTensor) -> Vec<f32> {
    into_data_sync(x).iter::<f32>().collect()
}

pub(crate) fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

/// Compares in the Euclidean norm: both sides sum f32 in different orders.
pub(crate) fn assert_near(name: &str, ours: &[f32], expected: &[f32]) {
    assert_near_in(name, DType::F32, ours, expected);
}

/// The same of what was computed in `dtype`.
pub(crate) fn assert_near_in(name: &str, dtype: DType, ours: &[f32], expected: &[f32]) {
    assert_eq!(ours.len(), expected.len(), "{name}");
    let off: f64 = ours
        .iter()
        .zip(expected)
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum();
    let norm: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    // A result of nothing but rounding is compared with the size of its inputs, about 1.
    let scale = norm.max(1e-2);
    let difference = (off / scale).sqrt();
    assert!(
        difference < Quantity::Operation.bound_in(dtype),
        "{name}: relative difference {difference}"
    );
}
