//! Writes the prompt of direct prompting for a row, per model family.
//!
//! The benchmark's own prompts can be given as a file; they hold the special tokens of their models
//! and are fed as they are. The templates shipped here say the same in words of our own and go
//! through the model's chat template. The decision to question: tools are encoded once, where the
//! published scripts encode text that is JSON already; [`ToolsEncoding::Twice`] does as they do.

use std::path::Path;

use indexmap::IndexMap;
use tooltune_rows::python::{PyValue, dumps, loads};
use tooltune_rows::text::{Conversation, Message, Role};
use tooltune_rows::tools::{did_you_mean, read_text};

use super::error::NestfulError;
use super::examples::{ExampleForm, PromptExample, example_block};
use super::parse::Parser;
use super::row::{NestfulRow, ToolSpec};
use super::templates::{Filling, own_templates};

/// Templates by model family, and the examples that they show.
#[derive(Debug, Clone)]
pub struct PromptSet {
    templates: IndexMap<String, String>,
    /// None where a file has no word on examples: its prompts show none.
    examples: Option<Vec<PromptExample>>,
    is_own: bool,
}

/// What a prompt shows beside the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptOptions {
    /// Examples, the first so many of the set; 0, 1 and 3 in the paper. None are shown where the set
    /// has none ([`PromptSet::has_examples`]).
    pub n_examples: usize,
    /// How the tools are written.
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

/// How the tools become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsEncoding {
    /// As a JSON list.
    Once,
    /// As a JSON string that holds a JSON list, with every quote escaped.
    Twice,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum NestfulPrompt {
    /// Messages, for the model's chat template.
    Chat(Conversation),
    /// A whole text with the model's special tokens in it.
    Raw(String),
}

impl PromptSet {
    /// The templates and examples that this project ships; families are named after parsers.
    pub fn own() -> Self {
        Self {
            templates: own_templates()
                .map(|(family, template)| (family.to_owned(), template))
                .collect(),
            examples: Some(PromptExample::own()),
            is_own: true,
        }
    }

    /// Reads a file of prompts: see [`PromptSet::parse`].
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or [`PromptSet::parse`] refuses what it holds
    pub fn read(path: &Path) -> Result<Self, NestfulError> {
        let place = path.display().to_string();
        Self::parse(&read_text(path)?).map_err(|error| error.at(place))
    }

    /// Takes prompts from the text of a file: `{"prompts": {family: template}, "icl_examples":
    /// [{input, output, tools?}]}`, or the templates alone, which show no examples.
    ///
    /// # Errors
    ///
    /// - the text is not such JSON
    /// - there is no template, or one lacks `{FUNCTION_STR}`, `{ICL_EXAMPLES}` or `{QUERY}`
    pub fn parse(text: &str) -> Result<Self, NestfulError> {
        let not_json = |error| NestfulError::NotJson {
            field: "the file",
            error,
        };
        let file = loads(text).map_err(not_json)?;
        let families = file.get("prompts").unwrap_or(&file);
        let families = families.as_dict().into_iter().flatten();
        let templates = families
            .map(|(family, template)| Ok((family.clone(), checked(family, template)?)))
            .collect::<Result<IndexMap<_, _>, NestfulError>>()?;
        if templates.is_empty() {
            let reason = "there is no template; give an object of templates by family".to_owned();
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
            is_own: false,
        })
    }

    /// The families that there are templates for.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// Whether there are examples, or at least a word on them; a file of templates alone has none.
    pub fn has_examples(&self) -> bool {
        self.examples.is_some()
    }

    /// The first `n_examples` examples, or none where the set has none.
    fn shown(&self, n_examples: usize) -> Result<&[PromptExample], NestfulError> {
        let Some(examples) = &self.examples else {
            return Ok(&[]);
        };
        examples.get(..n_examples).ok_or_else(|| {
            let n = examples.len();
            let reason = format!("{n_examples} examples are asked for and there are {n}");
            NestfulError::Prompts { reason }
        })
    }

    /// Functions that the first `n_examples` examples call and that neither the row offers nor the
    /// examples specify: the prompt of the row calls them without saying what they are.
    pub fn unspecified(&self, row: &NestfulRow, n_examples: usize) -> Vec<&str> {
        let shown = self.shown(n_examples).unwrap_or_default();
        let is_known = |example: &PromptExample, name: &str| {
            let mut known = row.tools.iter().chain(&example.tools);
            known.any(|tool| tool.name == name)
        };
        let called = shown.iter().flat_map(|example| {
            let called = example.called();
            called.filter(move |name| !is_known(example, name))
        });
        called.collect()
    }

    /// Writes the prompt of a row. Functions that an example calls and the row does not offer stand
    /// behind the tools of the row, as far as the examples specify them.
    ///
    /// # Errors
    ///
    /// - there is no template for the family, or there are fewer examples than asked for
    pub fn prompt(
        &self,
        row: &NestfulRow,
        family: &str,
        options: PromptOptions,
    ) -> Result<NestfulPrompt, NestfulError> {
        let template = self.templates.get(family).ok_or_else(|| {
            let known: Vec<&str> = self.families().collect();
            let hint = did_you_mean(family, known.iter().copied());
            let known = known.join(", ");
            let reason = format!("no template for {family:?}{hint}; there are {known}");
            NestfulError::Prompts { reason }
        })?;
        let examples = self.shown(options.n_examples)?;
        let tools = with_tools_of(examples, &row.tools);
        let filling = Filling {
            tools: &tools_text(tools, options.tools),
            examples: &example_block(examples, self.example_form(family)),
            query: &row.input,
        };
        let text = filling.fill(template);
        Ok(if self.is_own {
            NestfulPrompt::Chat(Conversation::new(vec![Message::new(Role::User, text)]))
        } else {
            NestfulPrompt::Raw(text)
        })
    }

    /// How a family's examples are written. Published ones of ToolACE are lists, although the prompt
    /// asks for Python's calls.
    fn example_form(&self, family: &str) -> ExampleForm {
        match parser_of_family(family) {
            Parser::Hermes => ExampleForm::Tagged,
            Parser::Xlam if self.is_own || family.ends_with("-fc-r") => ExampleForm::ToolCalls,
            Parser::ToolAce if self.is_own => ExampleForm::PythonCalls,
            _ => ExampleForm::List,
        }
    }
}

/// The parser that reads the answers of a family, by the name of a parser or of a published model.
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
    Parser::named(family)
        .or_else(|| model().map(|(_, parser)| parser))
        .unwrap_or(Parser::JsonList)
}

fn checked(family: &str, template: &PyValue) -> Result<String, NestfulError> {
    let reason = |what: String| NestfulError::Prompts { reason: what };
    let text = template.as_text();
    let text = text.ok_or_else(|| reason(format!("the template of {family:?} is no text")))?;
    let places = ["{FUNCTION_STR}", "{ICL_EXAMPLES}", "{QUERY}"];
    match places.into_iter().find(|place| !text.contains(place)) {
        Some(place) => Err(reason(format!("the template of {family:?} lacks {place}"))),
        None => Ok(text.to_owned()),
    }
}

/// Tools, and behind them those that the examples call and that are not among them, each once.
fn with_tools_of<'t>(examples: &'t [PromptExample], tools: &'t [ToolSpec]) -> Vec<&'t ToolSpec> {
    let mut shown: Vec<&ToolSpec> = tools.iter().collect();
    for tool in examples.iter().flat_map(|example| &example.tools) {
        if !shown.iter().any(|known| known.name == tool.name) {
            shown.push(tool);
        }
    }
    shown
}

/// The specifications as text.
pub(super) fn tools_text<'t>(
    tools: impl IntoIterator<Item = &'t ToolSpec>,
    encoding: ToolsEncoding,
) -> String {
    let specs = tools.into_iter().map(|tool| tool.spec.clone()).collect();
    let once = dumps(&PyValue::List(specs));
    match encoding {
        ToolsEncoding::Once => once,
        ToolsEncoding::Twice => dumps(&PyValue::Text(once)),
    }
}
