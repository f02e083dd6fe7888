//! Aggregates the turns of a run: all turns, and groups by number of expected calls, by schema
//! depth and by tool.
//!
//! Rates of calls and arguments are computed over all calls of a set, so a turn with four calls has
//! four times the weight. Rates of turns are also reported. Intervals resample turns, because the
//! calls of one turn are not independent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::score::{CallScore, Rule, Share, TurnScore};
use crate::bootstrap::{Estimate, indicator, mean, ratio_estimate};
use crate::markdown::percent;
use crate::named_metrics::named_estimates;

/// Means over turns, each with its bootstrap 95 % interval; `None` if the denominator is zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CallsMetrics {
    /// Number of turns.
    pub n: usize,
    /// Number of expected calls.
    pub n_calls: usize,
    /// Harmonic mean of `exact` and `text_right`. If only one of them is defined, because all turns
    /// are of one kind, it is that one. On mixed data, a model that never calls or always calls
    /// scores 0.
    pub balanced: Option<Estimate>,
    /// Fraction of right turns: exactly the expected calls, or complete text without a call.
    pub right: Option<Estimate>,
    /// Like `right`, over the turns with expected calls.
    pub exact: Option<Estimate>,
    /// Like `right`, over the turns with expected text.
    pub text_right: Option<Estimate>,
    /// Fraction of expected calls whose tool is called.
    pub name: Option<Estimate>,
    /// Fraction of right arguments among expected and predicted ones.
    pub arguments: Option<Estimate>,
    /// Fraction of expected calls made with all arguments right.
    pub call_exact: Option<Estimate>,
    /// Fraction of predicted calls that are valid for their tool.
    pub valid: Option<Estimate>,
    /// Fraction of turns whose answer was cut off.
    pub cut_rate: Option<Estimate>,
    /// Fraction of turns with an attempted call that cannot be parsed.
    pub malformed_rate: Option<Estimate>,
    /// Fraction of turns with a call to an unknown tool.
    pub invented_rate: Option<Estimate>,
    /// Fraction of turns with a call, among turns with expected text.
    pub unwanted_rate: Option<Estimate>,
    /// Fraction of turns without a call, among turns with expected calls.
    pub missed_rate: Option<Estimate>,
    /// Fraction of turns with more calls than expected, among turns with expected calls.
    pub extra_rate: Option<Estimate>,
}

/// Metrics of the turns with the same number of expected calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnGroup {
    /// Number of expected calls.
    pub group: String,
    /// Metrics of these turns.
    #[serde(flatten)]
    pub metrics: CallsMetrics,
}

/// Metrics of the expected calls with a common property: a tool, or a schema depth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallGroup {
    /// The common property.
    pub group: String,
    /// Number of expected calls.
    pub n: usize,
    /// Fraction of these calls whose tool is called.
    pub name: Option<Estimate>,
    /// Fraction of right arguments.
    pub arguments: Option<Estimate>,
    /// Fraction of these calls made with all arguments right.
    pub exact: Option<Estimate>,
}

/// The metrics of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallsSummary {
    /// Over all turns.
    #[serde(flatten)]
    pub overall: CallsMetrics,
    /// By number of expected calls.
    pub by_n_calls: Vec<TurnGroup>,
    /// By levels of objects and lists in the schema of the expected tool.
    pub by_schema_depth: Vec<CallGroup>,
    /// By expected tool; the most frequent tool is first.
    pub by_tool: Vec<CallGroup>,
    /// Number of violations of each rule.
    pub faults: BTreeMap<Rule, usize>,
    /// Number of answers in each call notation.
    pub dialects: BTreeMap<String, usize>,
    /// Number of predicted calls whose arguments were not checked, because their tool has no usable
    /// schema.
    pub n_unchecked: usize,
}

named_estimates!(
    CallsSummary,
    |summary| summary.overall,
    [
        balanced,
        right,
        exact,
        text_right,
        name,
        arguments,
        call_exact,
        valid,
        malformed_rate,
        invented_rate,
        unwanted_rate,
        missed_rate,
        extra_rate,
        cut_rate
    ]
);

impl CallsSummary {
    /// The metrics for which lower is better.
    pub const LOWER_IS_BETTER: [&'static str; 6] = [
        "malformed_rate",
        "invented_rate",
        "unwanted_rate",
        "missed_rate",
        "extra_rate",
        "cut_rate",
    ];

    /// Aggregates the scores of a run; without scores every metric is `None`.
    pub fn new(scores: &[TurnScore]) -> Self {
        let mut faults = BTreeMap::new();
        let mut dialects = BTreeMap::new();
        for score in scores {
            for fault in &score.faults {
                *faults.entry(fault.rule).or_default() += 1;
            }
            if let Some(dialect) = score.dialect {
                *dialects.entry(dialect.name().to_owned()).or_default() += 1;
            }
        }
        let mut by_n_calls: BTreeMap<usize, Vec<&TurnScore>> = BTreeMap::new();
        for score in scores {
            by_n_calls.entry(score.n_wanted).or_default().push(score);
        }
        let all_scores: Vec<&TurnScore> = scores.iter().collect();
        let mut by_tool = groups(scores, |call| call.tool.clone());
        by_tool.sort_by_key(|group| std::cmp::Reverse(group.n));
        Self {
            overall: CallsMetrics::from_scores(&all_scores),
            by_n_calls: by_n_calls
                .into_iter()
                .map(|(n_calls, scores)| TurnGroup {
                    group: n_calls.to_string(),
                    metrics: CallsMetrics::from_scores(&scores),
                })
                .collect(),
            by_schema_depth: groups(scores, |call| match call.depth {
                Some(depth) => depth.to_string(),
                None => "unknown".to_owned(),
            }),
            by_tool,
            faults,
            dialects,
            n_unchecked: scores.iter().map(|score| score.n_unchecked).sum(),
        }
    }
}

impl CallsMetrics {
    pub(super) fn from_scores(scores: &[&TurnScore]) -> Self {
        let turns = |value: fn(&TurnScore) -> Option<bool>| {
            mean(scores.iter().map(|score| value(score).map(indicator)))
        };
        let calls = |share_of: fn(&TurnScore) -> Share| {
            share_of_all(scores.iter().map(|score| share_of(score)))
        };
        let share_of_expected = |condition: fn(&CallScore) -> bool| {
            share_of_all(scores.iter().map(|score| {
                let n = score.calls.iter().filter(|call| condition(call)).count();
                Share::new(n, score.n_wanted)
            }))
        };
        Self {
            n: scores.len(),
            n_calls: scores.iter().map(|score| score.n_wanted).sum(),
            balanced: balanced_score(scores),
            right: turns(|score| Some(score.right)),
            exact: turns(|score| score.exact),
            text_right: turns(|score| (score.n_wanted == 0).then_some(score.right)),
            name: share_of_expected(|call| call.name),
            arguments: calls(|score| Share::right_arguments(&score.calls)),
            call_exact: share_of_expected(|call| call.exact),
            valid: calls(|score| Share::new(score.n_valid, score.n_made)),
            cut_rate: turns(|score| Some(score.cut)),
            malformed_rate: turns(|score| Some(score.malformed)),
            invented_rate: turns(|score| Some(score.invented)),
            unwanted_rate: turns(|score| score.unwanted),
            missed_rate: turns(|score| score.missed),
            extra_rate: turns(|score| {
                (score.n_wanted > 0).then_some(score.n_made > score.n_wanted)
            }),
        }
    }

    /// The values of a line in the table.
    fn cells(&self) -> [Option<Estimate>; 13] {
        [
            self.balanced,
            self.right,
            self.exact,
            self.text_right,
            self.name,
            self.arguments,
            self.valid,
            self.malformed_rate,
            self.invented_rate,
            self.unwanted_rate,
            self.missed_rate,
            self.extra_rate,
            self.cut_rate,
        ]
    }
}

/// Harmonic mean of two fractions of right turns: the fraction among turns with expected calls, and
/// the fraction among turns with expected text. If only one is defined, returns it.
///
/// The ends of the interval are the harmonic means of the ends of both intervals. This interval is
/// wide, so it is also valid for few turns.
fn balanced_score(scores: &[&TurnScore]) -> Option<Estimate> {
    let recall = |wants_calls: bool| {
        let turns_of_kind = scores
            .iter()
            .filter(|score| (score.n_wanted > 0) == wants_calls);
        mean(turns_of_kind.map(|score| Some(indicator(score.right))))
    };
    let (calls, texts) = match (recall(true), recall(false)) {
        (Some(calls), Some(texts)) => (calls, texts),
        (estimate, other) => return estimate.or(other),
    };
    let harmonic = |a: f64, b: f64| match a + b {
        0.0 => 0.0,
        sum => 2.0 * a * b / sum,
    };
    Some(Estimate {
        value: harmonic(calls.value, texts.value),
        low: harmonic(calls.low, texts.low),
        high: harmonic(calls.high, texts.high),
    })
}

/// The ratio over all turns, from the counts of each turn.
fn share_of_all(turns: impl Iterator<Item = Share>) -> Option<Estimate> {
    let rows = turns.map(|turn| (turn.n as f64, turn.n_all as f64));
    ratio_estimate(&rows.collect::<Vec<_>>())
}

/// Groups the expected calls by a common property; intervals resample whole turns.
fn groups(scores: &[TurnScore], key: impl Fn(&CallScore) -> String) -> Vec<CallGroup> {
    let mut groups: BTreeMap<String, Vec<Vec<&CallScore>>> = BTreeMap::new();
    for score in scores {
        let mut turn_calls: BTreeMap<String, Vec<&CallScore>> = BTreeMap::new();
        for call in &score.calls {
            turn_calls.entry(key(call)).or_default().push(call);
        }
        for (key, calls) in turn_calls {
            groups.entry(key).or_default().push(calls);
        }
    }
    let group = |(group, turns): (String, Vec<Vec<&CallScore>>)| {
        let share_of_calls = |condition: fn(&CallScore) -> bool| {
            share_of_all(turns.iter().map(|calls| {
                let n = calls.iter().filter(|call| condition(call)).count();
                Share::new(n, calls.len())
            }))
        };
        CallGroup {
            group,
            n: turns.iter().map(Vec::len).sum(),
            name: share_of_calls(|call| call.name),
            arguments: share_of_all(
                turns
                    .iter()
                    .map(|calls| Share::right_arguments(calls.iter().copied())),
            ),
            exact: share_of_calls(|call| call.exact),
        }
    };
    groups.into_iter().map(group).collect()
}

/// Number of tools in the table; the summary contains all of them.
const N_SHOWN_TOOLS: usize = 10;

/// Formats a summary as Markdown in per cent. The first table has a line with this name for all
/// turns and a line per number of expected calls. The second table has lines by schema depth and
/// for the most frequent tools.
pub fn calls_table(name: &str, summary: &CallsSummary) -> String {
    let mut table = "| calls | n | balanced % | right % | exact % | text_right % | name % | arguments % | valid % \
                     | malformed_rate % | invented_rate % | unwanted_rate % | missed_rate % \
                     | extra_rate % | cut_rate % |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let mut line = |name: &str, metrics: &CallsMetrics| {
        let cells = metrics.cells().map(percent).join(" | ");
        table.push_str(&format!("| {name} | {} | {cells} |\n", metrics.n));
    };
    line(name, &summary.overall);
    for group in &summary.by_n_calls {
        line(&format!("turns with {} calls", group.group), &group.metrics);
    }
    table.push_str("\n| calls by | n | name % | arguments % | exact % |\n|---|--:|--:|--:|--:|\n");
    let depths = summary.by_schema_depth.iter();
    let depths = depths.map(|group| (format!("schema depth {}", group.group), group));
    let tools = summary.by_tool.iter().take(N_SHOWN_TOOLS);
    let tools = tools.map(|group| (group.group.clone(), group));
    for (name, group) in depths.chain(tools) {
        let cells = [group.name, group.arguments, group.exact];
        let cells = cells.map(percent).join(" | ");
        let name = name.replace('|', "\\|");
        table.push_str(&format!("| {name} | {} | {cells} |\n", group.n));
    }
    let n_hidden = summary.by_tool.len().saturating_sub(N_SHOWN_TOOLS);
    if n_hidden > 0 {
        table.push_str(&format!("| {n_hidden} more tools | | | | |\n"));
    }
    table
}
