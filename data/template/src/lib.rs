//! Renders a conversation to the model's input text with the model's own chat template.
//!
//! Templates are written for Python's Jinja2 as configured by Hugging Face, and `python` adapts
//! minijinja to it. Golden tests compare the result with `transformers` byte for byte. Spans are
//! found by rendering again with invisible marks around the content (`locate`), not by searching
//! the text or counting tokens. A marked rendering is used only if it equals the plain rendering
//! after the marks are removed.
//!
//! ```
//! use tooltune_template::{
//!     ChatTemplate, Conversation, GenerationPrompt, Message, Role, SpecialTokens,
//! };
//!
//! let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
//! let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
//! let conversation = Conversation::new(vec![Message::new(Role::User, "Hi")]);
//! let text = template.render(&conversation, GenerationPrompt::Omit).unwrap();
//! assert_eq!(text, "user: Hi\n");
//! ```

mod budget;
pub mod budgets;
mod built_in;
mod content_parts;
pub mod conversation;
mod date;
mod developer;
mod error;
mod generation_tags;
mod kwargs;
mod load;
mod locate;
mod marks;
pub mod message_fields;
mod nesting;
mod python;
mod reasoning;
mod rendering_checks;
mod spans;
mod strftime;
mod system;
mod text_template;
mod thought;
mod tojson;
mod turn_error;
mod turn_start;
mod values;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;

use minijinja::{Environment, Error, Value};
use serde_json::Map;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use self::locate::MarkedRendering;
use self::python::{Clock, NotCompiled, Program};
use self::values::{MessageValues, MessageWriter};

pub use self::budget::{Exceeded, TemplateBudgetError};
pub use self::built_in::{Replacement, built_in_templates_for};
pub use self::conversation::{ContentValue, Conversation, Message, Role, ToolCall, ValueOrigin};
pub use self::date::{NoDate, TemplateDate};
pub use self::error::TemplateError;
pub use self::kwargs::TemplateKwargError;
pub use self::message_fields::MessageFieldError;
pub use self::spans::{RenderedText, Span, SpanKind, Turn, TurnBegin, Turns};
pub use self::text_template::TextTemplate;
pub use self::turn_error::TurnError;

/// Whether the text ends with the generation prompt of the model's next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// For inference: the model continues the text.
    Add,
    /// For training: the text is complete.
    Omit,
}

/// The template variables that turn thinking on or off.
const THINKING_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// How the thinking switches are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thinking {
    /// As set by the user, or unset.
    AsGiven,
    On,
    Off,
}

impl Thinking {
    fn switch(self) -> Option<bool> {
        match self {
            Self::AsGiven => None,
            Self::On => Some(true),
            Self::Off => Some(false),
        }
    }
}

/// The special tokens that templates may print; a missing one is undefined in the template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of a sequence.
    pub bos_token: Option<String>,
    /// End of a sequence or a turn.
    pub eos_token: Option<String>,
    /// Unknown token.
    pub unk_token: Option<String>,
    /// Padding token.
    pub pad_token: Option<String>,
}

impl SpecialTokens {
    fn by_name(&self) -> [(&'static str, &Option<String>); 4] {
        [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("unk_token", &self.unk_token),
            ("pad_token", &self.pad_token),
        ]
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    source: String,
    sha256: String,
    environment: Environment<'static>,
    program: Program,
    origin: Option<String>,
    special: SpecialTokens,
    variables: Map<String, serde_json::Value>,
    served_system: Option<String>,
    knows_developer: OnceLock<bool>,
}

impl ChatTemplate {
    /// Compiles a template from `chat_template.jinja` or `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// - the source is not a valid template; the error gives the line
    /// - it is too long or nests too deeply (docs/limits.md)
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self, TemplateError> {
        let (environment, program) = compile(source)?;
        Ok(Self {
            source: source.to_owned(),
            sha256: hex(&Sha256::digest(source.as_bytes())),
            environment,
            program,
            origin: None,
            special,
            variables: Map::new(),
            served_system: None,
            knows_developer: OnceLock::new(),
        })
    }

    /// Sets the template's origin. An error names the origin if the template is at fault, but not
    /// if a row is at fault.
    #[must_use]
    pub fn with_origin(self, origin: &str) -> Self {
        Self {
            origin: Some(origin.to_owned()),
            ..self
        }
    }

    /// The origin of the template, if known.
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Fixes the date that `strftime_now` prints, so that the same rows give the same text every
    /// day. By default the local time is used, as in `transformers`.
    #[must_use]
    pub fn with_date(self, date: TemplateDate) -> Self {
        self.with_clock(date.midnight())
    }

    /// Fixes the time that `strftime_now` prints.
    #[must_use]
    pub(crate) fn with_clock(mut self, now: OffsetDateTime) -> Self {
        python::set_clock(&mut self.environment, Clock::Stopped(now));
        self
    }

    /// The template's source as given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// SHA-256 of [`ChatTemplate::source`], in lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The special tokens as given.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Renders all messages, as `apply_chat_template(tokenize=False)` does.
    ///
    /// # Errors
    ///
    /// - the template refuses the conversation, fails on it, or prints none, a list or a map
    /// - the text contains a character that is reserved for marks
    /// - the rendering exceeds a limit (docs/limits.md)
    pub fn render(
        &self,
        conversation: &Conversation,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, TemplateError> {
        self.render_prefix(conversation, conversation.messages.len(), generation_prompt)
    }

    /// Renders the prompt of a conversation: the messages before its completion, and the generation
    /// prompt.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`].
    pub fn render_prompt(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        self.render_prefix(
            conversation,
            conversation.prompt().len(),
            GenerationPrompt::Add,
        )
    }

    /// Renders the prompt as it occurs in training before an answer that has only text. If the
    /// template writes an empty thought before such an answer, the prompt includes it.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`].
    pub fn render_answer_prompt(
        &self,
        conversation: &Conversation,
    ) -> Result<String, TemplateError> {
        let prompt = self.render_prompt(conversation)?;
        if !thought::has_thought_tags(&self.source) {
            return Ok(prompt);
        }
        let mut with_answer = conversation.clone();
        with_answer.messages.truncate(conversation.prompt().len());
        with_answer
            .messages
            .push(Message::new(Role::Assistant, "0"));
        let with_answer = &*self.with_known_roles(&with_answer);
        // Rendering the answer may fail although the prompt is fine, so ignore its errors.
        let answer_prompt = self
            .render(with_answer, GenerationPrompt::Omit)
            .and_then(|text| {
                let message = with_answer.messages.len() - 1;
                let located = MarkedRendering::new(self, with_answer, text);
                let start = located.turn_start(message)?;
                let prompt_text = located.full.text.get(..start.at).map(str::to_owned);
                Ok(prompt_text.filter(|_| start.begins == TurnBegin::EmptyThought))
            });
        Ok(answer_prompt.ok().flatten().unwrap_or(prompt))
    }

    fn render_prefix(
        &self,
        conversation: &Conversation,
        n_messages: usize,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, TemplateError> {
        let conversation = &*self.with_known_roles(conversation);
        let messages = &conversation.messages[..n_messages];
        let mut writer = MessageWriter::without_marks();
        let text = self
            .execute(conversation, writer.messages(messages), generation_prompt)
            .map_err(|error| self.explain_failure(conversation, n_messages, error))?;
        match text
            .chars()
            .find(|&character| marks::is_reserved(character))
        {
            Some(character) => Err(TemplateError::ReservedCharacter { character }),
            None => Ok(text),
        }
    }

    fn execute(
        &self,
        conversation: &Conversation,
        messages: MessageValues,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, TemplateError> {
        self.execute_thinking(conversation, messages, generation_prompt, Thinking::AsGiven)
    }

    fn execute_thinking(
        &self,
        conversation: &Conversation,
        MessageValues {
            messages,
            generation_marks,
        }: MessageValues,
        generation_prompt: GenerationPrompt,
        thinking: Thinking,
    ) -> Result<String, TemplateError> {
        if budget::is_row_budget_spent() {
            return Err(TurnError::TooManyRenderings.into());
        }
        let kwargs = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), values::from_json(value)));
        let switches = thinking
            .switch()
            .into_iter()
            .flat_map(|is_on| THINKING_SWITCHES.map(|name| (name, Value::from(is_on))));
        let special = self
            .special
            .by_name()
            .into_iter()
            .filter_map(|(name, token)| Some((name, Value::from(token.as_ref()?))));
        let fixed = [
            ("messages", messages),
            ("tools", values::from_list(conversation.tools.as_deref())),
            (
                "documents",
                values::from_list(conversation.documents.as_deref()),
            ),
            (
                "add_generation_prompt",
                Value::from(generation_prompt == GenerationPrompt::Add),
            ),
            (
                generation_tags::OPEN_VARIABLE,
                Value::from(generation_marks[0]),
            ),
            (
                generation_tags::CLOSE_VARIABLE,
                Value::from(generation_marks[1]),
            ),
        ];
        let context = Value::from_pairs(special.chain(kwargs).chain(switches).chain(fixed));
        let text = self.program.render(&self.environment, context);
        text.map_err(
            |error| match (python::to_template_error(&error), &self.origin) {
                (TemplateError::TemplateBudget(error), Some(origin))
                    if !error.exceeded.is_row_fault() =>
                {
                    TemplateError::from(error).at(origin)
                }
                (error, _) => error,
            },
        )
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChatTemplate")
            .field("sha256", &self.sha256)
            .field("special", &self.special)
            .field("variables", &self.variables)
            .finish_non_exhaustive()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The engine and a compiled template.
fn compile(source: &str) -> Result<(Environment<'static>, Program), TemplateError> {
    let newlines = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = generation_tags::rewrite(&newlines);
    let engine = |error: Error| TemplateError::TemplateSyntax {
        line: error.line().unwrap_or(1),
        reason: python::describe(&error),
    };
    let environment = python::environment(Clock::System).map_err(engine)?;
    let syntax = python::syntax().map_err(engine)?;
    let program = Program::new(&source, syntax).map_err(|error| match error {
        NotCompiled::Engine(error) => engine(error),
        NotCompiled::TooMuch(error) => error.into(),
        NotCompiled::Failed(reason) => TemplateError::TemplateSyntax { line: 1, reason },
    })?;
    Ok((environment, program))
}
