//! The five dimensions from which a batch of rows is drawn.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use tooltune_rows::batches::SeededRandom;

/// The table of values, embedded in the program.
pub(super) const TABLE: &str = include_str!("dimensions.toml");

/// The values of each dimension.
///
/// # Source
///
/// SLOT, appendix D.2: 30, 10, 10, 40 and 10 values. The paper names only some of them, so these
/// values are our own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dimensions {
    pub(super) industry_vertical: Vec<String>,
    pub(super) json_complexity: Vec<String>,
    pub(super) text_length: Vec<String>,
    pub(super) genre: Vec<String>,
    pub(super) text_type: Vec<String>,
}

/// The parsed table; a test checks that it is valid.
pub(super) static DIMENSIONS: LazyLock<Dimensions> = LazyLock::new(|| {
    toml::from_str(TABLE).unwrap_or_else(|problem| panic!("dimensions.toml: {problem}"))
});

/// Properties of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Topic of the texts.
    pub industry_vertical: String,
    /// Structure of the schemas.
    pub json_complexity: String,
    /// Length of the texts.
    pub text_length: String,
    /// Genre of the texts.
    pub genre: String,
    /// Form of the texts.
    pub text_type: String,
}

impl Target {
    /// Draws a value of each dimension uniformly.
    pub(super) fn draw(random: &mut SeededRandom) -> Self {
        let mut pick = |values: &[String]| values[random.below(values.len())].clone();
        Self {
            industry_vertical: pick(&DIMENSIONS.industry_vertical),
            json_complexity: pick(&DIMENSIONS.json_complexity),
            text_length: pick(&DIMENSIONS.text_length),
            genre: pick(&DIMENSIONS.genre),
            text_type: pick(&DIMENSIONS.text_type),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_dimensions_have_the_sizes_of_the_paper_and_distinct_values() {
        let dimensions = &*DIMENSIONS;
        for (values, size) in [
            (&dimensions.industry_vertical, 30),
            (&dimensions.json_complexity, 10),
            (&dimensions.text_length, 10),
            (&dimensions.genre, 40),
            (&dimensions.text_type, 10),
        ] {
            assert_eq!(values.len(), size);
            assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), size);
        }
    }
}
