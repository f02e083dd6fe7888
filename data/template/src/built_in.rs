//! The built-in chat templates, and the choice of a template that fits a model.

use std::fmt;

use super::ChatTemplate;

/// A built-in template.
struct BuiltIn {
    name: &'static str,
    source: &'static str,
    /// The strings that begin and end a turn in the models for which the template is intended.
    marks: [&'static str; 2],
}

const ALL: [BuiltIn; 4] = [
    BuiltIn {
        name: "chatml-tools",
        source: include_str!("chat_templates/chatml-tools.jinja"),
        marks: ["<|im_start|>", "<|im_end|>"],
    },
    BuiltIn {
        name: "gemma-tools",
        source: include_str!("chat_templates/gemma-tools.jinja"),
        marks: ["<start_of_turn>", "<end_of_turn>"],
    },
    BuiltIn {
        name: "llama3-tools",
        source: include_str!("chat_templates/llama3-tools.jinja"),
        marks: ["<|start_header_id|>", "<|eot_id|>"],
    },
    BuiltIn {
        name: "phi3-tools",
        source: include_str!("chat_templates/phi3-tools.jinja"),
        marks: ["<|user|>", "<|end|>"],
    },
];

/// The built-in templates that an error recommends if a template does not render tools: the
/// template with the same turn markers, or all of them if none matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replacement(Option<usize>);

impl Replacement {
    /// Recommends any of the built-in templates.
    pub const ANY: Self = Self(None);

    /// Recommends a replacement for the template with this source.
    pub fn for_template(source: &str) -> Self {
        let has = |built_in: &BuiltIn| built_in.marks.iter().all(|mark| source.contains(mark));
        Self(ALL.iter().position(has))
    }
}

/// Returns the names of the built-in templates that fit a model, such as `"gemma-tools"`.
/// `is_token` returns whether a string is a token of the model's vocabulary, and `is_stop` whether
/// generation stops at this token.
pub fn built_in_templates_for(
    is_token: impl Fn(&str) -> bool,
    is_stop: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let fits = |built_in: &&BuiltIn| {
        let [start, end] = built_in.marks;
        is_token(start) && is_stop(end)
    };
    let matching = ALL.iter().filter(fits);
    matching.map(|built_in| built_in.name).collect()
}

impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |built_in: &BuiltIn| {
            let BuiltIn { name, marks, .. } = built_in;
            format!("\"{name}\" for models with {} and {}", marks[0], marks[1])
        };
        match self.0 {
            Some(idx) => f.write_str(&line(&ALL[idx])),
            None => {
                let lines: Vec<String> = ALL.iter().map(line).collect();
                f.write_str(&lines.join(", "))
            }
        }
    }
}

impl ChatTemplate {
    /// Returns the names of the built-in templates.
    pub const NAMES: [&'static str; 4] = [ALL[0].name, ALL[1].name, ALL[2].name, ALL[3].name];

    /// Returns the source of the built-in template of this name, if it exists.
    pub fn built_in(name: &str) -> Option<&'static str> {
        let mut matching = ALL.iter().filter(|built_in| built_in.name == name);
        matching.next().map(|built_in| built_in.source)
    }
}
