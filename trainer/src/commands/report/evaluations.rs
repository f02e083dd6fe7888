//! Reads folders of `tooltune eval --output` as further results and samples of a run's page.
//!
//! They stand apart from the results of the run's checkpoints, which were found on other rows: in
//! one table, a change to the first result would compare two sets of rows.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_checkpoints::CheckpointError;
use tooltune_report::{
    RankedEvaluation, SampleScoreView, SampleView, SuiteResult, ranked_samples, samples_by_loss,
};
use tooltune_rows::text::Row;
use tooltune_suites::SuiteInfo;

use super::generated::generated;
use super::{eprint_line, is_there, lines, text};
use crate::error::Error;
use crate::eval::journal::JOURNAL_FILE;
use crate::eval::report_files::{LOSSES_FILE, METRICS_FILE, PREDICTIONS_FILE};

/// Fields of `metrics.json` that are of the loss, whatever else was measured.
const OF_LOSS: [&str; 3] = [SuiteResult::LOSS, "n_loss_rows", "n_learned_tokens"];

/// What was evaluated and written outside of a run.
#[derive(Debug, Default)]
pub(super) struct Evaluated {
    pub(super) evaluations: Vec<Evaluation>,
    /// The texts of `tooltune generate --output`.
    pub(super) texts: Vec<SampleView>,
}

/// What one folder holds.
#[derive(Debug)]
pub(super) struct Evaluation {
    /// Absent where the loss alone was measured.
    suite: Option<&'static SuiteInfo>,
    /// The folder's name, or its path where another folder has the same name.
    label: String,
    metrics: Map<String, Value>,
    predictions: Vec<Value>,
    /// The loss of each row, where nothing was generated.
    losses: Vec<Value>,
}

/// Reads the evaluations in the folder `eval` of a run, the base first and the best last, and then
/// those of `further`, in their order; files in the same places hold texts.
///
/// # Errors
///
/// A folder of `further` without `metrics.json`, metrics of no known suite, or a file that cannot be
/// read.
pub(super) fn evaluations(run: &Path, further: &[PathBuf]) -> Result<Evaluated, Error> {
    let (mut folders, files) = own(run)?;
    let mut texts = Vec::new();
    for file in &files {
        texts.extend(generated(file)?);
    }
    let is_new = |folder: &&PathBuf| !folders.iter().any(|own| is_same(own, folder));
    let further: Vec<PathBuf> = further.iter().filter(is_new).cloned().collect();
    let (files, further): (Vec<PathBuf>, Vec<PathBuf>) =
        further.into_iter().partition(|path| !path.is_dir());
    for file in &files {
        texts.extend(generated(file)?);
    }
    folders.extend(further);
    let read = |folder: &PathBuf| {
        let n_named = folders.iter().filter(|other| name(other) == name(folder));
        let label = match n_named.count() {
            1 => name(folder),
            _ => folder.display().to_string(),
        };
        Evaluation::read(folder, label)
    };
    Ok(Evaluated {
        evaluations: folders.iter().map(read).collect::<Result<_, Error>>()?,
        texts,
    })
}

/// The folders below `eval` of a run whose evaluations are complete, and the files of texts beside
/// them; others are named on standard error.
fn own(run: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
    let parent = run.join("eval");
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    let Ok(entries) = fs::read_dir(&parent) else {
        return Ok((folders, files));
    };
    for entry in entries {
        let folder = entry.map_err(Error::io(&parent, "read"))?.path();
        if !folder.is_dir() {
            let is_lines = folder.extension().is_some_and(|end| end == "jsonl");
            files.extend(is_lines.then_some(folder));
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
    files.sort();
    Ok((folders, files))
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
        let suite = SuiteInfo::of_metrics(&metrics);
        let metrics = match metrics {
            Value::Object(metrics)
                if suite.is_some() || metrics.contains_key(SuiteResult::LOSS) =>
            {
                metrics
            }
            _ => {
                return Err(Error::Usage(format!(
                    "{}: these are the metrics of no suite; --eval takes what `tooltune eval --output` \
                     has written",
                    path.display()
                )));
            }
        };
        let losses = match suite {
            Some(_) => Vec::new(),
            None => lines(&folder.join(LOSSES_FILE))?,
        };
        Ok(Self {
            suite,
            label,
            metrics,
            predictions: lines(&folder.join(PREDICTIONS_FILE))?,
            losses,
        })
    }

    fn is_base(&self) -> bool {
        self.label == "base"
    }

    /// What it found for its suite, and for the loss.
    pub(super) fn results(&self) -> Vec<SuiteResult> {
        let result = |suite: &str, metrics: Map<String, Value>| SuiteResult {
            suite: suite.to_owned(),
            label: self.label.clone(),
            step: self.is_base().then_some(0),
            metrics: Value::Object(metrics),
        };
        let fields = || self.metrics.clone().into_iter();
        let of_loss = |(name, _): &(String, Value)| OF_LOSS.contains(&name.as_str());
        let loss: Map<String, Value> = fields().filter(of_loss).collect();
        let others = fields().filter(|field| !of_loss(field)).collect();
        let own = self.suite.map(|suite| result(suite.name, others));
        let loss = loss
            .contains_key(SuiteResult::LOSS)
            .then(|| result(SuiteResult::LOSS, loss));
        own.into_iter().chain(loss).collect()
    }

    pub(super) fn samples(&self, rows: &HashMap<&str, &Row>) -> Vec<SampleView> {
        let (result, is_base) = (self.label.as_str(), self.is_base());
        match self.suite {
            Some(suite) => {
                let of = Ranked {
                    suite,
                    result,
                    is_base,
                };
                ranked(of, &self.predictions, rows)
            }
            None => {
                let mut samples = samples_by_loss(result, &self.losses, rows);
                for sample in &mut samples {
                    sample.is_base = is_base;
                }
                samples
            }
        }
    }

    /// The files of the rows that `known` lacks; other suites keep prompts and golds themselves.
    pub(super) fn row_files(&self, known: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
        let rows_are_samples = self
            .suite
            .is_none_or(|suite| suite.needs.rows_are_samples());
        let lines = self.predictions.iter().chain(&self.losses);
        let ids = lines
            .filter(|_| rows_are_samples)
            .filter_map(|line| line["id"].as_str());
        ids.filter(|id| !known.contains(id))
            .filter_map(|id| Some(PathBuf::from(id.rsplit_once(':')?.0)))
            .collect()
    }
}

/// Whose lines are ranked.
#[derive(Clone, Copy)]
pub(super) struct Ranked<'e> {
    pub(super) suite: &'e SuiteInfo,
    pub(super) result: &'e str,
    pub(super) is_base: bool,
}

/// The lines of predictions of one evaluation as samples, by what their suite ranks them by.
pub(super) fn ranked(
    of: Ranked<'_>,
    lines: &[Value],
    rows: &HashMap<&str, &Row>,
) -> Vec<SampleView> {
    let views = |scores: Vec<(String, f64)>| {
        let scores = scores.into_iter();
        scores
            .map(|(name, value)| SampleScoreView { name, value })
            .collect()
    };
    let evaluation = RankedEvaluation {
        suite: of.suite.name,
        result: of.result,
        is_base: of.is_base,
        ranking_scores: &|line| views(of.suite.ranking_scores(line)),
        scores: &|line| views(of.suite.sample_scores(line)),
    };
    ranked_samples(evaluation, lines, rows)
}
