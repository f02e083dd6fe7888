//! `plan` and `doctor`: what a run will need, and whether this machine has it.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::{Place, load_config, say};
use crate::cli::{DoctorArgs, OutputFormat, PlanArgs};
use crate::config::{Config, Device, LoadedConfig};
use crate::doctor::{Finding, Verdict, examine, size};
use crate::error::Error;
use crate::plan::{self, Plan, Probe};
use crate::process::available_memory_bytes;
use crate::recipes::sft::{Preparation, prepare_run};

pub(super) fn plan(args: &PlanArgs, place: &Place) -> Result<(), Error> {
    let mut config = load_config(&args.config)?;
    config.device = place.name(config.device)?;
    let device = place.open(config.device)?;
    let preparation = prepare_run(&config, &device)?;
    let plan = plan::plan(&config, &preparation, &device)?;
    let probe = match args.probe {
        true => {
            let batch = &plan.training.longest_batch;
            Some(plan::probe(&config, &preparation, batch, &device)?)
        }
        false => None,
    };
    match args.format {
        OutputFormat::Text => {
            print_counts(&config, &preparation, &plan)?;
            print_memory(&config, &plan)?;
            probe.map_or(Ok(()), |probe| print_probe(&plan, &probe))
        }
        OutputFormat::Json => {
            let text = serde_json::to_string_pretty(&as_json(&preparation, &plan, probe.as_ref()));
            say(&text.map_err(|error| Error::Usage(error.to_string()))?)
        }
    }
}

fn print_counts(config: &Config, preparation: &Preparation, plan: &Plan) -> Result<(), Error> {
    let report = &preparation.report;
    let training = &plan.training;
    let mut table = plain_table();
    let mut row = |name: &str, text: String| {
        table.add_row([name.to_string(), text]);
    };
    row(
        "model",
        config
            .language_model()?
            .model_name_or_path
            .display()
            .to_string(),
    );
    row(
        "weights",
        format!("{} frozen, {} trained", plan.n_weights, plan.n_adapter),
    );
    row(
        "examples",
        format!(
            "{} of {} rows, {} dropped",
            preparation.examples.len(),
            report.n_rows,
            report.n_dropped()
        ),
    );
    row(
        "steps",
        format!(
            "{} ({:.2} epochs, {} micro-batches)",
            plan.steps, training.epochs, training.n_micro_batches
        ),
    );
    row(
        "tokens",
        format!(
            "{} read, {} of them learned",
            training.n_tokens, training.n_trained_tokens
        ),
    );
    let largest = training.largest.iter().max_by_key(|shape| shape.n_tokens);
    if let Some(largest) = largest {
        row(
            "largest micro-batch",
            format!("{} tokens", largest.n_tokens),
        );
    }
    match &plan.evaluation {
        Some(evaluation) => row(
            "evaluations",
            format!(
                "{} of {} rows, at most {} new tokens each",
                evaluation.n_evaluations, evaluation.n_rows, evaluation.max_new_tokens
            ),
        ),
        None => row("evaluations", "none".to_string()),
    }
    row(
        "checkpoints",
        format!(
            "{} each, at most {} in {}",
            size(plan.checkpoint_bytes),
            size(plan.disk_bytes()),
            config.train.output_dir.display()
        ),
    );
    say(&table.trim_fmt())?;
    for dropped in &report.dropped {
        say(&format!("dropped {}: {:?}", dropped.id, dropped.reason))?;
    }
    Ok(())
}

fn print_memory(config: &Config, plan: &Plan) -> Result<(), Error> {
    let memory = &plan.memory;
    let available = available_memory_bytes();
    say(&format!(
        "\nmemory: a peak of {} is predicted, in the phase {:?}{}",
        size(memory.peak_bytes),
        memory.peak_phase,
        available.map_or(String::new(), |bytes| format!(
            "; {} are available",
            size(bytes)
        ))
    ))?;
    for phase in &memory.phases {
        let mut table = plain_table();
        for part in &phase.parts {
            table.add_row(["  ".to_string() + &part.name, size(part.bytes)]);
        }
        align_right(&mut table, 1);
        say(&format!(
            "\n{}: {}\n{}",
            phase.name,
            size(phase.bytes),
            table.trim_fmt()
        ))?;
    }
    if available.is_some_and(|available| available < memory.peak_bytes) {
        say(
            "\nThis is more than is available. Lower train.per_device_train_batch_size (and raise \
             train.gradient_accumulation_steps as much), data.max_length or eval.batch_size.",
        )?;
    }
    if let Device::Cuda(_) = config.device {
        say("\nThe prediction is for the CPU; on a GPU most of it lies in device memory.")?;
    }
    Ok(())
}

fn print_probe(plan: &Plan, probe: &Probe) -> Result<(), Error> {
    say(&format!(
        "\nprobe: one step on the longest micro-batch, {} tokens of which {} are learned\n\
         {:.2} s, {:.0} tokens/s, loss {:.4}; {:.2} hours of training at this pace",
        probe.n_tokens,
        probe.n_trained_tokens,
        probe.seconds,
        probe.tokens_per_second,
        probe.loss,
        plan.hours(probe).training
    ))?;
    if let Some(evaluation) = plan.evaluation.as_ref().filter(|e| !e.batches.is_empty()) {
        say(&format!(
            "evaluations come on top: {} times {} prompt tokens and at most {} new ones",
            evaluation.n_evaluations,
            evaluation.n_prompt_tokens,
            evaluation.n_rows * evaluation.max_new_tokens
        ))?;
    }
    let Some(measured) = probe.peak_rss_bytes else {
        return Ok(());
    };
    let predicted = plan.step_bytes;
    say(&format!(
        "peak memory of the step: {} measured, {} predicted ({:+.0} %)",
        size(measured),
        size(predicted),
        100.0 * (predicted as f64 / measured as f64 - 1.0)
    ))
}

fn as_json(preparation: &Preparation, plan: &Plan, probe: Option<&Probe>) -> Value {
    let training = &plan.training;
    json!({
        "steps": plan.steps,
        "epochs": training.epochs,
        "micro_batches": training.n_micro_batches,
        "rows": preparation.report.n_rows,
        "examples": preparation.examples.len(),
        "dropped": preparation.report.dropped,
        "tokens": training.n_tokens,
        "trained_tokens": training.n_trained_tokens,
        "largest_micro_batch_tokens":
            training.largest.iter().map(|shape| shape.n_tokens).max(),
        "weights": plan.n_weights,
        "trained_weights": plan.n_adapter,
        "evaluations": plan.evaluation.as_ref().map(|evaluation| json!({
            "n": evaluation.n_evaluations,
            "rows": evaluation.n_rows,
            "prompt_tokens": evaluation.n_prompt_tokens,
            "max_new_tokens": evaluation.max_new_tokens,
        })),
        "checkpoint_bytes": plan.checkpoint_bytes,
        "disk_bytes": plan.disk_bytes(),
        "memory": plan.memory,
        "step_memory_bytes": plan.step_bytes,
        "available_memory_bytes": available_memory_bytes(),
        "probe": probe,
        "hours": probe.map(|probe| plan.hours(probe)),
    })
}

pub(super) fn doctor(args: &DoctorArgs, place: &Place) -> Result<(), Error> {
    let config = match &args.config {
        Some(path) => Some(LoadedConfig::load(path, &[])?.config),
        None => None,
    };
    let device = place.name(config.as_ref().map_or(Device::Cpu, |config| config.device))?;
    let findings = examine(config.as_ref(), device);
    let mut table = plain_table();
    for finding in &findings {
        let mark = match finding.verdict {
            Verdict::Good => "ok",
            Verdict::Note => "note",
            Verdict::Bad(_) => "MISSING",
        };
        table.add_row([mark, finding.subject, &finding.found]);
    }
    say(&table.trim_fmt())?;
    match to_do(&findings) {
        problems if problems.is_empty() => say("this machine is ready"),
        problems => Err(Error::Usage(format!(
            "this machine is not ready:\n{problems}"
        ))),
    }
}

fn to_do(findings: &[Finding]) -> String {
    let line = |finding: &Finding| match &finding.verdict {
        Verdict::Bad(mend) => Some(format!("  {}: {}; {mend}", finding.subject, finding.found)),
        Verdict::Good | Verdict::Note => None,
    };
    findings
        .iter()
        .filter_map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
