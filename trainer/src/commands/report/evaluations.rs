//! Reads folders of `tooltune eval --output` as further results and samples of a run's page.
//!
//! They stand apart from the results of the run's checkpoints, which were found on other rows: in
//! one table, a change to the first result would compare two sets of rows.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tooltune_checkpoints::CheckpointError;
use tooltune_report::{RankedEvaluation, SampleScoreView, SampleView, SuiteResult, ranked_samples};
use tooltune_rows::text::Row;
use tooltune_suites::SuiteInfo;

use super::{eprint_line, is_there, lines, text};
use crate::error::Error;
use crate::eval::journal::JOURNAL_FILE;
use crate::eval::report_files::METRICS_FILE;

/// What one folder holds.
#[derive(Debug)]
pub(super) struct Evaluation {
    suite: &'static SuiteInfo,
    /// The folder's name, or its path where another folder has the same name.
    label: String,
    metrics: Value,
    predictions: Vec<Value>,
}

/// Reads the evaluations in the folder `eval` of a run, the base first and the best last, and then
/// those of `further`, in their order.
///
/// # Errors
///
/// A folder of `further` without `metrics.json`, metrics of no known suite, or a file that cannot be
/// read.
pub(super) fn evaluations(run: &Path, further: &[PathBuf]) -> Result<Vec<Evaluation>, Error> {
    let mut folders = own_folders(run)?;
    let is_new = |folder: &&PathBuf| !folders.iter().any(|own| is_same(own, folder));
    let further: Vec<PathBuf> = further.iter().filter(is_new).cloned().collect();
    folders.extend(further);
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

/// The folders below `eval` of a run whose evaluations are complete; others are named on standard
/// error.
fn own_folders(run: &Path) -> Result<Vec<PathBuf>, Error> {
    let parent = run.join("eval");
    let mut folders = Vec::new();
    let Ok(entries) = fs::read_dir(&parent) else {
        return Ok(folders);
    };
    for entry in entries {
        let folder = entry.map_err(Error::io(&parent, "read"))?.path();
        if !folder.is_dir() {
            continue;
        }
        if is_there(&folder.join(METRICS_FILE))? {
            folders.push(folder);
        } else {
            let folder = folder.display();
            eprint_line(&format!(
                "{folder} is not in the report: it holds no {METRICS_FILE}"
            ))?;
        }
    }
    let rank = |folder: &PathBuf| match name(folder).as_str() {
        "base" => 0,
        "best" => 2,
        _ => 1,
    };
    folders.sort_by(|a, b| (rank(a), a).cmp(&(rank(b), b)));
    Ok(folders)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

fn name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or(folder.as_os_str());
    name.to_string_lossy().into_owned()
}

impl Evaluation {
    fn read(folder: &Path, label: String) -> Result<Self, Error> {
        let path = folder.join("metrics.json");
        if !is_there(&path)? {
            let remedy = if folder.join(JOURNAL_FILE).exists() {
                "its evaluation was interrupted: the same `tooltune eval` resumes it"
            } else {
                "name the --output of `tooltune eval`"
            };
            return Err(Error::Usage(format!(
                "{} holds no metrics.json; {remedy}",
                folder.display()
            )));
        }
        let metrics = serde_json::from_str(&text(&path)?);
        let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
        let suite = SuiteInfo::of_metrics(&metrics).ok_or_else(|| {
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
            suite: self.suite.name.to_owned(),
            label: self.label.clone(),
            step: (self.label == "base").then_some(0),
            metrics: self.metrics.clone(),
        }
    }

    pub(super) fn samples(&self, rows: &HashMap<&str, &Row>) -> Vec<SampleView> {
        ranked(self.suite, &self.label, &self.predictions, rows)
    }

    /// The files of the rows that `known` lacks; other suites keep prompts and golds themselves.
    pub(super) fn row_files(&self, known: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
        let rows_are_samples = self.suite.needs.rows_are_samples();
        let lines = self.predictions.iter().filter(|_| rows_are_samples);
        let ids = lines.filter_map(|line| line["id"].as_str());
        ids.filter(|id| !known.contains(id))
            .filter_map(|id| Some(PathBuf::from(id.rsplit_once(':')?.0)))
            .collect()
    }
}

/// The lines of predictions of one evaluation as samples, by what their suite ranks them by.
pub(super) fn ranked(
    suite: &SuiteInfo,
    result: &str,
    lines: &[Value],
    rows: &HashMap<&str, &Row>,
) -> Vec<SampleView> {
    let views = |scores: Vec<(String, f64)>| -> Vec<SampleScoreView> {
        let view = |(name, value)| SampleScoreView { name, value };
        scores.into_iter().map(view).collect()
    };
    let evaluation = RankedEvaluation {
        suite: suite.name,
        result,
        is_base: result == "base" || result == "step 0",
        ranking_scores: &|line| views(suite.ranking_scores(line)),
        scores: &|line| views(suite.sample_scores(line)),
    };
    ranked_samples(evaluation, lines, rows)
}
