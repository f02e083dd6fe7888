//! Computes GOAT's Tables 8 and 9 for a set of trajectories, and the lengths of their texts.

use std::collections::{BTreeMap, BTreeSet};

use tooltune_apis::{ApiCatalogue, Trajectory};
use tooltune_json::{Style, dumps};
use tooltune_rows::statistics::{Count, FileStatistics, Measures, TokenCount};

use crate::goat::statistics;

/// Measures trajectories. `catalogue` provides the domains of their APIs, which are the categories
/// of the documents.
///
/// # Source
///
/// GOAT, Tables 8 (domains, APIs, instances, mean number of calls) and 9 (instances by sub-graph
/// size). For a row without a sub-graph, its number of distinct APIs is used.
pub fn trajectory_statistics(
    rows: &[Trajectory],
    catalogue: Option<&ApiCatalogue>,
    count_tokens: TokenCount<'_>,
) -> FileStatistics {
    let statistics_of_all = statistics(rows);
    let mut counts = vec![
        Count::new("trajectories", statistics_of_all.n_rows),
        Count::new("APIs called", statistics_of_all.n_apis),
    ];
    if let Some(catalogue) = catalogue {
        let called_names = rows.iter().flat_map(|row| &row.calls);
        let called_names = called_names.filter_map(|call| catalogue.get(&call.name));
        let domains: BTreeSet<&str> = called_names.map(|api| api.category_name.as_str()).collect();
        counts.push(Count::new("domains of the APIs called", domains.len()));
        counts.push(Count::new("APIs documented", catalogue.len()));
    }
    if statistics_of_all.n_tools > 0 {
        let n_inter = statistics_of_all.n_rows - statistics_of_all.n_single_tool;
        counts.push(Count::new("tools called", statistics_of_all.n_tools));
        counts.push(Count::new(
            "trajectories of a single tool",
            statistics_of_all.n_single_tool,
        ));
        counts.push(Count::new("trajectories of several tools", n_inter));
    }
    counts.push(Count::new(
        "distinct sets of APIs",
        statistics_of_all.n_subgraphs,
    ));
    counts.push(Count::new(
        "pairs of a query and a needed document",
        statistics_of_all.n_pairs,
    ));
    counts.push(Count::new(
        "arguments from an earlier output",
        statistics_of_all.n_derived,
    ));
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    let mut measures = Measures::default();
    for row in rows {
        *sizes.entry(n_distinct_apis(row)).or_default() += 1;
        measures.add("calls", row.calls.len());
        measures.add_text(
            ["query_characters", "query_tokens"],
            &row.query,
            count_tokens,
        );
        let names = ["response_characters", "response_tokens"];
        measures.add_text(names, &row.response, count_tokens);
        for call in &row.calls {
            let names = ["sub_query_characters", "sub_query_tokens"];
            measures.add_text(names, &call.sub_query, count_tokens);
            let output = dumps(&call.output, Style::Python);
            measures.add_text(
                ["output_characters", "output_tokens"],
                &output,
                count_tokens,
            );
        }
    }
    let by_size = sizes.into_iter();
    counts.extend(by_size.map(|(size, n)| Count::new(format!("sub-graphs of size {size}"), n)));
    FileStatistics {
        counts,
        groups: Vec::new(),
        measures: measures.statistics(),
    }
}

/// Number of distinct APIs that a row calls.
fn n_distinct_apis(row: &Trajectory) -> usize {
    let called_names = row.calls.iter().map(|call| &call.name);
    if row.subgraph.is_empty() {
        called_names.collect::<BTreeSet<_>>().len()
    } else {
        row.subgraph.iter().collect::<BTreeSet<_>>().len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tooltune_apis::ApiDocument;

    use super::*;

    fn row(names: &[&str]) -> Trajectory {
        let call = |name: &&str| json!({"sub_query": "Wo?", "name": name, "arguments": {}, "output": {"m": 2}});
        let calls: Vec<Value> = names.iter().map(call).collect();
        let row = json!({"id": "a", "query": "Wie weit ist es?", "calls": calls, "response": "ß"});
        serde_json::from_value(row).expect("a trajectory")
    }

    fn value_of(statistics: &FileStatistics, name: &str) -> Option<usize> {
        let count = statistics.counts.iter().find(|count| count.name == name);
        count.map(|count| count.n)
    }

    #[test]
    fn api_sets_are_counted_like_in_the_paper() {
        let rows = [
            row(&["Way/Route", "Way/Place"]),
            row(&["Way/Place", "Tide/Low", "Way/Place"]),
            row(&["Tide/Low", "Way/Place"]),
        ];
        let mut documents = ["Way", "Tide", "Tide"].map(|tool| ApiDocument::new(tool, "Low"));
        documents[0].category_name = "Land".to_owned();
        documents[1].category_name = "Sea".to_owned();
        documents[2] = ApiDocument::new("Way", "Place");
        documents[2].category_name = "Land".to_owned();
        let catalogue = ApiCatalogue::new(documents.to_vec()).expect("three names");
        let words = |text: &str| text.split_whitespace().count();
        let statistics = trajectory_statistics(&rows, Some(&catalogue), Some(&words));
        for (name, expected) in [
            ("trajectories", 3),
            ("APIs called", 3),
            ("APIs documented", 3),
            ("domains of the APIs called", 2),
            ("tools called", 2),
            ("trajectories of a single tool", 1),
            ("trajectories of several tools", 2),
            ("distinct sets of APIs", 2),
            ("sub-graphs of size 2", 3),
        ] {
            assert_eq!(value_of(&statistics, name), Some(expected), "{name}");
        }
        let measure = |name: &str| {
            let statistics = statistics
                .measures
                .iter()
                .find(|measure_found| measure_found.name == name);
            statistics.unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(measure("calls").mean, 7.0 / 3.0);
        assert_eq!(measure("query_characters").max, 16.0);
        assert_eq!(measure("query_tokens").max, 4.0);
        assert_eq!(measure("response_characters").mean, 1.0);
        assert_eq!(measure("output_characters").mean, 8.0);
    }

    #[test]
    fn names_without_tools_and_endpoints_have_no_tool() {
        let statistics = trajectory_statistics(&[row(&["Calculator", "GET /tides"])], None, None);
        assert_eq!(value_of(&statistics, "tools called"), None);
        assert_eq!(value_of(&statistics, "domains of the APIs called"), None);
        assert!(
            statistics
                .measures
                .iter()
                .all(|measure| !measure.name.ends_with("_tokens"))
        );
    }
}
