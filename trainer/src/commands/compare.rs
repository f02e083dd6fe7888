//! `compare`: the same samples from two evaluations to differences that chance does not explain.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tooltune_data::benchmarks::{PairedOptions, SampleScore, paired_bootstrap};
use tooltune_data::tools::JsonLines;

use super::{say, say_aside};
use crate::cli::CompareArgs;
use crate::error::Error;

/// The file of samples in the folder of an evaluation.
const PREDICTIONS: &str = "predictions.jsonl";

/// Scores of samples by the name of the score.
type Scores = BTreeMap<String, Vec<SampleScore>>;

pub(super) fn run(args: &CompareArgs) -> Result<(), Error> {
    let (before, ids) = scores(&predictions(&args.before, args.suite.as_deref())?)?;
    let (after, other_ids) = scores(&predictions(&args.after, args.suite.as_deref())?)?;
    check_samples(args, &ids, &other_ids)?;
    let mut lines = vec![
        "| score | n | before | after | difference, 95 % | p | better | worse |".to_string(),
        "|---|--:|--:|--:|--:|--:|--:|--:|".to_string(),
    ];
    let mut flips = Vec::new();
    for (name, before) in &before {
        let Some(after) = after.get(name) else {
            continue;
        };
        let (before, after) = common(before, after);
        let found = paired_bootstrap(&before, &after, PairedOptions::default())
            .map_err(|error| Error::Usage(format!("{name}: {error}")))?;
        let difference = found.difference;
        lines.push(format!(
            "| {name} | {} | {:.3} | {:.3} | {:+.3} [{:+.3}, {:+.3}] | {:.4} | {} | {} |",
            found.n,
            found.before,
            found.after,
            difference.value,
            difference.low,
            difference.high,
            found.p,
            found.won.len(),
            found.lost.len(),
        ));
        for (what, samples) in [("better", &found.won), ("worse", &found.lost)] {
            let ids: Vec<&str> = samples.iter().map(|flip| flip.id.as_str()).collect();
            if !ids.is_empty() {
                flips.push(format!("{name}, {what}: {}", shown(&ids, args.show)));
            }
        }
    }
    if lines.len() == 2 {
        return Err(Error::Usage(format!(
            "{} and {} have no score in common; compare evaluations of one suite",
            args.before.display(),
            args.after.display()
        )));
    }
    say(&lines.join("\n"))?;
    if args.show > 0 && !flips.is_empty() {
        say("")?;
        say(&flips.join("\n"))?;
    }
    Ok(())
}

/// Says how many samples have no partner, and refuses evaluations of which none has.
fn check_samples(
    args: &CompareArgs,
    before: &BTreeSet<String>,
    after: &BTreeSet<String>,
) -> Result<(), Error> {
    let n_common = before.intersection(after).count();
    let paths = (args.before.display(), args.after.display());
    match (before.first(), after.first()) {
        (Some(first), Some(other)) if n_common == 0 => Err(Error::Usage(format!(
            "{} and {} have no sample in common, such as {first:?} and {other:?}; compare \
             evaluations on the same rows",
            paths.0, paths.1
        ))),
        _ if n_common < before.len().max(after.len()) => say_aside(&format!(
            "{} samples of {} and {} of {} are not in the other, and are left out",
            before.len() - n_common,
            paths.0,
            after.len() - n_common,
            paths.1
        )),
        _ => Ok(()),
    }
}

fn shown(ids: &[&str], most: usize) -> String {
    let mut text = ids[..ids.len().min(most)].join(", ");
    if ids.len() > most {
        text.push_str(&format!(" and {} more", ids.len() - most));
    }
    text
}

/// A file as it is, or that of the folder of an evaluation or of a checkpoint.
fn predictions(path: &Path, suite: Option<&str>) -> Result<PathBuf, Error> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let of_suite = |suite: &str| path.join(format!("eval.{suite}.{PREDICTIONS}"));
    let candidates = match suite {
        Some(suite) => vec![of_suite(suite)],
        None => vec![path.join(PREDICTIONS), of_suite("slot"), of_suite("goat")],
    };
    candidates
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| {
            Error::Usage(format!(
                "{} holds no {PREDICTIONS}; name the --output of an evaluation, a checkpoint, or \
                 the file",
                path.display()
            ))
        })
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

/// The scores of a file, and the samples that it has.
fn scores(path: &Path) -> Result<(Scores, BTreeSet<String>), Error> {
    let mut scores = Scores::new();
    let mut ids = BTreeSet::new();
    for line in JsonLines::open(path)? {
        let (place, line) = line?;
        let (Some(id), Some(score)) = (line["id"].as_str(), line.get("score")) else {
            return Err(Error::Usage(format!(
                "{place}: no id or no score; each line is {{\"id\": ..., \"score\": {{...}}}}, as \
                 `tooltune eval --output` writes it"
            )));
        };
        if !ids.insert(id.to_owned()) {
            return Err(Error::Usage(format!("{place}: {id:?} has a line already")));
        }
        add(&mut scores, id, "", score);
    }
    Ok((scores, ids))
}

/// Numbers and truths of a score, those of objects in it under joined names.
fn add(scores: &mut Scores, id: &str, name: &str, value: &Value) {
    let number = match value {
        Value::Bool(is) => f64::from(u8::from(*is)),
        Value::Number(number) => number.as_f64().unwrap_or(f64::NAN),
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = match name {
                    "" => field.clone(),
                    name => format!("{name}.{field}"),
                };
                add(scores, id, &name, value);
            }
            return;
        }
        _ => return,
    };
    scores
        .entry(name.to_owned())
        .or_default()
        .push(SampleScore {
            id: id.to_owned(),
            score: number,
        });
}
