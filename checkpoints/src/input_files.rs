//! Digests of the input files of a run, which identify their content.
//!
//! A small file is read completely at each comparison. A large file, such as weights, is read
//! completely only once. Later, its size, modification time and sampled pages are compared, and the
//! whole file is read again only if the time differs or the caller requests it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::digest::{hex, size_and_sha256};
use crate::error::CheckpointError;
use crate::regular_file;
use crate::weights::gguf::GgufFile;
use crate::weights::{SourceFile, Weights};

/// Maximum size of a file that is read completely at every comparison. This takes at most a tenth
/// of a second.
const MAX_SMALL_BYTES: u64 = 64 << 20;

/// Number of evenly spaced pages that are compared in larger files. This takes a few milliseconds
/// on any disk.
const SAMPLED_PAGES: u64 = 512;

const PAGE_BYTES: u64 = 4096;

/// Files that are read from the folder of a language model or encoder in addition to the weights.
const NAMES: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja",
    "model.safetensors.index.json",
    "modules.json",
    "config_sentence_transformers.json",
    "vocab.txt",
];

/// The file name for an input that is a single file.
pub const ITSELF: &str = ".";

/// The content digest of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Length in bytes. For GGUF, the length up to the end of the last tensor.
    pub bytes: u64,
    /// SHA-256 of the first `bytes` bytes.
    pub sha256: String,
    /// SHA-256 of the sampled pages; only for large files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages_sha256: Option<String>,
    /// Modification time in nanoseconds since 1970; only for large files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<u64>,
}

impl FileDigest {
    /// Digests a file. A large file is not read completely if `earlier` still matches it.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn compute(
        path: &Path,
        earlier: Option<&FileDigest>,
    ) -> Result<FileDigest, CheckpointError> {
        let metadata = fs::metadata(path).map_err(CheckpointError::io("read", path))?;
        let is_large = metadata.len() > MAX_SMALL_BYTES;
        let modified_ns = metadata
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .and_then(|since| u64::try_from(since.as_nanos()).ok())
            .filter(|_| is_large);
        let pages_sha256 = if is_large {
            Some(pages_sha256(path)?)
        } else {
            None
        };
        if let Some(earlier) = earlier.filter(|_| is_large)
            && earlier.bytes <= metadata.len()
            // This digest also covers the file length.
            && earlier.pages_sha256 == pages_sha256
            && earlier.modified_ns.is_some()
            && earlier.modified_ns == modified_ns
        {
            return Ok(earlier.clone());
        }
        let end = if is_large { content_end(path) } else { None };
        let (bytes, sha256) = size_and_sha256(path, end.unwrap_or(u64::MAX))?;
        Ok(FileDigest {
            bytes,
            sha256,
            pages_sha256,
            modified_ns,
        })
    }

    /// Whether both digests identify the same content.
    pub fn is_same(&self, other: &FileDigest) -> bool {
        self.sha256 == other.sha256
    }

    /// The digest without the modification time, which differs between machines.
    pub fn without_time(&self) -> FileDigest {
        FileDigest {
            modified_ns: None,
            ..self.clone()
        }
    }
}

/// The end of the content of a GGUF file; `None` for other files. Any bytes after the last tensor
/// are ignored, as in gguf and llama.cpp.
fn content_end(path: &Path) -> Option<u64> {
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let file = is_gguf.then(|| GgufFile::open(path).ok())??;
    Some(file.end())
}

/// SHA-256 of the length, the first and last page, and sampled pages between them.
fn pages_sha256(path: &Path) -> Result<String, CheckpointError> {
    let source = SourceFile::open(path)?;
    let n_pages = source.len() / PAGE_BYTES;
    let mut hasher = Sha256::new();
    hasher.update(source.len().to_le_bytes());
    let mut page = vec![0; PAGE_BYTES as usize];
    for sample in 0..SAMPLED_PAGES.min(n_pages) {
        source.read_at(sample * n_pages / SAMPLED_PAGES * PAGE_BYTES, &mut page)?;
        hasher.update(&page);
    }
    source.read_at(source.len() - PAGE_BYTES.min(source.len()), &mut page)?;
    hasher.update(&page);
    Ok(hex(&hasher.finalize()))
}

/// The files that are read for a language model or encoder, by name relative to its folder. For a
/// single-file model the name is [`ITSELF`].
///
/// # Errors
///
/// The weights cannot be opened, or a folder cannot be listed.
pub fn model_files(path: &Path) -> Result<BTreeMap<String, PathBuf>, CheckpointError> {
    let mut files = BTreeMap::new();
    if !path.is_dir() {
        files.insert(ITSELF.to_owned(), path.to_owned());
        // In the folder of a GGUF file, only this file is read. For a safetensors file, all files
        // in `NAMES` are read.
        let names = if path.extension().is_some_and(|e| e == "gguf") {
            &["tokenizer.json"][..]
        } else {
            &NAMES
        };
        for name in names {
            let file = path.with_file_name(name);
            if regular_file::is_there(&file)? {
                files.insert((*name).to_owned(), file);
            }
        }
        return Ok(files);
    }
    for file in Weights::open(path)?.paths() {
        let name = file.strip_prefix(path).unwrap_or(file);
        files.insert(name.to_string_lossy().into_owned(), file.to_owned());
    }
    let mut names: Vec<String> = NAMES.map(str::to_owned).to_vec();
    for entry in fs::read_dir(path).map_err(CheckpointError::io("list", path))? {
        let entry = entry.map_err(CheckpointError::io("list", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Modules of sentence-transformers, such as 1_Pooling, with their settings.
        match entry.path().is_dir() {
            true => names.push(format!("{name}/config.json")),
            false if name.starts_with("sentence_") => names.push(name),
            false => {}
        }
    }
    for name in names {
        let file = path.join(&name);
        if regular_file::is_there(&file)? {
            files.insert(name, file);
        }
    }
    Ok(files)
}

/// All files below a folder, by relative path, except hidden files and Python bytecode. A single
/// file is named [`ITSELF`].
///
/// # Errors
///
/// A folder cannot be listed.
pub fn all_files(path: &Path) -> Result<BTreeMap<String, PathBuf>, CheckpointError> {
    let mut files = BTreeMap::new();
    if path.is_dir() {
        add_files(path, "", &mut files)?
    } else {
        files.insert(ITSELF.to_owned(), path.to_owned());
    }
    Ok(files)
}

fn add_files(
    dir: &Path,
    prefix: &str,
    files: &mut BTreeMap<String, PathBuf>,
) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::io("list", dir))? {
        let entry = entry.map_err(CheckpointError::io("list", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "__pycache__" {
            continue;
        }
        // Links to folders can form cycles.
        let kind = entry
            .file_type()
            .map_err(CheckpointError::io("read", dir))?;
        let path = entry.path();
        match kind.is_dir() {
            true => add_files(&path, &format!("{prefix}{name}/"), files)?,
            false if path.is_file() => {
                files.insert(format!("{prefix}{name}"), path);
            }
            false => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn a_large_file_is_read_again_only_if_its_modification_time_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let mut file = fs::File::create(&path).unwrap();
        file.set_len(MAX_SMALL_BYTES + 12_345).unwrap();
        file.write_all(b"header").unwrap();
        let first = FileDigest::compute(&path, None).unwrap();
        assert_eq!(first.bytes, MAX_SMALL_BYTES + 12_345);
        // `earlier` has a false digest. It is returned unchanged, because a matching file is not
        // read again.
        let earlier = FileDigest {
            sha256: "known".to_owned(),
            ..first.clone()
        };
        assert_eq!(FileDigest::compute(&path, Some(&earlier)).unwrap(), earlier);
        let elsewhere = earlier.without_time();
        assert_eq!(FileDigest::compute(&path, Some(&elsewhere)).unwrap(), first);

        // Changing one byte anywhere changes the modification time.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        file.seek(SeekFrom::Start(MAX_SMALL_BYTES / 2 + 9_999))
            .unwrap();
        file.write_all(&[1]).unwrap();
        let flipped = FileDigest::compute(&path, Some(&earlier)).unwrap();
        assert!(!flipped.is_same(&first) && flipped.sha256 != "known");
        // With the time restored, the sampled pages detect the change.
        for offset in [0, MAX_SMALL_BYTES + 12_344] {
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(&[7]).unwrap();
            file.set_modified(time).unwrap();
            let flipped = FileDigest::compute(&path, Some(&earlier)).unwrap();
            assert_ne!(flipped.sha256, "known");
        }
    }

    #[test]
    fn a_small_file_is_read_completely_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, "abc").unwrap();
        let first = FileDigest::compute(&path, None).unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((first.bytes, first.sha256.as_str()), (3, expected));
        assert_eq!(first, first.without_time());
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "abd").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
        assert!(
            !FileDigest::compute(&path, Some(&first))
                .unwrap()
                .is_same(&first)
        );
    }

    #[test]
    fn files_below_a_folder_have_relative_names() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.py", ".hidden", "lib/b.py", "lib/__pycache__/b.pyc"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let files = all_files(dir.path()).unwrap();
        let names: Vec<&String> = files.keys().collect();
        assert_eq!(names, ["a.py", "lib/b.py"]);
        let single = all_files(&dir.path().join("a.py")).unwrap();
        assert_eq!(single.keys().collect::<Vec<_>>(), [ITSELF]);
    }
}
