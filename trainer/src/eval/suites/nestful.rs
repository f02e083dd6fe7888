//! The suite nestful: questions to sequences of calls, or to loops of single calls, and their wins.

use std::cell::OnceCell;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use tooltune_grammar::GrammarOptions;
use tooltune_rows::python::dumps;
use tooltune_sandbox::SandboxError;
use tooltune_suites::Ceiling;
use tooltune_suites::nestful::{
    MathRunner, NestfulError, NestfulPrompt, NestfulReport, NestfulRow, Parser, PromptOptions,
    PromptSet, PythonTools, ReactEnd, ReactLimits, ReactLoop, ReactOutcome, ReactReport,
    ReactRequest, ReactScore, SUITE, SampleScore, ToolRunner, ToolsEncoding, nestful_table,
    parser_of_family, read_nestful_rows, score_react, score_rows,
};

use super::code::python_runner;
use super::{EvalContext, LoadedSuite, Opening, SuiteKind, SuiteResult, named_means};
use crate::config::eval::NestfulConfig;
use crate::config::{SandboxConfig, Suite};
use crate::error::{Error, SuiteError};
use crate::eval::by_file::{SampleFiles, WithFiles};
use crate::eval::generator::{
    Completion, Ending, GenerationRequest, Generator, PromptText, Rounds, TextConstraint,
};
use crate::eval::journal::Journal;
use crate::eval::prediction::read_predictions;
use crate::eval::report_files::report_files;
use crate::eval::saved::check_ids;
use crate::progress::GenerationProgress;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |opening| Ok(Box::new(NestfulSuite::open(opening)?)),
    change: None,
};

impl SuiteError for NestfulError {}

/// Rows, their prompts, and what runs their tools.
#[derive(Debug)]
pub(super) struct NestfulSuite {
    rows: Vec<NestfulRow>,
    files: SampleFiles,
    prompts: Vec<NestfulPrompt>,
    parser: Parser,
    tools: Box<dyn ToolRunner>,
    max_new_tokens: usize,
    /// EvalTarget where each call is answered before the next is written.
    react: Option<ReactLimits>,
    /// Whether sequences are held to the tools on offer, and what each then keeps to.
    constrained: bool,
    constraints: OnceCell<Vec<Option<TextConstraint>>>,
    /// The metrics in which the golds are not the best, run once.
    ceilings: OnceCell<Vec<Ceiling>>,
}

/// A sequence that a model wrote for a row; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct NestfulPrediction {
    id: String,
    question: String,
    gold: String,
    prediction: String,
    #[serde(flatten)]
    ending: Ending,
    score: SampleScore,
}

/// What became of the loop of a row; a line of `predictions.jsonl`.
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

/// The loop of a row with the end of each of its texts.
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
    /// Reads the rows of `files`, makes their prompts, and finds what runs their tools.
    ///
    /// # Errors
    ///
    /// Rows or prompts that cannot be read, a family without a prompt, or a folder of functions
    /// that this machine cannot run in isolation.
    pub(super) fn open(opening: Opening<'_>) -> Result<Self, Error> {
        let eval = &opening.config.eval;
        let config = &eval.nestful.clone().unwrap_or_default();
        let files = opening.files(&config.data)?.to_vec();
        let mut rows = Vec::new();
        let mut sample_files = SampleFiles::default();
        for file in &files {
            let n_before = rows.len();
            for row in read_nestful_rows(file)? {
                rows.push(row?);
            }
            sample_files.add(file, rows.len() - n_before);
        }
        let limit = eval.max_samples.unwrap_or(usize::MAX);
        rows.truncate(limit);
        sample_files.truncate(limit);
        let set = match &config.prompts {
            Some(path) => PromptSet::read(path)?,
            None => PromptSet::own(),
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
        let tools = open_tools(config.exec_dir.as_deref(), &eval.sandbox)?;
        Ok(Self {
            rows,
            files: sample_files,
            prompts,
            parser: parser_of_family(&config.family),
            tools,
            max_new_tokens: eval.max_new_tokens,
            constrained: eval.constrained,
            constraints: OnceCell::new(),
            ceilings: OnceCell::new(),
            react: config.react.then(|| ReactLimits {
                max_steps: config.max_steps,
                max_new_tokens: eval.max_new_tokens,
                ..ReactLimits::default()
            }),
        })
    }

    /// A prompt for each row, for all of its calls at once, with what they keep to; free where
    /// `constraints` has nothing for the row.
    fn prompts_within<'a>(
        &'a self,
        constraints: &'a [Option<TextConstraint>],
    ) -> Vec<GenerationRequest<'a>> {
        self.rows
            .iter()
            .zip(&self.prompts)
            .enumerate()
            .map(|(i, (row, prompt))| GenerationRequest {
                id: &row.sample_id,
                text: match prompt {
                    NestfulPrompt::Chat(conversation) => PromptText::Chat(conversation),
                    NestfulPrompt::Raw(text) => PromptText::Raw(text),
                },
                max_new_tokens: self.max_new_tokens,
                constraint: constraints.get(i).and_then(Option::as_ref),
            })
            .collect()
    }

    /// What the sequences of each row keep to, compiled at the first evaluation.
    fn constraints(&self, generator: &Generator<'_>) -> Result<&[Option<TextConstraint>], Error> {
        if let Some(constraints) = self.constraints.get() {
            return Ok(constraints);
        }
        let constraints = if self.constrained {
            self.compiled(generator)?
        } else {
            Vec::new()
        };
        Ok(self.constraints.get_or_init(|| constraints))
    }

    fn compiled(&self, generator: &Generator<'_>) -> Result<Vec<Option<TextConstraint>>, Error> {
        let Some(format) = self.parser.call_format() else {
            tracing::warn!(
                "sequences are written freely: the family {} writes calls that are no JSON",
                self.parser.name()
            );
            return Ok(Vec::new());
        };
        let cutting = self.parser.cutting_texts();
        let options = GrammarOptions {
            unwritten: cutting.iter().map(|text| (*text).to_owned()).collect(),
            ..GrammarOptions::default()
        };
        let tools: Vec<Vec<Value>> = self.rows.iter().map(NestfulRow::call_tools).collect();
        let compiled = generator.constrainer()?.calls(&tools, format, &options);
        let kept = self.rows.iter().zip(compiled).map(|(row, compiled)| {
            let warned = |reason: &String| {
                let id = &row.sample_id;
                tracing::warn!("{id} is written freely: {reason}");
            };
            compiled.inspect_err(warned).ok()
        });
        Ok(kept.collect())
    }

    /// Scores texts that are in the order of the rows.
    ///
    /// # Errors
    ///
    /// Not as many texts as rows, no row, or tools that cannot be run at all.
    fn score(&self, texts: Vec<Completion>) -> Result<SuiteResult, Error> {
        let completions: Vec<&str> = texts.iter().map(|written| written.text.as_str()).collect();
        let (report, scores) =
            score_rows(&self.rows, &completions, self.parser, &*self.tools).map_err(of_tools)?;
        let by_file = self.files.measured(NestfulReport::NAMES, |range| {
            let report = NestfulReport::new(&scores[range])?;
            Ok(NestfulReport::NAMES.map(|name| report.value(name)))
        })?;
        let lines = self.rows.iter().zip(texts).zip(scores);
        let lines = lines.map(|((row, written), score)| NestfulPrediction {
            id: row.sample_id.clone(),
            question: row.input.clone(),
            gold: row.completion(),
            ending: written.ending(),
            prediction: written.text,
            score,
        });
        let need_tools = (report.n_need_tools > 0).then(|| {
            format!(
                "{} samples call tools that are no arithmetic; they are in no win rate: give the \
                 benchmark's functions with eval.nestful.exec_dir",
                report.n_need_tools
            )
        });
        let failed_golds = (report.n_failed_golds > 0).then(|| {
            format!(
                "{} golds do not compute their own answer; their samples are in no win rate",
                report.n_failed_golds
            )
        });
        let ceilings = self.ceilings()?;
        let result = SuiteResult {
            metrics: named_means(Suite::of(&SUITE), &NestfulReport::NAMES, |name| {
                report.value(name)
            }),
            files: report_files(&WithFiles::of(&report, by_file.as_ref()), lines)?,
            table: nestful_table(&[("this run", &report)]),
            by_file,
            notes: failed_golds.into_iter().collect(),
            warnings: need_tools.into_iter().collect(),
        };
        result.with_ceilings(&SUITE, ceilings)
    }

    /// What the gold sequences score, which are run once.
    ///
    /// # Errors
    ///
    /// As [`NestfulSuite::score`].
    fn ceilings(&self) -> Result<&[Ceiling], Error> {
        if let Some(ceilings) = self.ceilings.get() {
            return Ok(ceilings);
        }
        let texts: Vec<String> = self.rows.iter().map(NestfulRow::completion).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (report, _) =
            score_rows(&self.rows, &texts, Parser::JsonList, &*self.tools).map_err(of_tools)?;
        let ceilings = SUITE.ceilings(|name| report.value(name));
        Ok(self.ceilings.get_or_init(|| ceilings))
    }

    /// Runs a loop for each row to its end; a round writes the next text of every loop together.
    fn loops(
        &self,
        limits: ReactLimits,
        generator: &Generator<'_>,
        mut journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Ended>>, Error> {
        let begun = self.rows.iter().map(|row| ReactLoop::new(row, limits));
        let mut loops: Vec<ReactLoop<'_>> = begun.collect();
        let mut rounds = Rounds::of(loops.len());
        let mut endings = vec![Vec::new(); loops.len()];
        loop {
            for one in &mut loops {
                while let ReactRequest::Run(sequence) = one.next() {
                    one.feed_result(self.tools.run(&sequence).map_err(of_tools)?);
                }
            }
            let mut wanted = Vec::new();
            for (i, one) in loops.iter().enumerate() {
                if let ReactRequest::Generate {
                    conversation,
                    max_new_tokens,
                } = one.next()
                {
                    wanted.push((i, conversation, max_new_tokens));
                }
            }
            if wanted.is_empty() {
                break;
            }
            let asked = wanted.iter().map(|(i, conversation, n)| GenerationRequest {
                id: &self.rows[*i].sample_id,
                text: PromptText::Chat(conversation),
                max_new_tokens: *n,
                constraint: None,
            });
            let asked: Vec<GenerationRequest<'_>> = asked.collect();
            let n_done = loops.iter().filter(|one| one.is_done()).count();
            let texts = rounds.write(
                generator,
                asked.as_slice(),
                n_done,
                journal.as_deref_mut(),
                watch,
            )?;
            let Some(texts) = texts else {
                return Ok(None);
            };
            for ((i, ..), written) in wanted.iter().zip(texts) {
                loops[*i].feed_text(&written.text);
                endings[*i].push(written.ending());
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
        let by_file = self.files.measured(ReactReport::NAMES, |range| {
            let report = ReactReport::new(&scores[range])?;
            Ok(ReactReport::NAMES.map(|name| report.value(name)))
        })?;
        let lines = pairs().zip(scores);
        let lines = lines.map(|((row, ended), score)| LoopPrediction::new(row, ended, score));
        let metrics = named_means(Suite::of(&SUITE), &ReactReport::NAMES, |name| {
            report.value(name)
        });
        let values = metrics
            .iter()
            .map(|(name, value)| format!("{name:<32} {value:.4}"));
        // A loop that makes the gold calls wins where their sequence does.
        let of_sequences = self.ceilings()?.iter();
        let wins = of_sequences.filter(|ceiling| ceiling.metric.starts_with("win_"));
        let ceilings: Vec<Ceiling> = wins.cloned().collect();
        let result = SuiteResult {
            files: report_files(&WithFiles::of(&report, by_file.as_ref()), lines)?,
            table: values.collect::<Vec<_>>().join("\n"),
            metrics,
            by_file,
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        result.with_ceilings(&SUITE, &ceilings)
    }
}

impl LoadedSuite for NestfulSuite {
    fn suite(&self) -> Suite {
        Suite::of(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.rows.len()
    }

    /// The prompts without what their texts keep to.
    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        Ok(self.prompts_within(&[]))
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let EvalContext { journal, watch, .. } = context;
        if let Some(limits) = self.react {
            if self.constrained {
                tracing::warn!("loops are written freely: their steps have words around each call");
            }
            let Some(outcomes) = self.loops(limits, &generator, journal, watch)? else {
                return Ok(None);
            };
            return self.score_loops(&outcomes).map(Some);
        }
        let prompts = self.prompts_within(self.constraints(&generator)?);
        let Some(written) = generator.write(&prompts, journal, watch)? else {
            return Ok(None);
        };
        self.score(written).map(Some)
    }

    fn score_saved(&self, path: &Path, _: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        if self.react.is_some() {
            return Err(Error::Usage(
                "loops of calls cannot be scored again from predictions; leave --predictions or \
                 eval.nestful.react out"
                    .to_string(),
            ));
        }
        let saved = read_predictions(path)?;
        let rows = || self.rows.iter().map(|row| row.sample_id.as_str());
        let ids = || saved.iter().map(|prediction| prediction.id.as_str());
        check_ids(path, ids(), rows())?;
        if !rows().eq(ids()) {
            return Err(Error::Usage(format!(
                "{}: the ids are not those of the rows; give one line for each row, in their order",
                path.display()
            )));
        }
        self.score(saved.into_iter().map(Completion::from).collect())
            .map(Some)
    }
}

/// Says where prompts show no examples though some are asked for, and where examples call functions
/// that nothing in the prompt specifies.
fn warn_of_examples(set: &PromptSet, rows: &[NestfulRow], config: &NestfulConfig) {
    let n_asked = config.n_examples;
    let file = config
        .prompts
        .as_deref()
        .unwrap_or(Path::new("the prompts"));
    let file = file.display();
    if !set.has_examples() && n_asked > 0 {
        tracing::warn!(
            "{file} has no icl_examples: prompts show no examples, though eval.nestful.n_examples \
             is {n_asked}; add icl_examples to the file, or set n_examples = 0"
        );
    }
    let unspecified = rows.iter().map(|row| set.unspecified(row, n_asked));
    let unspecified: Vec<Vec<&str>> = unspecified.filter(|names| !names.is_empty()).collect();
    if let Some(first) = unspecified.first() {
        tracing::warn!(
            "the examples of {file} call functions that {} of {} rows do not offer, such as {}; give \
             their specifications in icl_examples[i].tools, so that prompts show them",
            unspecified.len(),
            rows.len(),
            first[0]
        );
    }
}

/// The error of tools, which is none where a signal ended their run.
fn of_tools(error: NestfulError) -> Error {
    let stopped = |source: &(dyn std::error::Error + 'static)| {
        matches!(source.downcast_ref(), Some(SandboxError::Stopped))
    };
    match &error {
        NestfulError::Runner { source } if stopped(&**source) => Error::Stopped,
        _ => error.into(),
    }
}

/// What runs calls: the benchmark's functions in `exec_dir`, or arithmetic alone.
///
/// # Errors
///
/// A folder of functions that this machine cannot run in isolation.
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
