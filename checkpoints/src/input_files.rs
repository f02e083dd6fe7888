//! The files that a result depends on, each named by its content.
//!
//! A small file is read whole each time it is compared. Of a large one, such as weights, that is read
//! whole once: later its size, its time of modification and pages spread over it are compared, and
//! the whole only where the time differs or somebody asks for it.

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

/// The longest file that is read whole at every comparison: a tenth of a second or less.
const WHOLE_BYTES: u64 = 64 << 20;

/// Pages of a longer file that are compared, spread evenly: some milliseconds on any disk.
const SAMPLED_PAGES: u64 = 512;

const PAGE_BYTES: u64 = 4096;

/// What beside weights is read of a folder with a language model or an encoder.
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

/// The name of an input that is one file.
pub const ITSELF: &str = ".";

/// Names a file by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its length; of a GGUF file up to the end of its last tensor.
    pub bytes: u64,
    /// Of these bytes.
    pub sha256: String,
    /// Of pages spread over it; of large files only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages_sha256: Option<String>,
    /// When it was modified, in nanoseconds since 1970; of large files only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_ns: Option<u64>,
}

impl FileDigest {
    /// Names a file, of which everything is read unless it is large and `earlier` still fits it.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn of(path: &Path, earlier: Option<&FileDigest>) -> Result<FileDigest, CheckpointError> {
        let metadata = fs::metadata(path).map_err(CheckpointError::io("read", path))?;
        let is_large = metadata.len() > WHOLE_BYTES;
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
            // Of the length of the whole file, too.
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

    /// Whether it names the same content.
    pub fn is_same(&self, other: &FileDigest) -> bool {
        self.sha256 == other.sha256
    }

    /// What is true of the content on every machine.
    pub fn without_time(&self) -> FileDigest {
        FileDigest {
            modified_ns: None,
            ..self.clone()
        }
    }
}

/// Where the content of a GGUF file ends; nothing for other files. As for gguf and llama.cpp, what
/// stands behind the last tensor belongs to nothing, however much it is.
fn content_end(path: &Path) -> Option<u64> {
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let file = is_gguf.then(|| GgufFile::open(path).ok())??;
    Some(file.end())
}

/// SHA-256 of the length, the first and last page, and pages between them.
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

/// The files of a language model or an encoder that are read, by their names below its folder; of a
/// model in one file that file is [`ITSELF`].
///
/// # Errors
///
/// The weights cannot be opened, or a folder not be listed.
pub fn model_files(path: &Path) -> Result<BTreeMap<String, PathBuf>, CheckpointError> {
    let mut files = BTreeMap::new();
    if !path.is_dir() {
        files.insert(ITSELF.to_owned(), path.to_owned());
        // All that is read beside a GGUF file; beside one of safetensors lies its whole folder.
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
        // Modules of sentence-transformers, such as 1_Pooling, and its settings by kind of model.
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

/// All files below a folder by their names there, but for hidden ones and what Python compiles; of
/// a file it is [`ITSELF`].
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
        // Links to folders may lead in circles.
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
    fn a_large_file_is_read_whole_again_only_where_its_time_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let mut file = fs::File::create(&path).unwrap();
        file.set_len(WHOLE_BYTES + 12_345).unwrap();
        file.write_all(b"header").unwrap();
        let first = FileDigest::of(&path, None).unwrap();
        assert_eq!(first.bytes, WHOLE_BYTES + 12_345);
        // A digest that is known is taken over, as a false one shows.
        let known = FileDigest {
            sha256: "known".to_owned(),
            ..first.clone()
        };
        assert_eq!(FileDigest::of(&path, Some(&known)).unwrap(), known);
        let elsewhere = known.without_time();
        assert_eq!(FileDigest::of(&path, Some(&elsewhere)).unwrap(), first);

        // One bit, wherever it is: the time gives it away.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        file.seek(SeekFrom::Start(WHOLE_BYTES / 2 + 9_999)).unwrap();
        file.write_all(&[1]).unwrap();
        let flipped = FileDigest::of(&path, Some(&known)).unwrap();
        assert!(!flipped.is_same(&first) && flipped.sha256 != "known");
        // With the time set back, the pages that are looked at do.
        for offset in [0, WHOLE_BYTES + 12_344] {
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(&[7]).unwrap();
            file.set_modified(time).unwrap();
            let flipped = FileDigest::of(&path, Some(&known)).unwrap();
            assert_ne!(flipped.sha256, "known");
        }
    }

    #[test]
    fn a_small_file_is_read_whole_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        fs::write(&path, "abc").unwrap();
        let first = FileDigest::of(&path, None).unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((first.bytes, first.sha256.as_str()), (3, expected));
        assert_eq!(first, first.without_time());
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "abd").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
        assert!(!FileDigest::of(&path, Some(&first)).unwrap().is_same(&first));
    }

    #[test]
    fn the_files_below_a_folder_are_named_from_there() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.py", ".hidden", "lib/b.py", "lib/__pycache__/b.pyc"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let files = all_files(dir.path()).unwrap();
        let names: Vec<&String> = files.keys().collect();
        assert_eq!(names, ["a.py", "lib/b.py"]);
        let one = all_files(&dir.path().join("a.py")).unwrap();
        assert_eq!(one.keys().collect::<Vec<_>>(), [ITSELF]);
    }
}
