//! Small files in the format of each data set, written for these tests.

mod apibank;
mod e2e;
mod issues;
mod totto;
mod webnlg;
mod wikibio;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Imported;
use tooltune_suites::slot::{SchemaChecker, SchemaMode};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(&path, text).expect("written");
    path
}

/// Text and gold value of each row; asserts that each schema accepts exactly its gold value.
fn row_texts(imported: &Imported) -> Vec<(&str, &Value)> {
    for row in &imported.rows {
        let checker = SchemaChecker::new(&row.json_schema, SchemaMode::Schema).expect("usable");
        assert!(checker.is_valid(&row.gold), "{}", row.id);
        assert!(!checker.is_valid(&json!({})), "{}", row.id);
    }
    let rows = imported.rows.iter();
    rows.map(|row| (row.input_text.as_str(), &row.gold))
        .collect()
}

fn skipped_counts<'c>(
    counts: impl IntoIterator<Item = (&'c &'static str, &'c usize)>,
) -> Vec<(&'static str, usize)> {
    counts
        .into_iter()
        .map(|(reason, n)| (*reason, *n))
        .collect()
}
