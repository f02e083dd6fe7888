//! Prompt templates: text with the places of tools, examples and question, and how they are filled.

/// What a template's places are filled with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Filling<'f> {
    pub(super) tools: &'f str,
    pub(super) examples: &'f str,
    pub(super) query: &'f str,
}

impl Filling<'_> {
    /// Fills a template as `str.format` does, or, where that raises, by plain replacement.
    ///
    /// Published templates are of both kinds: some write the braces of their JSON twice, some once,
    /// and only the first can be formatted.
    pub(super) fn fill(&self, template: &str) -> String {
        self.formatted(template).unwrap_or_else(|| {
            template
                .replace("{FUNCTION_STR}", self.tools)
                .replace("{ICL_EXAMPLES}", self.examples)
                .replace("{QUERY}", self.query)
        })
    }

    /// `{{` and `}}` are braces, `{NAME}` is a place; none if there is anything else in braces.
    fn formatted(&self, template: &str) -> Option<String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            let doubled = [("{{", '{'), ("}}", '}')];
            let doubled = doubled.into_iter().find(|(mark, _)| rest.starts_with(mark));
            if let Some((mark, brace)) = doubled {
                text.push(brace);
                rest = &rest[mark.len()..];
                continue;
            }
            let (name, after) = rest.strip_prefix('{')?.split_once('}')?;
            text.push_str(match name {
                "FUNCTION_STR" => self.tools,
                "ICL_EXAMPLES" => self.examples,
                "QUERY" => self.query,
                _ => return None,
            });
            rest = after;
        }
        text.push_str(rest);
        Some(text)
    }
}

/// What every template of ours begins with.
const TASK: &str = "Answer the question below with calls of functions. Choose from the functions \
    on offer, and write the calls in the order in which they have to run. A number that the \
    question states is written as it stands there.";

/// How results are passed on, where calls have labels.
const LABELS: &str = "Give every call a label of its own: $var_1, $var_2 and so on. Where an \
    argument is what an earlier call returned, write that call's label, a point, the name of the \
    output in the function's specification, and a closing $: $var_1.result$.";

/// The format, by the name of its parser.
const FORMATS: [(&str, &str); 7] = [
    ("json_list", LIST),
    (
        "granite31",
        "Write <|tool_call|> and after it one JSON list of objects with the keys name, \
        label and arguments, and nothing else.",
    ),
    ("llama", LIST),
    ("hammer", LIST),
    (
        "hermes",
        "Write each call as one JSON object with the keys name, label and arguments between \
        <tool_call> and </tool_call>, and nothing else.",
    ),
    (
        "xlam",
        "Write one JSON object whose only key, tool_calls, holds a list of objects with the \
        keys name, label and arguments, and nothing else.",
    ),
    (
        "toolace",
        "Write one list of calls as in [first(a=1, b=\"x\"), second(c=2)], and nothing \
        else.",
    ),
];

const LIST: &str =
    "Write one JSON list of objects with the keys name, label and arguments, and nothing else.";

/// The model families that there are templates for here, named after the parsers that read the
/// answers; the first one is for models of no family.
pub fn own_families() -> impl Iterator<Item = &'static str> {
    FORMATS.into_iter().map(|(family, _)| family)
}

/// The templates that this project ships, by family.
pub(crate) fn own_templates() -> impl Iterator<Item = (&'static str, String)> {
    FORMATS.into_iter().map(|(family, format)| {
        let labels = if family == "toolace" { "" } else { LABELS };
        let parts = [TASK, labels, format]
            .into_iter()
            .filter(|part| !part.is_empty());
        let parts: Vec<&str> = parts.collect();
        let template = format!(
            "{}\n\nFunctions:\n{{FUNCTION_STR}}\n{{ICL_EXAMPLES}}\nQuestion: {{QUERY}}",
            parts.join("\n")
        );
        (family, template)
    })
}
