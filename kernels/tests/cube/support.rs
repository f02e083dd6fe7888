//! Tensors on the CPU and on the device under test, random values, and tolerances.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
#[cfg(not(feature = "cuda"))]
use burn::tensor::DeviceKind;
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use burn_cubecl::ops::into_data_sync;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};

use crate::bounds::Quantity;
pub(crate) use crate::numbers::Numbers;
#[cfg(feature = "cuda")]
pub(crate) use turns::use_device_alone;

/// The device under test: a CUDA GPU, or any Vulkan device.
pub(crate) fn device() -> Device {
    #[cfg(feature = "cuda")]
    {
        turns::use_device();
        keep_kernels();
        return Device::cuda(0);
    }
    #[cfg(not(feature = "cuda"))]
    Device::wgpu(DeviceKind::DefaultDevice)
}

/// Runs before the first tensor on the GPU.
#[cfg(feature = "cuda")]
pub(crate) fn keep_kernels() {
    if let Some(folder) = std::env::var_os("TOOLTUNE_CACHE") {
        tooltune_kernels::gpu::cache_kernels_in(std::path::Path::new(&folder));
    }
}

fn cube_device() -> CubeDevice {
    #[cfg(feature = "cuda")]
    {
        turns::use_device();
        keep_kernels();
        return CubeDevice::Cuda(Default::default());
    }
    #[cfg(not(feature = "cuda"))]
    CubeDevice::Wgpu(Default::default())
}

impl Numbers {
    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        self.pair(shape).0
    }

    /// The same values for the reference on the CPU and for a kernel.
    pub(crate) fn pair<const D: usize>(&mut self, shape: [usize; D]) -> (Tensor<D>, CubeTensor) {
        pair(self.floats(shape.iter().product()), shape)
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
    let grads = gradients(y.clone(), dy);
    let gradient = x.grad(&grads).expect("the result depends on the input");
    [values(y.inner()), values(gradient)]
}

/// Compares values and gradients; `ours` are from the device.
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

/// Like `assert_near`, for results computed in `dtype`.
pub(crate) fn assert_near_in(name: &str, dtype: DType, ours: &[f32], expected: &[f32]) {
    assert_eq!(ours.len(), expected.len(), "{name}");
    let off: f64 = ours
        .iter()
        .zip(expected)
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum();
    let norm: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    // A result that is only rounding error is compared with the magnitude of its inputs, about 1.
    let scale = norm.max(1e-2);
    let difference = (off / scale).sqrt();
    assert!(
        difference < Quantity::Operation.bound_in(dtype),
        "{name}: relative difference {difference}"
    );
}

/// While a thread records a CUDA graph, the driver gives no thread memory, so a test that records
/// waits until no other test uses the device.
#[cfg(feature = "cuda")]
mod turns {
    use std::cell::RefCell;
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

    /// Threads that use the device, or `None` while a test uses it alone.
    static USERS: Mutex<Option<usize>> = Mutex::new(Some(0));
    static CHANGED: Condvar = Condvar::new();

    thread_local! {
        static USE: RefCell<Option<Use>> = const { RefCell::new(None) };
    }

    /// Use of the device, mostly until the thread ends.
    struct Use;

    /// Use of the device by this thread alone, until this is dropped.
    pub(crate) struct Alone;

    pub(super) fn use_device() {
        USE.with_borrow_mut(|own| {
            own.get_or_insert_with(|| {
                let mut users = wait_while(|users| users.is_none());
                *users = users.map(|n| n + 1);
                Use
            });
        });
    }

    pub(crate) fn use_device_alone() -> Alone {
        // Two threads that both stayed users would wait for each other.
        USE.take();
        *wait_while(|users| *users != Some(0)) = None;
        USE.set(Some(Use));
        Alone
    }

    fn wait_while(is_taken: impl Fn(&Option<usize>) -> bool) -> MutexGuard<'static, Option<usize>> {
        let users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = CHANGED.wait_while(users, |users| is_taken(users));
        free.unwrap_or_else(PoisonError::into_inner)
    }

    impl Drop for Use {
        fn drop(&mut self) {
            let mut users = wait_while(|_| false);
            *users = users.map(|n| n - 1);
            CHANGED.notify_all();
        }
    }

    impl Drop for Alone {
        fn drop(&mut self) {
            *wait_while(|_| false) = Some(1);
            CHANGED.notify_all();
        }
    }
}
