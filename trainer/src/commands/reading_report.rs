//! Reports every row that is dropped, cut or skipped, before a run starts.

use tooltune_rows::text::{DropReason, PrepareReport, UnsupervisedTurns, WithoutBos};

use super::{count_noun, eprint_line, say};
use crate::config::{Config, LoadedConfig};
use crate::error::Error;
use crate::optim::LearningRateSchedule;
use crate::recipes::preparation::Preparation;
use crate::recipes::retriever::RetrieverPreparation;
use crate::rows::{more_rows, note_lines};

/// Reports the detected row format if the config does not set one.
pub(super) fn say_detected_format(loaded: &LoadedConfig) -> Result<(), Error> {
    match loaded.recognised() {
        None => Ok(()),
        Some(recognised) => eprint_line(&format!(
            "data.format = \"auto\": detected \"{}\" from {}",
            recognised.format.as_str(),
            recognised.place
        )),
    }
}

/// Reports on the rows of a run, for training and evaluation.
pub(super) fn report_rows(config: &Config, preparation: &Preparation) -> Result<(), Error> {
    report_files(config, "data.train", &preparation.report)?;
    print_all(note_lines("data.train", &preparation.notes))?;
    if let Some(held_out) = &preparation.held_out {
        report_files(config, "data.eval", &held_out.report)?;
    }
    print_all(note_lines("data.eval", &preparation.eval_notes))?;
    if preparation.has_more_eval_rows {
        say(&more_rows(config))?;
    }
    say_flattened(preparation)
}

fn print_all(lines: Vec<String>) -> Result<(), Error> {
    lines.iter().try_for_each(|line| say(line))
}

/// Reports on the rows of the files that `files` names.
fn report_files(config: &Config, files: &str, report: &PrepareReport) -> Result<(), Error> {
    let turn_lines = unsupervised_lines(&report.unlearned);
    for line in turn_lines
        .into_iter()
        .chain(without_bos_line(&report.without_bos))
    {
        match files {
            "data.train" => say(&line)?,
            _ => say(&format!("{files}: {line}"))?,
        }
    }
    say_dropped(config, report)?;
    if let Some(first) = &report.first_cut {
        say(&format!(
            "{files}: {} of {} rows, such as {first}, are truncated to data.max_length = {} \
             tokens and lose the end of their answers (data.on_overflow = \"truncate\")",
            report.n_cut, report.n_rows, config.data.max_length
        ))?;
    }
    match report.n_developer_as_system {
        0 => Ok(()),
        n => say(&format!(
            "{files}: {n} of {} rows have messages with the role developer, which the chat \
             template does not support; they are rendered with the role system",
            report.n_rows
        )),
    }
}

/// Reports chats without the beginning-of-text token that plain text has.
fn without_bos_line(examples: &WithoutBos) -> Option<String> {
    (examples.n_examples > 0).then(|| {
        format!(
            "{} examples start without {}, which the tokenizer adds to plain text, because the \
             chat template does not write it. transformers and vLLM also leave it out, but \
             llama.cpp adds it; if the model was trained with it, put {{{{ bos_token }}}} at the \
             top of the template (data.chat_template)",
            examples.n_examples, examples.tokens
        )
    })
}

/// One line per reason why turns are not supervised.
fn unsupervised_lines(turns: &UnsupervisedTurns) -> Vec<String> {
    let reasons = [
        (
            turns.n_switched_off,
            "switched off by train, weight or loss",
        ),
        (
            turns.n_without_reasoning,
            "the chat template removes the reasoning",
        ),
    ];
    reasons
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, reason)| {
            let are = if n == 1 { "is" } else { "are" };
            format!("{} {are} not supervised: {reason}", count_noun(n, "turn"))
        })
        .collect()
}

/// Warnings about the learning-rate schedules of a run.
pub(super) fn learning_rate_lines(config: &Config, preparation: &Preparation) -> Vec<String> {
    let schedule =
        LearningRateSchedule::for_training(&config.train, preparation.training.total_steps);
    let retriever = preparation.retriever.as_ref();
    let retriever = retriever.and_then(|pairs| retriever_learning_rate_line(config, pairs));
    schedule_line("train", schedule)
        .into_iter()
        .chain(retriever)
        .collect()
}

/// A warning about the learning-rate schedule of a retriever.
pub(super) fn retriever_learning_rate_line(
    config: &Config,
    preparation: &RetrieverPreparation,
) -> Option<String> {
    let training = config.trained_retriever()?;
    let schedule = LearningRateSchedule::for_retriever(training, preparation.total_steps);
    schedule_line("retriever", schedule)
}

/// Warns about a schedule that never reaches its peak or never updates a weight.
fn schedule_line(table: &str, schedule: LearningRateSchedule) -> Option<String> {
    let LearningRateSchedule {
        peak,
        warmup_steps,
        total_steps,
        ..
    } = schedule;
    let largest = schedule.largest();
    let warm_up = match table {
        "train" => "train.warmup_ratio or train.warmup_steps",
        _ => "retriever.warmup_ratio",
    };
    let remedy = format!("lower {warm_up}, or train for more steps");
    if largest as f32 <= 0.0 && peak as f32 > 0.0 {
        return Some(format!(
            "NOTHING WILL BE LEARNED: the learning rate is 0 in every step, because warm-up \
             starts at 0 (as in transformers) and covers {warmup_steps} of the {total_steps} \
             steps; {remedy}"
        ));
    }
    if largest as f32 <= 0.0 {
        return Some(format!(
            "NOTHING WILL BE LEARNED: {table}.learning_rate = {peak:e} is 0 as a 32-bit float; \
             raise it"
        ));
    }
    (largest < peak).then(|| {
        format!(
            "the learning rate only rises to {largest:e} and never reaches {table}.learning_rate = \
             {peak:e}: warm-up has {warmup_steps} steps, but the run only {total_steps}; {remedy}"
        )
    })
}

/// Lists the dropped rows with reasons.
fn say_dropped(config: &Config, report: &PrepareReport) -> Result<(), Error> {
    for dropped in &report.dropped {
        let reason = match dropped.reason {
            DropReason::TooLong => {
                let max_length = config.data.max_length;
                format!("longer than data.max_length = {max_length} tokens")
            }
            DropReason::NothingTrained => "no supervised tokens".to_string(),
        };
        say(&format!("dropped {}: {reason}", dropped.id))?;
    }
    Ok(())
}

/// Reports on flattened schemas.
fn say_flattened(preparation: &Preparation) -> Result<(), Error> {
    let Some(flattened) = &preparation.flattened else {
        return Ok(());
    };
    for (files, report) in [
        ("data.train", &flattened.train),
        ("data.eval", &flattened.eval),
    ] {
        for line in report.lines() {
            say(&format!("{files}: {line}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LrSchedulerType, TrainConfig};

    #[test]
    fn a_schedule_without_updates_or_peak_is_reported() {
        let line = |schedule, peak, warmup_steps, total_steps| {
            let config = TrainConfig {
                lr_scheduler_type: schedule,
                learning_rate: peak,
                warmup_steps: Some(warmup_steps),
                ..TrainConfig::default()
            };
            let schedule = LearningRateSchedule::for_training(&config, total_steps);
            schedule_line("train", schedule).unwrap_or_default()
        };
        let nothing = line(LrSchedulerType::Linear, 2e-4, 1, 1);
        assert!(
            nothing.starts_with("NOTHING WILL BE LEARNED: the learning rate is 0"),
            "{nothing}"
        );
        assert!(
            nothing.contains("1 of the 1 steps; lower train.warmup_ratio"),
            "{nothing}"
        );
        let tiny = line(LrSchedulerType::Constant, 1e-60, 0, 10);
        assert!(tiny.contains("train.learning_rate = 1e-60 is 0"), "{tiny}");
        let low = line(LrSchedulerType::Cosine, 2e-4, 100, 11);
        assert!(
            low.contains("only rises to 2e-5 and never reaches"),
            "{low}"
        );
        for (schedule, warmup_steps, total_steps) in [
            (LrSchedulerType::Linear, 0, 1),
            (LrSchedulerType::Linear, 1, 2),
            (LrSchedulerType::Constant, 0, 1),
            (LrSchedulerType::ConstantWithWarmup, 5, 6),
        ] {
            assert_eq!(line(schedule, 2e-4, warmup_steps, total_steps), "");
        }
    }
}
