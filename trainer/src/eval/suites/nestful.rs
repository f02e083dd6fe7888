//! The `nestful` suite: questions answered by sequences of calls, or by loops of single calls.

use std::cell::OnceCell;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use tooltune_apis::{TextLines, ToolsError};
use tooltune_grammar::GrammarOptions;
use tooltune_json::python::dumps;
use tooltune_sandbox::SandboxError;
use tooltune_suites::leaf_errors::{LeafErrorSummary, LeafErrors, LeafGroups};
use tooltune_suites::nestful::{
    MathRunner, NestfulError, NestfulPrompt, NestfulReport, NestfulRow, Parser, PromptOptions,
    PromptSet, PythonTools, ReactEnd, ReactLimits, ReactLoop, ReactOutcome, ReactReport,
    ReactRequest, ReactScore, SUITE, SampleScore, ToolRunner, ToolsEncoding,
    completion_leaf_errors, nestful_table, parser_of_family, read_nestful_rows, score_react,
    score_rows,
};
use tooltune_suites::{Ceiling, SuiteInfo};

use super::code::python_runner;
use super::prompt_suite::{
    JoinBy, PromptEvaluation, PromptSettings, PromptSuite, Scoring, requests,
};
use super::{
    EvalContext, LoadedSuite, SuiteContext, SuiteKind, SuiteResult, named_means, read_samples,
};
use crate::config::eval::NestfulConfig;
use crate::config::{SandboxConfig, Suite};
use crate::error::{Error, SuiteError};
use crate::eval::by_file::{SampleFiles, WithFiles};
use crate::eval::constraints::Constraints;
use crate::eval::generator::{
    Completion, Ending, GenerationRequest, Generator, PromptText, Rounds,
};
use crate::eval::journal::Journal;
use crate::eval::report_files::{PredictionLines, report_files};
use tooltune_terminal::GenerationProgress;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |suite_context| {
        let settings = PromptSettings::from_config(&suite_context.config.eval);
        let suite = NestfulSuite::open(suite_context)?;
        Ok(match suite.react {
            Some(_) => Box::new(suite),
            None => PromptEvaluation::into_loaded(suite, settings),
        })
    },
    change: None,
};

impl SuiteError for NestfulError {
    fn is_system_error(&self) -> bool {
        self.is_system_error()
    }
}

/// The lines of `predictions.jsonl`, if a completion is a whole sequence of calls.
const SEQUENCES: PredictionLines = PredictionLines {
    suite: &SUITE,
    kind: "sequence",
};

/// The lines of `predictions.jsonl`, if each call is answered before the next.
const LOOPS: PredictionLines = PredictionLines {
    suite: &SUITE,
    kind: "loop",
};

/// Rows, their prompts, and the runner of their tools.
#[derive(Debug)]
pub(super) struct NestfulSuite {
    rows: Vec<NestfulRow>,
    files: SampleFiles,
    prompts: Vec<NestfulPrompt>,
    parser: Parser,
    tools: Box<dyn ToolRunner>,
    /// Set if each call is answered before the next is generated.
    react: Option<ReactLimits>,
    /// Metrics whose reference sequences do not get the best score, computed once.
    ceilings: OnceCell<Vec<Ceiling>>,
}

/// A predicted sequence; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct NestfulPrediction {
    id: String,
    question: String,
    gold: String,
    prediction: String,
    #[serde(flatten)]
    ending: Ending,
    score: SampleScore,
    leaf_errors: LeafErrors,
}

/// The metrics of sequences.
#[derive(Serialize)]
struct SequencesReport<'a> {
    #[serde(flatten)]
    report: WithFiles<'a, NestfulReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf_errors: Option<LeafErrorSummary>,
}

/// The result of a row's loop; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct LoopPrediction {
    id: String,
    question: String,
    gold: String,
    steps: Vec<LoopStep>,
    answer: Option<String>,
    end: &'static str,
    score: ReactScore,
}

/// A completed loop, and how each of its completions ended.
struct Ended {
    outcome: ReactOutcome,
    endings: Vec<Ending>,
}

#[derive(Debug, Clone, Serialize)]
struct LoopStep {
    text: String,
    #[serde(flatten)]
    ending: Ending,
    result: Option<String>,
    error: Option<String>,
}

impl NestfulSuite {
    /// Reads the rows of `files`, builds their prompts, and opens the tool runner.
    ///
    /// # Errors
    ///
    /// Rows or prompts cannot be read, a family has no prompt, or this machine cannot run a folder
    /// of functions in isolation.
    pub(super) fn open(suite_context: SuiteContext<'_>) -> Result<Self, Error> {
        let eval = &suite_context.config.eval;
        let config = &eval.nestful.clone().unwrap_or_default();
        let files = suite_context.files(&config.data)?;
        let (rows, sample_files) = read_samples(files, eval, |file| {
            let records = tooltune_files::open(file).map_err(ToolsError::from)?;
            let rows = read_nestful_rows(TextLines::from_records(records));
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let set = match &config.prompts {
            Some(path) => PromptSet::read(path)?,
            None => PromptSet::built_in(),
        };
        let options = PromptOptions {
            n_examples: config.n_examples,
            tools: if config.tools_twice {
                ToolsEncoding::Twice
            } else {
                ToolsEncoding::Once
            },
        };
        let prompts = rows
            .iter()
            .map(|row| set.prompt(row, &config.family, options))
            .collect::<Result<_, _>>()?;
        if !config.react {
            warn_of_examples(&set, &rows, config);
        }
        if config.react && eval.constrained {
            tracing::warn!(
                "eval.constrained is ignored with eval.nestful.react, because each step contains \
                 text around its call"
            );
        }
        let tools = open_tools(config.exec_dir.as_deref(), &eval.sandbox)?;
        Ok(Self {
            rows,
            files: sample_files,
            prompts,
            parser: parser_of_family(&config.family),
            tools,
            ceilings: OnceCell::new(),
            react: config.react.then(|| ReactLimits {
                max_steps: config.max_steps,
                max_new_tokens: eval.max_new_tokens,
                ..ReactLimits::default()
            }),
        })
    }

    /// Scores completions in the order of the rows.
    ///
    /// # Errors
    ///
    /// There are no rows, the number of completions differs, or the tools cannot run at all.
    fn score_texts(&self, texts: Vec<Completion>) -> Result<SuiteResult, Error> {
        let completions: Vec<&str> = texts.iter().map(Completion::whole_text).collect();
        let (report, scores) =
            score_rows(&self.rows, &completions, self.parser, &*self.tools).map_err(tool_error)?;
        let by_file = self.files.measure_by_file(NestfulReport::NAMES, |range| {
            let report = NestfulReport::new(&scores[range])?;
            Ok(NestfulReport::NAMES.map(|name| report.value(name)))
        })?;
        let lines = self.rows.iter().zip(texts).zip(scores);
        let lines = lines.map(|((row, completion), score)| NestfulPrediction {
            id: row.sample_id.clone(),
            question: row.input.clone(),
            gold: row.completion(),
            ending: completion.ending(),
            leaf_errors: completion_leaf_errors(
                row,
                completion.whole_text(),
                self.parser,
                completion.end_reason(),
            ),
            prediction: completion.text,
            score,
        });
        let lines: Vec<NestfulPrediction> = lines.collect();
        let samples = lines
            .iter()
            .map(|line| (line.id.as_str(), &line.leaf_errors));
        let metrics_file = SequencesReport {
            report: WithFiles::new(&report, by_file.as_ref()),
            leaf_errors: LeafErrorSummary::new(samples, LeafGroups::Tool),
        };
        let need_tools = (report.n_need_tools > 0).then(|| {
            format!(
                "{} samples call functions other than arithmetic and are excluded from win rates; \
                 set eval.nestful.exec_dir to the benchmark's functions",
                report.n_need_tools
            )
        });
        let failed_golds = (report.n_failed_golds > 0).then(|| {
            format!(
                "{} reference sequences do not compute their own answer; their samples are \
                 excluded from win rates",
                report.n_failed_golds
            )
        });
        let ceilings = self.ceilings()?;
        let result = SuiteResult {
            metrics: named_means(Suite::from_info(&SUITE), &NestfulReport::NAMES, |name| {
                report.value(name)
            }),
            files: report_files(SEQUENCES, &metrics_file, &lines)?,
            table: nestful_table(&[("this run", &report)]),
            by_file,
            notes: failed_golds.into_iter().collect(),
            warnings: need_tools.into_iter().collect(),
        };
        result.with_ceilings(&SUITE, ceilings)
    }

    /// The scores of the reference sequences, computed once.
    ///
    /// # Errors
    ///
    /// Same as [`NestfulSuite::score`].
    fn ceilings(&self) -> Result<&[Ceiling], Error> {
        if let Some(ceilings) = self.ceilings.get() {
            return Ok(ceilings);
        }
        let texts: Vec<String> = self.rows.iter().map(NestfulRow::completion).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (report, _) =
            score_rows(&self.rows, &texts, Parser::JsonList, &*self.tools).map_err(tool_error)?;
        let ceilings = SUITE.ceilings(|name| report.value(name));
        Ok(self.ceilings.get_or_init(|| ceilings))
    }

    /// Runs one loop per row; each round generates the next completions of all loops together.
    fn loops(
        &self,
        limits: ReactLimits,
        generator: &Generator<'_>,
        mut journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Ended>>, Error> {
        let started = self.rows.iter().map(|row| ReactLoop::new(row, limits));
        let mut loops: Vec<ReactLoop<'_>> = started.collect();
        let mut rounds = Rounds::new(loops.len());
        let mut endings = vec![Vec::new(); loops.len()];
        loop {
            for one in &mut loops {
                while let ReactRequest::Run(sequence) = one.next() {
                    one.feed_result(self.tools.run(&sequence).map_err(tool_error)?);
                }
            }
            let mut pending = Vec::new();
            for (i, one) in loops.iter().enumerate() {
                if let ReactRequest::Generate {
                    conversation,
                    max_new_tokens,
                } = one.next()
                {
                    pending.push((i, conversation, max_new_tokens));
                }
            }
            if pending.is_empty() {
                break;
            }
            let requests = pending
                .iter()
                .map(|(i, conversation, n)| GenerationRequest {
                    id: &self.rows[*i].sample_id,
                    text: PromptText::Chat(conversation),
                    max_new_tokens: *n,
                    constraint: None,
                });
            let requests: Vec<GenerationRequest<'_>> = requests.collect();
            let n_done = loops.iter().filter(|one| one.is_done()).count();
            let texts = rounds.write(
                generator,
                requests.as_slice(),
                n_done,
                journal.as_deref_mut(),
                watch,
            )?;
            let Some(texts) = texts else {
                return Ok(None);
            };
            for ((i, ..), completion) in pending.iter().zip(texts) {
                loops[*i].feed_text(&completion.text);
                endings[*i].push(completion.ending());
            }
        }
        let outcomes = loops.iter().zip(endings);
        let outcomes = outcomes.filter_map(|(one, endings)| match one.next() {
            ReactRequest::Done(outcome) => Some(Ended { outcome, endings }),
            _ => None,
        });
        Ok(Some(outcomes.collect()))
    }

    fn score_loops(&self, outcomes: &[Ended]) -> Result<SuiteResult, Error> {
        let pairs = || self.rows.iter().zip(outcomes);
        let scores = pairs()
            .map(|(row, ended)| score_react(row, &ended.outcome, &*self.tools))
            .collect::<Result<Vec<_>, _>>()?;
        let report = ReactReport::new(&scores)?;
        let by_file = self.files.measure_by_file(ReactReport::NAMES, |range| {
            let report = ReactReport::new(&scores[range])?;
            Ok(ReactReport::NAMES.map(|name| report.value(name)))
        })?;
        let lines = pairs().zip(scores);
        let lines = lines.map(|((row, ended), score)| LoopPrediction::new(row, ended, score));
        let metrics = named_means(Suite::from_info(&SUITE), &ReactReport::NAMES, |name| {
            report.value(name)
        });
        let values = metrics
            .iter()
            .map(|(name, value)| format!("{name:<32} {value:.4}"));
        // A loop that makes the reference calls wins if their sequence does.
        let of_sequences = self.ceilings()?.iter();
        let wins = of_sequences.filter(|ceiling| ceiling.metric.starts_with("win_"));
        let ceilings: Vec<Ceiling> = wins.cloned().collect();
        let result = SuiteResult {
            files: report_files(LOOPS, &WithFiles::new(&report, by_file.as_ref()), lines)?,
            table: values.collect::<Vec<_>>().join("\n"),
            metrics,
            by_file,
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        result.with_ceilings(&SUITE, &ceilings)
    }
}

impl PromptSuite for NestfulSuite {
    type Answer = Completion;

    fn info(&self) -> &'static SuiteInfo {
        &SUITE
    }

    fn ids(&self) -> Vec<&str> {
        self.rows.iter().map(|row| row.sample_id.as_str()).collect()
    }

    fn join(&self) -> JoinBy {
        JoinBy {
            noun: "rows",
            ids_are_positions: false,
            published_id: None,
        }
    }

    fn prompt(&self, row: usize) -> Result<PromptText<'_>, Error> {
        Ok(match &self.prompts[row] {
            NestfulPrompt::Chat(conversation) => PromptText::Chat(conversation),
            NestfulPrompt::Raw(text) => PromptText::Raw(text),
        })
    }

    fn score(&self, answers: Vec<Completion>, _: Scoring<'_>) -> Result<SuiteResult, Error> {
        self.score_texts(answers)
    }

    fn constraints(&self, generator: &Generator<'_>) -> Result<Constraints, Error> {
        let Some(format) = self.parser.call_format() else {
            tracing::warn!(
                "eval.constrained is ignored: the family {} does not use JSON for calls",
                self.parser.name()
            );
            return Ok(Constraints::default());
        };
        let stop_strings = self.parser.stop_strings();
        let options = GrammarOptions {
            forbidden_substrings: stop_strings.iter().map(|text| (*text).to_owned()).collect(),
            ..GrammarOptions::default()
        };
        let tools: Vec<Vec<Value>> = self.rows.iter().map(NestfulRow::call_tools).collect();
        let compiled = generator.constrainer()?.calls(&tools, format, &options);
        Ok(Constraints::from_compiled(
            self.ids().into_iter().zip(compiled),
        ))
    }
}

/// Loops of calls, each answered before the next.
impl LoadedSuite for NestfulSuite {
    fn suite(&self) -> Suite {
        Suite::from_info(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.rows.len()
    }

    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        let limits = self.react.unwrap_or_default();
        requests(self, limits.max_new_tokens, None)
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let EvalContext { journal, watch, .. } = context;
        let limits = self.react.unwrap_or_default();
        let Some(outcomes) = self.loops(limits, &generator, journal, watch)? else {
            return Ok(None);
        };
        self.score_loops(&outcomes).map(Some)
    }

    fn score_saved(&self, _: &Path, _: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        Err(Error::Usage(
            "predictions of eval.nestful.react cannot be scored again, because their calls are \
             answered during generation; remove --predictions or eval.nestful.react"
                .to_string(),
        ))
    }
}

/// Warns if prompts have no examples although some are configured, and if examples call functions
/// that the prompt does not specify.
fn warn_of_examples(set: &PromptSet, rows: &[NestfulRow], config: &NestfulConfig) {
    let n_asked = config.n_examples;
    let file = config
        .prompts
        .as_deref()
        .unwrap_or(Path::new("the prompts"));
    let file = file.display();
    if !set.has_examples() && n_asked > 0 {
        tracing::warn!(
            "{file} has no icl_examples, so prompts contain no examples although \
             eval.nestful.n_examples is {n_asked}; add icl_examples to the file, or set \
             n_examples = 0"
        );
    }
    let unspecified = rows.iter().map(|row| set.unspecified_tools(row, n_asked));
    let unspecified: Vec<Vec<&str>> = unspecified.filter(|names| !names.is_empty()).collect();
    if let Some(first) = unspecified.first() {
        tracing::warn!(
            "the examples of {file} call functions that {} of {} rows do not offer, such as {}; \
             add their specifications to icl_examples[i].tools, so that prompts include them",
            unspecified.len(),
            rows.len(),
            first[0]
        );
    }
}

/// Converts an error of the tools, to [`Error::Stopped`] if a signal stopped them.
fn tool_error(error: NestfulError) -> Error {
    let stopped = |source: &(dyn std::error::Error + 'static)| {
        matches!(source.downcast_ref(), Some(SandboxError::Stopped))
    };
    match &error {
        NestfulError::Runner { source } if stopped(&**source) => Error::Stopped,
        _ => error.into(),
    }
}

/// The runner of calls: the benchmark's functions in `exec_dir`, or only arithmetic.
///
/// # Errors
///
/// This machine cannot run the functions in isolation.
pub(super) fn open_tools(
    exec_dir: Option<&Path>,
    sandbox: &SandboxConfig,
) -> Result<Box<dyn ToolRunner>, Error> {
    match exec_dir {
        Some(folder) => Ok(Box::new(PythonTools::open(
            folder,
            python_runner(sandbox)?,
        )?)),
        None => Ok(Box::new(MathRunner)),
    }
}

impl LoopPrediction {
    fn new(row: &NestfulRow, ended: &Ended, score: ReactScore) -> Self {
        let outcome = &ended.outcome;
        let steps = outcome.steps.iter().zip(&ended.endings);
        let steps = steps.map(|(step, ending)| LoopStep {
            text: step.text.clone(),
            ending: ending.clone(),
            result: step
                .result
                .as_ref()
                .and_then(|result| Some(dumps(result.as_ref().ok()?))),
            error: step.result.as_ref().and_then(|r| r.as_ref().err().cloned()),
        });
        Self {
            id: row.sample_id.clone(),
            question: row.input.clone(),
            gold: row.completion(),
            steps: steps.collect(),
            answer: outcome.answer.clone(),
            end: match outcome.end {
                ReactEnd::Finished => "finished",
                ReactEnd::StepLimit => "step_limit",
                ReactEnd::Stopped => "stopped",
            },
            score,
        }
    }
}
