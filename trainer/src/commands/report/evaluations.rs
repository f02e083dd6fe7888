//! Folders of `tooltune eval --output` to further results and samples of a run's page.
//!
//! They stand apart from the results of the run's checkpoints, which were found on other rows: in
//! one table, a change to the first result would compare two sets of rows.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tooltune_checkpoints::CheckpointError;
use tooltune_report::{SampleView, SuiteResult, ranked_samples, suite_of};
use tooltune_rows::text::Row;

use super::{is_there, lines, text};
use crate::error::Error;
use crate::eval::journal::JOURNAL_FILE;

/// What one folder holds.
#[derive(Debug)]
pub(super) struct Evaluation {
    suite: &'static str,
    /// The folder's name, or its path where another folder has the same name.
    label: String,
    metrics: Value,
    predictions: Vec<Value>,
}

/// Reads the folders, in their order.
///
/// # Errors
///
/// A folder without `metrics.json`, metrics of no known suite, or a file that cannot be read.
pub(super) fn evaluations(folders: &[PathBuf]) -> Result<Vec<Evaluation>, Error> {
    let read = |folder: &PathBuf| {
        let n_named = folders.iter().filter(|other| name(other) == name(folder));
        let label = match n_named.count() {
            1 => name(folder),
            _ => folder.display().to_string(),
        };
        Evaluation::read(folder, label)
    };
    folders.iter().map(read).collect()
}

fn name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or(folder.as_os_str());
    name.to_string_lossy().into_owned()
}

impl Evaluation {
    fn read(folder: &Path, label: String) -> Result<Self, Error> {
        let path = folder.join("metrics.json");
        if !is_there(&path)? {
            let remedy = match folder.join(JOURNAL_FILE).exists() {
                true => "its evaluation was interrupted: the same `tooltune eval` goes on with it",
                false => "name the --output of `tooltune eval`",
            };
            return Err(Error::Usage(format!(
                "{} holds no metrics.json; {remedy}",
                folder.display()
            )));
        }
        let metrics = serde_json::from_str(&text(&path)?);
        let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
        let suite = suite_of(&metrics).ok_or_else(|| {
            Error::Usage(format!(
                "{}: these are the metrics of no suite; --eval takes what `tooltune eval --output` \
                 has written",
                path.display()
            ))
        })?;
        Ok(Self {
            suite,
            label,
            metrics,
            predictions: lines(&folder.join("predictions.jsonl"))?,
        })
    }

    pub(super) fn result(&self) -> SuiteResult {
        SuiteResult {
            suite: format!("{}, further evaluations", self.suite),
            label: self.label.clone(),
            metrics: self.metrics.clone(),
        }
    }

    pub(super) fn samples(&self, rows: &HashMap<&str, &Row>) -> Vec<SampleView> {
        ranked_samples(self.suite, &self.label, &self.predictions, rows)
    }

    /// The files of the rows that `known` lacks; other suites keep prompts and golds themselves.
    pub(super) fn row_files(&self, known: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
        let lines = self.predictions.iter().filter(|_| self.suite == "slot");
        let ids = lines.filter_map(|line| line["id"].as_str());
        ids.filter(|id| !known.contains(id))
            .filter_map(|id| Some(PathBuf::from(id.rsplit_once(':')?.0)))
            .collect()
    }
}
