//! Renders what runs left behind as one HTML file: settings that differ beside what they came to, base
//! beside best, supervised tokens, curves, results and worst samples.
//!
//! The page needs no network and no other file: style, script and drawings are in it. All that
//! comes from a run goes through the templates' escaping, so that a prediction stays text wherever
//! it stands. Curves are thinned and long texts cut, with a note of how much, so that the page of
//! a long run opens as fast as that of a short one. Files are read elsewhere; the same runs always
//! give the same bytes.
//!
//! ```
//! use tooltune_report::{ReportRun, render};
//!
//! let run = ReportRun { name: "my run".to_owned(), ..ReportRun::default() };
//! let page = render(&[run], |_| None)?;
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
mod shortened;
mod tiles;
mod words;

pub use compared::{RunsTable, compare_runs};
pub use complexity::{MeasuredSet, render_complexity};
pub use error::ReportError;
pub use graph::{GraphEdge, render_graph};
pub use page::render;
pub use predictions::{RankedEvaluation, ranked_samples, samples_by_loss};
pub use run::{
    BestCheckpoint, MetricWords, PreviewRow, PreviewToken, ReportRun, SampleScoreView, SampleView,
    SuiteResult,
};

#[cfg(test)]
mod tests;
