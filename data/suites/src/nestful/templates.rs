//! Prompt templates: text with placeholders for tools, examples and question.

/// The values of a template's placeholders.
#[derive(Debug, Clone, Copy)]
pub(super) struct TemplateFill<'f> {
    pub(super) tools: &'f str,
    pub(super) examples: &'f str,
    pub(super) query: &'f str,
}

impl TemplateFill<'_> {
    /// Fills a template like `str.format`, or by plain replacement if `str.format` would raise an
    /// error.
    ///
    /// Published templates are of both kinds. Some double the braces of their JSON, and only these
    /// can be formatted.
    pub(super) fn fill(&self, template: &str) -> String {
        self.format(template).unwrap_or_else(|| {
            template
                .replace("{FUNCTION_STR}", self.tools)
                .replace("{ICL_EXAMPLES}", self.examples)
                .replace("{QUERY}", self.query)
        })
    }

    /// Formats with `{{` and `}}` as braces and `{NAME}` as a placeholder; `None` for anything else
    /// in braces.
    fn format(&self, template: &str) -> Option<String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            let doubled = [("{{", '{'), ("}}", '}')];
            let doubled = doubled
                .into_iter()
                .find(|(brace_mark, _)| rest.starts_with(brace_mark));
            if let Some((brace_mark, brace)) = doubled {
                text.push(brace);
                rest = &rest[brace_mark.len()..];
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

/// The start of all our templates.
const TASK: &str = "Answer the question below with calls of functions. Choose from the functions \
    on offer, and write the calls in the order in which they have to run. A number that the \
    question states is written as it stands there.";

/// Explains references, for formats with labels.
const LABELS: &str = "Give every call a label of its own: $var_1, $var_2 and so on. Where an \
    argument is what an earlier call returned, write that call's label, a point, the name of the \
    output in the function's specification, and a closing $: $var_1.result$.";

/// Instructions for each format, by parser name.
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

/// The model families with a built-in template, named after the parsers of their answers. The
/// template of the first family is used for all other models.
pub fn built_in_families() -> impl Iterator<Item = &'static str> {
    FORMATS.into_iter().map(|(family, _)| family)
}

/// The built-in templates, by family.
pub(crate) fn built_in_templates() -> impl Iterator<Item = (&'static str, String)> {
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
