//! The parts of `metrics.json` of agent suites.

use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_suites::leaf_errors::{FIELD, LeafErrorSummary, LeafErrors, LeafGroups};

use crate::error::Error;
use crate::eval::report_files::json_value;

/// The report of a suite, and the errors of its samples' arguments.
///
/// # Errors
///
/// Never for reports of suites.
pub(super) fn with_leaf_errors<'s>(
    own: (&'static str, Value),
    samples: impl IntoIterator<Item = (&'s str, &'s LeafErrors)>,
) -> Result<BTreeMap<&'static str, Value>, Error> {
    let mut report = BTreeMap::from([own]);
    if let Some(summary) = LeafErrorSummary::new(samples, LeafGroups::Tool) {
        report.insert(FIELD, json_value(&summary)?);
    }
    Ok(report)
}
