//! How vLLM, SGLang and llama.cpp's converter load an adapter.

use super::peft::{ALL_LINEAR, divisor};
use super::{HEAD, Verdict};
use crate::adapter::scaling::{ModuleScaling, Pair, Scalings, pairs};
use crate::adapter::{Adapter, PeftConfig, TargetModules};
use crate::error::CheckpointError;

/// Values that vLLM accepts for `--max-lora-rank`.
const VLLM_RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];
/// vLLM's default for `--max-lora-rank`.
pub(super) const VLLM_DEFAULT_RANK: usize = 16;
/// Last path components of the modules to which vLLM applies factors in these models.
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
    /// Scaling of every module that has tensors; the same for all of them.
    pub scalings: Scalings,
    /// The server's `--max-lora-rank`; factors are zero-padded to it.
    pub max_lora_rank: usize,
}

/// Rank and scaling of every module by vLLM's rules. The tensors determine the modules; `r`,
/// `lora_alpha` and `use_rslora` determine one scaling for all. Patterns are ignored.
///
/// `max_lora_rank` is the server's option; `None` uses the smallest value that fits the adapter.
/// vLLM also rounds the factors to the data type of the base model, which this function does not.
///
/// # Errors
///
/// - The adapter has DoRA magnitudes or fully trained weights.
/// - A rank exceeds `max_lora_rank`, or the largest value that vLLM accepts.
/// - A module is not a linear layer of these models.
/// - A tensor is not a LoRA factor or lacks its other half.
///
/// # Source
///
/// vllm-project/vllm, `lora/peft_helper.py`, `lora/lora_model.py`, `config/lora.py`.
pub fn vllm_rules(
    adapter: &Adapter,
    max_lora_rank: Option<usize>,
) -> Result<VllmLoad, CheckpointError> {
    require_only_factors(adapter, "vLLM")?;
    let pairs = pairs(&adapter.tensors)?;
    let rank = largest_rank(adapter, &pairs);
    let refused = |problem, fix| CheckpointError::RefusedBy {
        consumer: "vLLM",
        problem,
        fix,
    };
    let Some(required_rank) = vllm_rank(rank) else {
        let largest = VLLM_RANKS[VLLM_RANKS.len() - 1];
        let fix = format!("train with a rank of at most {largest}");
        return Err(refused(format!("rank {rank} exceeds {largest}"), fix));
    };
    let max_lora_rank = max_lora_rank.unwrap_or(required_rank);
    if rank > max_lora_rank {
        let problem = format!("rank {rank} exceeds its max_lora_rank of {max_lora_rank}");
        return Err(refused(
            problem,
            format!("serve with --max-lora-rank {required_rank}"),
        ));
    }
    if let Some(pair) = pairs.iter().find(|pair| !vllm_has(pair.module)) {
        let problem = format!("{} is not one of its linear layers", pair.module);
        let fix = "train without that target".to_owned();
        return Err(refused(problem, fix));
    }
    let scaling = vllm_scaling(&adapter.config);
    Ok(VllmLoad {
        scalings: scalings_of(&pairs, |_| scaling),
        max_lora_rank,
    })
}

/// The scaling of the whole adapter.
pub(super) fn vllm_scaling(config: &PeftConfig) -> f64 {
    config.lora_alpha / divisor(config, config.r)
}

pub(super) fn vllm_has(module: &str) -> bool {
    let name = module.rsplit('.').next().unwrap_or_default();
    VLLM_MODULES.contains(&name)
}

/// Whether the module belongs to a linear-attention layer.
pub(super) fn is_linear_attention(module: &str) -> bool {
    module.contains(".linear_attn.")
}

/// Whether SGLang drops the factors of this module, with only a warning in its log. SGLang fuses
/// `in_proj_a` and `in_proj_b` into `in_proj_ba`, which does not support adapters.
///
/// # Source
///
/// sgl-project/sglang, `srt/lora/utils.py`, `_KNOWN_LORA_TARGET_MODULES`, and pull request 31522.
pub(super) fn sglang_drops(module: &str) -> bool {
    is_linear_attention(module)
        && (module.ends_with(".in_proj_a") || module.ends_with(".in_proj_b"))
}

/// The smallest `--max-lora-rank` that fits `rank`.
pub(super) fn vllm_rank(rank: usize) -> Option<usize> {
    VLLM_RANKS.iter().copied().find(|max| *max >= rank)
}

/// The largest rank in the config and the tensors.
pub(super) fn largest_rank(adapter: &Adapter, pairs: &[Pair<'_>]) -> usize {
    let ranks = pairs.iter().map(Pair::rank);
    ranks.max().unwrap_or(0).max(adapter.config.r)
}

/// Refuses an adapter that has more than low-rank factors.
fn require_only_factors(adapter: &Adapter, consumer: &'static str) -> Result<(), CheckpointError> {
    match adapter.non_lora_parts() {
        None => Ok(()),
        Some(parts) => Err(CheckpointError::RefusedBy {
            consumer,
            problem: format!("it loads only low-rank factors, but the adapter has {parts}"),
            fix: "export the merged model: --to merged, or --to gguf --merged".to_owned(),
        }),
    }
}

/// The scaling of every module in SGLang, regardless of other fields.
///
/// # Source
///
/// sgl-project/sglang, issue 40835.
pub(super) fn sglang_scaling(config: &PeftConfig) -> f64 {
    config.lora_alpha / config.r as f64
}

/// SGLang's verdict on the type of `target_modules`: it accepts a list of names or "all-linear".
///
/// # Source
///
/// sgl-project/sglang, `srt/lora/utils.py`, `get_normalized_target_modules`; "all-linear" since its
/// pull request 21439.
pub(super) fn sglang_targets(config: &PeftConfig) -> Verdict {
    match &config.target_modules {
        Some(TargetModules::Names(names)) if !names.is_empty() => Verdict::Ok,
        Some(TargetModules::Pattern(all)) if all == ALL_LINEAR => Verdict::OkWith(
            "since March 2026; earlier versions need --lora-target-modules".to_owned(),
        ),
        _ => Verdict::Refused("it needs a list of names".to_owned()),
    }
}

/// Whether the config sets a rank or an alpha for some modules. New versions of SGLang refuse this
/// even if the patterns match no module.
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

/// The scaling of a module in llama.cpp if the adapter is converted by its
/// `convert_lora_to_gguf.py`: `lora_alpha` divided by the rank of the tensors, or 1 if `lora_alpha`
/// is 0.
///
/// Files written by [`crate::adapter::write_gguf_adapter`] preserve every scaling instead.
///
/// # Source
///
/// ggml-org/llama.cpp, `convert_lora_to_gguf.py` and `src/llama-adapter.h`, `get_scale`.
pub(super) fn converter_scaling(config: &PeftConfig, rank: usize) -> f64 {
    if config.lora_alpha == 0.0 {
        1.0
    } else {
        config.lora_alpha / rank as f64
    }
}

fn scalings_of(pairs: &[Pair<'_>], scaling: impl Fn(&Pair<'_>) -> f64) -> Scalings {
    let scaled = pairs.iter().map(|pair| {
        let rank = pair.rank();
        let scaling = scaling(pair);
        (pair.module.to_owned(), ModuleScaling { rank, scaling })
    });
    scaled.collect()
}
