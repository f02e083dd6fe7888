//! What operations take from outside: weights that embed texts, and functions that calls run.

use crate::nestful::{MathRunner, ToolRunner};

use super::encoders::Encoders;

/// Encoders and functions behind the operations.
///
/// By default the hash encoder and the functions of arithmetic, which need nothing.
#[derive(Debug)]
pub struct Outside {
    /// The encoders behind `options.encoder`.
    pub encoders: Encoders,
    /// What runs sequences of calls; rows with functions that it lacks have no wins.
    pub tools: Box<dyn ToolRunner>,
}

impl Default for Outside {
    fn default() -> Self {
        Self {
            encoders: Encoders::hash_only(),
            tools: Box::new(MathRunner),
        }
    }
}

impl From<Encoders> for Outside {
    fn from(encoders: Encoders) -> Self {
        Self {
            encoders,
            ..Self::default()
        }
    }
}
