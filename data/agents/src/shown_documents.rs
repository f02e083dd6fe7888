//! Selects and orders the documents of a training prompt.

use std::collections::HashSet;

use tooltune_rows::batches::SeededRandom;

/// The gold documents and the highest-ranked others, `n_documents` in total, shuffled.
///
/// A gold document that is missing in the ranking replaces the lowest-ranked other document. Gold
/// documents are never omitted, so more than `n_documents` are shown if there are more gold
/// documents. The order is random: if gold documents always came first, the model would learn
/// positions instead of contents.
pub(super) fn gold_and_distractors(
    gold: &[usize],
    ranking: impl IntoIterator<Item = usize>,
    n_documents: usize,
    random: &mut SeededRandom,
) -> Vec<usize> {
    let mut seen_documents = HashSet::new();
    let mut positions: Vec<usize> = gold
        .iter()
        .copied()
        .filter(|&idx| seen_documents.insert(idx))
        .collect();
    let room = n_documents.saturating_sub(positions.len());
    positions.extend(
        ranking
            .into_iter()
            .filter(|&position| seen_documents.insert(position))
            .take(room),
    );
    random.shuffle(&mut positions);
    positions
}

/// `n` distinct indices below `n_documents`, or all of them, in random order.
pub(super) fn random_ranking(
    n: usize,
    n_documents: usize,
    random: &mut SeededRandom,
) -> Vec<usize> {
    let n = n.min(n_documents);
    let mut chosen = Vec::with_capacity(n);
    let mut seen_positions = HashSet::with_capacity(n);
    while chosen.len() < n {
        let position = random.below(n_documents);
        if seen_positions.insert(position) {
            chosen.push(position);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sort_positions(mut positions: Vec<usize>) -> Vec<usize> {
        positions.sort_unstable();
        positions
    }

    #[test]
    fn missing_gold_replaces_the_lowest_ranked_documents() {
        let mut random = SeededRandom::new(1, 0);
        for (gold, ranking, expected) in [
            (vec![7, 8], vec![1, 2, 3, 4, 5], vec![1, 2, 3, 7, 8]),
            (vec![3], vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5]),
            (vec![5, 9, 5], vec![1, 2, 5, 3, 4], vec![1, 2, 3, 5, 9]),
            (vec![1, 2, 3, 4, 5, 6], vec![9], vec![1, 2, 3, 4, 5, 6]),
            (vec![1], vec![2, 2], vec![1, 2]),
        ] {
            let positions = gold_and_distractors(&gold, ranking, 5, &mut random);
            assert_eq!(sort_positions(positions), expected);
        }
    }

    #[test]
    fn gold_appears_at_every_position_about_equally_often() {
        let mut random = SeededRandom::new(2, 0);
        let mut counts = [0; 5];
        for _ in 0..5_000 {
            let positions = gold_and_distractors(&[0], 1..9, 5, &mut random);
            counts[positions
                .iter()
                .position(|&position| position == 0)
                .unwrap()] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_random_ranking_has_every_position_once() {
        let mut random = SeededRandom::new(3, 0);
        let mut counts = [0; 12];
        for _ in 0..1_000 {
            for position in random_ranking(4, 12, &mut random) {
                counts[position] += 1;
            }
        }
        assert!(
            counts.iter().all(|count| (250..420).contains(count)),
            "{counts:?}"
        );
        assert_eq!(sort_positions(random_ranking(9, 3, &mut random)), [0, 1, 2]);
    }
}
