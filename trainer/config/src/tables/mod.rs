//! The tables of a config file with their keys, defaults and ranges.
//!
//! Each setting is one field here. Values computed from others (scaling, steps) have no field.

mod checkpoint;
mod data;
pub mod eval;
mod goat;
mod log;
mod lora;
mod mask;
mod model;
mod ranks;
mod retriever;
mod services;
mod settings;
mod train;
mod train_file;

use std::path::{Path, PathBuf};

use settings::settings;

pub use checkpoint::CheckpointConfig;
pub use data::DataConfig;
pub use eval::{AgentSuiteConfig, EvalConfig, SandboxConfig};
pub use goat::{GoatConfig, KindWeights, TruncateConfig};
pub use log::LogConfig;
pub(crate) use lora::ALL_LINEAR;
pub use lora::LoraConfig;
pub use mask::{MaskConfig, SpanWeight};
pub use model::BaseModelSettings;
pub use ranks::RanksConfig;
pub use retriever::{RetrieverConfig, RetrieverLora};
pub use services::{ExecutorConfig, JudgeConfig};
pub use train::TrainConfig;
pub use train_file::TrainFile;

use super::enums::Device;
use super::hub_names::HubNames;
use super::suite::Suite;

settings! {
    /// A tooltune config file.
    pub struct Config {
        /// Where to compute: "cpu", "cuda" or "cuda:1". `--device` has precedence.
        #[schemars(with = "String", extend("x-on-resume" = "safe", "x-kind" = "device"))]
        pub device: Device = Device::Cpu,
        /// The base model.
        pub model: Option<BaseModelSettings>,
        /// The low-rank adapters.
        pub lora: LoraConfig,
        /// Training and evaluation rows.
        pub data: DataConfig,
        /// Supervised tokens and their weights.
        pub mask: MaskConfig,
        /// How trajectories become rows; for `data.format = "goat"`.
        pub goat: Option<GoatConfig>,
        /// The retriever that ranks API documents.
        pub retriever: Option<RetrieverConfig>,
        /// Optimizer, schedule and length of the run.
        pub train: TrainConfig,
        /// Evaluation during training; off without this table.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub eval: EvalConfig,
        /// When checkpoints are saved.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub checkpoint: CheckpointConfig,
        /// Where metrics are written.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub log: LogConfig,
        /// When a run with several processes gives up on one of them.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub ranks: RanksConfig,
        /// Not a setting: the Hugging Face Hub names that the paths above were resolved from.
        #[serde(skip)]
        #[schemars(skip)]
        pub hub: HubNames,
    }
}

/// The config has no `[model]`, but the command needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this needs a language model, but the config has no [model]: add it with model_name_or_path"
)]
pub struct NoLanguageModel;

impl Config {
    /// The base model.
    ///
    /// # Errors
    ///
    /// The run trains only a retriever.
    pub fn language_model(&self) -> Result<&BaseModelSettings, NoLanguageModel> {
        self.model.as_ref().ok_or(NoLanguageModel)
    }

    /// The hub name that `path` was resolved from, which other machines can use; otherwise `path`
    /// itself.
    pub fn named(&self, path: &Path) -> PathBuf {
        let origin = self.hub.origin_of(path);
        origin.map_or_else(|| path.to_owned(), |origin| PathBuf::from(&origin.name))
    }

    /// The retriever, if it is trained.
    pub fn trained_retriever(&self) -> Option<&RetrieverConfig> {
        self.retriever
            .as_ref()
            .filter(|retriever| retriever.train.is_some())
    }

    /// The config for agents that answer the queries of `suite`. The settings of the suite's table
    /// replace `data.eval` and settings in `[goat]`.
    pub fn for_agents(&self, suite: Suite) -> Self {
        let mut config = self.clone();
        let Some(table) = self.eval.agent_suite(suite) else {
            return config;
        };
        if !table.data.is_empty() {
            config.data.evaluate_on(table.data.clone());
        }
        if let Some(goat) = &mut config.goat {
            if let Some(documents) = &table.documents {
                goat.documents.clone_from(documents);
            }
            if let Some(executor) = &table.executor {
                goat.executor.clone_from(executor);
            }
        }
        config
    }
}
