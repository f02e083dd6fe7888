//! The `toolqa` suite: answers questions about tool outputs, directly or by generated functions.

mod code;
mod routed;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use tooltune_apis::{JsonLines, ToolsError};
use tooltune_suites::toolqa::{
    CodeRule, CodeRunner, PromptOptions, PromptSet, QuestionClassifier, ResponseText, SUITE,
    Schemas, ScoreOptions, Setting, SettingChoice, ToolQaError, ToolQaNumbers, ToolQaPrediction,
    ToolQaReport, ToolQaRow, ToolQaRun, ToolResponses, gold_numbers, judge_answers, n_neither,
    read_questions, score_predictions, toolqa_table,
};
use tooltune_suites::{JudgeVerdict, SuiteInfo};
use tooltune_template::{Conversation, Message, Role};

use self::code::SandboxedCode;
use self::routed::RoutedSuite;
use super::judge::{Judge, JudgeSummary, Judged};
use super::prompt_suite::{Answer, JoinBy, PromptEvaluation, PromptSuite, Scoring};
use super::row_suite::{self, RowAnswer, read_files, unconstrained_settings};
use super::verdicts::{read_verdicts, verdicts_line};
use super::{Purpose, SuiteContext, SuiteKind, SuiteResult, named_means};
use crate::config::eval::ToolQaConfig;
use crate::config::{EvalConfig, Suite};
use crate::error::{Error, SuiteError};
use crate::eval::by_file::{ByFile, SampleFiles};
use crate::eval::generate::FinishReason;
use crate::eval::generator::{Completion, PromptText};
use crate::eval::report_files::{
    JUDGE_FILE, METRICS_FILE, PredictionLines, json_lines, report_files,
};
use tooltune_terminal::{GenerationProgress, Waiting, Work};

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |suite_context| {
        let config = &suite_context.config.eval.toolqa.clone().unwrap_or_default();
        // Missing questions are reported before missing responses.
        suite_context.files(&config.data)?;
        let responses = read_responses(config)?;
        if config.classify {
            if suite_context.verdicts.is_some() {
                return Err(Error::Usage(
                    "--verdicts does not apply to eval.toolqa.classify, which needs no judge"
                        .to_owned(),
                ));
            }
            let classifier = QuestionClassifier {
                prompts: prompts(config)?,
                schemas: schemas(config)?,
                responses,
            };
            return row_suite::open::<_, ToolQaPrediction>(suite_context, classifier);
        }
        let suite = ToolQaSuite::open(suite_context, config, &responses)?;
        let settings = unconstrained_settings(suite_context, &SUITE);
        Ok(match config.routes() {
            Some(routes) => RoutedSuite::into_loaded(suite, routes, settings)?,
            None => PromptEvaluation::into_loaded(suite, settings),
        })
    },
    change: None,
};

impl SuiteError for ToolQaError {
    fn is_system_error(&self) -> bool {
        match self {
            Self::File(error) => error.is_system_error(),
            Self::Rows(error) => error.is_system_error(),
            _ => false,
        }
    }
}

/// The lines of `predictions.jsonl`.
const ANSWERS: PredictionLines = PredictionLines {
    suite: &SUITE,
    kind: "answer",
};

/// Number of functions run in parallel.
const CONCURRENCY: usize = 4;

/// Questions, prompts and scoring options.
#[derive(Debug)]
pub(super) struct ToolQaSuite {
    rows: Vec<ToolQaRow>,
    files: SampleFiles,
    set: PromptSet,
    schemas: Schemas,
    prompt_options: PromptOptions,
    /// Whether prompts show only the keys that the program of the answer reads.
    oracle_projection: bool,
    /// The setting of all questions; `None` if each has its own.
    setting: Option<Setting>,
    /// Runs generated functions; `None` for settings that ask for answers.
    code: Option<SandboxedCode>,
    judge: Option<Judge>,
    /// Verdicts of people, with their file.
    verdicts: Option<(PathBuf, Vec<JudgeVerdict>)>,
    /// The prompts, built once.
    conversations: OnceCell<Vec<Conversation>>,
}

/// `metrics.json`: the metrics and a summary of the judging.
#[derive(Serialize)]
struct MetricsFile<'a> {
    #[serde(flatten)]
    report: &'a ToolQaReport,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    judge: Option<&'a JudgeSummary>,
}

impl ToolQaSuite {
    /// Reads questions, prompts and schemas, and opens sandbox and judge.
    ///
    /// # Errors
    ///
    /// A file cannot be read, running code is required but not allowed, or this machine cannot
    /// isolate it.
    fn open(
        suite_context: SuiteContext<'_>,
        config: &ToolQaConfig,
        responses: &ToolResponses,
    ) -> Result<Self, Error> {
        let is_run = suite_context.purpose == Purpose::Run;
        let judge = config.judge.as_ref();
        let judge = judge.filter(|judge| judge.in_loop || !is_run);
        let judge = judge.filter(|_| suite_context.verdicts.is_none());
        let (rows, files) = read_files(suite_context, &SUITE, |lines| {
            Ok(read_questions(lines, responses)?)
        })?;
        let ids: Vec<&str> = rows
            .iter()
            .map(|row: &ToolQaRow| row.uid.as_str())
            .collect();
        let verdicts = suite_context.verdicts.map(|path| {
            let verdicts = read_verdicts(path, &ids)?;
            Ok::<_, Error>((path.to_owned(), verdicts))
        });
        Ok(Self {
            verdicts: verdicts.transpose()?,
            rows,
            files,
            set: prompts(config)?,
            schemas: schemas(config)?,
            prompt_options: PromptOptions {
                response_text: if config.python_repr {
                    ResponseText::PythonRepr
                } else {
                    ResponseText::Json
                },
                reduction: config.shortening().unwrap_or_default(),
                reduce_all: config.shortening(),
            },
            oracle_projection: config.oracle_projection,
            setting: match config.setting {
                SettingChoice::All(setting) => Some(setting),
                SettingChoice::Routed => None,
            },
            code: code_runner(config, &suite_context.config.eval)?,
            judge: judge
                .map(|judge| Judge::open("eval.toolqa.judge", judge))
                .transpose()?,
            conversations: OnceCell::new(),
        })
    }

    /// The prompt of each row in the configured setting.
    ///
    /// # Errors
    ///
    /// A schema is missing, or the JMESPath expression fails on a response.
    fn conversations(&self) -> Result<&[Conversation], Error> {
        if let Some(conversations) = self.conversations.get() {
            return Ok(conversations);
        }
        // Routed questions have no prompt before they are classified.
        let setting = self.setting.unwrap_or(Setting::Answer);
        let conversations = self.rows.iter().map(|row| self.conversation(row, setting));
        let conversations = conversations.collect::<Result<_, ToolQaError>>()?;
        Ok(self.conversations.get_or_init(|| conversations))
    }

    /// The prompt of a row in a setting.
    ///
    /// # Errors
    ///
    /// As for [`Self::conversations`], or the row lacks the keys of its projection.
    fn conversation(&self, row: &ToolQaRow, setting: Setting) -> Result<Conversation, ToolQaError> {
        let shown = match self.oracle_projection {
            true => Cow::Owned(row.projected()?),
            false => Cow::Borrowed(row),
        };
        let messages = self
            .set
            .messages(&shown, setting, &self.schemas, &self.prompt_options)?;
        Ok(Conversation::new(messages))
    }

    /// The prompt that asks for the type of a row's question.
    ///
    /// # Errors
    ///
    /// A schema is missing, or the row lacks the keys of its projection.
    fn classifier_conversation(&self, row: &ToolQaRow) -> Result<Conversation, ToolQaError> {
        let schema = match self.oracle_projection {
            true => self.schemas.text(&row.projected()?)?,
            false => self.schemas.text(row)?,
        };
        let prompt = self.set.classifier(&row.question, &schema);
        Ok(Conversation::new(vec![Message::new(Role::User, prompt)]))
    }

    /// Runs functions, then scores and judges predictions.
    ///
    /// # Errors
    ///
    /// The predictions are of other rows, the judge does not answer, or [`Error::Stopped`] if
    /// `watch` stopped the work.
    fn score_and_judge(
        &self,
        predictions: &[ToolQaPrediction],
        scoring: Scoring<'_>,
    ) -> Result<SuiteResult, Error> {
        let Scoring { keep, watch, .. } = scoring;
        let options = ScoreOptions {
            setting: self.setting,
            code_rule: CodeRule::Official,
            concurrency: CONCURRENCY,
        };
        let runner = self.code.as_ref().map(|code| code as &dyn CodeRunner);
        let run = score_predictions(&self.rows, predictions, &options, runner, &mut |n_done| {
            watch(code_progress(n_done, self.rows.len(), runner.is_some()))
        });
        let run = match run {
            Err(ToolQaError::Stopped { .. }) => return Err(Error::Stopped),
            run => run?,
        };
        if let Some((_, verdicts)) = &self.verdicts {
            return self.result(run.with_verdicts(verdicts)?, None);
        }
        let Some(judge) = &self.judge else {
            return self.result(run, None);
        };
        let mut files = self.result(run.clone(), None)?.files;
        files.remove(METRICS_FILE);
        keep(&files)?;
        let Judged { verdicts, failure } = judge.verdicts(watch, |endpoint, options, watch| {
            judge_answers(endpoint, &run.samples, &self.set, options, watch)
        });
        match failure {
            Some(failure) => Err(failure),
            None => {
                // A reply with neither true nor false means no, as in the paper, and is counted as
                // unparsable.
                let summary = JudgeSummary {
                    n_unparsed: n_neither(&verdicts),
                    ..judge.summary(&verdicts)
                };
                let judged = (summary, json_lines(&verdicts)?);
                self.result(run.with_verdicts(&verdicts)?, Some(judged))
            }
        }
    }

    fn result(
        &self,
        run: ToolQaRun,
        judged: Option<(JudgeSummary, Vec<u8>)>,
    ) -> Result<SuiteResult, Error> {
        let by_file = self.files.measure_by_file(ToolQaNumbers::NAMES, |range| {
            // Metrics of a file are undefined if none of its samples has an output.
            let run = ToolQaRun::new(run.samples[range].to_vec()).ok();
            let value = |name| run.as_ref()?.report.overall.value(name);
            Ok(ToolQaNumbers::NAMES.map(value))
        })?;
        let (judge, verdicts) = judged.unzip();
        let metrics_file = MetricsFile {
            report: &run.report,
            by_file: by_file.as_ref(),
            judge: judge.as_ref(),
        };
        let mut files = report_files(ANSWERS, &metrics_file, &run.samples)?;
        files.extend(verdicts.map(|lines| (JUDGE_FILE.to_string(), lines)));
        let n = run.report.n_without_output;
        let without_output = (n > 0).then(|| {
            format!("{n} questions have neither an answer nor an output and are not scored")
        });
        let judged = judge.map(|judge| judge.line("answers", "wrong"));
        let people = self.verdicts.as_ref();
        let people = people.map(|(path, verdicts)| verdicts_line(path, verdicts.len()));
        let result = SuiteResult {
            metrics: named_means(Suite::from_info(&SUITE), SUITE.metrics, |name| {
                run.report.overall.value(name)
            }),
            files,
            table: toolqa_table(&run.report),
            by_file,
            notes: without_output
                .into_iter()
                .chain(judged)
                .chain(people)
                .collect(),
            warnings: Vec::new(),
        };
        let golds = gold_numbers(&self.rows);
        result.with_ceilings(&SUITE, &SUITE.ceilings(|name| golds?.value(name)))
    }
}

impl Answer for ToolQaPrediction {
    fn from_completion(id: &str, completion: Completion) -> Self {
        let context_exceeded = completion.finish_reason == FinishReason::Context.name();
        Self {
            uid: id.to_owned(),
            model_output: (!context_exceeded).then_some(completion.text),
            context_exceeded,
            finish_reason: Some(completion.finish_reason),
            n_tokens: Some(completion.n_tokens),
            setting: None,
            classifier_output: None,
            without_text: completion.without_text,
        }
    }

    fn from_line(line: Value) -> Result<Self, String> {
        ToolQaPrediction::from_line(&line).map_err(|error| error.to_string())
    }
}

impl RowAnswer for ToolQaPrediction {
    const PUBLISHED_ID: Option<&'static str> = Some("uid");

    fn output(&self) -> &str {
        self.model_output.as_deref().unwrap_or_default()
    }
}

impl PromptSuite for ToolQaSuite {
    type Answer = ToolQaPrediction;

    fn info(&self) -> &'static SuiteInfo {
        &SUITE
    }

    fn ids(&self) -> Vec<&str> {
        self.rows.iter().map(|row| row.uid.as_str()).collect()
    }

    fn join(&self) -> JoinBy {
        JoinBy {
            noun: "questions",
            ids_are_positions: false,
            published_id: ToolQaPrediction::PUBLISHED_ID,
        }
    }

    fn prompt(&self, row: usize) -> Result<PromptText<'_>, Error> {
        Ok(PromptText::Chat(&self.conversations()?[row]))
    }

    fn score(
        &self,
        answers: Vec<ToolQaPrediction>,
        scoring: Scoring<'_>,
    ) -> Result<SuiteResult, Error> {
        self.score_and_judge(&answers, scoring)
    }
}

/// The responses that the questions are about.
///
/// # Errors
///
/// The config names no file, or it cannot be read.
fn read_responses(config: &ToolQaConfig) -> Result<ToolResponses, Error> {
    let path = config.responses.as_ref().ok_or_else(|| {
        Error::Usage(
            "the suite toolqa needs a file of tool responses: set it, for example with \
             --set eval.toolqa.responses=responses.jsonl"
                .to_string(),
        )
    })?;
    let records = tooltune_files::open(path).map_err(ToolsError::from)?;
    Ok(ToolResponses::read(JsonLines::from_records(records))?)
}

fn prompts(config: &ToolQaConfig) -> Result<PromptSet, ToolQaError> {
    let path = config.prompts.as_deref();
    path.map_or_else(|| Ok(PromptSet::default()), PromptSet::read)
}

fn schemas(config: &ToolQaConfig) -> Result<Schemas, ToolQaError> {
    let folder = config.schemas.as_deref();
    folder.map_or(Ok(Schemas::Inferred), Schemas::read)
}

/// The progress of scoring. `runs` is whether functions run in the sandbox.
fn code_progress(n_done: usize, n_total: usize, runs: bool) -> GenerationProgress {
    GenerationProgress {
        work: Work::RunningCode,
        n_done,
        n_total,
        n_tokens: 0,
        waiting: runs.then_some(Waiting {
            what: "functions in the sandbox",
            n: CONCURRENCY.min(n_total - n_done),
            seconds: 0,
        }),
    }
}

fn code_runner(config: &ToolQaConfig, eval: &EvalConfig) -> Result<Option<SandboxedCode>, Error> {
    let Some(setting) = config.code_setting() else {
        return Ok(None);
    };
    if !config.run_code {
        return Err(Error::Usage(format!(
            "the setting {} runs functions that the model writes; allow this with \
             eval.toolqa.run_code = true, which runs each one in a sandbox",
            setting.name()
        )));
    }
    SandboxedCode::open(&eval.sandbox).map(Some)
}
