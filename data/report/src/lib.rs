//! Renders one or more runs as a single HTML file: differing settings, base compared with best,
//! supervised tokens, curves, results and worst samples.
//!
//! The page is self-contained: style, script and drawings are inlined, and no network access is
//! needed. The templates escape all data of a run, so a prediction is always shown as text. Curves
//! are thinned and long texts are cut, with a note about the omitted amount, so that the page of a
//! long run opens quickly. This crate reads no files. The same runs always give the same bytes.
//!
//! ```
//! use tooltune_report::{MetricFacts, ReportRun, render};
//!
//! let facts = MetricFacts { plain_name: |_| None, greater_is_better: |_| None };
//! let run = ReportRun { name: "my run".to_owned(), ..ReportRun::default() };
//! let page = render(&[run], facts)?;
//! assert!(page.contains("<title>my run"));
//! # Ok::<(), tooltune_report::ReportError>(())
//! ```

mod axis;
mod chart;
mod compared;
mod complexity;
mod curves;
mod error;
mod graph;
mod headline;
mod number;
mod page;
mod predictions;
mod preview;
mod results;
mod run;
mod samples;
mod series;
mod tiles;
mod truncation;
mod words;

pub use compared::{RunsTable, compare_runs};
pub use complexity::{MeasuredSet, render_complexity};
pub use error::ReportError;
pub use graph::{GraphEdge, render_graph};
pub use page::render;
pub use predictions::{LineParts, RankedEvaluation, ranked_samples, samples_by_loss};
pub use run::{
    BestCheckpoint, MetricFacts, OriginLine, PreviewRow, PreviewToken, ReportRun, SampleScoreView,
    SampleView, SuiteResult,
};

#[cfg(test)]
mod tests;
