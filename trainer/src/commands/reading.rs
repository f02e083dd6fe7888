//! What reading rows finds, said before a run begins: nothing is dropped, cut or passed over in
//! silence.

use tooltune_rows::text::{DropReason, PrepareReport, UnlearnedTurns, WithoutBos};

use super::{counted, eprint_line, say};
use crate::config::{Config, LoadedConfig};
use crate::error::Error;
use crate::optim::LearningRateSchedule;
use crate::recipes::preparation::Preparation;
use crate::recipes::retriever::RetrieverPreparation;
use crate::rows::{more_rows, note_lines};
use crate::settings;

/// The format that the rows were recognised as, where the config leaves it to them.
pub(super) fn say_recognised(loaded: &LoadedConfig) -> Result<(), Error> {
    match loaded.recognised() {
        None => Ok(()),
        Some(found) => eprint_line(&format!(
            "data.format = \"auto\": the rows are \"{}\", as {} shows",
            found.format.as_str(),
            found.place
        )),
    }
}

/// What became of the rows of a run, in training and in its evaluations.
pub(super) fn say_reading(config: &Config, preparation: &Preparation) -> Result<(), Error> {
    say_report(config, "data.train", &preparation.report)?;
    say_all(note_lines("data.train", &preparation.notes))?;
    if let Some(held_out) = &preparation.held_out {
        say_report(config, "data.eval", &held_out.report)?;
    }
    say_all(note_lines("data.eval", &preparation.eval_notes))?;
    if preparation.has_more_eval_rows {
        say(&more_rows(config))?;
    }
    say_flattened(preparation)
}

fn say_all(lines: Vec<String>) -> Result<(), Error> {
    lines.iter().try_for_each(|line| say(line))
}

/// What became of the rows of some files.
fn say_report(config: &Config, files: &str, report: &PrepareReport) -> Result<(), Error> {
    let of_turns = unlearned_lines(&report.unlearned);
    for line in of_turns
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
            "{files}: {} of {} rows, such as {first}, are cut to data.max_length = {} tokens, which \
             leaves answers without their end (data.on_overflow = \"truncate\")",
            report.n_cut, report.n_rows, config.data.max_length
        ))?;
    }
    match report.n_developer_as_system {
        0 => Ok(()),
        n => say(&format!(
            "{files}: {n} of {} rows have messages of the role developer, which the chat template \
             does not know; they are rendered as messages of the role system",
            report.n_rows
        )),
    }
}

/// What to know where chats begin without the token that plain texts begin with.
fn without_bos_line(without: &WithoutBos) -> Option<String> {
    (without.n_examples > 0).then(|| {
        format!(
            "{} examples begin without {}, which the tokenizer puts before plain texts: the chat \
             template writes none. So transformers and vLLM send chats, but llama.cpp puts it before \
             them, too; if the model was trained with it, write {{{{ bos_token }}}} at the top of the \
             template (data.chat_template)",
            without.n_examples, without.tokens
        )
    })
}

/// A line for each reason why turns are not learned.
fn unlearned_lines(turns: &UnlearnedTurns) -> Vec<String> {
    let reasons = [
        (
            turns.n_switched_off,
            "switched off by train, weight or loss",
        ),
        (
            turns.n_without_reasoning,
            "without their reasoning, which the chat template leaves out",
        ),
    ];
    reasons
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, reason)| {
            let are = if n == 1 { "is" } else { "are" };
            format!("{} {are} not learned: {reason}", counted(n, "turn"))
        })
        .collect()
}

/// What the schedules of a run do not reach.
pub(super) fn learning_rate_lines(config: &Config, preparation: &Preparation) -> Vec<String> {
    let schedule = settings::learning_rate(&config.train, preparation.total_steps);
    let retriever = preparation.retriever.as_ref();
    let retriever = retriever.and_then(|pairs| retriever_learning_rate_line(config, pairs));
    schedule_line("train", schedule)
        .into_iter()
        .chain(retriever)
        .collect()
}

/// What the schedule of a retriever does not reach.
pub(super) fn retriever_learning_rate_line(
    config: &Config,
    preparation: &RetrieverPreparation,
) -> Option<String> {
    let training = config.trained_retriever()?;
    let schedule = settings::retriever_learning_rate(training, preparation.total_steps);
    schedule_line("retriever", schedule)
}

/// A word on a schedule that never reaches its peak, or moves no weight at all.
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
    let remedy = format!("lower {warm_up}, or give the run more steps");
    if largest as f32 <= 0.0 && peak as f32 > 0.0 {
        return Some(format!(
            "NOTHING WILL BE LEARNED: no step has a learning rate above 0, because the warm-up begins \
             at 0, as in transformers, and has {warmup_steps} of the {total_steps} steps; {remedy}"
        ));
    }
    if largest as f32 <= 0.0 {
        return Some(format!(
            "NOTHING WILL BE LEARNED: {table}.learning_rate = {peak:e} is 0 as a 32-bit float; raise it"
        ));
    }
    (largest < peak).then(|| {
        format!(
            "the learning rate rises to {largest:e} and never reaches {table}.learning_rate = \
             {peak:e}: the warm-up has {warmup_steps} steps, and the run {total_steps}; {remedy}"
        )
    })
}

/// The rows that gave no example, each with its reason.
fn say_dropped(config: &Config, report: &PrepareReport) -> Result<(), Error> {
    for dropped in &report.dropped {
        let reason = match dropped.reason {
            DropReason::TooLong => {
                let max_length = config.data.max_length;
                format!("it has more tokens than data.max_length, {max_length}")
            }
            DropReason::NothingTrained => "none of its tokens would be learned".to_string(),
        };
        say(&format!("dropped {}: {reason}", dropped.id))?;
    }
    Ok(())
}

/// What became of nested schemas, where the config flattens them.
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
    use crate::config::LrSchedulerType;

    #[test]
    fn a_schedule_that_moves_nothing_or_never_reaches_its_peak_is_told() {
        let line = |schedule, peak, warmup_steps, total_steps| {
            let schedule = LearningRateSchedule {
                schedule,
                peak,
                warmup_steps,
                total_steps,
            };
            schedule_line("train", schedule).unwrap_or_default()
        };
        let nothing = line(LrSchedulerType::Linear, 2e-4, 1, 1);
        assert!(
            nothing.starts_with("NOTHING WILL BE LEARNED: no step"),
            "{nothing}"
        );
        assert!(
            nothing.contains("1 of the 1 steps; lower train.warmup_ratio"),
            "{nothing}"
        );
        let tiny = line(LrSchedulerType::Constant, 1e-60, 0, 10);
        assert!(tiny.contains("train.learning_rate = 1e-60 is 0"), "{tiny}");
        let low = line(LrSchedulerType::Cosine, 2e-4, 100, 11);
        assert!(low.contains("rises to 2e-5 and never reaches"), "{low}");
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
