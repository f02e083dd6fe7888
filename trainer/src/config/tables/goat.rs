//! The table `[goat]` and the tables in it.

use std::path::PathBuf;

use tooltune_agents::truncation::{MAX_DEPTH, MAX_ITEMS, PruneOptions, ShapeOptions};
use tooltune_agents::{Distractors, LoopLimits, Method};

use super::services::{ExecutorConfig, JudgeConfig};
use super::settings::settings;

settings! {
    /// How trajectories become rows.
    pub struct GoatConfig {
        /// Required. The JSON Lines file of API documents.
        #[schemars(extend("x-kind" = "path"))]
        pub documents: PathBuf,
        /// How the model is prompted; see [data.md](data.md).
        pub method: Method = Method::Global,
        /// Which documents stand beside the gold ones in a training prompt: "random", or
        /// "retriever" for those that it ranks highest.
        pub distractors: Distractors = Distractors::Random,
        /// Documents in a prompt.
        #[schemars(range(min = 1))]
        pub n_documents: usize = 5,
        /// Characters of a call's result in a prompt; what is longer is cut, and stays JSON.
        #[schemars(range(min = 40))]
        pub output_limit: usize = 1200,
        /// How a result is shortened before that, so that its shape stays; not at all if absent.
        pub truncate: Option<TruncateConfig>,
        /// How much each kind of example counts.
        pub weights: KindWeights,
        /// How far agents go that are evaluated.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub limits: LoopLimits,
        /// What answers the calls of agents; the invented APIs of `tooltune data synth goat` by
        /// default.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub executor: ExecutorConfig,
        /// The model behind an endpoint that says which queries are solved; by default the facts of
        /// the trajectories say it.
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
        /// Items of a list that stay; a note says how many there are.
        pub max_items: usize = MAX_ITEMS,
        /// Levels that stay; objects below show what they hold as a summary.
        pub max_depth: usize = MAX_DEPTH,
        /// [JMESPath](https://jmespath.org) expression that picks parts first; everything if
        /// absent.
        pub jmespath: Option<String>,
    }
}

impl TruncateConfig {
    /// What of an output is kept.
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
