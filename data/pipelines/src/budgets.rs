//! Limits of input.
//!
//! The comment of each constant gives its reason; docs/limits.md tells users what exceeds it and
//! what to do.

use tooltune_disk::budgets::Limit;

/// Maximum size of a pipeline's report, which has a few lines per drop reason.
pub const PIPELINE_REPORT_BYTES: Limit = Limit::new("PIPELINE_REPORT_BYTES", 16 << 20);
