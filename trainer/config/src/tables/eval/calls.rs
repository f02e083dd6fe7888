//! The table `[eval.calls]`.

use crate::tables::settings::settings;

settings! {
    /// The suite calls: tool calls in conversations.
    pub struct CallsConfig {
        /// Maximum number of further tries of a turn whose calls are malformed, name an unknown tool
        /// or break the schema. The errors are fed back as tool messages, or as a user message if
        /// calls cannot be parsed.
        #[schemars(range(max = 10))]
        pub retries: usize = 0,
    }
}
