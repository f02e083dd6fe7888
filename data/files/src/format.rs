//! Determines the format in which a row file is written from its file name.

use std::path::Path;

/// The format of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// One JSON object per line.
    Lines,
    /// All rows in one JSON array.
    Array,
    /// Parquet.
    Parquet,
    /// An Arrow IPC file.
    Arrow,
}

/// The compression of the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

/// The format and compression of a row file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFormat {
    /// The format of the contents.
    pub content: ContentFormat,
    /// The compression of the file.
    pub compression: Compression,
}

/// A file name without a supported format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileNameError {
    /// The extension is unknown.
    #[error(
        "{0}: the name has no known row format; end it with .jsonl, .json, .parquet or .arrow, and \
         optionally .gz or .zst after the first two"
    )]
    Unknown(String),
    /// A format that compresses its columns itself.
    #[error(
        "{name}: {content} files compress each column themselves, and readers refuse a second compression; \
         remove the last extension"
    )]
    CompressedColumns {
        /// The file name.
        name: String,
        /// Parquet or Arrow.
        content: &'static str,
    },
}

impl ContentFormat {
    /// Whether the format stores columns.
    pub(crate) fn has_columns(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

impl FileFormat {
    /// The format of a file name.
    ///
    /// # Errors
    ///
    /// The name has no known format, or a format that cannot be compressed.
    pub fn from_path(path: &Path) -> Result<Self, FileNameError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lower = name.to_lowercase();
        let (stem, compression) = [(".gz", Compression::Gzip), (".zst", Compression::Zstd)]
            .into_iter()
            .find_map(|(ending, compression)| Some((lower.strip_suffix(ending)?, compression)))
            .unwrap_or((&lower, Compression::None));
        let content = match stem.rsplit_once('.').map(|(_, ending)| ending) {
            Some("jsonl" | "ndjson") => ContentFormat::Lines,
            Some("json") => ContentFormat::Array,
            Some("parquet") => ContentFormat::Parquet,
            Some("arrow" | "feather") => ContentFormat::Arrow,
            _ => return Err(FileNameError::Unknown(path.display().to_string())),
        };
        if content.has_columns() && compression != Compression::None {
            return Err(FileNameError::CompressedColumns {
                name: path.display().to_string(),
                content: if content == ContentFormat::Parquet {
                    "Parquet"
                } else {
                    "Arrow"
                },
            });
        }
        Ok(Self {
            content,
            compression,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_determines_the_format() {
        let format_of =
            |name: &str| FileFormat::from_path(Path::new(name)).map_err(|error| error.to_string());
        for (name, content, compression) in [
            ("a/b.jsonl", ContentFormat::Lines, Compression::None),
            ("b.JSONL.gz", ContentFormat::Lines, Compression::Gzip),
            ("b.json.zst", ContentFormat::Array, Compression::Zstd),
            (
                "train-00000-of-00001.parquet",
                ContentFormat::Parquet,
                Compression::None,
            ),
            ("b.arrow", ContentFormat::Arrow, Compression::None),
        ] {
            assert_eq!(
                format_of(name),
                Ok(FileFormat {
                    content,
                    compression
                }),
                "{name}"
            );
        }
        for (name, message) in [
            ("rows", "rows: the name has no known row format"),
            ("rows.csv", "end it with .jsonl"),
            ("rows.gz", "end it with .jsonl"),
            (
                "a.parquet.gz",
                "a.parquet.gz: Parquet files compress each column",
            ),
        ] {
            let error = format_of(name).expect_err(name);
            assert!(error.contains(message), "{error}");
        }
    }
}
