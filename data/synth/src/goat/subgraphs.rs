//! Linked APIs in, all connected sets of a size out, each once.
//!
//! Sets are grown from their smallest member by neighbours that are larger than it and adjoin the
//! set only through its newest member (ESU, Wernicke 2006), so no set is met twice and none has to
//! be remembered.

use std::collections::BTreeSet;

/// Neighbours of each node, whatever the direction of the edges.
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

/// All connected sets of `size` nodes, each sorted, in the order of their smallest members.
pub(super) fn connected_sets(neighbours: &[BTreeSet<usize>], size: usize) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    for root in 0..neighbours.len() {
        let larger = neighbours[root].iter().copied().filter(|n| *n > root);
        grow(
            neighbours,
            size,
            &mut vec![root],
            larger.collect(),
            &mut found,
        );
    }
    found
}

fn grow(
    neighbours: &[BTreeSet<usize>],
    size: usize,
    set: &mut Vec<usize>,
    mut candidates: Vec<usize>,
    found: &mut Vec<Vec<usize>>,
) {
    if set.len() == size {
        let mut sorted = set.clone();
        sorted.sort_unstable();
        found.push(sorted);
        return;
    }
    while let Some(next) = candidates.pop() {
        let known = |node: &usize| {
            set.contains(node) || set.iter().any(|member| neighbours[*member].contains(node))
        };
        let new = neighbours[next].iter().copied();
        let new = new.filter(|node| *node > set[0] && !known(node));
        let extended: Vec<usize> = candidates.iter().copied().chain(new).collect();
        set.push(next);
        grow(neighbours, size, set, extended, found);
        set.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_sets_are_found_once_each() {
        // A square 0-1-2-3 with a tail 3-4, and 5 alone.
        let square = [(0, 1), (2, 1), (2, 3), (0, 3), (3, 4), (4, 3)];
        let neighbours = neighbours(6, square.into_iter());
        for size in 1..=4 {
            let found = connected_sets(&neighbours, size);
            let different: BTreeSet<Vec<usize>> = found.iter().cloned().collect();
            assert_eq!(different.len(), found.len());
            let by_force: BTreeSet<Vec<usize>> = (0_u32..64)
                .map(|bits| (0..6).filter(|i| bits >> i & 1 == 1).collect())
                .filter(|set: &Vec<usize>| set.len() == size && is_connected(&neighbours, set))
                .collect();
            assert_eq!(different, by_force);
        }
    }

    fn is_connected(neighbours: &[BTreeSet<usize>], set: &[usize]) -> bool {
        let mut reached = vec![set[0]];
        while let Some(next) = set.iter().find(|node| {
            !reached.contains(node) && reached.iter().any(|r| neighbours[*r].contains(node))
        }) {
            reached.push(*next);
        }
        reached.len() == set.len()
    }
}
