//! Puts the base beside the best: their metrics in one table, and a typical sample of both.

use serde::Serialize;

use super::{Block, Read, Source, Table, metric_table, read, union};
use crate::error::ReportError;
use crate::run::{ReportRun, SuiteResult};
use crate::samples::{Card, typical};

/// What a suite says of base and best.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Opening {
    suite: String,
    table: Table,
    sample: Option<Card>,
}

/// One for each suite that two results can be compared by.
///
/// # Errors
///
/// - the metrics of a result are no object
pub(crate) fn openings(runs: &[ReportRun]) -> Result<Vec<Opening>, ReportError> {
    let results = runs
        .iter()
        .flat_map(|run| run.evaluations.iter().chain(&run.suites));
    let suites = union(results.map(|result| result.suite.as_str()));
    let openings = suites.into_iter().map(|suite| opening(suite, runs));
    openings.filter_map(Result::transpose).collect()
}

fn opening(suite: &str, runs: &[ReportRun]) -> Result<Option<Opening>, ReportError> {
    let mut reads = Vec::new();
    for (idx, result) in compared(suite, runs) {
        reads.extend(runs.get(idx).map(|run| read((idx, run), result)));
    }
    let reads = reads.into_iter().collect::<Result<Vec<Read>, _>>()?;
    let headline = |read: &'_ Read| {
        let of_all = |block: &&Block| matches!(block.key(), (title, false) if title.is_empty() || title == suite);
        read.blocks.iter().position(|block| of_all(&block))
    };
    let blocks: Vec<(&Source, &Block)> = reads
        .iter()
        .filter_map(|read| Some((&read.source, read.blocks.get(headline(read)?)?)))
        .collect();
    if blocks.len() < 2 {
        return Ok(None);
    }
    let results: Vec<(usize, &str)> = blocks
        .iter()
        .map(|(source, _)| (source.run, source.label.as_str()))
        .collect();
    Ok(Some(Opening {
        suite: suite.to_owned(),
        table: metric_table("", &blocks),
        sample: typical(runs, suite, &results),
    }))
}

/// The evaluations of a suite; where there are not two, the run's own results of base and best.
fn compared<'r>(suite: &str, runs: &'r [ReportRun]) -> Vec<(usize, &'r SuiteResult)> {
    let of = |results: fn(&ReportRun) -> Vec<&SuiteResult>| {
        let all = runs.iter().enumerate();
        let all = all.flat_map(|(idx, run)| results(run).into_iter().map(move |one| (idx, one)));
        all.filter(|(_, result)| result.suite == suite)
            .collect::<Vec<_>>()
    };
    let evaluations = of(|run| run.evaluations.iter().collect());
    if evaluations.len() > 1 {
        return evaluations;
    }
    of(|run| {
        let best = run.best.as_ref().map(|best| best.step);
        let is_shown = |result: &&SuiteResult| match result.step {
            Some(step) => step == 0 || Some(step) == best,
            None => false,
        };
        run.suites.iter().filter(is_shown).collect()
    })
}
