//! Generates SLOT triples: a text, a schema, and the JSON under that schema that the text states.
//!
//! Each row draws a family, a depth, some of the family's fields and a key style, so that schemas
//! of one family differ from row to row and cannot be memorized. The text contains values exactly
//! as in the JSON; every row is checked against its schema and its text before it is released. The
//! splits divide families, not rows, so that a test measures unseen keys and sentences.

mod check;
mod draft;
mod families;
mod field;
mod render;
mod values;
mod vocabulary;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::batches::SeededRandom;

pub(super) use render::capitalise;
pub use render::contains_token;
pub(super) use values::{happens, pick, sample};

/// First random stream of the rows; other uses of the seed have their own streams.
const ROW_STREAM: u64 = 0x736C_6F74_0000_0000;

/// The families that rows are drawn from; no family is in two splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// For training.
    Train,
    /// For checkpoint selection.
    Dev,
    /// For the final evaluation.
    Test,
}

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// One paragraph.
    Prose,
    /// A title and one line per fact.
    Bullets,
    /// Subject, greeting, paragraph, signature.
    Mail,
    /// Numbered `name=value` lines.
    Log,
    /// Two people, one line per turn.
    Dialogue,
}

impl Style {
    /// All styles; rows draw them with equal probability.
    pub const ALL: [Self; 5] = [
        Self::Prose,
        Self::Bullets,
        Self::Mail,
        Self::Log,
        Self::Dialogue,
    ];
}

/// Options of the generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSynthOptions {
    /// Number of rows. A smaller set is a prefix of a larger one.
    pub rows: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// The split, which determines the families.
    pub split: Split,
}

/// A triple and its metadata; serialises to one line of a JSONL file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SynthRow {
    /// The text to convert.
    pub input_text: String,
    /// The schema: an object, closed at every level.
    pub json_schema: Value,
    /// The JSON that the text states, with keys in schema order.
    pub gold: Value,
    /// The drawn properties of the triple.
    pub metadata: RowMetadata,
}

/// The drawn properties of a row, unused in training.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowMetadata {
    /// Name of the family, such as `ferry crossing`.
    pub family: &'static str,
    /// Nesting depth of `gold`; a flat object has depth 1.
    pub depth: usize,
    /// The style of `input_text`.
    pub style: Style,
}

/// Generates the rows one at a time, depending only on `options`.
pub fn generate(options: &SlotSynthOptions) -> impl Iterator<Item = SynthRow> + use<> {
    let SlotSynthOptions { rows, seed, split } = *options;
    let families = families::families_in_split(split);
    (0..rows as u64).map(move |row_idx| {
        let stream = ROW_STREAM.wrapping_add(((split as u64) << 40) | row_idx);
        let mut random = SeededRandom::new(seed, stream);
        let draft = draft::draw(&families, &mut random);
        // Only a bug in the tables or templates can cause an error here; such a row must not be
        // released.
        if let Err(problem) = check::check(&draft) {
            panic!("row {row_idx} of seed {seed}: {problem}\n{:#?}", draft.row);
        }
        draft.row
    })
}
