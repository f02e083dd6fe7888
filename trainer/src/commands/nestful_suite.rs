//! `eval --suite nestful`: questions to sequences of calls, and whether they compute the answers.

use std::path::Path;

use burn::tensor::Device;
use tooltune_suites::nestful::nestful_table;

use super::evaluate::{
    generated, journal, read_predictions, say_by_file, suite_files, write_files,
};
use super::{say, say_aside};
use crate::cli::EvalArgs;
use crate::config::Config;
use crate::error::Error;
use crate::eval::generator::Completion;
use crate::eval::nestful::{NestfulEvaluation, NestfulNumbers, NestfulSuite};
use crate::eval::saved::check_ids;

pub(super) fn run(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    let options = args
        .nestful
        .over(config.eval.nestful.as_ref(), args.prompts.as_ref());
    let files = suite_files(args, config, &options.data)?;
    let suite = NestfulSuite::open(&options, &config.eval, files)?;
    let evaluation = match (&args.predictions, suite.is_react()) {
        (Some(_), true) => {
            return Err(Error::Usage(
                "loops of calls cannot be scored again from predictions; leave --predictions or \
                 --react out"
                    .to_string(),
            ));
        }
        (Some(path), false) => suite.score(saved(path, &suite)?)?,
        (None, _) => {
            let mut texts = journal(args, config, &suite.prompts())?;
            let n = suite.rows().len();
            generated(args, config, n, device, |generator, watch| {
                suite.evaluate(&generator, texts.as_mut(), watch)
            })?
        }
    };
    write_files(args, &evaluation.files)?;
    print(args, &evaluation)
}

fn print(args: &EvalArgs, evaluation: &NestfulEvaluation) -> Result<(), Error> {
    let NestfulNumbers::Direct(report) = &evaluation.report else {
        for (name, value) in evaluation.metrics() {
            say(&format!("{name:<32} {value:.4}"))?;
        }
        return say_by_file(evaluation.by_file.as_ref());
    };
    say(&nestful_table(&[(args.target.checkpoint.as_str(), report)]))?;
    say_by_file(evaluation.by_file.as_ref())?;
    if report.n_need_tools > 0 {
        say_aside(&format!(
            "{} samples call tools that are no arithmetic; they are in no win rate: give the \
             benchmark's functions with --exec-dir",
            report.n_need_tools
        ))?;
    }
    if report.n_failed_golds > 0 {
        say(&format!(
            "{} golds do not compute their own answer; their samples are in no win rate",
            report.n_failed_golds
        ))?;
    }
    Ok(())
}

/// The texts of a former evaluation, in the order of the rows.
fn saved(path: &Path, suite: &NestfulSuite) -> Result<Vec<Completion>, Error> {
    let saved = read_predictions(path)?;
    let rows = || suite.rows().iter().map(|row| row.sample_id.as_str());
    let ids = || saved.iter().map(|prediction| prediction.id.as_str());
    check_ids(path, ids(), rows())?;
    match rows().eq(ids()) {
        true => Ok(saved.into_iter().map(Completion::from).collect()),
        false => Err(Error::Usage(format!(
            "{}: the ids are not those of the rows; give one line for each row, in their order",
            path.display()
        ))),
    }
}
