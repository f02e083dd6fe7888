//! The forms of files of rows, by their names: what a file is written as.

use std::path::Path;

/// What a file is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A JSON object a line.
    Lines,
    /// One JSON array.
    Array,
    /// Parquet.
    Parquet,
    /// A file of Arrow's IPC.
    Arrow,
}

/// What a file is compressed with as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Nothing.
    None,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

/// How rows are written into a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileForm {
    /// What the file is made of.
    pub form: Form,
    /// What that is compressed with.
    pub compression: Compression,
}

/// A name that says no form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// No ending that is known.
    #[error(
        "{0}: the name says no form of rows; end it with .jsonl, .json, .parquet or .arrow, the first \
         two with .gz or .zst behind them if you like"
    )]
    Unknown(String),
    /// A form that compresses its own columns.
    #[error(
        "{name}: {form} files compress each column themselves, and readers take no compressed one; \
         leave the last ending away"
    )]
    CompressedColumns {
        /// The name.
        name: String,
        /// Parquet or Arrow.
        form: &'static str,
    },
}

impl Form {
    /// Whether rows are columns there.
    pub(crate) fn has_columns(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

impl FileForm {
    /// The form that the name of a file says.
    ///
    /// # Errors
    ///
    /// - it says none, or one that no file can have
    pub fn of(path: &Path) -> Result<Self, FormError> {
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
    fn the_name_of_a_file_says_its_form() {
        let of = |name: &str| FileForm::of(Path::new(name)).map_err(|error| error.to_string());
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
            assert_eq!(of(name), Ok(FileForm { form, compression }), "{name}");
        }
        for (name, said) in [
            ("rows", "rows: the name says no form"),
            ("rows.csv", "end it with .jsonl"),
            ("rows.gz", "end it with .jsonl"),
            (
                "a.parquet.gz",
                "a.parquet.gz: Parquet files compress each column",
            ),
        ] {
            let error = of(name).expect_err(name);
            assert!(error.contains(said), "{error}");
        }
    }
}
