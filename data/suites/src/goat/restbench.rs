//! RestBench: what became of a query whose right calls are known by name alone.
//!
//! RestBench has no right arguments and no right answers, so invocation accuracy is absent and
//! success needs a judge. The decision to question: predicted names are mapped onto the endpoints
//! of the specification before they are compared, also where the call itself failed because a
//! concrete id stood in its name; the path is then right, and the failure shows in the success.

use serde::{Deserialize, Serialize};
use tooltune_agents::Outcome;

use super::GoatError;
use super::endpoints::Endpoints;
use super::invocations::{Arguments, Call, selection_accuracy};
use super::paths::correct_path;
use crate::bootstrap::{Estimate, cell, estimates, indicator, mean};

/// The numbers of one query.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RestBenchScore {
    /// Selection accuracy, 0 to 1.
    pub sa: f64,
    /// Whether the gold path is a subsequence of the predicted one.
    pub correct_path: bool,
    /// Whether the query was solved; none if nobody judged it.
    pub success: Option<bool>,
    /// Calls attempted less gold calls.
    pub delta_len: i64,
    /// Whether any completion could not be read.
    pub parse_error: bool,
}

impl RestBenchScore {
    /// Scores the outcome of a loop.
    ///
    /// # Errors
    ///
    /// - there is no gold call
    pub fn of(
        outcome: &Outcome,
        gold: &[&str],
        success: Option<bool>,
        endpoints: &Endpoints,
    ) -> Result<Self, GoatError> {
        let path: Vec<&str> = outcome.path.iter().map(String::as_str).collect();
        let score = Self::of_path(&path, gold, endpoints)?;
        Ok(Self {
            delta_len: outcome.calls.len() as i64 - gold.len() as i64,
            success,
            parse_error: !outcome.failures.is_empty(),
            ..score
        })
    }

    /// Scores the gold path as any path is scored; whether it solves the query, only a judge says.
    ///
    /// # Errors
    ///
    /// - there is no gold call
    pub fn of_gold(gold: &[&str], endpoints: &Endpoints) -> Result<Self, GoatError> {
        Self::of_path(gold, gold, endpoints)
    }

    /// Scores the names of calls that all could be read.
    fn of_path(pred: &[&str], gold: &[&str], endpoints: &Endpoints) -> Result<Self, GoatError> {
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

/// The numbers of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestBenchReport {
    /// Number of queries.
    pub n: usize,
    /// Share of queries with a correct path (CP %).
    pub correct_path: Estimate,
    /// Mean number of calls beyond the gold's over the solved queries; none if none is solved.
    pub delta_len: Option<Estimate>,
    /// Share of queries solved among those judged; none if none was.
    pub sr: Option<Estimate>,
    /// Queries that were judged.
    #[serde(default)]
    pub n_judged: usize,
    /// Mean selection accuracy, 0 to 1.
    pub sa: Estimate,
    /// Share of queries with a completion that could not be read.
    pub parse_error_rate: Estimate,
}

impl RestBenchReport {
    /// Names that [`RestBenchReport::value`] knows.
    pub const NAMES: [&'static str; 5] =
        ["correct_path", "delta_len", "sr", "sa", "parse_error_rate"];

    /// The mean of a metric; none where no query has it, or for another name.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        match name {
            "correct_path" => Some(self.correct_path),
            "delta_len" => self.delta_len,
            "sr" => self.sr,
            "sa" => Some(self.sa),
            "parse_error_rate" => Some(self.parse_error_rate),
            _ => None,
        }
    }

    /// Gathers the scores of a run.
    ///
    /// # Errors
    ///
    /// - there is no score
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
        let judged = scores.iter().map(|score| score.success.map(indicator));
        let solved = scores.iter().map(|score| {
            let is_solved = score.success == Some(true);
            is_solved.then_some(score.delta_len as f64)
        });
        Ok(Self {
            n: scores.len(),
            correct_path,
            delta_len: mean(solved),
            sr: mean(judged),
            n_judged: scores.iter().filter(|one| one.success.is_some()).count(),
            sa,
            parse_error_rate,
        })
    }
}

/// Renders reports as a Markdown table, a line for each with its name; a number that a run does
/// not have is a dash.
pub fn restbench_table(reports: &[(&str, &RestBenchReport)]) -> String {
    let mut table = "| restbench | n | correct_path % | delta_len | judged | sr % | sa % | parse_error_rate % |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (name, report) in reports {
        let percent = |estimate: Option<Estimate>| cell(estimate, 100.0, "");
        let cells = [
            (*name).to_owned(),
            report.n.to_string(),
            percent(Some(report.correct_path)),
            cell(report.delta_len, 1.0, "+"),
            report.n_judged.to_string(),
            percent(report.sr),
            percent(Some(report.sa)),
            percent(Some(report.parse_error_rate)),
        ];
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    table
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
            "method": "global", "path": names, "calls": calls, "response": "", "retrievals": [],
            "end": "answered",
        }))
        .expect("an outcome")
    }

    fn score(names: &[&str], success: Option<bool>) -> RestBenchScore {
        let endpoints = Endpoints::new(["GET /berth/{berth_id}", "GET /tides"]);
        let gold = ["GET /tides", "GET /berth/{id}"];
        RestBenchScore::of(&outcome(names), &gold, success, &endpoints).expect("a gold path")
    }

    #[test]
    fn concrete_ids_and_placeholders_are_one_endpoint() {
        let scored = score(&["get /tides/", "GET /berth/12"], Some(true));
        assert_eq!((scored.sa, scored.correct_path), (1.0, true));
        let backwards = score(&["GET /berth/12", "GET /tides", "GET /x"], None);
        assert!(!backwards.correct_path);
        assert_eq!((backwards.sa, backwards.delta_len), (2.0 / 3.0, 1));
        let none = Endpoints::new(["GET /tides"]);
        assert_eq!(
            RestBenchScore::of(&outcome(&[]), &[], None, &none),
            Err(GoatError::EmptyGold)
        );
    }

    /// A gold path is the best there is, whatever names the specification has.
    #[test]
    fn the_gold_path_has_no_ceiling() {
        let endpoints = Endpoints::new(["GET /berth/{berth_id}", "GET /tides"]);
        let gold = ["GET /tides", "GET /berth/{id}", "GET /not/there"];
        let score = RestBenchScore::of_gold(&gold, &endpoints).expect("a gold path");
        let report = RestBenchReport::new(&[score]).expect("a score");
        let ceilings = crate::goat::RESTBENCH.ceilings(|name| report.value(name));
        assert_eq!(ceilings, []);
        assert_eq!(
            score,
            RestBenchScore::of(&outcome(&gold), &gold, None, &endpoints).expect("scored")
        );
    }

    #[test]
    fn lengths_count_where_a_judge_found_the_query_solved() {
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
            "| base | 1 | 0.0 [0.0, 0.0] | - | 0 | - | 50.0 [50.0, 50.0] | 0.0 [0.0, 0.0] |"
        );
        assert_eq!(RestBenchReport::new(&[]), Err(GoatError::NoSamples));
    }
}
