//! Trajectories in, the numbers that describe them out.
//!
//! Tools and APIs are read off the names of the calls, so that rows of any origin can be measured.
//! A pair is a query with one document that it needs, however often the API is called.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tooltune_rows::tools::Trajectory;

/// What a set of trajectories holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoatStatistics {
    /// Number of trajectories.
    pub n_rows: usize,
    /// Number of trajectories by their number of calls.
    pub n_by_calls: BTreeMap<usize, usize>,
    /// Calls of a trajectory, mean.
    pub mean_calls: f64,
    /// Tools that are called.
    pub n_tools: usize,
    /// APIs that are called.
    pub n_apis: usize,
    /// Different sets of APIs.
    pub n_subgraphs: usize,
    /// Trajectories whose calls are all of one tool, as far as names say.
    pub n_single_tool: usize,
    /// Pairs of a query and a document that it needs.
    pub n_pairs: usize,
    /// Arguments that came from an earlier output.
    pub n_derived: usize,
    /// Characters of a query, mean.
    pub mean_query_chars: f64,
}

/// Measures trajectories.
pub fn statistics(rows: &[Trajectory]) -> GoatStatistics {
    let mut n_by_calls = BTreeMap::new();
    let (mut tools, mut apis, mut subgraphs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let (mut n_calls, mut n_single_tool, mut n_pairs, mut n_derived) = (0, 0, 0, 0);
    let mut n_query_chars = 0;
    for row in rows {
        *n_by_calls.entry(row.calls.len()).or_default() += 1;
        let names: BTreeSet<&str> = row.calls.iter().map(|call| call.name.as_str()).collect();
        let of_row: BTreeSet<Option<&str>> = names.iter().map(|name| tool_of(name)).collect();
        n_single_tool += usize::from(of_row.len() == 1 && !of_row.contains(&None));
        n_calls += row.calls.len();
        n_pairs += names.len();
        n_derived += row
            .calls
            .iter()
            .map(|call| call.derived.len())
            .sum::<usize>();
        n_query_chars += row.query.chars().count();
        tools.extend(of_row.into_iter().flatten());
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

/// The tool of `TOOL/API`; none for a name that is an API's alone, or an endpoint's.
fn tool_of(name: &str) -> Option<&str> {
    let (tool, _) = name.split_once('/')?;
    (!tool.is_empty() && !tool.ends_with(' ')).then_some(tool)
}
