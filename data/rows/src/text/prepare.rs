//! Rows in, examples and an account of everything that was dropped or straddles out.

use std::collections::{BTreeMap, HashMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conversation::Role;
use super::error::DataError;
use super::given_back::must_give_back;
use super::mask::{ArgumentMask, MaskConfig, OnEmpty, OnLostReasoning};
use super::rows::Row;
use super::supervise::{Supervision, Supervisor};
use super::template::{ChatTemplate, RenderedText};
use super::tokenizer::{Encoded, Tokenizer};
use crate::faults::Faults;

/// What happens to a row that is longer than `data.max_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnOverflow {
    /// The run does not start.
    #[default]
    Error,
    /// The row is left out and counted.
    Drop,
    /// The row is cut at its end, which teaches answers without one.
    Truncate,
}

/// How rows become examples.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareOptions {
    /// What is learned.
    pub mask: MaskConfig,
    /// Tokens that a row may have.
    pub max_length: usize,
    /// What becomes of a longer row.
    pub on_overflow: OnOverflow,
    /// Tokens that end generation; one of them must be learned at the end of each learned turn.
    pub stop_ids: Vec<u32>,
}

/// A row as tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizedExample {
    /// The row's id.
    pub id: String,
    /// Token ids of the whole text, unshifted.
    pub input_ids: Vec<u32>,
    /// Weight of `input_ids[i]` as a target, unshifted, of the same length; the row's own weight
    /// is in it.
    pub loss_weights: Vec<f32>,
}

/// What became of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeOutcome {
    /// An example, and the texts of its tokens that straddle a span's border.
    Example {
        /// The row as tokens.
        example: TokenizedExample,
        /// One text per straddling token, in order.
        straddling: Vec<String>,
        /// Spans of each kind whose weight the mask changes.
        n_spans: Vec<usize>,
        /// Turns of the row that are not learned.
        unlearned: UnlearnedTurns,
        /// Whether the end of the row was cut off.
        is_cut: bool,
    },
    /// Nothing, as the options ask.
    Dropped(DroppedRow),
}

/// How many turns that `mask.train_on` chooses are not learned all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlearnedTurns {
    /// Turns that the data switches off, by `train`, `weight` or `loss`.
    pub n_switched_off: usize,
    /// Turns whose reasoning the template leaves out, and those of them that were not chosen.
    pub n_without_reasoning: usize,
}

impl TokenizedExample {
    /// Tokens with a weight above 0.
    pub fn n_trained_tokens(&self) -> usize {
        self.loss_weights.iter().filter(|&&w| w > 0.0).count()
    }
}

impl UnlearnedTurns {
    fn of(rendered: &RenderedText) -> Self {
        Self {
            n_switched_off: rendered.switched_off.len(),
            n_without_reasoning: rendered.without_reasoning.len(),
        }
    }
}

/// Examples whose template writes no begin token, where the tokenizer has one for plain texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutBos {
    /// How many.
    pub n_examples: usize,
    /// The tokens that they do not begin with; empty if the tokenizer puts none before plain texts.
    pub tokens: String,
}

/// A row that gave no example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedRow {
    /// The row's id.
    pub id: String,
    /// Why.
    pub reason: DropReason,
}

/// Why a row was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// It has more than `max_length` tokens.
    TooLong,
    /// None of its tokens would be learned.
    NothingTrained,
}

impl DropReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "longer than max_length",
            Self::NothingTrained => "nothing to learn",
        }
    }
}

/// A kind of token that straddles spans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StraddlingToken {
    /// The token's text.
    pub text: String,
    /// How often it straddles.
    pub count: usize,
}

/// The account of a data set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PrepareReport {
    /// Rows read.
    pub n_rows: usize,
    /// Rows that gave no example.
    pub dropped: Vec<DroppedRow>,
    /// Rows whose end beyond `max_length` was cut off.
    pub n_cut: usize,
    /// The first of them.
    pub first_cut: Option<String>,
    /// Rows with messages of the role `developer`, which the template renders as those of `system`.
    pub n_developer_as_system: usize,
    /// Tokens of all examples.
    pub n_tokens: usize,
    /// Tokens with a weight above 0.
    pub n_trained_tokens: usize,
    /// Argument values of calls that `mask.arguments` leaves out of the loss.
    pub n_masked_values: usize,
    /// Turns of the examples that are not learned.
    pub unlearned: UnlearnedTurns,
    /// Examples that do not begin with the tokens that the tokenizer puts before plain texts.
    pub without_bos: WithoutBos,
    /// Tokens that straddle the border of a learned or weighted span.
    pub n_straddling: usize,
    /// The ten commonest of them, commonest first, ties in the order of their text.
    pub straddling: Vec<StraddlingToken>,
}

impl PrepareReport {
    /// Rows that gave no example.
    pub fn n_dropped(&self) -> usize {
        self.dropped.len()
    }
}

/// A data set ready for batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Examples in the order of the rows.
    pub examples: Vec<TokenizedExample>,
    /// What became of the rows.
    pub report: PrepareReport,
}

/// Turns a row into tokens and weights.
///
/// # Errors
///
/// Each names the row:
///
/// - the template refuses the row, or renders its prompt differently once the answer is there
/// - the template leaves out a message, a call, or the row's tools or documents
/// - it leaves out the reasoning of a turn that would be learned, unless the options keep such rows
/// - the row is longer than `max_length`, unless the options drop or cut it
/// - no token is learned, unless the options drop the row
/// - a learned turn does not end with a learned stop token, or holds one before its end
/// - the tokens begin with two begin-of-sequence tokens
/// - the tokenizer loses or changes a piece of the text
/// - `mask.weights` names an unknown or lost span, or a token straddles and that is an error
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
            return too_long(&row.id, encoded.ids.len(), options);
        }
        let supervisor = Supervisor {
            rendered: &rendered,
            encoded: &encoded,
            mask: &options.mask,
            stop_ids: &options.stop_ids,
            tokenizer,
        };
        let supervision = supervisor.supervise()?;
        let straddling = supervision
            .straddling
            .iter()
            .map(|&token| supervisor.token_text(token).to_owned())
            .collect();
        let unlearned = UnlearnedTurns::of(&rendered);
        finish(
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
    // Switched-off and unchosen turns are not learned, so nothing is taught without their reasoning.
    let chosen = turns.messages(&row.conversation);
    let would_be_learned =
        |message: &&usize| chosen.contains(message) && !rendered.switched_off.contains(message);
    let mut without_reasoning = rendered.without_reasoning.iter();
    if let (OnLostReasoning::Error, Some(&message)) = (
        options.mask.on_lost_reasoning,
        without_reasoning.find(would_be_learned),
    ) {
        return Err(DataError::ReasoningNotRendered { message });
    }
    let stop_tokens = options.stop_ids.iter();
    let stop_tokens: Vec<String> = stop_tokens
        .filter_map(|&id| tokenizer.id_to_token(id))
        .collect();
    rendered.end_turns(&stop_tokens);
    let encoded = encode(&rendered.text, template, tokenizer)?;
    must_give_back(&rendered.text, &encoded, tokenizer)?;
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

fn too_long(
    id: &str,
    n_tokens: usize,
    options: &PrepareOptions,
) -> Result<TokenizeOutcome, DataError> {
    if options.on_overflow == OnOverflow::Drop {
        return Ok(dropped(id, DropReason::TooLong));
    }
    Err(DataError::TooLong {
        n_tokens,
        max_length: options.max_length,
    })
}

fn dropped(id: &str, reason: DropReason) -> TokenizeOutcome {
    TokenizeOutcome::Dropped(DroppedRow {
        id: id.to_owned(),
        reason,
    })
}

/// The weights of the tokens, times the weight of their row.
pub(super) fn row_weights(row: &Row, mut weights: Vec<f32>) -> Result<Vec<f32>, DataError> {
    if !row.weight.is_finite() || row.weight <= 0.0 {
        return Err(DataError::BadRowWeight { weight: row.weight });
    }
    for weight in &mut weights {
        *weight *= row.weight;
    }
    Ok(weights)
}

/// Cuts to the length and refuses a row without anything to learn.
fn finish(
    row: &Row,
    mut input_ids: Vec<u32>,
    supervision: Supervision,
    straddling: Vec<String>,
    unlearned: UnlearnedTurns,
    options: &PrepareOptions,
) -> Result<TokenizeOutcome, DataError> {
    let mut loss_weights = row_weights(row, supervision.weights)?;
    let is_cut = input_ids.len() > options.max_length;
    input_ids.truncate(options.max_length);
    loss_weights.truncate(options.max_length);
    // Nothing comes before the first token that could predict it.
    let first = loss_weights.first_mut().map(std::mem::take);
    if loss_weights.iter().all(|&weight| weight == 0.0) {
        return match options.mask.on_empty {
            OnEmpty::Drop => Ok(dropped(&row.id, DropReason::NothingTrained)),
            OnEmpty::Error => Err(DataError::NothingTrained {
                reason: match (is_cut, unlearned) {
                    (true, _) => "the answer lies beyond max_length",
                    _ if first > Some(0.0) => {
                        "its only learned token is its first one, which nothing predicts"
                    }
                    (_, UnlearnedTurns { n_switched_off, .. }) if n_switched_off > 0 => {
                        "train, weight or loss switches its turns off"
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

/// Turns rows into examples.
///
/// # Errors
///
/// - rows cannot be read, or as [`tokenize_row`]; the error tells of all rows at fault
/// - no row gives an example
/// - the mask names a kind of span that is in no row
pub fn prepare(
    rows: impl Iterator<Item = Result<Row, DataError>>,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
) -> Result<Prepared, DataError> {
    let mut gathering = Gathering::new(tokenizer, options)?;
    let examples = rows.filter_map(|row| {
        let row = TokenizedRow::of(row, template, tokenizer, options);
        gathering.add(row)
    });
    let examples = examples.collect();
    let report = gathering.finish()?;
    Ok(Prepared { examples, report })
}

/// A row on its way from [`tokenize_row`] to a [`Gathering`].
#[derive(Debug)]
pub struct TokenizedRow {
    outcome: Result<TokenizeOutcome, DataError>,
    is_developer_as_system: bool,
}

impl TokenizedRow {
    /// Tokenizes a row, if there is one.
    pub fn of(
        row: Result<Row, DataError>,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        options: &PrepareOptions,
    ) -> Self {
        let mut is_developer_as_system = false;
        let outcome = row.and_then(|row| {
            is_developer_as_system = is_said_by_developer(&row) && !template.knows_developer();
            tokenize_row(&row, template, tokenizer, options)
        });
        Self {
            outcome,
            is_developer_as_system,
        }
    }
}

/// The account of rows that are prepared one after the other.
#[derive(Debug)]
pub struct Gathering<'a> {
    options: &'a PrepareOptions,
    /// What the tokenizer puts before plain texts.
    before: &'a [u32],
    report: PrepareReport,
    n_examples: usize,
    straddling: HashMap<String, usize>,
    n_spans: Vec<usize>,
    faults: Faults<DataError>,
}

impl<'a> Gathering<'a> {
    /// Of no rows yet.
    ///
    /// # Errors
    ///
    /// - the mask names an unknown kind of span
    pub fn new(tokenizer: &'a Tokenizer, options: &'a PrepareOptions) -> Result<Self, DataError> {
        let before = &tokenizer.added().before;
        let mut report = PrepareReport::default();
        report.without_bos.tokens = tokenizer.spelled(before);
        Ok(Self {
            options,
            before,
            report,
            n_examples: 0,
            straddling: HashMap::new(),
            n_spans: vec![0; options.mask.checked_weights()?.len()],
            faults: Faults::default(),
        })
    }

    /// Counts a row; its example, if it gave one.
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

    /// The whole account.
    ///
    /// # Errors
    ///
    /// As [`prepare`].
    pub fn finish(self) -> Result<PrepareReport, DataError> {
        self.faults.none()?;
        let mut report = self.report;
        report.straddling = commonest(self.straddling);
        if self.n_examples == 0 {
            return Err(DataError::NoExamples {
                n_rows: report.n_rows,
                reasons: reasons(&report.dropped),
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

fn is_said_by_developer(row: &Row) -> bool {
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

fn reasons(dropped: &[DroppedRow]) -> String {
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

/// The prompt of a row as tokens, up to where the model answers, as training reads it before an
/// answer without a thought: templates that write an empty thought there have it here.
///
/// # Errors
///
/// - the template refuses the prompt, or shows nothing of its tools or documents
/// - the tokens begin with two begin-of-sequence tokens
pub fn prompt_ids(
    row: &Row,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, DataError> {
    template
        .must_show_lists(&row.conversation)
        .and_then(|()| template.render_answer_prompt(&row.conversation))
        .and_then(|text| encode(&text, template, tokenizer))
        .map(|encoded| encoded.ids)
        .map_err(|error| error.at(&row.id))
}
