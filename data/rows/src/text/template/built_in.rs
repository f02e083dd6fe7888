//! The chat templates that go by name.

use super::ChatTemplate;

const SOURCES: [(&str, &str); 1] = [(
    "chatml-tools",
    include_str!("../chat_templates/chatml-tools.jinja"),
)];

impl ChatTemplate {
    /// The names of the built-in templates.
    pub const NAMES: [&'static str; 1] = [SOURCES[0].0];

    /// The text of the built-in template of this name, if there is one.
    pub fn built_in(name: &str) -> Option<&'static str> {
        let mut named = SOURCES.iter().filter(|(known, _)| *known == name);
        named.next().map(|(_, source)| *source)
    }
}
