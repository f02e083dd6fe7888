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
        /// How the model is prompted; see [data.md](data.md#goat).
        pub method: Method = Method::Global,
        /// Documents in a training prompt besides the gold ones: "random", or the ones that the
        /// "retriever" ranks highest.
        pub distractors: Distractors = Distractors::Random,
        /// Documents in a prompt.
        #[schemars(range(min = 1))]
        pub n_documents: usize = 5,
        /// Maximum characters of a call result in a prompt. Longer results are cut and remain JSON.
        #[schemars(range(min = 40))]
        pub output_limit: usize = 1200,
        /// How results are shortened by structure before that; absent means not at all.
        pub truncate: Option<TruncateConfig>,
        /// Loss weight of each kind of example.
        pub weights: KindWeights,
        /// Limits of agents in evaluations.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub limits: LoopLimits,
        /// Executor of the agents' calls; by default the invented APIs of `tooltune data synth
        /// goat`.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub executor: ExecutorConfig,
        /// Model behind an endpoint that decides which queries are solved; by default the facts of
        /// the trajectories decide.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub judge: Option<JudgeConfig>,
    }
}

settings! {
    /// How much each kind of example of a trajectory counts; 0 leaves the kind out.
    pub struct KindWeights {
        /// Plans.
        #[schemars(range(min = 0.0))]
        pub plan: f64 = 1.0,
        /// Calls.
        #[schemars(range(min = 0.0))]
        pub call: f64 = 1.0,
        /// Thoughts with calls, and the answers of such loops.
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
    /// How outputs are shortened before they are cut.
    pub struct TruncateConfig {
        /// List items to keep; a note states the total.
        pub max_items: usize = MAX_ITEMS,
        /// Levels to keep; deeper objects become a summary.
        pub max_depth: usize = MAX_DEPTH,
        /// [JMESPath](https://jmespath.org) expression that selects parts first; absent means
        /// everything.
        pub jmespath: Option<String>,
    }
}

impl TruncateConfig {
    /// Part of an output that is kept.
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
