//! Few-shot examples for prompts: a question and its calls, in the format that the model must
//! write.

use tooltune_json::python::{PyValue, dumps, loads, python_repr};

use super::error::NestfulError;
use super::math_specs::math_tool_specs;
use super::row::{ToolSpec, gold_calls};

/// A question with its calls.
#[derive(Debug, Clone)]
pub struct PromptExample {
    /// The question.
    pub input: String,
    /// The calls.
    pub output: Vec<PyValue>,
    /// The specifications of the called functions, if known.
    pub tools: Vec<ToolSpec>,
}

/// The notation of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExampleForm {
    /// `[{..}, {..}]`.
    List,
    /// `{"tool_calls": [..] }`.
    ToolCalls,
    /// `<tool_call> {..} </tool_call>`, one after another.
    Tagged,
    /// `[name(argument=value), ..]`.
    PythonCalls,
}

impl PromptExample {
    /// Parses an example from a value with `input`, `output` and optional `tools`. Only the
    /// specifications of called functions are kept. `field` is the path of the value, for errors.
    ///
    /// # Errors
    ///
    /// A field is missing or has the wrong type, or there are no calls.
    pub fn new(example: &PyValue, field: &str) -> Result<Self, NestfulError> {
        let missing = |name: &str| NestfulError::MissingField {
            field: format!("{field}.{name}"),
        };
        let input = example.get("input").and_then(PyValue::as_text);
        let output = example.get("output").ok_or_else(|| missing("output"))?;
        let output = gold_calls(output, &format!("{field}.output"))?;
        let tools = match example.get("tools") {
            None => Vec::new(),
            Some(tools) => ToolSpec::list(tools, &format!("{field}.tools"))?,
        };
        Ok(Self {
            input: input.ok_or_else(|| missing("input"))?.to_owned(),
            tools: called_specs(&output, &tools),
            output,
        })
    }

    /// Names of the called functions in call order, with repeats.
    pub fn called_names(&self) -> impl Iterator<Item = &str> {
        called_names(&self.output)
    }

    /// The built-in examples: two with arithmetic functions, one with other functions.
    pub fn built_in() -> Vec<Self> {
        // The constants below are valid; tests check this.
        let others = loads(BUILT_IN_TOOLS).ok();
        let others = others.and_then(|tools| ToolSpec::list(&tools, "tools").ok());
        let mut tools = math_tool_specs();
        tools.extend(others.unwrap_or_default());
        BUILT_IN_EXAMPLES
            .iter()
            .filter_map(|(input, output)| {
                let output = loads(output).ok()?.as_list()?.to_vec();
                Some(Self {
                    input: (*input).to_owned(),
                    tools: called_specs(&output, &tools),
                    output,
                })
            })
            .collect()
    }
}

fn called_names(calls: &[PyValue]) -> impl Iterator<Item = &str> {
    let name = |call| PyValue::get(call, "name").and_then(PyValue::as_text);
    calls.iter().filter_map(name)
}

/// The specifications of the called functions, each once.
fn called_specs(calls: &[PyValue], tools: &[ToolSpec]) -> Vec<ToolSpec> {
    let mut specs: Vec<ToolSpec> = Vec::new();
    for name in called_names(calls) {
        let is_new = !specs.iter().any(|tool| tool.name == name);
        specs.extend(
            tools
                .iter()
                .find(|tool| is_new && tool.name == name)
                .cloned(),
        );
    }
    specs
}

const BUILT_IN_EXAMPLES: [(&str, &str); 3] = [
    (
        "A ferry carries 18 lorries and 42 cars. Each lorry pays 65 and each car 24. What does the \
         ferry take in?",
        r#"[{"name": "multiply", "label": "$var_1", "arguments": {"arg_0": 18, "arg_1": 65}},
            {"name": "multiply", "label": "$var_2", "arguments": {"arg_0": 42, "arg_1": 24}},
            {"name": "add", "label": "$var_3",
             "arguments": {"arg_0": "$var_1.result$", "arg_1": "$var_2.result$"}}]"#,
    ),
    (
        "A square garden has an area of 169. How long is a fence around it?",
        r#"[{"name": "square_edge_by_area", "label": "$var_1", "arguments": {"arg_0": 169}},
            {"name": "square_perimeter", "label": "$var_2",
             "arguments": {"arg_0": "$var_1.result$"}}]"#,
    ),
    (
        "Sort the harbours \"Varde\", \"Alna\" and \"Mosel\" by name and join them with commas.",
        r#"[{"name": "sort_names", "label": "$var1",
             "arguments": {"names": ["Varde", "Alna", "Mosel"]}},
            {"name": "join_with", "label": "$var2",
             "arguments": {"parts": "$var1.output_0$", "separator": ", "}}]"#,
    ),
];

/// The functions called in [`BUILT_IN_EXAMPLES`] that are not arithmetic, in the benchmark's layout.
const BUILT_IN_TOOLS: &str = r#"[
    {"name": "sort_names", "description": "Names in the order of the alphabet", "parameters": {
     "names": {"description": "the names", "type": "list"}},
     "output_parameters": {"output_0": {"description": "the sorted names", "type": "list"}}},
    {"name": "join_with", "description": "Texts joined to one", "parameters": {
     "parts": {"description": "the texts", "type": "list"},
     "separator": {"description": "what stands between them", "type": "str"}},
     "output_parameters": {"output_0": {"description": "the joined text", "type": "str"}}}]"#;

impl ExampleForm {
    /// Formats calls.
    pub fn render(self, calls: &[PyValue]) -> String {
        let list = || dumps(&PyValue::List(calls.to_vec()));
        match self {
            Self::List => list(),
            Self::ToolCalls => format!("{{\"tool_calls\": {} }}", list()),
            Self::Tagged => {
                let tagged = |call| format!("<tool_call> {} </tool_call>", dumps(call));
                calls.iter().map(tagged).collect::<Vec<_>>().join(" ")
            }
            Self::PythonCalls => {
                let calls: Vec<String> = calls.iter().map(python_call).collect();
                format!("[{}]", calls.join(", "))
            }
        }
    }
}

fn python_call(call: &PyValue) -> String {
    let name = call
        .get("name")
        .and_then(PyValue::as_text)
        .unwrap_or_default();
    let arguments = call.get("arguments").and_then(PyValue::as_dict);
    let arguments: Vec<String> = arguments
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", python_repr(value)))
        .collect();
    format!("{name}({})", arguments.join(", "))
}

/// Formats the examples for a prompt, numbered from 1.
///
/// # Source
///
/// The format of NESTFUL's published prompts.
pub(super) fn example_block(examples: &[PromptExample], form: ExampleForm) -> String {
    let block = |(idx, example): (usize, &PromptExample)| {
        format!(
            "\n#Example-{}\nInput: {}\nOutput: {}\n",
            idx + 1,
            example.input,
            form.render(&example.output)
        )
    };
    examples.iter().enumerate().map(block).collect()
}
