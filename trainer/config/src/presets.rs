//! Commented config files that `tooltune init` writes.
//!
//! They are separate files, which can be read, run and reviewed as configs; a test loads each of
//! them.

/// Starting points for a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Text to JSON by schema.
    Slot,
    /// Prompts and completions, or chats, for any task.
    Sft,
    /// Tool calls, from chats with tools.
    Calls,
    /// API calls, from trajectories.
    Goat,
    /// A retriever only, from pairs.
    Retriever,
    /// API calls, and a retriever for the API documents.
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
