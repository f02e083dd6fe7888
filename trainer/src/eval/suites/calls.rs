//! The suite calls: turns of conversations become calls of the tools of their row.
//!
//! Each turn is asked after the row's own history, so that one wrong answer costs one turn. Where a
//! config flattens tools, the model is shown flat ones and its arguments are nested again before
//! they are scored.
//! The decision to question: a constrained evaluation constrains the turns in which calls are wanted
//! and no others. It measures what is called and with which arguments, as a server does that is asked
//! for calls; whether to call at all is what a free evaluation measures.

use std::cell::OnceCell;
use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{FlatToolRow, FlattenReport, UnflattenReport, flatten_tool_row};
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::text::{Conversation, Message, Role, Row};
use tooltune_suites::Ceiling;
use tooltune_suites::calls::{
    AskedTurns, CallDialect, CallsAnswer, CallsItem, CallsScorer, CallsSummary, MAX_CALLS, SUITE,
    SkippedTurns, ToolSet, TurnScore, WrittenCall, calls_items, calls_table, read_calls,
};

use super::{
    EvalContext, LoadedSuite, Opening, SuiteKind, SuiteResult, ceiling_notes, named_means,
};
use crate::config::{Config, Flatten, Suite};
use crate::error::Error;
use crate::eval::by_file::{ByFile, SampleFiles};
use crate::eval::constraints::{Constraints, Kept};
use crate::eval::generator::{GenerationRequest, Generator, PromptText};
use crate::eval::prediction::{Prediction, read_predictions};
use crate::eval::report_files::report_files;
use crate::eval::saved::check_ids;
use crate::progress::counted;
use crate::rows::{ReadingReport, eval_rows};
use crate::settings;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |opening| Ok(Box::new(CallsSuite::open(opening)?)),
    change: None,
};

/// The turns of the rows that are asked.
#[derive(Debug)]
pub(super) struct CallsSuite {
    turns: Vec<AskedTurn>,
    files: SampleFiles,
    max_new_tokens: usize,
    constrained: bool,
    constraints: OnceCell<Constraints>,
    remarks: Vec<String>,
}

/// A turn, and what the model is shown before it.
#[derive(Debug)]
struct AskedTurn {
    item: CallsItem,
    prompt: Conversation,
    /// The row with flat tools, where the config flattens.
    flat: Option<Rc<FlatToolRow>>,
    /// What the row has there, where no call is wanted.
    text: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    summary: &'a CallsSummary,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
    /// What the gold scores, where that is not the best.
    #[serde(skip_serializing_if = "<[Ceiling]>::is_empty")]
    ceilings: &'a [Ceiling],
    #[serde(skip_serializing_if = "Option::is_none")]
    flat: Option<&'a UnflattenReport>,
}

#[derive(Serialize)]
struct ScoredTurn<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    /// What is asked: the last message of the user, and what came after it.
    prompt: String,
    gold: Gold<'a>,
    score: &'a TurnScore,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Gold<'a> {
    Calls(&'a [WrittenCall]),
    Text(&'a str),
}

impl CallsSuite {
    /// Reads the rows of `data.eval` as they are in their files, and lists their turns.
    ///
    /// # Errors
    ///
    /// Rows that cannot be read, none with tools, or a turn with more calls than are compared.
    pub(super) fn open(opening: Opening<'_>) -> Result<Self, Error> {
        let Opening { config, device, .. } = opening;
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
            let items = calls_items(row, AskedTurns::default(), &mut skipped);
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
                    .map(|item| AskedTurn::of(item, row, flat.clone())),
            );
        }
        if let Some(turn) = turns.iter().find(|turn| turn.item.gold.len() > MAX_CALLS) {
            return Err(Error::Usage(format!(
                "{}: the turn wants {} calls, and those of a turn are compared up to {MAX_CALLS} \
                 (docs/limits.md); split the turn, or take the row out",
                turn.item.id,
                turn.item.gold.len()
            )));
        }
        if turns.is_empty() {
            return Err(nothing_to_ask(config, &rows, &skipped));
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
            "calls: {} of {} are asked, with {n_calls} wanted calls; in {n_texts} of them a text is \
             wanted",
            counted(turns.len(), "turn"),
            counted(rows.len(), "row")
        ));
        Ok(Self {
            turns,
            files,
            max_new_tokens: config.eval.max_new_tokens,
            constrained: config.eval.constrained,
            constraints: OnceCell::new(),
            remarks,
        })
    }

    fn requests<'a>(&'a self, constraints: &'a Constraints) -> Vec<GenerationRequest<'a>> {
        let request = |(i, turn): (usize, &'a AskedTurn)| GenerationRequest {
            id: &turn.item.id,
            text: PromptText::Chat(&turn.prompt),
            max_new_tokens: self.max_new_tokens,
            constraint: constraints.of_prompt(i),
        };
        self.turns.iter().enumerate().map(request).collect()
    }

    /// What turns keep to, compiled at the first evaluation; those that are written freely though
    /// calls are wanted in them are said then.
    fn constraints(&self, generator: &Generator<'_>) -> Result<&Constraints, Error> {
        if let Some(constraints) = self.constraints.get() {
            return Ok(constraints);
        }
        let constraints = if self.constrained {
            self.compiled(generator)?
        } else {
            Constraints::default()
        };
        if let Some(line) = constraints.line(self.turns.len()) {
            tracing::warn!("{line}");
        }
        Ok(self.constraints.get_or_init(|| constraints))
    }

    fn compiled(&self, generator: &Generator<'_>) -> Result<Constraints, Error> {
        let kept = self.turns.iter().map(|turn| {
            let kept = if turn.item.gold.is_empty() {
                Kept::Nothing
            } else {
                Kept::Calls(turn.prompt.tools.clone().unwrap_or_default())
            };
            (turn.item.id.as_str(), kept)
        });
        Constraints::compiled(generator, &kept.collect::<Vec<_>>())
    }

    /// Scores answers in the order of the turns.
    ///
    /// # Errors
    ///
    /// Never for what suites make.
    fn score(&self, predictions: &[Prediction]) -> Result<SuiteResult, Error> {
        let mut scorer = CallsScorer::default();
        let mut unflattened = UnflattenReport::default();
        let scores: Vec<TurnScore> = self
            .turns
            .iter()
            .zip(predictions)
            .map(|(turn, prediction)| {
                let answer = turn.answer(prediction, &mut unflattened);
                scorer.score_turn(&turn.item, &answer)
            })
            .collect();
        let golds = self.turns.iter();
        let golds = golds.map(|turn| scorer.score_turn(&turn.item, &turn.item.gold_answer()));
        let golds: Vec<TurnScore> = golds.collect();
        let (summary, of_golds) = (CallsSummary::new(&scores), CallsSummary::new(&golds));
        let ceilings = SUITE.ceilings(|name| of_golds.value(name));
        let by_file = self.files.measured(CallsSummary::NAMES, |range| {
            let summary = CallsSummary::new(&scores[range]);
            Ok(CallsSummary::NAMES.map(|name| summary.value(name)))
        })?;
        let lines = self.turns.iter().zip(predictions).zip(&scores);
        let lines = lines.map(|((turn, prediction), score)| ScoredTurn {
            prediction,
            prompt: turn.asked(),
            gold: match &turn.text {
                Some(text) => Gold::Text(text),
                None => Gold::Calls(&turn.item.gold),
            },
            score,
        });
        let is_flat = self.turns.iter().any(|turn| turn.flat.is_some());
        let report = Report {
            summary: &summary,
            by_file: by_file.as_ref(),
            ceilings: &ceilings,
            flat: is_flat.then_some(&unflattened),
        };
        let notes = ceiling_notes(&SUITE, &ceilings);
        Ok(SuiteResult {
            metrics: named_means(Suite::of(&SUITE), &CallsSummary::NAMES, |name| {
                summary.value(name)
            }),
            files: report_files(&report, lines)?,
            table: calls_table("this run", &summary),
            by_file,
            notes: notes.collect(),
            warnings: Vec::new(),
        })
    }
}

impl AskedTurn {
    fn of(item: CallsItem, row: &Row, flat: Option<Rc<FlatToolRow>>) -> Self {
        let shown = flat
            .as_deref()
            .map_or(&row.conversation, |flat| &flat.conversation);
        let message = &row.conversation.messages[item.message];
        let text = item.gold.is_empty();
        Self {
            prompt: item.prompt(shown),
            text: text.then(|| message.content.clone().unwrap_or_default()),
            item,
            flat,
        }
    }

    /// The last message of the user as it is; with calls and their results behind it, all of them by
    /// who speaks.
    fn asked(&self) -> String {
        let messages = self.prompt.prompt();
        let user = messages
            .iter()
            .rposition(|message| message.role == Role::User);
        let content = |message: &Message| message.content.clone().unwrap_or_default();
        match &messages[user.unwrap_or(0)..] {
            [only] => content(only),
            several => {
                let said = several.iter().flat_map(|message| {
                    let name = message.role.as_str();
                    let text = content(message);
                    let text = (!text.is_empty()).then(|| format!("{name}: {text}"));
                    let calls = message.tool_calls.iter().map(move |call| {
                        let arguments = Value::Object(call.arguments.clone());
                        format!("{name}: {} {}", call.name, dumps(&arguments, Style::Python))
                    });
                    text.into_iter().chain(calls)
                });
                said.collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// The calls of an answer: those that a server has read, else those in the text.
    fn answer(&self, prediction: &Prediction, report: &mut UnflattenReport) -> CallsAnswer {
        let answer = if prediction.tool_calls.is_empty() {
            read_calls(&prediction.prediction, &self.item.tools)
        } else {
            CallsAnswer::of_server(&prediction.tool_calls)
        };
        match &self.flat {
            Some(flat) => answer.unflattened(flat, report),
            None => answer,
        }
    }
}

impl LoadedSuite for CallsSuite {
    fn suite(&self) -> Suite {
        Suite::of(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.turns.len()
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        const FREE: &Constraints = &Constraints {
            by_prompt: Vec::new(),
            unsupported: Vec::new(),
        };
        Ok(self.requests(FREE))
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let requests = self.requests(self.constraints(&generator)?);
        let Some(texts) = generator.write(&requests, context.journal, context.watch)? else {
            return Ok(None);
        };
        let predictions = self.turns.iter().zip(texts);
        let predictions: Vec<Prediction> = predictions
            .map(|(turn, written)| Prediction::new(turn.item.id.clone(), written))
            .collect();
        self.score(&predictions).map(Some)
    }

    fn score_saved(&self, path: &Path, _: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let predictions = read_predictions(path)?;
        let ids = predictions.iter().map(|prediction| prediction.id.as_str());
        check_ids(
            path,
            ids,
            self.turns.iter().map(|turn| turn.item.id.as_str()),
        )?;
        if predictions.len() != self.turns.len() {
            return Err(Error::Usage(format!(
                "{}: {} predictions for {} turns; give one line for each turn, in their order",
                path.display(),
                predictions.len(),
                self.turns.len()
            )));
        }
        self.score(&predictions).map(Some)
    }
}

/// Why rows have no turn that can be asked.
fn nothing_to_ask(config: &Config, rows: &[Row], skipped: &SkippedTurns) -> Error {
    let why = match (rows.len(), skipped.lines()) {
        (0, _) => "data.eval has no rows".to_owned(),
        (_, lines) if lines.is_empty() => "their rows have no turn of the assistant".to_owned(),
        (_, lines) => lines.join("; "),
    };
    Error::NothingToAsk(format!(
        "the suite calls asks the turns of the assistant in rows with tools, and there is none \
         (data.format = \"{}\"): {why}",
        config.data.format
    ))
}

/// How the calls in a text are written, by the name of the way; none without a whole call of one of
/// the tools.
pub(super) fn dialect(text: &str, tools: &[Value]) -> Option<&'static str> {
    let answer = read_calls(text, &ToolSet::new(tools));
    let dialect = answer.dialect.filter(|_| !answer.calls.is_empty());
    dialect.map(CallDialect::name)
}

/// The calls in a text, and why what is to be one is none.
#[derive(Debug)]
pub struct WrittenCalls {
    /// The calls, with nested arguments.
    pub calls: Vec<WrittenCall>,
    /// A reason for each of the others.
    pub malformed: Vec<String>,
}

/// Reads the calls of `tools` in a text; `shown` is what the model was shown.
pub fn written_calls(text: &str, tools: &[Value], shown: &FlatToolRow) -> WrittenCalls {
    if tools.is_empty() {
        return WrittenCalls {
            calls: Vec::new(),
            malformed: Vec::new(),
        };
    }
    let answer = read_calls(text, &ToolSet::new(tools));
    let answer = answer.unflattened(shown, &mut UnflattenReport::default());
    WrittenCalls {
        calls: answer.calls,
        malformed: answer.malformed,
    }
}
