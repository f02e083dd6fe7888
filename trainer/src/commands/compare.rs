//! Compares evaluations of the same samples beyond what chance explains, or runs by their settings and
//! what they came to (`compare`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tooltune_report::compare_runs;
use tooltune_rows::regular_file;
use tooltune_rows::tools::JsonLines;
use tooltune_suites::{
    Flip, PairedComparison, PairedError, PairedOptions, SampleMeasure, SampleScore, SampleScores,
    SuiteInfo, metric_words, paired_bootstrap,
};

use super::report::{FoundRun, names};
use super::target::{is_run, run_folder};
use super::{eprint_line, say};
use crate::cli::CompareArgs;
use crate::config::Suite;
use crate::error::Error;

/// The file of samples in the folder of an evaluation.
const PREDICTIONS: &str = "predictions.jsonl";

/// Samples that are named for each score where the command line does not say how many.
const N_SHOWN: usize = 10;

/// The samples of an evaluation.
struct Samples {
    /// What the command line calls it.
    name: String,
    form: &'static SampleScores,
    ids: BTreeSet<String>,
    /// Of the samples that have one, by the key of the measure.
    scores: BTreeMap<&'static str, Vec<SampleScore>>,
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Error> {
    if let Some(missing) = args.targets.iter().find(|target| !target.exists()) {
        return Err(Error::Usage(format!(
            "{}: there is no such file or folder; name runs by their folders or configs, or evaluations \
             by their --output",
            missing.display()
        )));
    }
    let (runs, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.targets.iter().partition(|target| is_run(target));
    match (runs.as_slice(), others.as_slice()) {
        (_, []) => of_runs(args),
        ([], _) => of_evaluations(args),
        ([run, ..], [other, ..]) => Err(Error::Usage(format!(
            "{} is a run and {} is none: name runs alone, or evaluations alone, such as {} or a \
             checkpoint of the run",
            run.display(),
            other.display(),
            run.join("eval/best").display()
        ))),
    }
}

/// Prints the settings in which runs differ and what they came to.
fn of_runs(args: &CompareArgs) -> Result<(), Error> {
    if args.show.is_some() {
        return Err(Error::Usage(
            "--show is for evaluations, whose samples are paired; runs are compared by their metrics"
                .to_owned(),
        ));
    }
    let folders = args.targets.iter().map(|target| run_folder(target));
    let folders = folders.collect::<Result<Vec<_>, Error>>()?;
    let mut runs = Vec::with_capacity(folders.len());
    for (folder, name) in folders.iter().zip(names(&folders)) {
        let mut run = FoundRun::read(folder, name, &[])?.run;
        if let Some(suite) = args.suite {
            run.suites.retain(|result| result.suite == suite.as_str());
            run.evaluations
                .retain(|result| result.suite == suite.as_str());
        }
        runs.push(run);
    }
    let table = compare_runs(&runs, metric_words)?;
    say(table.markdown().trim_end())
}

/// Prints the differences of each evaluation to the first.
fn of_evaluations(args: &CompareArgs) -> Result<(), Error> {
    let files = args
        .targets
        .iter()
        .map(|path| predictions(path, args.suite));
    let files = files.collect::<Result<Vec<_>, Error>>()?;
    let mut all = Vec::with_capacity(files.len());
    for (file, name) in files.iter().zip(names(&args.targets)) {
        all.push(samples(file, name)?);
    }
    let paired: Vec<(&Samples, &PathBuf)> = all.iter().zip(&args.targets).collect();
    let Some((&(before, path), others)) = paired.split_first() else {
        return Ok(());
    };
    for (after, other) in others {
        check_samples((path, before), (other, after))?;
    }
    let afters: Vec<&Samples> = others.iter().map(|(after, _)| *after).collect();
    let mut table = Table::of(before.form, afters.len() > 1);
    for measure in before.form.measures {
        for after in &afters {
            let what = table.named(measure, after);
            let both = before
                .scores
                .get(measure.key)
                .zip(after.scores.get(measure.key));
            let Some((before, after_scores)) = both else {
                continue;
            };
            let (before, after_scores) = common(before, after_scores);
            if before.is_empty() {
                eprint_line(&format!("{what}: no sample has it in both evaluations"))?;
                continue;
            }
            let found = match paired_bootstrap(&before, &after_scores, PairedOptions::default()) {
                Ok(found) => found,
                Err(PairedError::NothingCounts { set }) => {
                    eprint_line(&format!("{what}: no sample of the {set} evaluation counts"))?;
                    continue;
                }
                Err(error) => return Err(Error::Usage(format!("{what}: {error}"))),
            };
            table.add(measure, after, &found, args.show.unwrap_or(N_SHOWN));
        }
    }
    if table.lines.is_empty() {
        return Err(Error::Usage(format!(
            "{} and {} have no score in common; compare evaluations of the same kind",
            path.display(),
            others
                .first()
                .map_or_else(String::new, |(_, other)| other.display().to_string())
        )));
    }
    say(&table.text())
}

/// The lines of a comparison.
struct Table {
    suite: Option<&'static SuiteInfo>,
    /// Whether a line has to say which evaluation it is of.
    has_several: bool,
    lines: Vec<String>,
    flips: Vec<String>,
}

impl Table {
    fn of(form: &SampleScores, has_several: bool) -> Self {
        Self {
            suite: form.suite(),
            has_several,
            lines: Vec::new(),
            flips: Vec::new(),
        }
    }

    /// The one name of the metric that sums a score up.
    fn metric(&self, measure: &SampleMeasure) -> String {
        let of_suite = self.suite.map(|suite| suite.metric(measure.key));
        of_suite.unwrap_or_else(|| measure.key.to_owned())
    }

    fn named(&self, measure: &SampleMeasure, after: &Samples) -> String {
        let metric = self.metric(measure);
        match self.has_several {
            true => format!("{metric}, {}", after.name),
            false => metric,
        }
    }

    fn add(
        &mut self,
        measure: &SampleMeasure,
        after: &Samples,
        found: &PairedComparison,
        most: usize,
    ) {
        let note = if measure.greater_is_better {
            ""
        } else {
            " (less is better)"
        };
        let difference = found.difference;
        let [better, worse] = better_and_worse(measure, found);
        let of = match self.has_several {
            true => format!(" {} |", after.name.replace('|', "\\|")),
            false => String::new(),
        };
        self.lines.push(format!(
            "| {}{note} |{of} {} | {:.3} | {:.3} | {:+.3} [{:+.3}, {:+.3}] | {:.4} | {} | {} |",
            self.metric(measure),
            found.n,
            found.before,
            found.after,
            difference.value,
            difference.low,
            difference.high,
            found.p,
            better.len(),
            worse.len(),
        ));
        let name = self.named(measure, after);
        for (what, samples) in [("better", better), ("worse", worse)] {
            if !samples.is_empty() && most > 0 {
                self.flips
                    .push(format!("{name}, {what}: {}", shown(samples, most)));
            }
        }
    }

    fn text(&self) -> String {
        let (of, rule) = match self.has_several {
            true => (" evaluation |", "---|"),
            false => ("", ""),
        };
        let mut lines = vec![
            format!("| metric |{of} n | before | after | difference, 95 % | p | better | worse |"),
            format!("|---|{rule}--:|--:|--:|--:|--:|--:|--:|"),
        ];
        lines.extend(self.lines.iter().cloned());
        if !self.flips.is_empty() {
            lines.push(String::new());
            lines.extend(self.flips.iter().cloned());
        }
        lines.join("\n")
    }
}

/// The samples that flipped, by the direction of the measure.
fn better_and_worse<'f>(measure: &SampleMeasure, found: &'f PairedComparison) -> [&'f [Flip]; 2] {
    if measure.greater_is_better {
        [&found.won, &found.lost]
    } else {
        [&found.lost, &found.won]
    }
}

/// Refuses evaluations of two suites and those without a sample in common, and says how many
/// samples have no partner.
fn check_samples(
    (before_path, before): (&Path, &Samples),
    (after_path, after): (&Path, &Samples),
) -> Result<(), Error> {
    let paths = (before_path.display(), after_path.display());
    if before.form.of != after.form.of {
        return Err(Error::Usage(format!(
            "{} is an evaluation of {} and {} one of {}; compare evaluations of one suite",
            paths.0, before.form.of, paths.1, after.form.of
        )));
    }
    let (before, after) = (&before.ids, &after.ids);
    let n_common = before.intersection(after).count();
    match (before.first(), after.first()) {
        (Some(first), Some(other)) if n_common == 0 => Err(Error::Usage(format!(
            "{} and {} have no sample in common, such as {first:?} and {other:?}; compare \
             evaluations on the same rows",
            paths.0, paths.1
        ))),
        _ if n_common < before.len().max(after.len()) => eprint_line(&format!(
            "{} samples of {} and {} of {} are not in the other, and are left out",
            before.len() - n_common,
            paths.0,
            after.len() - n_common,
            paths.1
        )),
        _ => Ok(()),
    }
}

/// The first `most` samples by their names; those that are sentences, as queries are, in quotes.
fn shown(samples: &[Flip], most: usize) -> String {
    let name = |flip: &Flip| {
        if flip.id.contains(char::is_whitespace) {
            format!("{:?}", flip.id)
        } else {
            flip.id.clone()
        }
    };
    let names: Vec<String> = samples.iter().take(most).map(name).collect();
    let mut text = names.join(", ");
    if samples.len() > most {
        text.push_str(&format!(" and {} more", samples.len() - most));
    }
    text
}

/// A file as it is, or that of the folder of an evaluation or of a checkpoint.
fn predictions(path: &Path, suite: Option<Suite>) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let of_suite = |suite: &str| path.join(format!("eval.{suite}.{PREDICTIONS}"));
    let own = path.join(PREDICTIONS);
    let is_there = |path: &Path| regular_file::is_there(path).map_err(Error::io(path, "read"));
    if suite.is_none() && is_there(&own)? {
        return Ok(own);
    }
    let mut suites = Suite::words();
    suites.retain(|word| suite.is_none_or(|suite| suite.as_str() == *word));
    suites.retain(|word| of_suite(word).exists());
    match suites.as_slice() {
        [suite] => Ok(of_suite(suite)),
        [] => Err(Error::Usage(format!(
            "{} holds no {PREDICTIONS}{}; name the --output of an evaluation, a checkpoint that \
             was evaluated, or the file",
            path.display(),
            suite.map_or_else(String::new, |suite| format!(" of {suite}"))
        ))),
        several => Err(Error::Usage(format!(
            "{} was evaluated by {}; choose one with --suite",
            path.display(),
            several.join(", ")
        ))),
    }
}

/// The samples that both have a score for: some scores are not defined for every sample.
fn common(before: &[SampleScore], after: &[SampleScore]) -> (Vec<SampleScore>, Vec<SampleScore>) {
    let ids = |scores: &[SampleScore]| -> BTreeSet<String> {
        scores.iter().map(|score| score.id.clone()).collect()
    };
    let both: BTreeSet<String> = ids(before).intersection(&ids(after)).cloned().collect();
    let of_both = |scores: &[SampleScore]| -> Vec<SampleScore> {
        let kept = scores.iter().filter(|score| both.contains(&score.id));
        kept.cloned().collect()
    };
    (of_both(before), of_both(after))
}

/// The samples of a file, which has the lines of one suite.
fn samples(path: &Path, name: String) -> Result<Samples, Error> {
    let mut read: Option<Samples> = None;
    for line in JsonLines::open(path)? {
        let (place, line) = line?;
        let found = SampleScores::of_line(&line).and_then(|form| Some((form, form.id(&line)?)));
        let Some((form, id)) = found else {
            let suites: Vec<&str> = SampleScores::all().map(|scores| scores.of).collect();
            return Err(Error::Usage(format!(
                "{place}: the line has no sample with scores, as `tooltune eval --output` writes \
                 them for {}; score predictions first, with `tooltune eval RUN --predictions FILE \
                 --output DIR`",
                suites.join(", ")
            )));
        };
        let samples = read.get_or_insert_with(|| Samples {
            name: name.clone(),
            form,
            ids: BTreeSet::new(),
            scores: BTreeMap::new(),
        });
        if samples.form.of != form.of {
            return Err(Error::Usage(format!(
                "{place}: a line of {} after lines of {}; keep the lines of one evaluation",
                form.of, samples.form.of
            )));
        }
        if !samples.ids.insert(id.to_owned()) {
            return Err(Error::Usage(format!("{place}: {id:?} has a line already")));
        }
        for measure in form.measures {
            if let Some(score) = measure.score(id, &line) {
                samples.scores.entry(measure.key).or_default().push(score);
            }
        }
    }
    read.ok_or_else(|| {
        Error::Usage(format!(
            "{}: there is no sample to compare; give the predictions of an evaluation",
            path.display()
        ))
    })
}
