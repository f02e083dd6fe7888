//! Compares the kinds of leaf errors of evaluations.

use std::collections::BTreeMap;

use tooltune_suites::leaf_errors::LeafErrorKind;

use super::Samples;

/// The number of reference leaves of a sample, and its errors by kind.
pub(super) type LeafCounts = (usize, BTreeMap<LeafErrorKind, usize>);

/// A table with a line per kind that occurs, over the samples that all evaluations have. `None` if
/// the samples have no leaf errors, for example because the suite compares no JSON values.
pub(super) fn kinds_text(before: &Samples, afters: &[&Samples]) -> Option<String> {
    let all: Vec<&Samples> = std::iter::once(before)
        .chain(afters.iter().copied())
        .collect();
    let is_common = |id: &&String| all.iter().all(|one| one.leaf_errors.contains_key(*id));
    let ids: Vec<&String> = before.leaf_errors.keys().filter(is_common).collect();
    let sum = |samples: &&Samples| {
        let mut sum = LeafCounts::default();
        for (n_leaves, kinds) in ids.iter().filter_map(|id| samples.leaf_errors.get(*id)) {
            sum.0 += n_leaves;
            for (kind, n) in kinds {
                *sum.1.entry(*kind).or_default() += n;
            }
        }
        sum
    };
    let sums: Vec<LeafCounts> = all.iter().map(sum).collect();
    if ids.is_empty() {
        return None;
    }
    let names: Vec<String> = match afters {
        [_] => vec!["before".to_owned(), "after".to_owned()],
        _ => all.iter().map(|one| one.name.replace('|', "\\|")).collect(),
    };
    let mut lines = vec![
        format!("| leaf errors | {} |", names.join(" | ")),
        format!("|---|{}", "--:|".repeat(names.len())),
    ];
    let mut line = |name: &str, cells: Vec<String>| {
        lines.push(format!("| {name} | {} |", cells.join(" | ")));
    };
    line(
        "reference leaves",
        sums.iter().map(|(n, _)| n.to_string()).collect(),
    );
    let n_of =
        |kinds: &BTreeMap<LeafErrorKind, usize>, kind| kinds.get(&kind).copied().unwrap_or(0);
    for kind in LeafErrorKind::ALL {
        if sums.iter().all(|(_, kinds)| n_of(kinds, kind) == 0) {
            continue;
        }
        let cell = |(n_leaves, kinds): &LeafCounts| {
            let n = n_of(kinds, kind);
            match n_leaves {
                0 => n.to_string(),
                n_leaves => format!("{n} ({:.1} %)", 100.0 * n as f64 / *n_leaves as f64),
            }
        };
        line(kind.name(), sums.iter().map(cell).collect());
    }
    Some(lines.join("\n"))
}
