//! Writes a base model with an adapter merged into its weights as one GGUF file.
//!
//! The metadata of a GGUF base is unchanged, except for the chat template (replaced by the template
//! used in training), the tokens added around each prompt, and the data type. For a Hugging Face
//! folder, the metadata is written from its config (`gguf_config`). Tensors are read, changed and
//! written one at a time.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tooltune_disk::atomic::{create_in_parts, write_directory, write_file};

use super::end_tokens::EndTokens;
use super::gguf_fields::Config;
use super::nf4::{Nf4Weights, base_values};
use super::{delta, pairs_by_weight, replacement_weights};
use crate::adapter::{Adapter, GgufBase, Pair, Scalings, scaled_pairs};
use crate::error::CheckpointError;
use crate::model_files::{GgufVocabulary, ModelFiles};
use crate::weights::gguf::{ARCHITECTURE, GgufFile};
use crate::weights::gguf_write::{GgufHeader, padding};
use crate::weights::stored_value::{StoredValue, gguf_shape};
use crate::weights::{GgufDtype, HeadOrder, HostTensor, NewGgufTensor, Weights};

/// Options of a merged GGUF model.
#[derive(Debug, Clone, Copy)]
pub struct GgufMergeOptions<'a> {
    /// The data type of the matrices.
    pub dtype: GgufDtype,
    /// The chat template used in training, which replaces the base's template.
    pub chat_template: Option<&'a str>,
    /// Whether llama.cpp prepends the beginning-of-text token to each prompt. `None` keeps the
    /// setting of the base or the vocabulary.
    pub add_bos: Option<bool>,
    /// The vocabulary, for a base that is not a GGUF file.
    pub vocabulary: Option<&'a GgufVocabulary>,
    /// Weights of a plain base whose NF4 values are merged instead of their original values.
    pub dequantised: Option<Nf4Weights<'a>>,
}

/// Metadata keys that are always rewritten.
const FILE_TYPE: &str = "general.file_type";
const QUANTIZATION_VERSION: &str = "general.quantization_version";
const TEMPLATE: &str = "tokenizer.chat_template";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// Keys that make llama.cpp append tokens to each prompt. They are dropped, because training
/// appends none.
const SUFFIX_KEYS: [&str; 2] = [
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_sep_token",
];

/// Prefixes of keys that are dropped, because they describe the layout or quantisation of the base
/// file.
const FILE_KEYS: [&str; 3] = ["general.alignment", "split.", "quantize."];

/// The reason why llama.cpp cannot compute the model at `base`: a config setting, or tensors that
/// the architecture does not have. `None` if it can. A GGUF file is always accepted, because it is
/// llama.cpp's own format.
///
/// # Errors
///
/// A size in the config is not a number.
pub fn refused_by_llama_cpp(
    base: &Path,
    files: &ModelFiles,
) -> Result<Option<CheckpointError>, CheckpointError> {
    if files.weights.is_gguf() {
        return Ok(None);
    }
    refusal(base, &files.config, Some(&files.weights))
}

/// Like [`refused_by_llama_cpp`], for a model without its weights. Checks only its `config.json`.
///
/// # Errors
///
/// As [`refused_by_llama_cpp`].
pub fn config_refused_by_llama_cpp(
    base: &Path,
    config: &Value,
) -> Result<Option<CheckpointError>, CheckpointError> {
    refusal(base, config, None)
}

fn refusal(
    base: &Path,
    config: &Value,
    weights: Option<&Weights>,
) -> Result<Option<CheckpointError>, CheckpointError> {
    let gguf_base = GgufBase::from_config(base, config)?;
    let fields = Config {
        path: base,
        fields: config,
        family: gguf_base.architecture.family(),
    };
    let check_names = |weights| gguf_names(weights, gguf_base).map(drop);
    let metadata = fields.write(&mut GgufHeader::default());
    match metadata.and_then(|_| weights.map_or(Ok(()), check_names)) {
        Ok(()) => Ok(None),
        Err(
            refused @ (CheckpointError::Unsupported { .. }
            | CheckpointError::UnmatchedModules { .. }),
        ) => Ok(Some(refused)),
        Err(error) => Err(error),
    }
}

/// Merges `adapter` into the model at `base` (see [`ModelFiles::open`]), and writes the result as
/// the new GGUF file `path`.
///
/// Sums are computed in f32 and rounded once. Vectors are written in f32, as llama.cpp requires.
///
/// # Errors
///
/// - `path` exists or cannot be written, or a file of the base cannot be read.
/// - The base lacks modules of the adapter, or the shapes of factors do not match.
/// - A sum exceeds the range of the data type. The error names the tensor and the element.
/// - A safetensors base uses a feature that llama.cpp does not support for its architecture, such
///   as RoPE scaling, an attention window or a bias, or `vocabulary` is missing.
pub fn save_merged_gguf(
    path: &Path,
    base: &Path,
    adapter: &Adapter,
    scalings: &Scalings,
    options: &GgufMergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let files = ModelFiles::open(base)?;
    let scaled = scaled_pairs(&adapter.tensors, scalings)?;
    let pairs_by_weight = pairs_by_weight(&files, &scaled)?;
    let gguf_base = GgufBase::from_config(base, &files.config)?;
    let gguf_file = match files.weights.paths().next() {
        Some(file) if files.weights.is_gguf() => Some(GgufFile::open(file)?),
        _ => None,
    };
    let model = Model {
        files: &files,
        base: gguf_base,
        gguf_file: gguf_file.as_ref(),
        pairs_by_weight,
        replacements: replacement_weights(&files, adapter)?,
        dequantised: options.dequantised,
    };
    let (mut header, tensors) = match &gguf_file {
        Some(gguf_file) => plan_gguf(gguf_file, &model, options)?,
        None => plan_folder(base, &model, options)?,
    };
    for tensor in &tensors {
        let shape: Vec<u64> = tensor.new.shape().iter().map(|&dim| dim as u64).collect();
        let overflow = || CheckpointError::SizeOverflow {
            path: path.to_owned(),
            tensor: tensor.new.name().to_owned(),
            shape: shape.clone(),
        };
        let n_bytes = tensor.new.n_bytes().ok_or_else(overflow)?;
        header
            .place(tensor.new.name(), &shape, tensor.new.gguf_type(), n_bytes)
            .ok_or_else(overflow)?;
    }
    let bytes = header.bytes();
    let n_bytes = (bytes.len() as u64).saturating_add(header.n_data_bytes());
    create_in_parts(path, n_bytes, |file| {
        file.write(&bytes)?;
        for tensor in &tensors {
            tensor.new.write(file, model.values(path, tensor)?)?;
            file.write(padding(tensor.new.n_bytes().unwrap_or_default()))?;
        }
        Ok(())
    })
}

/// The model's file name in the folder of [`save_ollama`].
pub const OLLAMA_MODEL: &str = "model.gguf";

/// The contents of a folder for `ollama create`.
#[derive(Debug, Clone, Copy)]
pub struct OllamaFolder<'a> {
    /// Options of the model file.
    pub model: GgufMergeOptions<'a>,
    /// Additional files by name, such as `Modelfile`.
    pub files: &'a BTreeMap<String, Vec<u8>>,
}

/// Writes the folder `dir` for `ollama create`: the merged model as [`OLLAMA_MODEL`], and the files
/// of `folder`. On failure no folder remains.
///
/// # Errors
///
/// As for [`save_merged_gguf`], or `dir` exists.
pub fn save_ollama(
    dir: &Path,
    base: &Path,
    adapter: &Adapter,
    scalings: &Scalings,
    folder: &OllamaFolder<'_>,
) -> Result<(), CheckpointError> {
    write_directory(dir, |staging| {
        let model = staging.join(OLLAMA_MODEL);
        save_merged_gguf(&model, base, adapter, scalings, &folder.model)?;
        let mut files = folder.files.iter();
        Ok(files.try_for_each(|(name, bytes)| write_file(&staging.join(name), bytes))?)
    })
}

/// A model to be written: the base and the adapter.
struct Model<'a> {
    files: &'a ModelFiles,
    base: GgufBase,
    /// The base, if it is a GGUF file.
    gguf_file: Option<&'a GgufFile>,
    pairs_by_weight: BTreeMap<String, &'a (Pair<'a>, f64)>,
    /// Fully trained weights of the adapter. llama.cpp stores their rows in the same order.
    replacements: BTreeMap<&'static str, &'a HostTensor>,
    dequantised: Option<Nf4Weights<'a>>,
}

/// A tensor to be written.
struct PlannedTensor {
    new: NewGgufTensor,
    /// The Hugging Face name, if there is one.
    name: String,
    /// The values, if the base's files do not contain them.
    values: Option<Vec<f32>>,
}

impl Model<'_> {
    /// The values of a tensor, with rows in llama.cpp's order.
    fn values(&self, path: &Path, planned: &PlannedTensor) -> Result<HostTensor, CheckpointError> {
        if let Some(weight) = self.replacements.get(planned.name.as_str()) {
            return Ok((*weight).clone());
        }
        let mut tensor = match (&planned.values, self.gguf_file) {
            (Some(values), _) => HostTensor {
                shape: planned.new.shape().to_vec(),
                values: values.clone(),
            },
            // Blocks of NF4 follow the rows of Hugging Face.
            (None, Some(gguf_file)) if !self.is_dequantised(&planned.name) => {
                let name = planned.new.name();
                let missing =
                    || CheckpointError::malformed(gguf_file.metadata.path(), name, "is missing");
                gguf_file.read_f32(name)?.ok_or_else(missing)?
            }
            (None, _) => self.converted_tensor(path, &planned.name)?,
        };
        if let Some((pair, scaling)) = self.pairs_by_weight.get(&planned.name) {
            let [n_out, n_in] = [pair.b.shape[0], pair.a.shape[1]];
            let architecture = self.base.architecture;
            let order = architecture.order(path, pair.module, &[n_out, n_in])?;
            let ordered = |order: HeadOrder, tensor: &HostTensor| HostTensor {
                shape: tensor.shape.clone(),
                values: order.apply(tensor.values.clone(), &tensor.shape),
            };
            let a = ordered(order.columns_only(), pair.a);
            let b = ordered(order.rows_only(), pair.b);
            let magnitudes = pair.magnitudes.map(|m| ordered(order.rows_only(), m));
            let pair = Pair {
                a: &a,
                b: &b,
                magnitudes: magnitudes.as_ref(),
                ..*pair
            };
            delta::add(&mut tensor, &pair, *scaling);
        }
        Ok(tensor)
    }

    /// Whether the merge starts from the NF4 values of a weight.
    fn is_dequantised(&self, name: &str) -> bool {
        let weights = &self.files.weights;
        self.dequantised
            .is_some_and(|nf4| nf4.contains(weights, name))
    }

    /// A tensor with its Hugging Face name, converted to llama.cpp's row order, values and
    /// dimensions.
    fn converted_tensor(&self, path: &Path, name: &str) -> Result<HostTensor, CheckpointError> {
        let weights = &self.files.weights;
        let HostTensor { shape, mut values } = base_values(weights, name, self.dequantised)?;
        let architecture = self.base.architecture;
        StoredValue::for_tensor(architecture.family(), name).apply(&mut values);
        let order = architecture.order_of_tensor(path, name, &shape)?;
        Ok(HostTensor {
            values: order.apply(values, &shape),
            shape: gguf_shape(name, &shape),
        })
    }
}

/// Header and tensors of a GGUF base, in the base's order.
fn plan_gguf(
    gguf_file: &GgufFile,
    model: &Model<'_>,
    options: &GgufMergeOptions<'_>,
) -> Result<(GgufHeader, Vec<PlannedTensor>), CheckpointError> {
    let mut header = GgufHeader::default();
    let is_file_key = |key: &str| FILE_KEYS.iter().any(|start| key.starts_with(start));
    for entry in gguf_file.raw_entries() {
        let (key, bytes) = entry?;
        let is_new = [FILE_TYPE, QUANTIZATION_VERSION].contains(&key)
            || (key == TEMPLATE && options.chat_template.is_some())
            || (key == ADD_BOS && options.add_bos.is_some());
        let is_left_out = is_file_key(key) || SUFFIX_KEYS.contains(&key);
        if !is_new && !is_left_out {
            header.raw(&bytes);
        }
    }
    write_options(&mut header, options);
    let family = model.base.architecture.family();
    let tensors = gguf_file.tensor_names().map(|name| PlannedTensor {
        new: options
            .dtype
            .tensor(name, gguf_file.shape(name).unwrap_or_default()),
        name: family.hugging_face_tensor(name),
        values: None,
    });
    let tensors = tensors.collect();
    Ok((header, tensors))
}

/// Writes the metadata that the options set.
fn write_options(header: &mut GgufHeader, options: &GgufMergeOptions<'_>) {
    header.u32(FILE_TYPE, options.dtype.file_type());
    if options.dtype == GgufDtype::Q8_0 {
        // ggml-org/ggml, `include/ggml.h`, `GGML_QNT_VERSION`.
        header.u32(QUANTIZATION_VERSION, 2);
    }
    if let Some(template) = options.chat_template {
        header.text(TEMPLATE, template);
    }
    if let Some(add_bos) = options.add_bos {
        header.bool(ADD_BOS, add_bos);
    }
}

/// Header and tensors of a Hugging Face folder.
///
/// # Source
///
/// ggml-org/llama.cpp, `convert_hf_to_gguf.py`, `TextModel.set_gguf_parameters`.
fn plan_folder(
    base: &Path,
    model: &Model<'_>,
    options: &GgufMergeOptions<'_>,
) -> Result<(GgufHeader, Vec<PlannedTensor>), CheckpointError> {
    let family = model.base.architecture.family();
    let config = Config {
        path: base,
        fields: &model.files.config,
        family,
    };
    let Some(vocabulary) = options.vocabulary else {
        return Err(config.unsupported("a GGUF file without a vocabulary".to_owned()));
    };
    let mut header = GgufHeader::default();
    header.text(ARCHITECTURE, family.gguf.architecture);
    header.text("general.type", "model");
    let extra_tensors = config.write(&mut header)?;
    write_vocabulary(&mut header, vocabulary, &model.files.eos_token_ids);
    let template = options
        .chat_template
        .or(model.files.chat_template.as_deref());
    let options = &GgufMergeOptions {
        chat_template: template,
        add_bos: options.add_bos.or(vocabulary.add_bos),
        ..*options
    };
    write_options(&mut header, options);
    let mut tensors = Vec::new();
    for (name, values) in extra_tensors {
        tensors.push(PlannedTensor {
            new: options.dtype.tensor(name, &[values.len()]),
            name: name.to_owned(),
            values: Some(values),
        });
    }
    tensors.extend(with_gguf_names(&model.files.weights, model, options)?);
    Ok((header, tensors))
}

/// The tensors of a folder with their GGUF names.
fn with_gguf_names(
    weights: &Weights,
    model: &Model<'_>,
    options: &GgufMergeOptions<'_>,
) -> Result<Vec<PlannedTensor>, CheckpointError> {
    let tensors = gguf_names(weights, model.base)?;
    let tensors = tensors.into_iter().map(|(name, gguf)| {
        let shape = weights.shape(name).unwrap_or_default();
        PlannedTensor {
            new: options.dtype.tensor(&gguf, &gguf_shape(name, shape)),
            name: name.to_owned(),
            values: None,
        }
    });
    Ok(tensors.collect())
}

/// Each tensor of a folder with its GGUF name, except a tied output layer.
fn gguf_names(weights: &Weights, base: GgufBase) -> Result<Vec<(&str, String)>, CheckpointError> {
    let family = base.architecture.family();
    let (mut tensors, mut unnamed) = (Vec::new(), Vec::new());
    for name in weights.names() {
        let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
        if module == "lm_head" && base.tied_head {
            continue;
        }
        let has_gguf_name = kind != "bias" || family.gguf.has_bias(module);
        match family.gguf_tensor(name).filter(|_| has_gguf_name) {
            Some(gguf) => tensors.push((name, gguf)),
            None => unnamed.push(name.to_owned()),
        }
    }
    if unnamed.is_empty() {
        return Ok(tensors);
    }
    Err(CheckpointError::UnmatchedModules {
        path: weights.origin().to_owned(),
        modules: unnamed,
        fix: "these tensors have no GGUF name; export --to merged and convert the folder with \
              llama.cpp",
    })
}

fn write_vocabulary(header: &mut GgufHeader, vocabulary: &GgufVocabulary, stop_ids: &[u32]) {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    header.text(&key("model"), &vocabulary.model);
    header.text(&key("pre"), &vocabulary.pre);
    header.texts(&key("tokens"), &vocabulary.tokens);
    header.i32s(&key("token_type"), &vocabulary.token_types);
    if !vocabulary.scores.is_empty() {
        header.f32s(&key("scores"), &vocabulary.scores);
    }
    if !vocabulary.merges.is_empty() {
        header.texts(&key("merges"), &vocabulary.merges);
    }
    let valid_ids = stop_ids.iter().copied();
    let valid_ids: Vec<u32> = valid_ids
        .filter(|id| (*id as usize) < vocabulary.tokens.len())
        .collect();
    let ends = EndTokens::assign(vocabulary.eos_token_id, &valid_ids);
    for (role, id) in [
        ("bos", vocabulary.bos_token_id),
        ("eos", ends.eos),
        ("eot", ends.eot),
        ("eom", ends.eom),
        ("padding", vocabulary.pad_token_id),
        ("unknown", vocabulary.unk_token_id),
    ] {
        if let Some(id) = id {
            header.u32(&key(&format!("{role}_token_id")), id);
        }
    }
    if let Some(adds_space) = vocabulary.adds_space {
        header.bool(&key("add_space_prefix"), adds_space);
    }
}
