//! Builds the direct prompt of a row, per model family.
//!
//! The benchmark's own prompts can be loaded from a file. They contain the special tokens of their
//! models and are used unchanged. The built-in templates have the same content in our own words and
//! are rendered with the model's chat template. Tools are JSON-encoded once, whereas the published
//! scripts encode the JSON text again; [`ToolsEncoding::Twice`] reproduces that.

use std::path::Path;

use indexmap::IndexMap;
use tooltune_apis::{did_you_mean, read_text};
use tooltune_json::python::{PyValue, dumps, loads};
use tooltune_template::{Conversation, Message, Role};

use super::error::NestfulError;
use super::examples::{ExampleForm, PromptExample, example_block};
use super::parse::Parser;
use super::row::{NestfulRow, ToolSpec};
use super::templates::{TemplateFill, built_in_templates};

/// Templates by model family, and their few-shot examples.
#[derive(Debug, Clone)]
pub struct PromptSet {
    templates: IndexMap<String, String>,
    /// `None` if the file does not specify examples; its prompts then show no examples.
    examples: Option<Vec<PromptExample>>,
    is_built_in: bool,
}

/// Options of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptOptions {
    /// Number of examples to show, from the start of the set; 0, 1 or 3 in the paper. If the set
    /// has no examples, none are shown ([`PromptSet::has_examples`]).
    pub n_examples: usize,
    /// The encoding of the tools.
    pub tools: ToolsEncoding,
}

impl Default for PromptOptions {
    fn default() -> Self {
        Self {
            n_examples: 3,
            tools: ToolsEncoding::Once,
        }
    }
}

/// How the tools are written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsEncoding {
    /// As a JSON list.
    Once,
    /// As a JSON string that contains a JSON list, with every quote escaped.
    Twice,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum NestfulPrompt {
    /// Messages for the model's chat template.
    Chat(Conversation),
    /// Raw text that contains the model's special tokens.
    Raw(String),
}

impl PromptSet {
    /// The built-in templates and examples; families are named after parsers.
    pub fn built_in() -> Self {
        Self {
            templates: built_in_templates()
                .map(|(family, template)| (family.to_owned(), template))
                .collect(),
            examples: Some(PromptExample::built_in()),
            is_built_in: true,
        }
    }

    /// Reads a prompt file: see [`PromptSet::parse`].
    ///
    /// # Errors
    ///
    /// The file cannot be read, or [`PromptSet::parse`] rejects its content.
    pub fn read(path: &Path) -> Result<Self, NestfulError> {
        let location = path.display().to_string();
        Self::parse(&read_text(path)?).map_err(|error| error.with_location(location))
    }

    /// Parses the content of a prompt file: `{"prompts": {family: template}, "icl_examples":
    /// [{input, output, tools?}]}`, or only the templates, without examples.
    ///
    /// # Errors
    ///
    /// - the content is not such JSON
    /// - there is no template, or a template lacks `{FUNCTION_STR}`, `{ICL_EXAMPLES}` or `{QUERY}`
    pub fn parse(text: &str) -> Result<Self, NestfulError> {
        let not_json = |error| NestfulError::NotJson {
            field: "the file",
            error,
        };
        let file = loads(text).map_err(not_json)?;
        let families = file.get("prompts").unwrap_or(&file);
        let families = families.as_dict().into_iter().flatten();
        let templates = families
            .map(|(family, template)| Ok((family.clone(), check_template(family, template)?)))
            .collect::<Result<IndexMap<_, _>, NestfulError>>()?;
        if templates.is_empty() {
            let reason =
                "there is no template; provide an object of templates by family".to_owned();
            return Err(NestfulError::Prompts { reason });
        }
        let examples = file.get("icl_examples").map(|examples| {
            let examples = examples.as_list().unwrap_or_default().iter().enumerate();
            examples
                .map(|(idx, one)| PromptExample::new(one, &format!("icl_examples[{idx}]")))
                .collect::<Result<Vec<_>, _>>()
        });
        Ok(Self {
            templates,
            examples: examples.transpose()?,
            is_built_in: false,
        })
    }

    /// The families with a template.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// Whether the file specifies examples, even an empty list. A file of only templates does not.
    pub fn has_examples(&self) -> bool {
        self.examples.is_some()
    }

    /// The first `n_examples` examples; none if the set has none.
    ///
    /// # Errors
    ///
    /// The set has fewer examples.
    pub fn first_examples(&self, n_examples: usize) -> Result<&[PromptExample], NestfulError> {
        let Some(examples) = &self.examples else {
            return Ok(&[]);
        };
        examples.get(..n_examples).ok_or_else(|| {
            let n = examples.len();
            let reason = format!("{n_examples} examples are requested, but there are only {n}");
            NestfulError::Prompts { reason }
        })
    }

    /// The functions that the first `n_examples` examples call, but that neither the row nor the
    /// examples specify. The row's prompt then contains calls of functions that it does not
    /// describe.
    pub fn unspecified_tools(&self, row: &NestfulRow, n_examples: usize) -> Vec<&str> {
        let examples = self.first_examples(n_examples).unwrap_or_default();
        let is_known = |example: &PromptExample, name: &str| {
            let mut specified = row.tools.iter().chain(&example.tools);
            specified.any(|tool| tool.name == name)
        };
        let called_names = examples.iter().flat_map(|example| {
            let called_names = example.called_names();
            called_names.filter(move |name| !is_known(example, name))
        });
        called_names.collect()
    }

    /// Builds the prompt of a row. If an example calls functions that the row does not have, they
    /// are appended to the row's tools, provided that the examples specify them.
    ///
    /// # Errors
    ///
    /// The family has no template, or there are fewer examples than requested.
    pub fn prompt(
        &self,
        row: &NestfulRow,
        family: &str,
        options: PromptOptions,
    ) -> Result<NestfulPrompt, NestfulError> {
        let template = self.templates.get(family).ok_or_else(|| {
            let families: Vec<&str> = self.families().collect();
            let hint = did_you_mean(family, families.iter().copied());
            let families = families.join(", ");
            let reason =
                format!("no template for {family:?} (available families: {families}){hint}");
            NestfulError::Prompts { reason }
        })?;
        let examples = self.first_examples(options.n_examples)?;
        let tools = with_tools_of(examples, &row.tools);
        let filling = TemplateFill {
            tools: &tools_text(tools, options.tools),
            examples: &example_block(examples, self.example_form(family)),
            query: &row.input,
        };
        let text = filling.fill(template);
        Ok(if self.is_built_in {
            NestfulPrompt::Chat(Conversation::new(vec![Message::new(Role::User, text)]))
        } else {
            NestfulPrompt::Raw(text)
        })
    }

    /// The gold calls of a row as a completion, in the notation that the family's prompt asks for.
    pub fn completion(&self, row: &NestfulRow, family: &str) -> String {
        self.example_form(family).render(&row.output)
    }

    /// The notation of a family's examples. The published examples for ToolACE are lists, although
    /// the prompt asks for Python calls.
    fn example_form(&self, family: &str) -> ExampleForm {
        match parser_of_family(family) {
            Parser::Hermes => ExampleForm::Tagged,
            Parser::Xlam if self.is_built_in || family.ends_with("-fc-r") => ExampleForm::ToolCalls,
            Parser::ToolAce if self.is_built_in => ExampleForm::PythonCalls,
            _ => ExampleForm::List,
        }
    }
}

/// The parser for a family's answers, by the name of a parser or of a published model.
pub fn parser_of_family(family: &str) -> Parser {
    const MODELS: [(&str, Parser); 7] = [
        ("hermes", Parser::Hermes),
        ("xlam", Parser::Xlam),
        ("hammer", Parser::Hammer),
        ("toolace", Parser::ToolAce),
        ("granite-3.1", Parser::Granite31),
        ("granite-3.3", Parser::Granite31),
        ("llama", Parser::Llama),
    ];
    let lower = family.to_lowercase();
    let model = || MODELS.into_iter().find(|(part, _)| lower.contains(part));
    Parser::from_name(family)
        .or_else(|| model().map(|(_, parser)| parser))
        .unwrap_or(Parser::JsonList)
}

fn check_template(family: &str, template: &PyValue) -> Result<String, NestfulError> {
    let reason = |message: String| NestfulError::Prompts { reason: message };
    let text = template.as_text();
    let text = text.ok_or_else(|| reason(format!("the template of {family:?} is not a string")))?;
    let placeholders = ["{FUNCTION_STR}", "{ICL_EXAMPLES}", "{QUERY}"];
    match placeholders
        .into_iter()
        .find(|placeholder| !text.contains(placeholder))
    {
        Some(placeholder) => Err(reason(format!(
            "the template of {family:?} lacks {placeholder}"
        ))),
        None => Ok(text.to_owned()),
    }
}

/// The tools, followed by tools that the examples call and that are not in the list. Each occurs
/// once.
fn with_tools_of<'t>(examples: &'t [PromptExample], tools: &'t [ToolSpec]) -> Vec<&'t ToolSpec> {
    let mut all_tools: Vec<&ToolSpec> = tools.iter().collect();
    for tool in examples.iter().flat_map(|example| &example.tools) {
        if !all_tools.iter().any(|listed| listed.name == tool.name) {
            all_tools.push(tool);
        }
    }
    all_tools
}

/// Formats the specifications as text.
pub(super) fn tools_text<'t>(
    tools: impl IntoIterator<Item = &'t ToolSpec>,
    encoding: ToolsEncoding,
) -> String {
    let specs = tools.into_iter().map(|tool| tool.spec.clone()).collect();
    let encoded = dumps(&PyValue::List(specs));
    match encoding {
        ToolsEncoding::Once => encoded,
        ToolsEncoding::Twice => dumps(&PyValue::Text(encoded)),
    }
}
