//! What vLLM, SGLang and llama.cpp's converter read of an adapter.

use super::peft::{ALL_LINEAR, divisor};
use super::{HEAD, Verdict};
use crate::adapter::scaling::{ModuleScaling, Pair, Scalings, pairs};
use crate::adapter::{Adapter, PeftConfig, TargetModules};
use crate::error::CheckpointError;
use crate::families::is_in_gguf;

/// Values that vLLM's `--max-lora-rank` takes.
const VLLM_RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];
/// `--max-lora-rank` where it is not given.
pub(super) const VLLM_DEFAULT_RANK: usize = 16;
/// Last parts of the module names to which vLLM grants factors in these models.
const VLLM_MODULES: [&str; 15] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
    HEAD,
];

/// An adapter as vLLM loads it.
#[derive(Debug, Clone, PartialEq)]
pub struct VllmLoad {
    /// Every module that has tensors, with one scaling for all.
    pub scalings: Scalings,
    /// The `--max-lora-rank` of the server, to which the factors are filled up with zeros.
    pub max_lora_rank: usize,
}

/// Rank and scaling of every module by vLLM's rules: the tensors decide which modules, and
/// `r`, `lora_alpha` and `use_rslora` give one scaling for all; patterns are passed over.
///
/// `max_lora_rank` is the server's; with `None`, the smallest that holds the adapter. vLLM rounds
/// the factors to the format of the base model, which is not done here.
///
/// # Errors
///
/// - DoRA or whole weights
/// - a rank above `max_lora_rank`, or above the largest that vLLM has
/// - a module that is no linear layer of these models
/// - a tensor is no factor or lacks its other half
///
/// # Source
///
/// vllm-project/vllm, `lora/peft_helper.py`, `lora/lora_model.py`, `config/lora.py`.
pub fn vllm_rules(
    adapter: &Adapter,
    max_lora_rank: Option<usize>,
) -> Result<VllmLoad, CheckpointError> {
    factors_alone(adapter, "vLLM")?;
    let pairs = pairs(&adapter.tensors)?;
    let rank = largest_rank(adapter, &pairs);
    let refused = |problem, fix| CheckpointError::RefusedBy {
        consumer: "vLLM",
        problem,
        fix,
    };
    let Some(needed) = vllm_rank(rank) else {
        let largest = VLLM_RANKS[VLLM_RANKS.len() - 1];
        let fix = format!("train with a rank of at most {largest}");
        return Err(refused(format!("rank {rank} is above {largest}"), fix));
    };
    let max_lora_rank = max_lora_rank.unwrap_or(needed);
    if rank > max_lora_rank {
        let problem = format!("rank {rank} is above its max_lora_rank of {max_lora_rank}");
        return Err(refused(
            problem,
            format!("serve with --max-lora-rank {needed}"),
        ));
    }
    if let Some(pair) = pairs.iter().find(|pair| !vllm_has(pair.module)) {
        let problem = format!("{} is none of its linear layers", pair.module);
        let fix = "train without that target".to_owned();
        return Err(refused(problem, fix));
    }
    let scaling = vllm_scaling(&adapter.config);
    Ok(VllmLoad {
        scalings: for_all(&pairs, |_| scaling),
        max_lora_rank,
    })
}

/// One number for the whole adapter.
pub(super) fn vllm_scaling(config: &PeftConfig) -> f64 {
    config.lora_alpha / divisor(config, config.r)
}

pub(super) fn vllm_has(module: &str) -> bool {
    let last = module.rsplit('.').next().unwrap_or_default();
    VLLM_MODULES.contains(&last)
}

/// The smallest `--max-lora-rank` that holds `rank`.
pub(super) fn vllm_rank(rank: usize) -> Option<usize> {
    VLLM_RANKS.iter().copied().find(|max| *max >= rank)
}

/// The config's rank or that of any tensor, whichever is larger.
pub(super) fn largest_rank(adapter: &Adapter, pairs: &[Pair<'_>]) -> usize {
    let ranks = pairs.iter().map(Pair::rank);
    ranks.max().unwrap_or(0).max(adapter.config.r)
}

/// Rank and scaling of every module by SGLang's rules: `lora_alpha / r`, whatever else the
/// config says.
///
/// # Errors
///
/// DoRA or whole weights; a tensor is no factor or lacks its other half.
///
/// # Source
///
/// sgl-project/sglang, issue 40835.
pub fn sglang_rules(adapter: &Adapter) -> Result<Scalings, CheckpointError> {
    factors_alone(adapter, "SGLang")?;
    let scaling = sglang_scaling(&adapter.config);
    Ok(for_all(&pairs(&adapter.tensors)?, |_| scaling))
}

/// Refuses an adapter that is more than low-rank factors.
fn factors_alone(adapter: &Adapter, consumer: &'static str) -> Result<(), CheckpointError> {
    match adapter.beside_factors() {
        None => Ok(()),
        Some(what) => Err(CheckpointError::RefusedBy {
            consumer,
            problem: format!("it loads low-rank factors alone, and the adapter has {what}"),
            fix: "export the merged model: --to merged, or --to gguf --merged".to_owned(),
        }),
    }
}

pub(super) fn sglang_scaling(config: &PeftConfig) -> f64 {
    config.lora_alpha / config.r as f64
}

/// What SGLang makes of the form of the targets: a list of names, or "all-linear", and nothing else.
///
/// # Source
///
/// sgl-project/sglang, `srt/lora/utils.py`, `get_normalized_target_modules`; "all-linear" since its
/// pull request 21439.
pub(super) fn sglang_targets(config: &PeftConfig) -> Verdict {
    match &config.target_modules {
        Some(TargetModules::Names(names)) if !names.is_empty() => Verdict::Ok,
        Some(TargetModules::Pattern(all)) if all == ALL_LINEAR => {
            Verdict::OkWith("since March 2026, and before with --lora-target-modules".to_owned())
        }
        _ => Verdict::Refused("it takes a list of names".to_owned()),
    }
}

/// Whether the config has a rank or an alpha of some modules, which new versions of SGLang refuse,
/// whatever modules they match.
///
/// # Source
///
/// sgl-project/sglang, `srt/lora/lora_config.py`, `_pattern_overrides`.
pub(super) fn sglang_overrides(config: &PeftConfig) -> bool {
    let ranks = config.rank_pattern.0.iter();
    let alphas = config.alpha_pattern.0.iter();
    ranks.map(|(_, rank)| *rank).any(|rank| rank != config.r)
        || alphas
            .map(|(_, alpha)| *alpha)
            .any(|alpha| alpha != config.lora_alpha)
}

/// Rank and scaling of every module in llama.cpp after its own `convert_lora_to_gguf.py`:
/// `lora_alpha` by the rank of the tensors, and 1 where `lora_alpha` is 0.
///
/// Files of [`crate::adapter::write_gguf_adapter`] carry every scaling instead.
///
/// # Errors
///
/// DoRA or whole weights, a module without a name in GGUF, or a tensor that is no factor or lacks its other half.
///
/// # Source
///
/// ggml-org/llama.cpp, `convert_lora_to_gguf.py` and `src/llama-adapter.h`, `get_scale`.
pub fn converter_rules(adapter: &Adapter) -> Result<Scalings, CheckpointError> {
    factors_alone(adapter, "llama.cpp's converter")?;
    let pairs = pairs(&adapter.tensors)?;
    if let Some(pair) = pairs.iter().find(|pair| !is_in_gguf(pair.module)) {
        return Err(CheckpointError::RefusedBy {
            consumer: "llama.cpp's converter",
            problem: format!("{} has no name in GGUF", pair.module),
            fix: "train without that target".to_owned(),
        });
    }
    Ok(for_all(&pairs, |pair| {
        converter_scaling(&adapter.config, pair.rank())
    }))
}

pub(super) fn converter_scaling(config: &PeftConfig, rank: usize) -> f64 {
    if config.lora_alpha == 0.0 {
        1.0
    } else {
        config.lora_alpha / rank as f64
    }
}

fn for_all(pairs: &[Pair<'_>], scaling: impl Fn(&Pair<'_>) -> f64) -> Scalings {
    let scaled = pairs.iter().map(|pair| {
        let rank = pair.rank();
        let scaling = scaling(pair);
        (pair.module.to_owned(), ModuleScaling { rank, scaling })
    });
    scaled.collect()
}
