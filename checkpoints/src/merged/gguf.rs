//! A base model with an adapter added to its weights, as one GGUF file.
//!
//! Of a GGUF base all metadata stay as they are, but for the chat template that training used and
//! the format of the numbers. Of a Hugging Face folder they are written from its config
//! (`gguf_config`). Tensors are read, changed and written one at a time.

use std::collections::BTreeMap;
use std::path::Path;

use super::gguf_config::Config;
use super::{by_weight, delta, replaced};
use crate::adapter::{Adapter, GgufBase, Pair, Scalings, scaled_pairs};
use crate::atomic::{create_in_parts, write_directory, write_file};
use crate::error::CheckpointError;
use crate::model_files::{GgufVocabulary, ModelFiles};
use crate::weights::gguf::{ARCHITECTURE, GgufFile};
use crate::weights::gguf_write::{GgufHeader, padding};
use crate::weights::stored_value::{StoredValue, gguf_shape};
use crate::weights::{GgufDtype, HeadOrder, HostTensor, NewGgufTensor, Weights};

/// What can be chosen of a merged GGUF model.
#[derive(Debug, Clone, Copy)]
pub struct GgufMergeOptions<'a> {
    /// The format of its matrices.
    pub dtype: GgufDtype,
    /// What training asked with; it takes the place of the base's.
    pub chat_template: Option<&'a str>,
    /// The vocabulary, for a base that is no GGUF file.
    pub vocabulary: Option<&'a GgufVocabulary>,
}

/// The metadata that are written anew, whatever the base has.
const FILE_TYPE: &str = "general.file_type";
const QUANTIZATION_VERSION: &str = "general.quantization_version";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Beginnings of keys that belong to the base's file alone: how it was laid out and quantised.
const OF_THE_FILE: [&str; 3] = ["general.alignment", "split.", "quantize."];

/// Why llama.cpp does not compute the model at `base`, whose files are `files`: what its config says that
/// the architecture has no place for. `None` for a GGUF file, which is llama.cpp's own.
///
/// # Errors
///
/// A config that says a size in no number.
pub fn refused_by_llama_cpp(
    base: &Path,
    files: &ModelFiles,
) -> Result<Option<CheckpointError>, CheckpointError> {
    if files.weights.is_gguf() {
        return Ok(None);
    }
    let config = Config {
        path: base,
        fields: &files.config,
        family: GgufBase::from_config(base, &files.config)?
            .architecture
            .family(),
    };
    match config.write(&mut GgufHeader::default()) {
        Ok(_) => Ok(None),
        Err(refused @ CheckpointError::Unsupported { .. }) => Ok(Some(refused)),
        Err(error) => Err(error),
    }
}

/// Writes the model at `base` (see [`ModelFiles::open`]) with `adapter` added, as the new GGUF file
/// `path`.
///
/// Sums are computed in f32 and rounded once. Vectors are written in f32, as llama.cpp wants them.
///
/// # Errors
///
/// - `path` exists or cannot be written, or a file of the base cannot be read
/// - modules of the adapter that the base does not have, or factors of other shapes
/// - a sum that the format cannot hold; its name and element are told
/// - a base of safetensors with something that llama.cpp does not compute for its architecture, such
///   as a rotary scaling, an attention window or a bias; or without `vocabulary`
pub fn save_merged_gguf(
    path: &Path,
    base: &Path,
    adapter: &Adapter,
    scalings: &Scalings,
    options: &GgufMergeOptions<'_>,
) -> Result<(), CheckpointError> {
    let files = ModelFiles::open(base)?;
    let scaled = scaled_pairs(&adapter.tensors, scalings)?;
    let by_weight = by_weight(&files, &scaled)?;
    let gguf_base = GgufBase::from_config(base, &files.config)?;
    let stored = match files.weights.paths().next() {
        Some(file) if files.weights.is_gguf() => Some(GgufFile::open(file)?),
        _ => None,
    };
    let model = Model {
        files: &files,
        base: gguf_base,
        stored: stored.as_ref(),
        by_weight,
        replaced: replaced(&files, adapter)?,
    };
    let (mut header, tensors) = match &stored {
        Some(stored) => of_gguf(stored, &model, options)?,
        None => of_folder(base, &model, options)?,
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

/// The name of the model within the folder of [`save_ollama`].
pub const OLLAMA_MODEL: &str = "model.gguf";

/// What stands in a folder for `ollama create`.
#[derive(Debug, Clone, Copy)]
pub struct OllamaFolder<'a> {
    /// How the model is written.
    pub model: GgufMergeOptions<'a>,
    /// Further files by their names, such as `Modelfile`.
    pub files: &'a BTreeMap<String, Vec<u8>>,
}

/// Writes the folder `dir` that `ollama create` reads: the merged model as [`OLLAMA_MODEL`], and the
/// files of `folder`; complete or not at all.
///
/// # Errors
///
/// As [`save_merged_gguf`]; `dir` exists.
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
        files.try_for_each(|(name, bytes)| write_file(&staging.join(name), bytes))
    })
}

/// What is merged.
struct Model<'a> {
    files: &'a ModelFiles,
    base: GgufBase,
    /// The base, where it is a GGUF file.
    stored: Option<&'a GgufFile>,
    by_weight: BTreeMap<String, &'a (Pair<'a>, f64)>,
    /// Whole weights of the adapter, whose rows llama.cpp has in the same order.
    replaced: BTreeMap<&'static str, &'a HostTensor>,
}

/// One tensor to come.
struct Planned {
    new: NewGgufTensor,
    /// The name in Hugging Face's files, where it has one.
    name: String,
    /// What it holds, where no file of the base does.
    values: Option<Vec<f32>>,
}

impl Model<'_> {
    /// The values of a tensor with their rows as llama.cpp has them.
    fn values(&self, path: &Path, planned: &Planned) -> Result<HostTensor, CheckpointError> {
        if let Some(weight) = self.replaced.get(planned.name.as_str()) {
            return Ok((*weight).clone());
        }
        let mut tensor = match (&planned.values, self.stored) {
            (Some(values), _) => HostTensor {
                shape: planned.new.shape().to_vec(),
                values: values.clone(),
            },
            (None, Some(stored)) => {
                let name = planned.new.name();
                let missing =
                    || CheckpointError::malformed(stored.metadata.path(), name, "is missing");
                stored.read_f32(name)?.ok_or_else(missing)?
            }
            (None, None) => self.ordered(path, &planned.name)?,
        };
        if let Some((pair, scaling)) = self.by_weight.get(&planned.name) {
            let [n_out, n_in] = [pair.b.shape[0], pair.a.shape[1]];
            let architecture = self.base.architecture;
            let order = architecture.order(path, pair.module, &[n_out, n_in])?;
            let ordered = |order: HeadOrder, tensor: &HostTensor| HostTensor {
                shape: tensor.shape.clone(),
                values: order.apply(tensor.values.clone(), &tensor.shape),
            };
            let a = ordered(order.of_columns(), pair.a);
            let b = ordered(order.of_rows(), pair.b);
            let magnitudes = pair.magnitudes.map(|m| ordered(order.of_rows(), m));
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

    /// A tensor of a Hugging Face folder, with order, values and dimensions as llama.cpp has them.
    fn ordered(&self, path: &Path, name: &str) -> Result<HostTensor, CheckpointError> {
        let HostTensor { shape, mut values } = self.files.weights.read_f32(name)?;
        let architecture = self.base.architecture;
        StoredValue::of(architecture.family(), name).apply(&mut values);
        let order = architecture.order_of_tensor(path, name, &shape)?;
        Ok(HostTensor {
            values: order.apply(values, &shape),
            shape: gguf_shape(name, &shape),
        })
    }
}

/// Header and tensors of a GGUF base, in its order.
fn of_gguf(
    stored: &GgufFile,
    model: &Model<'_>,
    options: &GgufMergeOptions<'_>,
) -> Result<(GgufHeader, Vec<Planned>), CheckpointError> {
    let mut header = GgufHeader::default();
    let is_of_the_file = |key: &str| OF_THE_FILE.iter().any(|start| key.starts_with(start));
    for entry in stored.raw_entries() {
        let (key, bytes) = entry?;
        let is_new = [FILE_TYPE, QUANTIZATION_VERSION].contains(&key)
            || (key == TEMPLATE && options.chat_template.is_some());
        if !is_new && !is_of_the_file(key) {
            header.raw(&bytes);
        }
    }
    write_choices(&mut header, options);
    let family = model.base.architecture.family();
    let tensors = stored.tensor_names().map(|name| Planned {
        new: options
            .dtype
            .tensor(name, stored.shape(name).unwrap_or_default()),
        name: family.hugging_face_tensor(name),
        values: None,
    });
    let tensors = tensors.collect();
    Ok((header, tensors))
}

/// What is written of the options.
fn write_choices(header: &mut GgufHeader, options: &GgufMergeOptions<'_>) {
    header.u32(FILE_TYPE, options.dtype.file_type());
    if options.dtype == GgufDtype::Q8_0 {
        // ggml-org/ggml, `include/ggml.h`, `GGML_QNT_VERSION`.
        header.u32(QUANTIZATION_VERSION, 2);
    }
    if let Some(template) = options.chat_template {
        header.text(TEMPLATE, template);
    }
}

/// Header and tensors of a Hugging Face folder.
///
/// # Source
///
/// ggml-org/llama.cpp, `convert_hf_to_gguf.py`, `TextModel.set_gguf_parameters`.
fn of_folder(
    base: &Path,
    model: &Model<'_>,
    options: &GgufMergeOptions<'_>,
) -> Result<(GgufHeader, Vec<Planned>), CheckpointError> {
    let family = model.base.architecture.family();
    let config = Config {
        path: base,
        fields: &model.files.config,
        family,
    };
    let Some(vocabulary) = options.vocabulary else {
        return Err(config.refused("a GGUF file without a vocabulary".to_owned()));
    };
    let mut header = GgufHeader::default();
    header.text(ARCHITECTURE, family.gguf.architecture);
    header.text("general.type", "model");
    let beside = config.write(&mut header)?;
    write_vocabulary(&mut header, vocabulary, &model.files.eos_token_ids);
    let template = options
        .chat_template
        .or(model.files.chat_template.as_deref());
    let options = &GgufMergeOptions {
        chat_template: template,
        ..*options
    };
    write_choices(&mut header, options);
    let mut tensors = Vec::new();
    for (name, values) in beside {
        tensors.push(Planned {
            new: options.dtype.tensor(name, &[values.len()]),
            name: name.to_owned(),
            values: Some(values),
        });
    }
    tensors.extend(renamed(&model.files.weights, model, options)?);
    Ok((header, tensors))
}

/// The tensors of a folder under their GGUF names.
fn renamed(
    weights: &Weights,
    model: &Model<'_>,
    options: &GgufMergeOptions<'_>,
) -> Result<Vec<Planned>, CheckpointError> {
    let family = model.base.architecture.family();
    let (mut tensors, mut unnamed) = (Vec::new(), Vec::new());
    for name in weights.names() {
        let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
        if module == "lm_head" && model.base.tied_head {
            continue;
        }
        let has_place = kind != "bias" || family.gguf.has_bias(module);
        match family.gguf_tensor(name).filter(|_| has_place) {
            Some(gguf) => {
                let shape = weights.shape(name).unwrap_or_default();
                tensors.push(Planned {
                    new: options.dtype.tensor(&gguf, &gguf_shape(name, shape)),
                    name: name.to_owned(),
                    values: None,
                });
            }
            None => unnamed.push(name.to_owned()),
        }
    }
    if unnamed.is_empty() {
        return Ok(tensors);
    }
    Err(CheckpointError::UnmatchedModules {
        path: weights.origin().to_owned(),
        modules: unnamed,
        fix: "these tensors have no name in GGUF; export --to merged and convert the folder with \
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
    let eos = vocabulary.eos_token_id.or(stop_ids.first().copied());
    let other_stop = stop_ids.iter().copied().find(|id| Some(*id) != eos);
    for (role, id) in [
        ("bos", vocabulary.bos_token_id),
        ("eos", eos),
        ("eot", other_stop),
        ("padding", vocabulary.pad_token_id),
        ("unknown", vocabulary.unk_token_id),
    ] {
        if let Some(id) = id {
            header.u32(&key(&format!("{role}_token_id")), id);
        }
    }
    if let Some(add_bos) = vocabulary.add_bos {
        header.bool(&key("add_bos_token"), add_bos);
    }
    if let Some(adds_space) = vocabulary.adds_space {
        header.bool(&key("add_space_prefix"), adds_space);
    }
}
