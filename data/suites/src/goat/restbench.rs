//! RestBench: scores of queries whose gold calls are known only by name.
//!
//! RestBench has no gold arguments or answers, so there is no invocation accuracy, and success
//! needs a judge. Predicted names are mapped to the specification's endpoints before they are
//! compared. This also applies to a call that failed because its name contained a concrete id. Its
//! path is right, and the failure affects only the success.

use serde::{Deserialize, Serialize};
use tooltune_agents::Outcome;

use super::endpoints::Endpoints;
use super::invocations::{Arguments, Call, selection_accuracy};
use super::paths::correct_path;
use super::report::JudgedMeans;
use super::{GoatError, is_answered};
use crate::bootstrap::{Estimate, cell, estimates, indicator};
use crate::markdown::{markdown_table, percent};
use crate::named_metrics::named_estimates;

/// The scores of one query.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RestBenchScore {
    /// Selection accuracy, 0 to 1.
    pub sa: f64,
    /// Whether the gold path is a subsequence of the predicted path.
    pub correct_path: bool,
    /// Whether the query was solved; `None` if it was not judged.
    pub success: Option<bool>,
    /// Number of attempted calls minus gold calls.
    pub delta_len: i64,
    /// Whether a completion could not be parsed.
    pub parse_error: bool,
}

impl RestBenchScore {
    /// Scores the outcome of an agent loop.
    ///
    /// # Errors
    ///
    /// There are no gold calls.
    pub fn from_outcome(
        outcome: &Outcome,
        gold: &[&str],
        success: Option<bool>,
        endpoints: &Endpoints,
    ) -> Result<Self, GoatError> {
        let path: Vec<&str> = outcome.path.iter().map(String::as_str).collect();
        let score = Self::from_path(&path, gold, endpoints)?;
        Ok(Self {
            delta_len: outcome.calls.len() as i64 - gold.len() as i64,
            success: success.map(|is_solved| is_solved && is_answered(outcome)),
            parse_error: !outcome.failures.is_empty(),
            ..score
        })
    }

    /// Scores the gold path like any other path. Only a judge can decide whether it solves the
    /// query.
    ///
    /// # Errors
    ///
    /// There are no gold calls.
    pub fn from_gold(gold: &[&str], endpoints: &Endpoints) -> Result<Self, GoatError> {
        Self::from_path(gold, gold, endpoints)
    }

    /// Scores the names of calls, if all calls could be parsed.
    fn from_path(pred: &[&str], gold: &[&str], endpoints: &Endpoints) -> Result<Self, GoatError> {
        let normalized = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| endpoints.normalize(name)).collect()
        };
        let (pred, gold) = (normalized(pred), normalized(gold));
        let calls = |names: &[String]| -> Vec<Call> {
            let call = |name: &String| Call {
                name: name.clone(),
                arguments: Arguments::Unparsed,
            };
            names.iter().map(call).collect()
        };
        Ok(Self {
            sa: selection_accuracy(&calls(&pred), &calls(&gold)),
            delta_len: pred.len() as i64 - gold.len() as i64,
            correct_path: correct_path(&pred, &[gold])?,
            success: None,
            parse_error: false,
        })
    }
}

/// The metrics of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestBenchReport {
    /// Number of queries.
    pub n: usize,
    /// Fraction of queries with a correct path (CP %).
    pub correct_path: Estimate,
    /// Mean number of calls in addition to the gold calls, over the solved queries; `None` if none
    /// is solved.
    pub delta_len: Option<Estimate>,
    /// Fraction of solved queries among the judged queries; `None` if none was judged.
    pub sr: Option<Estimate>,
    /// Number of judged queries.
    #[serde(default)]
    pub n_judged: usize,
    /// Mean selection accuracy, 0 to 1.
    pub sa: Estimate,
    /// Fraction of queries with an unparsable completion.
    pub parse_error_rate: Estimate,
}

named_estimates!(
    RestBenchReport,
    |report| report,
    [correct_path, delta_len, sr, sa, parse_error_rate]
);

impl RestBenchReport {
    /// Aggregates the scores of a run.
    ///
    /// # Errors
    ///
    /// There are no scores.
    pub fn new(scores: &[RestBenchScore]) -> Result<Self, GoatError> {
        if scores.is_empty() {
            return Err(GoatError::NoSamples);
        }
        let columns = |score: &RestBenchScore| {
            [
                score.sa,
                indicator(score.correct_path),
                indicator(score.parse_error),
            ]
        };
        let rows: Vec<[f64; 3]> = scores.iter().map(columns).collect();
        let [sa, correct_path, parse_error_rate] = estimates(&rows);
        let queries = scores
            .iter()
            .map(|score| (score.success, Some(score.delta_len)));
        let judged = JudgedMeans::new(queries);
        Ok(Self {
            n: scores.len(),
            correct_path,
            delta_len: judged.delta_len,
            sr: judged.sr,
            n_judged: judged.n,
            sa,
            parse_error_rate,
        })
    }
}

/// Formats reports as a Markdown table, one named line per report; missing values are dashes.
pub fn restbench_table(reports: &[(&str, &RestBenchReport)]) -> String {
    let headings = "restbench | n | correct_path % | delta_len | judged | sr % | sa % \
                    | parse_error_rate %";
    let line = |(name, report): &(&str, &RestBenchReport)| {
        [
            (*name).to_owned(),
            report.n.to_string(),
            percent(report.correct_path),
            cell(report.delta_len, 1.0, "+"),
            report.n_judged.to_string(),
            percent(report.sr),
            percent(report.sa),
            percent(report.parse_error_rate),
        ]
    };
    markdown_table(headings, reports.iter().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(names: &[&str]) -> Outcome {
        let calls: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "arguments": {}, "output": null, "exception": null}))
            .collect();
        serde_json::from_value(json!({
            "method": "global", "path": names, "calls": calls, "response": "Done.", "retrievals": [],
            "end": "answered",
        }))
        .expect("an outcome")
    }

    fn score(names: &[&str], success: Option<bool>) -> RestBenchScore {
        let endpoints = Endpoints::new(["GET /berth/{berth_id}", "GET /tides"]);
        let gold = ["GET /tides", "GET /berth/{id}"];
        RestBenchScore::from_outcome(&outcome(names), &gold, success, &endpoints)
            .expect("a gold path")
    }

    #[test]
    fn concrete_ids_and_placeholders_are_the_same_endpoint() {
        let scored = score(&["get /tides/", "GET /berth/12"], Some(true));
        assert_eq!((scored.sa, scored.correct_path), (1.0, true));
        let backwards = score(&["GET /berth/12", "GET /tides", "GET /x"], None);
        assert!(!backwards.correct_path);
        assert_eq!((backwards.sa, backwards.delta_len), (2.0 / 3.0, 1));
        let known_endpoints = Endpoints::new(["GET /tides"]);
        assert_eq!(
            RestBenchScore::from_outcome(&outcome(&[]), &[], None, &known_endpoints),
            Err(GoatError::EmptyGold)
        );
    }

    /// The gold path has the maximum score, regardless of the names in the specification.
    #[test]
    fn the_gold_path_scores_one() {
        let endpoints = Endpoints::new(["GET /berth/{berth_id}", "GET /tides"]);
        let gold = ["GET /tides", "GET /berth/{id}", "GET /not/there"];
        let score = RestBenchScore::from_gold(&gold, &endpoints).expect("a gold path");
        let report = RestBenchReport::new(&[score]).expect("a score");
        let ceilings = crate::goat::RESTBENCH.ceilings(|name| report.value(name));
        assert_eq!(ceilings, []);
        assert_eq!(
            score,
            RestBenchScore::from_outcome(&outcome(&gold), &gold, None, &endpoints).expect("scored")
        );
    }

    #[test]
    fn a_query_without_a_complete_answer_is_not_solved() {
        let endpoints = Endpoints::new(["GET /tides"]);
        let success = |response: &str, finish_reason: &str| {
            let mut outcome = outcome(&["GET /tides"]);
            response.clone_into(&mut outcome.response);
            outcome.texts = vec![tooltune_agents::TextEnd {
                finish_reason: finish_reason.to_owned(),
                n_tokens: 9,
            }];
            let score =
                RestBenchScore::from_outcome(&outcome, &["GET /tides"], Some(true), &endpoints);
            score.expect("a gold path").success
        };
        assert_eq!(success("At six.", "stop"), Some(true));
        assert_eq!(success("At six.", ""), Some(true));
        assert_eq!(success("At six, or at", "length"), Some(false));
        assert_eq!(success(" ", "stop"), Some(false));
    }

    #[test]
    fn lengths_count_only_queries_judged_solved() {
        let solved = score(&["GET /tides", "GET /tides", "GET /berth/1"], Some(true));
        let unsolved = score(&["GET /tides"], Some(false));
        let unjudged = score(&["GET /tides"], None);
        let report = RestBenchReport::new(&[solved, unsolved, unjudged]).expect("scores");
        assert_eq!(report.sr.map(|e| e.value), Some(0.5));
        assert_eq!(report.delta_len.map(|e| e.value), Some(1.0));
        let report = RestBenchReport::new(&[unjudged]).expect("a score");
        let table = restbench_table(&[("base", &report)]);
        let line = table.lines().nth(2).expect("a line");
        assert_eq!(
            line,
            "| base | 1 | 0.0 [0.0, 79.3] | - | 0 | - | 50.0 [5.5, 94.5] | 0.0 [0.0, 79.3] |"
        );
        assert_eq!(RestBenchReport::new(&[]), Err(GoatError::NoSamples));
    }
}
