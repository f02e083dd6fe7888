//! The `calls` suite: predicts the tool calls of conversation turns.
//!
//! Each turn is prompted with the row's own history, so that a wrong answer affects only one turn.
//! If the config flattens tools, the model sees flat tools, and the arguments of its calls are
//! nested again before scoring.
//!
//! A constrained evaluation constrains only the turns whose reference contains calls. It therefore
//! measures which calls and arguments the model chooses when calls are required, as with a server's
//! tool choice. An unconstrained evaluation also measures whether the model calls at all. This
//! choice is debatable.

mod retries;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{FlatToolRow, FlattenReport, UnflattenReport, flatten_tool_row};
use tooltune_grammar::CallFormat;
use tooltune_json::{Style, dumps};
use tooltune_rows::text::Row;
use tooltune_suites::calls::{
    CallDialect, CallsAnswer, CallsItem, CallsScorer, CallsSummary, MAX_CALLS, RetrySummary, SUITE,
    SkippedTurns, TemplateCalls, ToolSet, TurnScore, TurnSelection, WrittenCall, calls_items,
    calls_table, read_calls,
};
use tooltune_suites::leaf_errors::{LeafErrorSummary, LeafErrors, LeafGroups};
use tooltune_suites::{Ceiling, SuiteInfo};
use tooltune_template::{ChatTemplate, Conversation, Message, Role};

use super::prompt_suite::{
    JoinBy, PromptEvaluation, PromptSettings, PromptSuite, Rejection, Scoring,
};
use super::{SuiteContext, SuiteKind, SuiteResult, ceiling_notes, named_means};
use crate::config::{Config, Flatten, Suite};
use crate::error::Error;
use crate::eval::by_file::{ByFile, SampleFiles};
use crate::eval::constraints::{Constraints, RequestedConstraint};
use crate::eval::generator::{Completion, Generator, PromptText};
use crate::eval::prediction::{Prediction, ScoredPrediction};
use crate::eval::report_files::{PredictionLines, report_files};
use crate::eval::saved::excerpt;
use crate::rows::{ReadingReport, eval_rows};
use crate::settings;
use tooltune_terminal::count_noun;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |suite_context| {
        let settings = PromptSettings::from_config(&suite_context.config.eval);
        Ok(PromptEvaluation::into_loaded(
            CallsSuite::open(suite_context)?,
            settings,
        ))
    },
    change: None,
};

/// Number of characters of a call shown in messages.
const N_SHOWN_CHARACTERS: usize = 24;

/// The lines of `predictions.jsonl`.
const LINES: PredictionLines = PredictionLines {
    suite: &SUITE,
    kind: "turn",
};

/// The turns to predict.
#[derive(Debug)]
pub(super) struct CallsSuite {
    turns: Vec<PredictedTurn>,
    files: SampleFiles,
    remarks: Vec<String>,
    /// Maximum number of retries per turn.
    retries: usize,
    /// Validates answers between tries.
    validator: RefCell<CallsScorer>,
}

/// A turn and its prompt.
#[derive(Debug)]
struct PredictedTurn {
    item: CallsItem,
    prompt: Conversation,
    /// The row with flat tools, if the config flattens.
    flat: Option<Rc<FlatToolRow>>,
    /// The reference text, if the turn has no calls.
    text: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    summary: &'a CallsSummary,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
    /// Scores of the references, if they are not the best possible.
    #[serde(skip_serializing_if = "<[Ceiling]>::is_empty")]
    ceilings: &'a [Ceiling],
    #[serde(skip_serializing_if = "Option::is_none")]
    flat: Option<&'a UnflattenReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf_errors: Option<LeafErrorSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<&'a RetrySummary>,
}

/// A line of `predictions.jsonl`.
#[derive(Serialize)]
struct ScoredTurn<'a> {
    #[serde(flatten)]
    scored: ScoredPrediction<'a, Prediction, Gold<'a>, &'a TurnScore>,
    leaf_errors: &'a LeafErrors,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Gold<'a> {
    Calls(&'a [WrittenCall]),
    Text(&'a str),
}

impl CallsSuite {
    /// Reads the unflattened rows of `data.eval` and lists their turns.
    ///
    /// # Errors
    ///
    /// Rows cannot be read, no row has tools, or a turn has more calls than can be compared.
    pub(super) fn open(suite_context: SuiteContext<'_>) -> Result<Self, Error> {
        let SuiteContext { config, device, .. } = suite_context;
        let mut nested = config.clone();
        nested.data.flatten = Flatten::None;
        let mut report = ReadingReport::default();
        let rows = eval_rows(&nested, device, &mut report)?;
        let mut remarks = report.lines(config);
        let (mut skipped, mut flattened) = (SkippedTurns::default(), FlattenReport::default());
        let flattening = settings::flattening(&config.data)?;
        let mut turns = Vec::new();
        let mut files = SampleFiles::default();
        for row in &rows {
            let items = calls_items(row, TurnSelection::default(), &mut skipped);
            let file = row.id.rsplit_once(':').map_or("", |(file, _)| file);
            files.add(Path::new(file), items.len());
            let flat = flattening.as_ref().filter(|_| !items.is_empty());
            let flat = flat.map(|flattening| {
                let conversation = &row.conversation;
                Rc::new(flatten_tool_row(
                    &row.id,
                    conversation,
                    flattening,
                    &mut flattened,
                ))
            });
            turns.extend(
                items
                    .into_iter()
                    .map(|item| PredictedTurn::new(item, row, flat.clone())),
            );
        }
        if let Some(turn) = turns.iter().find(|turn| turn.item.gold.len() > MAX_CALLS) {
            return Err(Error::Usage(format!(
                "{}: the turn has {} reference calls, but at most {MAX_CALLS} can be compared \
                 (docs/limits.md); split the turn, or remove the row",
                turn.item.id,
                turn.item.gold.len()
            )));
        }
        if turns.is_empty() {
            return Err(no_turns_error(config, &rows, &skipped));
        }
        remarks.extend(skipped.lines());
        if flattening.is_some() {
            remarks.extend(flattened.lines());
        }
        let n_calls: usize = turns.iter().map(|turn| turn.item.gold.len()).sum();
        let n_texts = turns
            .iter()
            .filter(|turn| turn.item.gold.is_empty())
            .count();
        remarks.push(format!(
            "calls: evaluating {} of {}; the references have {}, and {} without calls",
            count_noun(turns.len(), "turn"),
            count_noun(rows.len(), "row"),
            count_noun(n_calls, "call"),
            count_noun(n_texts, "turn")
        ));
        Ok(Self {
            turns,
            files,
            remarks,
            retries: config.eval.calls.as_ref().map_or(0, |calls| calls.retries),
            validator: RefCell::default(),
        })
    }

    /// Scores answers in the order of the turns.
    ///
    /// # Errors
    ///
    /// Never for reports of suites.
    fn score_predictions(&self, predictions: &[Prediction]) -> Result<SuiteResult, Error> {
        let mut scorer = CallsScorer::default();
        let mut unflattened = UnflattenReport::default();
        let answers = self.turns.iter().zip(predictions);
        let scored = answers.map(|(turn, prediction)| {
            let answer = turn.answer(prediction, &mut unflattened);
            let score = scorer.score_turn(&turn.item, &answer);
            (score, turn.item.leaf_errors(&answer))
        });
        let (scores, leaf_errors): (Vec<TurnScore>, Vec<LeafErrors>) = scored.unzip();
        let retries = self.retry_summary(predictions, &scores, &mut scorer);
        let golds = self.turns.iter();
        let golds = golds.map(|turn| scorer.score_turn(&turn.item, &turn.item.gold_answer()));
        let golds: Vec<TurnScore> = golds.collect();
        let (summary, of_golds) = (CallsSummary::new(&scores), CallsSummary::new(&golds));
        let ceilings = SUITE.ceilings(|name| of_golds.value(name));
        let by_file = self.files.measure_by_file(CallsSummary::NAMES, |range| {
            let summary = CallsSummary::new(&scores[range]);
            Ok(CallsSummary::NAMES.map(|name| summary.value(name)))
        })?;
        let lines = self.turns.iter().zip(predictions).zip(&scores);
        let lines = lines.zip(&leaf_errors);
        let lines = lines.map(|(((turn, prediction), score), leaf_errors)| ScoredTurn {
            scored: ScoredPrediction {
                prediction,
                prompt: turn.question(),
                gold: match &turn.text {
                    Some(text) => Gold::Text(text),
                    None => Gold::Calls(&turn.item.gold),
                },
                score,
            },
            leaf_errors,
        });
        let is_flat = self.turns.iter().any(|turn| turn.flat.is_some());
        let report = Report {
            summary: &summary,
            by_file: by_file.as_ref(),
            ceilings: &ceilings,
            flat: is_flat.then_some(&unflattened),
            leaf_errors: LeafErrorSummary::new(
                self.ids().into_iter().zip(&leaf_errors),
                LeafGroups::Tool,
            ),
            retries: retries.as_ref(),
        };
        let notes = retries.iter().map(RetrySummary::line);
        let notes = notes.chain(ceiling_notes(&SUITE, &ceilings));
        Ok(SuiteResult {
            metrics: named_means(Suite::from_info(&SUITE), &CallsSummary::NAMES, |name| {
                summary.value(name)
            }),
            files: report_files(LINES, &report, lines)?,
            table: calls_table("this run", &summary),
            by_file,
            notes: notes.collect(),
            warnings: Vec::new(),
        })
    }
}

impl PredictedTurn {
    fn new(item: CallsItem, row: &Row, flat: Option<Rc<FlatToolRow>>) -> Self {
        let conversation = flat
            .as_deref()
            .map_or(&row.conversation, |flat| &flat.conversation);
        let message = &row.conversation.messages[item.message];
        let has_no_calls = item.gold.is_empty();
        Self {
            prompt: item.prompt(conversation),
            text: has_no_calls.then(|| message.content.clone().unwrap_or_default()),
            item,
            flat,
        }
    }

    /// The last user message; if calls and results follow it, all of these messages with their
    /// roles.
    fn question(&self) -> String {
        let messages = self.prompt.prompt();
        let user = messages
            .iter()
            .rposition(|message| message.role == Role::User);
        let content = |message: &Message| message.content.clone().unwrap_or_default();
        match &messages[user.unwrap_or(0)..] {
            [only] => content(only),
            several => {
                let lines = several.iter().flat_map(|message| {
                    let name = message.role.as_str();
                    let text = content(message);
                    let text = (!text.is_empty()).then(|| format!("{name}: {text}"));
                    let calls = message.tool_calls.iter().map(move |call| {
                        let arguments = Value::Object(call.arguments.clone());
                        format!("{name}: {} {}", call.name, dumps(&arguments, Style::Python))
                    });
                    text.into_iter().chain(calls)
                });
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// The calls of an answer, as parsed by the server if it parsed any, otherwise as parsed from
    /// the text.
    fn answer(&self, prediction: &Prediction, report: &mut UnflattenReport) -> CallsAnswer {
        let answer = self.written_calls(prediction);
        let answer = match &self.flat {
            Some(flat) => answer.unflatten(flat, report),
            None => answer,
        };
        if prediction.is_cut() {
            answer.truncate()
        } else {
            answer
        }
    }
}

impl PromptSuite for CallsSuite {
    type Answer = Prediction;

    fn info(&self) -> &'static SuiteInfo {
        &SUITE
    }

    fn ids(&self) -> Vec<&str> {
        self.turns
            .iter()
            .map(|turn| turn.item.id.as_str())
            .collect()
    }

    fn join(&self) -> JoinBy {
        JoinBy {
            noun: "turns",
            ids_are_positions: true,
            published_id: None,
        }
    }

    fn prompt(&self, turn: usize) -> Result<PromptText<'_>, Error> {
        Ok(PromptText::Chat(&self.turns[turn].prompt))
    }

    fn score(&self, answers: Vec<Prediction>, _: Scoring<'_>) -> Result<SuiteResult, Error> {
        self.score_predictions(&answers)
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn max_retries(&self) -> usize {
        self.retries
    }

    fn rejection(
        &self,
        turn: usize,
        retried: Option<&Conversation>,
        completion: &Completion,
    ) -> Option<Rejection> {
        self.turns[turn].rejection(retried, completion, &mut self.validator.borrow_mut())
    }

    fn check(&self, generator: &Generator<'_>) -> Result<(), Error> {
        match generator {
            Generator::Local(model) => refuse_unread_template(&model.base.template),
            Generator::Endpoint(_) => Ok(()),
        }
    }

    fn constraints(&self, generator: &Generator<'_>) -> Result<Constraints, Error> {
        let requested = self.turns.iter().map(|turn| {
            let source = if turn.item.gold.is_empty() {
                RequestedConstraint::Nothing
            } else {
                RequestedConstraint::Calls(turn.prompt.tools.clone().unwrap_or_default())
            };
            (turn.item.id.as_str(), source)
        });
        Constraints::compile(generator, requested)
    }
}

/// The error for rows without a turn to predict.
fn no_turns_error(config: &Config, rows: &[Row], skipped: &SkippedTurns) -> Error {
    let why = match (rows.len(), skipped.lines()) {
        (0, _) => "data.eval has no rows".to_owned(),
        (_, lines) if lines.is_empty() => "the rows have no assistant turns".to_owned(),
        (_, lines) => lines.join("; "),
    };
    Error::NothingToEvaluate(format!(
        "the calls suite needs assistant turns in rows with tools, but there are none \
         (data.format = \"{}\"): {why}",
        config.data.format
    ))
}

/// The format in which a chat template writes calls, or why it cannot be enforced.
pub(super) fn call_format(template: &ChatTemplate) -> Result<CallFormat, String> {
    let (dialect, example) = match TemplateCalls::probe(template) {
        TemplateCalls::Read { dialect, written } => (dialect, written),
        TemplateCalls::Nothing => {
            return Err("the chat template does not write calls of tools".to_owned());
        }
        TemplateCalls::Unread { .. } => {
            return Err("the chat template writes calls in an unknown format".to_owned());
        }
    };
    let starts_with = |mark: &str| example.trim_start().starts_with(mark);
    match dialect {
        CallDialect::Hermes if starts_with("<tool_call>\n{") => Ok(CallFormat::Hermes),
        CallDialect::Mistral if starts_with("[TOOL_CALLS] [{") => Ok(CallFormat::Mistral),
        CallDialect::Granite if starts_with("<|tool_call|>[{") => Ok(CallFormat::Granite),
        CallDialect::Json if example.contains("\"parameters\"") => Ok(CallFormat::Llama),
        CallDialect::Json if starts_with("{") => Ok(CallFormat::Plain),
        _ => {
            let first: String = example
                .trim_start()
                .chars()
                .take(N_SHOWN_CHARACTERS)
                .collect();
            Err(format!(
                "the chat template writes calls as {dialect} ({first:?}...), which cannot be \
                 enforced"
            ))
        }
    }
}

/// Rejects a chat template whose calls cannot be parsed: all of them would be scored as wrong.
fn refuse_unread_template(template: &ChatTemplate) -> Result<(), Error> {
    let TemplateCalls::Unread { written } = TemplateCalls::probe(template) else {
        return Ok(());
    };
    let name = template.origin().unwrap_or("of the model");
    Err(Error::Usage(format!(
        "the calls suite cannot parse the calls that the chat template {name} writes, such as \
         {:?}; set data.chat_template to a template that uses the format of one of the families \
         in docs/metrics.md, or leave the suite out",
        excerpt(&written)
    )))
}

/// Calls parsed from a text, and the reasons why other calls could not be parsed.
#[derive(Debug)]
pub struct WrittenCalls {
    /// Calls with nested arguments.
    pub calls: Vec<WrittenCall>,
    /// One reason per malformed call.
    pub malformed: Vec<String>,
}

/// Parses the calls of `tools` in a text. `row` is the flattened row that the model saw.
pub fn written_calls(text: &str, tools: &[Value], row: &FlatToolRow) -> WrittenCalls {
    if tools.is_empty() {
        return WrittenCalls {
            calls: Vec::new(),
            malformed: Vec::new(),
        };
    }
    let answer = read_calls(text, &ToolSet::new(tools));
    let answer = answer.unflatten(row, &mut UnflattenReport::default());
    WrittenCalls {
        calls: answer.calls,
        malformed: answer.malformed,
    }
}
