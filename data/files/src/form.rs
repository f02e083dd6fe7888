//! Formats of row files, by file name: the format in which a file is written.

use std::path::Path;

/// The format of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
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
pub struct FileForm {
    /// The format of the contents.
    pub form: Form,
    /// The compression of the file.
    pub compression: Compression,
}

/// A file name without a supported format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The extension is unknown.
    #[error(
        "{0}: the name has no known row format; end it with .jsonl, .json, .parquet or .arrow, and \
         optionally .gz or .zst after the first two"
    )]
    Unknown(String),
    /// A format that compresses its columns itself.
    #[error(
        "{name}: {form} files compress each column themselves, and readers do not accept compressed ones; \
         remove the last extension"
    )]
    CompressedColumns {
        /// The file name.
        name: String,
        /// Parquet or Arrow.
        form: &'static str,
    },
}

impl Form {
    /// Whether the format stores columns.
    pub(crate) fn has_columns(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

impl FileForm {
    /// The format of a file name.
    ///
    /// # Errors
    ///
    /// The name has no known format, or a format that cannot be compressed.
    pub fn from_path(path: &Path) -> Result<Self, FormError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lower = name.to_lowercase();
        let (stem, compression) = [(".gz", Compression::Gzip), (".zst", Compression::Zstd)]
            .into_iter()
            .find_map(|(ending, compression)| Some((lower.strip_suffix(ending)?, compression)))
            .unwrap_or((&lower, Compression::None));
        let form = match stem.rsplit_once('.').map(|(_, ending)| ending) {
            Some("jsonl" | "ndjson") => Form::Lines,
            Some("json") => Form::Array,
            Some("parquet") => Form::Parquet,
            Some("arrow" | "feather") => Form::Arrow,
            _ => return Err(FormError::Unknown(path.display().to_string())),
        };
        if form.has_columns() && compression != Compression::None {
            return Err(FormError::CompressedColumns {
                name: path.display().to_string(),
                form: if form == Form::Parquet {
                    "Parquet"
                } else {
                    "Arrow"
                },
            });
        }
        Ok(Self { form, compression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_determines_the_format() {
        let form_of =
            |name: &str| FileForm::from_path(Path::new(name)).map_err(|error| error.to_string());
        for (name, form, compression) in [
            ("a/b.jsonl", Form::Lines, Compression::None),
            ("b.JSONL.gz", Form::Lines, Compression::Gzip),
            ("b.json.zst", Form::Array, Compression::Zstd),
            (
                "train-00000-of-00001.parquet",
                Form::Parquet,
                Compression::None,
            ),
            ("b.arrow", Form::Arrow, Compression::None),
        ] {
            assert_eq!(form_of(name), Ok(FileForm { form, compression }), "{name}");
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
            let error = form_of(name).expect_err(name);
            assert!(error.contains(message), "{error}");
        }
    }
}
