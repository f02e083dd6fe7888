//! Computes statistics of trajectories.
//!
//! Tools and APIs are taken from call names, so that rows from any source can be measured. A pair
//! is a query and a document that it needs, however often the API is called.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tooltune_apis::Trajectory;

/// Statistics of a set of trajectories.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoatStatistics {
    /// Number of trajectories.
    pub n_rows: usize,
    /// Number of trajectories by their number of calls.
    pub n_by_calls: BTreeMap<usize, usize>,
    /// Mean number of calls per trajectory.
    pub mean_calls: f64,
    /// Number of called tools.
    pub n_tools: usize,
    /// Number of called APIs.
    pub n_apis: usize,
    /// Number of distinct API sets.
    pub n_subgraphs: usize,
    /// Number of trajectories whose calls all belong to one tool, according to their names.
    pub n_single_tool: usize,
    /// Number of pairs of a query and a needed document.
    pub n_pairs: usize,
    /// Number of arguments that come from an earlier output.
    pub n_derived: usize,
    /// Mean number of characters per query.
    pub mean_query_chars: f64,
}

/// Computes the statistics.
pub fn statistics(rows: &[Trajectory]) -> GoatStatistics {
    let mut n_by_calls = BTreeMap::new();
    let (mut tools, mut apis, mut subgraphs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut n_calls, mut n_single_tool, mut n_pairs, mut n_derived) = (0, 0, 0, 0);
    let mut n_query_chars = 0;
    for row in rows {
        *n_by_calls.entry(row.calls.len()).or_default() += 1;
        let names: BTreeSet<&str> = row.calls.iter().map(|call| call.name.as_str()).collect();
        let row_tools: BTreeSet<Option<&str>> = names.iter().map(|name| tool_of(name)).collect();
        n_single_tool += usize::from(row_tools.len() == 1 && !row_tools.contains(&None));
        n_calls += row.calls.len();
        n_pairs += names.len();
        n_derived += row
            .calls
            .iter()
            .map(|call| call.derived.len())
            .sum::<usize>();
        n_query_chars += row.query.chars().count();
        tools.extend(row_tools.into_iter().flatten());
        apis.extend(names.iter().copied());
        subgraphs.insert(names);
    }
    let mean = |sum: usize| sum as f64 / rows.len().max(1) as f64;
    GoatStatistics {
        n_rows: rows.len(),
        n_by_calls,
        mean_calls: mean(n_calls),
        n_tools: tools.len(),
        n_apis: apis.len(),
        n_subgraphs: subgraphs.len(),
        n_single_tool,
        n_pairs,
        n_derived,
        mean_query_chars: mean(n_query_chars),
    }
}

/// The tool of `TOOL/API`; `None` for a bare API name or an endpoint.
fn tool_of(name: &str) -> Option<&str> {
    let (tool, _) = name.split_once('/')?;
    (!tool.is_empty() && !tool.ends_with(' ')).then_some(tool)
}
