//! Prompt templates of SLOT rows, with the row's text and its schema.
//!
//! The built-in prompts are Jinja templates, so an export can include the template used in training
//! for use on a server.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_template::TextTemplate;

use super::error::DataError;

const INPUT_TEXT: &str = "input_text";
const JSON_SCHEMA: &str = "json_schema";

/// The prompt of SLOT rows; cheap to clone.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum SlotPrompt {
    /// The default prompt: values have the types of the schema.
    #[default]
    Typed,
    /// The paper's prompt, word for word, although its sentence about strings contradicts schemas
    /// with numbers.
    Paper,
    /// A user's Jinja template.
    Template(Arc<TextTemplate>),
}

impl SlotPrompt {
    /// Names of the built-in prompts.
    pub const NAMES: [&'static str; 2] = ["typed", "paper"];

    /// The built-in prompt of this name, if there is one.
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "typed" => Some(Self::Typed),
            "paper" => Some(Self::Paper),
            _ => None,
        }
    }

    /// Reads a template that prints `input_text`, the row's text, and `json_schema`, the schema as
    /// compact JSON.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, is not a template, or exceeds a template limit (docs/limits.md)
    /// - it does not use both variables, or uses an unknown one
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let template = TextTemplate::read(path, &[INPUT_TEXT, JSON_SCHEMA])?;
        Ok(Self::Template(Arc::new(template)))
    }

    /// The prompt as a Jinja template with `input_text` and `json_schema`.
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

    /// Renders the user turn of a row. The schema is compact JSON with keys in their original
    /// order.
    ///
    /// # Errors
    ///
    /// A user's template fails on the row, or exceeds a rendering limit (docs/limits.md).
    pub fn render(&self, input_text: &str, json_schema: &Value) -> Result<String, DataError> {
        let schema = json::dumps(json_schema, Style::Compact);
        let values = [(INPUT_TEXT, input_text), (JSON_SCHEMA, schema.as_str())];
        match self {
            Self::Template(template) => Ok(template.render(&values)?),
            Self::Typed | Self::Paper => Ok(fill_template(self.source(), &values)),
        }
    }
}

/// Renders a template as Jinja would, if it only prints these variables, each once and in this
/// order. The line break at the end of the template is dropped.
fn fill_template(source: &str, values: &[(&str, &str)]) -> String {
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
    fn a_template_engine_renders_the_built_in_prompts_identically() {
        let schema = json!({"type": "object", "properties": {"Ä<b>": {"type": "integer"}}});
        let text = "a {{ json_schema }} {json_schema} <b> & \"é\"\n";
        for prompt in [SlotPrompt::Typed, SlotPrompt::Paper] {
            let template_prompt = template(prompt.source()).unwrap();
            let rendered =
                [&prompt, &template_prompt].map(|prompt| prompt.render(text, &schema).unwrap());
            assert_eq!(rendered[0], rendered[1]);
            assert_eq!(template_prompt.source(), prompt.source());
            let text_prompt = prompt.render(text, &schema).unwrap();
            assert!(
                text_prompt.contains(text) && text_prompt.ends_with("Output:"),
                "{text_prompt}"
            );
        }
    }

    #[test]
    fn a_template_must_print_the_text_and_the_schema_and_nothing_else() {
        let prompt = template("{{ input_text | upper }}\n{{ json_schema }}").unwrap();
        let rendered = prompt.render("a", &json!({"type": "null"}));
        assert_eq!(rendered.unwrap(), "A\n{\"type\":\"null\"}");
        let fault = |source: &str| template(source).unwrap_err();
        assert_eq!(
            fault("{{ input_text }} {{ schema }} {{ json_schema }}"),
            "FILE: the template reads schema, which is not defined; its variables are input_text \
             and json_schema"
        );
        assert_eq!(
            fault("{{ input_text }}"),
            "FILE: the template never prints json_schema; add {{ json_schema }}"
        );
        assert!(fault("{{ input_text").starts_with("FILE: "));
        // A prompt must not depend on the date.
        let day = "{{ input_text }}{{ json_schema }}{{ strftime_now('%d') }}";
        assert!(fault(day).contains("reads strftime_now"));
    }
}
