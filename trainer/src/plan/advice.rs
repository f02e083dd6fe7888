//! What to lower where a run does not fit: what costs most, by the setting that makes it so large.

use serde::Serialize;
use tooltune_checkpoints::adapter::TargetModules;

use super::memory::{MemoryPlan, Phase, size};
use crate::config::Config;

/// What the size of a part follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Cause {
    /// The base model.
    Weights,
    /// The values that learn beside it.
    Adapter,
    /// The rows of a micro-batch.
    Batch,
    /// The rows whose loss an evaluation measures.
    EvalRows,
    /// Texts that an evaluation writes.
    Generation,
    /// Encoders of the evaluation.
    Encoder,
    /// A retriever that learns.
    Retriever,
    /// Everything else, which no setting makes much smaller.
    Program,
}

/// Bytes of a cause in a phase.
struct Cost {
    cause: Cause,
    bytes: u64,
}

/// The causes of a phase, the one that costs most first.
fn costs(phase: &Phase) -> Vec<Cost> {
    let mut costs: Vec<Cost> = Vec::new();
    for part in &phase.parts {
        match costs.iter_mut().find(|cost| cost.cause == part.cause) {
            Some(cost) => cost.bytes += part.bytes,
            None => costs.push(Cost {
                cause: part.cause,
                bytes: part.bytes,
            }),
        }
    }
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.bytes));
    costs
}

/// What takes most of the largest phase, and what makes it smaller; a second cause, too, where it takes
/// half as much as the first or more.
pub fn advice(config: &Config, memory: &MemoryPlan) -> String {
    let Some(phase) = memory.phases.first() else {
        return String::new();
    };
    let costs = costs(phase);
    let most = costs.first().map_or(0, |cost| cost.bytes);
    let told = costs
        .iter()
        .filter(|cost| cost.bytes * 2 >= most)
        .take(2)
        .map(|cost| format!("{}: {}", size(cost.bytes), remedy(config, cost.cause)));
    told.collect::<Vec<_>>().join("; ")
}

fn remedy(config: &Config, cause: Cause) -> String {
    let train = &config.train;
    match cause {
        Cause::Weights => {
            "the base model; take a smaller one, or model.compute_dtype = \"bf16\" where it is f32"
                .to_owned()
        }
        Cause::Adapter => {
            let targets = match &config.lora.target_modules {
                TargetModules::Pattern(pattern) => pattern.clone(),
                TargetModules::Names(names) => names.join(", "),
            };
            format!(
                "the adapter with its moments and gradient; lower lora.r ({}) or name fewer modules in \
                 lora.target_modules ({targets})",
                config.lora.r
            )
        }
        Cause::Batch => format!(
            "the rows of a micro-batch; lower train.per_device_train_batch_size ({}) and raise \
             train.gradient_accumulation_steps as much, or lower data.max_length ({})",
            train.per_device_train_batch_size, config.data.max_length
        ),
        Cause::EvalRows => format!(
            "the longest row of data.eval; lower data.max_length ({})",
            config.data.max_length
        ),
        Cause::Generation => format!(
            "texts that evaluations write at once; lower eval.batch_size ({}) or eval.max_new_tokens \
             ({})",
            config.eval.batch_size, config.eval.max_new_tokens
        ),
        Cause::Encoder => {
            "the encoders of the evaluation; leave suites that need one out of eval.suites"
                .to_owned()
        }
        Cause::Retriever => "the retriever; set or lower retriever.mini_batch_size, or lower \
             retriever.per_device_train_batch_size"
            .to_owned(),
        Cause::Program => "the program with its rows; train on fewer of them".to_owned(),
    }
}
