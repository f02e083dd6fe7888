//! Chooses what is shown of the tokens of training rows, with their weights.

use serde::Serialize;

use super::number::{count, value};
use super::run::{PreviewRow, PreviewToken, ReportRun};
use super::shortened::{cell, shortened};

/// Rows that are shown.
const MAX_ROWS: usize = 8;

/// Tokens of a row that are shown.
const MAX_TOKENS: usize = 2_000;

/// Masked tokens of a stretch that are shown one by one; of more, the ends, and the text between them,
/// which is what the learned tokens come from.
const MAX_MASKED: usize = 160;

/// Masked tokens that are shown one by one at either end of such a stretch.
const MASKED_ENDS: usize = 48;

/// Characters of the text between them that are shown.
const MAX_MASKED_TEXT: usize = 12_000;

/// The rows of one run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Preview {
    /// Positions of the runs that it is about.
    runs: Vec<usize>,
    rows: Vec<Row>,
    note: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Row {
    id: String,
    n_tokens: String,
    n_supervised: String,
    n_partial: String,
    n_masked: String,
    parts: Vec<Part>,
    note: Option<String>,
}

/// A token, or a stretch that is left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Part {
    kind: Kind,
    text: String,
    /// Of a token that is supervised by another weight than one.
    weight: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Supervised,
    Partial,
    Masked,
    Gap,
}

/// The rows of each run; those that two runs share are shown once.
pub(super) fn previews(runs: &[ReportRun]) -> Vec<Preview> {
    let mut previews: Vec<(&[PreviewRow], Preview)> = Vec::new();
    for (idx, run) in runs.iter().enumerate() {
        let rows = run.mask_preview.as_slice();
        match previews.iter_mut().find(|(shown, _)| *shown == rows) {
            _ if rows.is_empty() => {}
            Some((_, preview)) => preview.runs.push(idx),
            None => previews.push((rows, preview(idx, rows))),
        }
    }
    previews.into_iter().map(|(_, preview)| preview).collect()
}

fn preview(run: usize, rows: &[PreviewRow]) -> Preview {
    let n_more = rows.len().saturating_sub(MAX_ROWS) as u64;
    Preview {
        runs: vec![run],
        rows: rows.iter().take(MAX_ROWS).map(row).collect(),
        note: (n_more > 0).then(|| format!("{} more rows not shown", count(n_more))),
    }
}

fn kind(token: &PreviewToken) -> Kind {
    match token.weight {
        0.0 => Kind::Masked,
        1.0 => Kind::Supervised,
        _ => Kind::Partial,
    }
}

fn row(row: &PreviewRow) -> Row {
    let n_of = |wanted: Kind| {
        let tokens = row.tokens.iter().filter(|token| kind(token) == wanted);
        count(tokens.count() as u64)
    };
    let shown = shown(&row.tokens);
    let n_more = (row.tokens.len() - shown.len()) as u64;
    Row {
        id: cell(&row.id),
        n_tokens: count(row.tokens.len() as u64),
        n_supervised: n_of(Kind::Supervised),
        n_partial: n_of(Kind::Partial),
        n_masked: n_of(Kind::Masked),
        parts: parts(shown),
        note: (n_more > 0).then(|| format!("{} more tokens not shown", count(n_more))),
    }
}

/// The tokens of a row up to the bound; the middle of a long masked stretch is one text and counts
/// as one, since what is supervised often stands behind it.
fn shown(tokens: &[PreviewToken]) -> &[PreviewToken] {
    let (mut n_shown, mut end) = (0, 0);
    for stretch in tokens.chunk_by(|a, b| kind(a) == kind(b)) {
        let is_masked = stretch.first().map(kind) == Some(Kind::Masked);
        let n = match is_masked && stretch.len() > MAX_MASKED {
            true => 2 * MASKED_ENDS + 1,
            false => stretch.len(),
        };
        if n_shown + n > MAX_TOKENS {
            let end = end + (MAX_TOKENS - n_shown).min(stretch.len());
            return tokens.get(..end).unwrap_or(tokens);
        }
        n_shown += n;
        end += stretch.len();
    }
    tokens
}

/// The middle of a long masked stretch is one text.
fn parts(tokens: &[PreviewToken]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(tokens.len());
    for stretch in tokens.chunk_by(|a, b| kind(a) == kind(b)) {
        let is_masked = stretch.first().map(kind) == Some(Kind::Masked);
        let middle = MASKED_ENDS..stretch.len().saturating_sub(MASKED_ENDS);
        if is_masked && stretch.len() > MAX_MASKED {
            let (head, tail) = (stretch.get(..middle.start), stretch.get(middle.end..));
            parts.extend(head.unwrap_or_default().iter().map(part));
            let between = stretch.get(middle).unwrap_or_default();
            let between: String = between.iter().map(|token| token.text.as_str()).collect();
            let (text, note) = shortened(&between, MAX_MASKED_TEXT);
            parts.push(Part {
                kind: Kind::Masked,
                text: text.to_owned(),
                weight: None,
            });
            parts.extend(note.map(|text| Part {
                kind: Kind::Gap,
                text,
                weight: None,
            }));
            parts.extend(tail.unwrap_or_default().iter().map(part));
        } else {
            parts.extend(stretch.iter().map(part));
        }
    }
    parts
}

fn part(token: &PreviewToken) -> Part {
    let kind = kind(token);
    Part {
        kind,
        // A line's end is a token's text too: it shows as a sign, and then ends the line.
        text: cell(&token.text).replace('\n', "↵\n"),
        weight: (kind == Kind::Partial).then(|| value(f64::from(token.weight))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: usize, weight: f32) -> Vec<PreviewToken> {
        let token = PreviewToken {
            text: "x".to_owned(),
            weight,
        };
        vec![token; n]
    }

    #[test]
    fn a_long_masked_stretch_is_a_text_between_tokens_and_what_is_supervised_stays() {
        let row_of = PreviewRow {
            id: "a".to_owned(),
            tokens: [tokens(500, 0.0), tokens(300, 1.0), tokens(2, 0.5)].concat(),
        };
        let shown = row(&row_of);
        let n_of = |kind| shown.parts.iter().filter(|part| part.kind == kind).count();
        assert_eq!((n_of(Kind::Masked), n_of(Kind::Gap)), (97, 0));
        assert_eq!((n_of(Kind::Supervised), n_of(Kind::Partial)), (300, 2));
        assert_eq!(shown.parts[48].text, "x".repeat(404));
        assert_eq!(shown.parts.last().unwrap().weight.as_deref(), Some("0.5"));
        assert_eq!((shown.n_masked.as_str(), shown.note), ("500", None));
        // The answer behind a document of any length is shown, and so is the document's beginning.
        let behind = PreviewRow {
            tokens: [tokens(50_000, 0.0), tokens(3, 1.0)].concat(),
            ..row_of
        };
        let shown = row(&behind);
        let n_of = |kind| shown.parts.iter().filter(|part| part.kind == kind).count();
        assert_eq!((n_of(Kind::Supervised), n_of(Kind::Gap)), (3, 1));
        assert_eq!(shown.parts[49].text, "37,904 more characters not shown");
    }

    #[test]
    fn rows_and_tokens_beyond_the_bounds_are_counted() {
        let long = PreviewRow {
            id: "a".to_owned(),
            tokens: tokens(3_500, 1.0),
        };
        let run = ReportRun {
            mask_preview: vec![long; 10],
            ..ReportRun::default()
        };
        let found = previews(&[run.clone(), run, ReportRun::default()]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].runs.as_slice(), found[0].rows.len()),
            (&[0, 1][..], 8)
        );
        assert_eq!(found[0].note.as_deref(), Some("2 more rows not shown"));
        let note = found[0].rows[0].note.as_deref();
        assert_eq!(note, Some("1,500 more tokens not shown"));
    }
}
