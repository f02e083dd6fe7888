//! Detects CUDA's requirements on this machine: driver, GPUs, NVRTC and its headers, cuBLASLt,
//! cuDNN, NCCL.
//!
//! Burn's CUDA backend loads each library when it first needs it, in a separate thread, and panics
//! there if one is missing. These checks therefore run before a device is opened. They use the same
//! loader as the backend, without a panic. A loaded library stays loaded for the life of the
//! process, as in the backend.

mod compiler;
mod library;

use std::path::Path;

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cudarc::driver::result::{DriverError, ctx, device, init, mem_get_info, primary_ctx};
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use cudarc::driver::sys::{cuDeviceGetPCIBusId, cuDriverGetVersion};

use crate::choice_cache;

pub use crate::cudnn::{
    AttentionLayers, AttentionShape, OLDEST_CUDNN, PlanPrefetch, is_cudnn_recent,
    n_attention_shapes, plan_workspaces,
};
pub use compiler::check_compiler;
pub(crate) use library::open_first;
pub use library::{Library, compiler_version, headers, set_cuda_path};

/// A GPU, as described by its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Product name.
    pub name: String,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// Compute capability, major and minor: (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
}

/// A working driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Newest CUDA version that the driver supports, major and minor.
    pub cuda_version: (i32, i32),
    /// In device order.
    pub gpus: Vec<Gpu>,
}

/// Why the driver cannot be queried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverProblem {
    /// libcuda cannot be loaded.
    Missing,
    /// libcuda was loaded, and returned this error.
    Refused(String),
}

/// Version of the kernel driver, such as 580.159.04; only on Linux.
pub fn driver_release() -> Option<String> {
    if let Ok(version) = std::fs::read_to_string("/sys/module/nvidia/version") {
        return Some(version.trim().to_owned());
    }
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Wed ..."
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(is_version).map(str::to_owned)
}

/// Queries the driver for its version and its GPUs.
///
/// # Errors
///
/// If there is no driver, or it reports an error, for example because the machine has no GPU or the
/// driver is older than its library.
pub fn driver() -> Result<Driver, DriverProblem> {
    Library::Driver.find().ok_or(DriverProblem::Missing)?;
    query_driver().map_err(|error| DriverProblem::Refused(describe(error)))
}

fn query_driver() -> Result<Driver, DriverError> {
    init()?;
    let mut version = 0;
    // SAFETY: the driver writes one integer to `version`, which outlives the call.
    unsafe { cuDriverGetVersion(&mut version).result()? };
    let gpus = (0..device::get_count()?)
        .map(gpu)
        .collect::<Result<_, _>>()?;
    Ok(Driver {
        cuda_version: (version / 1000, version % 1000 / 10),
        gpus,
    })
}

/// The PCI address of a GPU, such as `0000:3b:00.0`; `None` if the driver does not report it. All
/// instances of a GPU that MIG divides have the same address.
pub fn pci_address(index: usize) -> Option<String> {
    Library::Driver.find()?;
    let mut text = [0; 32];
    init().ok()?;
    let handle = device::get(i32::try_from(index).ok()?).ok()?;
    // SAFETY: `handle` is a device that the driver just returned, and the driver writes at most
    // this many bytes, including a final zero.
    let answer = unsafe { cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, handle) };
    answer.result().ok()?;
    let bytes = text.iter().map(|&c| c as u8).take_while(|&c| c != 0);
    String::from_utf8(bytes.collect()).ok()
}

fn gpu(index: i32) -> Result<Gpu, DriverError> {
    let handle = device::get(index)?;
    // SAFETY: `handle` is a device that the driver just returned.
    let memory = unsafe { device::total_mem(handle)? };
    Ok(Gpu {
        name: device::get_name(handle)?,
        memory_bytes: memory as u64,
        compute_capability: compute_capability(index)?,
    })
}

/// Compute capability of a device, major and minor; the driver must be initialised.
pub(crate) fn compute_capability(index: i32) -> Result<(i32, i32), DriverError> {
    let handle = device::get(index)?;
    // SAFETY: `handle` is a device that the driver just returned.
    unsafe {
        Ok((
            device::get_attribute(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            device::get_attribute(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }
}

/// Cache key of choices for a device: product name, compute capability, number of multiprocessors,
/// and the driver's CUDA version. The driver must be initialised.
pub(crate) fn kind(index: i32) -> Result<String, DriverError> {
    let handle = device::get(index)?;
    let (major, minor) = compute_capability(index)?;
    let mut version = 0;
    // SAFETY: `handle` is a device that the driver just returned, and `version` outlives the call.
    let multiprocessors = unsafe {
        cuDriverGetVersion(&mut version).result()?;
        device::get_attribute(handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?
    };
    let name = device::get_name(handle)?;
    Ok(format!(
        "{name}-{major}.{minor}-{multiprocessors}-{version}"
    ))
}

/// Free memory of a CUDA device in bytes; `None` for another kind of device, or if the driver does
/// not report it.
///
/// Memory in Burn's pool counts as used, even if no tensor uses it.
pub fn free_memory_bytes(device: &Device) -> Option<u64> {
    match device.as_dispatch() {
        DispatchDevice::Cube(cubecl::Device::Cuda(device)) => free_memory_of(device.index).ok(),
        DispatchDevice::Autodiff(device) => free_memory_bytes(&Device::new((**device).clone())),
        _ => None,
    }
}

fn free_memory_of(index: usize) -> Result<u64, DriverError> {
    init()?;
    let handle = device::get(index as i32)?;
    // The query concerns the context of the calling thread, which has none by default: use the
    // primary context, in which Burn works.
    // SAFETY: `handle` is a device that the driver just returned; the context is valid from
    // `retain` to `release`, and the thread's previous context is restored.
    unsafe {
        let previous = ctx::get_current()?;
        ctx::set_current(primary_ctx::retain(handle)?)?;
        let memory = mem_get_info();
        if let Some(previous) = previous {
            ctx::set_current(previous)?;
        }
        primary_ctx::release(handle)?;
        memory.map(|(free, _)| free as u64)
    }
}

/// Caches compiled NVRTC kernels and the choices of cuBLASLt and cuDNN in a folder, for later
/// processes. Compiling the kernels of a training step takes several seconds, and a cuDNN attention
/// plan half a second. Kernels are keyed by program and compute capability, choices by GPU model
/// and driver; each library version has its own folder.
///
/// Call this before the first tensor on a GPU; later calls have no effect. If the folder is not
/// writable, nothing is cached.
pub fn cache_kernels_in(folder: &Path) {
    choice_cache::enable_in(folder);
    let Some((major, minor)) = compiler_version() else {
        return;
    };
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    let folder = folder.join(format!("nvrtc-{major}.{minor}"));
    config.environment.path = CacheConfig::Directory(folder);
    CubeClRuntimeConfig::try_set(config);
}

/// "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected".
fn describe(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => format!("{:?}: {}", error.0, text.to_string_lossy()),
        Err(_) => format!("{:?}", error.0),
    }
}
