//! `eval --suite toolqa`: questions about outputs of tools to answers or functions, and their score.

use burn::tensor::Device;
use tooltune_data::benchmarks::toolqa::{
    CodeRule, CodeRunner, PromptOptions, PromptSet, Reduction, ResponseText, Schemas, ScoreOptions,
    Setting, ToolQaPrediction, ToolQaRow, ToolResponses, read_predictions, read_questions,
    score_predictions, toolqa_table,
};
use tooltune_data::sandbox::Requirement;
use tooltune_data::text::Conversation;

use super::evaluate::{texts, write_files};
use super::{say, say_aside};
use crate::cli::{EvalArgs, PromptReduction, ToolQaArgs};
use crate::config::Config;
use crate::error::Error;
use crate::eval::agents::eval_files;
use crate::eval::code::SandboxedCode;
use crate::eval::report_files::report_files;
use crate::eval::writer::{BEYOND_CONTEXT, PromptText, Prompted};

/// Functions that run at once.
const CONCURRENCY: usize = 4;

pub(super) fn run(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    let options = &args.toolqa;
    let setting = options.setting;
    let rows = rows(args, config)?;
    let code = code_runner(options, setting)?;
    let predictions = match &args.predictions {
        Some(path) => read_predictions(path)?,
        None => predictions(args, config, (&rows, setting), device)?,
    };
    let score = ScoreOptions {
        setting,
        code_rule: CodeRule::Official,
        concurrency: CONCURRENCY,
    };
    let runner = code.as_ref().map(|code| code as &dyn CodeRunner);
    let run = score_predictions(&rows, &predictions, &score, runner, &mut |_| true)?;
    write_files(args, &report_files(&run.report, &run.samples)?)?;
    say(&toolqa_table(&run.report))
}

fn rows(args: &EvalArgs, config: &Config) -> Result<Vec<ToolQaRow>, Error> {
    let path = args.toolqa.responses.as_ref().ok_or_else(|| {
        Error::Usage(
            "the suite toolqa asks about responses of tools: name their file with --responses"
                .to_string(),
        )
    })?;
    let responses = ToolResponses::read(path)?;
    let mut rows = Vec::new();
    for file in eval_files(config)? {
        rows.extend(read_questions(file, &responses)?);
    }
    rows.truncate(config.eval.max_samples.unwrap_or(usize::MAX));
    Ok(rows)
}

/// What runs the functions of the model; settings for answers have none.
fn code_runner(options: &ToolQaArgs, setting: Setting) -> Result<Option<SandboxedCode>, Error> {
    if !setting.is_code() {
        return Ok(None);
    }
    if !options.run_code {
        return Err(Error::Usage(format!(
            "the setting {} runs functions that the model writes; allow that with --run-code, which \
             runs each in a sandbox",
            setting.name()
        )));
    }
    let requirement = match options.allow_unisolated {
        true => Requirement::AllowUnisolated,
        false => Requirement::Isolated,
    };
    SandboxedCode::open(&options.python, requirement).map(Some)
}

/// What the model writes after each prompt; kept in the folder of the output as it comes.
fn predictions(
    args: &EvalArgs,
    config: &Config,
    (rows, setting): (&[ToolQaRow], Setting),
    device: &Device,
) -> Result<Vec<ToolQaPrediction>, Error> {
    let options = &args.toolqa;
    let prompts = match &args.prompts {
        Some(path) => PromptSet::read(path)?,
        None => PromptSet::default(),
    };
    let schemas = match &options.schemas {
        Some(folder) => Schemas::read(folder)?,
        None => Schemas::Inferred,
    };
    let reduction = match options.reduce {
        Some(PromptReduction::Paths) => Reduction::Paths,
        _ => Reduction::Official,
    };
    let shown = PromptOptions {
        response_text: match options.python_repr {
            true => ResponseText::PythonRepr,
            false => ResponseText::Json,
        },
        reduction,
        reduce_all: options.reduce.map(|_| reduction),
    };
    let conversations = rows
        .iter()
        .map(|row| {
            Ok(Conversation::new(
                prompts.messages(row, setting, &schemas, shown)?,
            ))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let max_new_tokens = setting.max_new_tokens().min(config.eval.max_new_tokens);
    if max_new_tokens < setting.max_new_tokens() {
        say_aside(&format!(
            "answers are cut at eval.max_new_tokens = {max_new_tokens}; the published runs write up \
             to {}",
            setting.max_new_tokens()
        ))?;
    }
    let asked: Vec<Prompted<'_>> = rows
        .iter()
        .zip(&conversations)
        .map(|(row, conversation)| Prompted {
            id: &row.uid,
            text: PromptText::Chat(conversation),
            max_new_tokens,
            constraint: None,
        })
        .collect();
    let written = texts(args, config, &asked, device)?;
    let predictions = rows
        .iter()
        .zip(written)
        .map(|(row, written)| ToolQaPrediction {
            uid: row.uid.clone(),
            context_exceeded: written.finish_reason == BEYOND_CONTEXT,
            model_output: Some(written.text),
        });
    Ok(predictions.collect())
}
