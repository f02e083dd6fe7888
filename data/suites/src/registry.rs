//! Lists every suite once: its name, its metrics with their direction, what it needs, the marks of its
//! files, and the scores of its samples.
//!
//! A suite is a value in its own folder and a line here; configs, evaluations, selections,
//! comparisons and reports ask this list.

use std::error::Error;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_rows::statistics::{FileStatistics, TokenCount};

use super::bootstrap::indicator;
use super::operations::Operation;
use super::paired::SampleScore;
use super::{calls, goat, nestful, retrieval, slot, toolqa};

/// What everything but the suite itself has to know of a suite.
#[derive(Debug)]
pub struct SuiteInfo {
    /// Its word in configs and on the command line, which its metrics begin with.
    pub name: &'static str,
    /// What it asks for, in a sentence.
    pub about: &'static str,
    /// The metrics that a checkpoint can be selected by. The name of one is its key behind the name of
    /// the suite, such as `slot.mean`, wherever it stands.
    pub metrics: &'static [&'static str],
    /// What people call them, by key, where the key does not say it.
    pub words: &'static [(&'static str, &'static str)],
    /// Those that only a config which flattens schemas has.
    pub flat_metrics: &'static [&'static str],
    /// All that fall as a model gets better.
    pub lower_is_better: &'static [&'static str],
    /// The metric that a checkpoint is selected by unless the config says otherwise.
    pub default_metric: &'static str,
    /// What it needs of a config.
    pub needs: Needs,
    /// The operations of `tooltune score` that compute its numbers.
    pub operations: &'static [Operation],
    /// The field that its `metrics.json` has and those of no other suites.
    pub metrics_mark: &'static str,
    /// The scores of the lines of its `predictions.jsonl`, in the order in which lines are tried.
    pub samples: &'static [SampleScores],
    /// The scores whose mean says how right a sample is, as a report ranks samples; none for lines
    /// without a text.
    pub ranked_by: &'static [SampleMeasure],
    /// Files of its own kinds, as `data stats` measures them.
    pub own_files: &'static [OwnFile],
}

/// What a suite needs of a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// A language model that writes.
    pub generator: bool,
    /// Rows of `data.eval`.
    pub rows: Option<RowsOf>,
    /// The encoder that compares texts.
    pub encoder: bool,
    /// A retriever that ranks documents.
    pub retriever: bool,
    /// The table `[goat]`, which says how agents are prompted.
    pub agents: bool,
}

/// The rows of `data.eval` that a suite reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsOf {
    /// The formats that it reads, by their words in `data.format`.
    pub formats: &'static [&'static str],
    /// Whether each row is a sample as it stands, so that the rows of a run serve its evaluations,
    /// and a line of predictions has its prompt and gold in its row.
    pub are_samples: bool,
    /// Whether a run with such rows has the suite where its config names none.
    pub by_default: bool,
}

impl Needs {
    /// A language model and nothing else.
    pub(crate) const GENERATOR: Self = Self {
        generator: true,
        rows: None,
        encoder: false,
        retriever: false,
        agents: false,
    };
    /// What agents need.
    pub(crate) const AGENTS: Self = Self {
        retriever: true,
        agents: true,
        ..Self::GENERATOR
    };

    /// Whether it ranks documents and writes nothing.
    pub fn ranks_alone(&self) -> bool {
        self.retriever && !self.generator
    }

    /// Whether the rows of `data.eval` are its samples as they stand.
    pub fn rows_are_samples(&self) -> bool {
        self.rows.is_some_and(|rows| rows.are_samples)
    }
}

/// Every suite, in the order of configs and lists; lines of predictions are tried in it, too. The
/// first is that of an evaluation whose command names none.
pub static SUITES: [&SuiteInfo; 8] = [
    &slot::SUITE,
    &calls::SUITE,
    &goat::SUITE,
    &retrieval::SUITE,
    &nestful::SUITE,
    &toolqa::SUITE,
    &goat::RESTBENCH,
    &goat::APIBANK,
];

impl SuiteInfo {
    /// The suite of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SUITES.into_iter().find(|suite| suite.name == name)
    }

    /// The suite whose `metrics.json` this is.
    pub fn of_metrics(metrics: &Value) -> Option<&'static Self> {
        let mut suites = SUITES.into_iter();
        suites.find(|suite| metrics.get(suite.metrics_mark).is_some())
    }

    /// The scores by which a line of its predictions is ranked, those that it has, by their names.
    pub fn ranking_scores(&self, line: &Value) -> Vec<(String, f64)> {
        self.scores(self.ranked_by, line)
    }

    /// All scores of a line of its predictions by their names, in the order of a table.
    pub fn sample_scores(&self, line: &Value) -> Vec<(String, f64)> {
        let mut forms = self.samples.iter();
        let form = forms.find(|form| field(line, form.mark).is_some());
        form.map_or_else(Vec::new, |form| self.scores(form.measures, line))
    }

    fn scores(&self, measures: &[SampleMeasure], line: &Value) -> Vec<(String, f64)> {
        let score =
            |measure: &SampleMeasure| Some((self.metric(measure.key), measure.value(line)?));
        measures.iter().filter_map(score).collect()
    }

    /// The name of its metric of that key.
    pub fn metric(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }
}

/// What people call the metric of that name, such as "content similarity" of
/// `slot.content_similarity`; none where its name says it.
pub fn metric_words(metric: &str) -> Option<&'static str> {
    let (suite, key) = metric.split_once('.')?;
    let words = SuiteInfo::named(suite)?.words;
    let (_, words) = words.iter().find(|(known, _)| *known == key)?;
    Some(words)
}

/// A kind of file that only one suite reads.
#[derive(Debug)]
pub struct OwnFile {
    /// What its rows are, in the plural.
    pub rows: &'static str,
    /// Fields that all of its rows have, and rows of no other kind.
    pub fields: &'static [&'static str],
    /// What its rows are and why they need another file that they refer to, where they do, with how
    /// to name it.
    pub refers: Option<&'static str>,
    /// Measures a file.
    pub statistics: fn(OwnFileInput<'_>) -> Result<FileStatistics, Box<dyn Error + Send + Sync>>,
}

/// What is measured.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a function has none")]
pub struct OwnFileInput<'i> {
    /// The file.
    pub file: &'i Path,
    /// The file that its rows refer to.
    pub referred: Option<&'i Path>,
    /// Counts tokens, where there is a tokenizer.
    pub count_tokens: TokenCount<'i>,
}

impl OwnFile {
    /// Those of all suites.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SUITES.into_iter().flat_map(|suite| suite.own_files)
    }

    /// The kind of file that a row with these fields is of.
    pub fn of_row(row: &Map<String, Value>) -> Option<&'static Self> {
        Self::all().find(|file| file.fields.iter().all(|field| row.contains_key(*field)))
    }
}

impl PartialEq for OwnFile {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl Eq for OwnFile {}

/// Whether a metric such as `goat.delta_len` or `loss` falls as a model gets better.
pub fn lower_is_better(metric: &str) -> bool {
    match metric.split_once('.') {
        None => metric == "loss",
        Some((suite, metric)) => {
            SuiteInfo::named(suite).is_some_and(|suite| suite.lower_is_better.contains(&metric))
        }
    }
}

/// A score of samples.
#[derive(Debug, Clone, Copy)]
pub struct SampleMeasure {
    /// The key of the metric that sums it up, such as `exact_match_f`.
    pub key: &'static str,
    /// False for what less of is better, such as errors.
    pub greater_is_better: bool,
    /// Where a line has it.
    source: ScoreSource,
    /// How much the line counts in the metric; all the same without it.
    weight: Option<fn(&Value) -> Option<f64>>,
}

/// Where a line has a score.
#[derive(Debug, Clone, Copy)]
enum ScoreSource {
    /// In a field of its score, by names joined with dots.
    Field(&'static str),
    /// It follows from the line.
    Computed(fn(&Value) -> Option<f64>),
}

/// The scores of a suite's lines, by which two systems are compared.
///
/// Only what says how good an answer is stands here: the depth of a gold and the number of calls
/// are numbers of a sample too, and neither more nor less of them is better.
#[derive(Debug)]
pub struct SampleScores {
    /// What the lines are of: the suite, and its mode where it has several.
    pub of: &'static str,
    /// The field that names the sample.
    pub(crate) id: &'static str,
    /// A field that tells its lines from those that are tried after it.
    pub(crate) mark: &'static str,
    /// The scores, in the order of a table.
    pub measures: &'static [SampleMeasure],
}

/// A score of which more is better, in the field of this name.
pub(crate) const fn more(key: &'static str) -> SampleMeasure {
    SampleMeasure {
        key,
        greater_is_better: true,
        source: ScoreSource::Field(key),
        weight: None,
    }
}

/// A score of which less is better, in the field of this name.
pub(crate) const fn less(key: &'static str) -> SampleMeasure {
    SampleMeasure {
        key,
        greater_is_better: false,
        source: ScoreSource::Field(key),
        weight: None,
    }
}

impl SampleMeasure {
    /// In a field that is called otherwise than the metric.
    pub(crate) const fn from(mut self, field: &'static str) -> Self {
        self.source = ScoreSource::Field(field);
        self
    }

    /// Computed from a line.
    pub(crate) const fn by(mut self, computed: fn(&Value) -> Option<f64>) -> Self {
        self.source = ScoreSource::Computed(computed);
        self
    }

    /// Counts by this number of the line, as a turn does by its calls.
    pub(crate) const fn weighed(mut self, weight: fn(&Value) -> Option<f64>) -> Self {
        self.weight = Some(weight);
        self
    }

    /// What a sample adds to the metric; none where it does not count.
    pub fn score(&self, id: &str, line: &Value) -> Option<SampleScore> {
        let Some(weight) = self.weight else {
            return Some(SampleScore::new(id, self.value(line)?));
        };
        // It may count in the other system.
        let score = self.value(line);
        Some(SampleScore {
            id: id.to_owned(),
            weight: score.and_then(|_| weight(line)).unwrap_or(0.0),
            score: score.unwrap_or(0.0),
        })
    }

    /// The score of a line; none where its sample has none, as without a judge.
    pub fn value(&self, line: &Value) -> Option<f64> {
        match self.source {
            ScoreSource::Computed(computed) => computed(line),
            ScoreSource::Field(name) => match field(line, name)? {
                Value::Bool(holds) => Some(indicator(*holds)),
                found => found.as_f64(),
            },
        }
    }
}

impl SampleScores {
    /// Everything that lines may be of.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        SUITES.into_iter().flat_map(|suite| suite.samples)
    }

    /// The scores of a line; none if no suite writes such lines.
    pub fn of_line(line: &Value) -> Option<&'static Self> {
        Self::all().find(|scores| field(line, scores.mark).is_some())
    }

    /// The suite that writes such lines.
    pub fn suite(&self) -> Option<&'static SuiteInfo> {
        let writes = |suite: &&SuiteInfo| suite.samples.iter().any(|form| form.of == self.of);
        SUITES.into_iter().find(writes)
    }

    /// The sample of a line.
    pub fn id<'l>(&self, line: &'l Value) -> Option<&'l str> {
        line.get(self.id)?.as_str()
    }
}

/// A field of the line's score, by names joined with dots; some suites have no object `score`.
pub(crate) fn field<'l>(line: &'l Value, name: &str) -> Option<&'l Value> {
    let score = line.get("score").unwrap_or(line);
    name.split('.').try_fold(score, |value, key| value.get(key))
}

#[cfg(test)]
mod tests;
