//! Puts the base beside the best: their metrics in one table, and a typical sample of both.

use serde::Serialize;

use super::{Block, Entry, Naming, Read, Source, Table, metric_table, read};
use crate::error::ReportError;
use crate::headline;
use crate::run::{MetricWords, ReportRun, SuiteResult};
use crate::samples::{Card, typical};

/// What a suite says of base and best.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Opening {
    suite: String,
    /// Absent where several runs stand in one table already.
    table: Option<Table>,
    sample: Option<Card>,
}

/// One for each suite that two results can be compared by.
///
/// # Errors
///
/// - the metrics of a result are no object
pub(crate) fn openings(
    runs: &[ReportRun],
    words: MetricWords,
) -> Result<Vec<Opening>, ReportError> {
    let suites = headline::suites(runs).into_iter();
    let openings = suites.map(|suite| opening(suite, runs, words));
    openings.filter_map(Result::transpose).collect()
}

fn opening(
    suite: &str,
    runs: &[ReportRun],
    words: MetricWords,
) -> Result<Option<Opening>, ReportError> {
    let mut reads = Vec::new();
    for (idx, result) in compared(suite, runs) {
        reads.extend(runs.get(idx).map(|run| read((idx, run), result)));
    }
    let reads = reads.into_iter().collect::<Result<Vec<Read<'_>>, _>>()?;
    let blocks: Vec<(&Source, Block)> = reads
        .iter()
        .filter_map(|read| Some((&read.source, numbers(read.headline()?))))
        .collect();
    let blocks: Vec<(&Source, &Block)> = blocks.iter().map(|(source, of)| (*source, of)).collect();
    if blocks.len() < 2 {
        return Ok(None);
    }
    let results: Vec<(usize, &str)> = blocks
        .iter()
        .map(|(source, _)| (source.run, source.label.as_str()))
        .collect();
    let naming = reads.first().map(|read| Naming {
        suite: read.result,
        words,
    });
    let table = naming.filter(|_| runs.len() == 1);
    Ok(Some(Opening {
        suite: suite.to_owned(),
        table: table.map(|naming| metric_table("", &blocks, naming)),
        sample: typical(runs, suite, &results),
    }))
}

/// A table without texts, which compare with nothing.
fn numbers(block: &Block) -> Block {
    let mut block = block.clone();
    if let Block::Metrics { measures, .. } = &mut block {
        measures.retain(|measure| match &measure.entry {
            Entry::Text { .. } => measure.entry == Entry::none(),
            Entry::Count { .. } | Entry::Number { .. } => true,
        });
    }
    block
}

/// The evaluations of a suite; where there are not two, the run's own results of base and best.
fn compared<'r>(suite: &str, runs: &'r [ReportRun]) -> Vec<(usize, &'r SuiteResult)> {
    let evaluations = runs.iter().enumerate().flat_map(|(idx, run)| {
        let of_suite = run.evaluations.iter().filter(|one| one.suite == suite);
        of_suite.map(move |one| (idx, one))
    });
    let evaluations: Vec<(usize, &SuiteResult)> = evaluations.collect();
    if evaluations.len() > 1 {
        return evaluations;
    }
    let within = runs.iter().enumerate().flat_map(|(idx, run)| {
        let found = headline::within(run, suite);
        let both = found.map(|one| [one.base, one.best]);
        let mut both: Vec<&SuiteResult> = both.into_iter().flatten().flatten().collect();
        both.dedup_by_key(|one| one.step);
        both.into_iter().map(move |one| (idx, one))
    });
    within.collect()
}
