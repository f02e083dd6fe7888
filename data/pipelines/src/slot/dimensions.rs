//! The five dimensions that a batch of rows is drawn from.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use tooltune_rows::batches::SeededRandom;

/// The table of values, which is part of the program.
pub(super) const TABLE: &str = include_str!("dimensions.toml");

/// The values of each dimension.
///
/// # Source
///
/// SLOT, appendix D.2: 30, 10, 10, 40 and 10 values, of which it names some; these are our own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dimensions {
    pub(super) industry_vertical: Vec<String>,
    pub(super) json_complexity: Vec<String>,
    pub(super) text_length: Vec<String>,
    pub(super) genre: Vec<String>,
    pub(super) text_type: Vec<String>,
}

/// The table, which a test has parsed.
pub(super) static DIMENSIONS: LazyLock<Dimensions> = LazyLock::new(|| {
    toml::from_str(TABLE).unwrap_or_else(|problem| panic!("dimensions.toml: {problem}"))
});

/// What a batch is to be like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// What its texts are about.
    pub industry_vertical: String,
    /// How its schemas are built.
    pub json_complexity: String,
    /// How long its texts are.
    pub text_length: String,
    /// What kind of writing they are.
    pub genre: String,
    /// What they look like.
    pub text_type: String,
}

impl Target {
    /// Draws a value of each dimension, each as likely as the others.
    pub(super) fn draw(random: &mut SeededRandom) -> Self {
        let mut one = |values: &[String]| values[random.below(values.len())].clone();
        Self {
            industry_vertical: one(&DIMENSIONS.industry_vertical),
            json_complexity: one(&DIMENSIONS.json_complexity),
            text_length: one(&DIMENSIONS.text_length),
            genre: one(&DIMENSIONS.genre),
            text_type: one(&DIMENSIONS.text_type),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_dimensions_have_the_sizes_of_the_paper_and_no_value_twice() {
        let all = &*DIMENSIONS;
        for (values, size) in [
            (&all.industry_vertical, 30),
            (&all.json_complexity, 10),
            (&all.text_length, 10),
            (&all.genre, 40),
            (&all.text_type, 10),
        ] {
            assert_eq!(values.len(), size);
            assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), size);
        }
    }
}
