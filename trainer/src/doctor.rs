//! Examines this machine: what there is, what is missing, and what to do about it.
//!
//! Nothing is only believed: CUDA's driver is asked for its GPUs, its libraries are loaded, a file
//! is made in the run's folder. Of the hub token only its presence is ever looked at.

use std::env;
use std::path::{Path, PathBuf};
use tooltune_rows::regular_file;

use crate::base_model::BaseModel;
use crate::config::{Config, Device};
use crate::device;
use crate::plan::size;
use crate::process::available_memory_bytes;
use crate::recipes::run_files::{check_writable, nearest_folder};

/// Free space below which a run has no room for its metrics and one small checkpoint.
const SCARCE_DISK_BYTES: u64 = 256 << 20;

/// How a finding is to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// In order.
    Good,
    /// Works, with something to know.
    Note,
    /// A run would fail; what to do about it.
    Bad(String),
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub subject: &'static str,
    /// What was found.
    pub found: String,
    /// How that is to be taken.
    pub verdict: Verdict,
}

impl Finding {
    fn good(subject: &'static str, found: String) -> Self {
        Self {
            subject,
            found,
            verdict: Verdict::Good,
        }
    }

    fn note(subject: &'static str, found: String) -> Self {
        Self {
            subject,
            found,
            verdict: Verdict::Note,
        }
    }

    fn bad(subject: &'static str, found: String, fix: impl Into<String>) -> Self {
        Self {
            subject,
            found,
            verdict: Verdict::Bad(fix.into()),
        }
    }
}

/// Looks at the machine, and at what `config` needs of it.
pub fn examine(config: Option<&Config>, device: Device) -> Vec<Finding> {
    let with_model = config.filter(|config| config.model.is_some());
    let run = with_model.map(|config| (config, open_model(config)));
    let mut findings = vec![processor(), memory(run.as_ref()), disk(run.as_ref())];
    findings.push(write_access(&output_dir(config)));
    findings.extend(cuda(device));
    findings.push(hub_token());
    if let Some((config, model)) = &run {
        findings.push(match model {
            Ok(model) => {
                let config = &model.config;
                Finding::good(
                    "model",
                    format!(
                        "{}: {}, {} blocks of {}, {} tokens",
                        model.path.display(),
                        config.family.files.model_type,
                        config.num_hidden_layers,
                        config.hidden_size,
                        config.vocab_size
                    ),
                )
            }
            Err(problem) => Finding::bad(
                "model",
                problem.clone(),
                "set model.model_name_or_path to a Hugging Face folder or a GGUF file; \
                 `scripts/fetch-models` fetches those of the examples",
            ),
        });
        findings.extend(config.eval.encoder.as_deref().map(encoder));
    }
    if let Some(config) = config {
        let retriever = config.retriever.as_ref();
        findings.extend(retriever.map(|retriever| encoder(&retriever.model_name_or_path)));
        findings.extend(data_files(config));
    }
    findings
}

type Run<'a> = (&'a Config, Result<BaseModel, String>);

fn open_model(config: &Config) -> Result<BaseModel, String> {
    BaseModel::of(config).map_err(|error| error.to_string())
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let features = features();
    let found = format!(
        "{} cores of {}, {}",
        cores,
        env::consts::ARCH,
        if features.is_empty() {
            "no vector extensions found".to_string()
        } else {
            features.join(" ")
        }
    );
    if env::consts::ARCH == "x86_64" && !(features.contains(&"avx2") && features.contains(&"fma")) {
        Finding::note(
            "processor",
            format!("{found}; without AVX2 and FMA all is slow"),
        )
    } else {
        Finding::good("processor", found)
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let all = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    all.into_iter()
        .filter_map(|(name, is_there)| is_there.then_some(name))
        .collect()
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    if std::arch::is_aarch64_feature_detected!("neon") {
        vec!["neon"]
    } else {
        Vec::new()
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

fn memory(run: Option<&Run>) -> Finding {
    let Some(available) = available_memory_bytes() else {
        return Finding::note(
            "memory",
            "the system does not tell what is available".to_string(),
        );
    };
    let found = format!("{} available", size(available));
    let Some((config, Ok(model))) = run else {
        return Finding::good("memory", found);
    };
    let Some(weights) = crate::plan::base_weights(config, &model.config) else {
        return Finding::good("memory", found);
    };
    let found = format!("{found}; the base weights take {}", size(weights));
    if weights < available {
        Finding::good("memory", found)
    } else {
        Finding::bad(
            "memory",
            found,
            "close other programs or take a smaller model",
        )
    }
}

fn output_dir(config: Option<&Config>) -> PathBuf {
    nearest_folder(config.map_or(Path::new("."), |config| &config.train.output_dir))
}

fn disk(run: Option<&Run>) -> Finding {
    let dir = output_dir(run.map(|(config, _)| *config));
    let Some(free) = free_bytes(&dir) else {
        return Finding::note("disk", format!("{}: free space is unknown", dir.display()));
    };
    let found = format!("{}: {} free", dir.display(), size(free));
    let needed = run.and_then(checkpoint_bytes);
    let found = match needed {
        Some(needed) => format!("{found}; checkpoints take {}", size(needed)),
        None => found,
    };
    if free > SCARCE_DISK_BYTES.max(needed.unwrap_or(0)) {
        Finding::good("disk", found)
    } else {
        Finding::bad(
            "disk",
            found,
            "free space, lower checkpoint.save_total_limit, or set train.output_dir elsewhere",
        )
    }
}

/// What the kept checkpoints and the one being written take together.
fn checkpoint_bytes((config, model): &Run) -> Option<u64> {
    let n_adapter = config
        .lora
        .n_parameters(&model.as_ref().ok()?.config)
        .ok()?;
    Some(crate::plan::n_checkpoints(config) * crate::plan::checkpoint_bytes(n_adapter))
}

#[cfg(unix)]
fn free_bytes(dir: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(dir).ok()?;
    Some(space.f_bavail * space.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

fn write_access(dir: &Path) -> Finding {
    match check_writable(dir) {
        Ok(dir) => Finding::good(
            "write access",
            format!("{}: files can be made", dir.display()),
        ),
        Err((dir, error)) => Finding::bad(
            "write access",
            format!("{}: {error}", dir.display()),
            "set train.output_dir to a folder that you may write to",
        ),
    }
}

/// What a GPU takes: missing only where a run wants one.
fn cuda(device: Device) -> Vec<Finding> {
    let (index, is_wanted) = match device {
        Device::Cuda(index) => (index, true),
        Device::Cpu => (0, false),
    };
    let needs = device::cuda_needs(index).into_iter();
    let mut findings: Vec<Finding> = needs
        .map(|need| match (need.found, is_wanted) {
            (Ok(found), _) => Finding::good(need.subject, found),
            (Err(problem), true) => Finding::bad(
                need.subject,
                problem,
                format!("{}, or use --device cpu", need.fix),
            ),
            (Err(problem), false) => {
                Finding::note(need.subject, format!("{problem}; the CPU needs none"))
            }
        })
        .collect();
    findings.extend(faster_libraries());
    findings
}

/// Whether the libraries are there that compute faster than what NVRTC compiles.
#[cfg(feature = "cuda")]
fn faster_libraries() -> Vec<Finding> {
    use tooltune_kernels::gpu::Library;
    let libraries = [
        (
            Library::CublasLt,
            "cuBLASLt",
            "the matrix products",
            "cublas",
        ),
        (Library::Cudnn, "cuDNN", "attention", "cudnn"),
    ];
    libraries
        .into_iter()
        .map(|(library, subject, work, package)| match library.find() {
            Some(path) => Finding::good(subject, path.display().to_string()),
            None => Finding::note(
                subject,
                format!(
                    "its library cannot be loaded; NVRTC compiles {work}, which is then slower: \
                     install the Python package nvidia-{package} and set LD_LIBRARY_PATH to its \
                     folder"
                ),
            ),
        })
        .collect()
}

#[cfg(not(feature = "cuda"))]
fn faster_libraries() -> Vec<Finding> {
    Vec::new()
}

/// Where a token lies, never what it is.
fn hub_token() -> Finding {
    let variable = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]
        .into_iter()
        .find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    let home = env::var_os("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/huggingface")));
    let file = env::var_os("HF_TOKEN_PATH")
        .map(PathBuf::from)
        .or(home.map(|h| h.join("token")));
    let found = match (variable, file.filter(|file| file.exists())) {
        (Some(name), _) => format!("present in the variable {name}"),
        (None, Some(file)) => format!("present in {}", file.display()),
        (None, None) => "none; only the download of gated models needs one".to_string(),
    };
    Finding::good("hub token", found)
}

fn encoder(dir: &Path) -> Finding {
    match crate::plan::encoder_shape(dir) {
        Ok(_) => Finding::good("encoder", dir.display().to_string()),
        Err(error) => Finding::bad(
            "encoder",
            error.to_string(),
            "set eval.encoder to an all-MiniLM-L6-v2 folder; `scripts/fetch-models` fetches it",
        ),
    }
}

fn data_files(config: &Config) -> Vec<Finding> {
    let files = config.data.train_paths().chain(&config.data.eval);
    files
        .map(
            |file| match regular_file::open(file).and_then(|file| file.metadata()) {
                Ok(metadata) => Finding::good(
                    "data",
                    format!("{}: {}", file.display(), size(metadata.len())),
                ),
                Err(error) => Finding::bad(
                    "data",
                    format!("{}: {error}", file.display()),
                    "check the paths in data.train and data.eval; they begin at the working folder",
                ),
            },
        )
        .collect()
}
