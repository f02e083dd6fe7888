//! A model's own chat template: a conversation in, the text that the model reads out.
//!
//! Templates are written for Python's Jinja2 as Hugging Face sets it up, and `python` teaches
//! minijinja the differences; the golden tests hold the result to `transformers`, byte for byte.
//! The decision to question: spans are found by rendering once more with invisible marks around
//! the content (`locate`), not by searching the text or counting tokens, and a rendering is only
//! believed if it equals the plain one once the marks are taken out.

mod budget;
mod built_in;
mod date;
mod developer;
mod generation_tags;
mod kwargs;
mod left_out;
mod load;
mod locate;
mod marks;
mod nesting;
mod python;
mod reasoning;
mod spans;
mod strftime;
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

use self::locate::Located;
use self::python::{Clock, NotCompiled, Program};
use self::values::{MessageValues, MessageWriter};
use super::conversation::{Conversation, Message, Role};
use super::error::DataError;

pub use self::budget::{Exceeded, TemplateBudgetError};
pub use self::date::{NoDate, TemplateDate};
pub use self::kwargs::TemplateKwargError;
pub(crate) use self::spans::Turn;
pub use self::spans::{RenderedText, Span, SpanKind, TurnBegin, Turns};
pub use self::text_template::TextTemplate;
pub use self::turn_error::TurnError;

/// Whether the text ends with the words that open the model's next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// As at inference: the model continues the text.
    Add,
    /// As in training: the text is complete.
    Omit,
}

/// The variables with which templates let a model think before it answers, or not.
const THINKING_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// How these variables are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thinking {
    /// As the user set them, or not at all.
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

/// The special tokens that templates may print; one that is absent is undefined in the template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a sequence.
    pub bos_token: Option<String>,
    /// Ends a sequence or a turn.
    pub eos_token: Option<String>,
    /// Stands for what the vocabulary lacks.
    pub unk_token: Option<String>,
    /// Fills batches.
    pub pad_token: Option<String>,
}

impl SpecialTokens {
    fn named(&self) -> [(&'static str, &Option<String>); 4] {
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
    /// Compiles a template as found in `chat_template.jinja` or `tokenizer_config.json`.
    ///
    /// # Errors
    ///
    /// - the source is not a valid template; the error gives the line
    /// - it is longer, or nests deeper, than templates may (docs/limits.md)
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self, DataError> {
        let (environment, program) = compiled(source)?;
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

    /// Says where the template comes from, for errors that it is at fault for and no row is.
    #[must_use]
    pub fn with_origin(self, origin: &str) -> Self {
        Self {
            origin: Some(origin.to_owned()),
            ..self
        }
    }

    /// Stops the clock that `strftime_now` reads, so that the same rows give the same text on
    /// every day. Without it the local time is used, as in `transformers`.
    #[must_use]
    pub fn with_date(self, date: TemplateDate) -> Self {
        self.with_clock(date.midnight())
    }

    /// The same at a moment.
    #[must_use]
    pub(crate) fn with_clock(mut self, now: OffsetDateTime) -> Self {
        python::set_clock(&mut self.environment, Clock::Stopped(now));
        self
    }

    /// The template's text as given.
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
    /// - the text holds a character that is reserved for marks
    /// - the template asks for more than a rendering may have (docs/limits.md)
    pub fn render(
        &self,
        conversation: &Conversation,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, DataError> {
        self.render_prefix(conversation, conversation.messages.len(), generation_prompt)
    }

    /// Renders the prompt of a conversation: the messages before its completion, and the words
    /// that open the answer.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`].
    pub fn render_prompt(&self, conversation: &Conversation) -> Result<String, DataError> {
        self.render_prefix(
            conversation,
            conversation.prompt().len(),
            GenerationPrompt::Add,
        )
    }

    /// Renders the prompt of a conversation as training reads it before an answer of nothing but
    /// text: with the empty thought that the template writes there, if it does.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`].
    pub fn render_answer_prompt(&self, conversation: &Conversation) -> Result<String, DataError> {
        let prompt = self.render_prompt(conversation)?;
        if !thought::is_written_by(&self.source) {
            return Ok(prompt);
        }
        let mut answered = conversation.clone();
        answered.messages.truncate(conversation.prompt().len());
        answered.messages.push(Message::new(Role::Assistant, "0"));
        let answered = &*self.with_known_roles(&answered);
        // What the template says of the answer is nothing that the prompt has to answer for.
        let begun = self
            .render(answered, GenerationPrompt::Omit)
            .and_then(|text| {
                let message = answered.messages.len() - 1;
                let located = Located::new(self, answered, text);
                let start = located.turn_start(message)?;
                let before = located.full.text.get(..start.at).map(str::to_owned);
                Ok(before.filter(|_| start.begins == TurnBegin::EmptyThought))
            });
        Ok(begun.ok().flatten().unwrap_or(prompt))
    }

    fn render_prefix(
        &self,
        conversation: &Conversation,
        n_messages: usize,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, DataError> {
        let conversation = &*self.with_known_roles(conversation);
        let messages = &conversation.messages[..n_messages];
        let mut writer = MessageWriter::plain();
        let text = self
            .execute(conversation, writer.messages(messages), generation_prompt)
            .map_err(|error| self.explain_failure(conversation, n_messages, error))?;
        match text
            .chars()
            .find(|&character| marks::is_reserved(character))
        {
            Some(character) => Err(DataError::ReservedCharacter { character }),
            None => Ok(text),
        }
    }

    fn execute(
        &self,
        conversation: &Conversation,
        messages: MessageValues,
        generation_prompt: GenerationPrompt,
    ) -> Result<String, DataError> {
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
    ) -> Result<String, DataError> {
        if budget::row_is_spent() {
            return Err(TurnError::TooManyRenderings.into());
        }
        let given = self
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), values::from_json(value)));
        let switches = thinking
            .switch()
            .into_iter()
            .flat_map(|is_on| THINKING_SWITCHES.map(|name| (name, Value::from(is_on))));
        let special = self
            .special
            .named()
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
        let context = Value::from_pairs(special.chain(given).chain(switches).chain(fixed));
        let text = self.program.render(&self.environment, context);
        text.map_err(
            |error| match (python::to_data_error(&error), &self.origin) {
                (DataError::TemplateBudget(error), Some(origin))
                    if !error.exceeded.is_of_the_row() =>
                {
                    DataError::from(error).at(origin)
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

/// The engine and the instructions of a template.
fn compiled(source: &str) -> Result<(Environment<'static>, Program), DataError> {
    let newlines = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = generation_tags::rewrite(&newlines);
    let engine = |error: Error| DataError::TemplateSyntax {
        line: error.line().unwrap_or(1),
        reason: python::describe(&error),
    };
    let environment = python::environment(Clock::System).map_err(engine)?;
    let syntax = python::syntax().map_err(engine)?;
    let program = Program::new(&source, syntax).map_err(|error| match error {
        NotCompiled::Engine(error) => engine(error),
        NotCompiled::TooMuch(error) => error.into(),
        NotCompiled::Failed(reason) => DataError::TemplateSyntax { line: 1, reason },
    })?;
    Ok((environment, program))
}
