//! Compares the base model with the best checkpoint: their metrics in one table, and a typical
//! sample with both predictions.

use serde::Serialize;

use super::{Block, Entry, MetricNaming, Source, SuiteRead, Table, metric_table, read_suite};
use crate::error::ReportError;
use crate::headline;
use crate::run::{MetricFacts, ReportRun, SuiteResult};
use crate::samples::{Card, typical_sample};

/// One suite's comparison of base and best.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SuiteOpening {
    suite: String,
    /// `None` if another table already shows several runs side by side.
    table: Option<Table>,
    sample: Option<Card>,
}

/// Builds one comparison for each suite that has two comparable results.
///
/// # Errors
///
/// The metrics of a result are not a JSON object.
pub(crate) fn suite_openings(
    runs: &[ReportRun],
    facts: MetricFacts,
) -> Result<Vec<SuiteOpening>, ReportError> {
    let suites = headline::suite_names(runs).into_iter();
    let openings = suites.map(|suite| suite_opening(suite, runs, facts));
    openings.filter_map(Result::transpose).collect()
}

fn suite_opening(
    suite: &str,
    runs: &[ReportRun],
    facts: MetricFacts,
) -> Result<Option<SuiteOpening>, ReportError> {
    let mut reads = Vec::new();
    for (idx, result) in results_to_compare(suite, runs) {
        reads.extend(runs.get(idx).map(|run| read_suite((idx, run), result)));
    }
    let reads = reads
        .into_iter()
        .collect::<Result<Vec<SuiteRead<'_>>, _>>()?;
    let blocks: Vec<(&Source, Block)> = reads
        .iter()
        .filter_map(|suite_read| {
            Some((&suite_read.source, drop_text_values(suite_read.headline()?)))
        })
        .collect();
    let blocks: Vec<(&Source, &Block)> = blocks
        .iter()
        .map(|(source, inner)| (*source, inner))
        .collect();
    if blocks.len() < 2 {
        return Ok(None);
    }
    let results: Vec<(usize, &str)> = blocks
        .iter()
        .map(|(source, _)| (source.run, source.label.as_str()))
        .collect();
    let naming = reads.first().map(|suite_read| MetricNaming {
        suite: suite_read.result,
        facts,
    });
    let table = naming.filter(|_| runs.len() == 1);
    Ok(Some(SuiteOpening {
        suite: suite.to_owned(),
        table: table.map(|naming| metric_table("", &blocks, naming)),
        sample: typical_sample(runs, suite, &results),
    }))
}

/// The table without text values, because these cannot be compared.
fn drop_text_values(block: &Block) -> Block {
    let mut block = block.clone();
    if let Block::Metrics { measures, .. } = &mut block {
        measures.retain(|measure| match &measure.entry {
            Entry::Text { .. } => measure.entry == Entry::null(),
            Entry::Count { .. } | Entry::Number { .. } => true,
        });
    }
    block
}

/// The separate evaluations of a suite; if there are fewer than two, the results of base and best
/// within the run.
fn results_to_compare<'r>(suite: &str, runs: &'r [ReportRun]) -> Vec<(usize, &'r SuiteResult)> {
    let evaluations = runs.iter().enumerate().flat_map(|(idx, run)| {
        let suite_results = run
            .evaluations
            .iter()
            .filter(|result| result.suite == suite);
        suite_results.map(move |result| (idx, result))
    });
    let evaluations: Vec<(usize, &SuiteResult)> = evaluations.collect();
    if evaluations.len() > 1 {
        return evaluations;
    }
    let in_runs = runs.iter().enumerate().flat_map(|(idx, run)| {
        let run_headline = headline::headline_in_run(run, suite);
        let both = run_headline.map(|result| [result.base, result.best]);
        let mut both: Vec<&SuiteResult> = both.into_iter().flatten().flatten().collect();
        both.dedup_by_key(|result| result.step);
        both.into_iter().map(move |result| (idx, result))
    });
    in_runs.collect()
}
