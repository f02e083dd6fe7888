//! Tests of the world, the executor and whole data sets.

mod calls;
mod sets;
mod tables;

use std::sync::LazyLock;

use super::*;

/// All splits at their default sizes, generated once for all tests.
static DEFAULT_SETS: LazyLock<Vec<(GoatSplit, Vec<Trajectory>)>> = LazyLock::new(|| {
    let sets = GoatSplit::ALL.map(|split| (split, draw_rows(split, split.default_rows(), 17)));
    sets.into()
});

fn default_set(split: GoatSplit) -> &'static [Trajectory] {
    let sets = DEFAULT_SETS.iter();
    sets.filter(|(row_split, _)| *row_split == split)
        .map(|(_, rows)| rows.as_slice())
        .next()
        .unwrap()
}

fn default_rows() -> impl Iterator<Item = &'static Trajectory> {
    DEFAULT_SETS.iter().flat_map(|(_, rows)| rows)
}

fn draw_rows(split: GoatSplit, rows: usize, seed: u64) -> Vec<Trajectory> {
    generate(&GoatSynthOptions {
        rows,
        ..GoatSynthOptions::new(split, seed)
    })
    .unwrap()
}
