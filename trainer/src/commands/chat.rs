//! `chat`: a conversation with a model on the terminal, with tools that are answered by an executor or
//! by hand.
//!
//! The conversation is kept as the rows of training are: calls as calls, results as messages of the
//! role `tool`. What the model is shown is rendered from it anew at each turn.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;
use tooltune_agents::executors::Executor;
use tooltune_agents::flat::FlatToolRow;
use tooltune_rows::json::{self, Style};
use tooltune_rows::text::{AskedPrompt, Conversation, Message, Role, ToolCall, read_tools};
use tooltune_rows::tools::ApiCatalogue;

use super::asked::as_learned;
use super::{DeviceOption, eprint_line, print_line};
use crate::base_model::BaseModel;
use crate::cli::ChatArgs;
use crate::config::Config;
use crate::error::Error;
use crate::eval::endings::Endings;
use crate::eval::generate::{FinishReason, GenerationOptions};
use crate::eval::generator::{GenerationRequest, Generator, LocalGenerator, PromptText};
use crate::eval::suites::{open_executor, written_calls};
use crate::interrupt::{self, Interrupt};
use crate::models::Decoder;
use crate::progress::Progress;
use crate::recipes::run_lock::BASE_MODEL;

/// Answers to one message of the user that may follow each other with calls.
const MOST_ROUNDS: usize = 16;

const HELP: &str = "/reset forgets the conversation, /system TEXT begins it anew with a system message, \
                    /exit or Ctrl-D ends it";

pub(super) fn run(args: &ChatArgs, place: &DeviceOption) -> Result<(), Error> {
    let target = &args.model;
    let mut config = target.config(&[])?;
    config.device = place.name(config.device)?;
    let tools = args.tools.as_deref().map(read_tools).transpose()?;
    if config.eval.constrained {
        eprint_line(
            "eval.constrained: the answers of a conversation are written freely, since nothing says \
             whether calls are wanted in one",
        )?;
    }
    let executor = if args.execute {
        let Some(goat) = &config.goat else {
            return Err(Error::Usage(
                "--execute: calls are answered by [goat.executor], and the config has none; add it, \
                 with the documents of its APIs in [goat], or leave --execute out and type the results"
                    .to_owned(),
            ));
        };
        let catalogue = ApiCatalogue::read(&goat.documents)?;
        Some(open_executor(goat, &catalogue)?)
    } else {
        None
    };
    target.check_used(&config, &[BASE_MODEL])?;
    let device = place.open(config.device)?;
    let base = BaseModel::of(&config)?;
    base.warn_of_choices();
    let decoder = target.decoder(&config, &base, "talking to", &device)?;
    let mut chat = Chat {
        config: &config,
        base: &base,
        decoder: &decoder,
        options: GenerationOptions::of(&config, &base.stop_ids),
        tools: tools.filter(|tools| !tools.is_empty()),
        messages: Vec::new(),
        executor,
        input: Input::open()?,
    };
    let system = args.system.as_deref().or(config.data.system.as_deref());
    chat.begin(system);
    eprint_line(HELP)?;
    chat.run()
}

/// Where lines come from.
enum Input {
    /// A terminal, with editing and a history.
    Editor(Box<DefaultEditor>),
    /// A pipe or a file, line by line.
    Lines(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Input {
    fn open() -> Result<Self, Error> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Lines(std::io::stdin().lock().lines()));
        }
        let editor = DefaultEditor::new().map_err(unreadable)?;
        Ok(Self::Editor(Box::new(editor)))
    }

    /// The next line; none at the end.
    fn line(&mut self, prompt: &str) -> Result<Option<String>, Error> {
        match self {
            Self::Lines(lines) => lines.next().transpose().map_err(unreadable),
            Self::Editor(editor) => loop {
                match editor.readline(prompt) {
                    Ok(line) => {
                        // A history that takes no more is no reason to lose the line.
                        let _ = editor.add_history_entry(&line);
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(ReadlineError::Interrupted) => eprint_line(HELP)?,
                    Err(error) => return Err(unreadable(error)),
                }
            },
        }
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Usage(format!("the standard input cannot be read: {error}"))
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
    fn begin(&mut self, system: Option<&str>) {
        let system = system.iter();
        self.messages = system
            .map(|text| Message::new(Role::System, *text))
            .collect();
    }

    fn run(&mut self) -> Result<(), Error> {
        while let Some(line) = self.input.line("you> ")? {
            let line = line.trim();
            match line.split_once(' ').unwrap_or((line, "")) {
                ("", _) => {}
                ("/exit" | "/quit", _) => break,
                ("/reset", _) => {
                    let system = self
                        .messages
                        .first()
                        .filter(|first| first.role == Role::System);
                    let system = system.and_then(|message| message.content.clone());
                    self.begin(system.as_deref());
                    eprint_line("the conversation begins anew")?;
                }
                ("/system", text) => {
                    self.begin(Some(text.trim()).filter(|text| !text.is_empty()));
                    eprint_line("the conversation begins anew")?;
                }
                (command, _) if command.starts_with('/') => {
                    eprint_line(&format!("{command} is no command: {HELP}"))?;
                }
                _ => self.ask(line)?,
            }
        }
        Ok(())
    }

    /// Asks one message, and answers calls until the model writes a text.
    fn ask(&mut self, text: &str) -> Result<(), Error> {
        let n_before = self.messages.len();
        self.messages.push(Message::new(Role::User, text));
        for _ in 0..MOST_ROUNDS {
            let shown = self.shown()?;
            let Some(answer) = self.answer(&shown.conversation)? else {
                self.messages.truncate(n_before);
                return Ok(());
            };
            let tools = self.tools.as_deref().unwrap_or_default();
            let written = written_calls(&answer, tools, &shown);
            for reason in written.malformed {
                eprint_line(&format!("a call cannot be read: {reason}"))?;
            }
            if written.calls.is_empty() {
                print_line(&format!("model> {}", answer.trim_end()))?;
                self.messages.push(Message::new(Role::Assistant, answer));
                return Ok(());
            }
            let calls = written.calls.into_iter().enumerate();
            let n_messages = self.messages.len();
            let calls = calls.map(|(i, call)| ToolCall {
                // Nine letters and digits, as Mistral's templates ask.
                id: Some(format!(
                    "call{:05}",
                    (n_messages * MOST_ROUNDS + i) % 100_000
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
                print_line(&format!("call> {} {arguments}", call.name))?;
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
            "the model has made calls {MOST_ROUNDS} times without an answer in words; ask on, or /reset"
        ))
    }

    /// The conversation as the model is shown it: with flat tools where it has learned so.
    fn shown(&self) -> Result<FlatToolRow, Error> {
        let conversation = Conversation {
            tools: self.tools.clone(),
            completion_start: self.messages.len(),
            ..Conversation::new(self.messages.clone())
        };
        as_learned("the conversation", conversation, self.config)
    }

    /// What the model writes next; none where it has no room left, which is said.
    fn answer(&self, conversation: &Conversation) -> Result<Option<String>, Error> {
        let (template, tokenizer) = (&self.base.template, &self.base.tokenizer);
        let asked =
            AskedPrompt::of_messages("the conversation", conversation, template, tokenizer)?;
        let context = self.base.config.max_position_embeddings;
        let (n_prompt, n_new) = (asked.ids.len(), self.options.max_new_tokens);
        if n_prompt.saturating_add(n_new) > context {
            eprint_line(&format!(
                "the conversation has {n_prompt} tokens, and with eval.max_new_tokens = {n_new} that is \
                 more than the {context} positions of the model; the last message is taken back: /reset, \
                 or start again with --set eval.max_new_tokens lower"
            ))?;
            return Ok(None);
        }
        let endings = Endings::default();
        let generator = Generator::Local(LocalGenerator {
            decoder: self.decoder,
            base: self.base,
            options: &self.options,
            endings: &endings,
        });
        let request = GenerationRequest {
            id: &asked.id,
            text: PromptText::Raw(&asked.text),
            max_new_tokens: n_new,
            constraint: None,
        };
        let interrupt = Interrupt::begin();
        let mut progress = Progress::begin();
        let written = generator.write(&[request], None, &mut |state| {
            progress.generated(state);
            !interrupt.is_set()
        })?;
        progress.finish();
        let Some(written) = written.and_then(|written| written.into_iter().next()) else {
            if interrupt::signal() != Some(SIGINT) {
                return Err(Error::Stopped);
            }
            interrupt.take();
            eprint_line("the answer is given up, and the message taken back")?;
            return Ok(None);
        };
        if written.finish_reason != FinishReason::Stop.name() {
            eprint_line(&format!(
                "the answer is CUT OFF ({}) after {} tokens; raise eval.max_new_tokens with --set",
                written.finish_reason, written.n_tokens
            ))?;
        }
        Ok(Some(written.text))
    }

    /// What a call returns: of the executor, else as it is typed; none at the end of the input.
    fn result(&mut self, call: &ToolCall) -> Result<Option<String>, Error> {
        let Some(executor) = &mut self.executor else {
            return self.input.line(&format!("result of {}> ", call.name));
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
        print_line(&format!("result> {text}"))?;
        Ok(Some(text))
    }
}
