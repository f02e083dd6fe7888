//! What an adapter uses, and whether each program that loads adapters computes it.
//!
//! A row is one thing that the adapter uses; its verdicts come from the programs' rules applied to
//! this adapter with that thing alone, so that a pattern that changes nothing costs nothing. The
//! last row is the adapter as a whole.

use super::servers::{
    VLLM_DEFAULT_RANK, converter_scaling, largest_rank, sglang_overrides, sglang_scaling,
    sglang_targets, vllm_has, vllm_rank, vllm_scaling,
};
use super::verdict::{SAME, Verdict};
use super::{HEAD, PeftRules, peft_rules};
use crate::adapter::scaling::pairs;
use crate::adapter::{Adapter, PeftConfig, TargetModules};
use crate::error::CheckpointError;
use crate::families::is_in_gguf;

/// One thing that the adapter uses.
#[derive(Debug, Clone, PartialEq)]
pub struct CompatibilityRow {
    /// What it is, such as "rank_pattern".
    pub feature: String,
    /// By [`super::Consumer::ALL`].
    pub verdicts: [Verdict; 4],
    /// What makes every column ok, where one is not.
    pub fix: Option<String>,
}

/// The table of one adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct Compatibility {
    /// A row for each thing it uses.
    pub rows: Vec<CompatibilityRow>,
    /// All of them together.
    pub whole: CompatibilityRow,
}

const NEUTRAL: &str = "export with --neutral";
const LIST_NAMES: &str = "export with --to peft, which lists the names";

/// What every program makes of `adapter`; `tied_head` says whether its base model's output layer
/// is the embedding.
///
/// Biases and adapters of embeddings have no row: reading such an adapter is an error already.
///
/// # Errors
///
/// A tensor is no factor or lacks its other half; a pattern is no regular expression here.
pub fn compatibility(adapter: &Adapter, tied_head: bool) -> Result<Compatibility, CheckpointError> {
    // Layers that PEFT refuses are a verdict of the first row, and no scaling depends on them.
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
    rows.extend(beside_factors_row(adapter));
    rows.extend(targets_row(config));
    rows.extend(unrecognised_row(config));
    for (feature, alone) in [
        ("use_rslora", rslora),
        ("rank_pattern", ranks),
        ("alpha_pattern", alphas),
    ] {
        if alone != plain {
            rows.push(scale_row(feature, &alone, &modules)?);
        }
    }
    rows.extend(head_row(&modules, tied_head));
    rows.extend(unknown_row(&modules));
    rows.extend(untargeted_row(config, &modules)?);
    let whole = whole_row(&all_layers, &modules, &rows)?;
    Ok(Compatibility { rows, whole })
}

/// Plain LoRA of this rank; the other rows come on top.
fn rank_row(adapter: &Adapter, rank: usize) -> Result<CompatibilityRow, CheckpointError> {
    let peft = match peft_rules(adapter) {
        Ok(_) => Verdict::Ok,
        Err(CheckpointError::RefusedBy { problem, .. }) => Verdict::Refused(problem),
        Err(error) => return Err(error),
    };
    let (vllm, others) = match vllm_rank(rank) {
        None => (
            Verdict::Refused(format!("rank {rank} is above its largest")),
            Verdict::OkWith(format!("with a max_lora_rank of {rank}")),
        ),
        Some(max) if max > VLLM_DEFAULT_RANK => (
            Verdict::OkWith(format!("with --max-lora-rank {max}")),
            Verdict::OkWith(format!("with a max_lora_rank of {rank}")),
        ),
        Some(_) => (Verdict::Ok, Verdict::Ok),
    };
    let fix = match (peft.is_ok(), vllm.is_ok()) {
        (false, _) => Some("correct r and rank_pattern, or export again".to_owned()),
        (true, false) => Some("train with a smaller rank, or merge the adapter".to_owned()),
        (true, true) => None,
    };
    Ok(CompatibilityRow {
        feature: format!("LoRA of rank {rank}"),
        verdicts: [peft, vllm, Verdict::Ok, others],
        fix,
    })
}

/// DoRA and whole weights, which PEFT alone loads.
fn beside_factors_row(adapter: &Adapter) -> Option<CompatibilityRow> {
    let what = adapter.beside_factors()?;
    let refused = || Verdict::Refused("it loads low-rank factors alone".to_owned());
    Some(CompatibilityRow {
        feature: what.to_owned(),
        verdicts: [Verdict::Ok, refused(), refused(), refused()],
        fix: Some("export the merged model: --to merged, or --to gguf --merged".to_owned()),
    })
}

/// Targets that are no list of names: PEFT knows patterns, vLLM and llama.cpp go by the tensors.
fn targets_row(config: &PeftConfig) -> Option<CompatibilityRow> {
    let sglang = sglang_targets(config);
    let feature = match &config.target_modules {
        _ if sglang == Verdict::Ok => return None,
        Some(TargetModules::Pattern(pattern)) => format!("target_modules {pattern:?}"),
        Some(TargetModules::Names(_)) => "target_modules without a name".to_owned(),
        None => "no target_modules".to_owned(),
    };
    Some(CompatibilityRow {
        feature,
        verdicts: [Verdict::Ok, Verdict::Ok, Verdict::Ok, sglang],
        fix: Some(LIST_NAMES.to_owned()),
    })
}

/// Keys of the config that are not known here, which servers pass over.
fn unrecognised_row(config: &PeftConfig) -> Option<CompatibilityRow> {
    if config.unrecognised.is_empty() {
        return None;
    }
    let keys = config.unrecognised.join(", ");
    let passed_over = || Verdict::OkWith(format!("if {keys} changes nothing"));
    Some(CompatibilityRow {
        feature: format!("{keys}, not known here"),
        verdicts: [
            Verdict::OkWith("in versions that know it".to_owned()),
            passed_over(),
            passed_over(),
            passed_over(),
        ],
        fix: None,
    })
}

/// The verdicts on a config that may give modules different scalings, all else being in order.
fn scale_verdicts(config: &PeftConfig, modules: &[&str]) -> Result<[Verdict; 4], CheckpointError> {
    let rules = PeftRules::new(config)?;
    let verdict = |scaling: &dyn Fn(usize) -> f64| {
        let mut ratios = Vec::new();
        for module in modules {
            let rank = rules.rank(module);
            let (trained, found) = (rules.scaling(module, rank), scaling(rank));
            if (found - trained).abs() > SAME * trained.abs() {
                ratios.push(found / trained);
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
    let others = match (unequal_ranks, verdict(&|_| sglang_scaling(config))) {
        (true, _) => Verdict::Refused("by most versions, since ranks differ".to_owned()),
        (false, Verdict::Ok) if sglang_overrides(config) => Verdict::Refused(
            "by new versions, which take no rank_pattern and alpha_pattern".to_owned(),
        ),
        (false, verdict) => verdict,
    };
    Ok([
        Verdict::Ok,
        verdict(&|_| vllm_scaling(config)),
        verdict(&|rank| converter_scaling(config, rank)),
        others,
    ])
}

fn scale_row(
    feature: &str,
    alone: &PeftConfig,
    modules: &[&str],
) -> Result<CompatibilityRow, CheckpointError> {
    let verdicts = scale_verdicts(alone, modules)?;
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
    let versions = || Verdict::OkWith("where the version grants adapters to lm_head".to_owned());
    let (feature, verdicts) = if tied_head {
        (
            "an adapter of lm_head, which the base ties",
            [
                Verdict::OkWith("unless it is merged, which changes the embedding, too".to_owned()),
                Verdict::OkWith("where the shapes allow it".to_owned()),
                Verdict::Refused("the base has no output.weight".to_owned()),
                Verdict::Refused("the base has no output layer of its own".to_owned()),
            ],
        )
    } else {
        (
            "an adapter of lm_head",
            [Verdict::Ok, versions(), Verdict::Ok, versions()],
        )
    };
    let fix = tied_head.then(|| "train without lm_head among the targets".to_owned());
    Some(CompatibilityRow {
        feature: feature.to_owned(),
        verdicts,
        fix,
    })
}

/// Modules that are no linear layers of Llama, Mistral and Qwen2.
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
            Verdict::OkWith("if the base has it".to_owned()),
            verdict(in_vllm),
            verdict(in_gguf),
            verdict(in_vllm),
        ],
        fix: Some("train without that target".to_owned()),
    })
}

/// Modules with factors that the config does not target: only PEFT goes by the config.
fn untargeted_row(
    config: &PeftConfig,
    modules: &[&str],
) -> Result<Option<CompatibilityRow>, CheckpointError> {
    let rules = match PeftRules::new(config) {
        Ok(rules) => rules,
        // The first row has it.
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
        fix: Some("name them in target_modules, or remove their tensors".to_owned()),
    }))
}

/// The worst of every column, with scalings taken together: two patterns may make up for each
/// other.
fn whole_row(
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
