//! Enumerates all connected sets of a given size, each once.
//!
//! A set grows from its smallest member by larger neighbours that are adjacent only to the newest
//! member (ESU, Wernicke 2006). No set occurs twice, so no set has to be stored for comparison.

use std::collections::BTreeSet;

/// Neighbours of each node, ignoring the direction of edges.
pub(super) fn neighbours(
    n_nodes: usize,
    edges: impl Iterator<Item = (usize, usize)>,
) -> Vec<BTreeSet<usize>> {
    let mut neighbours = vec![BTreeSet::new(); n_nodes];
    for (from, to) in edges.filter(|(from, to)| from != to) {
        neighbours[from].insert(to);
        neighbours[to].insert(from);
    }
    neighbours
}

/// All connected sets of `size` nodes, each sorted, ordered by their smallest members.
pub(super) fn connected_sets(neighbours: &[BTreeSet<usize>], size: usize) -> Vec<Vec<usize>> {
    let mut sets = Vec::new();
    for root in 0..neighbours.len() {
        let larger = neighbours[root].iter().copied().filter(|n| *n > root);
        grow_sets(
            neighbours,
            size,
            &mut vec![root],
            larger.collect(),
            &mut sets,
        );
    }
    sets
}

fn grow_sets(
    neighbours: &[BTreeSet<usize>],
    size: usize,
    set: &mut Vec<usize>,
    mut candidates: Vec<usize>,
    sets: &mut Vec<Vec<usize>>,
) {
    if set.len() == size {
        let mut sorted = set.clone();
        sorted.sort_unstable();
        sets.push(sorted);
        return;
    }
    while let Some(next_node) = candidates.pop() {
        let is_known = |node: &usize| {
            set.contains(node) || set.iter().any(|member| neighbours[*member].contains(node))
        };
        let new = neighbours[next_node].iter().copied();
        let new = new.filter(|node| *node > set[0] && !is_known(node));
        let extended: Vec<usize> = candidates.iter().copied().chain(new).collect();
        set.push(next_node);
        grow_sets(neighbours, size, set, extended, sets);
        set.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_sets_are_found_once_each() {
        // A square 0-1-2-3 with a tail 3-4, and an isolated node 5.
        let square = [(0, 1), (2, 1), (2, 3), (0, 3), (3, 4), (4, 3)];
        let neighbours = neighbours(6, square.into_iter());
        for size in 1..=4 {
            let sets = connected_sets(&neighbours, size);
            let different: BTreeSet<Vec<usize>> = sets.iter().cloned().collect();
            assert_eq!(different.len(), sets.len());
            let by_force: BTreeSet<Vec<usize>> = (0_u32..64)
                .map(|bits| (0..6).filter(|i| bits >> i & 1 == 1).collect())
                .filter(|set: &Vec<usize>| set.len() == size && is_connected(&neighbours, set))
                .collect();
            assert_eq!(different, by_force);
        }
    }

    fn is_connected(neighbours: &[BTreeSet<usize>], set: &[usize]) -> bool {
        let mut reached = vec![set[0]];
        while let Some(next_node) = set.iter().find(|node| {
            !reached.contains(node) && reached.iter().any(|r| neighbours[*r].contains(node))
        }) {
            reached.push(*next_node);
        }
        reached.len() == set.len()
    }
}
