//! Reports which features an adapter uses, and whether each program that loads adapters supports
//! them.
//!
//! Each row is one feature. Its verdicts apply the rules of the programs to this adapter with only
//! that feature enabled, so a pattern without effect does not lower a verdict. The last row is the
//! verdict on the whole adapter.

use super::servers::{
    VLLM_DEFAULT_RANK, converter_scaling, is_linear_attention, largest_rank, sglang_drops,
    sglang_overrides, sglang_scaling, sglang_targets, vllm_has, vllm_rank, vllm_scaling,
};
use super::verdict::{SCALING_TOLERANCE, Verdict};
use super::{HEAD, PeftRules, peft_rules};
use crate::adapter::scaling::pairs;
use crate::adapter::{Adapter, PeftConfig, TargetModules};
use crate::error::CheckpointError;
use crate::families::is_in_gguf;

/// One feature of the adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct CompatibilityRow {
    /// The feature, such as "rank_pattern".
    pub feature: String,
    /// One verdict per program, in the order of [`super::Consumer::ALL`].
    pub verdicts: [Verdict; 4],
    /// How to make every verdict ok; `None` if all are ok.
    pub fix: Option<String>,
}

/// Properties of the base model that affect how servers load an adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServedBase {
    /// Whether the output layer shares its weight with the embedding.
    pub tied_head: bool,
    /// Whether the language model is one part of a vision-language model.
    pub within_vision_model: bool,
}

/// The compatibility table of one adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct Compatibility {
    /// One row per feature.
    pub rows: Vec<CompatibilityRow>,
    /// The verdicts on the whole adapter.
    pub whole: CompatibilityRow,
}

const NEUTRAL: &str = "export with --neutral";
const LIST_NAMES: &str = "export with --to peft, which writes a list of names";

/// How each program loads `adapter` onto this base model.
///
/// Biases and adapters of embeddings have no row because reading such an adapter is already an
/// error.
///
/// # Errors
///
/// A tensor is not a LoRA factor or lacks its other half, or a pattern is not a valid regular
/// expression.
pub fn compatibility(
    adapter: &Adapter,
    base: ServedBase,
) -> Result<Compatibility, CheckpointError> {
    // If PEFT refuses layers_to_transform, the first row reports it. The scalings do not depend on
    // this field.
    let mut all_layers = adapter.config.clone();
    all_layers.layers_to_transform = None;
    let config = &adapter.config;
    let plain = all_layers.without_variants();
    let (mut rslora, mut ranks, mut alphas) = (plain.clone(), plain.clone(), plain.clone());
    rslora.use_rslora = config.use_rslora;
    ranks.rank_pattern = config.rank_pattern.clone();
    alphas.alpha_pattern = config.alpha_pattern.clone();
    let pairs = pairs(&adapter.tensors)?;
    let modules: Vec<&str> = pairs.iter().map(|pair| pair.module).collect();
    let mut rows = vec![rank_row(adapter, largest_rank(adapter, &pairs))?];
    rows.extend(non_lora_row(adapter));
    rows.extend(targets_row(config));
    rows.extend(unrecognised_row(config));
    for (feature, only_feature) in [
        ("use_rslora", rslora),
        ("rank_pattern", ranks),
        ("alpha_pattern", alphas),
    ] {
        if only_feature != plain {
            rows.push(scale_row(feature, &only_feature, &modules)?);
        }
    }
    rows.extend(head_row(&modules, base.tied_head));
    rows.extend(vision_model_row(&modules, base.within_vision_model));
    rows.extend(linear_attention_row(&modules));
    rows.extend(unknown_row(&modules));
    rows.extend(untargeted_row(config, &modules)?);
    let whole = adapter_row(&all_layers, &modules, &rows)?;
    Ok(Compatibility { rows, whole })
}

/// Plain LoRA of this rank, without the features of the other rows.
fn rank_row(adapter: &Adapter, rank: usize) -> Result<CompatibilityRow, CheckpointError> {
    let peft = match peft_rules(adapter) {
        Ok(_) => Verdict::Ok,
        Err(CheckpointError::RefusedBy { problem, .. }) => Verdict::Refused(problem),
        Err(error) => return Err(error),
    };
    let (vllm, sglang) = match vllm_rank(rank) {
        None => (
            Verdict::Refused(format!("rank {rank} exceeds its maximum")),
            Verdict::OkWith(format!("with max_lora_rank {rank}")),
        ),
        Some(max) if max > VLLM_DEFAULT_RANK => (
            Verdict::OkWith(format!("with --max-lora-rank {max}")),
            Verdict::OkWith(format!("with max_lora_rank {rank}")),
        ),
        Some(_) => (Verdict::Ok, Verdict::Ok),
    };
    let fix = match (peft.is_ok(), vllm.is_ok()) {
        (false, _) => Some("correct r and rank_pattern, or export the adapter again".to_owned()),
        (true, false) => Some("train with a smaller rank, or merge the adapter".to_owned()),
        (true, true) => None,
    };
    Ok(CompatibilityRow {
        feature: format!("LoRA of rank {rank}"),
        verdicts: [peft, vllm, Verdict::Ok, sglang],
        fix,
    })
}

/// DoRA and fully trained weights, which only PEFT loads.
fn non_lora_row(adapter: &Adapter) -> Option<CompatibilityRow> {
    let parts = adapter.non_lora_parts()?;
    let refused = || Verdict::Refused("it loads only low-rank factors".to_owned());
    Some(CompatibilityRow {
        feature: parts.to_owned(),
        verdicts: [Verdict::Ok, refused(), refused(), refused()],
        fix: Some("export the merged model: --to merged, or --to gguf --merged".to_owned()),
    })
}

/// Targets that are not a list of names. PEFT supports patterns; vLLM and llama.cpp use the tensor
/// names instead.
fn targets_row(config: &PeftConfig) -> Option<CompatibilityRow> {
    let sglang = sglang_targets(config);
    let feature = match &config.target_modules {
        _ if sglang == Verdict::Ok => return None,
        Some(TargetModules::Pattern(pattern)) => format!("target_modules {pattern:?}"),
        Some(TargetModules::Names(_)) => "empty target_modules".to_owned(),
        None => "no target_modules".to_owned(),
    };
    Some(CompatibilityRow {
        feature,
        verdicts: [Verdict::Ok, Verdict::Ok, Verdict::Ok, sglang],
        fix: Some(LIST_NAMES.to_owned()),
    })
}

/// Unknown config keys, which servers ignore.
fn unrecognised_row(config: &PeftConfig) -> Option<CompatibilityRow> {
    if config.unrecognised.is_empty() {
        return None;
    }
    let keys = config.unrecognised.join(", ");
    let ignored = || Verdict::OkWith(format!("if {keys} has no effect"));
    Some(CompatibilityRow {
        feature: format!("unknown config key(s) {keys}"),
        verdicts: [
            Verdict::OkWith("in versions that support it".to_owned()),
            ignored(),
            ignored(),
            ignored(),
        ],
        fix: None,
    })
}

/// Verdicts on the scalings of a config, assuming that everything else is valid.
fn scale_verdicts(config: &PeftConfig, modules: &[&str]) -> Result<[Verdict; 4], CheckpointError> {
    let rules = PeftRules::new(config)?;
    let verdict = |scaling: &dyn Fn(usize) -> f64| {
        let mut ratios = Vec::new();
        for module in modules {
            let rank = rules.rank(module);
            let (trained, applied) = (rules.scaling(module, rank), scaling(rank));
            if (applied - trained).abs() > SCALING_TOLERANCE * trained.abs() {
                ratios.push(applied / trained);
            }
        }
        match ratios.len() {
            0 => Verdict::Ok,
            n_modules => Verdict::WrongScale {
                n_modules,
                least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                greatest: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            },
        }
    };
    let unequal_ranks = modules.iter().any(|module| rules.rank(module) != config.r);
    let sglang = match (unequal_ranks, verdict(&|_| sglang_scaling(config))) {
        (true, _) => Verdict::Refused("by most versions, because ranks differ".to_owned()),
        (false, Verdict::Ok) if sglang_overrides(config) => Verdict::Refused(
            "by new versions, which do not support rank_pattern and alpha_pattern".to_owned(),
        ),
        (false, verdict) => verdict,
    };
    Ok([
        Verdict::Ok,
        verdict(&|_| vllm_scaling(config)),
        verdict(&|rank| converter_scaling(config, rank)),
        sglang,
    ])
}

fn scale_row(
    feature: &str,
    config: &PeftConfig,
    modules: &[&str],
) -> Result<CompatibilityRow, CheckpointError> {
    let verdicts = scale_verdicts(config, modules)?;
    let fix = (!verdicts.iter().all(Verdict::is_ok)).then(|| NEUTRAL.to_owned());
    Ok(CompatibilityRow {
        feature: feature.to_owned(),
        verdicts,
        fix,
    })
}

fn head_row(modules: &[&str], tied_head: bool) -> Option<CompatibilityRow> {
    if !modules.contains(&HEAD) {
        return None;
    }
    let versions = || Verdict::OkWith("in versions that support adapters of lm_head".to_owned());
    let (feature, verdicts) = if tied_head {
        (
            "an adapter of lm_head, which the base ties to the embedding",
            [
                Verdict::OkWith("unless it is merged, which also changes the embedding".to_owned()),
                Verdict::OkWith("if the shapes allow it".to_owned()),
                Verdict::Refused("the base has no output.weight".to_owned()),
                Verdict::Refused("the base has no separate output layer".to_owned()),
            ],
        )
    } else {
        (
            "an adapter of lm_head",
            [Verdict::Ok, versions(), Verdict::Ok, versions()],
        )
    };
    let fix = tied_head.then(|| "train without the target lm_head".to_owned());
    Some(CompatibilityRow {
        feature: feature.to_owned(),
        verdicts,
        fix,
    })
}

/// A language model inside a vision-language model. vLLM serves the whole model, whose layers have
/// other names, and silently ignores every tensor of the adapter.
///
/// # Source
///
/// vllm-project/vllm, issues 34186 and 48019, and `hf_to_vllm_mapper` of `models/qwen3_vl.py`,
/// `models/gemma3_mm.py` and `models/mistral3.py`.
fn vision_model_row(modules: &[&str], within_vision_model: bool) -> Option<CompatibilityRow> {
    within_vision_model.then(|| CompatibilityRow {
        feature: "the language model of a vision-language base".to_owned(),
        verdicts: [
            Verdict::OkWith("with AutoModelForCausalLM, which loads the language model".to_owned()),
            Verdict::Ignores {
                n_modules: modules.len(),
            },
            Verdict::Ok,
            Verdict::Ok,
        ],
        fix: Some(
            "export with --to merged and serve that folder, which is only the language model"
                .to_owned(),
        ),
    })
}

/// Linear-attention layers, which the servers fuse.
///
/// # Source
///
/// vllm-project/vllm, `models/qwen3_5.py`, issue 35286 and pull request 38927; sgl-project/sglang,
/// `srt/lora/utils.py`, issue 30168 and pull request 31522.
fn linear_attention_row(modules: &[&str]) -> Option<CompatibilityRow> {
    let first = modules.iter().find(|module| is_linear_attention(module))?;
    let n_dropped = modules.iter().filter(|module| sglang_drops(module)).count();
    let sglang = match n_dropped {
        0 => {
            Verdict::OkWith("in SGLang since July 2026; earlier versions fail to start".to_owned())
        }
        n_modules => Verdict::Ignores { n_modules },
    };
    let fix = (n_dropped > 0).then(|| {
        "train without in_proj_a and in_proj_b for SGLang, or export the merged model".to_owned()
    });
    Some(CompatibilityRow {
        feature: format!("an adapter of linear-attention layers such as {first}"),
        verdicts: [
            Verdict::Ok,
            Verdict::OkWith("since April 2026; earlier versions fail to load it".to_owned()),
            Verdict::Ok,
            sglang,
        ],
        fix,
    })
}

/// Modules that are not linear layers of Llama, Mistral and Qwen2.
fn unknown_row(modules: &[&str]) -> Option<CompatibilityRow> {
    let in_vllm = modules.iter().find(|module| !vllm_has(module));
    let in_gguf = modules.iter().find(|module| !is_in_gguf(module));
    let first = in_vllm.or(in_gguf)?;
    let verdict = |unknown: Option<&&str>| match unknown {
        None => Verdict::Ok,
        Some(module) => Verdict::Refused(format!("it has no {module}")),
    };
    Some(CompatibilityRow {
        feature: format!("an adapter of {first}"),
        verdicts: [
            Verdict::OkWith("if the base has this module".to_owned()),
            verdict(in_vllm),
            verdict(in_gguf),
            verdict(in_vllm),
        ],
        fix: Some("train without that target".to_owned()),
    })
}

/// Modules that have factors but are not in the config's targets. Only PEFT skips them.
fn untargeted_row(
    config: &PeftConfig,
    modules: &[&str],
) -> Result<Option<CompatibilityRow>, CheckpointError> {
    let rules = match PeftRules::new(config) {
        Ok(rules) => rules,
        // The first row already reports it.
        Err(CheckpointError::RefusedBy { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let n_modules = modules
        .iter()
        .filter(|module| !rules.targets(module))
        .count();
    let ignored = Verdict::Ignores { n_modules };
    Ok((n_modules > 0).then(|| CompatibilityRow {
        feature: "factors of modules that are not in target_modules".to_owned(),
        verdicts: [ignored, Verdict::Ok, Verdict::Ok, Verdict::Ok],
        fix: Some("add them to target_modules, or remove their tensors".to_owned()),
    }))
}

/// The worst verdict per program. Scalings are compared for all features together, because two
/// patterns can cancel out.
fn adapter_row(
    config: &PeftConfig,
    modules: &[&str],
    rows: &[CompatibilityRow],
) -> Result<CompatibilityRow, CheckpointError> {
    let mut verdicts = scale_verdicts(config, modules)?;
    for row in rows {
        for (worst, verdict) in verdicts.iter_mut().zip(&row.verdicts) {
            let is_scale = matches!(verdict, Verdict::WrongScale { .. });
            if !is_scale && verdict.severity() > worst.severity() {
                *worst = verdict.clone();
            }
        }
    }
    let mut fixes: Vec<String> = Vec::new();
    for fix in rows.iter().filter_map(|row| row.fix.clone()) {
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    let all_ok = verdicts.iter().all(Verdict::is_ok);
    Ok(CompatibilityRow {
        feature: "this adapter".to_owned(),
        fix: (!all_ok).then(|| fixes.join("; ")),
        verdicts,
    })
}
