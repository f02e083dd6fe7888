//! Selects the tokens of training rows that the page shows, with their weights.

use serde::Serialize;

use super::number::{format_number, group_digits};
use super::run::{PreviewRow, PreviewToken, ReportRun};
use super::truncation::{shorten_cell, truncate};

/// Maximum number of rows shown.
const MAX_ROWS: usize = 8;

/// Maximum number of tokens shown per row.
const MAX_TOKENS: usize = 2_000;

/// Maximum length of a stretch of masked tokens that is shown token by token. In longer stretches,
/// only the tokens next to supervised ones are shown and the rest is folded, so that a row opens at
/// its first supervised token.
const MAX_MASKED: usize = 48;

/// Number of masked tokens next to supervised ones that are shown individually.
const MASKED_ENDS: usize = 12;

/// Maximum number of characters of a folded stretch on the page.
const MAX_MASKED_TEXT: usize = 12_000;

/// The preview rows of one run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Preview {
    /// Indices of the runs that share these rows.
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

/// A token, or the folded text of several tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Part {
    kind: Kind,
    text: String,
    /// The loss weight, if it is neither 0 nor 1.
    weight: Option<String>,
    /// Summary line of a folded stretch.
    summary: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Supervised,
    Partial,
    Masked,
    Fold,
}

/// The preview rows of each run. Rows that several runs share are shown once.
pub(super) fn previews(runs: &[ReportRun]) -> Vec<Preview> {
    let mut previews: Vec<(&[PreviewRow], Preview)> = Vec::new();
    for (idx, run) in runs.iter().enumerate() {
        let rows = run.mask_preview.as_slice();
        match previews
            .iter_mut()
            .find(|(shown_rows, _)| *shown_rows == rows)
        {
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
        rows: rows.iter().take(MAX_ROWS).map(to_row).collect(),
        note: (n_more > 0).then(|| format!("{} more rows not shown", group_digits(n_more))),
    }
}

fn kind(token: &PreviewToken) -> Kind {
    match token.weight {
        0.0 => Kind::Masked,
        1.0 => Kind::Supervised,
        _ => Kind::Partial,
    }
}

fn to_row(row: &PreviewRow) -> Row {
    let n_of = |wanted_kind: Kind| {
        let tokens = row.tokens.iter().filter(|token| kind(token) == wanted_kind);
        group_digits(tokens.count() as u64)
    };
    let visible = visible_tokens(&row.tokens);
    let n_more = (row.tokens.len() - visible.len()) as u64;
    Row {
        id: shorten_cell(&row.id),
        n_tokens: group_digits(row.tokens.len() as u64),
        n_supervised: n_of(Kind::Supervised),
        n_partial: n_of(Kind::Partial),
        n_masked: n_of(Kind::Masked),
        parts: parts(visible),
        note: (n_more > 0).then(|| format!("{} more tokens not shown", group_digits(n_more))),
    }
}

/// How to show a stretch of tokens of one kind.
struct Stretch<'t> {
    tokens: &'t [PreviewToken],
    /// The tokens whose text is folded.
    folded: std::ops::Range<usize>,
}

/// Splits a row into stretches. Masked stretches are folded except next to supervised tokens.
fn split_stretches(tokens: &[PreviewToken]) -> impl Iterator<Item = Stretch<'_>> {
    let mut end = 0;
    tokens
        .chunk_by(|a, b| kind(a) == kind(b))
        .map(move |stretch| {
            let is_first = end == 0;
            end += stretch.len();
            let is_last = end == tokens.len();
            let is_masked = stretch.first().map(kind) == Some(Kind::Masked);
            let is_folded = is_masked && stretch.len() > MAX_MASKED && !(is_first && is_last);
            let start = if is_first { 0 } else { MASKED_ENDS };
            let n_end_tokens = if is_last { 0 } else { MASKED_ENDS };
            Stretch {
                tokens: stretch,
                folded: match is_folded {
                    true => start..stretch.len() - n_end_tokens,
                    false => 0..0,
                },
            }
        })
}

/// The tokens of a row up to the limit. A folded stretch counts as one token, because supervised
/// tokens often follow it.
fn visible_tokens(tokens: &[PreviewToken]) -> &[PreviewToken] {
    let (mut n_shown, mut end) = (0, 0);
    for stretch in split_stretches(tokens) {
        let n_folded = stretch.folded.len();
        let n = stretch.tokens.len() - n_folded + usize::from(n_folded > 0);
        if n_shown + n > MAX_TOKENS {
            let end = end + (MAX_TOKENS - n_shown).min(stretch.tokens.len());
            return tokens.get(..end).unwrap_or(tokens);
        }
        n_shown += n;
        end += stretch.tokens.len();
    }
    tokens
}

/// Individual tokens, with folded stretches between them.
fn parts(tokens: &[PreviewToken]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(tokens.len());
    for Stretch { tokens, folded } in split_stretches(tokens) {
        let (before, after) = (tokens.get(..folded.start), tokens.get(folded.end..));
        parts.extend(before.unwrap_or_default().iter().map(to_part));
        let between = tokens.get(folded).unwrap_or_default();
        if !between.is_empty() {
            parts.push(to_folded_part(between));
        }
        parts.extend(after.unwrap_or_default().iter().map(to_part));
    }
    parts
}

fn to_folded_part(tokens: &[PreviewToken]) -> Part {
    let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
    let (text, note) = truncate(&text, MAX_MASKED_TEXT);
    let note = note.map_or_else(String::new, |note| format!("; {note}"));
    Part {
        kind: Kind::Fold,
        text: text.to_owned(),
        weight: None,
        summary: Some(format!(
            "{} masked tokens{note}",
            group_digits(tokens.len() as u64)
        )),
    }
}

fn to_part(token: &PreviewToken) -> Part {
    let kind = kind(token);
    Part {
        kind,
        // Show a line break as a visible sign, followed by the break.
        text: shorten_cell(&token.text).replace('\n', "↵\n"),
        weight: (kind == Kind::Partial).then(|| format_number(f64::from(token.weight))),
        summary: None,
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
    fn a_row_opens_at_its_first_supervised_token() {
        let row_of = PreviewRow {
            id: "a".to_owned(),
            tokens: [tokens(500, 0.0), tokens(300, 1.0), tokens(2, 0.5)].concat(),
        };
        let preview_row = to_row(&row_of);
        let n_of = |kind| {
            preview_row
                .parts
                .iter()
                .filter(|part| part.kind == kind)
                .count()
        };
        assert_eq!((n_of(Kind::Masked), n_of(Kind::Fold)), (12, 1));
        assert_eq!((n_of(Kind::Supervised), n_of(Kind::Partial)), (300, 2));
        assert_eq!(preview_row.parts[0].text, "x".repeat(488));
        assert_eq!(
            preview_row.parts[0].summary.as_deref(),
            Some("488 masked tokens")
        );
        assert_eq!(preview_row.parts[13].kind, Kind::Supervised);
        assert_eq!(
            preview_row.parts.last().unwrap().weight.as_deref(),
            Some("0.5")
        );
        assert_eq!(
            (preview_row.n_masked.as_str(), preview_row.note),
            ("500", None)
        );
        // The reply to a long document is shown, and so is the start of the document.
        let late_row = PreviewRow {
            tokens: [tokens(50_000, 0.0), tokens(3, 1.0)].concat(),
            ..row_of
        };
        let preview_row = to_row(&late_row);
        let summary = preview_row.parts[0].summary.as_deref();
        assert_eq!(
            summary,
            Some("49,988 masked tokens; 37,988 more characters not shown")
        );
        assert_eq!(preview_row.parts[13].kind, Kind::Supervised);
    }

    #[test]
    fn a_masked_stretch_keeps_its_ends_and_a_fully_masked_row_is_shown() {
        let turns = [
            tokens(10, 0.0),
            tokens(2, 1.0),
            tokens(100, 0.0),
            tokens(2, 1.0),
        ]
        .concat();
        let parts = parts(&turns);
        let kinds: Vec<Kind> = parts
            .chunk_by(|a, b| a.kind == b.kind)
            .map(|run| run[0].kind)
            .collect();
        let expected = [
            Kind::Masked,
            Kind::Supervised,
            Kind::Masked,
            Kind::Fold,
            Kind::Masked,
            Kind::Supervised,
        ];
        assert_eq!(kinds, expected);
        let masked = super::parts(&tokens(300, 0.0));
        assert!(masked.iter().all(|part| part.kind == Kind::Masked));
        assert_eq!(masked.len(), 300);
    }

    #[test]
    fn rows_and_tokens_over_the_limits_are_counted() {
        let long = PreviewRow {
            id: "a".to_owned(),
            tokens: tokens(3_500, 1.0),
        };
        let run = ReportRun {
            mask_preview: vec![long; 10],
            ..ReportRun::default()
        };
        let all_previews = previews(&[run.clone(), run, ReportRun::default()]);
        assert_eq!(all_previews.len(), 1);
        assert_eq!(
            (all_previews[0].runs.as_slice(), all_previews[0].rows.len()),
            (&[0, 1][..], 8)
        );
        assert_eq!(
            all_previews[0].note.as_deref(),
            Some("2 more rows not shown")
        );
        let note = all_previews[0].rows[0].note.as_deref();
        assert_eq!(note, Some("1,500 more tokens not shown"));
    }
}
