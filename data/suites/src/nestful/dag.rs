//! The calls of a sequence as a graph of data: how deep it is, and of which shape.
//!
//! The nodes are the calls of functions and the edges the dependencies of data between them, as the
//! paper has it (section 4.5): `var_result`, with which the first release of the benchmark names what a
//! sequence returns, is no call. A label means the last call before that it was given to.
//! References count wherever they stand, also inside lists, objects and longer texts such as
//! `5 * $var1.rate$`, since the question is what flows, not what an executor resolves.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tooltune_rows::python::PyValue;

use super::sequence::reference;

/// The shape of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DagPattern {
    /// No call needs another.
    None,
    /// Each call needs at most one other and is needed by at most one.
    Chain,
    /// A call needs several, and none is needed by several.
    FanIn,
    /// A call is needed by several, and none needs several.
    FanOut,
    /// Both.
    Mixed,
}

impl DagPattern {
    /// The pattern's name in reports.
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

/// Measures of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagStatistics {
    /// Calls, those named `var_result` not counted.
    pub calls: usize,
    /// Dependencies on the longest path.
    pub max_depth: usize,
    /// Pairs of a call and one that it needs.
    pub dependencies: usize,
    /// References, however many of them one pair has.
    pub references: usize,
    /// References to no earlier call.
    pub unresolved: usize,
    /// Groups of calls without a dependency between them.
    pub components: usize,
    /// Calls, the last one not among them, whose result no other call needs.
    pub unused_outputs: usize,
    /// The shape.
    pub pattern: DagPattern,
}

/// Measures a sequence of calls as they are written.
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

/// The labels of all references of a value.
fn collect_labels(value: &PyValue, known: &HashMap<String, usize>, labels: &mut Vec<String>) {
    match value {
        PyValue::Text(text) => match reference(text) {
            // One that begins and ends as a reference may hold two: `$var1.a$ - $var2.a$`.
            Some(inside) if !inside.contains('$') => {
                labels.extend(label(inside).map(str::to_owned));
            }
            _ => labels.extend(embedded(text, known)),
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

/// The label of what stands between the marks of a reference.
fn label(inside: &str) -> Option<&str> {
    let label = inside.split('.').next().unwrap_or(inside);
    // What has a blank is a text about money, not a label.
    (!label.is_empty() && !label.contains(' ')).then_some(label)
}

/// The labels of earlier calls that are enclosed in marks within a text; other marks are money.
fn embedded(text: &str, known: &HashMap<String, usize>) -> Vec<String> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        let enclosed = after.split_once('$');
        let found = enclosed.and_then(|(inside, behind)| Some((label(inside)?, behind)));
        rest = match found {
            Some((label, behind)) if known.contains_key(label) => {
                labels.push(label.to_owned());
                behind
            }
            // The mark may be that of a price, and the next one begin a reference.
            _ => after,
        };
    }
    labels
}

#[derive(Debug, Default)]
struct Graph {
    /// Producer and consumer; the producer comes first in the sequence, so there is no cycle.
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
            let (kept, merged) = (group_of[producer], group_of[consumer]);
            for group in &mut group_of {
                *group = if *group == merged { kept } else { *group };
            }
        }
        group_of.into_iter().collect::<BTreeSet<_>>().len()
    }

    fn pattern(&self) -> DagPattern {
        let (mut needs, mut needed_by) = (BTreeMap::new(), BTreeMap::new());
        for (producer, consumer) in &self.edges {
            *needs.entry(consumer).or_insert(0_usize) += 1;
            *needed_by.entry(producer).or_insert(0_usize) += 1;
        }
        let has_several = |counts: BTreeMap<&usize, usize>| counts.values().any(|&n| n > 1);
        match (
            self.edges.is_empty(),
            has_several(needs),
            has_several(needed_by),
        ) {
            (true, _, _) => DagPattern::None,
            (_, true, true) => DagPattern::Mixed,
            (_, true, false) => DagPattern::FanIn,
            (_, false, true) => DagPattern::FanOut,
            (_, false, false) => DagPattern::Chain,
        }
    }
}
