//! SLOT's data pipeline: pairs of a text and its JSON by a model, with the paper's two validations.
//!
//! A batch is drawn from five dimensions, one to three demonstrations and a temperature from 0 to
//! 0.5; its pairs are checked by rule, and then a judge says whether the text supports the gold.
//! Texts that are given, such as those of ToTTo or of issues, are annotated by the model and go
//! through the same stages.
//!
//! The decision to question: rows that are alike are dropped before the judge is asked, who costs a
//! request each.

mod check;
mod complexity;
mod dimensions;
mod judge;
mod rows;
mod write;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use self::rows::{Demonstration, GivenText, WrittenPair};
use crate::ask::{AGAIN_PROMPT, Asked, StagePlan};
use crate::error::PipelineError;
use crate::generator::ModelInfo;
use crate::journal::Journal;
use crate::prompts::{PromptFile, Prompts, digest};
use crate::report::Report;
use crate::run::{
    MAX_TOKENS, Opening, Place, Run, Stage, all_settings, check_range, digest_of, read_items,
};

pub use self::complexity::{SetComplexity, complexity_of_file};
pub use self::dimensions::Target;
pub use self::rows::CheckedRow;

const GENERATE: &str = "generate";
const ANNOTATE: &str = "annotate";
const CHECK: &str = "check";
const JUDGE: &str = "judge";

/// The rows that a pipeline ends with, in its folder.
pub const ROWS_FILE: &str = "rows.jsonl";
const CHECKED_FILE: &str = "checked.jsonl";

/// Without given texts.
const GENERATION: &[Stage] = &[
    Stage {
        name: GENERATE,
        file: "generated.jsonl",
    },
    Stage {
        name: CHECK,
        file: CHECKED_FILE,
    },
    Stage {
        name: JUDGE,
        file: ROWS_FILE,
    },
];

/// With given texts.
const ANNOTATION: &[Stage] = &[
    Stage {
        name: ANNOTATE,
        file: "annotated.jsonl",
    },
    Stage {
        name: CHECK,
        file: CHECKED_FILE,
    },
    Stage {
        name: JUDGE,
        file: ROWS_FILE,
    },
];

/// The prompts of the pipeline.
///
/// # Source
///
/// SLOT, Figures 7 and 8, in our words; annotation has the procedure of appendix D.1, whose prompt
/// the paper does not print.
pub const PROMPTS: &[PromptFile] = &[
    PromptFile {
        name: GENERATE,
        variables: &[
            "examples",
            "n_pairs",
            "industry_vertical",
            "json_complexity",
            "text_length",
            "genre",
            "text_type",
        ],
        source: include_str!("../../../../configs/prompts/slot/generate.jinja"),
    },
    PromptFile {
        name: ANNOTATE,
        variables: &["examples", "input_text"],
        source: include_str!("../../../../configs/prompts/slot/annotate.jinja"),
    },
    PromptFile {
        name: JUDGE,
        variables: &["input_text", "gold"],
        source: include_str!("../../../../configs/prompts/slot/judge.jinja"),
    },
    AGAIN_PROMPT,
];

/// Rows of one folder: their prompts are held in memory, some kilobytes each. Eight times those of
/// the paper.
const MAX_ROWS: usize = 1_000_000;

/// What is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotOptions {
    /// Pairs that are asked for; not used with given texts.
    pub rows: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// SLOT rows to show as demonstrations; rows of our own making by default.
    pub demonstrations: Option<PathBuf>,
    /// Texts to annotate.
    pub texts: Option<PathBuf>,
    /// Tokens that a reply with pairs may have.
    pub reply_tokens: usize,
    /// Tokens that a verdict of the judge may have.
    pub verdict_tokens: usize,
}

/// A pipeline with what it is given, read.
#[derive(Debug)]
pub struct SlotPipeline {
    options: SlotOptions,
    prompts: Prompts,
    settings: Map<String, Value>,
    demonstrations: Vec<Demonstration>,
    texts: Option<Vec<(String, GivenText)>>,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What became of the stages.
    pub report: Report,
    /// What there is to say of the files as they were found and of the replies.
    pub notes: Vec<String>,
    /// Whether the rows are made.
    pub is_whole: bool,
}

impl SlotPipeline {
    /// Reads prompts, demonstrations and texts.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or holds something else
    /// - a folder of prompts as [`Prompts::open`] says
    pub fn read(options: SlotOptions, prompts: Option<&Path>) -> Result<Self, PipelineError> {
        let file_digest = |file: &Option<PathBuf>| match file {
            Some(file) => digest_of(file).map(Value::from),
            None => Ok(Value::Null),
        };
        let rows = match options.texts {
            Some(_) => Value::Null,
            None => json!(options.rows),
        };
        let settings = json!({
            "pipeline": "slot",
            "rows": rows,
            "seed": options.seed,
            "demonstrations": file_digest(&options.demonstrations)?,
            "texts": file_digest(&options.texts)?,
            "reply-tokens": options.reply_tokens,
            "verdict-tokens": options.verdict_tokens,
            "dimensions": digest(dimensions::TABLE.as_bytes()),
        });
        let texts = options
            .texts
            .as_deref()
            .map(rows::given_texts)
            .transpose()?;
        if texts.is_none() {
            check_range("--rows", options.rows, MAX_ROWS)?;
        }
        check_range("--reply-tokens", options.reply_tokens, MAX_TOKENS)?;
        check_range("--verdict-tokens", options.verdict_tokens, MAX_TOKENS)?;
        Ok(Self {
            prompts: Prompts::open(PROMPTS, prompts)?,
            settings: settings.as_object().cloned().unwrap_or_default(),
            demonstrations: rows::demonstrations(options.demonstrations.as_deref())?,
            texts,
            options,
        })
    }

    fn stages(&self) -> &'static [Stage] {
        if self.texts.is_some() {
            ANNOTATION
        } else {
            GENERATION
        }
    }

    fn first_requests(&self) -> Result<Vec<Asked>, PipelineError> {
        let (options, shown) = (&self.options, &self.demonstrations);
        match &self.texts {
            Some(texts) => write::annotations(options, texts, shown, &self.prompts),
            None => {
                let batches = write::batches(options, shown, &self.prompts)?;
                Ok(batches.into_iter().map(|batch| batch.asked).collect())
            }
        }
    }

    /// What each stage would ask in this folder, without anything being sent or written: exactly
    /// for what is there, and at most for what still has to come.
    ///
    /// # Errors
    ///
    /// As [`SlotPipeline::run`] before its first request.
    pub fn plan(&self, dir: &Path, model: &dyn ModelInfo) -> Result<Vec<StagePlan>, PipelineError> {
        let settings = all_settings(&self.settings, &self.prompts, model);
        let journal = Journal::look(dir, &settings)?;
        let first = self.first_requests()?;
        let mut plans = vec![StagePlan::of(
            self.stages()[0].name,
            &first,
            &journal,
            model,
        )];
        let checked: Option<Vec<CheckedRow>> = read_items(dir, self.stages(), CHECK)?;
        if let Some(checked) = checked {
            let questions = judge::questions(&self.options, &checked, &self.prompts)?;
            plans.push(StagePlan::of(JUDGE, &questions, &journal, model));
            return Ok(plans);
        }
        let empty = self
            .prompts
            .render(JUDGE, &[("input_text", ""), ("gold", "")])?;
        let frame = model.count_tokens(&empty);
        let (n_rows, of_row) = match &self.texts {
            None => {
                let n_pairs = write::PAIRS_PER_REQUEST.min(self.options.rows);
                (self.options.rows, self.options.reply_tokens / n_pairs)
            }
            Some(texts) => {
                let given = texts.iter().filter_map(|(_, text)| text.as_deref().ok());
                let longest = given.clone().map(|text| model.count_tokens(text)).max();
                (
                    given.count(),
                    longest.unwrap_or(0) + self.options.reply_tokens,
                )
            }
        };
        let max_tokens = self.options.verdict_tokens;
        plans.push(StagePlan::at_most(
            JUDGE,
            n_rows,
            frame + of_row,
            max_tokens,
        ));
        Ok(plans)
    }

    /// Runs the stages that are not done.
    ///
    /// # Errors
    ///
    /// - the folder was begun with other settings, prompts, inputs or by another model
    /// - the budget is used up, the user ends the work, or what generates cannot continue; the
    ///   same call continues from there
    /// - files cannot be read or written
    pub fn run(self, place: Place<'_>) -> Result<Outcome, PipelineError> {
        let stages = self.stages();
        let Self {
            options,
            prompts,
            settings,
            demonstrations,
            texts,
        } = self;
        let mut run = Run::open(Opening {
            place,
            stages,
            settings,
            prompts,
        })?;
        let is_whole = stages_of(&mut run, &options, &demonstrations, texts.as_deref())?;
        Ok(Outcome {
            report: run.report().clone(),
            notes: run.notes(),
            is_whole,
        })
    }
}

/// Whether the last stage is done.
fn stages_of(
    run: &mut Run<'_>,
    options: &SlotOptions,
    demonstrations: &[Demonstration],
    texts: Option<&[(String, GivenText)]>,
) -> Result<bool, PipelineError> {
    let pairs: Option<Vec<WrittenPair>> = match texts {
        Some(texts) => run.stage(ANNOTATE, |run| {
            let asked = write::annotations(options, texts, demonstrations, run.prompts())?;
            write::annotate(run, texts, &asked)
        })?,
        None => run.stage(GENERATE, |run| {
            let batches = write::batches(options, demonstrations, run.prompts())?;
            write::generate(run, &batches)
        })?,
    };
    let Some(pairs) = pairs else { return Ok(false) };
    let checked = run.stage(CHECK, |_| Ok(check::check(pairs, demonstrations)))?;
    let Some(checked) = checked else {
        return Ok(false);
    };
    let judged = run.stage(JUDGE, |run| {
        let asked = judge::questions(options, &checked, run.prompts())?;
        judge::judge(run, checked, &asked)
    })?;
    Ok(judged.is_some())
}
