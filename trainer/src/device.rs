//! The device that a command computes on, and the threads of the CPU; the only place that opens one.
//!
//! `Device::default()` is never used: in a build with CUDA it takes the first GPU even where there
//! is none. Burn panics in a thread of its own where a library of CUDA is missing; so everything
//! that a GPU takes is looked at first, by [`cuda_needs`], which `tooltune doctor` shows too.

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

/// Supervised rows whose logits are alive at a time on a CPU: 128 rows of 49,152 are 25 MB.
const LOSS_ROWS_ON_CPU: usize = 128;

/// The same on a GPU, which fewer rows would leave waiting for memory; 1,024 of 128,256 in bf16 are
/// 263 MB.
pub(crate) const LOSS_ROWS_ON_GPU: usize = 1024;

/// Supervised rows whose logits a step on the device has alive at a time.
pub fn loss_rows(device: &Device) -> usize {
    if is_cpu(device) {
        LOSS_ROWS_ON_CPU
    } else {
        LOSS_ROWS_ON_GPU
    }
}

/// Memory that is free on the device now, in bytes; `None` where the system or the driver does not tell.
pub fn free_memory_bytes(device: &Device) -> Option<u64> {
    if is_cpu(device) {
        return available_memory_bytes();
    }
    #[cfg(feature = "cuda")]
    return gpu::free_memory_bytes(device);
    #[cfg(not(feature = "cuda"))]
    None
}

/// Threads that make what a run will need of the device; dropped, they end.
#[derive(Debug, Default)]
pub struct PlansAhead {
    #[cfg(feature = "cuda")]
    _threads: Option<gpu::PlansAhead>,
}

/// Begins to make the plans for attention in bf16 that micro-batches need, of each the lengths of its
/// documents; on a CPU there are none.
///
/// - `heads`: query heads, key/value heads, and the elements of a head
pub fn plan_attention(
    device: &Device,
    heads: [usize; 3],
    causalities: Vec<Causality>,
    micro_batches: impl IntoIterator<Item = Vec<usize>>,
) -> PlansAhead {
    if is_cpu(device) {
        return PlansAhead::default();
    }
    #[cfg(feature = "cuda")]
    {
        let [heads, groups, size] = heads;
        let layers = gpu::AttentionLayers {
            heads: [heads, groups],
            size,
            causalities,
        };
        PlansAhead {
            _threads: gpu::PlansAhead::begin(device, &layers, micro_batches),
        }
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (heads, causalities, micro_batches);
        PlansAhead::default()
    }
}

/// One thing that computing on a GPU takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// What it is.
    pub subject: &'static str,
    /// What was found, or what is wrong.
    pub found: Result<String, String>,
    /// What to do where it is wrong.
    pub fix: &'static str,
}

/// Opens the device of a config or of `--device`.
///
/// # Errors
///
/// CUDA is asked for in a build without it, or on a machine that lacks one of [`cuda_needs`].
pub fn open(name: DeviceName) -> Result<Device, Error> {
    match name {
        DeviceName::Cpu => Ok(Device::flex()),
        DeviceName::Cuda(index) => open_cuda(index),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(index: usize) -> Result<Device, Error> {
    for need in cuda_needs(index) {
        need.found
            .map_err(|problem| refusal(index, &problem, need.fix))?;
    }
    if let Some(folder) = cache_folder() {
        gpu::keep_kernels_in(&folder.join("kernels"));
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
const NOT_BUILT: &str = "this build has no CUDA";
#[cfg(not(feature = "cuda"))]
const BUILD: &str = "build with `cargo build --release --features cuda`";

/// What the GPU with this index takes, in the order in which it is needed; what cannot be looked
/// at because an earlier one is missing is left out.
#[cfg(not(feature = "cuda"))]
pub fn cuda_needs(_: usize) -> Vec<Need> {
    vec![Need {
        subject: "build",
        found: Err(NOT_BUILT.to_owned()),
        fix: BUILD,
    }]
}

/// What the GPU with this index takes, in the order in which it is needed; what cannot be looked
/// at because an earlier one is missing is left out.
#[cfg(feature = "cuda")]
pub fn cuda_needs(index: usize) -> Vec<Need> {
    let driver = gpu::driver();
    let mut needs = vec![Need {
        subject: "NVIDIA driver",
        found: driver
            .as_ref()
            .map(describe_driver)
            .map_err(describe_problem),
        fix: "install the NVIDIA driver (inside a container, start it with the GPU), or add the \
               folder of libcuda.so.1 to LD_LIBRARY_PATH",
    }];
    needs.extend(driver.ok().map(|driver| Need {
        subject: "GPU",
        found: describe_gpus(&driver.gpus, index),
        fix: "take the index of one of these GPUs; CUDA_VISIBLE_DEVICES may hide others",
    }));
    let nvrtc = gpu::Library::Nvrtc.find();
    needs.push(Need {
        subject: "NVRTC",
        found: nvrtc
            .map(|path| path.display().to_string())
            .ok_or("libnvrtc.so, the compiler of the kernels, cannot be loaded".to_owned()),
        fix: "install the CUDA toolkit or the Python package nvidia-cuda-nvrtc, and add its \
               folder to LD_LIBRARY_PATH (`scripts/gpu/environment` finds both)",
    });
    needs.push(Need {
        subject: "CUDA headers",
        found: gpu::headers()
            .map(|folder| folder.display().to_string())
            .ok_or(
                "the headers that the kernels include, cuda_fp16.h and others, are missing"
                    .to_owned(),
            ),
        fix: "install the CUDA toolkit or the Python packages nvidia-cuda-runtime and \
               nvidia-cuda-crt, and set CUDA_PATH to the folder above `include` (`scripts/gpu/environment` finds both)",
    });
    needs
}

#[cfg(feature = "cuda")]
fn describe_driver(driver: &gpu::Driver) -> String {
    let (major, minor) = driver.cuda_version;
    let release = gpu::driver_release().unwrap_or("of unknown release".to_owned());
    format!("{release}, up to CUDA {major}.{minor}")
}

#[cfg(feature = "cuda")]
fn describe_problem(problem: &gpu::DriverProblem) -> String {
    match problem {
        gpu::DriverProblem::Missing => {
            "there is no NVIDIA driver: libcuda.so.1 cannot be loaded".to_owned()
        }
        gpu::DriverProblem::Refused(answer) => format!("the NVIDIA driver answers {answer}"),
    }
}

/// All GPUs, if `index` is one of them.
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
        None if gpus.is_empty() => Err("the driver shows no GPU".to_owned()),
        None => Err(format!("there is no GPU {index}: {}", listed.join(", "))),
    }
}

/// Starts the threads that compute: this one and others beside it, `threads` in all, or one for
/// each core.
///
/// The calling thread takes part. If it handed all work to others, each operation would wake one
/// more thread and wait for it, which costs small ones up to a third of their time.
///
/// # Errors
///
/// No threads or too many, or threads that compute already: a process starts them once, before
/// anything else.
pub fn start_threads(threads: Option<usize>) -> Result<(), Error> {
    if let Some(threads) = threads {
        check_threads(
            threads,
            std::thread::available_parallelism().map_or(1, usize::from),
        )?;
    }
    // There are no other threads yet.
    malloc_tuning::give_large_blocks_back();
    let builder = rayon::ThreadPoolBuilder::new().use_current_thread();
    let builder = match threads {
        Some(threads) => builder.num_threads(threads),
        None => builder,
    };
    let started = builder.build_global();
    started.map_err(|error| Error::Usage(format!("threads to compute with: {error}")))
}

/// Refuses a number of threads that was not meant: 0, which would start one for each core, and so
/// many that the system runs out of room for their stacks, which ends the process.
fn check_threads(threads: usize, cores: usize) -> Result<(), Error> {
    let most = (8 * cores).max(256);
    let refused = |problem: String| {
        Err(Error::Usage(format!(
            "--threads {threads}: {problem}; leave it out for a thread on each of the {cores} cores"
        )))
    };
    match threads {
        0 => refused("at least one thread computes".to_string()),
        _ if threads > most => refused(format!(
            "at most {most} threads are started here, and more than there are cores make nothing \
             faster"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_threads;

    #[test]
    fn no_threads_and_more_than_any_machine_has_use_for_are_refused() {
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
    fn an_index_without_a_gpu_is_answered_with_those_that_are_there() {
        let gpus = [gpu::Gpu {
            name: "NVIDIA H200".to_owned(),
            memory_bytes: 150_754_820_096,
            compute_capability: (9, 0),
        }];
        let line = "cuda:0: NVIDIA H200, 140.4 GiB, compute capability 9.0";
        assert_eq!(describe_gpus(&gpus, 0).as_deref(), Ok(line));
        assert_eq!(
            describe_gpus(&gpus, 1),
            Err(format!("there is no GPU 1: {line}"))
        );
        assert!(describe_gpus(&[], 0).is_err());
    }
}
