//! Counts what a retriever does not read of its texts: none is cut without a word.

use serde::Serialize;

use super::{EncoderFiles, TextIds};

/// Texts that a line names; the others are counted.
const NAMED: usize = 3;

/// A text that is longer than the encoder reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutText {
    /// File and line, or the name of what it describes.
    pub place: String,
    /// Its length, with prompt and special tokens.
    pub n_tokens: usize,
}

/// What became of the queries, or of the documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CutSide {
    /// Distinct texts.
    pub n_texts: usize,
    /// Those that are longer than the encoder reads.
    pub cut: Vec<CutText>,
    /// Those that have the token ids of a text before them: the places of both.
    pub same: Vec<[String; 2]>,
}

/// The token ids of texts, and where the texts stand.
#[derive(Debug, Clone, Copy)]
pub struct PlacedIds<'a> {
    /// Of each text.
    pub places: &'a [String],
    /// Of each text.
    pub ids: &'a TextIds,
}

impl CutSide {
    fn new(PlacedIds { places, ids }: PlacedIds<'_>) -> Self {
        let texts = ids.texts.iter().zip(places);
        let cut = texts.filter(|(ids, _)| ids.is_cut());
        let same = ids.same().into_iter().enumerate();
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

/// What becomes of texts with the same token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// They are one text.
    CountAsOne,
    /// Documents have one rank, which they share.
    ShareRanks,
}

impl Consequence {
    fn text(self) -> &'static str {
        match self {
            Self::CountAsOne => "they count as one",
            Self::ShareRanks => "they share their ranks",
        }
    }
}

/// What the encoder does not read of texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CutTexts {
    /// Tokens at which texts are cut.
    pub max_seq_length: usize,
    /// Tokens that the encoder could read.
    pub positions: usize,
    /// Of queries.
    pub queries: CutSide,
    /// Of documents.
    pub documents: CutSide,
}

impl CutTexts {
    /// Compares texts with what is left of them.
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

    /// A line for each thing to be said; none where every text is whole and has ids of its own.
    /// `consequence` says what becomes of texts with the same ids; in an evaluation nothing does of
    /// queries, which are not named then.
    pub fn lines(&self, consequence: Consequence) -> Vec<String> {
        let mut lines = Vec::new();
        for (one, several, side) in [
            ("query", "queries", &self.queries),
            ("document", "documents", &self.documents),
        ] {
            let CutSide { n_texts, cut, same } = side;
            let length = self.max_seq_length;
            if !cut.is_empty() {
                let named = cut
                    .iter()
                    .map(|text| format!("{} ({} tokens)", text.place, text.n_tokens));
                let help = if length < self.positions {
                    format!("raise retriever.max_seq_length, up to {}", self.positions)
                } else {
                    "the encoder has no more positions".to_owned()
                };
                lines.push(format!(
                    "{} of {} are cut at {length} tokens: {}; {help}, or shorten them",
                    cut.len(),
                    counted(*n_texts, one, several),
                    first(named.collect())
                ));
            }
            let is_told = one == "document" || consequence == Consequence::CountAsOne;
            if !same.is_empty() && is_told {
                let named = same
                    .iter()
                    .map(|[text, before]| format!("{text} and {before}"));
                lines.push(format!(
                    "{} the same tokens as one before: {}; {}",
                    match same.len() {
                        1 => format!("1 {one} has"),
                        n => format!("{n} {several} have"),
                    },
                    first(named.collect()),
                    consequence.text()
                ));
            }
        }
        lines
    }
}

fn counted(n: usize, one: &str, several: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{n} {several}"),
    }
}

/// The first of some names, and how many more there are.
fn first(names: Vec<String>) -> String {
    let n_more = names.len().saturating_sub(NAMED);
    let mut text = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    if n_more > 0 {
        text.push_str(&format!(" and {n_more} more"));
    }
    text
}
