//! Comparisons that run on every backend: an operation on the device under test against its
//! reference on the CPU.
//!
//! Test programs call them with their own device, dtypes and shapes.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gated_delta;
pub(crate) mod gradient_sum;
pub(crate) mod nf4;

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};

use crate::bounds::Quantity;
use crate::numbers::Numbers;

/// The device under test, and the dtypes that its kernels support.
#[derive(Debug, Clone)]
pub(crate) struct TestBackend {
    pub(crate) device: Device,
    pub(crate) dtypes: &'static [DType],
}

impl TestBackend {
    /// The tensor on the device under test.
    pub(crate) fn place<const D: usize>(&self, x: &Tensor<D>) -> Tensor<D> {
        x.clone().to_device(&self.device)
    }
}

/// The tensor on the CPU, for a reference.
pub(crate) fn on_cpu<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    x.clone().to_device(&Device::flex())
}

impl Numbers {
    /// A random tensor on `device`.
    pub(crate) fn tensor_on<const D: usize>(
        &mut self,
        device: &Device,
        shape: [usize; D],
    ) -> Tensor<D> {
        let values = self.floats(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    /// A random tensor on the CPU.
    pub(crate) fn cpu_tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.tensor_on(&Device::flex(), shape)
    }
}

pub(crate) fn values<const D: usize>(x: &Tensor<D>) -> Vec<f32> {
    x.clone().into_data().iter::<f32>().collect()
}

/// The tensor as a leaf under autodiff.
pub(crate) fn leaf<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x.clone()).require_grad()
}

/// Gradients of the sum of `y` weighted by `dy`.
pub(crate) fn gradients<const D: usize>(y: Tensor<D>, dy: &Tensor<D>) -> Gradients {
    y.mul(Tensor::from_inner(dy.clone())).sum().backward()
}

pub(crate) fn gradient<const D: usize>(x: &Tensor<D>, gradients: &Gradients) -> Vec<f32> {
    values(
        &x.grad(gradients)
            .expect("a leaf that the result depends on"),
    )
}

/// `|ours - expected| / |expected|` in the Euclidean norm.
pub(crate) fn difference(ours: &[f32], expected: &[f32]) -> f64 {
    difference_over(0.0, ours, expected)
}

/// Like [`difference`], with `|expected|` taken as at least `least`.
pub(crate) fn difference_over(least: f64, ours: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(
        &mut ours
            .iter()
            .zip(expected)
            .map(|(a, b)| f64::from(*a) - f64::from(*b)),
    );
    let size = norm(&mut expected.iter().map(|b| f64::from(*b)));
    if off == 0.0 {
        0.0
    } else {
        off / size.max(least)
    }
}

pub(crate) fn assert_near(name: &str, ours: &[f32], expected: &[f32]) {
    assert_near_in(DType::F32, name, ours, expected);
}

/// Like `assert_near`, for results that were rounded to `dtype`.
pub(crate) fn assert_near_in(dtype: DType, name: &str, ours: &[f32], expected: &[f32]) {
    let difference = difference(ours, expected);
    assert!(
        difference < Quantity::Operation.bound_in(dtype),
        "{name}: relative difference {difference}"
    );
}

/// An operation with one differentiable input.
pub(crate) type Operation<'a, const D: usize, const E: usize> = &'a dyn Fn(Tensor<D>) -> Tensor<E>;

/// The value with autodiff, the value without, and the gradient of `x`.
pub(crate) fn differentiate<const D: usize, const E: usize>(
    name: &str,
    (x, dy): (&Tensor<D>, &Tensor<E>),
    operation: Operation<'_, D, E>,
) -> [Vec<f32>; 3] {
    let tracked = leaf(x);
    let y = operation(tracked.clone());
    assert_eq!(y.dtype(), dy.dtype(), "{name}");
    let value = values(&y.clone().inner());
    let plain = values(&operation(x.clone()));
    let grads = gradients(y, dy);
    let dx = tracked.grad(&grads).expect("a leaf");
    assert_eq!(dx.dtype(), x.dtype(), "{name}");
    [value, plain, values(&dx)]
}

/// Compares an operation with its reference: values with and without autodiff, and the gradient.
///
/// `ours` runs on the device under test, `reference` on the CPU.
pub(crate) fn compare<const D: usize, const E: usize>(
    backend: &TestBackend,
    name: &str,
    (x, dy): (&Tensor<D>, &Tensor<E>),
    ours: Operation<'_, D, E>,
    reference: Operation<'_, D, E>,
) {
    let placed = (&backend.place(x), &backend.place(dy));
    let ours = differentiate(name, placed, ours);
    let expected = differentiate(name, (&on_cpu(x), &on_cpu(dy)), reference);
    for (i, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
        assert_near_in(dy.dtype(), &format!("{name}, result {i}"), ours, expected);
    }
}
