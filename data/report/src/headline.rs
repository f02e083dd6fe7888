//! Selects the two results that summarize a run: the base model and the best checkpoint, on the
//! same rows.

use super::run::{ReportRun, SuiteResult};

/// The results of the base model and the best checkpoint, if available.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headline<'r> {
    /// Result of the untrained model.
    pub(super) base: Option<&'r SuiteResult>,
    /// Result of the selected checkpoint, or of the last checkpoint if none was selected.
    pub(super) best: Option<&'r SuiteResult>,
    /// Result of the last checkpoint evaluated within the run.
    pub(super) last: Option<&'r SuiteResult>,
    /// Whether the results are from separate evaluations instead of the run itself.
    pub(super) is_evaluation: bool,
}

impl Headline<'_> {
    /// Number of samples.
    pub(super) fn n_samples(&self) -> Option<u64> {
        let results = self.best.iter().chain(&self.base);
        results.filter_map(|result| result.n_samples()).max()
    }
}

/// Results of the evaluations within the run.
pub(super) fn headline_in_run<'r>(run: &'r ReportRun, suite: &str) -> Option<Headline<'r>> {
    let best_step = run.best.as_ref().map(|best| best.step);
    let suite_results = || run.suites.iter().filter(|result| result.suite == suite);
    let selected = suite_results().find(|result| best_step.is_some() && result.step == best_step);
    suite_results().next_back()?;
    Some(Headline {
        base: suite_results().find(|result| result.step == Some(0)),
        best: selected.or_else(|| suite_results().rfind(|_| best_step.is_none())),
        last: suite_results().next_back(),
        is_evaluation: false,
    })
}

/// Results of separate evaluations labelled `base` and `best`.
fn headline_of_evaluation<'r>(run: &'r ReportRun, suite: &str) -> Option<Headline<'r>> {
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

/// The headline with the most samples, preferably one that has both base and best. If there is a
/// tie, the separate evaluation is used, because its rows did not select the checkpoint.
pub(super) fn largest_headline<'r>(run: &'r ReportRun, suite: &str) -> Option<Headline<'r>> {
    let candidates = [
        headline_in_run(run, suite),
        headline_of_evaluation(run, suite),
    ];
    let size = |headline_size: &Headline<'_>| {
        (
            headline_size.base.is_some() && headline_size.best.is_some(),
            headline_size.n_samples(),
        )
    };
    candidates.into_iter().flatten().max_by_key(size)
}

/// The headlines of one suite in several runs. If the largest headlines of all runs have the same
/// number of samples, these are used; otherwise the evaluations within the runs, if every run has
/// one. This avoids comparing runs on different rows.
pub(super) fn comparable_headlines<'r>(
    runs: &'r [ReportRun],
    suite: &str,
) -> Vec<Option<Headline<'r>>> {
    let largest: Vec<Option<Headline<'r>>> = runs
        .iter()
        .map(|run| largest_headline(run, suite))
        .collect();
    let mut found_headlines = largest.iter().flatten();
    let kind =
        |headline_kind: &Headline<'_>| (headline_kind.is_evaluation, headline_kind.n_samples());
    let is_one_kind = match found_headlines.next() {
        Some(first_headline) => found_headlines.all(|other| kind(other) == kind(first_headline)),
        None => true,
    };
    if is_one_kind {
        return largest;
    }
    let in_run_headlines: Vec<Option<Headline<'r>>> =
        runs.iter().map(|run| headline_in_run(run, suite)).collect();
    if in_run_headlines.iter().all(Option::is_some) {
        in_run_headlines
    } else {
        largest
    }
}

/// The suites of all runs in order of first appearance; those evaluated within the runs come first.
pub(super) fn suite_names(runs: &[ReportRun]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let results = runs
        .iter()
        .flat_map(|run| run.suites.iter().chain(&run.evaluations));
    for result in results {
        if !names.contains(&result.suite.as_str()) {
            names.push(&result.suite);
        }
    }
    // The loss comes last: every run has one, and it is the least informative.
    names.sort_by_key(|name| *name == SuiteResult::LOSS);
    names
}
