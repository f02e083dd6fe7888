//! Writes an adapter as GGUF. The file has only one alpha, so B is multiplied by the scalings that
//! alpha cannot express.

use std::borrow::Cow;
use std::path::Path;

use tooltune_disk::atomic::create_in_parts;

use super::{ADAPTER_TYPE, ALPHA, GgufArchitecture, GgufBase, TYPE, is_linear};
use crate::adapter::Adapter;
use crate::adapter::scaling::{Pair, Scalings, multiply, scaled_pairs};
use crate::error::CheckpointError;
use crate::weights::gguf::ARCHITECTURE;
use crate::weights::gguf_write::{GgufHeader, padding};
use crate::weights::{FloatDtype, HeadOrder, HostTensor, NewTensor, write_values};

/// Writes an adapter as a GGUF file for llama.cpp, with values in `dtype`.
///
/// llama.cpp scales each module by `alpha / rank`, with the rank of the module and one alpha per
/// file. The file stores the alpha that fits most modules of `scalings`, whose factors stay
/// unchanged. For the other modules (`alpha_pattern`, or rsLoRA with unequal ranks) B is multiplied
/// by the remaining factor in f32. Every value is rounded to `dtype` once. Modules that are not in
/// `scalings` are omitted.
///
/// # Errors
///
/// - `path` exists or cannot be written. No partial file remains.
/// - A module has no GGUF name, or is the output layer of a model that ties it. The error lists all
///   such modules.
/// - The adapter has DoRA magnitudes or fully trained weights, which GGUF adapters cannot store.
/// - A value or scaling is not finite, or a value exceeds the range of `dtype`.
/// - A tensor lacks its other half, or its rows do not divide into heads.
///
/// # Source
///
/// ggml-org/llama.cpp, `src/llama-adapter.h`, `llama_adapter_lora_weight::get_scale`.
pub fn write_gguf_adapter(
    path: &Path,
    adapter: &Adapter,
    scalings: &Scalings,
    base: &GgufBase,
    dtype: FloatDtype,
) -> Result<(), CheckpointError> {
    if let Some(parts) = adapter.non_lora_parts() {
        return Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: format!("a GGUF adapter with {parts}"),
            fix: "llama.cpp loads only low-rank factors; export the merged model with \
                  --to gguf --merged",
        });
    }
    let scaled = scaled_pairs(&adapter.tensors, scalings)?;
    check_scalings(scalings)?;
    let modules = gguf_names(path, &scaled, base)?;
    let alpha = common_alpha(&scaled);
    let mut header = GgufHeader::default();
    header.text(TYPE.0, TYPE.1);
    header.text(ARCHITECTURE, base.architecture.name());
    header.text(ADAPTER_TYPE.0, ADAPTER_TYPE.1);
    header.f32(ALPHA, alpha);
    let mut planned = Vec::with_capacity(modules.len());
    for ((pair, _), gguf) in scaled.iter().zip(&modules) {
        let new = |end: &str, tensor: &HostTensor| NewTensor {
            name: format!("{gguf}.weight.{end}"),
            shape: tensor.shape.clone(),
            dtype,
        };
        let news = [new("lora_a", pair.a), new("lora_b", pair.b)];
        for new in &news {
            let overflow = || CheckpointError::SizeOverflow {
                path: path.to_owned(),
                tensor: new.name.clone(),
                shape: new.shape.iter().map(|&dim| dim as u64).collect(),
            };
            header.tensor(new).ok_or_else(overflow)?;
        }
        planned.push(news);
    }
    let bytes = header.bytes();
    let n_bytes = (bytes.len() as u64).saturating_add(header.n_data_bytes());
    create_in_parts(path, n_bytes, |file| {
        file.write(&bytes)?;
        for ((pair, scaling), [new_a, new_b]) in scaled.iter().zip(&planned) {
            let [a, b] = stored_factors(path, pair, *scaling, base.architecture, alpha)?;
            for (new, tensor) in [(new_a, a), (new_b, b)] {
                write_values(file, new, Cow::Owned(tensor))?;
                file.write(padding(new.n_bytes().unwrap_or_default() as u64))?;
            }
        }
        Ok(())
    })
}

fn check_scalings(scalings: &Scalings) -> Result<(), CheckpointError> {
    let Some((module, scaling)) = scalings.iter().find(|(_, s)| !s.scaling.is_finite()) else {
        return Ok(());
    };
    let problem = format!("{module} has scaling {}; lower lora_alpha", scaling.scaling);
    Err(CheckpointError::field(
        Path::new(crate::adapter::CONFIG_FILE),
        "lora_alpha",
        problem,
    ))
}

/// The GGUF name of each module, such as `blk.0.attn_q`.
fn gguf_names(
    path: &Path,
    scaled: &[(Pair<'_>, f64)],
    base: &GgufBase,
) -> Result<Vec<String>, CheckpointError> {
    let mut modules = Vec::with_capacity(scaled.len());
    let mut unnamed = Vec::new();
    for (pair, _) in scaled {
        let gguf = base.architecture.family.gguf_module(pair.module);
        let is_adapted = |gguf: &str| is_linear(gguf) && !(gguf == "output" && base.tied_head);
        match gguf.filter(|gguf| is_adapted(gguf)) {
            Some(gguf) => modules.push(gguf),
            None => unnamed.push(pair.module.to_owned()),
        }
    }
    if unnamed.is_empty() {
        return Ok(modules);
    }
    Err(CheckpointError::UnmatchedModules {
        path: path.to_owned(),
        modules: unnamed,
        fix: "a GGUF adapter covers only the projections in the blocks and an untied output \
              layer; train without these targets, or merge the adapter",
    })
}

/// The alpha that llama.cpp must divide by the rank to get the scaling.
fn required_alpha(pair: &Pair<'_>, scaling: f64) -> f32 {
    (scaling * pair.rank() as f64) as f32
}

/// The alpha of most modules. On a tie, the first module by name decides.
///
/// It is never zero, which would mean "no scaling" in llama.cpp.
fn common_alpha(scaled: &[(Pair<'_>, f64)]) -> f32 {
    let mut counts: Vec<(f32, usize)> = Vec::new();
    for alpha in scaled
        .iter()
        .map(|(pair, scaling)| required_alpha(pair, *scaling))
    {
        if alpha == 0.0 || !alpha.is_finite() {
            continue;
        }
        match counts.iter_mut().find(|(counted, _)| *counted == alpha) {
            Some((_, count)) => *count += 1,
            None => counts.push((alpha, 1)),
        }
    }
    let max_count = counts.iter().map(|(_, count)| *count).max();
    let common = counts.iter().find(|(_, count)| Some(*count) == max_count);
    common.map_or(1.0, |(alpha, _)| *alpha)
}

/// Reorders the columns of A and the rows of B for llama.cpp. Also multiplies B by the part of the
/// scaling that `alpha / rank` does not cover.
fn stored_factors(
    path: &Path,
    pair: &Pair<'_>,
    scaling: f64,
    architecture: GgufArchitecture,
    alpha: f32,
) -> Result<[HostTensor; 2], CheckpointError> {
    let b = if required_alpha(pair, scaling) == alpha {
        pair.b.clone()
    } else {
        multiply(pair.b, scaling * pair.rank() as f64 / f64::from(alpha))
    };
    let [n_out, n_in] = [b.shape[0], pair.a.shape[1]];
    let order = architecture.order(path, pair.module, &[n_out, n_in])?;
    let ordered = |order: HeadOrder, tensor: HostTensor| HostTensor {
        values: order.apply(tensor.values, &tensor.shape),
        shape: tensor.shape,
    };
    let a = ordered(order.columns_only(), pair.a.clone());
    Ok([a, ordered(order.rows_only(), b)])
}
