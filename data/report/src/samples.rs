//! Lays out the samples of all runs as cards: one prompt, and each prediction next to the gold
//! answer.
//!
//! The cards are divided evenly among the suites and among the results of a suite, because scores
//! of different suites are not comparable.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::number::{estimate, group_digits};
use super::run::{ReportRun, SampleScoreView, SampleView, SuiteResult};
use super::truncation::{MAX_TEXT, shorten_cell, truncate};
use super::words::{Piece, mark_differences};

/// Maximum number of cards.
const MAX_SAMPLES: usize = 20;

/// The cards of a section.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Samples {
    cards: Vec<Card>,
    note: Option<String>,
}

/// A sample with all of its predictions.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Card {
    suite: String,
    id: String,
    prompt: String,
    prompt_note: Option<String>,
    answers: Vec<Answer>,
}

/// One run's prediction for a sample.
#[derive(Debug, Clone, Serialize)]
struct Answer {
    run: usize,
    /// Label of the run's result, if known.
    result: String,
    rank: Option<Score>,
    scores: Vec<Score>,
    notes: Vec<String>,
    /// Whether there is a prediction; loss-only results have none.
    has_prediction: bool,
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

/// Selects the worst samples of every suite, with suites in order of first appearance. Predictions
/// of the untrained model do not affect the selection; they are shown next to the others.
pub(super) fn samples(runs: &[ReportRun]) -> Samples {
    let (cards_by_sample, mut rankings) = group_by_sample(runs);
    if rankings.iter().any(|ranking| !ranking.is_base) {
        rankings.retain(|ranking| !ranking.is_base);
    }
    let orders = interleave(&rankings);
    let lengths: Vec<usize> = orders.iter().map(Vec::len).collect();
    let card_order = orders.iter().zip(divide_cards(&lengths));
    let card_order = card_order.flat_map(|(order, n)| order.iter().take(n));
    let cards: Vec<Card> = card_order
        .filter_map(|idx| card(cards_by_sample.get(*idx)?))
        .collect();
    let n_more = (lengths.iter().sum::<usize>() - cards.len()) as u64;
    Samples {
        note: (n_more > 0).then(|| format!("{} more samples not shown", group_digits(n_more))),
        cards,
    }
}

/// Generated texts without scores in their original order, grouped by row.
pub(super) fn sample_texts(runs: &[ReportRun]) -> Samples {
    let run_with_texts = |run: &ReportRun| ReportRun {
        samples: run.texts.clone(),
        ..ReportRun::default()
    };
    let runs: Vec<ReportRun> = runs.iter().map(run_with_texts).collect();
    let (cards_by_sample, _) = group_by_sample(&runs);
    let cards: Vec<Card> = cards_by_sample
        .iter()
        .take(MAX_SAMPLES)
        .filter_map(|sample| card(sample))
        .collect();
    let n_more = (cards_by_sample.len() - cards.len()) as u64;
    Samples {
        note: (n_more > 0).then(|| format!("{} more texts not shown", group_digits(n_more))),
        cards,
    }
}

/// Selects a typical sample of a suite: the shortest sample with the median rank in the last
/// result. Returns `None` if no sample has a prediction in every result.
pub(super) fn typical_sample(
    runs: &[ReportRun],
    suite: &str,
    results: &[(usize, &str)],
) -> Option<Card> {
    let (cards_by_sample, _) = group_by_sample(runs);
    let answered_ranks = cards_by_sample.iter().filter_map(|sample| {
        let sample_in_result = |(run, result): &(usize, &str)| {
            let mut sample_answers = sample.iter().copied();
            sample_answers.find(|(answer_run, answer)| {
                answer_run == run && answer.suite == suite && answer.result == *result
            })
        };
        let sample_answers: CardSample<'_> = results
            .iter()
            .map(sample_in_result)
            .collect::<Option<_>>()?;
        let rank = sample_answers.last()?.1.rank.as_ref()?.value;
        Some((rank, sample_answers))
    });
    let mut answered_ranks: Vec<(f64, CardSample<'_>)> = answered_ranks.collect();
    answered_ranks.sort_by(|answer, other| answer.0.total_cmp(&other.0));
    let median = answered_ranks.get(answered_ranks.len() / 2)?.0;
    let length = |sample_answers: &CardSample<'_>| -> usize {
        let texts = sample_answers
            .iter()
            .map(|(_, sample)| sample.prompt.len() + sample.gold.len());
        texts.sum()
    };
    let at_median = answered_ranks.iter().filter(|(rank, _)| *rank == median);
    let (_, shortest) = at_median.min_by_key(|(_, sample_answers)| length(sample_answers))?;
    card(shortest)
}

/// The predictions for one sample, each with its run.
type CardSample<'s> = Vec<(usize, &'s SampleView)>;

/// The samples of one result of a suite, as indices into all samples, worst first.
#[derive(Debug)]
struct Ranking<'s> {
    suite: &'s str,
    run: usize,
    result: &'s str,
    is_base: bool,
    sample_idxs: Vec<usize>,
}

/// All samples in order of first appearance, and for each result the ranking of its samples that
/// are not fully correct.
fn group_by_sample(runs: &[ReportRun]) -> (Vec<CardSample<'_>>, Vec<Ranking<'_>>) {
    let mut groups: Vec<CardSample<'_>> = Vec::new();
    let mut rankings: Vec<Ranking<'_>> = Vec::new();
    let mut by_id: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    let samples = runs.iter().enumerate();
    let samples = samples
        .flat_map(|(run, report_run)| report_run.samples.iter().map(move |sample| (run, sample)));
    for (run, sample) in samples {
        let (suite, result) = (sample.suite.as_str(), sample.result.as_str());
        // If an id occurs twice in a result, there are two samples.
        let has_room = |idx: &usize| {
            let mut other_answers = groups.get(*idx).into_iter().flatten();
            other_answers
                .all(|(report_run, other)| (*report_run, other.result.as_str()) != (run, result))
        };
        let same_id = by_id.entry((suite, &sample.id)).or_default();
        let idx = same_id.iter().copied().find(has_room).unwrap_or_else(|| {
            same_id.push(groups.len());
            groups.len()
        });
        match groups.get_mut(idx) {
            Some(other_answers) => other_answers.push((run, sample)),
            None => groups.push(vec![(run, sample)]),
        }
        let is_same_result = |ranking: &&mut Ranking<'_>| {
            (ranking.suite, ranking.run, ranking.result) == (suite, run, result)
        };
        let wrong_idx = (!is_right(sample)).then_some(idx);
        match rankings.iter_mut().find(is_same_result) {
            Some(ranking) => ranking.sample_idxs.extend(wrong_idx),
            None => rankings.push(Ranking {
                suite,
                run,
                result,
                is_base: sample.is_base,
                sample_idxs: wrong_idx.into_iter().collect(),
            }),
        }
    }
    (groups, rankings)
}

/// Whether a sample has the best possible rank. Losses have no best rank.
fn is_right(sample: &SampleView) -> bool {
    let rank = sample.rank.as_ref().map_or(0.0, |rank| rank.value);
    sample.suite != SuiteResult::LOSS && rank >= 1.0
}

/// The samples of each suite without repeats: the worst sample of every result, then the second
/// worst of every result, and so on.
fn interleave(rankings: &[Ranking<'_>]) -> Vec<Vec<usize>> {
    let mut suites: Vec<(&str, Vec<&[usize]>)> = Vec::new();
    for ranking in rankings {
        match suites.iter_mut().find(|(suite, _)| *suite == ranking.suite) {
            Some((_, results)) => results.push(&ranking.sample_idxs),
            None => suites.push((ranking.suite, vec![&ranking.sample_idxs])),
        }
    }
    let order = |(_, results): &(&str, Vec<&[usize]>)| {
        let longest = results.iter().map(|idxs| idxs.len()).max();
        let mut seen_samples = HashSet::new();
        let ranks = (0..longest.unwrap_or(0)).flat_map(|rank| {
            let samples_of_rank = results.iter().filter_map(move |idxs| idxs.get(rank));
            samples_of_rank.copied()
        });
        ranks.filter(|idx| seen_samples.insert(*idx)).collect()
    };
    suites.iter().map(order).collect()
}

/// Number of cards per suite. Suites that still have samples take turns until all cards are
/// assigned.
fn divide_cards(lengths: &[usize]) -> Vec<usize> {
    let mut n_by_suite = vec![0; lengths.len()];
    let mut n_unassigned = MAX_SAMPLES.min(lengths.iter().sum());
    while n_unassigned > 0 {
        for (n_cards, length) in n_by_suite.iter_mut().zip(lengths) {
            if n_unassigned > 0 && *n_cards < *length {
                *n_cards += 1;
                n_unassigned -= 1;
            }
        }
    }
    n_by_suite
}

fn card(samples_by_run: &[(usize, &SampleView)]) -> Option<Card> {
    let (_, first_sample) = samples_by_run.first()?;
    let (prompt, prompt_note) = truncate(&first_sample.prompt, MAX_TEXT);
    Some(Card {
        suite: shorten_cell(&first_sample.suite),
        id: shorten_cell(&first_sample.id),
        prompt: prompt.to_owned(),
        prompt_note,
        answers: samples_by_run
            .iter()
            .map(|(run, sample)| answer(*run, sample))
            .collect(),
    })
}

fn answer(run: usize, sample: &SampleView) -> Answer {
    let (prediction, prediction_note) = truncate(&sample.prediction, MAX_TEXT);
    let (gold, gold_note) = truncate(&sample.gold, MAX_TEXT);
    let has_prediction = sample.suite != SuiteResult::LOSS;
    // Without a prediction, nothing in the gold answer is marked.
    let written_text = if has_prediction { prediction } else { gold };
    let (prediction, gold) = mark_differences(written_text, gold);
    let score = |score: &SampleScoreView| Score {
        name: shorten_cell(&score.name),
        value: estimate(score.value),
    };
    Answer {
        run,
        result: shorten_cell(&sample.result),
        rank: sample.rank.as_ref().map(score),
        scores: sample.scores.iter().map(score).collect(),
        notes: sample.notes.iter().map(|note| shorten_cell(note)).collect(),
        has_prediction,
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
    fn predictions_for_a_sample_share_a_card_and_omitted_samples_are_counted() {
        let page_samples = samples(&[run(0..15), run(10..30)]);
        assert_eq!(page_samples.cards.len(), MAX_SAMPLES);
        assert_eq!(
            page_samples.note.as_deref(),
            Some("10 more samples not shown")
        );
        // The worst samples of both runs alternate. The first run ranks 10 to 14 last; the second
        // run ranks them first.
        let ids: Vec<&str> = page_samples
            .cards
            .iter()
            .map(|card| card.id.as_str())
            .collect();
        assert_eq!(ids[..6], ["0", "10", "1", "11", "2", "12"]);
        assert_eq!(ids[18..], ["9", "19"]);
        let n_answers = |card: &Card| (card.id.clone(), card.answers.len());
        let shared = |id: &str| {
            page_samples
                .cards
                .iter()
                .map(n_answers)
                .any(|omitted| omitted == (id.into(), 2))
        };
        assert!(["10", "11", "12", "13", "14"].into_iter().all(shared));
        assert!(!shared("0") && !shared("15"));
        assert_eq!(page_samples.cards[1].answers[1].run, 1);
        let note = page_samples.cards[0].answers[0].prediction_note.as_deref();
        assert_eq!(note, Some("1,000 more characters not shown"));
    }

    #[test]
    fn suites_divide_the_cards_and_results_of_a_run_share_a_card() {
        let mut run = run(0..30);
        for (n, suite) in [(2, "goat"), (30, "nestful")] {
            run.samples.extend((0..n).map(|id| SampleView {
                suite: suite.to_owned(),
                id: id.to_string(),
                ..SampleView::default()
            }));
        }
        run.samples.push(SampleView {
            suite: "goat".to_owned(),
            result: "base".to_owned(),
            id: "1".to_owned(),
            ..SampleView::default()
        });
        let page_samples = samples(&[run]);
        let cards: Vec<(&str, &str)> = page_samples
            .cards
            .iter()
            .map(|card| (card.suite.as_str(), card.id.as_str()))
            .collect();
        assert_eq!(cards.len(), MAX_SAMPLES);
        assert_eq!(
            cards[8..12],
            [
                ("slot", "8"),
                ("goat", "0"),
                ("goat", "1"),
                ("nestful", "0")
            ]
        );
        let results: Vec<&str> = page_samples.cards[10]
            .answers
            .iter()
            .map(|answer| answer.result.as_str())
            .collect();
        assert_eq!(results, ["", "base"]);
        assert_eq!(divide_cards(&[30, 2, 30]), [9, 2, 9]);
        assert_eq!(divide_cards(&[1, 0]), [1, 0]);
    }

    /// A fully correct sample is never among the worst.
    #[test]
    fn a_right_sample_is_not_among_the_worst() {
        let mut three_samples = run(0..3);
        for (sample, value) in three_samples.samples.iter_mut().zip([0.5, 1.0, 1.0]) {
            let name = "slot.mean".to_owned();
            sample.rank = Some(SampleScoreView { name, value });
        }
        let page_samples = samples(std::slice::from_ref(&three_samples));
        let ids: Vec<&str> = page_samples
            .cards
            .iter()
            .map(|card| card.id.as_str())
            .collect();
        assert_eq!(ids, ["0"]);
        // A loss of 1 does not mean that a sample is correct.
        three_samples.samples[1].suite = SuiteResult::LOSS.to_owned();
        assert_eq!(samples(&[three_samples]).cards.len(), 2);
    }

    #[test]
    fn a_repeated_id_has_two_cards() {
        let mut repeated = run(0..1);
        repeated.samples.extend(run(0..1).samples);
        assert_eq!(samples(&[repeated]).cards.len(), 2);
    }
}
