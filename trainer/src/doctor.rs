//! Checks this machine, and reports what is installed, what is missing and how to fix it.
//!
//! The checks use the resources themselves: the CUDA driver lists its GPUs, libraries are loaded, a
//! file is created in the run's folder. The hub token is an exception: only its presence is
//! checked.

use std::env;
use std::path::{Path, PathBuf};
use tooltune_disk::regular_file;

use crate::base_model::BaseModel;
use crate::config::{Config, Device};
use crate::device;
use crate::lora::LoraLayout as _;
use crate::plan::disk::{Disk, REMEDY};
use crate::plan::size;
use crate::process::available_memory_bytes;
use crate::recipes::run_files::{check_writable, nearest_folder};

/// Severity of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The check passed.
    Good,
    /// The check passed, with a remark.
    Note,
    /// A run would fail; contains the fix.
    Bad(String),
}

/// One check and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Subject of the check.
    pub subject: &'static str,
    /// Description of the result.
    pub detail: String,
    /// Severity.
    pub verdict: Verdict,
}

impl Finding {
    fn good(subject: &'static str, detail: String) -> Self {
        Self {
            subject,
            detail,
            verdict: Verdict::Good,
        }
    }

    fn note(subject: &'static str, detail: String) -> Self {
        Self {
            subject,
            detail,
            verdict: Verdict::Note,
        }
    }

    fn bad(subject: &'static str, detail: String, fix: impl Into<String>) -> Self {
        Self {
            subject,
            detail,
            verdict: Verdict::Bad(fix.into()),
        }
    }
}

/// Checks the machine and what `config` needs from it.
pub fn check_machine(config: Option<&Config>, device: Device) -> Vec<Finding> {
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
                 `scripts/fetch-models` downloads the models of the examples",
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
    BaseModel::from_config(config).map_err(|error| error.to_string())
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let features = features();
    let detail = format!(
        "{} cores, {}, {}",
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
            format!("{detail}; computing is slow without AVX2 and FMA"),
        )
    } else {
        Finding::good("processor", detail)
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
        .filter_map(|(name, is_detected)| is_detected.then_some(name))
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
            "the system does not report available memory".to_string(),
        );
    };
    let detail = format!("{} available", size(available));
    let Some((config, Ok(model))) = run else {
        return Finding::good("memory", detail);
    };
    let Some(weights) = crate::plan::base_weights(config, model) else {
        return Finding::good("memory", detail);
    };
    let detail = format!("{detail}; the base weights need {}", size(weights));
    if weights < available {
        Finding::good("memory", detail)
    } else {
        Finding::bad(
            "memory",
            detail,
            "close other programs or use a smaller model",
        )
    }
}

fn output_dir(config: Option<&Config>) -> PathBuf {
    nearest_folder(config.map_or(Path::new("."), |config| &config.train.output_dir))
}

fn disk(run: Option<&Run>) -> Finding {
    let output_dir = run.map_or(Path::new("."), |(config, _)| &config.train.output_dir);
    let disk = Disk::measure(output_dir, run.and_then(checkpoint_bytes));
    match (disk.free, disk.is_scarce()) {
        (None, _) => Finding::note("disk", disk.describe()),
        (Some(_), false) => Finding::good("disk", disk.describe()),
        (Some(_), true) => Finding::bad("disk", disk.describe(), REMEDY),
    }
}

/// Bytes of all checkpoints to keep, plus one being written.
fn checkpoint_bytes((config, model): &Run) -> Option<u64> {
    let n_adapter = config
        .lora
        .n_parameters(&model.as_ref().ok()?.config)
        .ok()?;
    Some(crate::plan::n_checkpoints(config) * crate::plan::checkpoint_bytes(n_adapter))
}

/// Bytes of the sums that a process of a run exchanges per step: 64 bits per trained value.
/// `None` without a readable model.
pub fn gradient_bytes(config: &Config) -> Option<u64> {
    config.model.as_ref()?;
    let model = open_model(config).ok()?;
    let n_values = config.lora.n_parameters(&model.config).ok()?;
    Some(8 * n_values as u64)
}

fn write_access(dir: &Path) -> Finding {
    match check_writable(dir) {
        Ok(dir) => Finding::good("write access", format!("{}: writable", dir.display())),
        Err((dir, error)) => Finding::bad(
            "write access",
            format!("{}: {error}", dir.display()),
            "set train.output_dir to a folder that you can write to",
        ),
    }
}

/// Checks the GPU requirements; a missing one is an error only if the run uses a GPU.
fn cuda(device: Device) -> Vec<Finding> {
    let (index, is_wanted) = match device {
        Device::Cuda(index) => (index, true),
        Device::Cpu => (0, false),
    };
    let needs = device::cuda_needs(index).into_iter();
    let mut findings: Vec<Finding> = needs
        .map(|need| match (need.status, is_wanted) {
            (Ok(detail), _) => Finding::good(need.subject, detail),
            (Err(problem), true) => Finding::bad(
                need.subject,
                problem,
                format!("{}, or use --device cpu", need.fix),
            ),
            (Err(problem), false) => {
                Finding::note(need.subject, format!("{problem}; not needed on the CPU"))
            }
        })
        .collect();
    findings.extend(device::check_compiler().map(|compiled| match compiled {
        Ok(detail) => Finding::good("kernels", detail),
        Err(problem) if is_wanted => Finding::bad(
            "kernels",
            format!("NVRTC cannot compile a kernel: {problem}"),
            "install NVRTC and the CUDA headers with the same version, or use --device cpu",
        ),
        Err(problem) => Finding::note(
            "kernels",
            format!("NVRTC cannot compile a kernel: {problem}; not needed on the CPU"),
        ),
    }));
    let libraries = device::optional_libraries().into_iter();
    findings.extend(libraries.map(|library| match library.status {
        Ok(detail) => Finding::good(library.subject, detail),
        Err(problem) => Finding::note(library.subject, problem),
    }));
    findings
}

/// Reports where the hub token is set, but never its value.
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
    let detail = match (variable, file.filter(|file| file.exists())) {
        (Some(name), _) => format!("set in the variable {name}"),
        (None, Some(file)) => format!("set in {}", file.display()),
        (None, None) => "not set; only gated models need one".to_string(),
    };
    Finding::good("hub token", detail)
}

fn encoder(dir: &Path) -> Finding {
    match crate::plan::encoder_shape(dir) {
        Ok(_) => Finding::good("encoder", dir.display().to_string()),
        Err(error) => Finding::bad(
            "encoder",
            error.to_string(),
            "set eval.encoder to an all-MiniLM-L6-v2 folder; `scripts/fetch-models` downloads it",
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
                    "check the paths in data.train and data.eval; they are relative to the \
                     working directory",
                ),
            },
        )
        .collect()
}
