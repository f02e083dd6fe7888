//! Lists all suites: name, metrics with their direction, requirements, and scores of samples.
//!
//! Each suite defines a [`SuiteInfo`] in its own folder, and [`SUITES`] lists them. Configs,
//! evaluations, checkpoint selection, comparisons and reports use this list.

use std::error::Error;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::JsonLines;
use tooltune_json::ReadError;
use tooltune_json::lines::Records;
use tooltune_rows::statistics::{FileStatistics, TokenCount};

use super::SUITES;
use super::bootstrap::indicator;
use super::grouping::GroupKey;
use super::operations::Operation;
use super::paired::SampleScore;

/// The field with the suite name in `metrics.json` and in lines of predictions.
pub const SUITE_FIELD: &str = "suite";

/// The field with the line type in lines of predictions.
pub const TYPE_FIELD: &str = "type";

/// Everything that other code needs to know about a suite.
#[derive(Debug)]
pub struct SuiteInfo {
    /// Name in configs and on the command line, and prefix of its metrics.
    pub name: &'static str,
    /// Its task in one sentence.
    pub about: &'static str,
    /// Keys of the metrics that can select a checkpoint. The full name is always the suite name and
    /// the key, such as `slot.mean`.
    pub metrics: &'static [&'static str],
    /// Plain-language names of metrics by key, if the key is not clear enough.
    pub plain_names: &'static [(&'static str, &'static str)],
    /// Metrics that exist only with flattened schemas.
    pub flat_metrics: &'static [&'static str],
    /// All metrics for which lower is better.
    pub lower_is_better: &'static [&'static str],
    /// The metric that selects checkpoints by default.
    pub default_metric: &'static str,
    /// Whether its answers can be rated, by a judge or by people.
    pub is_judged: bool,
    /// Its requirements on the config.
    pub needs: SuiteNeeds,
    /// The operations of `tooltune score` that compute its metrics.
    pub operations: &'static [Operation],
    /// Its prompts by name, for docs/prompts.txt. Prompts that depend on a row are listed there
    /// instead.
    pub prompts: &'static [(&'static str, &'static str)],
    /// The scores of lines of its `predictions.jsonl`, by line type.
    pub samples: &'static [SampleScores],
    /// The scores whose mean ranks samples in a report; empty if the lines have no text.
    pub ranked_by: &'static [SampleMeasure],
    /// File formats of this suite, for `data stats`.
    pub own_files: &'static [SuiteFile],
}

/// Requirements of a suite on the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuiteNeeds {
    /// A language model that generates text.
    pub generator: bool,
    /// Rows of `data.eval`.
    pub rows: Option<RowSource>,
    /// The sentence encoder.
    pub encoder: bool,
    /// A retriever that ranks documents.
    pub retriever: bool,
    /// The `[goat]` table with the agents' prompts.
    pub agents: bool,
}

/// The rows of `data.eval` that a suite uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSource {
    /// The accepted values of `data.format`.
    pub formats: &'static [&'static str],
    /// Whether each row is a complete sample. If so, the evaluation rows of a run serve the suite,
    /// and the row of a prediction contains its prompt and gold answer.
    pub are_samples: bool,
    /// Whether a run with such rows evaluates the suite by default.
    pub by_default: bool,
}

impl SuiteNeeds {
    /// Only a language model.
    pub(crate) const GENERATOR: Self = Self {
        generator: true,
        rows: None,
        encoder: false,
        retriever: false,
        agents: false,
    };
    /// The requirements of the agent suites.
    pub(crate) const AGENTS: Self = Self {
        retriever: true,
        agents: true,
        ..Self::GENERATOR
    };

    /// Whether the suite ranks documents without generating text.
    pub fn is_ranking_only(&self) -> bool {
        self.retriever && !self.generator
    }

    /// Whether the rows of `data.eval` are complete samples.
    pub fn rows_are_samples(&self) -> bool {
        self.rows.is_some_and(|rows| rows.are_samples)
    }
}

impl SuiteInfo {
    /// A suite without metrics, samples, operations, prompts and files.
    pub(crate) const EMPTY: Self = Self {
        name: "",
        about: "",
        metrics: &[],
        plain_names: &[],
        flat_metrics: &[],
        lower_is_better: &[],
        default_metric: "",
        is_judged: false,
        needs: SuiteNeeds::GENERATOR,
        operations: &[],
        prompts: &[],
        samples: &[],
        ranked_by: &[],
        own_files: &[],
    };

    /// Looks a suite up by name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        SUITES.iter().copied().find(|suite| suite.name == name)
    }

    /// The suite named in a `metrics.json`.
    pub fn for_metrics(metrics: &Value) -> Option<&'static Self> {
        Self::from_name(metrics.get(SUITE_FIELD)?.as_str()?)
    }

    /// The available scores that rank a line of predictions, under their metric names.
    pub fn ranking_scores(&self, line: &Value) -> Vec<(String, f64)> {
        self.scores(self.ranked_by, line)
    }

    /// All scores of a line of predictions under their metric names, in table order.
    pub fn sample_scores(&self, line: &Value) -> Vec<(String, f64)> {
        let sample_form = self.form_of(line);
        sample_form.map_or_else(Vec::new, |sample_form| {
            self.scores(sample_form.measures, line)
        })
    }

    /// The format of a line of predictions. The type may be missing if the suite has only one.
    pub fn form_of(&self, line: &Value) -> Option<&'static SampleScores> {
        match (line.get(TYPE_FIELD).and_then(Value::as_str), self.samples) {
            (Some(kind), _) => self.form(kind),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    /// The scores of lines of a type.
    pub fn form(&self, kind: &str) -> Option<&'static SampleScores> {
        self.samples.iter().find(|form| form.kinds.contains(&kind))
    }

    fn scores(&self, measures: &[SampleMeasure], line: &Value) -> Vec<(String, f64)> {
        let score =
            |measure: &SampleMeasure| Some((self.metric(measure.key), measure.value(line)?));
        measures.iter().filter_map(score).collect()
    }

    /// The full name of the metric under a key.
    pub fn metric(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}

/// Plain-language name of a metric, such as "content similarity" for `slot.content_similarity`;
/// `None` if the name is clear enough.
pub fn plain_metric_name(metric: &str) -> Option<&'static str> {
    let (suite, key) = metric.split_once('.')?;
    let words = SuiteInfo::from_name(suite)?.plain_names;
    let (_, words) = words.iter().find(|(known, _)| *known == key)?;
    Some(words)
}

/// A file format that only one suite uses.
#[derive(Debug)]
pub struct SuiteFile {
    /// Description of its rows, in the plural.
    pub rows: &'static str,
    /// Fields that all of its rows have and rows of other formats lack.
    pub fields: &'static [&'static str],
    /// If the rows refer to another file: a description of the rows, why the other file is needed,
    /// and how to pass it.
    pub refers: Option<&'static str>,
    /// Measures a file.
    pub statistics: fn(SuiteFileInput<'_>) -> Result<FileStatistics, Box<dyn Error + Send + Sync>>,
}

/// Input of [`SuiteFile::statistics`].
#[derive(Clone, Copy)]
#[expect(
    missing_debug_implementations,
    reason = "functions do not implement Debug"
)]
pub struct SuiteFileInput<'i> {
    /// The file.
    pub file: &'i Path,
    /// The file that the rows refer to.
    pub referred: Option<&'i Path>,
    /// Counts tokens, if there is a tokenizer.
    pub count_tokens: TokenCount<'i>,
    /// Opens a file of rows in any supported format.
    pub open: fn(&Path) -> Result<Box<dyn Records>, ReadError>,
}

impl SuiteFileInput<'_> {
    /// The rows of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub(crate) fn lines(&self, file: &Path) -> Result<JsonLines, ReadError> {
        (self.open)(file).map(JsonLines::from_records)
    }
}

impl SuiteFile {
    /// The file formats of all suites.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SUITES.iter().copied().flat_map(|suite| suite.own_files)
    }

    /// The file format of a row with these fields.
    pub fn for_row(row: &Map<String, Value>) -> Option<&'static Self> {
        Self::all().find(|file| file.fields.iter().all(|field| row.contains_key(*field)))
    }
}

impl PartialEq for SuiteFile {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl Eq for SuiteFile {}

/// Whether lower values of a metric are better, such as `goat.delta_len` or `loss`.
pub fn lower_is_better(metric: &str) -> bool {
    match metric.split_once('.') {
        None => metric == "loss",
        Some((suite, metric)) => {
            SuiteInfo::from_name(suite).is_some_and(|suite| suite.lower_is_better.contains(&metric))
        }
    }
}

/// Whether higher values of a metric are better, such as `goat.sa`; `None` if neither direction is
/// better, such as for the length of a text.
pub fn greater_is_better(metric: &str) -> Option<bool> {
    let Some((suite, key)) = metric.split_once('.') else {
        return (metric == "loss").then_some(false);
    };
    let suite = SuiteInfo::from_name(suite)?;
    if suite.lower_is_better.contains(&key) {
        return Some(false);
    }
    let mut measures = suite.samples.iter().flat_map(|form| form.measures);
    let measure = measures.find(|measure| measure.key == key);
    let is_metric = suite.metrics.contains(&key) || suite.flat_metrics.contains(&key);
    match measure {
        Some(measure) => Some(measure.greater_is_better),
        None => is_metric.then_some(true),
    }
}

/// A score of a sample.
#[derive(Debug, Clone, Copy)]
pub struct SampleMeasure {
    /// Key of the metric that aggregates the score, such as `exact_match_f`.
    pub key: &'static str,
    /// Whether higher values are better.
    pub greater_is_better: bool,
    /// Source of the score in a line.
    source: ScoreSource,
    /// Weight of the line in the metric; all lines have weight 1 if `None`.
    weight: Option<fn(&Value) -> Option<f64>>,
}

/// Source of a score in a line.
#[derive(Debug, Clone, Copy)]
enum ScoreSource {
    /// A field of the line's `score`, as names joined by dots.
    Field(&'static str),
    /// A function of the line.
    Computed(fn(&Value) -> Option<f64>),
}

/// The scores of a suite's lines that are used to compare two systems.
///
/// Only scores with a better direction are listed. The depth of a gold value and the number of
/// calls also describe a sample, but neither direction is better for them.
#[derive(Debug)]
pub struct SampleScores {
    /// The suite of the lines, with its mode if there are several.
    pub of: &'static str,
    /// Fields of a line.
    pub fields: LineFields,
    /// Values of the line's `type` field.
    pub kinds: &'static [&'static str],
    /// The scores, in table order.
    pub measures: &'static [SampleMeasure],
    /// The properties by which the samples can be grouped.
    pub groups: &'static [GroupKey],
}

/// The fields of a line of `predictions.jsonl`, as names joined by dots.
///
/// If a part has several names, a line has one of them, depending on its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineFields {
    /// Sample id.
    pub id: &'static str,
    /// The prompt.
    pub prompt: &'static [&'static str],
    /// The gold answer.
    pub gold: &'static [&'static str],
    /// The completion, or the record of an agent's steps.
    pub output: &'static [&'static str],
    /// Finish reasons of the texts. A name after a list applies to each object of the list.
    pub finish_reason: &'static [&'static str],
}

impl LineFields {
    /// Fields of a line with one completion, named as in servers and TRL.
    pub(crate) const COMPLETION: Self = Self {
        id: "id",
        prompt: &["prompt"],
        gold: &["gold"],
        output: &["prediction"],
        finish_reason: &["finish_reason"],
    };

    /// The first of these fields that is present in the line and not null.
    pub fn first_value<'l>(names: &[&str], line: &'l Value) -> Option<&'l Value> {
        let found_value = names.iter().find_map(|name| value_at(line, name));
        found_value.filter(|value| !value.is_null())
    }

    /// The finish reasons of the line's texts.
    pub fn finish_reasons<'l>(&self, line: &'l Value) -> Vec<&'l str> {
        let mut reasons = Vec::new();
        for name in self.finish_reason {
            collect_texts(line, name, &mut reasons);
        }
        reasons
    }
}

fn value_at<'l>(line: &'l Value, name: &str) -> Option<&'l Value> {
    name.split('.')
        .try_fold(line, |value, name| value.get(name))
}

/// The strings at a path. If the path leads through a list, each of its objects is searched.
fn collect_texts<'l>(value: &'l Value, path: &str, texts: &mut Vec<&'l str>) {
    match value {
        Value::Array(items) => {
            for item in items {
                collect_texts(item, path, texts);
            }
        }
        Value::String(text) if path.is_empty() => texts.push(text),
        value => {
            let (name, rest) = path.split_once('.').unwrap_or((path, ""));
            if let Some(value) = value.get(name).filter(|_| !name.is_empty()) {
                collect_texts(value, rest, texts);
            }
        }
    }
}

/// A score for which higher is better, in the field of this name.
pub(crate) const fn higher_better(key: &'static str) -> SampleMeasure {
    SampleMeasure {
        key,
        greater_is_better: true,
        source: ScoreSource::Field(key),
        weight: None,
    }
}

/// A score for which lower is better, in the field of this name.
pub(crate) const fn lower_better(key: &'static str) -> SampleMeasure {
    SampleMeasure {
        key,
        greater_is_better: false,
        source: ScoreSource::Field(key),
        weight: None,
    }
}

impl SampleMeasure {
    /// Uses a field with a name that differs from the metric.
    pub(crate) const fn in_field(mut self, field: &'static str) -> Self {
        self.source = ScoreSource::Field(field);
        self
    }

    /// Computes the score from the line.
    pub(crate) const fn computed_by(mut self, computed: fn(&Value) -> Option<f64>) -> Self {
        self.source = ScoreSource::Computed(computed);
        self
    }

    /// Weights lines by a number in the line, such as the number of calls of a turn.
    pub(crate) const fn weighted_by(mut self, weight: fn(&Value) -> Option<f64>) -> Self {
        self.weight = Some(weight);
        self
    }

    /// The field of the line's `score` with the value; `None` if it is computed from the line.
    pub fn score_field(&self) -> Option<&'static str> {
        match self.source {
            ScoreSource::Field(name) => Some(name),
            ScoreSource::Computed(_) => None,
        }
    }

    /// The sample's contribution to the metric; `None` if it is excluded.
    pub fn score(&self, id: &str, line: &Value) -> Option<SampleScore> {
        let Some(weight) = self.weight else {
            return Some(SampleScore::new(id, self.value(line)?));
        };
        // The sample may be included in the other system, so do not return `None`.
        let score = self.value(line);
        Some(SampleScore {
            id: id.to_owned(),
            weight: score.and_then(|_| weight(line)).unwrap_or(0.0),
            score: score.unwrap_or(0.0),
        })
    }

    /// The score of a line; `None` if the line has none, for example without a judge.
    pub fn value(&self, line: &Value) -> Option<f64> {
        match self.source {
            ScoreSource::Computed(computed) => computed(line),
            ScoreSource::Field(name) => match field(line, name)? {
                Value::Bool(boolean) => Some(indicator(*boolean)),
                found => found.as_f64(),
            },
        }
    }
}

impl SampleScores {
    /// The score lists of all suites.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SUITES.iter().copied().flat_map(|suite| suite.samples)
    }

    /// The scores of a line, by the suite and type in the line; `None` if the line has no suite.
    pub fn for_line(line: &Value) -> Option<&'static Self> {
        let suite = SuiteInfo::from_name(line.get(SUITE_FIELD)?.as_str()?)?;
        suite.form(line.get(TYPE_FIELD)?.as_str()?)
    }

    /// The suite that writes such lines.
    pub fn suite(&self) -> Option<&'static SuiteInfo> {
        let writes = |suite: &&SuiteInfo| suite.samples.iter().any(|form| form.of == self.of);
        SUITES.iter().copied().find(writes)
    }

    /// The sample id of a line.
    pub fn id<'l>(&self, line: &'l Value) -> Option<&'l str> {
        line.get(self.fields.id)?.as_str()
    }
}

/// A field of the line's `score`, as names joined by dots. If a suite has no object `score`, it is
/// a field of the line itself.
pub(crate) fn field<'l>(line: &'l Value, name: &str) -> Option<&'l Value> {
    let score = line.get("score").unwrap_or(line);
    name.split('.').try_fold(score, |value, key| value.get(key))
}

#[cfg(test)]
mod tests;
