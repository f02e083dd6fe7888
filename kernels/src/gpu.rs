//! What this machine has of what CUDA needs: driver, GPUs, NVRTC with its headers, cuBLASLt, cuDNN.
//!
//! Burn's CUDA backend opens each library when it first needs it, in a thread of its own, and
//! panics there where one is missing. So a device is opened only after these questions, which are
//! put to the very loader that the backend will use and answered without a panic. A library that
//! was found stays open for the life of the process, as it does in the backend.

use std::path::{Path, PathBuf};

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::cuda::install;
use cudarc::driver::result::{DriverError, ctx, device, init, mem_get_info, primary_ctx};
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use cudarc::driver::sys::cuDriverGetVersion;
use cudarc::nvrtc::sys::nvrtcVersion;

use crate::kept;

pub use crate::cudnn::{
    AttentionLayers, AttentionShape, PlansAhead, n_attention_forms, plan_workspaces,
};

/// A library that is opened at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// libcuda, which comes with the NVIDIA driver.
    Driver,
    /// libnvrtc, the compiler of the kernels.
    Nvrtc,
    /// libcublasLt, NVIDIA's matrix products. Without it, products are kernels of Burn's that NVRTC
    /// compiles, several times slower.
    CublasLt,
    /// libcudnn, NVIDIA's attention. Without it, or with one before 9.10, attention is computed by
    /// kernels that NVRTC compiles, several times slower on Hopper.
    Cudnn,
}

/// A GPU as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Name of the product.
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Major and minor number of its instruction set: (9, 0) for Hopper.
    pub compute_capability: (i32, i32),
}

/// A driver that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// Newest version of CUDA that it runs, major and minor.
    pub cuda_version: (i32, i32),
    /// In the order of their indices.
    pub gpus: Vec<Gpu>,
}

/// Why no GPU can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverProblem {
    /// libcuda cannot be opened.
    Missing,
    /// It can, and answered with this error.
    Refused(String),
}

impl Library {
    /// Where the library lies, if the dynamic loader finds it. Only Linux tells the folder;
    /// elsewhere it is the name alone.
    pub fn find(self) -> Option<PathBuf> {
        let (stem, is_open) = match self {
            // SAFETY: opening a library runs its initialisers. These four are NVIDIA's, made to be
            // opened at run time; `culib` panics only for a library that is not present.
            Self::Driver => ("libcuda.so", unsafe {
                use cudarc::driver::sys::{culib, is_culib_present};
                is_culib_present() && {
                    culib();
                    true
                }
            }),
            // SAFETY: as above.
            Self::Nvrtc => ("libnvrtc.so", unsafe {
                use cudarc::nvrtc::sys::{culib, is_culib_present};
                is_culib_present() && {
                    culib();
                    true
                }
            }),
            // SAFETY: as above.
            Self::CublasLt => ("libcublasLt.so", unsafe {
                use cudarc::cublaslt::sys::{culib, is_culib_present};
                is_culib_present() && {
                    culib();
                    true
                }
            }),
            // SAFETY: as above.
            Self::Cudnn => ("libcudnn.so", unsafe {
                use cudarc::cudnn::sys::{culib, is_culib_present};
                is_culib_present() && {
                    culib();
                    true
                }
            }),
        };
        is_open.then(|| mapped_file(stem).unwrap_or_else(|| PathBuf::from(stem)))
    }

    /// Whether the library is there, and the environment variable `switch` is not `0`.
    pub(crate) fn is_wanted(self, switch: &str) -> bool {
        std::env::var(switch).as_deref() != Ok("0") && self.find().is_some()
    }
}

/// The file of this process's address space whose name begins with `stem`.
fn mapped_file(stem: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let files = maps
        .lines()
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let named = |path: &Path| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with(stem))
    };
    files
        .into_iter()
        .find(|path| named(path))
        .map(Path::to_path_buf)
}

/// The folder of CUDA's headers, which NVRTC reads: `include` below `CUDA_PATH` or the usual place
/// of a toolkit, if what our kernels include is in it.
pub fn headers() -> Option<PathBuf> {
    let folder = install::cuda_path()?.join("include");
    let is_whole = ["cuda_fp16.h", "cuda_bf16.h", "mma.h", "crt/mma.h"]
        .iter()
        .all(|header| folder.join(header).is_file());
    is_whole.then_some(folder)
}

/// Version of the kernel's driver, such as 580.159.04; only Linux tells.
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

/// Asks the driver for its version and its GPUs.
///
/// # Errors
///
/// No driver, or one that refuses: no GPU in the machine, or a driver older than its library.
pub fn driver() -> Result<Driver, DriverProblem> {
    Library::Driver.find().ok_or(DriverProblem::Missing)?;
    ask().map_err(|error| DriverProblem::Refused(describe(error)))
}

fn ask() -> Result<Driver, DriverError> {
    init()?;
    let mut version = 0;
    // SAFETY: the driver writes one number into `version`, which outlives the call.
    unsafe { cuDriverGetVersion(&mut version).result()? };
    let gpus = (0..device::get_count()?)
        .map(gpu)
        .collect::<Result<_, _>>()?;
    Ok(Driver {
        cuda_version: (version / 1000, version % 1000 / 10),
        gpus,
    })
}

fn gpu(index: i32) -> Result<Gpu, DriverError> {
    let handle = device::get(index)?;
    // SAFETY: `handle` is a device that the driver has just given.
    let memory = unsafe { device::total_mem(handle)? };
    Ok(Gpu {
        name: device::get_name(handle)?,
        memory_bytes: memory as u64,
        compute_capability: compute_capability(index)?,
    })
}

/// Major and minor number of the instruction set of a device, once the driver is initialised.
pub(crate) fn compute_capability(index: i32) -> Result<(i32, i32), DriverError> {
    let handle = device::get(index)?;
    // SAFETY: `handle` is a device that the driver has just given.
    unsafe {
        Ok((
            device::get_attribute(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            device::get_attribute(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }
}

/// What choices for a device depend on: the name of the product, its instruction set and number of
/// multiprocessors, and the CUDA version of the driver. Once the driver is initialised.
pub(crate) fn kind(index: i32) -> Result<String, DriverError> {
    let handle = device::get(index)?;
    let (major, minor) = compute_capability(index)?;
    let mut version = 0;
    // SAFETY: `handle` is a device that the driver has just given, and `version` outlives the call.
    let multiprocessors = unsafe {
        cuDriverGetVersion(&mut version).result()?;
        device::get_attribute(handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?
    };
    let name = device::get_name(handle)?;
    Ok(format!(
        "{name}-{major}.{minor}-{multiprocessors}-{version}"
    ))
}

/// Memory of a CUDA device that no process holds at present, in bytes; `None` for another device, or
/// where the driver does not tell.
///
/// What Burn's pool has taken of the driver counts as held, also where no tensor lies in it.
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
    // The question is about the context of the calling thread, which has none unless it is given one:
    // here the primary one, in which Burn works.
    // SAFETY: `handle` is a device that the driver has just given; the context is held from `retain` to
    // `release`, and the one that the thread had before is given back to it.
    unsafe {
        let before = ctx::get_current()?;
        ctx::set_current(primary_ctx::retain(handle)?)?;
        let memory = mem_get_info();
        if let Some(before) = before {
            ctx::set_current(before)?;
        }
        primary_ctx::release(handle)?;
        memory.map(|(free, _)| free as u64)
    }
}

/// Has what NVRTC makes of kernels kept in a folder, where later processes find it, and what cuBLASLt and
/// cuDNN choose: the kernels of a training step take NVRTC some seconds, a plan for attention takes cuDNN
/// half a second. A kernel belongs to the program and the GPU's instruction set, a choice to the kind of
/// GPU and its driver; each version of a library has a folder of its own.
///
/// To be called before the first tensor on a GPU; later it changes nothing. A folder that cannot be
/// written costs the time alone.
pub fn keep_kernels_in(folder: &Path) {
    kept::keep_in(folder);
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are numbers to be written, which the function does and nothing else.
    let answer = unsafe { nvrtcVersion(&mut major, &mut minor) };
    if answer.result().is_err() {
        return;
    }
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
