//! Rows, a seed and a split in, SLOT triples out: a text, a schema, and the JSON that the text
//! states under the schema.
//!
//! A row draws a family, a depth, some of the family's fields and a key style, so that schemas
//! of one family differ from row to row and can only be read, not remembered. Values stand in
//! the text as they stand in the JSON; every row is checked against its schema and its text
//! before it is handed out. The decision to question: families, not rows, are divided between
//! the splits, so that a test measures unseen keys and sentences.

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
pub(super) use values::{chance, pick, sample};

/// Stream base of the rows; other uses of a seed have streams of their own.
const ROW_STREAM: u64 = 0x736C_6F74_0000_0000;

/// Which families rows are drawn from; no family is in two splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// For training.
    Train,
    /// For choosing a checkpoint.
    Dev,
    /// For the final measure.
    Test,
}

/// The form of a text.
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

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSynthOptions {
    /// Number of rows. The rows of a smaller set are the first rows of a larger one.
    pub rows: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// Families to draw from.
    pub split: Split,
}

/// One triple and what it was drawn from; serialises to one line of a JSONL file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SynthRow {
    /// The text to convert.
    pub input_text: String,
    /// The schema, an object type closed at every level.
    pub json_schema: Value,
    /// The JSON that the text states, keys in the schema's order.
    pub gold: Value,
    /// The family's name, such as `ferry crossing`.
    pub family: &'static str,
    /// Nesting depth of `gold`, a flat object being 1.
    pub depth: usize,
    /// The form of `input_text`.
    pub style: Style,
}

/// Generates the rows, one at a time; a pure function of `options`.
pub fn generate(options: &SlotSynthOptions) -> impl Iterator<Item = SynthRow> + use<> {
    let SlotSynthOptions { rows, seed, split } = *options;
    let families = families::of_split(split);
    (0..rows as u64).map(move |row_idx| {
        let stream = ROW_STREAM.wrapping_add(((split as u64) << 40) | row_idx);
        let mut random = SeededRandom::new(seed, stream);
        let draft = draft::draw(&families, &mut random);
        // Only a mistake in the tables or templates can fail here; such a row must not get out.
        if let Err(problem) = check::check(&draft) {
            panic!("row {row_idx} of seed {seed}: {problem}\n{:#?}", draft.row);
        }
        draft.row
    })
}
