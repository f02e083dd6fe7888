//! Limits of input.
//!
//! Each constant gives its reason here; docs/limits.md tells users what exceeds it and what to do.

use tooltune_disk::budgets::Limit;

/// The most bytes of the report of a data pipeline, which has some lines for each reason of a drop.
pub const PIPELINE_REPORT_BYTES: Limit = Limit::new("PIPELINE_REPORT_BYTES", 16 << 20);
