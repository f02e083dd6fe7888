//! Compares two evaluations of the same samples (`compare`), beyond what chance explains.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tooltune_rows::regular_file;
use tooltune_rows::tools::JsonLines;
use tooltune_suites::{
    Flip, PairedComparison, PairedOptions, SampleMeasure, SampleScore, SampleScores,
    paired_bootstrap,
};

use super::{eprint_line, print_line};
use crate::cli::CompareArgs;
use crate::config::Suite;
use crate::error::Error;

/// The file of samples in the folder of an evaluation.
const PREDICTIONS: &str = "predictions.jsonl";

/// The samples of an evaluation.
struct Samples {
    form: &'static SampleScores,
    ids: BTreeSet<String>,
    /// Of the samples that have one, by the name of the measure.
    scores: BTreeMap<&'static str, Vec<SampleScore>>,
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Error> {
    let before = samples(&predictions(&args.before, args.suite)?)?;
    let after = samples(&predictions(&args.after, args.suite)?)?;
    check_samples(args, &before, &after)?;
    let mut lines = vec![
        "| score | n | before | after | difference, 95 % | p | better | worse |".to_string(),
        "|---|--:|--:|--:|--:|--:|--:|--:|".to_string(),
    ];
    let mut flips = Vec::new();
    for measure in before.form.measures {
        let name = measure.key;
        let scores = (before.scores.get(name), after.scores.get(name));
        let (Some(before), Some(after)) = scores else {
            continue;
        };
        let (before, after) = common(before, after);
        if before.is_empty() {
            eprint_line(&format!("{name}: no sample has it in both evaluations"))?;
            continue;
        }
        let found = paired_bootstrap(&before, &after, PairedOptions::default())
            .map_err(|error| Error::Usage(format!("{name}: {error}")))?;
        lines.push(table_line(measure, &found));
        let [better, worse] = better_and_worse(measure, &found);
        for (what, samples) in [("better", better), ("worse", worse)] {
            if !samples.is_empty() {
                flips.push(format!("{name}, {what}: {}", shown(samples, args.show)));
            }
        }
    }
    if lines.len() == 2 {
        return Err(Error::Usage(format!(
            "{} and {} have no score in common; compare evaluations of the same kind",
            args.before.display(),
            args.after.display()
        )));
    }
    print_line(&lines.join("\n"))?;
    if args.show > 0 && !flips.is_empty() {
        print_line("")?;
        print_line(&flips.join("\n"))?;
    }
    Ok(())
}

fn table_line(measure: &SampleMeasure, found: &PairedComparison) -> String {
    let note = if measure.greater_is_better {
        ""
    } else {
        " (less is better)"
    };
    let difference = found.difference;
    let [better, worse] = better_and_worse(measure, found);
    format!(
        "| {}{note} | {} | {:.3} | {:.3} | {:+.3} [{:+.3}, {:+.3}] | {:.4} | {} | {} |",
        measure.key,
        found.n,
        found.before,
        found.after,
        difference.value,
        difference.low,
        difference.high,
        found.p,
        better.len(),
        worse.len(),
    )
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
fn check_samples(args: &CompareArgs, before: &Samples, after: &Samples) -> Result<(), Error> {
    let paths = (args.before.display(), args.after.display());
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
fn samples(path: &Path) -> Result<Samples, Error> {
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
            if let Some(score) = measure.value(&line) {
                let id = id.to_owned();
                let scores = samples.scores.entry(measure.key).or_default();
                scores.push(SampleScore { id, score });
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
