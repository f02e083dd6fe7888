//! Compares evaluations within groups of samples.

use tooltune_suites::sort_groups;

use super::table::Table;
use super::{Samples, compared};
use crate::error::Error;

/// Number of groups in the table.
const MAX_GROUPS: usize = 50;

/// The table of the groups in which at least one sample changed.
///
/// # Errors
///
/// Scores cannot be compared.
pub(super) fn groups_text(before: &Samples, afters: &[&Samples]) -> Result<String, Error> {
    let mut groups: Vec<_> = before.groups.iter().collect();
    sort_groups(&mut groups, |(name, ids)| (name.as_str(), ids.len()));
    let mut table = Table::new(before.format, Some("group"));
    let mut n_unchanged = 0;
    for measure in before.format.measures {
        for (group, ids) in groups.iter().take(MAX_GROUPS) {
            for after in afters {
                let name = match afters {
                    [_] => (*group).clone(),
                    _ => format!("{group}, {}", after.name),
                };
                let what = table.metric_label(measure, &name);
                let found = compared(measure, before, after, Some(ids), &what)?;
                let Some((both, comparison)) = found else {
                    continue;
                };
                if comparison.won.is_empty() && comparison.lost.is_empty() {
                    n_unchanged += 1;
                } else {
                    table.add(measure, &name, both, comparison);
                }
            }
        }
    }
    let mut text = table.text(0);
    if n_unchanged > 0 {
        text.push_str(&format!(
            "\n\n{n_unchanged} scores of groups are equal in every sample and are not shown"
        ));
    }
    let n_more = groups.len().saturating_sub(MAX_GROUPS);
    if n_more > 0 {
        text.push_str(&format!("\n\n{n_more} more groups are not shown"));
    }
    Ok(text)
}
