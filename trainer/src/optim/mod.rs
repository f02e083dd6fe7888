//! The optimizer step: gradients block by block, clipping, AdamW and the learning-rate schedule.

pub mod backward;
pub mod embedding_noise;
pub mod reference;
pub mod schedule;
pub mod step;

pub use backward::{BackwardOptions, MicroBatchGradient, StepError};
pub use embedding_noise::EmbeddingNoise;
pub use schedule::LearningRateSchedule;
pub use step::{Optimizer, StepOutcome};
