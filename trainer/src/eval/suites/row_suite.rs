//! Evaluates a [`RowSuite`]: reads its files, builds its prompts, and reports its scores.

use std::cell::OnceCell;
use std::fmt::Debug;
use std::marker::PhantomData;

use serde::Serialize;
use serde_json::{Map, Value};
use tooltune_apis::{JsonLines, ToolsError};
use tooltune_suites::{Estimate, RowError, RowSuite, SampleScores, SuiteInfo};
use tooltune_template::{Conversation, Message, Role};

use super::prompt_suite::{Answer, JoinBy, PromptEvaluation, PromptSettings, PromptSuite, Scoring};
use super::{LoadedSuite, SuiteContext, SuiteResult, metrics_table, named_means, read_samples};
use crate::config::Suite;
use crate::error::{Error, SuiteError};
use crate::eval::by_file::SampleFiles;
use crate::eval::generator::PromptText;
use crate::eval::prediction::{Prediction, ScoredPrediction};
use crate::eval::report_files::{PredictionLines, json_value, report_files};

impl SuiteError for RowError {
    fn is_system_error(&self) -> bool {
        matches!(self, Self::File(error) if error.is_system_error())
    }
}

/// An answer that is scored by its output only.
pub(super) trait RowAnswer: Answer + Serialize + Debug {
    /// The field of the id in published predictions, if it is not `id`.
    const PUBLISHED_ID: Option<&'static str>;

    /// The output to score; empty if there is none or if it was cut off.
    fn output(&self) -> &str;
}

impl RowAnswer for Prediction {
    const PUBLISHED_ID: Option<&'static str> = None;

    fn output(&self) -> &str {
        self.whole_text()
    }
}

/// The rows of a suite and their prompts.
#[derive(Debug)]
struct Rows<S: RowSuite, A> {
    suite: S,
    rows: Vec<S::Row>,
    files: SampleFiles,
    /// The prompts, built once.
    prompts: OnceCell<Vec<Conversation>>,
    answers: PhantomData<fn() -> A>,
}

/// Reads the rows of a suite, from the files of the command line or of its table.
///
/// # Errors
///
/// There are no files, or a file or row cannot be read.
pub(super) fn open<S, A>(
    suite_context: SuiteContext<'_>,
    suite: S,
) -> Result<Box<dyn LoadedSuite>, Error>
where
    S: RowSuite + 'static,
    A: RowAnswer + 'static,
    Error: From<S::Error>,
{
    let (rows, files) = read_files(suite_context, S::SUITE, |lines| Ok(suite.read(lines)?))?;
    let rows = Rows::<S, A> {
        suite,
        rows,
        files,
        prompts: OnceCell::new(),
        answers: PhantomData,
    };
    let settings = unconstrained_settings(suite_context, S::SUITE);
    Ok(PromptEvaluation::into_loaded(rows, settings))
}

/// Reads the files of a suite, at most `eval.max_samples` rows.
///
/// # Errors
///
/// There are no files, a file cannot be read, or errors of `read`.
pub(super) fn read_files<T>(
    suite_context: SuiteContext<'_>,
    suite: &'static SuiteInfo,
    read: impl Fn(JsonLines) -> Result<Vec<T>, Error>,
) -> Result<(Vec<T>, SampleFiles), Error> {
    let eval = &suite_context.config.eval;
    let files = suite_context.files(eval.files_of(Suite::from_info(suite)))?;
    read_samples(files, eval, |file| {
        let records = tooltune_files::open(file).map_err(ToolsError::from)?;
        read(JsonLines::from_records(records))
    })
}

/// The settings of a suite whose answers have no schema.
pub(super) fn unconstrained_settings(
    suite_context: SuiteContext<'_>,
    suite: &'static SuiteInfo,
) -> PromptSettings {
    let eval = &suite_context.config.eval;
    if eval.constrained {
        tracing::warn!(
            "eval.constrained is ignored by the suite {}: its answers have no schema",
            suite.name
        );
    }
    PromptSettings {
        max_new_tokens: eval.max_new_tokens_of(Suite::from_info(suite)),
        constrained: false,
        ..PromptSettings::from_config(eval)
    }
}

impl<S: RowSuite, A: RowAnswer> Rows<S, A>
where
    Error: From<S::Error>,
{
    fn conversations(&self) -> Result<&[Conversation], Error> {
        if let Some(prompts) = self.prompts.get() {
            return Ok(prompts);
        }
        let prompt = |row| {
            let message = Message::new(Role::User, self.suite.prompt(row)?);
            Ok(Conversation::new(vec![message]))
        };
        let prompts = self.rows.iter().map(prompt).collect::<Result<_, Error>>()?;
        Ok(self.prompts.get_or_init(|| prompts))
    }

    /// The line of an answer in `predictions.jsonl`.
    fn line(&self, row: &S::Row, answer: &A) -> Result<Value, Error> {
        let output = answer.output();
        if let Some(line) = S::own_line(row, output) {
            return Ok(line);
        }
        let gold = S::gold(row);
        json_value(&ScoredPrediction {
            prediction: answer,
            prompt: self.suite.prompt(row)?,
            score: S::score(&gold, output),
            gold,
        })
    }
}

/// The means of a suite's metrics over lines.
fn means<S: RowSuite>(form: &SampleScores, lines: &[Value]) -> Vec<Option<Estimate>> {
    let means = form.means(lines);
    let mean = |name: &&str| Some(means.iter().find(|(key, _)| key == name)?.1);
    S::metrics().iter().map(mean).collect()
}

impl<S: RowSuite, A: RowAnswer> PromptSuite for Rows<S, A>
where
    Error: From<S::Error>,
{
    type Answer = A;

    fn info(&self) -> &'static SuiteInfo {
        S::SUITE
    }

    fn ids(&self) -> Vec<&str> {
        self.rows.iter().map(|row| S::id(row)).collect()
    }

    fn join(&self) -> JoinBy {
        JoinBy {
            noun: S::NOUN,
            ids_are_positions: false,
            published_id: A::PUBLISHED_ID,
        }
    }

    fn prompt(&self, row: usize) -> Result<PromptText<'_>, Error> {
        Ok(PromptText::Chat(&self.conversations()?[row]))
    }

    fn score(&self, answers: Vec<A>, _: Scoring<'_>) -> Result<SuiteResult, Error> {
        let (suite, names) = (S::SUITE, S::metrics());
        let form = suite.form(S::LINES).ok_or_else(|| {
            let (name, kind) = (suite.name, S::LINES);
            Error::Usage(format!("the suite {name} has no lines of the type {kind}"))
        })?;
        let lines = self.rows.iter().zip(&answers);
        let lines = lines.map(|(row, answer)| self.line(row, answer));
        let lines = lines.collect::<Result<Vec<Value>, Error>>()?;
        let means_of_all = means::<S>(form, &lines);
        let mean = |name: &str| {
            let idx = names.iter().position(|known| *known == name)?;
            means_of_all[idx]
        };
        let metrics = named_means(Suite::from_info(suite), names, mean);
        let outputs: Vec<&str> = answers.iter().map(RowAnswer::output).collect();
        let (fields, table, by_file) = match S::own_report(&self.rows, &outputs) {
            Some(report) => (report.fields, report.table, None),
            None => {
                let by_file = self
                    .files
                    .measure_by_file(names, |range| Ok(means::<S>(form, &lines[range])))?;
                let mut fields = Map::from_iter([("n".to_owned(), Value::from(lines.len()))]);
                for (name, mean) in names.iter().zip(&means_of_all) {
                    fields.insert((*name).to_owned(), json_value(mean)?);
                }
                fields.extend(
                    by_file
                        .as_ref()
                        .map(|by_file| by_file.fields())
                        .unwrap_or_default(),
                );
                (
                    fields,
                    metrics_table(suite, &metrics, mean, lines.len()),
                    by_file,
                )
            }
        };
        let prediction_lines = PredictionLines {
            suite,
            kind: S::LINES,
        };
        Ok(SuiteResult {
            metrics,
            files: report_files(prediction_lines, &fields, lines)?,
            table,
            by_file,
            notes: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
