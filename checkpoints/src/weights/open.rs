//! Finds the weight files at a path and merges their headers into one [`Weights`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::blocks_ahead::BlocksAhead;
use super::encoding::Encoding;
use super::gguf::{ARCHITECTURE, GgufFile, ROPE_TENSORS};
use super::head_layout::HeadLayout;
use super::source::SourceFile;
use super::stored_value::{StoredValue, hugging_face_shape};
use super::{StoredTensor, Weights, safetensors_header};
use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::families::{Family, LLAMA};
use crate::model_files::text_part::{self, Belongs};
use crate::regular_file;

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const ADAPTER: &str = "adapter_model.safetensors";

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens the weights at `path` and reads their headers; no tensor data yet.
    ///
    /// `path` is a `.safetensors` file, a `.gguf` file, or a directory, which is searched for
    /// `model.safetensors`, then `model.safetensors.index.json` with its shards, then a single
    /// `.safetensors` or `.gguf` file of any name.
    ///
    /// # Errors
    ///
    /// - nothing of the kind is there
    /// - a file is truncated, of another format or version, or its header breaks a rule
    /// - a shard named in the index is absent, or does not hold a tensor the index puts there
    /// - a GGUF tensor is stored in a format that is not read; the error names it
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

    /// Takes over the tensors of a GGUF file whose header is read.
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
        let (heads, ahead) = match family {
            Some(family) => (
                HeadLayout::from_metadata(&metadata, family)?,
                BlocksAhead::from_metadata(&metadata, family)?,
            ),
            None => (HeadLayout::AsIs, BlocksAhead::default()),
        };
        // A model of no family is refused by its config; its tensors keep the most usual names.
        let family = family.unwrap_or(&LLAMA);
        let (mut by_name, mut n_ahead) = (BTreeMap::new(), 0);
        for tensor in tensors {
            if ROPE_TENSORS.contains(&tensor.name.as_str()) {
                continue;
            }
            if ahead.has(&tensor.name) {
                n_ahead += 1;
                continue;
            }
            let name = family.hugging_face_tensor(&tensor.name);
            let stored = StoredTensor {
                file_idx: 0,
                offset: tensor.offset,
                encoding: Encoding::Read(tensor.format),
                order: heads.order(source.path(), &name, &tensor.shape)?,
                values: StoredValue::of(family, &name),
                shape: hugging_face_shape(&name, tensor.shape),
            };
            if by_name.insert(name, stored).is_some() {
                let at = format!("tensor {}", tensor.name);
                let problem = "the name occurs twice";
                return Err(CheckpointError::malformed(source.path(), at, problem));
            }
        }
        Ok(Weights {
            origin: source.path().to_owned(),
            files: vec![source],
            tensors: by_name,
            n_of_pictures: 0,
            n_ahead,
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

/// The one `.safetensors` or `.gguf` file of a directory, if there is exactly one.
pub(crate) fn only_weight_file(dir: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(CheckpointError::io("list", dir))? {
        let path = entry.map_err(CheckpointError::io("list", dir))?.path();
        let extension = path.extension().and_then(|e| e.to_str());
        let is_adapter = path.file_name().is_some_and(|name| name == ADAPTER);
        if matches!(extension, Some("safetensors" | "gguf")) && !is_adapter {
            found.push(path);
        }
    }
    Ok(if found.len() == 1 { found.pop() } else { None })
}

fn no_weights(path: &Path) -> CheckpointError {
    let hint = if path.join(ADAPTER).exists() {
        "; it is an adapter, give its base model's directory instead"
    } else if path.join("pytorch_model.bin").exists()
        || path
            .extension()
            .is_some_and(|e| e == "bin" || e == "pt" || e == "pth")
    {
        "; pickle files are not read, save the model with safe_serialization=True"
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
            if tensors.contains_key(&name) {
                let at = format!("tensor {name}");
                return Err(CheckpointError::malformed(
                    path,
                    at,
                    "another shard holds it too",
                ));
            }
            tensors.insert(name, tensor);
        }
        files.push(source);
    }
    let (mut n_of_pictures, mut n_ahead) = (0, 0);
    if text_part::is_within(tensors.keys().map(String::as_str)) {
        let mut alone = BTreeMap::new();
        for (name, tensor) in tensors {
            let name = match text_part::belongs(&name) {
                Belongs::Language(name) => name,
                Belongs::Pictures => {
                    n_of_pictures += 1;
                    continue;
                }
                Belongs::Ahead => {
                    n_ahead += 1;
                    continue;
                }
            };
            let at = format!("tensor {name}");
            if alone.insert(name, tensor).is_some() {
                let problem = "the language model holds it twice, with its prefix and without";
                return Err(CheckpointError::malformed(origin, at, problem));
            }
        }
        tensors = alone;
    }
    Ok(Weights {
        origin: origin.to_owned(),
        files,
        n_of_pictures,
        n_ahead,
        tensors,
    })
}

fn from_index(dir: &Path, index_path: &Path) -> Result<Weights, CheckpointError> {
    let text = regular_file::read(index_path, JSON_BYTES)?;
    let index: ShardIndex =
        serde_json::from_slice(&text).map_err(CheckpointError::json(index_path))?;
    let shards: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    for shard in &shards {
        // The index may come from anywhere; it must not lead out of its own directory.
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
        // What is not the language model's is left out.
        let Belongs::Language(alone) = text_part::belongs(name) else {
            continue;
        };
        let holder = weights
            .tensors
            .get(&alone)
            .or_else(|| weights.tensors.get(name))
            .map(|tensor| weights.files[tensor.file_idx].path());
        if holder != Some(&dir.join(shard)) {
            return Err(CheckpointError::UnknownTensor {
                path: dir.join(shard),
                tensor: name.clone(),
                hint: format!(", though {INDEX} says so; fetch both files again"),
            });
        }
    }
    Ok(weights)
}
