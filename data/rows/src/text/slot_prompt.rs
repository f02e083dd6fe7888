//! How a SLOT row is asked: a text with the row's text and its schema in it.
//!
//! The built-in prompts are written as Jinja templates, so that an export carries the one that
//! training used as a file from which a server's code can be written.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::error::DataError;
use super::template::TextTemplate;
use crate::json::{self, Style};

const INPUT_TEXT: &str = "input_text";
const JSON_SCHEMA: &str = "json_schema";

/// The prompt of SLOT rows; cheap to clone.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum SlotPrompt {
    /// Ours: values have the types of the schema.
    #[default]
    Typed,
    /// The paper's, word for word, though its sentence about strings contradicts schemas with
    /// numbers in them.
    Paper,
    /// A Jinja template of the user's.
    Template(Arc<TextTemplate>),
}

impl SlotPrompt {
    /// The names of the built-in ones.
    pub const NAMES: [&'static str; 2] = ["typed", "paper"];

    /// The built-in prompt of this name, if there is one.
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "typed" => Some(Self::Typed),
            "paper" => Some(Self::Paper),
            _ => None,
        }
    }

    /// Reads a template, which prints `input_text`, the row's text, and `json_schema`, the schema
    /// as JSON without blanks.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, is no template, or asks for more than templates may
    ///   (docs/limits.md)
    /// - it does not read both variables, or reads another one
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let template = TextTemplate::read(path, &[INPUT_TEXT, JSON_SCHEMA])?;
        Ok(Self::Template(Arc::new(template)))
    }

    /// The prompt as a Jinja template over `input_text` and `json_schema`.
    ///
    /// # Source
    ///
    /// [`SlotPrompt::Paper`]: SLOT, appendix F.1, Figure 6.
    pub fn source(&self) -> &str {
        match self {
            Self::Typed => include_str!("slot_prompts/typed.jinja"),
            Self::Paper => include_str!("slot_prompts/paper.jinja"),
            Self::Template(template) => template.source(),
        }
    }

    /// The user turn of a row; the schema is written without blanks, keys in their own order.
    ///
    /// # Errors
    ///
    /// A template of the user's that fails on the row, or asks for more than a rendering may
    /// (docs/limits.md).
    pub fn render(&self, input_text: &str, json_schema: &Value) -> Result<String, DataError> {
        let schema = json::dumps(json_schema, Style::Compact);
        let values = [(INPUT_TEXT, input_text), (JSON_SCHEMA, schema.as_str())];
        match self {
            Self::Template(template) => template.render(&values),
            Self::Typed | Self::Paper => Ok(filled(self.source(), &values)),
        }
    }
}

/// What Jinja makes of a template that does nothing but print variables in this order, each once:
/// the line break at its end is none of its text.
fn filled(source: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = source.strip_suffix('\n').unwrap_or(source);
    for (name, value) in values {
        if let Some((before, after)) = rest.split_once(&format!("{{{{ {name} }}}}")) {
            text.push_str(before);
            text.push_str(value);
            rest = after;
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(source: &str) -> Result<SlotPrompt, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        SlotPrompt::read(file.path()).map_err(|error| {
            error
                .to_string()
                .replace(&*file.path().to_string_lossy(), "FILE")
        })
    }

    #[test]
    fn a_template_engine_prints_the_built_in_prompts_alike() {
        let schema = json!({"type": "object", "properties": {"Ä<b>": {"type": "integer"}}});
        let text = "a {{ json_schema }} {json_schema} <b> & \"é\"\n";
        for prompt in [SlotPrompt::Typed, SlotPrompt::Paper] {
            let read = template(prompt.source()).unwrap();
            let rendered = [&prompt, &read].map(|prompt| prompt.render(text, &schema).unwrap());
            assert_eq!(rendered[0], rendered[1]);
            assert_eq!(read.source(), prompt.source());
            let said = prompt.render(text, &schema).unwrap();
            assert!(said.contains(text) && said.ends_with("Output:"), "{said}");
        }
    }

    #[test]
    fn a_template_prints_text_and_schema_and_nothing_that_is_not_there() {
        let prompt = template("{{ input_text | upper }}\n{{ json_schema }}").unwrap();
        let said = prompt.render("a", &json!({"type": "null"}));
        assert_eq!(said.unwrap(), "A\n{\"type\":\"null\"}");
        let fault = |source: &str| template(source).unwrap_err();
        assert_eq!(
            fault("{{ input_text }} {{ schema }} {{ json_schema }}"),
            "FILE: the template reads schema, which it is not given; it has input_text and \
             json_schema"
        );
        assert_eq!(
            fault("{{ input_text }}"),
            "FILE: the template never prints json_schema; write {{ json_schema }} where it belongs"
        );
        assert!(fault("{{ input_text").starts_with("FILE: "));
        // A row is asked alike on every day.
        let day = "{{ input_text }}{{ json_schema }}{{ strftime_now('%d') }}";
        assert!(fault(day).contains("reads strftime_now"));
    }
}
