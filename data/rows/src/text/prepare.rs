//! Converts rows to examples and reports dropped rows and straddling tokens.

use std::collections::{BTreeMap, HashMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooltune_json::faults::Faults;
use tooltune_template::conversation::Role;
use tooltune_template::{ChatTemplate, RenderedText};

use super::error::DataError;
use super::mask::{ArgumentMask, MaskConfig, OnEmpty, OnLostReasoning};
use super::round_trip::check_round_trip;
use super::rows::Row;
use super::supervise::{Supervision, Supervisor};
use super::tokenizer::{Encoded, Tokenizer};

/// Handling of a row that is longer than `data.max_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnOverflow {
    /// Stops the run before training.
    #[default]
    Error,
    /// Drops and counts the row.
    Drop,
    /// Truncates the end of the row, which trains on answers without an end.
    Truncate,
}

/// How rows are converted to examples.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareOptions {
    /// Which tokens are supervised.
    pub mask: MaskConfig,
    /// Maximum tokens per row.
    pub max_length: usize,
    /// Handling of longer rows.
    pub on_overflow: OnOverflow,
    /// End-of-turn tokens; each supervised turn must end with a supervised one.
    pub stop_ids: Vec<u32>,
}

/// A tokenized row.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizedExample {
    /// Id of the row.
    pub id: String,
    /// Token ids of the whole text, unshifted.
    pub input_ids: Vec<u32>,
    /// Weight of `input_ids[i]` as a target, unshifted, including the row's own weight; same
    /// length.
    pub loss_weights: Vec<f32>,
}

/// Result of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeOutcome {
    /// The row became an example.
    Example {
        /// The tokenized row.
        example: TokenizedExample,
        /// Text of each straddling token, in order.
        straddling: Vec<String>,
        /// Number of spans of each kind with a changed weight.
        n_spans: Vec<usize>,
        /// Turns of the row that are not supervised.
        unlearned: UnsupervisedTurns,
        /// Whether the row was truncated.
        is_cut: bool,
    },
    /// Dropped, as the options specify.
    Dropped(DroppedRow),
}

/// Number of turns that are not supervised, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsupervisedTurns {
    /// Turns that `mask.train_on` selects and that `train`, `weight` or `loss` in the data
    /// excludes.
    pub n_switched_off: usize,
    /// Turns whose reasoning the template drops, including turns that `mask.train_on` does not
    /// select.
    pub n_without_reasoning: usize,
}

impl TokenizedExample {
    /// Tokens with a weight above 0.
    pub fn n_trained_tokens(&self) -> usize {
        self.loss_weights.iter().filter(|&&w| w > 0.0).count()
    }
}

impl UnsupervisedTurns {
    fn from_rendered(rendered: &RenderedText) -> Self {
        Self {
            n_switched_off: rendered.switched_off.len(),
            n_without_reasoning: rendered.without_reasoning.len(),
        }
    }
}

/// Examples that do not start with the begin token that the tokenizer adds to plain text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutBos {
    /// Number of examples.
    pub n_examples: usize,
    /// The missing tokens; empty if the tokenizer adds none.
    pub tokens: String,
}

/// A row that was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedRow {
    /// Id of the row.
    pub id: String,
    /// Why the row was dropped.
    pub reason: DropReason,
}

/// Reason for dropping a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// The row has more than `max_length` tokens.
    TooLong,
    /// No token of the row is supervised.
    NothingTrained,
}

impl DropReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "longer than max_length",
            Self::NothingTrained => "no supervised token",
        }
    }
}

/// A token that straddles spans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StraddlingToken {
    /// Text of the token.
    pub text: String,
    /// How often it occurs.
    pub count: usize,
}

/// Report about a data set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PrepareReport {
    /// Number of rows that were read.
    pub n_rows: usize,
    /// The rows that were dropped.
    pub dropped: Vec<DroppedRow>,
    /// Rows truncated at `max_length`.
    pub n_cut: usize,
    /// Id of the first truncated row.
    pub first_cut: Option<String>,
    /// Rows with `developer` messages, which the template renders as `system`.
    pub n_developer_as_system: usize,
    /// Tokens of all examples.
    pub n_tokens: usize,
    /// Tokens with a weight above 0.
    pub n_trained_tokens: usize,
    /// Argument values of calls that `mask.arguments` excludes from the loss.
    pub n_masked_values: usize,
    /// Turns of the examples that are not supervised.
    pub unlearned: UnsupervisedTurns,
    /// Examples that do not start with the tokens that the tokenizer adds before plain text.
    pub without_bos: WithoutBos,
    /// Tokens that straddle the boundary of a supervised or weighted span.
    pub n_straddling: usize,
    /// The ten most frequent straddling tokens, ties in text order.
    pub straddling: Vec<StraddlingToken>,
}

impl PrepareReport {
    /// Number of dropped rows.
    pub fn n_dropped(&self) -> usize {
        self.dropped.len()
    }
}

/// A data set ready for batching.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Examples in row order.
    pub examples: Vec<TokenizedExample>,
    /// Report about the rows.
    pub report: PrepareReport,
}

/// Tokenizes a row and assigns loss weights.
///
/// # Errors
///
/// Every error names the row:
///
/// - the template rejects the row, or renders its prompt differently once the answer is present
/// - the template drops a message, a call, or the row's tools or documents
/// - the template drops the reasoning of a supervised turn, unless the options keep such rows
/// - the row is longer than `max_length`, unless the options drop or truncate it
/// - no token is supervised, unless the options drop the row
/// - a supervised turn does not end with a supervised stop token, or contains one before its end
/// - the tokens start with two begin-of-sequence tokens
/// - the tokenizer loses or changes a part of the text
/// - `mask.weights` names an unknown or lost span, or a token straddles a boundary and the options
///   make that an error
/// - the row's weight is not above 0 and finite
pub fn tokenize_row(
    row: &Row,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
) -> Result<TokenizeOutcome, DataError> {
    let work = || -> Result<TokenizeOutcome, DataError> {
        let (rendered, encoded) = read(row, template, tokenizer, options)?;
        if encoded.ids.len() > options.max_length && options.on_overflow != OnOverflow::Truncate {
            return handle_long_row(&row.id, encoded.ids.len(), options);
        }
        let supervisor = Supervisor::new(&rendered, &encoded, tokenizer, options);
        let supervision = supervisor.supervise()?;
        let straddling = supervision
            .straddling
            .iter()
            .map(|&token| supervisor.token_text(token).to_owned())
            .collect();
        let unlearned = UnsupervisedTurns::from_rendered(&rendered);
        finish_example(
            row,
            encoded.ids,
            supervision,
            straddling,
            unlearned,
            options,
        )
    };
    work().map_err(|error| error.at(&row.id))
}

/// Renders and tokenizes a row.
pub(super) fn read(
    row: &Row,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
) -> Result<(RenderedText, Encoded), DataError> {
    if options.stop_ids.is_empty() {
        return Err(DataError::NoStopIds);
    }
    let turns = options.mask.train_on.turns();
    let mut rendered = template.render_with_spans(&row.conversation, turns)?;
    // Excluded turns are not supervised, so their missing reasoning is harmless.
    let chosen = turns.messages(&row.conversation);
    let would_be_supervised =
        |message: &&usize| chosen.contains(message) && !rendered.switched_off.contains(message);
    let mut without_reasoning = rendered.without_reasoning.iter();
    if let (OnLostReasoning::Error, Some(&message)) = (
        options.mask.on_lost_reasoning,
        without_reasoning.find(would_be_supervised),
    ) {
        return Err(DataError::ReasoningNotRendered { message });
    }
    let stop_tokens = options.stop_ids.iter();
    let stop_tokens: Vec<String> = stop_tokens
        .filter_map(|&id| tokenizer.id_to_token(id))
        .collect();
    rendered.end_turns(&stop_tokens);
    let encoded = encode(&rendered.text, template, tokenizer)?;
    check_round_trip(&rendered.text, &encoded, tokenizer)?;
    Ok((rendered, encoded))
}

pub(super) fn encode(
    text: &str,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Encoded, DataError> {
    let encoded = tokenizer.encode(text)?;
    let bos_token = template.special_tokens().bos_token.as_deref();
    if let (Some(token), [first, second, ..]) = (bos_token, encoded.ids.as_slice()) {
        let bos_id = tokenizer.token_to_id(token);
        if bos_id == Some(*first) && bos_id == Some(*second) {
            return Err(DataError::DoubleBos {
                token: token.to_owned(),
            });
        }
    }
    Ok(encoded)
}

fn handle_long_row(
    id: &str,
    n_tokens: usize,
    options: &PrepareOptions,
) -> Result<TokenizeOutcome, DataError> {
    if options.on_overflow == OnOverflow::Drop {
        return Ok(drop_row(id, DropReason::TooLong));
    }
    Err(DataError::TooLong {
        n_tokens,
        max_length: options.max_length,
    })
}

fn drop_row(id: &str, reason: DropReason) -> TokenizeOutcome {
    TokenizeOutcome::Dropped(DroppedRow {
        id: id.to_owned(),
        reason,
    })
}

/// Token weights multiplied by the row's weight.
pub(super) fn row_weights(row: &Row, mut weights: Vec<f32>) -> Result<Vec<f32>, DataError> {
    if !row.weight.is_finite() || row.weight <= 0.0 {
        return Err(DataError::BadRowWeight { weight: row.weight });
    }
    for weight in &mut weights {
        *weight *= row.weight;
    }
    Ok(weights)
}

/// Truncates to the maximum length and rejects a row without supervised tokens.
fn finish_example(
    row: &Row,
    mut input_ids: Vec<u32>,
    supervision: Supervision,
    straddling: Vec<String>,
    unlearned: UnsupervisedTurns,
    options: &PrepareOptions,
) -> Result<TokenizeOutcome, DataError> {
    let mut loss_weights = row_weights(row, supervision.weights)?;
    let is_cut = input_ids.len() > options.max_length;
    input_ids.truncate(options.max_length);
    loss_weights.truncate(options.max_length);
    // The first token has no predecessor that could predict it.
    let first = loss_weights.first_mut().map(std::mem::take);
    if loss_weights.iter().all(|&weight| weight == 0.0) {
        return match options.mask.on_empty {
            OnEmpty::Drop => Ok(drop_row(&row.id, DropReason::NothingTrained)),
            OnEmpty::Error => Err(DataError::NothingTrained {
                reason: match (is_cut, unlearned) {
                    (true, _) => "the answer is beyond max_length",
                    _ if first > Some(0.0) => {
                        "its only supervised token is the first one, which nothing predicts"
                    }
                    (_, UnsupervisedTurns { n_switched_off, .. }) if n_switched_off > 0 => {
                        "train, weight or loss excludes its turns"
                    }
                    (_, turns)
                        if turns.n_without_reasoning > 0
                            && options.mask.on_lost_reasoning == OnLostReasoning::Keep =>
                    {
                        "the chat template leaves out the reasoning of its turns"
                    }
                    _ => "it has no turn that mask.train_on selects",
                },
            }),
        };
    }
    Ok(TokenizeOutcome::Example {
        example: TokenizedExample {
            id: row.id.clone(),
            input_ids,
            loss_weights,
        },
        straddling,
        n_spans: supervision.n_spans,
        unlearned,
        is_cut,
    })
}

/// Converts rows to examples.
///
/// # Errors
///
/// - rows cannot be read, or the errors of [`tokenize_row`]; the error lists all bad rows
/// - every row was dropped
/// - the mask names a kind of span that occurs in no row
pub fn prepare(
    rows: impl Iterator<Item = Result<Row, DataError>>,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
) -> Result<Prepared, DataError> {
    let mut gathering = ReportBuilder::new(tokenizer, options)?;
    let examples = rows.filter_map(|row| {
        let row = TokenizedRow::tokenize(row, template, tokenizer, options);
        gathering.add(row)
    });
    let examples = examples.collect();
    let report = gathering.finish()?;
    Ok(Prepared { examples, report })
}

/// Result of [`tokenize_row`] before it is added to a [`ReportBuilder`].
#[derive(Debug)]
pub struct TokenizedRow {
    outcome: Result<TokenizeOutcome, DataError>,
    is_developer_as_system: bool,
}

impl TokenizedRow {
    /// Tokenizes a row, unless reading it failed.
    pub fn tokenize(
        row: Result<Row, DataError>,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        options: &PrepareOptions,
    ) -> Self {
        let mut is_developer_as_system = false;
        let outcome = row.and_then(|row| {
            is_developer_as_system = has_developer_message(&row) && !template.knows_developer();
            tokenize_row(&row, template, tokenizer, options)
        });
        Self {
            outcome,
            is_developer_as_system,
        }
    }
}

/// Collects the report while rows are prepared.
#[derive(Debug)]
pub struct ReportBuilder<'a> {
    options: &'a PrepareOptions,
    /// Tokens that the tokenizer adds before plain text.
    before: &'a [u32],
    report: PrepareReport,
    n_examples: usize,
    straddling: HashMap<String, usize>,
    n_spans: Vec<usize>,
    faults: Faults<DataError>,
}

impl<'a> ReportBuilder<'a> {
    /// Creates an empty report.
    ///
    /// # Errors
    ///
    /// - the mask names an unknown kind of span
    pub fn new(tokenizer: &'a Tokenizer, options: &'a PrepareOptions) -> Result<Self, DataError> {
        let prefix = &tokenizer.added_tokens().before;
        let mut report = PrepareReport::default();
        report.without_bos.tokens = tokenizer.spell_tokens(prefix);
        Ok(Self {
            options,
            before: prefix,
            report,
            n_examples: 0,
            straddling: HashMap::new(),
            n_spans: vec![0; options.mask.resolve_weights()?.len()],
            faults: Faults::default(),
        })
    }

    /// Adds a row to the report and returns its example, if any.
    pub fn add(&mut self, row: TokenizedRow) -> Option<TokenizedExample> {
        let report = &mut self.report;
        report.n_rows += 1;
        report.n_developer_as_system += usize::from(row.is_developer_as_system);
        let (example, straddling, n_spans, unlearned, is_cut) =
            match self.faults.take(row.outcome)? {
                TokenizeOutcome::Dropped(row) => {
                    report.dropped.push(row);
                    return None;
                }
                TokenizeOutcome::Example {
                    example,
                    straddling,
                    n_spans,
                    unlearned,
                    is_cut,
                } => (example, straddling, n_spans, unlearned, is_cut),
            };
        report.unlearned.n_switched_off += unlearned.n_switched_off;
        report.unlearned.n_without_reasoning += unlearned.n_without_reasoning;
        if is_cut {
            report.n_cut += 1;
            report.first_cut.get_or_insert_with(|| example.id.clone());
        }
        for (total, n) in self.n_spans.iter_mut().zip(n_spans) {
            *total += n;
        }
        report.n_tokens += example.input_ids.len();
        report.n_trained_tokens += example.n_trained_tokens();
        report.without_bos.n_examples += usize::from(!example.input_ids.starts_with(self.before));
        report.n_straddling += straddling.len();
        for text in straddling {
            *self.straddling.entry(text).or_default() += 1;
        }
        self.n_examples += 1;
        Some(example)
    }

    /// Completes the report.
    ///
    /// # Errors
    ///
    /// As [`prepare`].
    pub fn finish(self) -> Result<PrepareReport, DataError> {
        self.faults.into_result()?;
        let mut report = self.report;
        report.straddling = commonest(self.straddling);
        if self.n_examples == 0 {
            return Err(DataError::NoExamples {
                n_rows: report.n_rows,
                reasons: format_reasons(&report.dropped),
            });
        }
        let mask = &self.options.mask;
        mask.check_found(&self.n_spans, report.n_rows)?;
        if mask.arguments != ArgumentMask::None {
            report.n_masked_values = self.n_spans.last().copied().unwrap_or_default();
        }
        Ok(report)
    }
}

fn has_developer_message(row: &Row) -> bool {
    let mut messages = row.conversation.messages.iter();
    messages.any(|message| message.role == Role::Developer)
}

fn commonest(counts: HashMap<String, usize>) -> Vec<StraddlingToken> {
    let mut all: Vec<StraddlingToken> = counts
        .into_iter()
        .map(|(text, count)| StraddlingToken { text, count })
        .collect();
    all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.text.cmp(&b.text)));
    all.truncate(10);
    all
}

fn format_reasons(dropped: &[DroppedRow]) -> String {
    let mut counts: BTreeMap<DropReason, usize> = BTreeMap::new();
    for row in dropped {
        *counts.entry(row.reason).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {}", reason.as_str()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The prompt of a row as tokens, up to the model's answer. It equals the prompt in training for an
/// answer without reasoning: if the template writes an empty reasoning block, the prompt includes
/// it.
///
/// # Errors
///
/// - the template rejects the prompt, or drops its tools or documents
/// - the tokens start with two begin-of-sequence tokens
pub fn prompt_ids(
    row: &Row,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, DataError> {
    template
        .check_lists_in_prompt(&row.conversation)
        .and_then(|()| template.render_answer_prompt(&row.conversation))
        .map_err(DataError::from)
        .and_then(|text| encode(&text, template, tokenizer))
        .map(|encoded| encoded.ids)
        .map_err(|error| error.at(&row.id))
}
