//! SLOT's data pipeline: a model writes pairs of a text and its JSON, which pass the paper's two
//! validations.
//!
//! The prompt of a batch is drawn from five dimensions, one to three demonstrations and a
//! temperature from 0 to 0.5. The pairs are checked by rules, and a judge then decides whether the
//! text supports the gold value. The model annotates user-provided texts, such as the texts of
//! ToTTo or of issues, which then pass through the same stages.
//!
//! Duplicate rows are dropped before the judge sees them, because each verdict costs a request.

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

use self::rows::{Demonstration, UserText, WrittenPair};
use crate::ask::{ItemPrompt, RETRY_PROMPT, StagePlan};
use crate::error::PipelineError;
use crate::generator::ModelInfo;
use crate::journal::Journal;
use crate::prompts::{PromptFile, Prompts, digest};
use crate::report::Report;
use crate::run::{
    MAX_TOKENS, Run, RunContext, RunInput, Stage, all_settings, check_range, digest_of, read_items,
};

pub use self::complexity::{SetComplexity, complexity_of_file};
pub use self::dimensions::Target;
pub use self::rows::CheckedRow;

const GENERATE: &str = "generate";
const ANNOTATE: &str = "annotate";
const CHECK: &str = "check";
const JUDGE: &str = "judge";

/// The final rows, in the folder of the pipeline.
pub const ROWS_FILE: &str = "rows.jsonl";
const CHECKED_FILE: &str = "checked.jsonl";

/// The stages; the first one writes the pairs.
const fn stages(first: Stage) -> [Stage; 3] {
    let check = Stage {
        name: CHECK,
        file: CHECKED_FILE,
    };
    let judge = Stage {
        name: JUDGE,
        file: ROWS_FILE,
    };
    [first, check, judge]
}

/// Stages without user-provided texts.
const GENERATION: &[Stage] = &stages(Stage {
    name: GENERATE,
    file: "generated.jsonl",
});

/// Stages with user-provided texts.
const ANNOTATION: &[Stage] = &stages(Stage {
    name: ANNOTATE,
    file: "annotated.jsonl",
});

/// The prompts of the pipeline.
///
/// # Source
///
/// SLOT, Figures 7 and 8, in our own words; annotation follows the procedure of appendix D.1, whose
/// prompt the paper does not print.
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
    RETRY_PROMPT,
];

/// Maximum number of rows per folder, because their prompts are kept in memory (a few kilobytes
/// each). The limit is eight times the number of rows in the paper.
const MAX_ROWS: usize = 1_000_000;

/// Options of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotOptions {
    /// Number of pairs to request; unused with user-provided texts.
    pub rows: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// SLOT rows to show as demonstrations; built-in rows by default.
    pub demonstrations: Option<PathBuf>,
    /// Texts to annotate.
    pub texts: Option<PathBuf>,
    /// Maximum number of tokens of a reply with pairs.
    pub reply_tokens: usize,
    /// Maximum number of tokens of a judge's verdict.
    pub verdict_tokens: usize,
}

/// A pipeline with its parsed input.
#[derive(Debug)]
pub struct SlotPipeline {
    options: SlotOptions,
    prompts: Prompts,
    settings: Map<String, Value>,
    demonstrations: Vec<Demonstration>,
    texts: Option<Vec<(String, UserText)>>,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The reports of the stages.
    pub report: Report,
    /// Remarks about the files and the replies.
    pub notes: Vec<String>,
    /// Whether the rows are complete.
    pub is_complete: bool,
}

impl SlotPipeline {
    /// Reads prompts, demonstrations and texts.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or has unexpected content
    /// - a folder of prompts is invalid, see [`Prompts::open`]
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
            .map(rows::read_user_texts)
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

    fn first_requests(&self) -> Result<Vec<ItemPrompt>, PipelineError> {
        let (options, demonstrations) = (&self.options, &self.demonstrations);
        match &self.texts {
            Some(texts) => write::annotation_prompts(options, texts, demonstrations, &self.prompts),
            None => {
                let batches = write::batches(options, demonstrations, &self.prompts)?;
                Ok(batches.into_iter().map(|batch| batch.item_prompt).collect())
            }
        }
    }

    /// The requests of each stage in this folder, without sending or writing anything: exact for
    /// existing items, upper bounds for the others.
    ///
    /// # Errors
    ///
    /// As for [`SlotPipeline::run`] before its first request.
    pub fn plan(&self, dir: &Path, model: &dyn ModelInfo) -> Result<Vec<StagePlan>, PipelineError> {
        let settings = all_settings(&self.settings, &self.prompts, model);
        let journal = Journal::open_read_only(dir, &settings)?;
        let first_stage = self.first_requests()?;
        let mut plans = vec![StagePlan::for_items(
            self.stages()[0].name,
            &first_stage,
            &journal,
            model,
        )];
        let checked: Option<Vec<CheckedRow>> = read_items(dir, self.stages(), CHECK)?;
        if let Some(checked) = checked {
            let questions = judge::questions(&self.options, &checked, &self.prompts)?;
            plans.push(StagePlan::for_items(JUDGE, &questions, &journal, model));
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
                let usable_texts = texts.iter().filter_map(|(_, text)| text.as_deref().ok());
                let longest = usable_texts
                    .clone()
                    .map(|text| model.count_tokens(text))
                    .max();
                (
                    usable_texts.count(),
                    longest.unwrap_or(0) + self.options.reply_tokens,
                )
            }
        };
        let max_tokens = self.options.verdict_tokens;
        plans.push(StagePlan::upper_bound(
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
    /// - the folder was created with other settings, prompts, inputs or another model
    /// - the budget is used up, the user stops the work, or the generator fails; the same call
    ///   continues from there
    /// - files cannot be read or written
    pub fn run(self, services: RunContext<'_>) -> Result<Outcome, PipelineError> {
        let stages = self.stages();
        let Self {
            options,
            prompts,
            settings,
            demonstrations,
            texts,
        } = self;
        let mut run = Run::open(RunInput {
            place: services,
            stages,
            settings,
            prompts,
        })?;
        let is_complete = stages_of(&mut run, &options, &demonstrations, texts.as_deref())?;
        Ok(Outcome {
            report: run.report().clone(),
            notes: run.notes(),
            is_complete,
        })
    }
}

/// Runs the stages, and returns whether the last one is done.
fn stages_of(
    run: &mut Run<'_>,
    options: &SlotOptions,
    demonstrations: &[Demonstration],
    texts: Option<&[(String, UserText)]>,
) -> Result<bool, PipelineError> {
    let pairs: Option<Vec<WrittenPair>> = match texts {
        Some(texts) => run.stage(ANNOTATE, |run| {
            let item_prompts =
                write::annotation_prompts(options, texts, demonstrations, run.prompts())?;
            write::annotate(run, texts, &item_prompts)
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
    let rows = run.stage(JUDGE, |run| {
        let item_prompts = judge::questions(options, &checked, run.prompts())?;
        judge::judge(run, checked, &item_prompts)
    })?;
    Ok(rows.is_some())
}
