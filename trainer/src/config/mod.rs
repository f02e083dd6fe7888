//! A config file and its overrides -> checked settings, or every mistake in them at once.
//!
//! ```text
//! text ─document, yaml─▶ tree with places ─overrides─▶ tree ─read─▶ Config ─names, derived, validate─▶ Config
//! ```
//!
//! Each setting is one field of `tables`, which is what is read, used, written again and described.
//! The tree, not serde, drives the reading, because serde stops at the first mistake and loses the
//! place of values that are wrong only together. `Config ─written─▶ config.resolved.toml` closes
//! the circle.

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
    ReportTo, ResponseReduction, RetrieverData, RunLength, Sampling, Span, Warmup,
};
/// The names of the main tables, in the order of the documentation.
pub fn table_names() -> Vec<&'static str> {
    schema::keys(schema::root())
}

pub(crate) use fetch_hint::fetch_hint;
pub use hub_names::{HubNames, HubOrigin};
pub use load::LoadedConfig;
pub use metric::MetricExpression;
pub use names::Names;
pub(crate) use names::fetch;
pub(crate) use paths::{named_files, things_beside};
pub use presets::Preset;
pub use schema::json_schema;
pub use suite::Suite;
pub use tables::{
    AgentSuiteConfig, BaseModelSettings, CheckpointConfig, Config, DataConfig, EvalConfig,
    ExecutorConfig, GoatConfig, JudgeConfig, KindWeights, LogConfig, LoraConfig, MaskConfig,
    NoLanguageModel, RetrieverConfig, RetrieverLora, SandboxConfig, SpanWeight, TrainConfig,
    TrainFile, TruncateConfig, eval,
};
pub use template_kwargs::TemplateKwargs;
pub use tooltune_checkpoints::adapter::{Patterns, TargetModules};
pub use tooltune_rows::text::{
    ArgumentMask, OnEmpty, OnLostReasoning, OnOverflow, Straddle, TrainOn,
};
pub(crate) use written::flat;
pub use written::{Change, OnResume, diff};
