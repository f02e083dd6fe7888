//! Reports texts that the encoder truncates, and texts with equal tokens.

use serde::Serialize;

use super::{EncoderFiles, TextIds};

/// Maximum number of texts listed in a message; the rest are counted.
const MAX_LISTED: usize = 3;

/// A text that exceeds the encoder's length limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutText {
    /// File and line, or the name of the document.
    pub place: String,
    /// Length in tokens, including prompt and special tokens.
    pub n_tokens: usize,
}

/// Truncated and equal texts among the queries, or among the documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CutSide {
    /// Number of distinct texts.
    pub n_texts: usize,
    /// Truncated texts.
    pub cut: Vec<CutText>,
    /// Pairs of texts with the same token IDs: the location of the text and of the earlier one.
    pub same: Vec<[String; 2]>,
}

/// Texts as token IDs, with their locations.
#[derive(Debug, Clone, Copy)]
pub struct LocatedIds<'a> {
    /// Location of each text.
    pub locations: &'a [String],
    /// Token ids of each text.
    pub ids: &'a TextIds,
}

impl CutSide {
    fn new(LocatedIds { locations, ids }: LocatedIds<'_>) -> Self {
        let texts = ids.texts.iter().zip(locations);
        let cut = texts.filter(|(ids, _)| ids.is_cut());
        let same = ids.duplicates().into_iter().enumerate();
        let same = same.filter(|(i, first)| i != first);
        Self {
            n_texts: ids.texts.len(),
            cut: cut
                .map(|(ids, place)| CutText {
                    place: place.clone(),
                    n_tokens: ids.n_uncut,
                })
                .collect(),
            same: same
                .map(|(i, first)| [locations[i].clone(), locations[first].clone()])
                .collect(),
        }
    }
}

/// How texts with equal token IDs are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EqualTexts {
    /// Equal texts are merged.
    Merged,
    /// Equal documents share a rank.
    ShareRanks,
}

impl EqualTexts {
    fn text(self) -> &'static str {
        match self {
            Self::Merged => "they are treated as one",
            Self::ShareRanks => "they share their ranks",
        }
    }
}

/// Truncated and equal texts of a retriever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutTexts {
    /// Length limit in tokens.
    pub max_seq_length: usize,
    /// Number of positions that the encoder has.
    pub positions: usize,
    /// The queries.
    pub queries: CutSide,
    /// The documents.
    pub documents: CutSide,
}

impl CutTexts {
    /// Compares the texts with their truncated token ids.
    pub fn new(
        files: &EncoderFiles,
        queries: Option<LocatedIds<'_>>,
        documents: Option<LocatedIds<'_>>,
    ) -> Self {
        Self {
            max_seq_length: files.max_seq_length,
            positions: files.config.max_position_embeddings,
            queries: queries.map_or_else(CutSide::default, CutSide::new),
            documents: documents.map_or_else(CutSide::default, CutSide::new),
        }
    }

    /// One report line per finding. `effect` tells how equal texts are treated; with `ShareRanks`,
    /// equal queries are not reported.
    pub fn lines(&self, effect: EqualTexts) -> Vec<String> {
        let mut lines = Vec::new();
        for (one, several, side) in [
            ("query", "queries", &self.queries),
            ("document", "documents", &self.documents),
        ] {
            let CutSide { n_texts, cut, same } = side;
            let length = self.max_seq_length;
            if !cut.is_empty() {
                let names = cut
                    .iter()
                    .map(|text| format!("{} ({} tokens)", text.place, text.n_tokens));
                let help = if length < self.positions {
                    format!("raise retriever.max_seq_length, up to {}", self.positions)
                } else {
                    "the encoder has no more positions".to_owned()
                };
                lines.push(format!(
                    "{} of {} are truncated at {length} tokens: {}; {help}, or shorten them",
                    cut.len(),
                    count_text(*n_texts, one, several),
                    first_names(names.collect())
                ));
            }
            let is_reported = one == "document" || effect == EqualTexts::Merged;
            if !same.is_empty() && is_reported {
                let names = same
                    .iter()
                    .map(|[text, before]| format!("{text} and {before}"));
                lines.push(format!(
                    "{} the same tokens as an earlier one: {}; {}",
                    match same.len() {
                        1 => format!("1 {one} has"),
                        n => format!("{n} {several} have"),
                    },
                    first_names(names.collect()),
                    effect.text()
                ));
            }
        }
        lines
    }
}

fn count_text(n: usize, one: &str, several: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{n} {several}"),
    }
}

/// Lists the first names, with the number of the rest.
fn first_names(names: Vec<String>) -> String {
    let n_more = names.len().saturating_sub(MAX_LISTED);
    let mut text = names
        .into_iter()
        .take(MAX_LISTED)
        .collect::<Vec<_>>()
        .join(", ");
    if n_more > 0 {
        text.push_str(&format!(" and {n_more} more"));
    }
    text
}
