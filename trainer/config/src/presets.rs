//! Commented config files that `tooltune init` writes.
//!
//! They are separate files, which can be read, run and reviewed as configs; a test loads each of
//! them.

/// A config to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Text to JSON with a schema, on triples of text, schema and JSON.
    Slot,
    /// Supervised fine-tuning on conversations.
    Sft,
    /// Calls of tools, on conversations with tools.
    Calls,
    /// Calls of APIs, on trajectories.
    Goat,
    /// A retriever, on pairs of query and document.
    Retriever,
    /// Calls of APIs and the retriever that finds them, on trajectories.
    Joint,
}

impl Preset {
    /// Content of the config file, with comments.
    pub fn text(self) -> &'static str {
        match self {
            Self::Slot => include_str!("presets/slot.toml"),
            Self::Sft => include_str!("presets/sft.toml"),
            Self::Calls => include_str!("presets/calls.toml"),
            Self::Goat => include_str!("presets/goat.toml"),
            Self::Retriever => include_str!("presets/retriever.toml"),
            Self::Joint => include_str!("presets/joint.toml"),
        }
    }
}
