//! Which documents a training prompt shows, and in which order.

use std::collections::HashSet;

use tooltune_rows::batches::SeededRandom;

/// The gold documents and the highest-ranked others, `n_documents` in all, shuffled.
///
/// A gold document that the ranking lacks takes the place of the lowest ranked other. More than
/// `n_documents` are shown only where more are gold: none of those is ever left out. The order is
/// random, because gold documents in front would teach places instead of contents.
pub(super) fn beside_gold(
    gold: &[usize],
    ranking: impl IntoIterator<Item = usize>,
    n_documents: usize,
    random: &mut SeededRandom,
) -> Vec<usize> {
    let mut seen = HashSet::new();
    let mut shown: Vec<usize> = gold.iter().copied().filter(|&at| seen.insert(at)).collect();
    let room = n_documents.saturating_sub(shown.len());
    shown.extend(
        ranking
            .into_iter()
            .filter(|&position| seen.insert(position))
            .take(room),
    );
    random.shuffle(&mut shown);
    shown
}

/// `n` different positions below `n_documents`, or all of them, in random order.
pub(super) fn random_ranking(
    n: usize,
    n_documents: usize,
    random: &mut SeededRandom,
) -> Vec<usize> {
    let n = n.min(n_documents);
    let mut chosen = Vec::with_capacity(n);
    let mut seen = HashSet::with_capacity(n);
    while chosen.len() < n {
        let position = random.below(n_documents);
        if seen.insert(position) {
            chosen.push(position);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut positions: Vec<usize>) -> Vec<usize> {
        positions.sort_unstable();
        positions
    }

    #[test]
    fn missing_gold_takes_the_place_of_the_lowest_ranked() {
        let mut random = SeededRandom::new(1, 0);
        for (gold, ranking, expected) in [
            (vec![7, 8], vec![1, 2, 3, 4, 5], vec![1, 2, 3, 7, 8]),
            (vec![3], vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5]),
            (vec![5, 9, 5], vec![1, 2, 5, 3, 4], vec![1, 2, 3, 5, 9]),
            (vec![1, 2, 3, 4, 5, 6], vec![9], vec![1, 2, 3, 4, 5, 6]),
            (vec![1], vec![2, 2], vec![1, 2]),
        ] {
            let shown = beside_gold(&gold, ranking, 5, &mut random);
            assert_eq!(sorted(shown), expected);
        }
    }

    #[test]
    fn gold_stands_at_every_place_about_equally_often() {
        let mut random = SeededRandom::new(2, 0);
        let mut counts = [0; 5];
        for _ in 0..5_000 {
            let shown = beside_gold(&[0], 1..9, 5, &mut random);
            counts[shown.iter().position(|&at| at == 0).unwrap()] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_random_ranking_repeats_nothing_and_reaches_everything() {
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
        assert_eq!(sorted(random_ranking(9, 3, &mut random)), [0, 1, 2]);
    }
}
