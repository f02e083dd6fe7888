//! Rank and scaling of every module of an adapter, and conversion to the equivalent plain LoRA.
//!
//! A module's weight becomes `W + scaling · B·A`. Each program derives `scaling` from the config by
//! its own rules (see [`super::consumers`]).

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::path::Path;

use super::check_pairs;
use super::consumers::PeftRules;
use super::{
    A_SUFFIX, Adapter, B_SUFFIX, MAGNITUDE_SUFFIX, PeftConfig, SAVED_WEIGHTS, TENSORS_FILE,
    TargetModules,
};
use crate::error::CheckpointError;
use crate::weights::HostTensor;

/// Rank of one module and the scaling of `B·A`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModuleScaling {
    /// Rows of A, columns of B.
    pub rank: usize,
    /// The number that `B·A` is multiplied by.
    pub scaling: f64,
}

/// The adapted modules by their path in the model.
pub type Scalings = BTreeMap<String, ModuleScaling>;

/// The two factors of one module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'a> {
    pub(crate) module: &'a str,
    /// `[rank, in]`.
    pub(crate) a: &'a HostTensor,
    /// `[out, rank]`.
    pub(crate) b: &'a HostTensor,
    /// `[out]`, only with DoRA.
    pub(crate) magnitudes: Option<&'a HostTensor>,
}

impl Pair<'_> {
    pub(crate) fn rank(&self) -> usize {
        self.a.shape[0]
    }
}

/// The factors by module, sorted by name.
///
/// # Errors
///
/// A tensor is not a LoRA factor, lacks its other half, or has a shape that does not fit the other
/// half or its number of values.
pub(crate) fn pairs(
    tensors: &BTreeMap<String, HostTensor>,
) -> Result<Vec<Pair<'_>>, CheckpointError> {
    check_pairs(Path::new(TENSORS_FILE), tensors)?;
    let mut pairs = Vec::with_capacity(tensors.len() / 2);
    for (name, a) in tensors {
        let Some(module) = name.strip_suffix(A_SUFFIX) else {
            continue;
        };
        let Some(b) = tensors.get(&format!("{module}{B_SUFFIX}")) else {
            continue;
        };
        for (suffix, tensor) in [(A_SUFFIX, a), (B_SUFFIX, b)] {
            if tensor.shape.iter().product::<usize>() != tensor.values.len() {
                return Err(CheckpointError::ShapeMismatch {
                    tensor: format!("{module}{suffix}"),
                    shape: tensor.shape.clone(),
                    n_values: tensor.values.len(),
                });
            }
        }
        let magnitudes = tensors.get(&format!("{module}{MAGNITUDE_SUFFIX}"));
        pairs.push(Pair {
            module,
            a,
            b,
            magnitudes,
        });
    }
    Ok(pairs)
}

/// The pairs of the modules in `scalings`, each with its scaling.
///
/// # Errors
///
/// As for [`pairs`], or a module of `scalings` has no factors, or factors with a different rank.
pub(crate) fn scaled_pairs<'a>(
    tensors: &'a BTreeMap<String, HostTensor>,
    scalings: &Scalings,
) -> Result<Vec<(Pair<'a>, f64)>, CheckpointError> {
    let path = Path::new(TENSORS_FILE);
    let mut scaled = Vec::with_capacity(scalings.len());
    for pair in pairs(tensors)? {
        let Some(scaling) = scalings.get(pair.module) else {
            continue;
        };
        if scaling.rank != pair.rank() {
            let problem = format!(
                "the factors have rank {}, but the config sets {}",
                pair.rank(),
                scaling.rank
            );
            return Err(CheckpointError::malformed(path, pair.module, problem));
        }
        scaled.push((pair, scaling.scaling));
    }
    let has_pair = |module: &String| scaled.iter().any(|(pair, _)| pair.module == module);
    match scalings.keys().find(|module| !has_pair(module)) {
        None => Ok(scaled),
        Some(module) => Err(CheckpointError::UnknownTensor {
            path: path.to_owned(),
            tensor: format!("{module}{A_SUFFIX}"),
            hint: ", although its module has a scaling".to_owned(),
        }),
    }
}

/// An equivalent adapter that has the same meaning in every program: B is multiplied by the
/// scaling, all ranks are zero-padded to the largest, `lora_alpha = r`, and the config has no field
/// that a program could ignore.
///
/// The product of B and its scaling is rounded to f32 once; a scaling of 1 changes nothing. The
/// targets of `config` are kept if they match `scalings`; otherwise each module is listed.
///
/// # Errors
///
/// A tensor lacks its other half, or a module of `scalings` has no factors.
pub fn neutral(
    config: &PeftConfig,
    tensors: &BTreeMap<String, HostTensor>,
    scalings: &Scalings,
) -> Result<Adapter, CheckpointError> {
    let scaled = scaled_pairs(tensors, scalings)?;
    let ranks = scaled.iter().map(|(pair, _)| pair.rank());
    let rank = ranks.max().unwrap_or(config.r);
    let mut folded = BTreeMap::new();
    for (pair, scaling) in &scaled {
        let [a_name, b_name] = [A_SUFFIX, B_SUFFIX].map(|end| format!("{}{end}", pair.module));
        folded.insert(a_name, with_rows(pair.a, rank));
        let b = with_columns(&multiply(pair.b, *scaling), rank);
        folded.insert(b_name, b);
        if let Some(magnitudes) = pair.magnitudes {
            let name = format!("{}{MAGNITUDE_SUFFIX}", pair.module);
            folded.insert(name, magnitudes.clone());
        }
    }
    for name in SAVED_WEIGHTS {
        let weight = tensors.get(name).cloned();
        folded.extend(weight.map(|weight| (name.to_owned(), weight)));
    }
    let mut config = config.without_variants();
    config.r = rank;
    config.lora_alpha = rank as f64;
    config.lora_dropout = 0.0;
    let rules = PeftRules::new(&config)?;
    let targeted = scalings.keys().all(|module| rules.targets(module));
    if !targeted {
        config.target_modules = Some(TargetModules::Names(scalings.keys().cloned().collect()));
        config.exclude_modules = None;
        config.layers_to_transform = None;
        config.layers_pattern = None;
    }
    Ok(Adapter {
        config,
        tensors: folded,
    })
}

/// `tensor · factor`, rounded once.
pub(crate) fn multiply(tensor: &HostTensor, factor: f64) -> HostTensor {
    let values = tensor.values.iter();
    HostTensor {
        shape: tensor.shape.clone(),
        values: values
            .map(|&value| (f64::from(value) * factor) as f32)
            .collect(),
    }
}

fn with_rows(matrix: &HostTensor, n_rows: usize) -> HostTensor {
    let n_columns = matrix.shape[1];
    let mut values = matrix.values.clone();
    values.resize(n_rows * n_columns, 0.0);
    HostTensor {
        shape: vec![n_rows, n_columns],
        values,
    }
}

fn with_columns(matrix: &HostTensor, n_columns: usize) -> HostTensor {
    let (n_rows, n_existing) = (matrix.shape[0], matrix.shape[1]);
    let rows = (0..n_rows).map(|row| &matrix.values[row * n_existing..(row + 1) * n_existing]);
    let padded = rows.flat_map(|row| {
        row.iter()
            .copied()
            .chain(repeat_n(0.0, n_columns - n_existing))
    });
    HostTensor {
        values: padded.collect(),
        shape: vec![n_rows, n_columns],
    }
}
