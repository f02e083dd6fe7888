//! The adapter that a run continues from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::adapter::{Adapter, Scalings, load_adapter, peft_rules};
use tooltune_checkpoints::weights::HostTensor;

use super::preparation::Preparation;
use crate::config::Config;
use crate::error::Error;
use crate::export::CheckpointChoice;
use crate::lora::{AdapterSlot, Adapters, WholeWeight, principal_factors};

/// The file that makes a folder an adapter's.
const CONFIG_FILE: &str = "adapter_config.json";

/// The folder of the adapter that `lora.init_from` names: itself, or the best checkpoint of a run.
///
/// # Errors
///
/// It is neither, or the run has no complete checkpoint.
pub(super) fn starting_folder(init_from: &Path) -> Result<PathBuf, Error> {
    if init_from.join(CONFIG_FILE).exists() {
        return CheckpointChoice::Path(init_from.to_owned()).resolve(init_from);
    }
    if !init_from.is_dir() {
        return Err(Error::Usage(format!(
            "lora.init_from = \"{}\" is no folder; name a folder with {CONFIG_FILE}, or a run",
            init_from.display()
        )));
    }
    CheckpointChoice::Best.resolve(init_from).map_err(|error| {
        Error::Usage(format!(
            "lora.init_from = \"{}\" has no {CONFIG_FILE}, and as a run: {error}",
            init_from.display()
        ))
    })
}

/// The factors of the adapter in `folder`, which must be what `slots` describe.
///
/// # Errors
///
/// A file that is damaged, or an adapter of other modules, ranks or scalings; all are named with
/// what to set.
pub(super) fn starting_adapter(
    folder: &Path,
    slots: &[AdapterSlot],
    whole: &[WholeWeight],
) -> Result<BTreeMap<String, HostTensor>, Error> {
    let adapter = load_adapter(folder)?;
    let scalings = peft_rules(&adapter)?;
    let mut differing = differences(&adapter, &scalings, slots);
    differing.extend(other_whole_weights(&adapter, whole));
    if !differing.is_empty() {
        return Err(Error::Usage(format!(
            "lora.init_from: the adapter in {} is not what [lora] describes: {}",
            folder.display(),
            differing.join("; ")
        )));
    }
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(AdapterSlot::tensors)
        .chain(whole.iter().map(WholeWeight::tensor))
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(folder, &expected)?;
    Ok(adapter.tensors)
}

/// The adapters that a run begins with before its first step.
///
/// # Errors
///
/// A weight that cannot be read, or one with fewer singular values than PiSSA is to take.
pub fn begin(
    config: &Config,
    preparation: &Preparation,
    slots: Vec<AdapterSlot>,
    device: &Device,
) -> Result<Adapters, Error> {
    let seed = config.train.seed;
    let whole = preparation.lora.whole_weights(&preparation.base.config)?;
    if let Some(tensors) = &preparation.starting_adapter {
        let adapters = Adapters::from_tensors(slots, tensors, device);
        return Ok(adapters.with_whole(whole, tensors));
    }
    let weights = &preparation.base.files.weights;
    let of_base =
        |weight: &WholeWeight| Ok((weight.name.to_owned(), weights.read_f32(weight.name)?));
    let of_base = whole.iter().map(of_base);
    let of_base = of_base.collect::<Result<BTreeMap<_, _>, CheckpointError>>()?;
    let Some(init) = preparation.lora.principal_init() else {
        return Ok(Adapters::new(slots, seed, device).with_whole(whole, &of_base));
    };
    let values = principal_factors(init, &slots, weights, seed)?;
    Ok(Adapters::principal(slots, values, device).with_whole(whole, &of_base))
}

/// What differs of the weights that are trained as a whole.
fn other_whole_weights(adapter: &Adapter, whole: &[WholeWeight]) -> Option<String> {
    let has: Vec<&str> = adapter.saved_weights().map(|(name, _)| name).collect();
    let wanted: Vec<&str> = whole.iter().map(|weight| weight.name).collect();
    (has != wanted).then(|| {
        let modules = adapter.config.modules_to_save.clone().unwrap_or_default();
        format!(
            "its whole weights are {has:?}, here they are {wanted:?}; set lora.modules_to_save = {modules:?}"
        )
    })
}

/// How many modules a message names.
const NAMED: usize = 3;

/// What [lora] has otherwise, a text for each kind of difference.
fn differences(adapter: &Adapter, scalings: &Scalings, slots: &[AdapterSlot]) -> Vec<String> {
    let config = &adapter.config;
    let wanted: BTreeMap<&str, &AdapterSlot> = slots
        .iter()
        .map(|slot| (slot.module.as_str(), slot))
        .collect();
    let mut found = Vec::new();
    let missing = wanted.keys().filter(|name| !scalings.contains_key(**name));
    let extra = scalings.keys().map(String::as_str);
    let extra = extra.filter(|name| !wanted.contains_key(name));
    for (what, names) in [
        (
            "it has no factors for",
            missing.copied().collect::<Vec<_>>(),
        ),
        ("[lora] leaves out its", extra.collect()),
    ] {
        if !names.is_empty() {
            let more = names.len().saturating_sub(NAMED);
            let more = (more > 0).then(|| format!(" and {more} more"));
            let names = names[..names.len().min(NAMED)].join(", ");
            let targets = config.target_modules.as_ref().map(serde_json::to_string);
            let targets = targets.and_then(Result::ok).unwrap_or_default();
            found.push(format!(
                "{what} {names}{}; set lora.target_modules = {targets}",
                more.unwrap_or_default()
            ));
        }
    }
    let both = || {
        wanted
            .values()
            .filter_map(|slot| Some((slot, scalings.get(&slot.module)?)))
    };
    if let Some((slot, has)) = both().find(|(slot, has)| slot.rank != has.rank) {
        found.push(format!(
            "its rank of {} is {}, here it is {}; set lora.r = {} and its rank_pattern",
            slot.module, has.rank, slot.rank, config.r
        ));
    }
    let wants_dora = slots.iter().any(|slot| slot.magnitudes.is_some());
    if config.use_dora != wants_dora {
        found.push(format!(
            "its use_dora is {}, here it is {wants_dora}; set lora.use_dora = {}",
            config.use_dora, config.use_dora
        ));
    }
    let differs = |a: f64, b: f64| (a - b).abs() > 1e-9 * a.abs().max(b.abs());
    if let Some((slot, has)) =
        both().find(|(slot, has)| slot.rank == has.rank && differs(slot.scaling, has.scaling))
    {
        found.push(format!(
            "it multiplies {} by {}, here it would be {}; set lora.lora_alpha = {} and \
             lora.use_rslora = {}, and its alpha_pattern",
            slot.module, has.scaling, slot.scaling, config.lora_alpha, config.use_rslora
        ));
    }
    found
}
