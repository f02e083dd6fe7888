//! Generates completions with a server that implements OpenAI's chat completions API.
//!
//! A prompt that the server rejects or does not answer is scored as empty, like a prompt that
//! exceeds the context of a local model. The other prompts are not affected. The evaluation ends if
//! an error would affect every prompt, if the server answers no prompt at all, or if it fails for
//! several prompts in a row.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tooltune_endpoint::{
    ChatAnswer, ChatEndpoint, ChatOptions, ChatRequest, EndpointError, EndpointOptions, FaultKind,
    FaultScope, OptionNames, OtherModels, ReplyEvent, Tolerance,
};

use super::endings::Endings;
use super::generate::{FinishReason, GenerationOptions, GenerationProgress, Waiting, Work};
use super::generator::{Completion, GenerationRequest, TextConstraint};
use crate::error::Error;

/// The option names of `eval` for the server, for error messages. It has no options for timeouts
/// and retries.
pub const OPTION_NAMES: OptionNames = OptionNames {
    base_url: "--endpoint",
    model: "--endpoint-model",
    api_key_env: "--api-key-env",
    patience: None,
};

/// The finish reason of a prompt without an answer.
pub const NO_ANSWER: &str = "error";

/// A server with request options.
#[derive(Debug)]
pub struct EndpointGenerator {
    endpoint: ChatEndpoint,
    /// Option names for error messages.
    names: OptionNames,
    concurrency: usize,
    options: GenerationOptions,
    /// Extra fields of every request.
    extra_body: Map<String, Value>,
    endings: Endings,
    /// The failures so far, over all prompts of the evaluation.
    tolerance: Mutex<Tolerance>,
    /// Reported model names that differ from the requested one.
    other_models: OtherModels,
}

/// Saves the completion of the prompt with this index to the journal.
type SaveCompletion<'a> = &'a mut dyn FnMut(usize, &Completion) -> Result<(), Error>;

/// The state of one call to [`EndpointGenerator::write`].
struct Round<'a> {
    generator: &'a EndpointGenerator,
    prompts: &'a [GenerationRequest<'a>],
    keep: SaveCompletion<'a>,
    /// Failed prompts that are not saved yet. A later success shows that the prompts caused the
    /// failures, not the server.
    pending: Vec<(usize, Completion)>,
    failure: Option<Error>,
    /// Whether the server itself is broken.
    is_broken: bool,
}

impl EndpointGenerator {
    /// Creates the generator without sending a request; `extra_body` is added to every request.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or the environment variable of the key is not set.
    pub fn open(
        options: &EndpointOptions,
        concurrency: usize,
        generation: GenerationOptions,
        extra_body: Map<String, Value>,
    ) -> Result<Self, Error> {
        let option = options.names.base_url;
        let endpoint = ChatEndpoint::new(options).map_err(|error| match error {
            EndpointError::Options(error) => Error::Usage(error.to_string()),
            error => Error::Usage(format!("{option}: {error}")),
        })?;
        Ok(Self {
            endpoint,
            names: options.names,
            concurrency,
            options: generation,
            extra_body,
            endings: Endings::default(),
            tolerance: Mutex::default(),
            other_models: OtherModels::default(),
        })
    }

    /// Counts of how completions have ended so far.
    pub fn endings(&self) -> &Endings {
        &self.endings
    }

    /// Summary lines about the answers; `limits` are the settings that limit their tokens.
    pub fn lines(&self, limits: &[String]) -> Vec<String> {
        let mut lines = self.endings.lines(limits);
        lines.extend((self.other_models).note_text(self.endpoint.model(), self.names.model));
        lines
    }

    /// Records that an earlier run of this evaluation got answers from the server.
    pub(super) fn note_earlier_answers(&self) {
        self.tolerance().record_answer();
    }

    fn tolerance(&self) -> std::sync::MutexGuard<'_, Tolerance> {
        self.tolerance
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn chat_options(&self, prompt: &GenerationRequest<'_>) -> ChatOptions {
        let sampling = self.options.sampling;
        let mut extra = self.extra_body.clone();
        if sampling.temperature > 0.0 {
            extra.insert("top_p".to_owned(), json!(sampling.top_p));
            extra.insert("seed".to_owned(), json!(self.options.seed));
            // OpenAI's API has no top_k, but vLLM, SGLang and llama.cpp accept it under this name.
            // Strict servers return an error. Omitting it would silently sample differently than
            // configured.
            if let Some(top_k) = sampling.top_k {
                extra.insert("top_k".to_owned(), json!(top_k));
            }
        }
        if !self.options.stop_strings.is_empty() {
            extra.insert("stop".to_owned(), json!(self.options.stop_strings));
        }
        if let Some(tools) = prompt.text.tools() {
            extra.insert("tools".to_owned(), json!(tools));
        }
        if matches!(prompt.constraint, Some(TextConstraint::ToolChoice)) {
            extra.insert("tool_choice".to_owned(), json!("required"));
        }
        let response_format = match prompt.constraint {
            Some(TextConstraint::Schema(schema)) => Some(json!({
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            })),
            _ => None,
        };
        ChatOptions {
            temperature: Some(sampling.temperature),
            max_tokens: Some(prompt.max_new_tokens),
            response_format,
            extra,
        }
    }

    pub(crate) fn write(
        &self,
        prompts: &[GenerationRequest<'_>],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        keep: SaveCompletion<'_>,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let options: Vec<ChatOptions> = prompts.iter().map(|p| self.chat_options(p)).collect();
        let requests: Vec<ChatRequest<'_>> = prompts
            .iter()
            .zip(&options)
            .map(|(prompt, options)| {
                let messages = prompt.text.messages(prompt.id)?;
                Ok(ChatRequest { messages, options })
            })
            .collect::<Result<_, Error>>()?;
        let mut round = Round {
            generator: self,
            prompts,
            keep,
            pending: Vec::new(),
            failure: None,
            is_broken: false,
        };
        let mut is_ended = false;
        let mut last_answer = Instant::now();
        let mut answered = |answered: ReplyEvent<'_>| {
            if let Some((number, result)) = answered.latest {
                last_answer = Instant::now();
                round.take(number, result);
            }
            let (n_done, n_total) = (answered.progress.n_done, answered.progress.n_all);
            is_ended |= !watch(GenerationProgress {
                work: Work::Generating,
                n_done,
                n_total,
                n_tokens: 0,
                waiting: Some(Waiting {
                    what: "requests to the server",
                    n: self.concurrency.min(n_total - n_done),
                    seconds: last_answer.elapsed().as_secs(),
                }),
            });
            !is_ended && !round.is_broken && round.failure.is_none()
        };
        let texts = self
            .endpoint
            .complete_each(&requests, self.concurrency, &mut answered);
        if let Some(failure) = round.failure.take() {
            return Err(failure);
        }
        if is_ended {
            return Ok(None);
        }
        self.check_server(prompts, &texts, round.is_broken)?;
        round.keep_pending();
        if let Some(failure) = round.failure.take() {
            return Err(failure);
        }
        let completions = texts.into_iter().zip(prompts);
        let completions = completions.map(|(text, prompt)| match text {
            Ok(answer) => from_answer(answer, prompt),
            Err(error) => failed_completion(&error),
        });
        Ok(Some(completions.collect()))
    }

    /// Returns an error if the failures are caused by the server, not by single prompts.
    fn check_server(
        &self,
        prompts: &[GenerationRequest<'_>],
        texts: &[Result<ChatAnswer, EndpointError>],
        is_broken: bool,
    ) -> Result<(), Error> {
        let faults = prompts.iter().zip(texts).filter_map(|(prompt, text)| {
            let error = text.as_ref().err()?;
            let is_fault = !matches!(error, EndpointError::Stopped { .. });
            is_fault.then_some((prompt.id, error))
        });
        let faults: Vec<(&str, &EndpointError)> = faults.collect();
        let affects_all = |(_, error): &&(&str, &EndpointError)| error.scope() == FaultScope::All;
        let message = |(id, error): &(&str, &EndpointError)| format!("{id}: {error}");
        if let Some(fault) = faults.iter().find(affects_all) {
            return Err(self.failed(message(fault)));
        }
        let (Some(first), Some(last)) = (faults.first(), faults.last()) else {
            return Ok(());
        };
        if is_broken {
            return Err(self.failed(format!(
                "{}; several requests in a row failed, so this is treated as a server error",
                message(last)
            )));
        }
        if !self.tolerance().has_answers() {
            let n = faults.len();
            return Err(self.failed(format!("{}; all {n} requests failed", message(first))));
        }
        Ok(())
    }

    fn failed(&self, message: String) -> Error {
        Error::Endpoint {
            option: self.names.base_url,
            message,
        }
    }

    fn note_model(&self, answer: &ChatAnswer) {
        self.other_models.add(self.endpoint.model(), &answer.model);
    }
}

impl Round<'_> {
    fn take(&mut self, number: usize, result: &Result<ChatAnswer, EndpointError>) {
        let mut tolerance = self.generator.tolerance();
        match result {
            Ok(answer) => {
                tolerance.record_answer();
                self.generator.note_model(answer);
                self.keep_pending();
                self.keep(number, &from_answer(answer.clone(), &self.prompts[number]));
            }
            Err(EndpointError::Stopped { .. }) => {}
            Err(error) => {
                self.is_broken |= !tolerance.can_continue_after(error);
                if self.is_broken {
                    return;
                }
                let completion = failed_completion(error);
                if tolerance.has_answers() && error.scope() == FaultScope::Request {
                    self.keep(number, &completion)
                } else {
                    self.pending.push((number, completion))
                }
            }
        }
    }

    fn keep_pending(&mut self) {
        for (number, completion) in std::mem::take(&mut self.pending) {
            self.keep(number, &completion);
        }
    }

    fn keep(&mut self, number: usize, completion: &Completion) {
        if self.failure.is_none() {
            self.failure = (self.keep)(number, completion).err();
        }
    }
}

/// Converts a server answer. If the prompt has no tools, tool calls are dropped, and an answer that
/// consists only of calls is an answer without text.
fn from_answer(answer: ChatAnswer, prompt: &GenerationRequest<'_>) -> Completion {
    let tool_calls = match prompt.text.tools() {
        Some(_) => answer.tool_calls,
        None => Vec::new(),
    };
    let without_text = answer.without_text.filter(|_| tool_calls.is_empty());
    Completion {
        text: answer.text,
        finish_reason: answer.finish_reason,
        n_tokens: answer.n_tokens,
        without_text: without_text.map(|what| what.name().to_owned()),
        error: None,
        tool_calls,
        rewritten: None,
    }
}

/// The empty completion of a prompt without an answer, as for a prompt that exceeds the context of
/// a local model.
fn failed_completion(error: &EndpointError) -> Completion {
    let kind = error.kind();
    let finish_reason = match kind {
        Some(FaultKind::Context) => FinishReason::Context.name(),
        _ => NO_ANSWER,
    };
    Completion {
        text: String::new(),
        finish_reason: finish_reason.to_owned(),
        n_tokens: 0,
        without_text: kind.map(FaultKind::name),
        error: Some(error.to_string()),
        tool_calls: Vec::new(),
        rewritten: None,
    }
}
