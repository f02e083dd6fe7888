//! Analyses the data dependencies between the calls of a sequence: depth and shape of the graph.
//!
//! The nodes are the function calls and the edges their data dependencies, as in the paper (section
//! 4.5). `var_result`, which names the result of a sequence in the benchmark's first release, is
//! not a call. A label refers to the last earlier call with that label. References count wherever
//! they occur, even inside lists, objects and longer texts such as `5 * $var1.rate$`, because the
//! graph describes the data flow and not what an executor can resolve.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tooltune_json::python::PyValue;

use super::sequence::reference;

/// The shape of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DagPattern {
    /// No dependencies.
    None,
    /// Each call depends on at most one other call, and at most one other call depends on it.
    Chain,
    /// Some call depends on several calls, but no call has several dependents.
    FanIn,
    /// Some call has several dependents, but no call depends on several calls.
    FanOut,
    /// Both fan-in and fan-out.
    Mixed,
}

impl DagPattern {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Chain => "chain",
            Self::FanIn => "fan_in",
            Self::FanOut => "fan_out",
            Self::Mixed => "mixed",
        }
    }
}

/// Statistics of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagStatistics {
    /// Number of calls, excluding `var_result`.
    pub calls: usize,
    /// Number of dependencies on the longest path.
    pub max_depth: usize,
    /// Number of dependent pairs of calls.
    pub dependencies: usize,
    /// Number of references; a pair may have several.
    pub references: usize,
    /// Number of references without a matching earlier call.
    pub unresolved: usize,
    /// Number of connected components.
    pub components: usize,
    /// Number of calls whose result is unused, except the last call.
    pub unused_outputs: usize,
    /// The shape.
    pub pattern: DagPattern,
}

/// Analyses a sequence of calls as written.
pub fn dag_statistics(calls: &[PyValue]) -> DagStatistics {
    let is_result =
        |call: &&PyValue| call.get("name").and_then(PyValue::as_text) == Some("var_result");
    let calls: Vec<&PyValue> = calls.iter().filter(|call| !is_result(call)).collect();
    let mut graph = Graph::default();
    let mut producers: HashMap<String, usize> = HashMap::new();
    for (call_idx, call) in calls.iter().enumerate() {
        let arguments = call.get("arguments").or_else(|| call.get("parameters"));
        let mut labels = Vec::new();
        collect_labels(arguments.unwrap_or(&PyValue::None), &producers, &mut labels);
        graph.references += labels.len();
        for label in labels {
            match producers.get(&label) {
                Some(&producer) => {
                    graph.edges.insert((producer, call_idx));
                }
                None => graph.unresolved += 1,
            }
        }
        if let Some(label) = call.get("label").and_then(PyValue::as_text) {
            producers.insert(label.replace('$', ""), call_idx);
        }
    }
    graph.statistics(calls.len())
}

/// Collects the labels of all references in a value.
fn collect_labels(value: &PyValue, known: &HashMap<String, usize>, labels: &mut Vec<String>) {
    match value {
        PyValue::Text(text) => match reference(text) {
            // A text that starts and ends like a reference may contain two references, such as
            // `$var1.a$ - $var2.a$`.
            Some(content) if !content.contains('$') => {
                labels.extend(label(content).map(str::to_owned));
            }
            _ => labels.extend(embedded_labels(text, known)),
        },
        PyValue::List(items) | PyValue::Tuple(items) => {
            items
                .iter()
                .for_each(|item| collect_labels(item, known, labels));
        }
        PyValue::Dict(fields) => fields
            .values()
            .for_each(|field| collect_labels(field, known, labels)),
        _ => {}
    }
}

/// The label inside the marks of a reference.
fn label(content: &str) -> Option<&str> {
    let label = content.split('.').next().unwrap_or(content);
    // Text with a space between dollar signs is about money and is not a label.
    (!label.is_empty() && !label.contains(' ')).then_some(label)
}

/// Labels of earlier calls between dollar signs inside a text; other dollar signs are ignored.
fn embedded_labels(text: &str, known: &HashMap<String, usize>) -> Vec<String> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        let enclosed = after.split_once('$');
        let label_and_rest = enclosed.and_then(|(inside, rest)| Some((label(inside)?, rest)));
        rest = match label_and_rest {
            Some((label, rest)) if known.contains_key(label) => {
                labels.push(label.to_owned());
                rest
            }
            // This may be a plain dollar sign, so the next dollar sign may start a reference.
            _ => after,
        };
    }
    labels
}

#[derive(Debug, Default)]
struct Graph {
    /// Producer and consumer; the producer is earlier in the sequence, so there are no cycles.
    edges: BTreeSet<(usize, usize)>,
    references: usize,
    unresolved: usize,
}

impl Graph {
    fn statistics(&self, n_calls: usize) -> DagStatistics {
        let used: BTreeSet<usize> = self.edges.iter().map(|edge| edge.0).collect();
        DagStatistics {
            calls: n_calls,
            max_depth: self.max_depth(n_calls),
            dependencies: self.edges.len(),
            references: self.references,
            unresolved: self.unresolved,
            components: self.components(n_calls),
            unused_outputs: (0..n_calls.saturating_sub(1))
                .filter(|call_idx| !used.contains(call_idx))
                .count(),
            pattern: self.pattern(),
        }
    }

    fn max_depth(&self, n_calls: usize) -> usize {
        let mut depths = vec![0; n_calls];
        let mut by_consumer: Vec<(usize, usize)> = self
            .edges
            .iter()
            .map(|&(producer, consumer)| (consumer, producer))
            .collect();
        by_consumer.sort_unstable();
        for (consumer, producer) in by_consumer {
            depths[consumer] = depths[consumer].max(depths[producer] + 1);
        }
        depths.into_iter().max().unwrap_or(0)
    }

    fn components(&self, n_calls: usize) -> usize {
        let mut group_of: Vec<usize> = (0..n_calls).collect();
        for &(producer, consumer) in &self.edges {
            let (kept_group, merged_group) = (group_of[producer], group_of[consumer]);
            for group in &mut group_of {
                *group = if *group == merged_group {
                    kept_group
                } else {
                    *group
                };
            }
        }
        group_of.into_iter().collect::<BTreeSet<_>>().len()
    }

    fn pattern(&self) -> DagPattern {
        let (mut n_producers, mut n_consumers) = (BTreeMap::new(), BTreeMap::new());
        for (producer, consumer) in &self.edges {
            *n_producers.entry(consumer).or_insert(0_usize) += 1;
            *n_consumers.entry(producer).or_insert(0_usize) += 1;
        }
        let has_several = |counts: BTreeMap<&usize, usize>| counts.values().any(|&n| n > 1);
        match (
            self.edges.is_empty(),
            has_several(n_producers),
            has_several(n_consumers),
        ) {
            (true, _, _) => DagPattern::None,
            (_, true, true) => DagPattern::Mixed,
            (_, true, false) => DagPattern::FanIn,
            (_, false, true) => DagPattern::FanOut,
            (_, false, false) => DagPattern::Chain,
        }
    }
}
