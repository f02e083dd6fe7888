//! Lays out samples of all runs on cards: one prompt, and each prediction beside the gold.
//!
//! Suites share the places evenly, and so do the results of a suite, since no score of one can be
//! compared with a score of another.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::number::{count, estimate};
use super::run::{ReportRun, SampleScoreView, SampleView, SuiteResult};
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

/// A sample with what was made of it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Card {
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
    /// Which of the run's results it belongs to, if it says so.
    result: String,
    rank: Option<Score>,
    scores: Vec<Score>,
    notes: Vec<String>,
    /// Whether anything was written; where the loss alone is measured, nothing is.
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

/// The worst samples of every suite, the suites in the order in which they first come. The untrained
/// model ranks none: what it wrote stands beside the rest.
pub(super) fn samples(runs: &[ReportRun]) -> Samples {
    let (shown, mut rankings) = by_sample(runs);
    if rankings.iter().any(|ranking| !ranking.is_base) {
        rankings.retain(|ranking| !ranking.is_base);
    }
    let orders = orders(&rankings);
    let lengths: Vec<usize> = orders.iter().map(Vec::len).collect();
    let chosen = orders.iter().zip(shares(&lengths));
    let chosen = chosen.flat_map(|(order, n)| order.iter().take(n));
    let cards: Vec<Card> = chosen.filter_map(|at| card(shown.get(*at)?)).collect();
    let n_more = (lengths.iter().sum::<usize>() - cards.len()) as u64;
    Samples {
        note: (n_more > 0).then(|| format!("{} more samples not shown", count(n_more))),
        cards,
    }
}

/// Texts that nothing scores, in their order, those of one row together.
pub(super) fn texts(runs: &[ReportRun]) -> Samples {
    let of_run = |run: &ReportRun| ReportRun {
        samples: run.texts.clone(),
        ..ReportRun::default()
    };
    let runs: Vec<ReportRun> = runs.iter().map(of_run).collect();
    let (shown, _) = by_sample(&runs);
    let cards: Vec<Card> = shown
        .iter()
        .take(MAX_SAMPLES)
        .filter_map(|sample| card(sample))
        .collect();
    let n_more = (shown.len() - cards.len()) as u64;
    Samples {
        note: (n_more > 0).then(|| format!("{} more texts not shown", count(n_more))),
        cards,
    }
}

/// The sample that stands for all of a suite: its rank in the last result is the median. Of several
/// such samples it is the shortest; none where no sample has a prediction in every result.
pub(super) fn typical(runs: &[ReportRun], suite: &str, results: &[(usize, &str)]) -> Option<Card> {
    let (shown, _) = by_sample(runs);
    let answered = shown.iter().filter_map(|sample| {
        let of_result = |(run, result): &(usize, &str)| {
            let mut answers = sample.iter().copied();
            answers.find(|(of, one)| of == run && one.suite == suite && one.result == *result)
        };
        let answers: Shown<'_> = results.iter().map(of_result).collect::<Option<_>>()?;
        let rank = answers.last()?.1.rank.as_ref()?.value;
        Some((rank, answers))
    });
    let mut answered: Vec<(f64, Shown<'_>)> = answered.collect();
    answered.sort_by(|one, other| one.0.total_cmp(&other.0));
    let median = answered.get(answered.len() / 2)?.0;
    let length = |answers: &Shown<'_>| -> usize {
        let texts = answers
            .iter()
            .map(|(_, sample)| sample.prompt.len() + sample.gold.len());
        texts.sum()
    };
    let same = answered.iter().filter(|(rank, _)| *rank == median);
    let (_, shortest) = same.min_by_key(|(_, answers)| length(answers))?;
    card(shortest)
}

/// The predictions of one sample, each with its run.
type Shown<'s> = Vec<(usize, &'s SampleView)>;

/// One result's samples of a suite as positions among all, the worst first.
#[derive(Debug)]
struct Ranking<'s> {
    suite: &'s str,
    run: usize,
    result: &'s str,
    is_base: bool,
    places: Vec<usize>,
}

/// All samples in the order in which they first come, and how each result ranks those of its own that
/// are not right.
fn by_sample(runs: &[ReportRun]) -> (Vec<Shown<'_>>, Vec<Ranking<'_>>) {
    let mut shown: Vec<Shown<'_>> = Vec::new();
    let mut rankings: Vec<Ranking<'_>> = Vec::new();
    let mut named: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    let samples = runs.iter().enumerate();
    let samples = samples.flat_map(|(run, of)| of.samples.iter().map(move |sample| (run, sample)));
    for (run, sample) in samples {
        let (suite, result) = (sample.suite.as_str(), sample.result.as_str());
        // An id that comes twice in a result names two samples.
        let has_room = |at: &usize| {
            let mut others = shown.get(*at).into_iter().flatten();
            others.all(|(of, other)| (*of, other.result.as_str()) != (run, result))
        };
        let same = named.entry((suite, &sample.id)).or_default();
        let at = same.iter().copied().find(has_room).unwrap_or_else(|| {
            same.push(shown.len());
            shown.len()
        });
        match shown.get_mut(at) {
            Some(others) => others.push((run, sample)),
            None => shown.push(vec![(run, sample)]),
        }
        let of_this =
            |one: &&mut Ranking<'_>| (one.suite, one.run, one.result) == (suite, run, result);
        let place = (!is_right(sample)).then_some(at);
        match rankings.iter_mut().find(of_this) {
            Some(ranking) => ranking.places.extend(place),
            None => rankings.push(Ranking {
                suite,
                run,
                result,
                is_base: sample.is_base,
                places: place.into_iter().collect(),
            }),
        }
    }
    (shown, rankings)
}

/// Whether a sample has the best rank that there is; of losses none is.
fn is_right(sample: &SampleView) -> bool {
    let rank = sample.rank.as_ref().map_or(0.0, |rank| rank.value);
    sample.suite != SuiteResult::LOSS && rank >= 1.0
}

/// The samples of each suite, each once: the worst of every result, then the next of every result.
fn orders(rankings: &[Ranking<'_>]) -> Vec<Vec<usize>> {
    let mut suites: Vec<(&str, Vec<&[usize]>)> = Vec::new();
    for ranking in rankings {
        match suites.iter_mut().find(|(suite, _)| *suite == ranking.suite) {
            Some((_, results)) => results.push(&ranking.places),
            None => suites.push((ranking.suite, vec![&ranking.places])),
        }
    }
    let order = |(_, results): &(&str, Vec<&[usize]>)| {
        let longest = results.iter().map(|places| places.len()).max();
        let mut seen = HashSet::new();
        let ranks = (0..longest.unwrap_or(0)).flat_map(|rank| {
            let of_rank = results.iter().filter_map(move |places| places.get(rank));
            of_rank.copied()
        });
        ranks.filter(|at| seen.insert(*at)).collect()
    };
    suites.iter().map(order).collect()
}

/// How many cards each suite has: suites with so many samples take turns until all places are taken.
fn shares(lengths: &[usize]) -> Vec<usize> {
    let mut shares = vec![0; lengths.len()];
    let mut n_free = MAX_SAMPLES.min(lengths.iter().sum());
    while n_free > 0 {
        for (share, length) in shares.iter_mut().zip(lengths) {
            if n_free > 0 && *share < *length {
                *share += 1;
                n_free -= 1;
            }
        }
    }
    shares
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
    let has_prediction = sample.suite != SuiteResult::LOSS;
    // Where nothing was written, the gold lacks nothing.
    let written = if has_prediction { prediction } else { gold };
    let (prediction, gold) = differences(written, gold);
    let score = |score: &SampleScoreView| Score {
        name: cell(&score.name),
        value: estimate(score.value),
    };
    Answer {
        run,
        result: cell(&sample.result),
        rank: sample.rank.as_ref().map(score),
        scores: sample.scores.iter().map(score).collect(),
        notes: sample.notes.iter().map(|note| cell(note)).collect(),
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
    fn two_predictions_of_a_sample_share_a_card_and_the_rest_is_counted() {
        let found = samples(&[run(0..15), run(10..30)]);
        assert_eq!(found.cards.len(), MAX_SAMPLES);
        assert_eq!(found.note.as_deref(), Some("10 more samples not shown"));
        // The worst of both runs in turn; the first ranks 10 to 14 last, the second first.
        let ids: Vec<&str> = found.cards.iter().map(|card| card.id.as_str()).collect();
        assert_eq!(ids[..6], ["0", "10", "1", "11", "2", "12"]);
        assert_eq!(ids[18..], ["9", "19"]);
        let n_answers = |card: &Card| (card.id.clone(), card.answers.len());
        let shared = |id: &str| {
            found
                .cards
                .iter()
                .map(n_answers)
                .any(|one| one == (id.into(), 2))
        };
        assert!(["10", "11", "12", "13", "14"].into_iter().all(shared));
        assert!(!shared("0") && !shared("15"));
        assert_eq!(found.cards[1].answers[1].run, 1);
        let note = found.cards[0].answers[0].prediction_note.as_deref();
        assert_eq!(note, Some("1,000 more characters not shown"));
    }

    #[test]
    fn suites_share_the_places_and_results_of_a_run_share_a_card() {
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
        let found = samples(&[run]);
        let cards: Vec<(&str, &str)> = found
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
        let results: Vec<&str> = found.cards[10]
            .answers
            .iter()
            .map(|answer| answer.result.as_str())
            .collect();
        assert_eq!(results, ["", "base"]);
        assert_eq!(shares(&[30, 2, 30]), [9, 2, 9]);
        assert_eq!(shares(&[1, 0]), [1, 0]);
    }

    /// What a result has right is among the worst of no page.
    #[test]
    fn a_sample_that_is_right_is_not_among_the_worst() {
        let mut one = run(0..3);
        for (sample, value) in one.samples.iter_mut().zip([0.5, 1.0, 1.0]) {
            let name = "slot.mean".to_owned();
            sample.rank = Some(SampleScoreView { name, value });
        }
        let found = samples(std::slice::from_ref(&one));
        let ids: Vec<&str> = found.cards.iter().map(|card| card.id.as_str()).collect();
        assert_eq!(ids, ["0"]);
        // A loss of 1 is not.
        one.samples[1].suite = SuiteResult::LOSS.to_owned();
        assert_eq!(samples(&[one]).cards.len(), 2);
    }

    #[test]
    fn an_id_that_comes_twice_in_a_result_has_two_cards() {
        let mut twice = run(0..1);
        twice.samples.extend(run(0..1).samples);
        assert_eq!(samples(&[twice]).cards.len(), 2);
    }
}
