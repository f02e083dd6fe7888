//! Sums a run up in a few numbers.

use serde::Serialize;
use serde_json::Value;

use super::number::{bytes, count, duration, value};
use super::run::ReportRun;

/// One number of each run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tile {
    label: &'static str,
    /// One for each run that has it.
    figures: Vec<Figure>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Figure {
    run: usize,
    value: String,
    detail: String,
}

/// What a tile shows of a run: the number, and what there is to say of it.
type Reading = fn(&ReportRun) -> Option<(String, String)>;

const READINGS: [(&str, Reading); 7] = [
    ("Best step", best_step),
    ("Selected metric", selected),
    ("Final training loss", final_loss),
    ("Supervised tokens", supervised_tokens),
    ("Pairs", pairs),
    ("Training time", training_time),
    ("Peak memory", peak_memory),
];

/// The tiles that any run has a number for.
pub(super) fn tiles(runs: &[ReportRun]) -> Vec<Tile> {
    let tile = |(label, reading): (&'static str, Reading)| {
        let figure = |(run, of): (usize, &ReportRun)| {
            let (value, detail) = reading(of)?;
            Some(Figure { run, value, detail })
        };
        let figures: Vec<Figure> = runs.iter().enumerate().filter_map(figure).collect();
        (!figures.is_empty()).then_some(Tile { label, figures })
    };
    READINGS.into_iter().filter_map(tile).collect()
}

fn best_step(run: &ReportRun) -> Option<(String, String)> {
    let last = last_of(&run.metrics, "step")?;
    Some(match &run.best {
        Some(best) => (count(best.step), format!("of {} steps", count(last as u64))),
        None => {
            let detail = format!("none selected of {} steps", count(last as u64));
            ("–".to_owned(), detail)
        }
    })
}

fn selected(run: &ReportRun) -> Option<(String, String)> {
    let best = run.best.as_ref()?;
    Some((value(best.value), best.metric.clone()))
}

fn final_loss(run: &ReportRun) -> Option<(String, String)> {
    let of = |key, unit: &str| Some((value(last_of(&run.metrics, key)?), unit.to_owned()));
    of("loss", "nats per token").or_else(|| of("retriever/loss", "nats per pair"))
}

fn supervised_tokens(run: &ReportRun) -> Option<(String, String)> {
    let read = last_count(run, "tokens").map(|read| format!("of {read} read"));
    let details: Vec<String> = [read, epoch(run, "epoch")].into_iter().flatten().collect();
    Some((last_count(run, "trained_tokens")?, details.join(", ")))
}

/// What a retriever alone was trained on.
fn pairs(run: &ReportRun) -> Option<(String, String)> {
    let pairs = last_count(run, "retriever/pairs");
    let pairs = pairs.filter(|_| supervised_tokens(run).is_none());
    Some((pairs?, epoch(run, "retriever/epoch").unwrap_or_default()))
}

fn epoch(run: &ReportRun, key: &str) -> Option<String> {
    last_of(&run.metrics, key).map(|epoch| format!("epoch {}", value(epoch)))
}

fn last_count(run: &ReportRun, key: &str) -> Option<String> {
    last_of(&run.metrics, key).map(|number| count(number as u64))
}

fn training_time(run: &ReportRun) -> Option<(String, String)> {
    let sum = |key: &str| -> f64 {
        let seconds = run.timing.iter().filter_map(|line| line[key].as_f64());
        seconds.sum()
    };
    let seconds = sum("seconds") + sum("retriever_seconds");
    let text = || (duration(seconds), "without evaluations".to_owned());
    (seconds > 0.0).then(text)
}

fn peak_memory(run: &ReportRun) -> Option<(String, String)> {
    let lines = run.timing.iter();
    let most = lines
        .filter_map(|line| line["peak_rss_bytes"].as_u64())
        .max()?;
    Some((bytes(most), "on the host".to_owned()))
}

/// The number under `key` in the last line that has one.
fn last_of(lines: &[Value], key: &str) -> Option<f64> {
    lines.iter().rev().find_map(|line| line[key].as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run::BestCheckpoint;
    use super::*;

    fn shown(run: ReportRun) -> Vec<String> {
        let text = |tile: &Tile| {
            let Figure { value, detail, .. } = &tile.figures[0];
            format!("{}: {value} ({detail})", tile.label)
        };
        tiles(&[run]).iter().map(text).collect()
    }

    #[test]
    fn a_run_is_summed_up_from_its_last_lines_and_its_timing() {
        let run = ReportRun {
            metrics: vec![
                json!({"step": 4, "epoch": 2.0, "loss": 0.6011029, "tokens": 4723,
                       "trained_tokens": 683}),
                json!({"step": 4, "eval/slot.mean": 0.5}),
            ],
            timing: vec![
                json!({"step": 1, "seconds": 50.5, "peak_rss_bytes": 1_181_650_944}),
                json!({"step": 2, "seconds": 50.5, "retriever_seconds": 1.0,
                       "peak_rss_bytes": 5}),
            ],
            best: Some(BestCheckpoint {
                step: 2,
                metric: "slot.mean".to_owned(),
                value: 0.5,
            }),
            ..ReportRun::default()
        };
        assert_eq!(
            shown(run),
            [
                "Best step: 2 (of 4 steps)",
                "Selected metric: 0.5 (slot.mean)",
                "Final training loss: 0.6011 (nats per token)",
                "Supervised tokens: 683 (of 4,723 read, epoch 2)",
                "Training time: 1 min 42 s (without evaluations)",
                "Peak memory: 1.10 GiB (on the host)",
            ]
        );
    }

    #[test]
    fn a_retriever_is_summed_up_in_pairs_and_an_empty_run_not_at_all() {
        let run = ReportRun {
            metrics: vec![
                json!({"step": 6, "retriever/loss": 4.2, "retriever/epoch": 1.0,
                                 "retriever/pairs": 384}),
            ],
            ..ReportRun::default()
        };
        assert_eq!(
            shown(run),
            [
                "Best step: – (none selected of 6 steps)",
                "Final training loss: 4.2 (nats per pair)",
                "Pairs: 384 (epoch 1)",
            ]
        );
        assert!(tiles(&[ReportRun::default()]).is_empty());
    }
}
