//! Decides which tensors the fused operations support, and in which dtype references compute.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Tensor};
#[cfg(feature = "cube")]
use cubecl::ir::{ElemType, FloatKind};

#[cfg(feature = "cube")]
use crate::cube::launch::has_cores_for;

/// Whether the tensor is on a device with fused operations (the CPU, or a GPU that the build has
/// kernels for) and has a supported dtype: f32 or bf16.
pub(crate) fn is_served<const D: usize>(x: &Tensor<D>) -> bool {
    has_supported_dtype(x) && has_kernels(x.device().as_dispatch())
}

/// Whether the tensor is on the CPU and has a dtype of the fused operations: f32 or bf16.
pub(crate) fn is_served_by_cpu<const D: usize>(x: &Tensor<D>) -> bool {
    has_supported_dtype(x) && is_cpu(&x.device())
}

/// Whether the tensor is on a GPU that the build has kernels for, not part of an autodiff graph,
/// and has a supported dtype: f32 or bf16.
#[cfg(feature = "cube")]
pub(crate) fn is_served_by_gpu<const D: usize>(x: &Tensor<D>) -> bool {
    is_served(x) && !is_cpu(&x.device()) && !x.is_autodiff()
}

/// Handle to query a GPU, with or without autodiff.
#[cfg(feature = "cuda")]
pub(crate) fn client(device: &DispatchDevice) -> Option<cubecl::client::Client> {
    match device {
        DispatchDevice::Cube(device) => Some(device.client()),
        DispatchDevice::Autodiff(device) => client(device),
        _ => None,
    }
}

/// Whether sliding-window attention has a kernel on the tensor's GPU.
#[cfg(feature = "cuda")]
pub(crate) fn has_window_kernel(
    qkv: &Tensor<3>,
    seen: (crate::Queries, &crate::Documents, crate::Causality),
) -> bool {
    qkv.dtype() == DType::BF16
        && client(qkv.device().as_dispatch())
            .is_some_and(|client| crate::cudnn::supports(&client, qkv.dims(), seen))
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn has_window_kernel(
    _: &Tensor<3>,
    _: (crate::Queries, &crate::Documents, crate::Causality),
) -> bool {
    false
}

fn has_supported_dtype<const D: usize>(x: &Tensor<D>) -> bool {
    matches!(x.dtype(), DType::F32 | DType::BF16)
}

/// The dtype in which a reference computes for tensors of `dtype`.
pub(crate) fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Whether the device's tensors are in CPU memory, with or without autodiff.
pub fn is_cpu(device: &Device) -> bool {
    is_flex(device.as_dispatch())
}

/// Whether the device is a GPU that the build has kernels for, without autodiff.
#[cfg(feature = "cube")]
pub(crate) fn is_gpu(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Cube(_))
}

/// Whether the device supports bf16 products: every CPU does, at varying speed; GPUs need bf16
/// tensor cores.
pub fn multiplies_bf16(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(device) => {
            let bf16 = ElemType::Float(FloatKind::BF16);
            has_cores_for(&device.client(), bf16)
        }
        DispatchDevice::Autodiff(device) => multiplies_bf16(&Device::new((**device).clone())),
        device => is_flex(device),
    }
}

fn has_kernels(device: &DispatchDevice) -> bool {
    match device {
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => true,
        DispatchDevice::Autodiff(device) => has_kernels(device),
        device => is_flex(device),
    }
}

fn is_flex(device: &DispatchDevice) -> bool {
    match device {
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Autodiff(device) => is_flex(device),
        #[allow(
            unreachable_patterns,
            reason = "other backends depend on build features"
        )]
        _ => false,
    }
}
