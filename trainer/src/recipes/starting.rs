//! Loads the adapter that a run continues from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::adapter::{
    Adapter, PeftConfig, Scalings, load_adapter, peft_rules, with_named_targets,
};
use tooltune_checkpoints::weights::HostTensor;

use super::preparation::Training;
use crate::checkpoint_choice::CheckpointChoice;
use crate::config::{Config, LoraConfig};
use crate::error::Error;
use crate::lora::LoraLayout as _;
use crate::lora::{AdapterSlot, Adapters, WholeWeight, principal_factors};

/// File that marks an adapter folder.
const CONFIG_FILE: &str = "adapter_config.json";

/// Resolves `lora.init_from` to an adapter folder: the path itself, or the best checkpoint of a
/// run.
///
/// # Errors
///
/// The path is neither an adapter nor a run, or the run has no complete checkpoint.
pub(super) fn starting_folder(init_from: &Path) -> Result<PathBuf, Error> {
    if init_from.join(CONFIG_FILE).exists() {
        return CheckpointChoice::Path(init_from.to_owned()).resolve(init_from);
    }
    if !init_from.is_dir() {
        return Err(Error::Usage(format!(
            "lora.init_from = \"{}\" is not a folder; set it to a folder with {CONFIG_FILE}, or to a run",
            init_from.display()
        )));
    }
    CheckpointChoice::Best.resolve(init_from).map_err(|error| {
        Error::Usage(format!(
            "lora.init_from = \"{}\" has no {CONFIG_FILE} and is not a run: {error}",
            init_from.display()
        ))
    })
}

/// Loads the factors of the adapter in `folder` and checks that they match `slots`.
///
/// # Errors
///
/// A file is damaged, or modules, ranks or scalings differ; all differences are listed with the
/// settings to change.
pub(super) fn starting_adapter(
    folder: &Path,
    lora: &LoraConfig,
    slots: &[AdapterSlot],
    whole_weights: &[WholeWeight],
) -> Result<BTreeMap<String, HostTensor>, Error> {
    let adapter = load_adapter(folder)?;
    let scalings = peft_rules(&adapter)?;
    let mut differing = differences(&adapter, &scalings, lora, slots);
    differing.extend(whole_weight_differences(&adapter, whole_weights));
    if !differing.is_empty() {
        return Err(Error::Usage(format!(
            "lora.init_from: the adapter in {} does not match [lora]: {}",
            folder.display(),
            differing.join("; ")
        )));
    }
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(AdapterSlot::tensors)
        .chain(whole_weights.iter().map(WholeWeight::tensor))
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(folder, &expected)?;
    Ok(adapter.tensors)
}

/// Creates the initial adapters of a run.
///
/// # Errors
///
/// A weight cannot be read, or has fewer singular values than PiSSA needs.
pub fn begin(
    config: &Config,
    training: &Training,
    slots: Vec<AdapterSlot>,
    device: &Device,
) -> Result<Adapters, Error> {
    let seed = config.train.seed;
    let whole_weights = training.lora.whole_weights(&training.base.config)?;
    if let Some(tensors) = &training.starting_adapter {
        let adapters = Adapters::from_tensors(slots, tensors, device);
        return Ok(adapters.with_whole(whole_weights, tensors));
    }
    let weights = &training.base.files.weights;
    let base_tensors =
        |weight: &WholeWeight| Ok((weight.name.to_owned(), weights.read_f32(weight.name)?));
    let base_tensors = whole_weights.iter().map(base_tensors);
    let base_tensors = base_tensors.collect::<Result<BTreeMap<_, _>, CheckpointError>>()?;
    let Some(init) = training.lora.principal_init() else {
        return Ok(Adapters::new(slots, seed, device).with_whole(whole_weights, &base_tensors));
    };
    let values = principal_factors(init, &slots, weights, seed)?;
    Ok(Adapters::new_pissa(slots, values, device).with_whole(whole_weights, &base_tensors))
}

/// Describes differences in the weights of `modules_to_save`.
fn whole_weight_differences(adapter: &Adapter, whole_weights: &[WholeWeight]) -> Option<String> {
    let has: Vec<&str> = adapter.saved_weights().map(|(name, _)| name).collect();
    let expected: Vec<&str> = whole_weights.iter().map(|weight| weight.name).collect();
    (has != expected).then(|| {
        let modules = adapter.config.modules_to_save.clone().unwrap_or_default();
        format!(
            "its fully trained weights are {has:?}, but [lora] sets {expected:?}; set lora.modules_to_save = {modules:?}"
        )
    })
}

/// Maximum number of modules listed in a message.
const MAX_LISTED: usize = 3;

/// The value of `lora.target_modules` that selects exactly the adapter's modules. It lists names if
/// the adapter has all modules with these names, otherwise full paths.
fn exact_targets(
    config: &PeftConfig,
    scalings: &Scalings,
    expected: &BTreeMap<&str, &AdapterSlot>,
) -> String {
    let adapted: Vec<&str> = scalings.keys().map(String::as_str).collect();
    let known = adapted.iter().chain(expected.keys());
    let known: Vec<String> = known.map(|name| (*name).to_owned()).collect();
    let mut unnamed = config.clone();
    unnamed.target_modules = None;
    let named = with_named_targets(&unnamed, &adapted, Some(&known));
    let targets = named.target_modules.as_ref().map(serde_json::to_string);
    targets.and_then(Result::ok).unwrap_or_default()
}

/// Differences between the adapter and `[lora]`, one string per kind.
fn differences(
    adapter: &Adapter,
    scalings: &Scalings,
    lora: &LoraConfig,
    slots: &[AdapterSlot],
) -> Vec<String> {
    let config = &adapter.config;
    let expected: BTreeMap<&str, &AdapterSlot> = slots
        .iter()
        .map(|slot| (slot.module.as_str(), slot))
        .collect();
    let mut differences = Vec::new();
    let missing = expected
        .keys()
        .filter(|name| !scalings.contains_key(**name));
    let extra = scalings.keys().map(String::as_str);
    let extra = extra.filter(|name| !expected.contains_key(name));
    for (what, names) in [
        (
            "it has no factors for",
            missing.copied().collect::<Vec<_>>(),
        ),
        ("[lora] does not include its", extra.collect()),
    ] {
        if !names.is_empty() {
            let more = names.len().saturating_sub(MAX_LISTED);
            let more = (more > 0).then(|| format!(" and {more} more"));
            let names = names[..names.len().min(MAX_LISTED)].join(", ");
            let remove = match lora.exclude_modules {
                Some(_) => " and remove lora.exclude_modules",
                None => "",
            };
            differences.push(format!(
                "{what} {names}{}; set lora.target_modules = {}{remove}",
                more.unwrap_or_default(),
                exact_targets(config, scalings, &expected)
            ));
        }
    }
    let both = || {
        expected
            .values()
            .filter_map(|slot| Some((slot, scalings.get(&slot.module)?)))
    };
    if let Some((slot, has)) = both().find(|(slot, has)| slot.rank != has.rank) {
        differences.push(format!(
            "its rank of {} is {}, but [lora] sets {}; set lora.r = {} and the adapter's rank_pattern",
            slot.module, has.rank, slot.rank, config.r
        ));
    }
    let wants_dora = slots.iter().any(|slot| slot.magnitudes.is_some());
    if config.use_dora != wants_dora {
        differences.push(format!(
            "its use_dora is {}, but [lora] sets {wants_dora}; set lora.use_dora = {}",
            config.use_dora, config.use_dora
        ));
    }
    let differs = |a: f64, b: f64| (a - b).abs() > 1e-9 * a.abs().max(b.abs());
    if let Some((slot, has)) =
        both().find(|(slot, has)| slot.rank == has.rank && differs(slot.scaling, has.scaling))
    {
        let remedy = if config.lora_alpha > 0.0 {
            format!(
                "set lora.lora_alpha = {}, lora.use_rslora = {} and the adapter's alpha_pattern",
                config.lora_alpha, config.use_rslora
            )
        } else {
            format!(
                "its lora_alpha is {}, but must be above 0 for training: set another adapter in \
                 lora.init_from",
                config.lora_alpha
            )
        };
        differences.push(format!(
            "its scaling of {} is {}, but [lora] sets {}; {remedy}",
            slot.module, has.scaling, slot.scaling
        ));
    }
    differences
}
