//! Refuses to evaluate on training files, even if they have a different name.

use std::fs;
use std::path::Path;

use tooltune_checkpoints::digest::sha256_file;
use tooltune_disk::regular_file;

use crate::error::Error;

/// Files named by a setting.
#[derive(Debug, Clone, Copy)]
pub struct SettingFiles<'a> {
    /// The setting.
    pub key: &'static str,
    /// The files.
    pub files: &'a [&'a Path],
}

/// Refuses evaluation files that are training files: by a different path, as a link, or as a copy.
///
/// # Errors
///
/// - a file is in both lists
/// - a file cannot be read
pub fn refuse_training_files(
    training: SettingFiles<'_>,
    evaluated: SettingFiles<'_>,
) -> Result<(), Error> {
    for file in evaluated.files {
        for other in training.files {
            if is_same_content(other, file)? {
                return Err(Error::Usage(format!(
                    "{} names {}, which has the same content as {} in {}: metrics on training data do not \
                     apply to unseen rows; evaluate on other rows",
                    evaluated.key,
                    file.display(),
                    other.display(),
                    training.key
                )));
            }
        }
    }
    Ok(())
}

/// Whether two paths are the same file or copies. Missing files are reported by the code that reads
/// them.
fn is_same_content(one: &Path, other: &Path) -> Result<bool, Error> {
    let is_file = |path: &Path| matches!(regular_file::is_there(path), Ok(true));
    if !is_file(one) || !is_file(other) {
        return Ok(false);
    }
    let (Ok(metadata), Ok(other_metadata)) = (fs::metadata(one), fs::metadata(other)) else {
        return Ok(false);
    };
    if metadata.len() != other_metadata.len() {
        return Ok(false);
    }
    let is_same_file =
        matches!((one.canonicalize(), other.canonicalize()), (Ok(a), Ok(b)) if a == b);
    Ok(is_same_file || sha256_file(one)? == sha256_file(other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_copies_and_other_paths_of_training_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("train"), "rows").unwrap();
        fs::write(path("copy"), "rows").unwrap();
        fs::write(path("other"), "sows").unwrap();
        fs::create_dir(path("a")).unwrap();
        fs::hard_link(path("train"), path("hard")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(path("train"), path("soft")).unwrap();
        let refused = |name: &str| {
            let (train, eval) = (path("train"), path(name));
            refuse_training_files(
                SettingFiles {
                    key: "retriever.train",
                    files: &[train.as_path()],
                },
                SettingFiles {
                    key: "retriever.eval",
                    files: &[eval.as_path()],
                },
            )
        };
        for name in ["train", "a/../train", "copy", "hard", "soft"] {
            let error = refused(name).unwrap_err().to_string();
            assert!(error.contains("retriever.eval names"), "{name}: {error}");
            assert!(error.contains("in retriever.train"), "{name}: {error}");
        }
        for name in ["other", "absent", "a"] {
            assert!(refused(name).is_ok(), "{name}");
        }
    }
}
