//! Opens the compute device of a command and starts the CPU threads. No other module does this.
//!
//! `Device::default()` is never used: in a build with CUDA it selects the first GPU even if the
//! machine has none. If a CUDA library is missing, Burn panics in one of its threads, so
//! [`cuda_needs`] checks every requirement first. `tooltune doctor` prints the same checks.

use burn::tensor::Device;
use tooltune_kernels::cpu::malloc_tuning;
#[cfg(feature = "cuda")]
use tooltune_kernels::gpu;
use tooltune_kernels::{Causality, is_cpu};

use crate::config::Device as DeviceName;
use crate::error::Error;
use crate::process::available_memory_bytes;
#[cfg(feature = "cuda")]
use crate::process::cache_folder;

/// Number of supervised rows whose logits are in memory at a time on a CPU: 128 rows of 49,152
/// logits in f32 are 25 MB.
const LOSS_ROWS_ON_CPU: usize = 128;

/// Like [`LOSS_ROWS_ON_CPU`], on a GPU. With fewer rows, the GPU would be limited by memory
/// bandwidth; 1,024 rows of 128,256 logits in bf16 are 263 MB.
pub(crate) const LOSS_ROWS_ON_GPU: usize = 1024;

/// Number of supervised rows whose logits are in memory at a time on this device.
pub fn loss_rows(device: &Device) -> usize {
    if is_cpu(device) {
        LOSS_ROWS_ON_CPU
    } else {
        LOSS_ROWS_ON_GPU
    }
}

/// Free memory on the device in bytes; `None` if the system or the driver does not report it.
pub fn free_memory_bytes(device: &Device) -> Option<u64> {
    if is_cpu(device) {
        return available_memory_bytes();
    }
    #[cfg(feature = "cuda")]
    return gpu::free_memory_bytes(device);
    #[cfg(not(feature = "cuda"))]
    None
}

/// The PCI address of a GPU, such as `0000:3b:00.0`. `None` for a part of a GPU that MIG divides,
/// if the driver does not report it, and in a build without CUDA.
pub fn gpu_address(index: usize) -> Option<String> {
    #[cfg(feature = "cuda")]
    {
        let gpus = gpu::driver().ok()?.gpus;
        let is_part = gpus.get(index)?.name.contains(" MIG ");
        gpu::pci_address(index).filter(|_| !is_part)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = index;
        None
    }
}

/// Threads that compile attention plans for a run. They stop when the value is dropped.
#[derive(Debug, Default)]
pub struct PlanPrefetch {
    #[cfg(feature = "cuda")]
    _threads: Option<gpu::PlanPrefetch>,
}

/// Starts compiling bf16 attention plans for the given micro-batches, each a list of document
/// lengths. Does nothing on a CPU.
///
/// - `heads`: number of query heads, number of key/value heads, head size
pub fn plan_attention(
    device: &Device,
    heads: [usize; 3],
    causalities: Vec<Causality>,
    micro_batches: impl IntoIterator<Item = Vec<usize>>,
) -> PlanPrefetch {
    if is_cpu(device) {
        return PlanPrefetch::default();
    }
    #[cfg(feature = "cuda")]
    {
        let [heads, groups, size] = heads;
        let layers = gpu::AttentionLayers {
            heads: [heads, groups],
            size,
            causalities,
        };
        PlanPrefetch {
            _threads: gpu::PlanPrefetch::begin(device, &layers, micro_batches),
        }
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (heads, causalities, micro_batches);
        PlanPrefetch::default()
    }
}

/// One requirement for computing on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Name of the requirement.
    pub subject: &'static str,
    /// A description of what was found, or of the problem.
    pub status: Result<String, String>,
    /// How to fix the problem.
    pub fix: &'static str,
}

/// Opens the device set by the config or `--device`.
///
/// # Errors
///
/// CUDA was requested in a build without it, or on a machine that fails a check of [`cuda_needs`].
pub fn open(name: DeviceName) -> Result<Device, Error> {
    match name {
        DeviceName::Cpu => Ok(Device::flex()),
        DeviceName::Cuda(index) => open_cuda(index),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(index: usize) -> Result<Device, Error> {
    for need in cuda_needs(index) {
        need.status
            .map_err(|problem| refusal(index, &problem, need.fix))?;
    }
    if let Some(folder) = cache_folder() {
        gpu::cache_kernels_in(&folder.join("kernels"));
    }
    Ok(Device::cuda(index))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(index: usize) -> Result<Device, Error> {
    Err(refusal(index, NOT_BUILT, BUILD))
}

fn refusal(index: usize, problem: &str, fix: &str) -> Error {
    Error::Device(format!(
        "cuda:{index}: {problem}; {fix}, or use --device cpu"
    ))
}

#[cfg(not(feature = "cuda"))]
const NOT_BUILT: &str = "this build does not include CUDA";
#[cfg(not(feature = "cuda"))]
const BUILD: &str = "build with `cargo build --release --features cuda`";

/// Checks the requirements of GPU `index` in order. If one is missing, the requirements that depend
/// on it are left out.
#[cfg(not(feature = "cuda"))]
pub fn cuda_needs(_: usize) -> Vec<Need> {
    vec![Need {
        subject: "build",
        status: Err(NOT_BUILT.to_owned()),
        fix: BUILD,
    }]
}

/// Checks the requirements of GPU `index` in order. If one is missing, the requirements that depend
/// on it are left out.
#[cfg(feature = "cuda")]
pub fn cuda_needs(index: usize) -> Vec<Need> {
    let driver = gpu::driver();
    let mut needs = vec![Need {
        subject: "NVIDIA driver",
        status: driver
            .as_ref()
            .map(describe_driver)
            .map_err(describe_problem),
        fix: "install the NVIDIA driver (inside a container, start it with the GPU), or add the \
               folder of libcuda.so.1 to LD_LIBRARY_PATH",
    }];
    needs.extend(driver.ok().map(|driver| Need {
        subject: "GPU",
        status: describe_gpus(&driver.gpus, index),
        fix: "use the index of a listed GPU; CUDA_VISIBLE_DEVICES may hide others",
    }));
    let nvrtc = gpu::Library::Nvrtc.find();
    needs.push(Need {
        subject: "NVRTC",
        status: nvrtc
            .map(|path| path.display().to_string())
            .ok_or("libnvrtc.so, the CUDA kernel compiler, cannot be loaded".to_owned()),
        fix: "install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, and add its \
               folder to LD_LIBRARY_PATH (`scripts/gpu/environment` finds both)",
    });
    needs.push(Need {
        subject: "CUDA headers",
        status: gpu::headers()
            .map(|folder| folder.display().to_string())
            .ok_or("the CUDA headers (cuda_fp16.h and others) are missing".to_owned()),
        fix: "install the CUDA toolkit or the Python packages nvidia-cuda-runtime and \
              nvidia-cuda-crt, and set CUDA_PATH to the folder above `include` \
              (`scripts/gpu/environment` finds both)",
    });
    needs
}

#[cfg(feature = "cuda")]
fn describe_driver(driver: &gpu::Driver) -> String {
    let (major, minor) = driver.cuda_version;
    let release = gpu::driver_release().unwrap_or("unknown release".to_owned());
    format!("{release}, supports up to CUDA {major}.{minor}")
}

#[cfg(feature = "cuda")]
fn describe_problem(problem: &gpu::DriverProblem) -> String {
    match problem {
        gpu::DriverProblem::Missing => {
            "no NVIDIA driver found: libcuda.so.1 cannot be loaded".to_owned()
        }
        gpu::DriverProblem::Refused(answer) => format!("the NVIDIA driver returned {answer}"),
    }
}

/// Lists all GPUs; an error if `index` is not one of them.
#[cfg(feature = "cuda")]
fn describe_gpus(gpus: &[gpu::Gpu], index: usize) -> Result<String, String> {
    let listed: Vec<String> = gpus
        .iter()
        .enumerate()
        .map(|(i, gpu)| {
            let (major, minor) = gpu.compute_capability;
            let memory = gpu.memory_bytes as f64 / (1u64 << 30) as f64;
            format!(
                "cuda:{i}: {}, {memory:.1} GiB, compute capability {major}.{minor}",
                gpu.name
            )
        })
        .collect();
    match gpus.get(index) {
        Some(_) => Ok(listed.join("\n")),
        None if gpus.is_empty() => Err("the driver reports no GPUs".to_owned()),
        None => Err(format!(
            "no GPU has index {index}; available: {}",
            listed.join(", ")
        )),
    }
}

/// Starts the compute threads: `threads` in total, including the calling thread; one per core by
/// default.
///
/// The calling thread also computes. If it only waited, each operation would have to wake one more
/// thread, which makes small operations up to a third slower.
///
/// # Errors
///
/// The number is 0 or too large, or the threads are already running: a process starts them once,
/// before anything else.
pub fn start_threads(threads: Option<usize>) -> Result<(), Error> {
    if let Some(threads) = threads {
        check_threads(
            threads,
            std::thread::available_parallelism().map_or(1, usize::from),
        )?;
    }
    // No other threads exist yet.
    malloc_tuning::return_large_blocks();
    let builder = rayon::ThreadPoolBuilder::new().use_current_thread();
    let builder = match threads {
        Some(threads) => builder.num_threads(threads),
        None => builder,
    };
    let started = builder.build_global();
    started.map_err(|error| Error::Usage(format!("cannot start the compute threads: {error}")))
}

/// Rejects 0, which would start one thread per core, and counts so large that the thread stacks
/// exhaust the memory and abort the process.
fn check_threads(threads: usize, cores: usize) -> Result<(), Error> {
    let max_threads = (8 * cores).max(256);
    let refused = |problem: String| {
        Err(Error::Usage(format!(
            "--threads {threads}: {problem}; omit --threads to use one thread per core ({cores})"
        )))
    };
    match threads {
        0 => refused("at least one thread is required".to_string()),
        _ if threads > max_threads => refused(format!(
            "the maximum is {max_threads} threads, and more threads than cores are not faster"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_threads;

    #[test]
    fn zero_and_absurd_thread_counts_are_refused() {
        for (threads, cores) in [(1, 2), (256, 2), (8 * 192, 192)] {
            assert!(check_threads(threads, cores).is_ok(), "{threads}");
        }
        for (threads, cores) in [(0, 2), (257, 2), (8 * 192 + 1, 192), (usize::MAX, 2)] {
            let refused = check_threads(threads, cores).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("--threads {threads}: ")),
                "{refused}"
            );
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod cuda_tests {
    use super::*;

    #[test]
    fn an_invalid_gpu_index_lists_the_available_ones() {
        let gpus = [gpu::Gpu {
            name: "NVIDIA H200".to_owned(),
            memory_bytes: 150_754_820_096,
            compute_capability: (9, 0),
        }];
        let line = "cuda:0: NVIDIA H200, 140.4 GiB, compute capability 9.0";
        assert_eq!(describe_gpus(&gpus, 0).as_deref(), Ok(line));
        assert_eq!(
            describe_gpus(&gpus, 1),
            Err(format!("no GPU has index 1; available: {line}"))
        );
        assert!(describe_gpus(&[], 0).is_err());
    }
}
