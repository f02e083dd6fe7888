//! Writes Ollama's `Modelfile`: the prompt template, the stop tokens and the system message.
//!
//! Ollama uses Go's template language. Nearly all chat templates write one turn after another, so
//! they can be translated (`turns`, `go_template`).
//!
//! # Source
//!
//! ollama/ollama, `parser/parser.go`, for the syntax of a `Modelfile`.

mod go_template;
mod tools;
mod turns;

use std::sync::LazyLock;

use regex::Regex;
use tooltune_template::ChatTemplate;

use crate::error::Error;
use turns::Turns;

/// File name in the folder.
pub const MODELFILE: &str = "Modelfile";

/// A `Modelfile` and the parts that it could not include.
#[derive(Debug)]
pub struct Modelfile {
    /// Content of the file.
    pub text: String,
    /// The reason if there is no `TEMPLATE`.
    pub lacks_template: Option<String>,
    /// Whether the chat template renders tools or tool calls, but the `TEMPLATE` does not.
    pub lacks_tools: bool,
    /// Stop tokens that a `Modelfile` cannot represent.
    pub lacks_stops: Vec<String>,
}

/// Inputs of a `Modelfile`.
#[derive(Debug, Clone, Copy)]
pub struct ModelfileParts<'a> {
    /// Model file, in the same folder.
    pub model: &'a str,
    /// The chat template of training.
    pub template: &'a ChatTemplate,
    /// Token that the server adds before each prompt, according to the model file.
    pub added_bos: Option<&'a str>,
    /// System message for conversations without one.
    pub system: Option<&'a str>,
    /// End-of-turn tokens.
    pub stops: &'a [String],
    /// Context size, if Ollama's default would change the model's results.
    pub context: Option<u32>,
}

impl Modelfile {
    /// Remarks about missing parts, for the user.
    pub fn lines(&self) -> Vec<String> {
        let template = self.lacks_template.iter().map(|reason| {
            format!(
                "the Modelfile has no TEMPLATE, because the chat template does more than write one turn \
                 after another ({reason}): current versions of Ollama use the chat template in the model \
                 file, and earlier ones guess a similar template; check the prompts that your version sends, or \
                 write a TEMPLATE"
            )
        });
        let tools = self.lacks_tools.then(|| {
            "the TEMPLATE of the Modelfile renders only system, user and assistant texts. It leaves out \
             the tools of a request, tool calls and tool results, which the chat template renders. For \
             conversations with tools, export --to gguf and serve it through /v1/chat/completions of \
             llama-server --jinja, or send Ollama rendered prompts with \"raw\": true in /api/generate"
                .to_owned()
        });
        let stops = self.lacks_stops.iter().map(|stop| {
            format!(
                "the Modelfile has no PARAMETER stop {stop:?}, because it cannot represent the text"
            )
        });
        template.chain(tools).chain(stops).collect()
    }
}

/// Whether a `TEMPLATE` must write `bos` itself. This is so if not every conversation begins with
/// `bos`, or if the part that writes the first `bos` may be repeated.
pub fn must_write(template: &ChatTemplate, bos: &str) -> bool {
    Turns::parse(template).is_ok_and(|turns| !turns.begin_with(bos))
}

/// Writes the `Modelfile`.
///
/// # Errors
///
/// The system message needs a `TEMPLATE`, but the chat template cannot be translated.
pub fn modelfile(parts: &ModelfileParts<'_>) -> Result<Modelfile, Error> {
    let mut text = format!("FROM ./{}\n", parts.model);
    // An empty SYSTEM has no effect in Ollama, which would then use the template's own message.
    let own_system = parts.system.filter(|system| !system.is_empty());
    let quoted_system = own_system.and_then(quote);
    let default_system = parts.system.filter(|_| quoted_system.is_none());
    let lacks_template = match Turns::parse(parts.template) {
        Ok(turns) => {
            let turns = match parts.added_bos {
                Some(bos) => turns.strip_beginning(bos),
                None => turns,
            };
            let template = go_template::go_template(&turns, default_system);
            text.push_str(&format!("TEMPLATE \"\"\"{template}\"\"\"\n"));
            None
        }
        Err(_) if default_system.is_some_and(|system| !system.is_empty()) => {
            return Err(Error::Usage(format!(
                "data.system = {:?}: a Modelfile cannot represent this text: Ollama ends a text at a line that \
                 ends with \"\"\", and drops characters that are not printable; change the text, or \
                 export with --to gguf --merged",
                parts.system.unwrap_or_default()
            )));
        }
        Err(reason) => Some(reason),
    };
    if let Some(system) = quoted_system {
        text.push_str(&format!("SYSTEM {system}\n"));
    }
    let mut lacks_stops = Vec::new();
    for stop in parts.stops {
        match quote(stop) {
            Some(stop) => text.push_str(&format!("PARAMETER stop {stop}\n")),
            None => lacks_stops.push(stop.clone()),
        }
    }
    if let Some(context) = parts.context {
        text.push_str(&format!("PARAMETER num_ctx {context}\n"));
    }
    // Evaluations also use these values. Earlier versions of Ollama penalise repetition by default.
    text.push_str("PARAMETER temperature 0\nPARAMETER repeat_penalty 1\n");
    Ok(Modelfile {
        text,
        lacks_tools: lacks_template.is_none() && tools::renders_tools(parts.template),
        lacks_template,
        lacks_stops,
    })
}

/// Characters that are printable in every Go version (`strconv.IsPrint`, limited by Unicode
/// version), and characters that separate words or lines.
static PRINTABLE: LazyLock<Regex> = LazyLock::new(|| {
    let class = r"^(?:[ \t\r\n]|[[\p{L}\p{M}\p{N}\p{P}\p{S}]&&\p{Age:12.0}])*$";
    Regex::new(class).unwrap_or_else(|error| unreachable!("{class}: {error}"))
});

/// Quotes a string for a `Modelfile`, which has no escape sequences; `None` if this is impossible.
fn quote(text: &str) -> Option<String> {
    const QUOTES: &str = "\"\"\"";
    let quoted = format!("{QUOTES}{text}{QUOTES}");
    // Ollama looks for the closing quotes at the end of each line.
    let line_ends = text
        .match_indices(['\n', '\r'])
        .map(|(idx, _)| idx + QUOTES.len());
    let ends_early = |end: usize| {
        let before = quoted[..end].trim();
        before.len() >= 2 * QUOTES.len() && before.ends_with(QUOTES)
    };
    let is_representable = !line_ends.into_iter().any(ends_early);
    (is_representable && PRINTABLE.is_match(text)).then_some(quoted)
}

#[cfg(test)]
pub(crate) mod tests;
