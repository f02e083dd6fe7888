//! Sums the turns of a run up: over all, by the calls that are wanted, by schema and by tool.
//!
//! The decision to question: shares of calls and arguments are taken over all calls of a set, so that
//! a turn of four calls weighs four times; shares of turns are beside them. Intervals draw turns,
//! since the calls of one turn stand and fall together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::score::{CallScore, Rule, Share, TurnScore};
use crate::bootstrap::{Estimate, cell, indicator, mean, ratio_estimate};

/// Means over turns, each with its bootstrap 95 % interval; none where nothing counts for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CallsMetrics {
    /// Turns.
    pub n: usize,
    /// Wanted calls.
    pub n_calls: usize,
    /// Share of turns that are right: all wanted calls and nothing else, or no call.
    pub right: Option<Estimate>,
    /// The same over the turns in which calls are wanted.
    pub exact: Option<Estimate>,
    /// Share of wanted calls whose tool is called.
    pub name: Option<Estimate>,
    /// Share of right arguments, over those that are wanted or given.
    pub arguments: Option<Estimate>,
    /// Share of wanted calls that are made with all arguments right.
    pub call_exact: Option<Estimate>,
    /// Share of the calls made that their tool takes.
    pub valid: Option<Estimate>,
    /// Share of turns in which something is to be a call and is none.
    pub malformed_rate: Option<Estimate>,
    /// Share of turns with a call of a tool that there is not.
    pub invented_rate: Option<Estimate>,
    /// Share of turns with a call, of those in which a text is wanted.
    pub unwanted_rate: Option<Estimate>,
    /// Share of turns without a call, of those in which calls are wanted.
    pub missed_rate: Option<Estimate>,
    /// Share of turns with more calls than are wanted, of those in which calls are wanted.
    pub extra_rate: Option<Estimate>,
}

/// The numbers of the turns that want as many calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnGroup {
    /// How many calls they want.
    pub group: String,
    /// Their numbers.
    #[serde(flatten)]
    pub metrics: CallsMetrics,
}

/// The numbers of the wanted calls that have something in common: a tool, the depth of a schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallGroup {
    /// What they have in common.
    pub group: String,
    /// Wanted calls.
    pub n: usize,
    /// Share of them whose tool is called.
    pub name: Option<Estimate>,
    /// Share of right arguments.
    pub arguments: Option<Estimate>,
    /// Share of them that are made with all arguments right.
    pub exact: Option<Estimate>,
}

/// The numbers of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallsSummary {
    /// Over all turns.
    #[serde(flatten)]
    pub overall: CallsMetrics,
    /// By the number of calls that are wanted.
    pub by_n_calls: Vec<TurnGroup>,
    /// By the levels of objects and lists in the schema of the wanted tool.
    pub by_schema_depth: Vec<CallGroup>,
    /// By the wanted tool, the most frequent one first.
    pub by_tool: Vec<CallGroup>,
    /// How often each rule is broken.
    pub faults: BTreeMap<Rule, usize>,
    /// Answers by the way in which their calls are written.
    pub dialects: BTreeMap<String, usize>,
    /// Calls made whose arguments could not be checked, since their tool has no usable schema.
    pub n_unchecked: usize,
}

impl CallsSummary {
    /// Names that [`CallsSummary::value`] knows.
    pub const NAMES: [&'static str; 11] = [
        "right",
        "exact",
        "name",
        "arguments",
        "call_exact",
        "valid",
        "malformed_rate",
        "invented_rate",
        "unwanted_rate",
        "missed_rate",
        "extra_rate",
    ];

    /// Those of them that fall as a model gets better.
    pub const LOWER_IS_BETTER: [&'static str; 5] = [
        "malformed_rate",
        "invented_rate",
        "unwanted_rate",
        "missed_rate",
        "extra_rate",
    ];

    /// Gathers the scores of a run; without any, every number is none.
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
        let all: Vec<&TurnScore> = scores.iter().collect();
        let mut by_tool = groups(scores, |call| call.tool.clone());
        by_tool.sort_by_key(|group| std::cmp::Reverse(group.n));
        Self {
            overall: CallsMetrics::of(&all),
            by_n_calls: by_n_calls
                .into_iter()
                .map(|(n_calls, scores)| TurnGroup {
                    group: n_calls.to_string(),
                    metrics: CallsMetrics::of(&scores),
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

    /// The estimate of that name; none if the name is unknown or no turn counts for it.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        let metrics = &self.overall;
        match name {
            "right" => metrics.right,
            "exact" => metrics.exact,
            "name" => metrics.name,
            "arguments" => metrics.arguments,
            "call_exact" => metrics.call_exact,
            "valid" => metrics.valid,
            "malformed_rate" => metrics.malformed_rate,
            "invented_rate" => metrics.invented_rate,
            "unwanted_rate" => metrics.unwanted_rate,
            "missed_rate" => metrics.missed_rate,
            "extra_rate" => metrics.extra_rate,
            _ => None,
        }
    }
}

impl CallsMetrics {
    fn of(scores: &[&TurnScore]) -> Self {
        let turns = |value: fn(&TurnScore) -> Option<bool>| {
            mean(scores.iter().map(|score| value(score).map(indicator)))
        };
        let calls =
            |share: fn(&TurnScore) -> Share| share_of_all(scores.iter().map(|score| share(score)));
        let of_wanted = |holds: fn(&CallScore) -> bool| {
            share_of_all(scores.iter().map(|score| {
                let n = score.calls.iter().filter(|call| holds(call)).count();
                Share::new(n, score.n_wanted)
            }))
        };
        Self {
            n: scores.len(),
            n_calls: scores.iter().map(|score| score.n_wanted).sum(),
            right: turns(|score| Some(score.right)),
            exact: turns(|score| score.exact),
            name: of_wanted(|call| call.name),
            arguments: calls(|score| Share::of_arguments(&score.calls)),
            call_exact: of_wanted(|call| call.exact),
            valid: calls(|score| Share::new(score.n_valid, score.n_made)),
            malformed_rate: turns(|score| Some(score.malformed)),
            invented_rate: turns(|score| Some(score.invented)),
            unwanted_rate: turns(|score| score.unwanted),
            missed_rate: turns(|score| score.missed),
            extra_rate: turns(|score| {
                (score.n_wanted > 0).then_some(score.n_made > score.n_wanted)
            }),
        }
    }

    /// The numbers of a line of the table.
    fn cells(&self) -> [Option<Estimate>; 10] {
        [
            self.right,
            self.exact,
            self.name,
            self.arguments,
            self.valid,
            self.malformed_rate,
            self.invented_rate,
            self.unwanted_rate,
            self.missed_rate,
            self.extra_rate,
        ]
    }
}

/// The share of all turns together, from that of each.
fn share_of_all(turns: impl Iterator<Item = Share>) -> Option<Estimate> {
    let rows = turns.map(|turn| (turn.n as f64, turn.n_all as f64));
    ratio_estimate(&rows.collect::<Vec<_>>())
}

/// The wanted calls by what they have in common; each turn counts with those of its calls.
fn groups(scores: &[TurnScore], key: impl Fn(&CallScore) -> String) -> Vec<CallGroup> {
    let mut groups: BTreeMap<String, Vec<Vec<&CallScore>>> = BTreeMap::new();
    for score in scores {
        let mut of_turn: BTreeMap<String, Vec<&CallScore>> = BTreeMap::new();
        for call in &score.calls {
            of_turn.entry(key(call)).or_default().push(call);
        }
        for (key, calls) in of_turn {
            groups.entry(key).or_default().push(calls);
        }
    }
    let group = |(group, turns): (String, Vec<Vec<&CallScore>>)| {
        let of_calls = |holds: fn(&CallScore) -> bool| {
            share_of_all(turns.iter().map(|calls| {
                let n = calls.iter().filter(|call| holds(call)).count();
                Share::new(n, calls.len())
            }))
        };
        CallGroup {
            group,
            n: turns.iter().map(Vec::len).sum(),
            name: of_calls(|call| call.name),
            arguments: share_of_all(
                turns
                    .iter()
                    .map(|calls| Share::of_arguments(calls.iter().copied())),
            ),
            exact: of_calls(|call| call.exact),
        }
    };
    groups.into_iter().map(group).collect()
}

/// Tools that a table shows; all are in the summary.
const N_SHOWN_TOOLS: usize = 10;

/// Renders a summary as Markdown in per cent: a line with this name for all turns, one for each number
/// of wanted calls, and a second table by schema depth and by the most frequent tools.
pub fn calls_table(name: &str, summary: &CallsSummary) -> String {
    let mut table = "| calls | n | right % | exact % | name % | arguments % | valid % \
                     | malformed_rate % | invented_rate % | unwanted_rate % | missed_rate % \
                     | extra_rate % |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let mut line = |name: &str, metrics: &CallsMetrics| {
        let cells = metrics.cells().map(percent).join(" | ");
        table.push_str(&format!("| {name} | {} | {cells} |\n", metrics.n));
    };
    line(name, &summary.overall);
    for group in &summary.by_n_calls {
        line(&format!("turns of {} calls", group.group), &group.metrics);
    }
    table.push_str("\n| calls of | n | name % | arguments % | exact % |\n|---|--:|--:|--:|--:|\n");
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
    let n_left = summary.by_tool.len().saturating_sub(N_SHOWN_TOOLS);
    if n_left > 0 {
        table.push_str(&format!("| {n_left} more tools | | | | |\n"));
    }
    table
}

fn percent(estimate: Option<Estimate>) -> String {
    cell(estimate, 100.0, "")
}
