//! The commented config files that `tooltune init` writes.
//!
//! They are files of their own, so that they can be read, run and reviewed as configs; a test
//! reads each of them.

/// A config to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Text to JSON by schema, on triples of text, schema and JSON.
    Slot,
    /// Supervised fine-tuning on conversations.
    Sft,
    /// Calls of APIs, on trajectories.
    Goat,
    /// A retriever alone, on pairs of query and document.
    Retriever,
    /// Calls of APIs and the retriever that finds them, on trajectories.
    Joint,
}

impl Preset {
    /// The config file, with comments.
    pub fn text(self) -> &'static str {
        match self {
            Self::Slot => include_str!("presets/slot.toml"),
            Self::Sft => include_str!("presets/sft.toml"),
            Self::Goat => include_str!("presets/goat.toml"),
            Self::Retriever => include_str!("presets/retriever.toml"),
            Self::Joint => include_str!("presets/joint.toml"),
        }
    }
}
