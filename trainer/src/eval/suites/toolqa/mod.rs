//! The suite toolqa: questions about outputs of tools become answers or functions, which are scored.

mod code;

use std::cell::OnceCell;
use std::path::Path;

use serde::Serialize;
use tooltune_rows::text::{Conversation, Message, Role};
use tooltune_suites::toolqa::{
    ClassifierReport, CodeRule, CodeRunner, PromptOptions, PromptSet, ResponseText, SUITE, Schemas,
    ScoreOptions, Setting, ToolQaError, ToolQaNumbers, ToolQaPrediction, ToolQaReport, ToolQaRow,
    ToolQaRun, ToolResponses, gold_numbers, judge_answers, n_neither, read_predictions,
    read_questions, score_predictions, toolqa_table,
};

use self::code::SandboxedCode;
use super::judge::{Judge, JudgeSummary, Judged};
use super::{EvalContext, LoadedSuite, Opening, Purpose, SuiteKind, SuiteResult, named_means};
use crate::config::eval::ToolQaConfig;
use crate::config::{EvalConfig, Suite};
use crate::error::{Error, SuiteError};
use crate::eval::by_file::{ByFile, SampleFiles};
use crate::eval::generate::FinishReason;
use crate::eval::generator::{Completion as Text, GenerationRequest, PromptText};
use crate::eval::report_files::{JUDGE_FILE, METRICS_FILE, json_lines, report_files};
use crate::eval::saved::check_ids;
use crate::progress::{GenerationProgress, Waiting, Work};

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |opening| Ok(Box::new(ToolQaSuite::open(opening)?)),
    change: None,
};

impl SuiteError for ToolQaError {}

/// Functions that run at once.
const CONCURRENCY: usize = 4;

/// Questions, what is asked about them, and what scores the answers.
#[derive(Debug)]
pub(super) struct ToolQaSuite {
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
    /// Whether models are asked for the type of each question in place of its answer.
    classify: bool,
    asked: OnceCell<Asked>,
}

/// What is shown to the model, row by row.
#[derive(Debug)]
struct Asked {
    conversations: Vec<Conversation>,
    max_new_tokens: usize,
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
    pub(super) fn open(opening: Opening<'_>) -> Result<Self, Error> {
        let eval = &opening.config.eval;
        let config = &eval.toolqa.clone().unwrap_or_default();
        let files = opening.files(&config.data)?.to_vec();
        let is_run = opening.purpose == Purpose::Run;
        let judge = config.judge.as_ref();
        let judge = judge.filter(|judge| judge.in_loop || !is_run);
        let path = config.responses.as_ref().ok_or_else(|| {
            Error::Usage(
                "the suite toolqa asks about responses of tools: name their file, as in \
                 --set eval.toolqa.responses=responses.jsonl"
                    .to_string(),
            )
        })?;
        let responses = ToolResponses::read(path)?;
        let mut rows = Vec::new();
        let mut sample_files = SampleFiles::default();
        for file in &files {
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
                response_text: if config.python_repr {
                    ResponseText::PythonRepr
                } else {
                    ResponseText::Json
                },
                reduction: config.shortening().unwrap_or_default(),
                reduce_all: config.shortening(),
            },
            setting: config.setting,
            max_new_tokens: config.max_new_tokens,
            code: code_runner(config, eval)?,
            judge: judge
                .map(|judge| Judge::open("eval.toolqa.judge", judge))
                .transpose()?,
            classify: config.classify,
            asked: OnceCell::new(),
        })
    }

    /// What is asked of each row: its answer as the setting says, or its type.
    ///
    /// # Errors
    ///
    /// A schema that is shown and not there, or a response that the JMESPath expression fails on.
    fn asked(&self) -> Result<&Asked, Error> {
        if let Some(asked) = self.asked.get() {
            return Ok(asked);
        }
        let messages = |row: &ToolQaRow| {
            if self.classify {
                let schema = self.schemas.text(row)?;
                let prompt = self.set.classifier(&row.question, &schema);
                return Ok(vec![Message::new(Role::User, prompt)]);
            }
            self.set
                .messages(row, self.setting, &self.schemas, &self.shown)
        };
        let conversations = self
            .rows
            .iter()
            .map(|row| Ok(Conversation::new(messages(row)?)));
        let conversations = conversations.collect::<Result<_, ToolQaError>>()?;
        let asked = Asked {
            conversations,
            max_new_tokens: self.max_new_tokens,
        };
        Ok(self.asked.get_or_init(|| asked))
    }

    /// How often the types that the texts name are those of the questions.
    ///
    /// # Errors
    ///
    /// There is no row.
    fn classified(&self, texts: Vec<Text>) -> Result<SuiteResult, Error> {
        let outputs = self.rows.iter().zip(&texts);
        let outputs = outputs.map(|(row, text)| (row.task_type, text.text.as_str()));
        let report = ClassifierReport::new(&outputs.collect::<Vec<_>>())?;
        let lines = self.rows.iter().zip(&texts);
        let lines = lines.map(|(row, text)| Classified {
            uid: &row.uid,
            task_type: row.task_type.name(),
            model_output: &text.text,
        });
        let mut table = format!("{:<32} {:.4}\n", "accuracy", report.accuracy.value);
        for (task_type, accuracy) in &report.by_type {
            let name = format!("accuracy, {}", task_type.name());
            table.push_str(&format!("{name:<32} {:.4}\n", accuracy.value));
        }
        let n_parse_errors = report.n_parse_errors;
        table.push_str(&format!(
            "{:<32} {n_parse_errors}\n",
            "outputs without a type"
        ));
        table.push_str(&format!("{:<32} {}", "n", report.n));
        Ok(SuiteResult {
            metrics: [("toolqa.accuracy".to_owned(), report.accuracy.value)].into(),
            files: report_files(&report, lines)?,
            table,
            by_file: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// The texts of a model, in the order of the rows, as predictions.
    fn predictions(&self, texts: Vec<Text>) -> Vec<ToolQaPrediction> {
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
    /// ended the work.
    fn score(
        &self,
        predictions: &[ToolQaPrediction],
        context: EvalContext<'_>,
    ) -> Result<SuiteResult, Error> {
        let EvalContext { keep, watch, .. } = context;
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
                // A reply that says neither true nor false is a no, as published, and is counted as
                // one that could not be read.
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
        let by_file = self.files.measured(ToolQaNumbers::NAMES, |range| {
            // Where no sample of a file has an output, none of them counts.
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
        let mut files = report_files(&metrics_file, &run.samples)?;
        files.extend(verdicts.map(|lines| (JUDGE_FILE.to_string(), lines)));
        let n = run.report.n_without_output;
        let without_output = (n > 0).then(|| {
            format!("{n} questions have neither an answer nor an output and count nowhere")
        });
        let judged = judge.map(|judge| judge.line("answers", "wrong"));
        let result = SuiteResult {
            metrics: named_means(Suite::of(&SUITE), SUITE.metrics, |name| {
                run.report.overall.value(name)
            }),
            files,
            table: toolqa_table(&run.report),
            by_file,
            notes: without_output.into_iter().chain(judged).collect(),
            warnings: Vec::new(),
        };
        let golds = gold_numbers(&self.rows);
        result.with_ceilings(&SUITE, &SUITE.ceilings(|name| golds?.value(name)))
    }
}

impl LoadedSuite for ToolQaSuite {
    fn suite(&self) -> Suite {
        Suite::of(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.rows.len()
    }

    /// A prompt for each row.
    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        let asked = self.asked()?;
        let requests = self.rows.iter().zip(&asked.conversations);
        let requests = requests.map(|(row, conversation)| GenerationRequest {
            id: &row.uid,
            text: PromptText::Chat(conversation),
            max_new_tokens: asked.max_new_tokens,
            constraint: None,
        });
        Ok(requests.collect())
    }

    fn evaluate(&self, mut context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let journal = context.journal.take();
        let Some(texts) = generator.write(&self.prompts()?, journal, context.watch)? else {
            return Ok(None);
        };
        if self.classify {
            return self.classified(texts).map(Some);
        }
        match self.score(&self.predictions(texts), context) {
            Err(Error::Stopped) => Ok(None),
            scored => scored.map(Some),
        }
    }

    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        if self.classify {
            return Err(Error::Usage(
                "types of questions cannot be scored again from predictions; leave --predictions \
                 or eval.toolqa.classify out"
                    .to_owned(),
            ));
        }
        let saved = read_predictions(path)?;
        let rows = self.rows.iter().map(|row| row.uid.as_str());
        check_ids(path, saved.iter().map(|one| one.uid.as_str()), rows)?;
        match self.score(&saved, context) {
            Err(Error::Stopped) => Ok(None),
            scored => scored.map(Some),
        }
    }
}

/// What a model says of a question's type; a line of `predictions.jsonl`.
#[derive(Serialize)]
struct Classified<'a> {
    uid: &'a str,
    task_type: &'a str,
    model_output: &'a str,
}

/// The progress of scoring, in which functions run where there is something that runs them.
fn of_code(n_done: usize, n_total: usize, runs: bool) -> GenerationProgress {
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
    if !config.setting.is_code() {
        return Ok(None);
    }
    if !config.run_code {
        return Err(Error::Usage(format!(
            "the setting {} runs functions that the model writes; allow that with \
             eval.toolqa.run_code = true, which runs each in a sandbox",
            config.setting.name()
        )));
    }
    SandboxedCode::open(&eval.sandbox).map(Some)
}
