//! The suite toolqa: questions about outputs of tools to answers or functions, and their scores.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use tooltune_rows::text::{Conversation, Message, Role};
use tooltune_suites::toolqa::{
    ClassifierReport, CodeRule, CodeRunner, PromptOptions, PromptSet, ResponseText, Schemas,
    ScoreOptions, Setting, ToolQaError, ToolQaNumbers, ToolQaPrediction, ToolQaReport, ToolQaRow,
    ToolQaRun, ToolResponses, read_questions, score_predictions,
};

use super::agents::JUDGE_FILE;
use super::by_file::{ByFile, SampleFiles};
use super::code::SandboxedCode;
use super::generate::{FinishReason, GenerationProgress, Waiting};
use super::generator::{Completion as Text, GenerationRequest, Generator, PromptText};
use super::judge::{Judge, JudgeSummary, Judged};
use super::report_files::{json_lines, report_files};
use crate::config::{EvalConfig, ToolQaConfig};
use crate::error::Error;

/// Functions that run at once.
const CONCURRENCY: usize = 4;

/// Questions, what is asked about them, and what scores the answers.
#[derive(Debug)]
pub struct ToolQaSuite {
    rows: Vec<ToolQaRow>,
    files: SampleFiles,
    set: PromptSet,
    schemas: Schemas,
    shown: PromptOptions,
    setting: Setting,
    max_new_tokens: usize,
    /// Runs the functions of the model; settings for answers have none.
    code: Option<SandboxedCode>,
    judge: Option<Judge>,
}

/// What is shown to the model, row by row.
#[derive(Debug)]
pub struct Asked {
    ids: Vec<String>,
    conversations: Vec<Conversation>,
    max_new_tokens: usize,
}

/// The numbers of an evaluation and the lines that they were counted from.
#[derive(Debug)]
pub struct ToolQaEvaluation {
    /// The scored rows.
    pub run: ToolQaRun,
    /// The numbers of each file, where the questions come from several.
    pub by_file: Option<ByFile>,
    /// What is to be said of the judging, if there was some.
    pub judge: Option<JudgeSummary>,
    /// `metrics.json`, `predictions.jsonl` with a line for each row, and the judge's verdicts where
    /// there are some.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// `metrics.json`: the numbers, and what is to be said of the judging.
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
    /// Reads questions, responses, prompts and schemas, and opens sandbox and judge.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, a setting for code that is not allowed to run it, or a machine
    /// that cannot isolate it.
    pub fn open(
        config: &ToolQaConfig,
        eval: &EvalConfig,
        files: &[PathBuf],
    ) -> Result<Self, Error> {
        let path = config.responses.as_ref().ok_or_else(|| {
            Error::Usage(
                "the suite toolqa asks about responses of tools: name their file with --responses \
                 or in eval.toolqa.responses"
                    .to_string(),
            )
        })?;
        let responses = ToolResponses::read(path)?;
        let mut rows = Vec::new();
        let mut sample_files = SampleFiles::default();
        for file in files {
            let of_file = read_questions(file, &responses)?;
            sample_files.add(file, of_file.len());
            rows.extend(of_file);
        }
        let limit = eval.max_samples.unwrap_or(usize::MAX);
        rows.truncate(limit);
        sample_files.truncate(limit);
        if eval.constrained {
            tracing::warn!(
                "eval.constrained does not change the suite toolqa: its answers are words or code, \
                 for which there is no schema"
            );
        }
        Ok(Self {
            rows,
            files: sample_files,
            set: match &config.prompts {
                Some(path) => PromptSet::read(path)?,
                None => PromptSet::default(),
            },
            schemas: match &config.schemas {
                Some(folder) => Schemas::read(folder)?,
                None => Schemas::Inferred,
            },
            shown: PromptOptions {
                response_text: match config.python_repr {
                    true => ResponseText::PythonRepr,
                    false => ResponseText::Json,
                },
                reduction: config.shortening().unwrap_or_default(),
                reduce_all: config.shortening(),
            },
            setting: config.setting,
            max_new_tokens: config.max_new_tokens,
            code: code_runner(config, eval)?,
            judge: match &config.judge {
                Some(judge) => Some(Judge::open("eval.toolqa.judge", judge)?),
                None => None,
            },
        })
    }

    /// How many rows it has.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The rows, in order.
    pub fn rows(&self) -> &[ToolQaRow] {
        &self.rows
    }

    /// The questions as the setting asks them.
    ///
    /// # Errors
    ///
    /// A schema that is shown and not there, or a response that the JMESPath expression fails on.
    pub fn questions(&self) -> Result<Asked, Error> {
        self.asked(|row| {
            let messages = self
                .set
                .messages(row, self.setting, &self.schemas, &self.shown)?;
            Ok(Conversation::new(messages))
        })
    }

    /// What asks for the type of each question.
    ///
    /// # Errors
    ///
    /// A schema that is not there.
    pub fn classifier_questions(&self) -> Result<Asked, Error> {
        self.asked(|row| {
            let schema = self.schemas.text(row)?;
            let prompt = self.set.classifier(&row.question, &schema);
            Ok(Conversation::new(vec![Message::new(Role::User, prompt)]))
        })
    }

    fn asked(
        &self,
        conversation: impl Fn(&ToolQaRow) -> Result<Conversation, Error>,
    ) -> Result<Asked, Error> {
        Ok(Asked {
            ids: self.rows.iter().map(|row| row.uid.clone()).collect(),
            conversations: self
                .rows
                .iter()
                .map(conversation)
                .collect::<Result<_, _>>()?,
            max_new_tokens: self.max_new_tokens,
        })
    }

    /// How often the types that the texts name are those of the questions.
    ///
    /// # Errors
    ///
    /// There is no row.
    pub fn classified(&self, texts: &[String]) -> Result<ClassifierReport, Error> {
        let outputs = self.rows.iter().zip(texts);
        let outputs = outputs.map(|(row, text)| (row.task_type, text.as_str()));
        Ok(ClassifierReport::new(&outputs.collect::<Vec<_>>())?)
    }

    /// Has the answers written, runs and judges them; `None` if `watch` ended the work.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, or a judge that does not answer.
    pub fn evaluate(
        &self,
        generator: &Generator<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<ToolQaEvaluation>, Error> {
        let asked = self.questions()?;
        let Some(written) = generator.write(&asked.prompts(), None, watch)? else {
            return Ok(None);
        };
        match self.score(&self.predictions(written), watch) {
            Err(Error::Stopped) => Ok(None),
            scored => scored.map(Some),
        }
    }

    /// The texts of a model, in the order of the rows, as predictions.
    pub fn predictions(&self, texts: Vec<Text>) -> Vec<ToolQaPrediction> {
        let predictions = self.rows.iter().zip(texts);
        predictions
            .map(|(row, text)| {
                let context_exceeded = text.finish_reason == FinishReason::Context.name();
                ToolQaPrediction {
                    uid: row.uid.clone(),
                    model_output: (!context_exceeded).then_some(text.text),
                    context_exceeded,
                    finish_reason: Some(text.finish_reason),
                    n_tokens: Some(text.n_tokens),
                    without_text: text.without_text,
                }
            })
            .collect()
    }

    /// Runs, scores and judges predictions.
    ///
    /// # Errors
    ///
    /// Predictions of other rows, a judge that does not answer, or [`Error::Stopped`] if `watch`
    /// ended the judging.
    pub fn score(
        &self,
        predictions: &[ToolQaPrediction],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<ToolQaEvaluation, Error> {
        let options = ScoreOptions {
            setting: self.setting,
            code_rule: CodeRule::Official,
            concurrency: CONCURRENCY,
        };
        let runner = self.code.as_ref().map(|code| code as &dyn CodeRunner);
        let run = score_predictions(&self.rows, predictions, &options, runner, &mut |n_done| {
            watch(of_code(n_done, self.rows.len(), runner.is_some()))
        });
        let run = match run {
            Err(ToolQaError::Stopped { .. }) => return Err(Error::Stopped),
            run => run?,
        };
        let Some(judge) = &self.judge else {
            return self.evaluation(run, None);
        };
        let Judged { verdicts, failure } = judge.judge_answers(&run.samples, &self.set, watch);
        match failure {
            Some(failure) => Err(failure),
            None => self.evaluation(
                run.with_verdicts(&verdicts)?,
                Some((judge.summary_of_answers(&verdicts), json_lines(&verdicts)?)),
            ),
        }
    }

    fn evaluation(
        &self,
        run: ToolQaRun,
        judged: Option<(JudgeSummary, Vec<u8>)>,
    ) -> Result<ToolQaEvaluation, Error> {
        let by_file = self.files.measured(ToolQaNumbers::NAMES, |range| {
            // Where no sample of a file has an output, none of them counts.
            let run = ToolQaRun::new(run.samples[range].to_vec()).ok();
            let value = |name| run.as_ref()?.report.overall.value(name);
            Ok(ToolQaNumbers::NAMES.map(value))
        })?;
        ToolQaEvaluation::new(run, by_file, judged)
    }
}

impl Asked {
    /// A prompt for each row.
    pub fn prompts(&self) -> Vec<GenerationRequest<'_>> {
        self.ids
            .iter()
            .zip(&self.conversations)
            .map(|(id, conversation)| GenerationRequest {
                id,
                text: PromptText::Chat(conversation),
                max_new_tokens: self.max_new_tokens,
                constraint: None,
            })
            .collect()
    }
}

impl ToolQaEvaluation {
    fn new(
        run: ToolQaRun,
        by_file: Option<ByFile>,
        judged: Option<(JudgeSummary, Vec<u8>)>,
    ) -> Result<Self, Error> {
        let (judge, verdicts) = judged.unzip();
        let written = MetricsFile {
            report: &run.report,
            by_file: by_file.as_ref(),
            judge: judge.as_ref(),
        };
        let mut files = report_files(&written, &run.samples)?;
        files.extend(verdicts.map(|lines| (JUDGE_FILE.to_string(), lines)));
        Ok(Self {
            run,
            by_file,
            judge,
            files,
        })
    }

    /// Means by name, such as `toolqa.exact_match`; those that no row has are left out.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let value = |name: &str| {
            let estimate = self.run.report.overall.value(name)?;
            Some((format!("toolqa.{name}"), estimate.value))
        };
        ToolQaNumbers::NAMES.into_iter().filter_map(value).collect()
    }
}

/// The progress of scoring, in which functions run where there is something that runs them.
fn of_code(n_done: usize, n_total: usize, runs: bool) -> GenerationProgress {
    GenerationProgress {
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
    if !config.setting.is_code() {
        return Ok(None);
    }
    if !config.run_code {
        return Err(Error::Usage(format!(
            "the setting {} runs functions that the model writes; allow that with --run-code or \
             eval.toolqa.run_code, which runs each in a sandbox",
            config.setting.name()
        )));
    }
    SandboxedCode::open(&eval.sandbox).map(Some)
}
