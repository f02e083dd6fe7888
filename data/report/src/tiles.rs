//! Summarizes a run in a few numbers.

use serde::Serialize;
use serde_json::Value;

use super::headline::{largest_headline, suite_names};
use super::number::{bytes, duration, estimate, format_number, group_digits};
use super::results::figures;
use super::run::{ReportRun, SuiteResult};
use super::truncation::shorten_cell;

/// One summary number of each run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tile {
    label: &'static str,
    /// Whether the values are names, which may wrap between their parts.
    is_name: bool,
    /// Whether a value needs the width of two tiles.
    is_wide: bool,
    /// One figure per run that has a value.
    figures: Vec<Figure>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Figure {
    run: usize,
    value: String,
    detail: String,
}

/// Returns a run's value and its detail text, if the run has one.
type TileReader = fn(&ReportRun) -> Option<(String, String)>;

const TILES: [(&str, TileReader); 11] = [
    ("Base model", model),
    ("LoRA rank", lora_rank),
    ("Training rows", rows),
    ("Base → best", base_to_best),
    ("Best step", best_step),
    ("Selected by", best_metric),
    ("Final training loss", final_loss),
    ("Supervised tokens", supervised_tokens),
    ("Pairs", pairs),
    ("Training time", training_time),
    ("Peak memory", peak_memory),
];

/// Tiles whose values are names.
const NAMES: [&str; 2] = ["Base model", "Selected by"];

/// Number of characters that fit into one tile.
const TILE_CHARS: usize = 10;

/// The tiles for which at least one run has a value.
pub(super) fn tiles(runs: &[ReportRun]) -> Vec<Tile> {
    let tile = |(label, reading): (&'static str, TileReader)| {
        let figure = |(run, report_run): (usize, &ReportRun)| {
            let (value, detail) = reading(report_run)?;
            Some(Figure { run, value, detail })
        };
        let figures: Vec<Figure> = runs.iter().enumerate().filter_map(figure).collect();
        let longest = figures
            .iter()
            .map(|figure| figure.value.chars().count())
            .max()?;
        Some(Tile {
            label,
            is_name: NAMES.contains(&label),
            is_wide: longest > TILE_CHARS,
            figures,
        })
    };
    TILES.into_iter().filter_map(tile).collect()
}

/// The base model's name: the last component of its path.
fn model(run: &ReportRun) -> Option<(String, String)> {
    let setting = |path: &str| {
        let value = run.settings.get(path)?.trim_matches('"');
        (!value.is_empty()).then_some(value)
    };
    let language = setting("model.model_name_or_path");
    let path = language.or_else(|| setting("retriever.model_name_or_path"))?;
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    Some((shorten_cell(name), shorten_cell(path)))
}

fn lora_rank(run: &ReportRun) -> Option<(String, String)> {
    let setting = |path: &str| Some(run.settings.get(path)?.trim_matches('"').to_owned());
    let rank = setting("lora.r").or_else(|| setting("retriever.lora.r"))?;
    let alpha = setting("lora.lora_alpha").or_else(|| setting("retriever.lora.lora_alpha"));
    let alpha = alpha.map_or_else(String::new, |alpha| format!("lora_alpha {alpha}"));
    Some((shorten_cell(&rank), shorten_cell(&alpha)))
}

fn rows(run: &ReportRun) -> Option<(String, String)> {
    let pairs = last_of(&run.metrics, "retriever/epoch").is_some();
    let source_rows = if pairs {
        "including the retriever's rows"
    } else {
        ""
    };
    Some((group_digits(run.n_rows?), source_rows.to_owned()))
}

/// The metric that selected the best checkpoint (otherwise the first metric) in the largest
/// evaluation.
fn base_to_best(run: &ReportRun) -> Option<(String, String)> {
    let selected = run.best.as_ref().map(|best| best.metric.as_str());
    let all_suites = suite_names(std::slice::from_ref(run));
    let selected_suite = selected.and_then(|metric| metric.split('.').next());
    let suite = all_suites
        .iter()
        .find(|suite| Some(**suite) == selected_suite);
    let headline = largest_headline(run, suite.or(all_suites.first())?)?;
    let best = figures(run, headline.best?).ok()?;
    let selected_metric = best
        .iter()
        .find(|measure| Some(measure.name.as_str()) == selected);
    let best = selected_metric.or(best.first())?;
    let base = headline.base.and_then(|base| figures(run, base).ok());
    let base = base.and_then(|base| base.into_iter().find(|measure| measure.name == best.name));
    let base = base.map_or_else(|| "–".to_owned(), |base| estimate(base.value));
    let n = headline
        .n_samples()
        .map(|n| format!(" on {} samples", group_digits(n)));
    let evaluation_note = match headline.is_evaluation {
        true => headline
            .best
            .map(|measure: &SuiteResult| format!(", eval/{}", measure.label)),
        false => None,
    };
    let (n, evaluation_note) = (n.unwrap_or_default(), evaluation_note.unwrap_or_default());
    let detail = shorten_cell(&format!("{}{n}{evaluation_note}", best.name));
    Some((format!("{base} → {}", estimate(best.value)), detail))
}

fn best_step(run: &ReportRun) -> Option<(String, String)> {
    let n_steps = n_steps(run)?;
    Some(match &run.best {
        Some(best) => (
            group_digits(best.step),
            format!("of {} steps", group_digits(n_steps)),
        ),
        None => {
            let detail = format!("none selected in {} steps", group_digits(n_steps));
            ("–".to_owned(), detail)
        }
    })
}

/// Number of optimizer steps. `metrics.jsonl` has a line only every `train.logging_steps` steps, so
/// a short run may have no line after step 0.
fn n_steps(run: &ReportRun) -> Option<u64> {
    let lines = run.metrics.iter().chain(&run.timing);
    let logged = lines.filter_map(|line| line["step"].as_u64());
    let evaluated = run.suites.iter().filter_map(|result| result.step);
    let selected = run.best.as_ref().map(|best| best.step);
    logged.chain(evaluated).chain(selected).max()
}

fn best_metric(run: &ReportRun) -> Option<(String, String)> {
    let best = run.best.as_ref()?;
    let detail = format!(
        "{} at step {}",
        format_number(best.value),
        group_digits(best.step)
    );
    Some((shorten_cell(&best.metric), detail))
}

fn final_loss(run: &ReportRun) -> Option<(String, String)> {
    let last_value =
        |key, unit: &str| Some((format_number(last_of(&run.metrics, key)?), unit.to_owned()));
    last_value("loss", "nats per token").or_else(|| last_value("retriever/loss", "nats per pair"))
}

fn supervised_tokens(run: &ReportRun) -> Option<(String, String)> {
    let processed = last_count(run, "tokens").map(|processed| format!("of {processed} processed"));
    let details: Vec<String> = [processed, epoch(run, "epoch")]
        .into_iter()
        .flatten()
        .collect();
    Some((last_count(run, "trained_tokens")?, details.join(", ")))
}

/// Number of training pairs of a run that trains only a retriever.
fn pairs(run: &ReportRun) -> Option<(String, String)> {
    let pairs = last_count(run, "retriever/pairs");
    let pairs = pairs.filter(|_| supervised_tokens(run).is_none());
    Some((pairs?, epoch(run, "retriever/epoch").unwrap_or_default()))
}

fn epoch(run: &ReportRun, key: &str) -> Option<String> {
    last_of(&run.metrics, key).map(|epoch| format!("epoch {}", format_number(epoch)))
}

fn last_count(run: &ReportRun, key: &str) -> Option<String> {
    last_of(&run.metrics, key).map(|number| group_digits(number as u64))
}

fn training_time(run: &ReportRun) -> Option<(String, String)> {
    let sum = |key: &str| -> f64 {
        let seconds = run.timing.iter().filter_map(|line| line[key].as_f64());
        seconds.sum()
    };
    let seconds = sum("seconds") + sum("retriever_seconds");
    let text = || (duration(seconds), "excluding evaluations".to_owned());
    (seconds > 0.0).then(text)
}

fn peak_memory(run: &ReportRun) -> Option<(String, String)> {
    let lines = run.timing.iter();
    let max_bytes = lines
        .filter_map(|line| line["peak_rss_bytes"].as_u64())
        .max()?;
    Some((bytes(max_bytes), "host memory".to_owned()))
}

/// The number with this key in the last line that has one.
fn last_of(lines: &[Value], key: &str) -> Option<f64> {
    lines.iter().rev().find_map(|line| line[key].as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run::BestCheckpoint;
    use super::*;

    fn tile_texts(run: ReportRun) -> Vec<String> {
        let text = |tile: &Tile| {
            let Figure { value, detail, .. } = &tile.figures[0];
            format!("{}: {value} ({detail})", tile.label)
        };
        tiles(&[run]).iter().map(text).collect()
    }

    #[test]
    fn tiles_use_the_last_metrics_and_the_timing() {
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
            tile_texts(run),
            [
                "Best step: 2 (of 4 steps)",
                "Selected by: slot.mean (0.5 at step 2)",
                "Final training loss: 0.6011 (nats per token)",
                "Supervised tokens: 683 (of 4,723 processed, epoch 2)",
                "Training time: 1 min 42 s (excluding evaluations)",
                "Peak memory: 1.10 GiB (host memory)",
            ]
        );
    }

    #[test]
    fn tiles_show_the_model_and_the_largest_evaluation() {
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
        let expected = [
            "Base model: smollm2 (models/smollm2/)",
            "LoRA rank: 16 (lora_alpha 32.0)",
            "Training rows: 1,200 ()",
            "Base → best: 0.125 → 0.500 (slot.mean on 40 samples)",
        ];
        assert_eq!(tile_texts(run.clone())[..4], expected);
        run.evaluations = vec![result("base", 0, 100, 0.0), result("best", 2, 100, 0.75)];
        let last = "Base → best: 0.000 → 0.750 (slot.mean on 100 samples, eval/best)";
        assert_eq!(tile_texts(run)[3], last);
    }

    #[test]
    fn steps_are_counted_without_lines_of_metrics() {
        let mut run = ReportRun {
            metrics: vec![json!({"step": 0, "eval/loss": 2.5})],
            timing: vec![
                json!({"step": 1, "seconds": 1.0}),
                json!({"step": 2, "seconds": 1.0}),
            ],
            best: Some(BestCheckpoint {
                step: 0,
                metric: "loss".to_owned(),
                value: 2.5,
            }),
            ..ReportRun::default()
        };
        assert_eq!(tile_texts(run.clone())[0], "Best step: 0 (of 2 steps)");
        run.timing.clear();
        run.best.as_mut().expect("a best step").step = 2;
        assert_eq!(tile_texts(run)[0], "Best step: 2 (of 2 steps)");
    }

    #[test]
    fn a_retriever_has_pairs_and_an_empty_run_has_no_tiles() {
        let run = ReportRun {
            metrics: vec![
                json!({"step": 6, "retriever/loss": 4.2, "retriever/epoch": 1.0,
                                 "retriever/pairs": 384}),
            ],
            ..ReportRun::default()
        };
        assert_eq!(
            tile_texts(run),
            [
                "Best step: – (none selected in 6 steps)",
                "Final training loss: 4.2 (nats per pair)",
                "Pairs: 384 (epoch 1)",
            ]
        );
        assert!(tiles(&[ReportRun::default()]).is_empty());
    }
}
