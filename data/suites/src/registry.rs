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
    }
}

/// A score of which less is better, in the field of this name.
pub(crate) const fn less(key: &'static str) -> SampleMeasure {
    SampleMeasure {
        key,
        greater_is_better: false,
        source: ScoreSource::Field(key),
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
mod tests {
    use serde_json::json;

    use super::*;

    /// The suite of a line, its sample, and its scores by name.
    fn scored(line: &Value) -> (&'static str, Option<&str>, Vec<(&'static str, f64)>) {
        let form = SampleScores::of_line(line).expect("a line of a suite");
        let measures = form.measures.iter();
        let values = measures.filter_map(|one| Some((one.key, one.value(line)?)));
        (form.of, form.id(line), values.collect())
    }

    fn costs(suite: &str) -> Vec<&'static str> {
        let form = SampleScores::all().find(|form| form.of == suite);
        let measures = form.expect("a suite").measures.iter();
        let costs = measures.filter(|one| !one.greater_is_better);
        costs.map(|one| one.key).collect()
    }

    #[test]
    fn completions_of_slot_have_their_scores_and_not_the_depth_of_their_gold() {
        let agreement = json!({"precision": 0.5, "recall": 1.0, "f": 0.75});
        let score = json!({"parses": true, "schema": true, "strict_keys": false,
            "content": agreement, "exact": agreement, "exact_match": false, "gold_depth": 3,
            "violations": [{"rule": "type"}]});
        let mut line = json!({"id": "dev:1", "prediction": "{}", "n_tokens": 9, "score": score});
        let (suite, id, values) = scored(&line);
        assert_eq!((suite, id), ("slot", Some("dev:1")));
        let expected = [
            ("parse_rate", 1.0),
            ("schema_accuracy", 1.0),
            ("strict_keys_accuracy", 0.0),
            ("content_precision", 0.5),
            ("content_recall", 1.0),
            ("content_similarity", 0.75),
            ("exact_match_precision", 0.5),
            ("exact_match_recall", 1.0),
            ("exact_match_f", 0.75),
            ("exact_match", 0.0),
        ];
        assert_eq!(values, expected);
        line["scored"] = json!({"text": "{}"});
        assert_eq!(scored(&line).2.last(), Some(&("malformed_rate", 0.0)));
        line["scored"]["malformed"] = json!("not_json");
        assert_eq!(scored(&line).2.last(), Some(&("malformed_rate", 1.0)));
        assert_eq!(costs("slot"), ["malformed_rate"]);
    }

    #[test]
    fn outcomes_of_agents_have_a_length_where_they_are_solved() {
        let mut line = json!({"id": "q1", "query": "?", "outcome": {}, "score": {"sa": 0.5,
            "ia": 0.25, "ia_strict": 0.0, "success": true, "correct_path": true, "delta_len": -1,
            "parse_error": false}});
        let solved = [
            ("sa", 0.5),
            ("ia", 0.25),
            ("ia_strict", 0.0),
            ("sr", 1.0),
            ("correct_path", 1.0),
            ("delta_len", -1.0),
            ("parse_error_rate", 0.0),
        ];
        assert_eq!(scored(&line), ("goat", Some("q1"), solved.to_vec()));
        line["score"]["success"] = json!(false);
        let names = |line: &Value| scored(line).2.into_iter().map(|(name, _)| name).collect();
        let unsolved: Vec<&str> = names(&line);
        assert!(!unsolved.contains(&"delta_len") && unsolved.contains(&"sr"));
        line["score"]["success"] = Value::Null;
        let unjudged: Vec<&str> = names(&line);
        assert_eq!(
            unjudged,
            ["sa", "ia", "ia_strict", "correct_path", "parse_error_rate"]
        );
        assert_eq!(costs("goat"), ["delta_len", "parse_error_rate"]);

        let line = json!({"id": "p", "gold": ["GET /a"], "score": {"sa": 1.0, "correct_path": false,
            "success": null, "delta_len": 2, "parse_error": true}});
        let values = vec![
            ("correct_path", 0.0),
            ("sa", 1.0),
            ("parse_error_rate", 1.0),
        ];
        assert_eq!(scored(&line), ("restbench", Some("p"), values));
        assert_eq!(costs("restbench"), ["delta_len", "parse_error_rate"]);
    }

    #[test]
    fn samples_of_apibank_are_right_where_all_calls_are() {
        let line = |n_pred: usize, n_gold: usize| {
            json!({"id": "s", "score": {"n_pred": n_pred, "n_gold": n_gold, "n_right": 1,
                "rouge_l": 0.5, "rouge_l_plain": null, "success": null, "parse_error": false}})
        };
        let right = vec![
            ("sample_accuracy", 1.0),
            ("rouge_l", 0.5),
            ("parse_error_rate", 0.0),
        ];
        assert_eq!(scored(&line(1, 1)), ("apibank", Some("s"), right));
        assert_eq!(scored(&line(2, 1)).2[0], ("sample_accuracy", 0.0));
        assert_eq!(scored(&line(0, 0)).2[0], ("rouge_l", 0.5));
        let mut solved = line(1, 1);
        solved["score"]["correct_path"] = json!(false);
        solved["score"]["delta_len"] = json!(2);
        solved["score"]["success"] = json!(true);
        let values = scored(&solved).2;
        assert!(values.contains(&("correct_path", 0.0)) && values.contains(&("delta_len", 2.0)));
        assert_eq!(costs("apibank"), ["delta_len", "parse_error_rate"]);
    }

    #[test]
    fn sequences_and_loops_of_nestful_share_their_wins() {
        let line = json!({"id": "n", "gold": "[]", "score": {"parse_error": false, "n_pred": 3,
            "gold_names": ["add"], "pred_names": [], "slot_rows": [], "partial": 0.5,
            "full": false, "win": {"scored": {"official": null, "strict": true}},
            "gold_dag": {"n_calls": 4, "depth": 2}}});
        let sequence = vec![
            ("partial", 0.5),
            ("full", 0.0),
            ("win_official", 0.0),
            ("win_strict", 1.0),
            ("parse_error_rate", 0.0),
        ];
        assert_eq!(scored(&line), ("nestful", Some("n"), sequence));
        let line = json!({"id": "n", "score": {"win": "needs_tools", "n_steps": 4,
            "parse_error": true}});
        let lost = vec![("parse_error_rate", 1.0), ("steps", 4.0)];
        assert_eq!(scored(&line), ("nestful", Some("n"), lost));
        assert_eq!(costs("nestful"), ["parse_error_rate", "steps"]);
    }

    #[test]
    fn rankings_are_scored_as_far_as_a_line_shows_them() {
        let line = json!({"query": "how?", "gold": [7, 3], "ranked": [1, 3, 2, 7, 9, 4]});
        let (suite, id, values) = scored(&line);
        assert_eq!((suite, id), ("retrieval", Some("how?")));
        let of = |wanted: &str| values.iter().find(|(name, _)| *name == wanted).map(|v| v.1);
        for (name, expected) in [
            ("recall_at_gt", Some(0.5)),
            ("recall_at_1", Some(0.0)),
            ("recall_at_3", Some(0.5)),
            ("recall_at_5", Some(1.0)),
            ("accuracy_at_1", Some(0.0)),
            ("accuracy_at_3", Some(1.0)),
            ("mrr_at_10", Some(0.5)),
            ("map_at_100", None),
        ] {
            assert_eq!(of(name), expected, "{name}");
        }
        let gold: Vec<usize> = (0..12).collect();
        let line = json!({"query": "how?", "gold": gold, "ranked": [1, 3]});
        assert_eq!(scored(&line).2[0].0, "recall_at_1");
        assert!(costs("retrieval").is_empty());
    }

    #[test]
    fn answers_and_types_of_toolqa_stand_beside_their_other_fields() {
        let line = json!({"uid": "u", "response_id": "r", "task_type": "FILTERING", "answer": null,
            "model_output": "no code", "status": "no_code", "exact_match": false,
            "exact_match_strict": false, "contains": true, "judged": true});
        let values = vec![
            ("exact_match", 0.0),
            ("exact_match_strict", 0.0),
            ("contains", 1.0),
            ("judged", 1.0),
            ("parse_error_rate", 1.0),
        ];
        assert_eq!(scored(&line), ("toolqa", Some("u"), values));
        assert_eq!(costs("toolqa"), ["parse_error_rate"]);
        let line = json!({"uid": "u", "task_type": "FILTERING", "model_output": "Filtering"});
        let values = vec![("accuracy", 1.0), ("parse_error_rate", 0.0)];
        assert_eq!(scored(&line), ("toolqa --classify", Some("u"), values));
    }

    #[test]
    fn a_score_of_samples_has_the_name_and_the_direction_of_its_metric() {
        // Halves of an F, which no metric sums up.
        const HALVES: [&str; 4] = [
            "content_precision",
            "content_recall",
            "exact_match_precision",
            "exact_match_recall",
        ];
        // Shares that rank samples and are no metric, and numbers of loops and classifiers.
        const OTHERS: [&str; 3] = ["right_calls", "steps", "accuracy"];
        for suite in SUITES {
            let known = || suite.metrics.iter().chain(suite.flat_metrics);
            let measures = suite.samples.iter().flat_map(|form| form.measures);
            for measure in measures.chain(suite.ranked_by) {
                let (suite, key) = (suite.name, measure.key);
                let is_other = HALVES.contains(&key) || OTHERS.contains(&key);
                let is_known = known().any(|known| *known == key);
                assert!(is_known || is_other, "{suite}.{key}");
                let falls = lower_is_better(&format!("{suite}.{key}"));
                assert_eq!(falls, !measure.greater_is_better, "{suite}.{key}");
            }
        }
    }

    #[test]
    fn words_are_of_metrics_that_there_are_and_no_two_share_them() {
        for suite in SUITES {
            let mut seen = std::collections::BTreeSet::new();
            for (key, words) in suite.words {
                let mut known = suite.metrics.iter().chain(suite.flat_metrics);
                let is_known = known.any(|known| known == key);
                assert!(is_known, "{}.{key} is no metric", suite.name);
                assert!(seen.insert(words), "{}: {words} twice", suite.name);
                assert_eq!(metric_words(&suite.metric(key)), Some(*words));
            }
        }
        assert_eq!(metric_words("slot.mean_of_nothing"), None);
        assert_eq!(metric_words("loss"), None);
    }

    #[test]
    fn lines_without_scores_are_of_no_suite() {
        for line in [
            json!({"id": "a", "prediction": "{}"}),
            json!({"id": "a", "score": {"gold_depth": 2}}),
            json!({"id": "a", "score": 0.5}),
            json!({"uid": "a", "model_output": "b"}),
            json!([1, 2]),
            Value::Null,
        ] {
            assert!(SampleScores::of_line(&line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_metrics_file_tells_its_suite() {
        let suite = |metrics: &Value| SuiteInfo::of_metrics(metrics).map(|suite| suite.name);
        for (name, metrics) in [
            (
                "slot",
                json!({"n": 2, "schema_accuracy": {"value": 0.5}, "mean": {"value": 0.5}}),
            ),
            (
                "nestful",
                json!({"n": 2, "partial": {"value": 0.5}, "win_strict": null}),
            ),
            (
                "toolqa",
                json!({"n": 2, "contains": {"value": 0.5}, "n_parse_errors": 0}),
            ),
            (
                "toolqa",
                json!({"n": 2, "accuracy": {"value": 0.5}, "n_parse_errors": 0}),
            ),
            (
                "goat",
                json!({"goat": {"sa": 1.0}, "retrieval": {"recall_at_gt": 1.0}}),
            ),
            ("restbench", json!({"restbench": {"sa": 1.0}, "judge": {}})),
            ("apibank", json!({"apibank": {"correctness": null}})),
            ("retrieval", json!({"n": 2, "recall_at_gt": {"value": 0.5}})),
        ] {
            assert_eq!(suite(&metrics), Some(name));
        }
        for foreign in [json!({"accuracy": 1.0}), json!([1]), json!(null)] {
            assert_eq!(suite(&foreign), None);
        }
    }
}
