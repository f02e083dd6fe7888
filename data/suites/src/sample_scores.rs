//! Lines of any suite's `predictions.jsonl` to the scores of samples that two systems are compared
//! by, each with its direction.
//!
//! Only what says how good an answer is stands here: the depth of a gold and the number of calls
//! are numbers of a sample too, and neither more nor less of them is better.

use serde::Deserialize;
use serde_json::Value;

use super::bootstrap::indicator;
use super::goat::ApiBankScore;
use super::nestful::Win;
use super::retrieval::RankedGold;
use super::toolqa::{AnswerStatus, TaskType};

/// A score of samples.
#[derive(Debug, Clone, Copy)]
pub struct SampleMeasure {
    /// Its name, which is that of its field unless the score is computed.
    pub name: &'static str,
    /// False for what less of is better, such as errors.
    pub greater_is_better: bool,
    /// Computes it from a line; else the field of its name has it.
    computed: Option<fn(&Value) -> Option<f64>>,
}

/// The form of a suite's lines.
#[derive(Debug)]
pub struct SampleForm {
    /// The suite.
    pub suite: &'static str,
    /// The field that names the sample.
    id: &'static str,
    /// A field that tells its lines from those of the forms after it.
    mark: &'static str,
    /// The scores, in the order of a table.
    pub measures: &'static [SampleMeasure],
}

/// Every form, in the order in which lines are tried.
static FORMS: [SampleForm; 8] = [
    SampleForm {
        suite: "slot",
        id: "id",
        mark: "parses",
        measures: &[
            gain("parses"),
            gain("schema"),
            gain("strict_keys"),
            gain("content.precision"),
            gain("content.recall"),
            gain("content.f"),
            gain("exact.precision"),
            gain("exact.recall"),
            gain("exact.f"),
            gain("exact_match"),
            cost("malformed")
                .by(|line| Some(indicator(line.get("scored")?["malformed"].is_string()))),
        ],
    },
    SampleForm {
        suite: "goat",
        id: "id",
        mark: "ia",
        measures: &[
            gain("sa"),
            gain("ia"),
            gain("ia_strict"),
            gain("success"),
            gain("correct_path"),
            cost("delta_len").by(delta_len_if_solved),
            cost("parse_error"),
        ],
    },
    SampleForm {
        suite: "apibank",
        id: "id",
        mark: "n_right",
        measures: &[
            gain("sample_accuracy").by(|line| {
                let score = ApiBankScore::deserialize(line.get("score")?).ok()?;
                score.has_right_calls().map(indicator)
            }),
            gain("correct_path"),
            gain("rouge_l"),
            gain("rouge_l_plain"),
            gain("success"),
            cost("delta_len").by(delta_len_if_solved),
            cost("parse_error"),
        ],
    },
    // Sequences have the first two, loops the last one.
    SampleForm {
        suite: "nestful",
        id: "id",
        mark: "win",
        measures: &[
            gain("partial"),
            gain("full"),
            gain("win_official").by(|line| win(line)?.official().map(indicator)),
            gain("win_strict").by(|line| win(line)?.strict().map(indicator)),
            cost("parse_error"),
            cost("n_steps"),
        ],
    },
    SampleForm {
        suite: "restbench",
        id: "id",
        mark: "correct_path",
        measures: &[
            gain("correct_path"),
            gain("sa"),
            gain("success"),
            cost("delta_len").by(delta_len_if_solved),
            cost("parse_error"),
        ],
    },
    SampleForm {
        suite: "retrieval",
        id: "query",
        mark: "ranked",
        // A line has the first ten documents only, so that MAP@100 does not follow from it.
        measures: &[
            gain("recall_at_gt").by(recall_at_gt),
            gain("recall_at_1").by(|line| Some(ranking(line)?.recall_at(1))),
            gain("recall_at_3").by(|line| Some(ranking(line)?.recall_at(3))),
            gain("recall_at_5").by(|line| Some(ranking(line)?.recall_at(5))),
            gain("recall_at_10").by(|line| Some(ranking(line)?.recall_at(10))),
            gain("accuracy_at_1").by(|line| Some(ranking(line)?.accuracy_at(1))),
            gain("accuracy_at_3").by(|line| Some(ranking(line)?.accuracy_at(3))),
            gain("accuracy_at_5").by(|line| Some(ranking(line)?.accuracy_at(5))),
            gain("accuracy_at_10").by(|line| Some(ranking(line)?.accuracy_at(10))),
            gain("mrr_at_10").by(|line| Some(ranking(line)?.reciprocal_rank_at(10))),
            gain("ndcg_at_10").by(|line| Some(ranking(line)?.ndcg_at(10))),
        ],
    },
    SampleForm {
        suite: "toolqa",
        id: "uid",
        mark: "exact_match",
        measures: &[
            gain("exact_match"),
            gain("exact_match_strict"),
            gain("contains"),
            gain("judged"),
            cost("parse_error").by(|line| {
                let status = AnswerStatus::deserialize(line.get("status")?).ok()?;
                Some(indicator(status == AnswerStatus::NoCode))
            }),
        ],
    },
    SampleForm {
        suite: "toolqa --classify",
        id: "uid",
        mark: "task_type",
        measures: &[
            gain("accuracy").by(|line| {
                let gold = TaskType::deserialize(line.get("task_type")?).ok()?;
                Some(indicator(named_type(line)? == Some(gold)))
            }),
            cost("parse_error").by(|line| Some(indicator(named_type(line)?.is_none()))),
        ],
    },
];

const fn gain(name: &'static str) -> SampleMeasure {
    SampleMeasure {
        name,
        greater_is_better: true,
        computed: None,
    }
}

const fn cost(name: &'static str) -> SampleMeasure {
    SampleMeasure {
        name,
        greater_is_better: false,
        computed: None,
    }
}

impl SampleMeasure {
    const fn by(mut self, computed: fn(&Value) -> Option<f64>) -> Self {
        self.computed = Some(computed);
        self
    }

    /// The score of a line; none where its sample has none, as without a judge.
    pub fn value(&self, line: &Value) -> Option<f64> {
        match (self.computed, field(line, self.name)) {
            (Some(computed), _) => computed(line),
            (None, Some(Value::Bool(holds))) => Some(indicator(*holds)),
            (None, found) => found?.as_f64(),
        }
    }
}

impl SampleForm {
    /// The suites that have one.
    pub fn suites() -> impl Iterator<Item = &'static str> {
        FORMS.iter().map(|form| form.suite)
    }

    /// The form of a line with scores; none if no suite writes such lines.
    pub fn of(line: &Value) -> Option<&'static Self> {
        FORMS.iter().find(|form| field(line, form.mark).is_some())
    }

    /// The sample of a line.
    pub fn id<'l>(&self, line: &'l Value) -> Option<&'l str> {
        line.get(self.id)?.as_str()
    }
}

/// A field of the line's score, by names joined with dots; some suites have no object `score`.
fn field<'l>(line: &'l Value, name: &str) -> Option<&'l Value> {
    let score = line.get("score").unwrap_or(line);
    name.split('.').try_fold(score, |value, key| value.get(key))
}

/// Calls beyond the gold's, which count where the query is solved, as in the suite's mean: to give
/// up at once is no short path.
fn delta_len_if_solved(line: &Value) -> Option<f64> {
    let is_solved = field(line, "success")?.as_bool()?;
    is_solved
        .then(|| field(line, "delta_len")?.as_f64())
        .flatten()
}

fn win(line: &Value) -> Option<Win> {
    Win::deserialize(field(line, "win")?).ok()
}

fn positions(line: &Value, name: &str) -> Option<Vec<u64>> {
    line.get(name)?
        .as_array()?
        .iter()
        .map(Value::as_u64)
        .collect()
}

fn ranking(line: &Value) -> Option<RankedGold> {
    RankedGold::new(&positions(line, "ranked")?, &positions(line, "gold")?).ok()
}

/// Absent where more documents are right than the line shows.
fn recall_at_gt(line: &Value) -> Option<f64> {
    let is_shown = positions(line, "gold")?.len() <= positions(line, "ranked")?.len();
    is_shown
        .then(|| Some(ranking(line)?.recall_at_gt()))
        .flatten()
}

/// What a classifier's output names.
fn named_type(line: &Value) -> Option<Option<TaskType>> {
    let output = line.get("model_output")?.as_str()?;
    Some(TaskType::of_output(output))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The suite of a line, its sample, and its scores by name.
    fn scored(line: &Value) -> (&'static str, Option<&str>, Vec<(&'static str, f64)>) {
        let form = SampleForm::of(line).expect("a line of a suite");
        let measures = form.measures.iter();
        let values = measures.filter_map(|one| Some((one.name, one.value(line)?)));
        (form.suite, form.id(line), values.collect())
    }

    fn costs(suite: &str) -> Vec<&'static str> {
        let form = FORMS.iter().find(|form| form.suite == suite);
        let measures = form.expect("a suite").measures.iter();
        let costs = measures.filter(|one| !one.greater_is_better);
        costs.map(|one| one.name).collect()
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
            ("parses", 1.0),
            ("schema", 1.0),
            ("strict_keys", 0.0),
            ("content.precision", 0.5),
            ("content.recall", 1.0),
            ("content.f", 0.75),
            ("exact.precision", 0.5),
            ("exact.recall", 1.0),
            ("exact.f", 0.75),
            ("exact_match", 0.0),
        ];
        assert_eq!(values, expected);
        line["scored"] = json!({"text": "{}"});
        assert_eq!(scored(&line).2.last(), Some(&("malformed", 0.0)));
        line["scored"]["malformed"] = json!("not_json");
        assert_eq!(scored(&line).2.last(), Some(&("malformed", 1.0)));
        assert_eq!(costs("slot"), ["malformed"]);
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
            ("success", 1.0),
            ("correct_path", 1.0),
            ("delta_len", -1.0),
            ("parse_error", 0.0),
        ];
        assert_eq!(scored(&line), ("goat", Some("q1"), solved.to_vec()));
        line["score"]["success"] = json!(false);
        let names = |line: &Value| scored(line).2.into_iter().map(|(name, _)| name).collect();
        let unsolved: Vec<&str> = names(&line);
        assert!(!unsolved.contains(&"delta_len") && unsolved.contains(&"success"));
        line["score"]["success"] = Value::Null;
        let unjudged: Vec<&str> = names(&line);
        assert_eq!(
            unjudged,
            ["sa", "ia", "ia_strict", "correct_path", "parse_error"]
        );
        assert_eq!(costs("goat"), ["delta_len", "parse_error"]);

        let line = json!({"id": "p", "gold": ["GET /a"], "score": {"sa": 1.0, "correct_path": false,
            "success": null, "delta_len": 2, "parse_error": true}});
        let values = vec![("correct_path", 0.0), ("sa", 1.0), ("parse_error", 1.0)];
        assert_eq!(scored(&line), ("restbench", Some("p"), values));
        assert_eq!(costs("restbench"), ["delta_len", "parse_error"]);
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
            ("parse_error", 0.0),
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
        assert_eq!(costs("apibank"), ["delta_len", "parse_error"]);
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
            ("parse_error", 0.0),
        ];
        assert_eq!(scored(&line), ("nestful", Some("n"), sequence));
        let line = json!({"id": "n", "score": {"win": "needs_tools", "n_steps": 4,
            "parse_error": true}});
        let lost = vec![("parse_error", 1.0), ("n_steps", 4.0)];
        assert_eq!(scored(&line), ("nestful", Some("n"), lost));
        assert_eq!(costs("nestful"), ["parse_error", "n_steps"]);
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
            ("parse_error", 1.0),
        ];
        assert_eq!(scored(&line), ("toolqa", Some("u"), values));
        assert_eq!(costs("toolqa"), ["parse_error"]);
        let line = json!({"uid": "u", "task_type": "FILTERING", "model_output": "Filtering"});
        let values = vec![("accuracy", 1.0), ("parse_error", 0.0)];
        assert_eq!(scored(&line), ("toolqa --classify", Some("u"), values));
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
            assert!(SampleForm::of(&line).is_none(), "{line}");
        }
    }
}
