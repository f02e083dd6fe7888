//! The table `[goat]` and the tables in it.

use std::path::PathBuf;

use tooltune_agents::truncation::{MAX_DEPTH, MAX_ITEMS, PruneOptions, ShapeOptions};
use tooltune_agents::{Distractors, LoopLimits, Method};

use super::services::{ExecutorConfig, JudgeConfig};
use super::settings::settings;

settings! {
    /// How trajectories become rows.
    pub struct GoatConfig {
        /// Required. JSON Lines file of API documents.
        #[schemars(extend("x-kind" = "path"))]
        pub documents: PathBuf,
        /// Prompting method; see [data.md](data.md#goat).
        pub method: Method = Method::Global,
        /// How to select the documents that a training prompt contains in addition to the gold
        /// documents: "random", or "retriever" (its highest-ranked documents).
        pub distractors: Distractors = Distractors::Random,
        /// Number of documents in a prompt.
        #[schemars(range(min = 1))]
        pub n_documents: usize = 5,
        /// Maximum number of characters of a call result in a prompt. Longer results are cut and
        /// remain valid JSON.
        #[schemars(range(min = 40))]
        pub output_limit: usize = 1200,
        /// Removes list items and deep levels from results before `output_limit` applies. Off by
        /// default.
        pub truncate: Option<TruncateConfig>,
        /// Loss weight of each kind of example.
        pub weights: KindWeights,
        /// Limits of agents in evaluations.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub limits: LoopLimits,
        /// Executor of the agents' calls; by default the synthetic APIs of `tooltune data synth
        /// goat`.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub executor: ExecutorConfig,
        /// LLM judge that decides which queries are solved. By default a query is solved if the
        /// answer contains the `facts` of its trajectory.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub judge: Option<JudgeConfig>,
    }
}

settings! {
    /// Loss weight of each kind of example made from a trajectory; 0 leaves the kind out.
    pub struct KindWeights {
        /// Plans.
        #[schemars(range(min = 0.0))]
        pub plan: f64 = 1.0,
        /// Calls.
        #[schemars(range(min = 0.0))]
        pub call: f64 = 1.0,
        /// `react` examples: thoughts with calls, and final answers.
        #[schemars(range(min = 0.0))]
        pub step: f64 = 1.0,
        /// Sub-queries.
        #[schemars(range(min = 0.0))]
        pub decompose: f64 = 1.0,
        /// Answers.
        #[schemars(range(min = 0.0))]
        pub answer: f64 = 1.0,
    }
}

settings! {
    /// How results are shortened before they are cut.
    pub struct TruncateConfig {
        /// List items to keep; a note states the total.
        pub max_items: usize = MAX_ITEMS,
        /// Levels to keep; deeper objects become a summary.
        pub max_depth: usize = MAX_DEPTH,
        /// [JMESPath](https://jmespath.org) expression that selects parts of the result first. By
        /// default the whole result is used.
        pub jmespath: Option<String>,
    }
}

impl TruncateConfig {
    /// The options for shortening results.
    pub fn shape(&self) -> ShapeOptions {
        ShapeOptions {
            filter: self.jmespath.clone(),
            prune: PruneOptions {
                max_items: self.max_items,
                max_depth: self.max_depth,
                ..PruneOptions::default()
            },
        }
    }
}
