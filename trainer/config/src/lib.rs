//! Reads a config file and its overrides into checked settings, or reports all mistakes at once.
//!
//! ```text
//! text ─document, yaml─▶ tree with spans ─overrides─▶ tree ─read─▶ Config ─names, derived, validate─▶ Config
//! ```
//!
//! Each setting is one field in `tables`, from which it is read, written and documented. Reading
//! follows the parsed tree instead of serde, which stops at the first mistake and drops the
//! positions of values. A run writes its config to `config.resolved.toml`, which can be read again.

pub mod budgets;
mod derived;
mod diagnostics;
mod did_you_mean;
mod document;
mod enums;
mod fetch_hint;
mod findings;
pub mod foreign;
mod hub_names;
mod load;
mod metric;
mod names;
mod overrides;
mod paths;
mod peft;
mod presets;
mod read;
mod rules;
mod schema;
mod suite;
mod tables;
mod template_kwargs;
#[cfg(test)]
mod tests;
mod validate;
mod written;
mod yaml;

pub use diagnostics::{Colors, ConfigError, Problem, Source, SourceSpan};
pub use enums::{
    CheckpointingMode, ComputeDtype, DataFormat, Device, EvalStrategy, ExecutorKind, Flatten,
    FlattenCollisions, GradientCheckpointing, LrSchedulerType, Optim, Packing, PrincipalInit,
    Quantization, ReportTo, ResponseReduction, RetrieverData, RunLength, Sampling, Span, Warmup,
};
/// Names of the main tables, in the order of the documentation.
pub fn table_names() -> Vec<&'static str> {
    schema::keys(schema::root())
}

pub use fetch_hint::fetch_hint;
pub use hub_names::{HubNames, HubOrigin};
pub use load::LoadedConfig;
pub use metric::MetricExpression;
pub use names::Names;
pub use names::fetch;
pub use paths::{named_files, things_beside};
pub use presets::Preset;
pub use schema::json_schema;
pub use suite::Suite;
pub use tables::{
    AgentSuiteConfig, BaseModelSettings, CheckpointConfig, Config, DataConfig, EvalConfig,
    ExecutorConfig, GoatConfig, JudgeConfig, KindWeights, LogConfig, LoraConfig, MaskConfig,
    NoLanguageModel, RanksConfig, RetrieverConfig, RetrieverLora, SandboxConfig, SpanWeight,
    TrainConfig, TrainFile, TruncateConfig, eval,
};
pub use template_kwargs::TemplateKwargs;
pub use tooltune_checkpoints::adapter::{Patterns, TargetModules};
pub use tooltune_rows::text::{
    ArgumentMask, OnEmpty, OnLostReasoning, OnOverflow, Straddle, TrainOn,
};
pub use written::flat;
pub use written::{Change, OnResume, diff};
