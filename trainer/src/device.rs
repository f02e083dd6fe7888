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
    warn_of_slower_kernels();
    if let Some(folder) = cache_folder() {
        gpu::cache_kernels_in(&folder.join("kernels"));
    }
    Ok(Device::cuda(index))
}

/// Warns once if a library is missing that this run would be faster with. A library that the user
/// switched off is not missing.
#[cfg(feature = "cuda")]
fn warn_of_slower_kernels() {
    static WARNED: std::sync::Once = std::sync::Once::new();
    WARNED.call_once(|| {
        for library in optional_libraries() {
            if let (Err(problem), Some(switch)) = (library.status, library.switch)
                && std::env::var(switch).as_deref() != Ok("0")
            {
                tracing::warn!("{}: {problem}", library.subject);
            }
        }
        if let Some(problem) = newer_compiler() {
            tracing::warn!("NVRTC: {problem}");
        }
    });
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
    needs.push(Need {
        subject: "NVRTC",
        status: describe_library(gpu::Library::Nvrtc)
            .ok_or("libnvrtc.so, the CUDA kernel compiler, cannot be loaded".to_owned()),
        fix: "install the Python package nvidia-cuda-nvrtc into the environment of tooltune, or the \
              CUDA toolkit",
    });
    needs.push(Need {
        subject: "CUDA headers",
        status: gpu::headers()
            .map(|headers| describe_headers(&headers))
            .ok_or("the CUDA headers (cuda_fp16.h and others) are missing".to_owned()),
        fix: "install the Python packages nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl \
              into the environment of tooltune, or the CUDA toolkit, or set CUDA_PATH to the folder \
              above `include`",
    });
    needs
}

/// "13.0, /folder/libnvrtc.so.13"; `None` if the library cannot be loaded.
#[cfg(feature = "cuda")]
fn describe_library(library: gpu::Library) -> Option<String> {
    let path = library.find()?;
    let version = library.version().unwrap_or("unknown version".to_owned());
    Some(format!("{version}, {}", path.display()))
}

#[cfg(feature = "cuda")]
fn describe_headers(headers: &tooltune_kernels::nvidia::Headers) -> String {
    let version = match headers.version {
        Some((major, minor)) => format!("{major}.{minor}"),
        None => "unknown version".to_owned(),
    };
    format!("{version}, {}", headers.toolkit.join("include").display())
}

/// Sets the path of the CUDA headers for Burn's backend. Call it before the program has other
/// threads that run.
pub fn locate_cuda_headers() {
    #[cfg(feature = "cuda")]
    gpu::set_cuda_path();
}

/// A library that CUDA runs are faster with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionalLibrary {
    /// Name of the library.
    pub subject: &'static str,
    /// Its version and path, or what is missing, the effect, and how to install it.
    pub status: Result<String, String>,
    /// The environment variable that switches the library off for every run, if it is used by
    /// every run.
    pub switch: Option<&'static str>,
}

/// Looks for all optional libraries; none in a build without CUDA.
#[cfg(not(feature = "cuda"))]
pub fn optional_libraries() -> Vec<OptionalLibrary> {
    Vec::new()
}

/// Looks for all optional libraries; none in a build without CUDA.
#[cfg(feature = "cuda")]
pub fn optional_libraries() -> Vec<OptionalLibrary> {
    use gpu::Library;
    let slower = "matmuls use kernels that are several times slower";
    let on_hosts = "the hosts of several GPUs add gradients";
    let attention = "attention uses slower kernels";
    let install = |effect: &str, package: &str| {
        format!(
            "not found: {effect}; install the Python package {package} into the environment of \
             tooltune"
        )
    };
    let recent = |found: String| match gpu::is_cudnn_recent() {
        true => Ok(found),
        false => Err(format!(
            "{found}: older than {}, {attention}; install a newer nvidia-cudnn-cu13",
            gpu::OLDEST_CUDNN
        )),
    };
    vec![
        OptionalLibrary {
            subject: "cuBLASLt",
            status: describe_library(Library::CublasLt).ok_or(install(slower, "nvidia-cublas")),
            switch: Some("TOOLTUNE_CUBLASLT"),
        },
        OptionalLibrary {
            subject: "cuDNN",
            status: describe_library(Library::Cudnn)
                .ok_or(install(attention, "nvidia-cudnn-cu13"))
                .and_then(recent),
            switch: Some("TOOLTUNE_CUDNN"),
        },
        OptionalLibrary {
            subject: "NCCL",
            status: describe_library(Library::Nccl).ok_or(install(on_hosts, "nvidia-nccl-cu13")),
            switch: None,
        },
    ]
}

/// The problem of a compiler that is newer than the driver; `None` if it is not, or if there is no
/// compiler or no driver.
#[cfg(feature = "cuda")]
fn newer_compiler() -> Option<String> {
    let driver = gpu::driver().ok()?.cuda_version;
    describe_newer_compiler(gpu::compiler_version()?, driver)
}

#[cfg(feature = "cuda")]
fn describe_newer_compiler(compiler: (u32, u32), driver: (i32, i32)) -> Option<String> {
    let [major, minor] = [driver.0, driver.1].map(|number| u32::try_from(number).unwrap_or(0));
    (compiler > (major, minor)).then(|| {
        format!(
            "version {}.{} is newer than the driver (CUDA {major}.{minor}), which may refuse its \
             kernels; install nvidia-cuda-nvrtc, -runtime, -crt and -cccl {major}.{minor}, or a \
             newer driver",
            compiler.0, compiler.1
        )
    })
}

/// Compiles a small kernel, to check NVRTC and its headers; `None` in a build without CUDA, or if
/// one of them is missing.
pub fn check_compiler() -> Option<Result<String, String>> {
    #[cfg(feature = "cuda")]
    return compiled_kernel();
    #[cfg(not(feature = "cuda"))]
    None
}

#[cfg(feature = "cuda")]
fn compiled_kernel() -> Option<Result<String, String>> {
    gpu::compiler_version()?;
    gpu::headers()?;
    let compiled = gpu::check_compiler().map(|()| match newer_compiler() {
        None => "a kernel compiles".to_owned(),
        Some(problem) => format!("a kernel compiles, but NVRTC {problem}"),
    });
    Some(compiled)
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

    #[test]
    fn only_a_compiler_newer_than_the_driver_is_a_problem() {
        for compiler in [(12, 9), (13, 0)] {
            assert_eq!(describe_newer_compiler(compiler, (13, 0)), None);
        }
        let problem = describe_newer_compiler((13, 2), (13, 0)).expect("newer");
        assert!(problem.starts_with("version 13.2 is newer"), "{problem}");
        assert!(describe_newer_compiler((13, 0), (12, 9)).is_some());
    }
}
