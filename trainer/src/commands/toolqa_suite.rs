//! `eval --suite toolqa`: questions about outputs of tools to answers or functions, and their score.

use burn::tensor::Device;
use serde::Serialize;
use tooltune_suites::toolqa::{read_predictions, toolqa_table};

use super::evaluate::{say_by_file, suite_files, texts, write_files};
use super::{say, watching};
use crate::cli::EvalArgs;
use crate::config::Config;
use crate::error::Error;
use crate::eval::report_files::report_files;
use crate::eval::saved::check_ids;
use crate::eval::toolqa::ToolQaSuite;

pub(super) fn run(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    let options = args
        .toolqa
        .over(config.eval.toolqa.as_ref(), args.prompts.as_ref())?;
    let files = suite_files(args, config, &options.data)?;
    let suite = ToolQaSuite::open(&options, &config.eval, files)?;
    if args.toolqa.classify {
        return classify(args, config, &suite, device);
    }
    let predictions = match &args.predictions {
        Some(path) => {
            let saved = read_predictions(path)?;
            let rows = suite.rows().iter().map(|row| row.uid.as_str());
            check_ids(path, saved.iter().map(|one| one.uid.as_str()), rows)?;
            saved
        }
        None => {
            let asked = suite.questions()?;
            let written = texts(args, config, &asked.prompts(), device)?;
            suite.predictions(written)
        }
    };
    let evaluation = watching(suite.rows().len(), |watch| suite.score(&predictions, watch))?;
    let evaluation = evaluation?;
    write_files(args, &evaluation.files)?;
    say(&toolqa_table(&evaluation.run.report))?;
    say_by_file(evaluation.by_file.as_ref())?;
    let n_without_output = evaluation.run.report.n_without_output;
    if n_without_output > 0 {
        say(&format!(
            "{n_without_output} questions have neither an answer nor an output and count nowhere"
        ))?;
    }
    match &evaluation.judge {
        None => Ok(()),
        Some(judge) => say(&judge.line("answers", "wrong")),
    }
}

/// What a model says of a question's type; a line of `predictions.jsonl`.
#[derive(Serialize)]
struct Classified<'a> {
    uid: &'a str,
    task_type: &'a str,
    model_output: &'a str,
}

fn classify(
    args: &EvalArgs,
    config: &Config,
    suite: &ToolQaSuite,
    device: &Device,
) -> Result<(), Error> {
    let asked = suite.classifier_questions()?;
    let written = texts(args, config, &asked.prompts(), device)?;
    let texts: Vec<String> = written.into_iter().map(|written| written.text).collect();
    let report = suite.classified(&texts)?;
    let lines = suite.rows().iter().zip(&texts);
    let lines = lines.map(|(row, text)| Classified {
        uid: &row.uid,
        task_type: row.task_type.name(),
        model_output: text,
    });
    write_files(args, &report_files(&report, lines)?)?;
    say(&format!("{:<32} {:.4}", "accuracy", report.accuracy.value))?;
    for (task_type, accuracy) in &report.by_type {
        let name = format!("accuracy, {}", task_type.name());
        say(&format!("{name:<32} {:.4}", accuracy.value))?;
    }
    say(&format!(
        "{:<32} {}",
        "outputs without a type", report.n_parse_errors
    ))?;
    say(&format!("{:<32} {}", "n", report.n))
}
