//! Samples of all runs to cards: one prompt, and each run's prediction beside the gold.

use serde::Serialize;

use super::number::{count, estimate};
use super::run::{ReportRun, SampleView};
use super::shortened::{MAX_TEXT, cell, shortened};
use super::words::{Piece, differences};

/// Cards that are shown.
const MAX_SAMPLES: usize = 20;

/// All cards.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Samples {
    cards: Vec<Card>,
    note: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Card {
    suite: String,
    id: String,
    prompt: String,
    prompt_note: Option<String>,
    answers: Vec<Answer>,
}

/// What one run made of the sample.
#[derive(Debug, Clone, Serialize)]
struct Answer {
    run: usize,
    scores: Vec<Score>,
    notes: Vec<String>,
    prediction: Vec<Piece>,
    prediction_note: Option<String>,
    gold: Vec<Piece>,
    gold_note: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Score {
    name: String,
    value: String,
}

/// Cards in the order of the first run's samples, then those that only the second has.
pub(super) fn samples(runs: &[ReportRun]) -> Samples {
    let mut shown: Vec<Vec<(usize, &SampleView)>> = Vec::new();
    for (idx, run) in runs.iter().enumerate() {
        for sample in &run.samples {
            let is_of_this = |others: &&mut Vec<(usize, &SampleView)>| {
                let is_new = others.iter().all(|(run, _)| *run != idx);
                let is_same =
                    |other: &SampleView| (&other.suite, &other.id) == (&sample.suite, &sample.id);
                is_new && others.first().is_some_and(|(_, other)| is_same(other))
            };
            match shown.iter_mut().find(is_of_this) {
                Some(others) => others.push((idx, sample)),
                None => shown.push(vec![(idx, sample)]),
            }
        }
    }
    let n_more = shown.len().saturating_sub(MAX_SAMPLES) as u64;
    Samples {
        cards: shown
            .iter()
            .take(MAX_SAMPLES)
            .filter_map(|of_runs| card(of_runs))
            .collect(),
        note: (n_more > 0).then(|| format!("{} more samples not shown", count(n_more))),
    }
}

fn card(of_runs: &[(usize, &SampleView)]) -> Option<Card> {
    let (_, first) = of_runs.first()?;
    let (prompt, prompt_note) = shortened(&first.prompt, MAX_TEXT);
    Some(Card {
        suite: cell(&first.suite),
        id: cell(&first.id),
        prompt: prompt.to_owned(),
        prompt_note,
        answers: of_runs
            .iter()
            .map(|(run, sample)| answer(*run, sample))
            .collect(),
    })
}

fn answer(run: usize, sample: &SampleView) -> Answer {
    let (prediction, prediction_note) = shortened(&sample.prediction, MAX_TEXT);
    let (gold, gold_note) = shortened(&sample.gold, MAX_TEXT);
    let (prediction, gold) = differences(prediction, gold);
    let score = |score: &super::run::SampleScoreView| Score {
        name: cell(&score.name),
        value: estimate(score.value),
    };
    Answer {
        run,
        scores: sample.scores.iter().map(score).collect(),
        notes: sample.notes.iter().map(|note| cell(note)).collect(),
        prediction,
        prediction_note,
        gold,
        gold_note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ids: std::ops::Range<u32>) -> ReportRun {
        let sample = |id: u32| SampleView {
            suite: "slot".to_owned(),
            id: id.to_string(),
            prediction: "a".repeat(5_000),
            ..SampleView::default()
        };
        ReportRun {
            samples: ids.map(sample).collect(),
            ..ReportRun::default()
        }
    }

    #[test]
    fn two_predictions_of_a_sample_share_a_card_and_the_rest_is_counted() {
        let found = samples(&[run(0..15), run(10..30)]);
        assert_eq!(found.cards.len(), MAX_SAMPLES);
        assert_eq!(found.note.as_deref(), Some("10 more samples not shown"));
        let n_answers: Vec<usize> = found.cards.iter().map(|card| card.answers.len()).collect();
        assert_eq!(n_answers, [[1; 10].as_slice(), &[2; 5], &[1; 5]].concat());
        assert_eq!(found.cards[15].answers[0].run, 1);
        let note = found.cards[0].answers[0].prediction_note.as_deref();
        assert_eq!(note, Some("1,000 more characters not shown"));
    }
}
