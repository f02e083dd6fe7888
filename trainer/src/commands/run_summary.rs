//! The summary printed before a run: the device, the values chosen for "auto" settings, and
//! settings far outside the usual range.

use burn::tensor::Device;
use tooltune_kernels::{ComputeDtype, is_cpu};

use super::say;
use crate::config::{self, CheckpointingMode, Config, GradientCheckpointing, LoraConfig};
use crate::error::Error;
use crate::export::Refusal;
use crate::models::load::Quantization;
use crate::recipes::preparation::Preparation;
use crate::settings;
use tooltune_terminal::count_noun;

/// Usual learning rates for adapters, with a wide margin.
const USUAL_RATES: [f64; 2] = [1e-6, 1e-2];

/// Usual learning rates for full fine-tuning of an encoder.
const USUAL_ENCODER_RATES: [f64; 2] = [1e-7, 1e-3];

/// Usual adapter scalings `lora_alpha / r`, with a wide margin.
const USUAL_SCALINGS: [f64; 2] = [0.1, 16.0];

/// The device, with the number of threads for a CPU.
pub(super) fn device_text(config: &Config, device: &Device) -> String {
    let name = config.device;
    match is_cpu(device) {
        true => format!(
            "{name}, {}",
            count_noun(rayon::current_num_threads(), "thread")
        ),
        false => name.to_string(),
    }
}

/// Reports which exports of the run would be rejected, and why.
pub(super) fn say_refusals(refusals: Vec<Refusal>) -> Result<(), Error> {
    for refusal in refusals {
        let Refusal {
            exports,
            is_refused,
            reason,
        } = refusal;
        match is_refused {
            true => say(&format!("export to {exports} will be refused: {reason}"))?,
            false => say(&format!("export to {exports}: {reason}"))?,
        }
    }
    Ok(())
}

/// The compute dtype, marked if chosen automatically.
pub(super) fn dtype_text(configured: config::ComputeDtype, compute_dtype: ComputeDtype) -> String {
    let name = format!("{compute_dtype:?}").to_lowercase();
    match configured {
        config::ComputeDtype::Auto => format!("{name} (model.compute_dtype = \"auto\")"),
        _ => name,
    }
}

/// The number of blocks that keep activations, marked if chosen automatically.
pub(super) fn kept_blocks_text(config: &Config, n_kept: usize, all: usize) -> String {
    let text = format!("kept in {n_kept} of {all} blocks");
    match config.train.gradient_checkpointing {
        GradientCheckpointing::Mode(CheckpointingMode::Auto) => {
            format!("{text} (train.gradient_checkpointing = \"auto\")")
        }
        _ => text,
    }
}

/// Summary of a language-model run, whose frozen weights `n_node_ranks` GPUs may divide.
pub(super) fn model_lines(
    config: &Config,
    preparation: &Preparation,
    device: &Device,
    n_node_ranks: usize,
) -> Result<String, Error> {
    let configured = config.language_model()?.compute_dtype;
    let compute_dtype = settings::compute_dtype(configured, device)?;
    let kept_blocks =
        preparation
            .training
            .kept_blocks(config, compute_dtype, device, n_node_ranks)?;
    let longest = preparation.training.examples.longest();
    let n_blocks = preparation.training.base.config.num_hidden_layers;
    let n_kept_longest = kept_blocks.count(longest.max(1));
    let quantization = match preparation.training.base.quantization {
        Quantization::None => "",
        Quantization::Nf4 => ", with weights in nf4",
    };
    Ok(format!(
        "device {}; matmuls in {}{quantization}\nactivations {}",
        device_text(config, device),
        dtype_text(configured, compute_dtype),
        kept_blocks_text(config, n_kept_longest, n_blocks)
    ))
}

/// Summary of a retriever-only run.
pub(super) fn retriever_line(config: &Config, device: &Device) -> Result<String, Error> {
    let Some(training) = config.trained_retriever() else {
        return Ok(format!("device {}", device_text(config, device)));
    };
    let compute_dtype = settings::compute_dtype(training.compute_dtype, device)?;
    let dtype = dtype_text(training.compute_dtype, compute_dtype);
    Ok(format!(
        "device {}; matmuls in {}",
        device_text(config, device),
        dtype.replace("model.", "retriever.")
    ))
}

/// One line per setting far outside the usual range.
pub(super) fn unusual_lines(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    if config.model.is_some() {
        lines.extend(unusual_line(
            "train.learning_rate",
            config.train.learning_rate,
            USUAL_RATES,
        ));
        let lora = &config.lora;
        let r = lora.r.max(1) as f64;
        let divisor = if lora.use_rslora { r.sqrt() } else { r };
        lines.extend(unusual_scaling("lora.lora_alpha", lora.lora_alpha, divisor));
        lines.extend(unusual_patterns(lora));
    }
    if let Some(retriever) = config.trained_retriever() {
        let usual = match retriever.lora {
            Some(_) => USUAL_RATES,
            None => USUAL_ENCODER_RATES,
        };
        let rate = retriever.learning_rate;
        lines.extend(unusual_line("retriever.learning_rate", rate, usual));
        if let Some(lora) = &retriever.lora {
            let r = lora.r.max(1) as f64;
            lines.extend(unusual_scaling(
                "retriever.lora.lora_alpha",
                lora.lora_alpha,
                r,
            ));
        }
    }
    lines
}

/// Warns about an unusual value; 0 is reported elsewhere.
fn unusual_line(key: &str, value: f64, usual: [f64; 2]) -> Option<String> {
    let [least, most] = usual;
    let side = match value {
        value if value > most => "far above",
        value if value > 0.0 && value < least => "far below",
        _ => return None,
    };
    Some(format!(
        "{key} = {value:e} is {side} the usual range of {least:e} to {most:e}; check it"
    ))
}

/// Warns about unusual scalings of modules with their own rank or alpha.
fn unusual_patterns(lora: &LoraConfig) -> Vec<String> {
    let (ranks, alphas) = (&lora.rank_pattern.0, &lora.alpha_pattern.0);
    let alpha_lines = alphas.iter().map(|(pattern, alpha)| {
        let rank = ranks.iter().find(|(other, _)| other == pattern);
        let rank = rank.map_or(lora.r, |(_, rank)| *rank);
        (format!("lora.alpha_pattern.{pattern}"), *alpha, rank)
    });
    let has_alpha = |pattern: &str| alphas.iter().any(|(other, _)| other == pattern);
    let rank_lines = ranks.iter().filter(|(pattern, _)| !has_alpha(pattern));
    let rank_lines = rank_lines.map(|(pattern, rank)| {
        let key = format!("lora.rank_pattern.{pattern} = {rank} and lora.lora_alpha");
        (key, lora.lora_alpha, *rank)
    });
    alpha_lines
        .chain(rank_lines)
        .filter_map(|(key, alpha, rank)| {
            let rank = rank.max(1) as f64;
            let divisor = if lora.use_rslora { rank.sqrt() } else { rank };
            unusual_scaling(&key, alpha, divisor)
        })
        .collect()
}

fn unusual_scaling(key: &str, alpha: f64, divisor: f64) -> Option<String> {
    let scaling = alpha / divisor;
    let [least, most] = USUAL_SCALINGS;
    let side = match scaling {
        scaling if scaling > most => "far above",
        scaling if scaling < least => "far below",
        _ => return None,
    };
    // Round to three decimals, unless that gives 0.
    let rounded = (scaling * 1000.0).round() / 1000.0;
    let rounded = if rounded == 0.0 { scaling } else { rounded };
    Some(format!(
        "{key} = {alpha} scales the adapter by {rounded}, {side} the usual range of {least} to \
         {most}; check it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LoadedConfig, Preset, Source};

    #[test]
    fn only_unusual_settings_are_reported() {
        assert_eq!(unusual_line("train.learning_rate", 2e-4, USUAL_RATES), None);
        assert_eq!(unusual_line("train.learning_rate", 1e-2, USUAL_RATES), None);
        assert_eq!(unusual_line("train.learning_rate", 0.0, USUAL_RATES), None);
        let high = unusual_line("train.learning_rate", 2.0, USUAL_RATES).unwrap();
        assert!(
            high.starts_with("train.learning_rate = 2e0 is far above"),
            "{high}"
        );
        let low = unusual_line("train.learning_rate", 1e-9, USUAL_RATES).unwrap();
        assert!(low.contains("far below"), "{low}");
        assert_eq!(unusual_scaling("lora.lora_alpha", 16.0, 8.0), None);
        let large = unusual_scaling("lora.lora_alpha", 4096.0, 8.0).unwrap();
        assert!(large.contains("lora.lora_alpha = 4096"), "{large}");
        assert!(large.contains("by 512, far above"), "{large}");
        let small = unusual_scaling("lora.lora_alpha", 0.1, 8.0).unwrap();
        assert!(small.contains("by 0.013, far below"), "{small}");
    }

    #[test]
    fn modules_of_a_pattern_are_checked_by_their_rank_and_alpha() {
        let lines = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|&one| one.to_owned()).collect();
            let source = Source {
                name: "a.toml".to_owned(),
                text: Preset::Sft.text().to_owned(),
            };
            unusual_lines(&LoadedConfig::parse(source, &overrides).unwrap().config)
        };
        assert_eq!(lines(&[]), Vec::<String>::new());
        let both = lines(&[
            "lora.rank_pattern.q_proj=64",
            "lora.alpha_pattern.q_proj=90000",
        ]);
        let [line] = both.as_slice() else {
            panic!("{both:?}");
        };
        assert!(
            line.starts_with(
                "lora.alpha_pattern.q_proj = 90000 scales the adapter by 1406.25, far above"
            ),
            "{line}"
        );
        let rank = lines(&[
            "lora.r=64",
            "lora.lora_alpha=64",
            "lora.rank_pattern.q_proj=1",
        ]);
        assert!(rank[0].contains("lora.rank_pattern.q_proj = 1 and lora.lora_alpha = 64"));
    }
}
