//! A plan as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::{Config, RunLength};
use crate::plan::disk::disk_of_run;
use crate::plan::{Needs, Outline, Plan, Probe, RetrieverPlan};
use crate::process::available_memory_bytes;
use crate::recipes::preparation::Preparation;

/// The plan of a run with a language model.
pub(super) fn as_json(
    config: &Config,
    preparation: &Preparation,
    plan: &Plan,
    probe: Option<&Probe>,
) -> Value {
    let training = &plan.training;
    json!({
        "steps": plan.steps,
        "epochs": training.epochs,
        "micro_batches": training.n_micro_batches,
        "rows": preparation.report.n_rows,
        "examples": preparation.training.examples.len(),
        "weighted_rows": preparation.weighted,
        "dropped": preparation.report.dropped,
        "unlearned_turns": preparation.report.unlearned,
        "without_bos": preparation.report.without_bos,
        "cut": preparation.report.n_cut,
        "not_read": preparation.notes.not_read,
        "tools": preparation.notes.tools,
        "eval_rows": preparation.held_out.as_ref().map(|held_out| json!({
            "dropped": held_out.report.dropped,
            "cut": held_out.report.n_cut,
        })),
        "eval_not_read": preparation.eval_notes.not_read,
        "eval_tools": preparation.eval_notes.tools,
        "flattened": preparation.flattened,
        "tokens": training.n_tokens,
        "trained_tokens": training.n_trained_tokens,
        "largest_micro_batch_tokens":
            training.largest.iter().map(|shape| shape.n_tokens).max(),
        "weights": plan.needs.n_weights,
        "trained_weights": plan.needs.n_trained,
        "quantization": plan.needs.quantization.as_str(),
        "evaluations": plan.evaluation.as_ref().map(|evaluation| json!({
            "n": evaluation.n_evaluations,
            "queries": evaluation.suites.iter().copied().collect::<BTreeMap<_, _>>(),
            "loss_rows": evaluation.n_loss_rows,
            "prompt_tokens": evaluation.n_prompt_tokens,
            "max_new_tokens": evaluation.max_new_tokens,
        })),
        "retriever": plan.retriever,
        "checkpoint_bytes": plan.needs.checkpoint_bytes,
        "disk_bytes": plan.needs.disk_bytes,
        "free_disk_bytes": disk_of_run(config, plan.needs.disk_bytes).free,
        "memory": plan.needs.memory,
        "step_memory_bytes": plan.needs.step_bytes,
        "available_memory_bytes": available_memory_bytes(),
        "probe": probe,
        "hours": probe.map(|probe| plan.hours(probe)),
    })
}

/// The plan of a run that trains only a retriever.
pub(super) fn retriever_as_json(
    config: &Config,
    retriever: &RetrieverPlan,
    needs: &Needs,
) -> Value {
    json!({
        "steps": retriever.steps,
        "weights": needs.n_weights,
        "trained_weights": needs.n_trained,
        "retriever": retriever,
        "checkpoint_bytes": needs.checkpoint_bytes,
        "disk_bytes": needs.disk_bytes,
        "free_disk_bytes": disk_of_run(config, needs.disk_bytes).free,
        "memory": needs.memory,
        "step_memory_bytes": needs.step_bytes,
        "available_memory_bytes": available_memory_bytes(),
    })
}

/// The values of a plan that are known offline, with the same keys as in [`as_json`].
pub(super) fn outline_as_json(config: &Config, outline: &Outline) -> Value {
    json!({
        "offline": true,
        "steps": outline.steps,
        "epochs": match config.train.length() {
            RunLength::Epochs(epochs) => Some(epochs),
            RunLength::Steps(_) => None,
        },
        "largest_micro_batch_tokens": outline.largest.n_tokens,
        "compute_dtype": format!("{:?}", outline.compute_dtype).to_lowercase(),
        "quantization": outline.needs.quantization.as_str(),
        "weights": outline.needs.n_weights,
        "trained_weights": outline.needs.n_trained,
        "retriever": outline.retriever,
        "checkpoint_bytes": outline.needs.checkpoint_bytes,
        "disk_bytes": outline.needs.disk_bytes,
        "memory": outline.needs.memory,
        "available_memory_bytes": available_memory_bytes(),
    })
}
