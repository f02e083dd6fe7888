//! Reads folders of `tooltune eval --output` as additional results and samples of a run's page.
//!
//! These results have a separate table, because their rows may differ from the rows of the run's
//! own evaluations. A difference from the first result would then be meaningless.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_checkpoints::CheckpointError;
use tooltune_report::{
    LineParts, OriginLine, RankedEvaluation, SampleScoreView, SampleView, SuiteResult,
    ranked_samples, samples_by_loss,
};
use tooltune_rows::text::Row;
use tooltune_suites::{LineFields, SuiteInfo};

use super::generated::generated_samples;
use super::{eprint_line, file_exists, lines, text};
use crate::error::Error;
use crate::eval::groups::SharedKeys;
use crate::eval::journal::JOURNAL_FILE;
use crate::eval::origin::{EvaluationOrigin, ORIGIN};
use crate::eval::report_files::{LOSSES_FILE, METRICS_FILE, PREDICTIONS_FILE};

/// Fields of `metrics.json` that describe the loss.
const LOSS_FIELDS: [&str; 3] = [SuiteResult::LOSS, "n_loss_rows", "n_learned_tokens"];

/// Evaluations and completions that were made outside of training.
#[derive(Debug, Default)]
pub(super) struct Evaluated {
    pub(super) evaluations: Vec<Evaluation>,
    /// Completions of `tooltune generate --output`.
    pub(super) texts: Vec<SampleView>,
}

/// One evaluation folder.
#[derive(Debug)]
pub(super) struct Evaluation {
    /// `None` if only the loss was measured.
    suite: Option<&'static SuiteInfo>,
    /// Folder name, or its path if another folder has the same name.
    label: String,
    /// `None` if written by an earlier version.
    origin: Option<EvaluationOrigin>,
    metrics: Map<String, Value>,
    predictions: Vec<Value>,
    /// Loss of each row, if no suite was evaluated.
    losses: Vec<Value>,
}

/// Reads the evaluations in the `eval` folder of a run (base first, best last), then the folders of
/// `further` in order. Paths that are files contain completions.
///
/// # Errors
///
/// A folder of `further` has no `metrics.json`, its metrics are of an unknown suite, or a file
/// cannot be read.
pub(super) fn evaluations(run: &Path, further: &[PathBuf]) -> Result<Evaluated, Error> {
    let (mut folders, files) = own_folders(run)?;
    let mut texts = Vec::new();
    for file in &files {
        texts.extend(generated_samples(file)?);
    }
    let is_new = |folder: &&PathBuf| !folders.iter().any(|own| is_same(own, folder));
    let further: Vec<PathBuf> = further.iter().filter(is_new).cloned().collect();
    let (files, further): (Vec<PathBuf>, Vec<PathBuf>) =
        further.into_iter().partition(|path| !path.is_dir());
    for file in &files {
        texts.extend(generated_samples(file)?);
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

/// Lists the complete evaluations and the files of completions in a run's `eval` folder. Incomplete
/// evaluations are reported on standard error.
fn own_folders(run: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Error> {
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
        if file_exists(&folder.join(METRICS_FILE))? {
            folders.push(folder);
        } else {
            let folder = folder.display();
            eprint_line(&format!(
                "the report omits {folder}: it has no {METRICS_FILE}"
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
        if !file_exists(&path)? {
            let remedy = if folder.join(JOURNAL_FILE).exists() {
                "the evaluation was interrupted; run the same `tooltune eval` command to resume it"
            } else {
                "name the --output of `tooltune eval`"
            };
            return Err(Error::Usage(format!(
                "{} has no metrics.json; {remedy}",
                folder.display()
            )));
        }
        let metrics = tooltune_json::from_slice(text(&path)?.as_bytes());
        let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
        let suite = SuiteInfo::for_metrics(&metrics);
        let metrics = match metrics {
            Value::Object(metrics)
                if suite.is_some() || metrics.contains_key(SuiteResult::LOSS) =>
            {
                metrics
            }
            _ => {
                return Err(Error::Usage(format!(
                    "{}: not the metrics of a known suite; --eval needs a folder written by \
                     `tooltune eval --output`",
                    path.display()
                )));
            }
        };
        let origin = EvaluationOrigin::read(&Value::Object(metrics.clone()));
        let mut metrics = metrics;
        metrics.shift_remove(ORIGIN);
        let losses = match suite {
            Some(_) => Vec::new(),
            None => lines(&folder.join(LOSSES_FILE))?,
        };
        Ok(Self {
            suite,
            label: own_label(label, origin.as_ref()),
            origin,
            metrics,
            predictions: lines(&folder.join(PREDICTIONS_FILE))?,
            losses,
        })
    }

    /// Adds the groups of the keys that the suite has.
    pub(super) fn add_groups(&mut self, keys: &mut SharedKeys<'_>) {
        if let Some(suite) = self.suite {
            keys.add_groups(&mut self.metrics, suite, &self.predictions);
        }
    }

    /// Describes what was evaluated, in one line.
    pub(super) fn origin(&self) -> OriginLine {
        let text = self.origin.as_ref().map(EvaluationOrigin::line);
        OriginLine {
            label: self.label.clone(),
            text: text
                .unwrap_or_else(|| "unknown origin (written by an earlier version)".to_owned()),
        }
    }

    fn is_base(&self) -> bool {
        self.label == "base"
    }

    /// The results for the suite and the loss.
    pub(super) fn results(&self) -> Vec<SuiteResult> {
        let result = |suite: &str, metrics: Map<String, Value>| SuiteResult {
            suite: suite.to_owned(),
            label: self.label.clone(),
            step: self.is_base().then_some(0),
            metrics: Value::Object(metrics),
        };
        let fields = || self.metrics.clone().into_iter();
        let is_loss_field = |(name, _): &(String, Value)| LOSS_FIELDS.contains(&name.as_str());
        let loss: Map<String, Value> = fields().filter(is_loss_field).collect();
        let others = fields().filter(|field| !is_loss_field(field)).collect();
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
                let source = LineSource {
                    suite,
                    result,
                    is_base,
                };
                rank_lines(source, &self.predictions, rows)
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

    /// The row files that the ids of the predictions name, except for ids in `known`. Suites whose
    /// samples are not rows save prompts and references in the predictions instead.
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

/// Label of the folder. The results of a server must not be labeled as the run's base or best
/// checkpoint.
fn own_label(name: String, origin: Option<&EvaluationOrigin>) -> String {
    match origin.and_then(|origin| origin.endpoint.as_ref()) {
        Some(endpoint) => format!("{name}, {}", endpoint.model),
        None => name,
    }
}

/// The source of ranked lines.
#[derive(Clone, Copy)]
pub(super) struct LineSource<'e> {
    pub(super) suite: &'e SuiteInfo,
    pub(super) result: &'e str,
    pub(super) is_base: bool,
}

/// Converts the prediction lines of an evaluation to samples, ranked by the suite's score.
pub(super) fn rank_lines(
    source: LineSource<'_>,
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
        suite: source.suite.name,
        result: source.result,
        is_base: source.is_base,
        ranking_scores: &|line| views(source.suite.ranking_scores(line)),
        scores: &|line| views(source.suite.sample_scores(line)),
        parts: &|line| parts(source.suite, line, rows),
    };
    ranked_samples(evaluation, lines, rows)
}

/// Builds a sample from a prediction line of a suite. If the samples are rows, the prompts come
/// from the rows.
fn parts<'l>(suite: &SuiteInfo, line: &'l Value, rows: &HashMap<&str, &Row>) -> LineParts<'l> {
    let Some(form) = suite.form_of(line) else {
        return LineParts::default();
    };
    let (fields, id) = (form.fields, form.id(line));
    let has_row = suite.needs.rows_are_samples() && id.is_some_and(|id| rows.contains_key(id));
    LineParts {
        id,
        prompt: LineFields::first_value(fields.prompt, line).filter(|_| !has_row),
        gold: LineFields::first_value(fields.gold, line),
        output: LineFields::first_value(fields.output, line),
    }
}
