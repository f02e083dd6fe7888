//! Finds the weight files at a path and merges their headers into one [`Weights`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::encoding::Encoding;
use super::gguf::{ARCHITECTURE, GgufFile, ROPE_TENSORS};
use super::head_layout::HeadLayout;
use super::prediction_blocks::PredictionBlocks;
use super::source::SourceFile;
use super::stored_value::{StoredValue, hugging_face_shape};
use super::{StoredTensor, Weights, safetensors_header};
use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::families::{Family, LLAMA};
use crate::model_files::text_part::{self, TensorOwner};
use crate::regular_file;

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const ADAPTER: &str = "adapter_model.safetensors";

#[derive(Deserialize)]
struct ShardIndex {
    #[serde(deserialize_with = "unique_names")]
    weight_map: BTreeMap<String, String>,
}

/// Parses a map and refuses duplicate names. Otherwise the JSON parser would decide which of two
/// shards is used.
fn unique_names<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct UniqueNames;
    impl<'de> Visitor<'de> for UniqueNames {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object from tensors to files")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((name, shard)) = fields.next_entry::<String, String>()? {
                if let Some(previous) = map.insert(name.clone(), shard.clone()) {
                    return Err(A::Error::custom(format!(
                        "tensor {name} occurs twice in weight_map, in {previous} and in {shard}; keep one"
                    )));
                }
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(UniqueNames)
}

impl Weights {
    /// Opens the weights at `path`. Reads headers but no tensor data.
    ///
    /// `path` is a `.safetensors` file, a `.gguf` file, or a directory, which is searched for
    /// `model.safetensors`, then `model.safetensors.index.json` with its shards, then a single
    /// `.safetensors` or `.gguf` file of any name.
    ///
    /// # Errors
    ///
    /// - No such file is found.
    /// - A file is truncated, has an unsupported format or version, or its header is invalid.
    /// - A shard named in the index is absent, or lacks a tensor that the index assigns to it.
    /// - A GGUF tensor has an unsupported data type. The error names it.
    pub fn open(path: &Path) -> Result<Weights, CheckpointError> {
        if !path.is_dir() {
            return open_file(path);
        }
        let single = path.join(SINGLE);
        let index = path.join(INDEX);
        if regular_file::is_there(&single)? {
            return from_safetensors(path, &[single]);
        }
        if regular_file::is_there(&index)? {
            return from_index(path, &index);
        }
        match only_weight_file(path)? {
            Some(file) => open_file(&file),
            None => Err(no_weights(path)),
        }
    }

    /// Converts a GGUF file with a parsed header.
    pub(crate) fn from_gguf(gguf: GgufFile) -> Result<Weights, CheckpointError> {
        let GgufFile {
            source,
            metadata,
            tensors,
            ..
        } = gguf;
        let family = metadata
            .text(ARCHITECTURE)?
            .and_then(Family::of_architecture);
        let (heads, prediction_blocks) = match family {
            Some(family) => (
                HeadLayout::from_metadata(&metadata, family)?,
                PredictionBlocks::from_metadata(&metadata, family)?,
            ),
            None => (HeadLayout::AsIs, PredictionBlocks::default()),
        };
        // If the family is unknown, use the most common names; reading the config refuses such
        // models.
        let family = family.unwrap_or(&LLAMA);
        let (mut by_name, mut n_prediction) = (BTreeMap::new(), 0);
        for tensor in tensors {
            if ROPE_TENSORS.contains(&tensor.name.as_str()) {
                continue;
            }
            if prediction_blocks.contains(&tensor.name) {
                n_prediction += 1;
                continue;
            }
            let name = family.hugging_face_tensor(&tensor.name);
            let entry = StoredTensor {
                file_idx: 0,
                offset: tensor.offset,
                encoding: Encoding::Decodable(tensor.format),
                order: heads.order(source.path(), &name, &tensor.shape)?,
                values: StoredValue::for_tensor(family, &name),
                shape: hugging_face_shape(&name, tensor.shape),
            };
            if by_name.insert(name, entry).is_some() {
                let location = format!("tensor {}", tensor.name);
                let problem = "the name occurs twice";
                return Err(CheckpointError::malformed(source.path(), location, problem));
            }
        }
        Ok(Weights {
            origin: source.path().to_owned(),
            files: vec![source],
            tensors: by_name,
            n_vision: 0,
            n_prediction,
        })
    }
}

fn open_file(path: &Path) -> Result<Weights, CheckpointError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("gguf") => Weights::from_gguf(GgufFile::open(path)?),
        Some("safetensors") => from_safetensors(path, &[path.to_owned()]),
        _ if regular_file::is_there(path)? => Err(no_weights(path)),
        _ => {
            let absent = std::io::Error::from(std::io::ErrorKind::NotFound);
            Err(CheckpointError::io("open", path)(absent))
        }
    }
}

/// The only `.safetensors` or `.gguf` file of a directory, if there is exactly one.
pub(crate) fn only_weight_file(dir: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    let mut weight_files = Vec::new();
    for entry in fs::read_dir(dir).map_err(CheckpointError::io("list", dir))? {
        let path = entry.map_err(CheckpointError::io("list", dir))?.path();
        let extension = path.extension().and_then(|e| e.to_str());
        let is_adapter = path.file_name().is_some_and(|name| name == ADAPTER);
        if matches!(extension, Some("safetensors" | "gguf")) && !is_adapter {
            weight_files.push(path);
        }
    }
    Ok(if weight_files.len() == 1 {
        weight_files.pop()
    } else {
        None
    })
}

fn no_weights(path: &Path) -> CheckpointError {
    let hint = if path.join(ADAPTER).exists() {
        "; it is an adapter: give its base model's directory instead"
    } else if path.join("pytorch_model.bin").exists()
        || path
            .extension()
            .is_some_and(|e| e == "bin" || e == "pt" || e == "pth")
    {
        "; pickle files are not supported: save the model with safe_serialization=True"
    } else {
        ""
    };
    CheckpointError::NoWeights {
        path: path.to_owned(),
        looked_for: "model.safetensors, model.safetensors.index.json, or one .safetensors or .gguf file",
        hint: hint.to_owned(),
    }
}

/// Merges the headers of `paths`, which are sorted.
fn from_safetensors(origin: &Path, paths: &[PathBuf]) -> Result<Weights, CheckpointError> {
    let mut files = Vec::with_capacity(paths.len());
    let mut tensors = BTreeMap::new();
    for (file_idx, path) in paths.iter().enumerate() {
        let source = SourceFile::open(path)?;
        for (name, tensor) in safetensors_header::read(&source, file_idx)? {
            if let Some(previous) = tensors.get(&name) {
                let previous: &StoredTensor = previous;
                return Err(CheckpointError::TensorInTwoShards {
                    tensor: name,
                    shards: [paths[previous.file_idx].clone(), path.clone()],
                });
            }
            tensors.insert(name, tensor);
        }
        files.push(source);
    }
    let (mut n_vision, mut n_prediction) = (0, 0);
    if text_part::is_larger_model(tensors.keys().map(String::as_str)) {
        let mut language_tensors = BTreeMap::new();
        for (name, tensor) in tensors {
            let name = match text_part::tensor_owner(&name) {
                TensorOwner::Language(name) => name,
                TensorOwner::Vision => {
                    n_vision += 1;
                    continue;
                }
                TensorOwner::Prediction => {
                    n_prediction += 1;
                    continue;
                }
            };
            let location = format!("tensor {name}");
            let file = |idx: usize| paths[idx].display();
            let here = tensor.file_idx;
            if let Some(previous) = language_tensors.insert(name, tensor) {
                let previous: StoredTensor = previous;
                let problem = format!(
                    "the language model has it twice, with and without its prefix, in {} and {}",
                    file(previous.file_idx),
                    file(here)
                );
                return Err(CheckpointError::malformed(origin, location, problem));
            }
        }
        tensors = language_tensors;
    }
    Ok(Weights {
        origin: origin.to_owned(),
        files,
        n_vision,
        n_prediction,
        tensors,
    })
}

fn from_index(dir: &Path, index_path: &Path) -> Result<Weights, CheckpointError> {
    let text = regular_file::read(index_path, JSON_BYTES)?;
    let index: ShardIndex =
        serde_json::from_slice(&text).map_err(CheckpointError::json(index_path))?;
    let shards: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    for shard in &shards {
        // The index may be malicious, so it must not refer to files outside its directory.
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            let problem = format!("\"{shard}\" must be a file name without directories");
            return Err(CheckpointError::field(index_path, "weight_map", problem));
        }
    }
    let mut missing = Vec::new();
    for shard in &shards {
        if !regular_file::is_there(&dir.join(shard))? {
            missing.push(*shard);
        }
    }
    if let Some(first) = missing.first() {
        let in_first = index.weight_map.iter().find(|(_, shard)| shard == first);
        return Err(CheckpointError::MissingShard {
            index: index_path.to_owned(),
            n_missing: missing.len(),
            shards: missing.join(", "),
            tensor: in_first.map(|(name, _)| name.clone()).unwrap_or_default(),
        });
    }
    let paths: Vec<PathBuf> = shards.iter().map(|shard| dir.join(shard)).collect();
    let weights = from_safetensors(dir, &paths)?;
    for (name, shard) in &index.weight_map {
        // Omit tensors that do not belong to the language model.
        let TensorOwner::Language(language_name) = text_part::tensor_owner(name) else {
            continue;
        };
        let holder = weights
            .tensors
            .get(&language_name)
            .or_else(|| weights.tensors.get(name))
            .map(|tensor| weights.files[tensor.file_idx].path());
        if holder != Some(&dir.join(shard)) {
            let owner = match holder.and_then(Path::file_name) {
                Some(other) => format!(", but {} has it", other.to_string_lossy()),
                None => ", and no other shard of the index has it".to_owned(),
            };
            return Err(CheckpointError::UnknownTensor {
                path: dir.join(shard),
                tensor: name.clone(),
                hint: format!(
                    ", although {INDEX} assigns it there{owner}; fetch the index and the shards again"
                ),
            });
        }
    }
    Ok(weights)
}
