//! `eval --suite nestful`: questions to sequences of calls, and whether they compute the answers.

use std::path::Path;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tooltune_data::benchmarks::nestful::{
    MathRunner, NestfulPrompt, NestfulRow, PromptOptions, PromptSet, SampleScore, ToolsEncoding,
    nestful_table, parser_of_family, read_nestful_rows, score_rows,
};
use tooltune_data::tools::JsonLines;

use super::evaluate::{texts, write_files};
use super::{say, say_aside};
use crate::cli::EvalArgs;
use crate::config::Config;
use crate::error::Error;
use crate::eval::agents::eval_files;
use crate::eval::report_files::report_files;
use crate::eval::writer::{PromptText, Prompted};

/// What a model wrote for a sample; a line of `predictions.jsonl`, with its score once it has one.
#[derive(Debug, Serialize, Deserialize)]
struct Prediction {
    id: String,
    prediction: String,
    #[serde(default, skip_deserializing)]
    score: Option<SampleScore>,
}

pub(super) fn run(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    let rows = rows(config)?;
    let mut predictions = match &args.predictions {
        Some(path) => saved(path, &rows)?,
        None => written(args, config, &rows, device)?,
    };
    let completions: Vec<&str> = predictions.iter().map(|p| p.prediction.as_str()).collect();
    let parser = parser_of_family(&args.nestful.family);
    let (report, scores) = score_rows(&rows, &completions, parser, &MathRunner)?;
    for (prediction, score) in predictions.iter_mut().zip(scores) {
        prediction.score = Some(score);
    }
    write_files(args, &report_files(&report, &predictions)?)?;
    say(&nestful_table(&[(args.checkpoint.as_str(), &report)]))?;
    if report.n_need_tools > 0 {
        say_aside(&format!(
            "{} samples call tools that are no arithmetic; they are in no win rate",
            report.n_need_tools
        ))?;
    }
    Ok(())
}

fn rows(config: &Config) -> Result<Vec<NestfulRow>, Error> {
    let mut rows = Vec::new();
    for file in eval_files(config)? {
        for row in read_nestful_rows(file)? {
            rows.push(row?);
        }
    }
    rows.truncate(config.eval.max_samples.unwrap_or(usize::MAX));
    Ok(rows)
}

/// The predictions of a former evaluation, in the order of the rows.
fn saved(path: &Path, rows: &[NestfulRow]) -> Result<Vec<Prediction>, Error> {
    let mut saved = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, line) = line?;
        let prediction: Prediction = serde_json::from_value(line).map_err(|error| {
            Error::Usage(format!(
                "{place}: {error}; each line is {{\"id\": ..., \"prediction\": ...}}"
            ))
        })?;
        saved.push(prediction);
    }
    let ids = rows.iter().map(|row| row.sample_id.as_str());
    match ids.eq(saved.iter().map(|prediction| prediction.id.as_str())) {
        true => Ok(saved),
        false => Err(Error::Usage(format!(
            "{}: the ids are not those of the rows; give one line for each row, in their order",
            path.display()
        ))),
    }
}

/// What the model writes after each prompt; kept in the folder of the output as it comes.
fn written(
    args: &EvalArgs,
    config: &Config,
    rows: &[NestfulRow],
    device: &Device,
) -> Result<Vec<Prediction>, Error> {
    let set = match &args.prompts {
        Some(path) => PromptSet::read(path)?,
        None => PromptSet::own(),
    };
    let options = PromptOptions {
        n_examples: args.nestful.n_examples,
        tools: match args.nestful.tools_twice {
            true => ToolsEncoding::Twice,
            false => ToolsEncoding::Once,
        },
    };
    let prompts = rows
        .iter()
        .map(|row| set.prompt(row, &args.nestful.family, options))
        .collect::<Result<Vec<_>, _>>()?;
    let asked: Vec<Prompted<'_>> = rows
        .iter()
        .zip(&prompts)
        .map(|(row, prompt)| Prompted {
            id: &row.sample_id,
            text: match prompt {
                NestfulPrompt::Chat(conversation) => PromptText::Chat(conversation),
                NestfulPrompt::Raw(text) => PromptText::Raw(text),
            },
            max_new_tokens: config.eval.max_new_tokens,
            constraint: None,
        })
        .collect();
    let written = texts(args, config, &asked, device)?;
    let predictions = rows.iter().zip(written).map(|(row, written)| Prediction {
        id: row.sample_id.clone(),
        prediction: written.text,
        score: None,
    });
    Ok(predictions.collect())
}
