//! Reports texts that the encoder truncates, and texts with equal tokens.

use serde::Serialize;

use super::{EncoderFiles, TextIds};

/// Number of texts listed in a message; the rest are counted.
const NAMED: usize = 3;

/// A text that exceeds the encoder's length limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutText {
    /// File and line, or the name of the document.
    pub place: String,
    /// Length in tokens, including prompt and special tokens.
    pub n_tokens: usize,
}

/// Findings on the queries, or on the documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CutSide {
    /// Number of distinct texts.
    pub n_texts: usize,
    /// Truncated texts.
    pub cut: Vec<CutText>,
    /// Texts with the same token ids as an earlier one: the locations of both.
    pub same: Vec<[String; 2]>,
}

/// Token ids of texts, and their locations.
#[derive(Debug, Clone, Copy)]
pub struct PlacedIds<'a> {
    /// Location of each text.
    pub places: &'a [String],
    /// Token ids of each text.
    pub ids: &'a TextIds,
}

impl CutSide {
    fn new(PlacedIds { places, ids }: PlacedIds<'_>) -> Self {
        let texts = ids.texts.iter().zip(places);
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
                .map(|(i, first)| [places[i].clone(), places[first].clone()])
                .collect(),
        }
    }
}

/// How texts with the same token ids are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// They are merged.
    CountAsOne,
    /// They share a rank, as documents.
    ShareRanks,
}

impl Consequence {
    fn text(self) -> &'static str {
        match self {
            Self::CountAsOne => "they are treated as one",
            Self::ShareRanks => "they share their ranks",
        }
    }
}

/// Findings on all texts of a retriever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutTexts {
    /// Length limit in tokens.
    pub max_seq_length: usize,
    /// Number of positions that the encoder has.
    pub positions: usize,
    /// Findings on queries.
    pub queries: CutSide,
    /// Findings on documents.
    pub documents: CutSide,
}

impl CutTexts {
    /// Compares the texts with their truncated token ids.
    pub fn new(
        files: &EncoderFiles,
        queries: Option<PlacedIds<'_>>,
        documents: Option<PlacedIds<'_>>,
    ) -> Self {
        Self {
            max_seq_length: files.max_seq_length,
            positions: files.config.max_position_embeddings,
            queries: queries.map_or_else(CutSide::default, CutSide::new),
            documents: documents.map_or_else(CutSide::default, CutSide::new),
        }
    }

    /// One line per finding. `consequence` is the treatment of texts with the same ids;
    /// `ShareRanks` does not concern queries, which are omitted then.
    pub fn lines(&self, consequence: Consequence) -> Vec<String> {
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
            let is_told = one == "document" || consequence == Consequence::CountAsOne;
            if !same.is_empty() && is_told {
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
                    consequence.text()
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

/// The first names, and the number of the rest.
fn first_names(names: Vec<String>) -> String {
    let n_more = names.len().saturating_sub(NAMED);
    let mut text = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    if n_more > 0 {
        text.push_str(&format!(" and {n_more} more"));
    }
    text
}
