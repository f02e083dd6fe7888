//! Chooses the two results that say what a run came to: its base and its best on the same rows.

use super::run::{ReportRun, SuiteResult};

/// The results of base and best, as far as they are there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headline<'r> {
    /// Of the untrained model.
    pub(super) base: Option<&'r SuiteResult>,
    /// Of the selected checkpoint, or of the last where none was selected.
    pub(super) best: Option<&'r SuiteResult>,
    /// Of the last checkpoint within the run.
    pub(super) last: Option<&'r SuiteResult>,
    /// Whether it was found outside of the run.
    pub(super) is_evaluation: bool,
}

impl Headline<'_> {
    /// Samples behind it.
    pub(super) fn n(&self) -> Option<u64> {
        let results = self.best.iter().chain(&self.base);
        results.filter_map(|result| result.n()).max()
    }
}

/// What the evaluations within the run say.
pub(super) fn within<'r>(run: &'r ReportRun, suite: &str) -> Option<Headline<'r>> {
    let best_step = run.best.as_ref().map(|best| best.step);
    let of_suite = || run.suites.iter().filter(|result| result.suite == suite);
    let selected = of_suite().find(|result| best_step.is_some() && result.step == best_step);
    of_suite().next_back()?;
    Some(Headline {
        base: of_suite().find(|result| result.step == Some(0)),
        best: selected.or_else(|| of_suite().rfind(|_| best_step.is_none())),
        last: of_suite().next_back(),
        is_evaluation: false,
    })
}

/// What those outside of it say that are of its base and its best.
fn outside<'r>(run: &'r ReportRun, suite: &str) -> Option<Headline<'r>> {
    let labelled = |label: &str| {
        let mut results = run.evaluations.iter();
        results.find(|result| result.suite == suite && result.label == label)
    };
    let (base, best) = (labelled("base"), labelled("best"));
    base.or(best)?;
    Some(Headline {
        base,
        best,
        last: None,
        is_evaluation: true,
    })
}

/// The largest that has both, else the largest; of equals that outside of the run, whose rows chose
/// nothing.
pub(super) fn largest<'r>(run: &'r ReportRun, suite: &str) -> Option<Headline<'r>> {
    let found = [within(run, suite), outside(run, suite)];
    let size = |one: &Headline<'_>| (one.base.is_some() && one.best.is_some(), one.n());
    found.into_iter().flatten().max_by_key(size)
}

/// Those of one suite in several runs: the largest of each where all are of as many samples, else
/// those within the runs where all have some, so that runs are not compared by different rows unseen.
pub(super) fn of_runs<'r>(runs: &'r [ReportRun], suite: &str) -> Vec<Option<Headline<'r>>> {
    let largest: Vec<Option<Headline<'r>>> = runs.iter().map(|run| largest(run, suite)).collect();
    let mut found = largest.iter().flatten();
    let kind = |one: &Headline<'_>| (one.is_evaluation, one.n());
    let is_one_kind = match found.next() {
        Some(first) => found.all(|other| kind(other) == kind(first)),
        None => true,
    };
    if is_one_kind {
        return largest;
    }
    let within: Vec<Option<Headline<'r>>> = runs.iter().map(|run| within(run, suite)).collect();
    if within.iter().all(Option::is_some) {
        within
    } else {
        largest
    }
}

/// The suites of all runs, those within them first, in the order in which they first come.
pub(super) fn suites(runs: &[ReportRun]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let results = runs
        .iter()
        .flat_map(|run| run.suites.iter().chain(&run.evaluations));
    for result in results {
        if !names.contains(&result.suite.as_str()) {
            names.push(&result.suite);
        }
    }
    // The loss is of every run, and says least.
    names.sort_by_key(|name| *name == SuiteResult::LOSS);
    names
}
