//! `compare`: tests whether evaluations of the same samples differ significantly, or compares the
//! settings and results of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tooltune_apis::JsonLines;
use tooltune_checkpoints::CheckpointError;
use tooltune_disk::regular_file;
use tooltune_report::compare_runs;
use tooltune_suites::leaf_errors::LeafErrors;
use tooltune_suites::{
    PairedComparison, PairedError, PairedOptions, SampleMeasure, SampleScore, SampleScores,
    compare_pairs,
};

use super::report::{METRIC_FACTS, RunFiles, names};
use super::target::{is_run, run_folder};
use super::{eprint_line, say};
use crate::cli::CompareArgs;
use crate::config::Suite;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::error::Error;
use crate::eval::origin::EvaluationOrigin;
use crate::eval::report_files::{METRICS_FILE, PREDICTIONS_FILE as PREDICTIONS};
use leaf_errors::LeafCounts;
use table::Table;

mod groups;
mod leaf_errors;
mod table;

/// Default number of samples listed for each score.
const N_SHOWN: usize = 10;

/// Samples of an evaluation.
struct Samples {
    /// Name of the evaluation on the command line.
    name: String,
    format: &'static SampleScores,
    ids: BTreeSet<String>,
    /// Scores by measure key, for the samples that have a score.
    scores: BTreeMap<&'static str, Vec<SampleScore>>,
    /// The samples of each group of `--by`.
    groups: BTreeMap<String, BTreeSet<String>>,
    /// The leaf errors of each sample that has them, with the number of its reference leaves.
    leaf_errors: BTreeMap<String, LeafCounts>,
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Error> {
    if let Some(missing) = args.targets.iter().find(|target| !target.exists()) {
        return Err(Error::Usage(format!(
            "{}: no such file or folder; name runs by their folder or config, and evaluations by \
             their --output folder",
            missing.display()
        )));
    }
    let (runs, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.targets.iter().partition(|target| is_run(target));
    match (runs.as_slice(), others.as_slice()) {
        (_, []) => print_runs(args),
        ([], _) => print_evaluations(args),
        ([run, ..], [other, ..]) => Err(Error::Usage(format!(
            "cannot compare the run {} with {}, which is not a run: name only runs, or only \
             evaluations, such as {} or a checkpoint of the run",
            run.display(),
            other.display(),
            run.join("eval/best").display()
        ))),
    }
}

/// Prints the settings that differ between runs, and the results of the runs.
fn print_runs(args: &CompareArgs) -> Result<(), Error> {
    let sample_option = [("--show", args.show.is_some()), ("--by", args.by.is_some())];
    if let Some((option, _)) = sample_option.iter().find(|(_, is_set)| *is_set) {
        return Err(Error::Usage(format!(
            "{option} only applies to evaluations, whose samples are paired; runs are compared by \
             metrics"
        )));
    }
    let folders = args.targets.iter().map(|target| run_folder(target));
    let folders = folders.collect::<Result<Vec<_>, Error>>()?;
    let mut runs = Vec::with_capacity(folders.len());
    for (folder, name) in folders.iter().zip(names(&folders)) {
        let mut run = RunFiles::read(folder, name, &[], &[])?.run;
        if let Some(suite) = args.suite {
            run.suites.retain(|result| result.suite == suite.as_str());
            run.evaluations
                .retain(|result| result.suite == suite.as_str());
        }
        runs.push(run);
    }
    let table = compare_runs(&runs, METRIC_FACTS)?;
    say(table.markdown().trim_end())
}

/// Prints how each evaluation differs from the first.
fn print_evaluations(args: &CompareArgs) -> Result<(), Error> {
    let files = args
        .targets
        .iter()
        .map(|path| predictions(path, args.suite));
    let files = files.collect::<Result<Vec<_>, Error>>()?;
    let mut all = Vec::with_capacity(files.len());
    for (file, name) in files.iter().zip(names(&args.targets)) {
        let samples_read = samples(file, name, args.by.as_deref())?;
        let suite_name = samples_read
            .format
            .suite()
            .map_or(samples_read.format.of, |suite| suite.name);
        if let Some(suite) = args.suite.filter(|suite| suite.as_str() != suite_name) {
            return Err(Error::Usage(format!(
                "{} is an evaluation of the suite {suite_name}, not of {suite}; omit --suite, or name \
                 an evaluation of {suite}",
                file.display()
            )));
        }
        all.push(samples_read);
    }
    let paired: Vec<(&Samples, &PathBuf)> = all.iter().zip(&args.targets).collect();
    let Some((&(before, path), others)) = paired.split_first() else {
        return Ok(());
    };
    for (after, other) in others {
        check_samples((path, before), (other, after))?;
    }
    let afters: Vec<&Samples> = others.iter().map(|(after, _)| *after).collect();
    let mut table = Table::new(before.format, (afters.len() > 1).then_some("evaluation"));
    for measure in before.format.measures {
        for after in &afters {
            let what = table.metric_label(measure, &after.name);
            if let Some((both, comparison)) = compared(measure, before, after, None, &what)? {
                table.add(measure, &after.name, both, comparison);
            }
        }
    }
    if table.is_empty() {
        return Err(Error::Usage(format!(
            "{} and {} have no scores in common; compare evaluations of the same kind",
            path.display(),
            others
                .first()
                .map_or_else(String::new, |(_, other)| other.display().to_string())
        )));
    }
    let mut text = table.text(args.show.unwrap_or(N_SHOWN));
    if args.by.is_some() {
        text.push_str(&format!("\n\n{}", groups::groups_text(before, &afters)?));
    }
    if let Some(kinds) = leaf_errors::kinds_text(before, &afters) {
        text.push_str(&format!("\n\n{kinds}"));
    }
    let origins = origins(&all, &args.targets)?;
    if !origins.is_empty() {
        text.push_str(&format!("\n\n{}", origins.join("\n")));
    }
    say(&text)
}

/// The scores of two evaluations, and their comparison.
type Compared = ([Vec<SampleScore>; 2], PairedComparison);

/// Compares a score of two evaluations over the samples of `group`, or over all samples. `None` if
/// there is nothing to compare; a reason that concerns only this score is printed, except for
/// groups.
fn compared(
    measure: &SampleMeasure,
    before: &Samples,
    after: &Samples,
    group: Option<&BTreeSet<String>>,
    what: &str,
) -> Result<Option<Compared>, Error> {
    let both = before
        .scores
        .get(measure.key)
        .zip(after.scores.get(measure.key));
    let Some((before, after_scores)) = both else {
        return Ok(None);
    };
    let (mut before, mut after_scores) = common_samples(before, after_scores);
    if let Some(group) = group {
        before.retain(|score| group.contains(&score.id));
        after_scores.retain(|score| group.contains(&score.id));
    }
    let explain = |reason: String| match group {
        Some(_) => Ok(()),
        None => eprint_line(&format!("{what}: {reason}")),
    };
    if before.is_empty() {
        explain("no sample has this score in both evaluations".to_owned())?;
        return Ok(None);
    }
    match compare_pairs(&before, &after_scores, PairedOptions::default()) {
        Ok(comparison) => Ok(Some(([before, after_scores], comparison))),
        // Neither evaluation measured this metric.
        Err(PairedError::NothingCounts { .. }) if have_no_weight(&before, &after_scores) => {
            Ok(None)
        }
        Err(PairedError::NothingCounts { set }) => {
            explain(format!("every sample of the {set} evaluation has weight 0"))?;
            Ok(None)
        }
        Err(error) => Err(Error::Usage(format!("{what}: {error}"))),
    }
}

/// Whether all samples of both evaluations have weight 0.
fn have_no_weight(before: &[SampleScore], after: &[SampleScore]) -> bool {
    before.iter().chain(after).all(|score| score.weight == 0.0)
}

/// Describes the origin of each evaluation folder in one line. Warns about evaluations that used
/// different files than the first.
fn origins(all: &[Samples], targets: &[PathBuf]) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let mut first: Option<(&str, EvaluationOrigin)> = None;
    for (samples, target) in all.iter().zip(targets) {
        let path = target.join(METRICS_FILE);
        if !regular_file::is_there(&path).map_err(Error::io(&path, "read"))? {
            continue;
        }
        let text = regular_file::read_text(&path, RUN_FILE_BYTES);
        let text = text.map_err(Error::io(&path, "read"))?;
        let metrics = tooltune_json::from_slice(text.as_bytes());
        let metrics: Value = metrics.map_err(CheckpointError::json(&path))?;
        let Some(origin) = EvaluationOrigin::read(&metrics) else {
            let name = &samples.name;
            lines.push(format!(
                "{name}: unknown origin (written by an earlier version)"
            ));
            continue;
        };
        lines.push(format!("{}: {}", samples.name, origin.line()));
        match &first {
            Some((name, known)) if origin.has_other_rows(known) => eprint_line(&format!(
                "{name} and {} were evaluated on different files, but samples are paired by id; \
                 evaluate both on the same file",
                samples.name
            ))?,
            Some(_) => {}
            None => first = Some((&samples.name, origin)),
        }
    }
    Ok(lines)
}

/// Fails if the suites differ or no sample is in both evaluations. Reports how many samples are in
/// only one of them.
fn check_samples(
    (before_path, before): (&Path, &Samples),
    (after_path, after): (&Path, &Samples),
) -> Result<(), Error> {
    let paths = (before_path.display(), after_path.display());
    if before.format.of != after.format.of {
        return Err(Error::Usage(format!(
            "{} is an evaluation of {}, but {} is an evaluation of {}; compare evaluations of the \
             same suite",
            paths.0, before.format.of, paths.1, after.format.of
        )));
    }
    let (before, after) = (&before.ids, &after.ids);
    let n_common = before.intersection(after).count();
    match (before.first(), after.first()) {
        (Some(first), Some(other)) if n_common == 0 => Err(Error::Usage(format!(
            "{} and {} have no samples in common (their first ids are {first:?} and {other:?}); \
             compare evaluations on the same rows",
            paths.0, paths.1
        ))),
        _ if n_common < before.len().max(after.len()) => eprint_line(&format!(
            "ignored samples that only one evaluation has: {} of {} and {} of {}",
            before.len() - n_common,
            paths.0,
            after.len() - n_common,
            paths.1
        )),
        _ => Ok(()),
    }
}

/// Resolves a path to a predictions file: the file itself, or the file in an evaluation or
/// checkpoint folder.
fn predictions(path: &Path, suite: Option<Suite>) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let suite_path = |suite: &str| path.join(format!("eval.{suite}.{PREDICTIONS}"));
    let own = path.join(PREDICTIONS);
    let exists = |path: &Path| regular_file::is_there(path).map_err(Error::io(path, "read"));
    if exists(&own)? {
        return Ok(own);
    }
    let mut suites = Suite::words();
    suites.retain(|word| suite.is_none_or(|suite| suite.as_str() == *word));
    suites.retain(|word| suite_path(word).exists());
    match suites.as_slice() {
        [suite] => Ok(suite_path(suite)),
        [] => Err(Error::Usage(format!(
            "{} contains no {PREDICTIONS}{}; name the --output of an evaluation, a checkpoint that \
             was evaluated, or the file",
            path.display(),
            suite.map_or_else(String::new, |suite| format!(" of {suite}"))
        ))),
        several => Err(Error::Usage(format!(
            "{} has evaluations by {}; choose one with --suite",
            path.display(),
            several.join(", ")
        ))),
    }
}

/// The samples with a score in both evaluations; some scores are undefined for some samples.
fn common_samples(
    before: &[SampleScore],
    after: &[SampleScore],
) -> (Vec<SampleScore>, Vec<SampleScore>) {
    let ids = |scores: &[SampleScore]| -> BTreeSet<String> {
        scores.iter().map(|score| score.id.clone()).collect()
    };
    let both: BTreeSet<String> = ids(before).intersection(&ids(after)).cloned().collect();
    let in_both = |scores: &[SampleScore]| -> Vec<SampleScore> {
        let common = scores.iter().filter(|score| both.contains(&score.id));
        common.cloned().collect()
    };
    (in_both(before), in_both(after))
}

/// Reads the samples of a file whose lines are all of one suite.
fn samples(path: &Path, name: String, by: Option<&str>) -> Result<Samples, Error> {
    let mut read: Option<Samples> = None;
    for line in JsonLines::open(path)? {
        let (location, line) = line?;
        let recognised =
            SampleScores::for_line(&line).and_then(|format| Some((format, format.id(&line)?)));
        let Some((format, id)) = recognised else {
            let suites: Vec<&str> = SampleScores::all().map(|scores| scores.of).collect();
            return Err(Error::Usage(format!(
                "{location}: the line has no scores of a known suite (expected the format that \
                 `tooltune eval --output` writes for {}); score the predictions first, with \
                 `tooltune eval RUN --predictions FILE --output DIR`",
                suites.join(", ")
            )));
        };
        let samples = read.get_or_insert_with(|| Samples {
            name: name.clone(),
            format,
            ids: BTreeSet::new(),
            scores: BTreeMap::new(),
            groups: BTreeMap::new(),
            leaf_errors: BTreeMap::new(),
        });
        if samples.format.of != format.of {
            return Err(Error::Usage(format!(
                "{location}: a line of {} follows lines of {}; keep only the lines of one evaluation",
                format.of, samples.format.of
            )));
        }
        if !samples.ids.insert(id.to_owned()) {
            return Err(Error::Usage(format!(
                "{location}: duplicate id {id:?}; keep one line per sample"
            )));
        }
        if let Some(key) = by {
            let key = format.group_key(key);
            let key = key.map_err(|error| Error::Usage(error.to_string()))?;
            for group in key.groups_of(&line) {
                samples
                    .groups
                    .entry(group)
                    .or_default()
                    .insert(id.to_owned());
            }
        }
        if let Some(counts) = LeafErrors::counts_in(&line) {
            samples.leaf_errors.insert(id.to_owned(), counts);
        }
        for measure in format.measures {
            if let Some(score) = measure.score(id, &line) {
                samples.scores.entry(measure.key).or_default().push(score);
            }
        }
    }
    read.ok_or_else(|| {
        Error::Usage(format!(
            "{}: no samples to compare; name the predictions of an evaluation",
            path.display()
        ))
    })
}
