//! Finds the tensors that belong to each NF4 weight, checks them, and joins them into one.

use super::layout::{NF4_BLOCK, NF4_NESTED_BLOCK, NF4_TABLE, nf4_dynamic_map};
use super::quant_state::{QuantState, REQUANTISE};
use super::read::{Span, StoredNested, StoredNf4};
use crate::budgets::QUANT_STATE_BYTES;
use crate::error::CheckpointError;
use crate::weights::encoding::Encoding;
use crate::weights::{StoredTensor, Weights};

/// Precedes the name of the layout in the name of a quantisation state.
pub(super) const STATE: &str = ".quant_state.bitsandbytes__";

/// Names of the parts after the name of the weight.
pub(super) const ABSMAX: &str = ".absmax";
pub(super) const QUANT_MAP: &str = ".quant_map";
pub(super) const NESTED_ABSMAX: &str = ".nested_absmax";
pub(super) const NESTED_QUANT_MAP: &str = ".nested_quant_map";

/// Data types in which bitsandbytes stores bytes of codes (`bnb_4bit_quant_storage`), and their
/// bytes.
const STORAGES: [(&str, usize); 6] = [
    ("U8", 1),
    ("I8", 1),
    ("F16", 2),
    ("BF16", 2),
    ("F32", 4),
    ("F64", 8),
];

/// Largest relative difference between a nested map and ours. `torch.linspace` rounds differently
/// with other vector instructions, so maps of other machines differ in the last bits.
const MAP_TOLERANCE: f32 = 1e-6;

/// Joins the parts of each NF4 weight into one tensor with the shape of its values.
///
/// Reads the quantisation states and maps, at most a few kilobytes per tensor.
///
/// # Errors
///
/// - A part is missing, belongs to no weight, or has the wrong data type, size or values.
/// - The layout is another one of bitsandbytes: FP4, other block sizes, or LLM.int8.
/// - A file cannot be read.
pub(in crate::weights) fn join(mut weights: Weights) -> Result<Weights, CheckpointError> {
    refuse_int8(&weights)?;
    let states: Vec<String> = weights
        .tensors
        .keys()
        .filter(|name| name.contains(STATE))
        .cloned()
        .collect();
    for state in states {
        let (weight, layout) = state.split_once(STATE).unwrap_or((&state, ""));
        let joined = match layout {
            "nf4" => Parts {
                weights: &mut weights,
                weight,
                state: &state,
            }
            .join()?,
            other => {
                return Err(CheckpointError::Unsupported {
                    path: path_of(&weights, &state),
                    feature: format!("the bitsandbytes layout {other:?} of tensor {weight}"),
                    fix: REQUANTISE,
                });
            }
        };
        weights.tensors.insert(weight.to_owned(), joined);
    }
    refuse_orphans(&weights)?;
    Ok(weights)
}

/// Refuses the layout of `load_in_8bit`: i8 with one f32 per row in `SCB`.
fn refuse_int8(weights: &Weights) -> Result<(), CheckpointError> {
    let is_int8 = |module: &str| {
        let weight = weights.tensors.get(&format!("{module}.weight"));
        weight.is_some_and(|weight| weight.encoding.name() == "I8")
    };
    let mut modules = weights
        .tensors
        .keys()
        .filter_map(|name| name.strip_suffix(".SCB"));
    match modules.find(|module| is_int8(module)) {
        None => Ok(()),
        Some(module) => Err(CheckpointError::Unsupported {
            path: path_of(weights, &format!("{module}.SCB")),
            feature: format!("the 8-bit layout of bitsandbytes (load_in_8bit) of {module}"),
            fix: REQUANTISE,
        }),
    }
}

/// Refuses parts without a quantisation state.
fn refuse_orphans(weights: &Weights) -> Result<(), CheckpointError> {
    for name in weights.tensors.keys() {
        let parts = [NESTED_ABSMAX, NESTED_QUANT_MAP, ABSMAX, QUANT_MAP];
        let owner = parts.iter().find_map(|part| name.strip_suffix(part));
        let Some(owner) = owner.filter(|owner| weights.tensors.contains_key(*owner)) else {
            continue;
        };
        let problem =
            format!("is a part of {owner}, which has no part {owner}{STATE}nf4 that uses it");
        return Err(CheckpointError::malformed(
            &path_of(weights, name),
            format!("tensor {name}"),
            problem,
        ));
    }
    Ok(())
}

/// The file of a tensor; the opened path if there is no such tensor.
fn path_of(weights: &Weights, name: &str) -> std::path::PathBuf {
    let tensor = weights.tensors.get(name);
    let file = tensor.map(|tensor| weights.files[tensor.file_idx].path());
    file.unwrap_or(&weights.origin).to_owned()
}

/// The parts of one weight, which are taken out of `weights`.
struct Parts<'a> {
    weights: &'a mut Weights,
    /// Name of the weight.
    weight: &'a str,
    /// Name of its quantisation state.
    state: &'a str,
}

impl Parts<'_> {
    fn join(mut self) -> Result<StoredTensor, CheckpointError> {
        let state = self.quant_state()?;
        let codes = self.take("")?;
        self.check_codes(&codes, state.n_values)?;
        let n_blocks = state.n_values.div_ceil(NF4_BLOCK);
        let map = self.floats::<16>(QUANT_MAP)?;
        if map.map(f32::to_bits) != NF4_TABLE.map(f32::to_bits) {
            return Err(self.malformed(QUANT_MAP, "its values are not those of NF4".to_owned()));
        }
        let has_nested = self.has(NESTED_ABSMAX) || self.has(NESTED_QUANT_MAP);
        if has_nested && state.nested_offset.is_none() {
            let problem = format!(
                "it has no nested_offset, but {}{NESTED_ABSMAX} exists",
                self.weight
            );
            return Err(self.malformed(&self.state[self.weight.len()..], problem));
        }
        let (absmax, nested) = match state.nested_offset {
            None => (self.part(ABSMAX, "F32", n_blocks)?, None),
            Some(offset) => {
                let absmax = self.part(ABSMAX, "U8", n_blocks)?;
                let n_nested = n_blocks.div_ceil(NF4_NESTED_BLOCK);
                let nested = StoredNested {
                    scales: self.part(NESTED_ABSMAX, "F32", n_nested)?,
                    offset,
                    map: self.nested_map()?,
                };
                (absmax, Some(nested))
            }
        };
        let parts = StoredNf4 {
            dtype: state.dtype,
            absmax,
            nested,
        };
        Ok(StoredTensor {
            shape: state.shape,
            encoding: Encoding::Nf4(Box::new(parts)),
            ..codes
        })
    }

    fn quant_state(&mut self) -> Result<QuantState, CheckpointError> {
        let part = &self.state[self.weight.len()..];
        let tensor = self.take(part)?;
        let path = self.weights.files[tensor.file_idx].path();
        let n_bytes = tensor.n_bytes();
        if tensor.encoding.name() != "U8" || n_bytes > QUANT_STATE_BYTES {
            let problem = format!(
                "it has {n_bytes} bytes of {}, but at most {QUANT_STATE_BYTES} of U8 are read \
                 (QUANT_STATE_BYTES in docs/limits.md)",
                tensor.encoding.name()
            );
            let location = format!("tensor {}", self.state);
            return Err(CheckpointError::malformed(path, location, problem));
        }
        let mut text = vec![0; n_bytes as usize];
        self.weights.files[tensor.file_idx].read_at(tensor.offset, &mut text)?;
        QuantState::parse(path, self.state, &text)
    }

    /// Checks that the codes are a column of bytes, in any data type, for this number of values.
    fn check_codes(&self, codes: &StoredTensor, n_values: usize) -> Result<(), CheckpointError> {
        let dtype = codes.encoding.name();
        let storage = STORAGES.iter().find(|(name, _)| *name == dtype);
        let Some((_, width)) = storage else {
            let problem = format!(
                "its codes are stored as {dtype}; expected one of U8, I8, F16, BF16, F32 and F64"
            );
            return Err(self.malformed("", problem));
        };
        let expected = n_values.div_ceil(2);
        let column = [expected / width, 1];
        if codes.shape != column || expected as u64 != codes.n_bytes() {
            let problem = format!(
                "it has {} bytes of codes in the shape {:?}, but the {n_values} values of its \
                 quant_state need {expected} bytes in a column",
                codes.n_bytes(),
                codes.shape
            );
            return Err(self.malformed("", problem));
        }
        Ok(())
    }

    /// The nested map, checked to be ours up to rounding.
    fn nested_map(&mut self) -> Result<Box<[f32; 256]>, CheckpointError> {
        let map = self.floats::<256>(NESTED_QUANT_MAP)?;
        let ours = nf4_dynamic_map().iter();
        let differs = |(value, ours): (&f32, &f32)| {
            let is_close = (value - ours).abs() <= MAP_TOLERANCE * ours.abs();
            !is_close
        };
        match map.iter().zip(ours).position(differs) {
            None => Ok(Box::new(map)),
            Some(index) => {
                let problem = format!(
                    "its value {index} is {}, but the dynamic map of bitsandbytes has {}",
                    map[index],
                    nf4_dynamic_map()[index]
                );
                Err(self.malformed(NESTED_QUANT_MAP, problem))
            }
        }
    }

    /// Reads a part of N f32 values.
    fn floats<const N: usize>(&mut self, part: &str) -> Result<[f32; N], CheckpointError> {
        let span = self.part(part, "F32", N)?;
        let mut bytes = [[0; 4]; N];
        self.weights.files[span.file_idx].read_at(span.offset, bytes.as_flattened_mut())?;
        Ok(bytes.map(f32::from_le_bytes))
    }

    /// Takes out a part, which must be a vector of `n` values of this data type.
    fn part(&mut self, part: &str, dtype: &str, n: usize) -> Result<Span, CheckpointError> {
        let tensor = self.take(part)?;
        let width = if dtype == "U8" { 1 } else { 4 };
        let is_expected = tensor.encoding.name() == dtype
            && tensor.shape == [n]
            && tensor.n_bytes() == (n as u64).saturating_mul(width);
        if !is_expected {
            let problem = format!(
                "it has the shape {:?} of {}; expected {:?} of {dtype}",
                tensor.shape,
                tensor.encoding.name(),
                [n]
            );
            return Err(self.malformed(part, problem));
        }
        Ok(Span {
            file_idx: tensor.file_idx,
            offset: tensor.offset,
        })
    }

    fn has(&self, part: &str) -> bool {
        let name = format!("{}{part}", self.weight);
        self.weights.tensors.contains_key(&name)
    }

    /// Takes out the tensor of a part.
    fn take(&mut self, part: &str) -> Result<StoredTensor, CheckpointError> {
        let name = format!("{}{part}", self.weight);
        self.weights.tensors.remove(&name).ok_or_else(|| {
            let problem = format!("{} needs it and it is missing", self.weight);
            self.malformed(part, problem)
        })
    }

    fn malformed(&self, part: &str, problem: String) -> CheckpointError {
        let name = format!("{}{part}", self.weight);
        CheckpointError::malformed(&self.weights.origin, format!("tensor {name}"), problem)
    }
}
