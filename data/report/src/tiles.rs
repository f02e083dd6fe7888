//! Sums a run up in a few numbers.

use serde::Serialize;
use serde_json::Value;

use super::headline::{largest, suites};
use super::number::{bytes, count, duration, estimate, value};
use super::results::figures;
use super::run::{ReportRun, SuiteResult};
use super::shortened::cell;

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

const READINGS: [(&str, Reading); 11] = [
    ("Base model", model),
    ("LoRA rank", rank),
    ("Training rows", rows),
    ("Base → best", base_to_best),
    ("Best step", best_step),
    ("Selected by", selected),
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

/// The base model's name, which is the end of its path.
fn model(run: &ReportRun) -> Option<(String, String)> {
    let setting = |path: &str| {
        let value = run.settings.get(path)?.trim_matches('"');
        (!value.is_empty()).then_some(value)
    };
    let language = setting("model.model_name_or_path");
    let path = language.or_else(|| setting("retriever.model_name_or_path"))?;
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    Some((cell(name), cell(path)))
}

fn rank(run: &ReportRun) -> Option<(String, String)> {
    let setting = |path: &str| Some(run.settings.get(path)?.trim_matches('"').to_owned());
    let rank = setting("lora.r").or_else(|| setting("retriever.lora.r"))?;
    let alpha = setting("lora.lora_alpha").or_else(|| setting("retriever.lora.lora_alpha"));
    let alpha = alpha.map_or_else(String::new, |alpha| format!("lora_alpha {alpha}"));
    Some((cell(&rank), cell(&alpha)))
}

fn rows(run: &ReportRun) -> Option<(String, String)> {
    let pairs = last_of(&run.metrics, "retriever/epoch").is_some();
    let of = if pairs { "with the retriever's" } else { "" };
    Some((count(run.n_rows?), of.to_owned()))
}

/// The metric that selected the best checkpoint, else the first, on the largest evaluation.
fn base_to_best(run: &ReportRun) -> Option<(String, String)> {
    let selected = run.best.as_ref().map(|best| best.metric.as_str());
    let all = suites(std::slice::from_ref(run));
    let of_selected = selected.and_then(|metric| metric.split('.').next());
    let suite = all.iter().find(|suite| Some(**suite) == of_selected);
    let headline = largest(run, suite.or(all.first())?)?;
    let best = figures(run, headline.best?).ok()?;
    let named = best.iter().find(|one| Some(one.name.as_str()) == selected);
    let best = named.or(best.first())?;
    let base = headline.base.and_then(|base| figures(run, base).ok());
    let base = base.and_then(|base| base.into_iter().find(|one| one.name == best.name));
    let base = base.map_or_else(|| "–".to_owned(), |base| estimate(base.value));
    let n = headline.n().map(|n| format!(" on {} samples", count(n)));
    let of = match headline.is_evaluation {
        true => headline
            .best
            .map(|one: &SuiteResult| format!(", eval/{}", one.label)),
        false => None,
    };
    let (n, of) = (n.unwrap_or_default(), of.unwrap_or_default());
    let detail = cell(&format!("{}{n}{of}", best.name));
    Some((format!("{base} → {}", estimate(best.value)), detail))
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
                "Selected by: 0.5 (slot.mean)",
                "Final training loss: 0.6011 (nats per token)",
                "Supervised tokens: 683 (of 4,723 read, epoch 2)",
                "Training time: 1 min 42 s (without evaluations)",
                "Peak memory: 1.10 GiB (on the host)",
            ]
        );
    }

    #[test]
    fn a_run_says_its_model_and_what_it_came_to_on_the_largest_evaluation() {
        let result = |label: &str, step: u64, n: u64, mean: f64| SuiteResult {
            suite: "slot".to_owned(),
            label: label.to_owned(),
            step: Some(step),
            metrics: json!({"n": n, "exact_match": {"value": 0.0},
                            "mean": {"value": mean, "low": 0.0, "high": 1.0}}),
        };
        let mut run = ReportRun {
            settings: [
                ("model.model_name_or_path", "\"models/smollm2/\""),
                ("lora.r", "16"),
                ("lora.lora_alpha", "32.0"),
            ]
            .map(|(path, value)| (path.to_owned(), value.to_owned()))
            .into(),
            n_rows: Some(1_200),
            best: Some(BestCheckpoint {
                step: 2,
                metric: "slot.mean".to_owned(),
                value: 0.5,
            }),
            suites: vec![
                result("step 0", 0, 40, 0.125),
                result("step 2, best", 2, 40, 0.5),
            ],
            ..ReportRun::default()
        };
        let said = [
            "Base model: smollm2 (models/smollm2/)",
            "LoRA rank: 16 (lora_alpha 32.0)",
            "Training rows: 1,200 ()",
            "Base → best: 0.125 → 0.500 (slot.mean on 40 samples)",
        ];
        assert_eq!(shown(run.clone())[..4], said);
        run.evaluations = vec![result("base", 0, 100, 0.0), result("best", 2, 100, 0.75)];
        let last = "Base → best: 0.000 → 0.750 (slot.mean on 100 samples, eval/best)";
        assert_eq!(shown(run)[3], last);
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
