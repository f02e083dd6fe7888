//! Chooses the weights of merged exports of runs with NF4 weights.

use tooltune_checkpoints::ModelFiles;

use crate::base_model::BaseModel;
use crate::cli::MergeOnto;
use crate::config::Config;
use crate::device;
use crate::error::Error;
use crate::export::{MergeBase, Nf4Projections};
use crate::models::load::Quantization;
use crate::settings;

/// The weights that an adapter is merged onto, if it was trained with NF4 weights: `set`, or by
/// default the values of training.
///
/// # Errors
///
/// `set` does not apply, or the base does not have these weights.
pub(super) fn merge_base(
    set: Option<MergeOnto>,
    base: &BaseModel,
    has_adapter: bool,
) -> Result<Option<MergeBase>, Error> {
    let choices = match has_adapter {
        true => MergeBase::choices(base),
        false => &[],
    };
    let set = set.map(|set| match set {
        MergeOnto::Dequantised => MergeBase::Dequantised,
        MergeOnto::Original => MergeBase::Original,
    });
    match (choices.first(), set) {
        (None, None) => Ok(None),
        (Some(default), None) => Ok(Some(*default)),
        (Some(_), Some(set)) if choices.contains(&set) => Ok(Some(set)),
        (Some(_), Some(_)) => Err(Error::Usage(format!(
            "--base original: {} contains only NF4 weights; omit --base",
            base.path.display()
        ))),
        (None, Some(_)) => Err(Error::Usage(
            "--base only applies to adapters that were trained with NF4 weights; omit it, or add \
             --set model.quantization=nf4 for a QLoRA adapter of another program"
                .to_owned(),
        )),
    }
}

/// Describes the weights of a merge.
pub(super) fn merge_remark(onto: MergeBase, base: &BaseModel) -> String {
    let path = base.path.display();
    let name = onto.name();
    match (onto, MergeBase::choices(base).len()) {
        (MergeBase::Dequantised, 1) => {
            format!("the adapter is merged onto the {name} of {path}, with which it was trained")
        }
        (MergeBase::Dequantised, _) => format!(
            "the adapter is merged onto the {name} of {path}, with which it was trained; --base \
             original uses the weights before quantisation"
        ),
        (MergeBase::Original, _) => format!(
            "the adapter is merged onto the {name} of {path}, but it was trained with their NF4 \
             values; compare both with `tooltune verify --against merged`"
        ),
    }
}

/// The projections that an export quantises: to write them in NF4, or to merge onto their NF4
/// values.
///
/// # Errors
///
/// The device of the config cannot be opened, which `model.compute_dtype = "auto"` requires.
pub(in crate::commands) fn projections(
    config: &Config,
    base: &BaseModel,
    onto: Option<MergeBase>,
    writes_nf4: bool,
) -> Result<Option<Nf4Projections>, Error> {
    if onto != Some(MergeBase::Dequantised) && !writes_nf4 {
        return Ok(None);
    }
    let device = device::open(config.device)?;
    let compute_dtype = settings::compute_dtype(config.language_model()?.compute_dtype, &device)?;
    Ok(Some(Nf4Projections::new(base, compute_dtype)))
}

/// Whether the frozen linear layers of a run are stored in NF4. A base that is not on this machine
/// is taken for a plain model, unless the config sets its quantization.
pub(super) fn is_trained_in_nf4(config: &Config) -> bool {
    let Some(model) = &config.model else {
        return false;
    };
    let is_quantised = || {
        let files = ModelFiles::open(&model.model_name_or_path);
        files.is_ok_and(|files| files.weights.n_nf4() > 0)
    };
    let is_quantised = model.quantization.is_none() && is_quantised();
    settings::quantization(config, is_quantised) == Quantization::Nf4
}
