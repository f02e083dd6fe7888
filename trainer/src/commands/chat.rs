//! `chat`: a conversation with a model on the terminal. Results of tool calls come from an executor
//! or from the user.
//!
//! The conversation is stored like a training row: calls in assistant messages, and results in
//! messages with the role `tool`. Each turn renders the whole prompt again.

mod input;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::time::Instant;

use serde_json::{Value, json};
use signal_hook::consts::SIGINT;
use tooltune_agents::executors::Executor;
use tooltune_agents::flat::FlatToolRow;
use tooltune_apis::ApiCatalogue;
use tooltune_json as json;
use tooltune_json::{Style, printable};
use tooltune_rows::text::{TokenizedPrompt, read_tools};
use tooltune_template::{Conversation, Message, Role, ToolCall};

use super::executor_options::{allow, require_execute};
use super::{DeviceOption, eprint_line, write_flushed};
use crate::base_model::BaseModel;
use crate::cli::ChatArgs;
use crate::commands::chat::input::Input;
use crate::commands::prompts::flatten_as_trained;
use crate::config::Config;
use crate::error::Error;
use crate::eval::endings::Endings;
use crate::eval::generate::{FinishReason, GenerationOptions};
use crate::eval::generator::{Completion, GenerationRequest, LocalGenerator, PromptText};
use crate::eval::suites::{RefusedApis, open_executor, written_calls};
use crate::eval::text_stream::TextStream;
use crate::interrupt::{self, Interrupt};
use crate::models::Decoder;
use crate::recipes::run_lock::BASE_MODEL;
use crate::rows::missing_system;

/// Maximum consecutive rounds of tool calls per user message.
const MAX_ROUNDS: usize = 16;

const HELP: &str = "/reset clears the conversation; /system TEXT also sets a system message; \
                    /exit or Ctrl-D quits";

pub(super) fn run(args: &ChatArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let target = &args.model;
    let mut config = target.config(&[])?;
    config.device = device_option.name(config.device)?;
    let tools = args.tools.as_deref().map(read_tools).transpose()?;
    if config.eval.constrained {
        eprint_line(
            "eval.constrained is ignored in chat, because nothing determines whether an answer \
             must be a call",
        )?;
    }
    let executor = if args.execute {
        let Some(goat) = &config.goat else {
            return Err(Error::Usage(
                "--execute needs a [goat.executor] table, and the config has none; add it, and the \
                 documents of its APIs in [goat], or omit --execute and type the results yourself"
                    .to_owned(),
            ));
        };
        let mut goat = goat.clone();
        allow(&mut goat.executor, &args.allow)?;
        let catalogue = ApiCatalogue::read(&goat.documents)?;
        let executor = open_executor(&goat, &catalogue)?;
        if let Some(refused) = RefusedApis::find(&*executor, &catalogue) {
            eprint_line(&refused.to_string())?;
        }
        Some(executor)
    } else {
        require_execute(&args.allow)?;
        None
    };
    target.check_used(&config, &[BASE_MODEL])?;
    let device = device_option.open(config.device)?;
    let base = BaseModel::from_config(&config)?;
    base.warn_of_ignored_sampling();
    let decoder = target.decoder(&config, &base, "chatting with", &device)?;
    let mut chat = Chat {
        config: &config,
        base: &base,
        decoder: &decoder,
        options: GenerationOptions::from_config(&config, &base.stop_ids),
        tools: tools.filter(|tools| !tools.is_empty()),
        messages: Vec::new(),
        executor,
        input: Input::open()?,
    };
    let system = args.system.as_deref().or(config.data.system.as_deref());
    if let Some(hint) = missing_system(&config).filter(|_| system.is_none()) {
        eprint_line(&hint)?;
    }
    chat.start_conversation(system);
    eprint_line(HELP)?;
    chat.run()
}

/// Writes part of a line and flushes; returns `ReaderGone` if the reader closed the output.
fn print_part(text: &str) -> Result<(), Error> {
    print_part_to(&mut std::io::stdout(), text)
}

/// Writes to `out` with control characters escaped, because models and tools can return any text.
fn print_part_to(out: &mut impl Write, text: &str) -> Result<(), Error> {
    write_flushed(out, printable::lines(text).as_bytes())
}

/// Prints an answer while it is generated.
struct StreamedAnswer<'c> {
    stream: TextStream<'c>,
    /// Whether the answer may consist of tool calls, which are printed only when complete.
    may_be_calls: bool,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Number of generated tokens.
    n_tokens: usize,
}

impl<'c> StreamedAnswer<'c> {
    fn new(stop_strings: &'c [String], has_tools: bool) -> Self {
        Self {
            stream: TextStream::new(stop_strings),
            may_be_calls: has_tools,
            first: None,
            last: None,
            n_tokens: 0,
        }
    }

    /// Prints the new part of the answer; `text` is the whole answer so far.
    fn print_new_part(&mut self, text: &str) -> Result<(), Error> {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.n_tokens += 1;
        if self.may_be_calls && !is_plain_text(text) {
            return Ok(());
        }
        let is_first = !self.stream.has_begun();
        match self.stream.next(text) {
            "" => Ok(()),
            part if is_first => print_part(&format!("model> {part}")),
            part => print_part(part),
        }
    }

    /// Ends the printed line, if anything was printed.
    fn end_line(&self) -> Result<(), Error> {
        match self.stream.has_begun() {
            true => print_part("\n"),
            false => Ok(()),
        }
    }

    /// Prints the rest of the complete answer `text`.
    fn finish(mut self, text: &str) -> Result<(), Error> {
        let has_begun = self.stream.has_begun();
        match self.stream.rest(text) {
            Some(rest) if has_begun => print_part(&format!("{rest}\n")),
            Some(rest) => print_part(&format!("model> {rest}\n")),
            // The tokenizer's decoder changed text that was already printed: print the answer
            // again.
            None => print_part(&format!("\nmodel> {text}\n")),
        }
    }

    /// Tokens per second between the first and the last token.
    fn rate(&self) -> Option<f64> {
        let seconds = self.last?.duration_since(self.first?).as_secs_f64();
        let n_after = self.n_tokens.saturating_sub(1);
        (n_after > 0 && seconds > 0.0).then(|| n_after as f64 / seconds)
    }
}

/// Whether the first character rules out a tool call in every model's format.
fn is_plain_text(text: &str) -> bool {
    let first = text.trim_start().chars().next();
    first.is_some_and(|first| !matches!(first, '<' | '[' | '{' | '`' | '\u{fffd}'))
}

/// A line of the input.
#[derive(Debug, PartialEq, Eq)]
enum TypedLine<'l> {
    /// Only whitespace, which is ignored.
    Blank,
    Exit,
    Reset,
    /// A new conversation with this system message, if any.
    System(Option<&'l str>),
    Unknown(&'l str),
    /// A message, exactly as typed.
    Message(&'l str),
}

impl<'l> TypedLine<'l> {
    fn parse(line: &'l str) -> Self {
        let command = line.trim_start();
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        match name.trim_end() {
            "" => Self::Blank,
            "/exit" | "/quit" => Self::Exit,
            "/reset" => Self::Reset,
            "/system" => Self::System(Some(rest).filter(|text| !text.trim().is_empty())),
            name if name.starts_with('/') => Self::Unknown(name),
            _ => Self::Message(line),
        }
    }
}

/// A conversation with a model.
struct Chat<'c> {
    config: &'c Config,
    base: &'c BaseModel,
    decoder: &'c Decoder,
    options: GenerationOptions,
    tools: Option<Vec<Value>>,
    messages: Vec<Message>,
    executor: Option<Box<dyn Executor>>,
    input: Input,
}

impl Chat<'_> {
    fn start_conversation(&mut self, system: Option<&str>) {
        let system = system.iter();
        self.messages = system
            .map(|text| Message::new(Role::System, *text))
            .collect();
    }

    fn run(&mut self) -> Result<(), Error> {
        while let Some(line) = self.input.line("you> ", HELP)? {
            match TypedLine::parse(&line) {
                TypedLine::Blank => {}
                TypedLine::Exit => break,
                TypedLine::Reset => {
                    let system = self
                        .messages
                        .first()
                        .filter(|first| first.role == Role::System);
                    let system = system.and_then(|message| message.content.clone());
                    self.start_conversation(system.as_deref());
                    eprint_line("started a new conversation")?;
                }
                TypedLine::System(text) => {
                    self.start_conversation(text);
                    eprint_line("started a new conversation")?;
                }
                TypedLine::Unknown(command) => {
                    eprint_line(&format!("unknown command {command}; {HELP}"))?;
                }
                TypedLine::Message(text) => self.ask(text)?,
            }
        }
        Ok(())
    }

    /// Sends one user message and answers tool calls until the model replies with text.
    fn ask(&mut self, text: &str) -> Result<(), Error> {
        let n_before = self.messages.len();
        self.messages.push(Message::new(Role::User, text));
        for _ in 0..MAX_ROUNDS {
            let row = self.prompted_row()?;
            let mut shown_answer =
                StreamedAnswer::new(&self.options.stop_strings, self.tools.is_some());
            let Some(answer) = self.answer(&row.conversation, &mut shown_answer)? else {
                shown_answer.end_line()?;
                self.messages.truncate(n_before);
                return Ok(());
            };
            let tools = self.tools.as_deref().unwrap_or_default();
            let parsed = written_calls(&answer.text, tools, &row);
            let rate = shown_answer.rate();
            if parsed.calls.is_empty() {
                shown_answer.finish(answer.text.trim_end())?;
            } else {
                shown_answer.end_line()?;
            }
            for reason in parsed.malformed {
                eprint_line(&format!("cannot parse a call: {reason}"))?;
            }
            report_end(&answer, rate)?;
            if parsed.calls.is_empty() {
                self.messages
                    .push(Message::new(Role::Assistant, answer.text));
                return Ok(());
            }
            let calls = parsed.calls.into_iter().enumerate();
            let n_messages = self.messages.len();
            let calls = calls.map(|(i, call)| ToolCall {
                // Nine letters and digits, as Mistral's templates require.
                id: Some(format!(
                    "call{:05}",
                    (n_messages * MAX_ROUNDS + i) % 100_000
                )),
                name: call.name,
                arguments: call.arguments,
                derived: BTreeSet::new(),
            });
            let calls: Vec<ToolCall> = calls.collect();
            let mut turn = Message::new(Role::Assistant, "");
            turn.content = None;
            turn.tool_calls.clone_from(&calls);
            self.messages.push(turn);
            for call in calls {
                let arguments = json::dumps(&Value::Object(call.arguments.clone()), Style::Python);
                print_part(&format!("call> {} {arguments}\n", call.name))?;
                let Some(result) = self.result(&call)? else {
                    self.messages.truncate(n_before);
                    return Ok(());
                };
                let mut message = Message::new(Role::Tool, result);
                let id = call.id.unwrap_or_default();
                for (key, value) in [("name", call.name), ("tool_call_id", id)] {
                    message.extra.insert(key.to_owned(), Value::from(value));
                }
                self.messages.push(message);
            }
        }
        eprint_line(&format!(
            "the model made calls {MAX_ROUNDS} times without a text reply; send a message to \
             continue, or use /reset"
        ))
    }

    /// The conversation for the prompt, with flattened tools if the model was trained on them.
    fn prompted_row(&self) -> Result<FlatToolRow, Error> {
        let conversation = Conversation {
            tools: self.tools.clone(),
            completion_start: self.messages.len(),
            ..Conversation::new(self.messages.clone())
        };
        flatten_as_trained("the conversation", conversation, self.config)
    }

    /// Generates the next answer and prints it as it grows. Prints a message and returns `None` if
    /// the context is full or Ctrl-C stopped it.
    fn answer(
        &self,
        conversation: &Conversation,
        printed: &mut StreamedAnswer<'_>,
    ) -> Result<Option<Completion>, Error> {
        let (template, tokenizer) = (&self.base.template, &self.base.tokenizer);
        let prompt =
            TokenizedPrompt::from_messages("the conversation", conversation, template, tokenizer)?;
        let context = self.base.config.max_position_embeddings;
        let (n_prompt, n_new) = (prompt.ids.len(), self.options.max_new_tokens);
        if n_prompt.saturating_add(n_new) > context {
            eprint_line(&format!(
                "the conversation has {n_prompt} tokens; with eval.max_new_tokens = {n_new} that \
                 exceeds the model's context of {context} tokens, so your last message was \
                 removed; use /reset, or restart with a lower eval.max_new_tokens (--set)"
            ))?;
            return Ok(None);
        }
        let endings = Endings::default();
        let generator = LocalGenerator {
            decoder: self.decoder,
            base: self.base,
            options: &self.options,
            endings: &endings,
            served: None,
        };
        let request = GenerationRequest {
            id: &prompt.id,
            text: PromptText::Raw(&prompt.text),
            max_new_tokens: n_new,
            constraint: None,
        };
        let interrupt = Interrupt::begin();
        let completion = generator.stream(&request, &mut |_| !interrupt.is_set(), &mut |text| {
            printed.print_new_part(text)
        })?;
        if completion.is_some() {
            return Ok(completion);
        }
        // At a terminal Ctrl-C stops only the answer; any other signal ends the program.
        if interrupt::signal() != Some(SIGINT) || !self.input.is_terminal() {
            printed.end_line()?;
            return Err(Error::Stopped);
        }
        interrupt.take();
        eprint_line("stopped the answer and removed your message")?;
        Ok(None)
    }

    /// The result of a call, from the executor or the user; `None` at the end of the input.
    fn result(&mut self, call: &ToolCall) -> Result<Option<String>, Error> {
        let Some(executor) = &mut self.executor else {
            let name = printable::name(&call.name);
            return self.input.line(&format!("result of {name}> "), HELP);
        };
        let result = executor.call(&call.name, &call.arguments);
        if let Some(fault) = executor.fault() {
            return Err(Error::Usage(fault));
        }
        let text = match result.exception {
            Some(exception) => json!({ "error": exception }),
            None => result.output,
        };
        let text = json::dumps(&text, Style::Python);
        print_part(&format!("result> {text}\n"))?;
        Ok(Some(text))
    }
}

/// Reports an answer that was cut off and, on a terminal, the generation speed.
fn report_end(answer: &Completion, rate: Option<f64>) -> Result<(), Error> {
    let n_tokens = answer.n_tokens;
    if answer.finish_reason != FinishReason::Stop.name() {
        eprint_line(&format!(
            "the answer is CUT OFF ({}) after {n_tokens} tokens; raise eval.max_new_tokens with \
             --set",
            answer.finish_reason
        ))?;
    }
    match rate.filter(|_| std::io::stderr().is_terminal()) {
        Some(rate) => eprint_line(&format!("{n_tokens} tokens, {rate:.1} tokens/s")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_at_any_cut_of_a_streamed_text() {
        let complete = "Grüße\n\u{1b}[2J\u{9b}31m \u{202e}tab\t\u{85}\u{7}Ende";
        let shown = "Grüße\n\\u{1b}[2J\\u{9b}31m \\u{202e}tab\t\\u{85}\\u{7}Ende";
        for step in 1..5 {
            let mut stream = TextStream::new(&[]);
            let mut out = Vec::new();
            for end in (0..complete.len()).step_by(step) {
                // An incomplete character is decoded as U+FFFD.
                let text = String::from_utf8_lossy(&complete.as_bytes()[..end]).into_owned();
                print_part_to(&mut out, stream.next(&text)).expect("written");
            }
            print_part_to(&mut out, stream.rest(complete).expect("the rest")).expect("written");
            assert_eq!(String::from_utf8(out).expect("text"), shown, "step {step}");
        }
    }

    #[test]
    fn a_message_is_sent_exactly_as_typed() {
        for text in [
            "Hi",
            "  indented",
            "trailing \t",
            "\u{a0}x\u{a0}",
            "a /exit",
        ] {
            assert_eq!(TypedLine::parse(text), TypedLine::Message(text));
        }
        for (line, expected) in [
            ("", TypedLine::Blank),
            (" \t", TypedLine::Blank),
            ("/exit", TypedLine::Exit),
            (" /quit ", TypedLine::Exit),
            ("/reset", TypedLine::Reset),
            ("/system", TypedLine::System(None)),
            ("/system  ", TypedLine::System(None)),
            (
                "/system  Be brief. ",
                TypedLine::System(Some(" Be brief. ")),
            ),
            ("/systems x", TypedLine::Unknown("/systems")),
        ] {
            assert_eq!(TypedLine::parse(line), expected, "{line:?}");
        }
    }
}
