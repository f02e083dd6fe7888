//! Prompts to texts by a server that speaks OpenAI's chat completions.
//!
//! A prompt that the server refuses, or does not answer, costs its own text and no other: it counts
//! as empty, as that of a prompt beyond the context does where the model is here. What would fail
//! for every prompt ends the evaluation, and so does a server that answers nothing at all or several
//! prompts in a row with nothing.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};
use tooltune_endpoint::{
    Answered, ChatAnswer, ChatEndpoint, ChatOptions, ChatRequest, Concern, EndpointError,
    EndpointOptions, FaultKind, OptionNames, Tolerance,
};

use super::endings::Endings;
use super::generate::{FinishReason, GenerationOptions, GenerationProgress, Waiting, Work};
use super::generator::{Completion, GenerationRequest, TextConstraint};
use crate::error::Error;

/// How `eval` spells the options of its server; of times and retries it has none.
pub const OPTION_NAMES: OptionNames = OptionNames {
    base_url: "--endpoint",
    model: "--endpoint-model",
    api_key_env: "--api-key-env",
    patience: None,
};

/// What ends a text that the server did not write.
pub const NO_ANSWER: &str = "error";

/// A server and how it is asked.
#[derive(Debug)]
pub struct EndpointGenerator {
    endpoint: ChatEndpoint,
    /// How the command line spells its options.
    names: OptionNames,
    concurrency: usize,
    options: GenerationOptions,
    /// Further fields of every request.
    extra_body: Map<String, Value>,
    endings: Endings,
    /// Over all prompts of the evaluation.
    tolerance: Mutex<Tolerance>,
    /// Models that the server says have answered, besides the one that was asked.
    other_models: Mutex<BTreeSet<String>>,
}

/// Takes what the journal has to keep of a prompt by its number.
type Keep<'a> = &'a mut dyn FnMut(usize, &Completion) -> Result<(), Error>;

/// One call of [`EndpointGenerator::write`].
struct Round<'a> {
    generator: &'a EndpointGenerator,
    prompts: &'a [GenerationRequest<'a>],
    keep: Keep<'a>,
    /// Prompts without an answer that the next answer of another will show to be their own fault.
    pending: Vec<(usize, Completion)>,
    failure: Option<Error>,
    /// Whether the fault is the server's.
    is_broken: bool,
}

impl EndpointGenerator {
    /// Nothing is sent yet; `extra_body` is added to every request.
    ///
    /// # Errors
    ///
    /// An address that is none, or the variable of the key is not set.
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
            other_models: Mutex::default(),
        })
    }

    /// How its texts have ended so far.
    pub fn endings(&self) -> &Endings {
        &self.endings
    }

    /// What there is to say of its answers, whose tokens `limits` limit.
    pub fn lines(&self, limits: &[String]) -> Vec<String> {
        let mut lines = self.endings.lines(limits);
        let others = self
            .other_models
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !others.is_empty() {
            let named: Vec<String> = others.iter().map(|name| format!("{name:?}")).collect();
            lines.push(format!(
                "asked for {:?}, the server says that {} answered; if that is another model, check \
                 {}",
                self.endpoint.model(),
                named.join(", "),
                self.names.model
            ));
        }
        lines
    }

    /// An earlier run of the same evaluation has answers of the server.
    pub(super) fn has_answered(&self) {
        self.tolerance().answered();
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
            // No part of the protocol, but vLLM, SGLang and llama.cpp take it by this name, and a
            // server that is strict about fields refuses it by name. To leave it out would sample
            // otherwise than the config says, and nobody would see it.
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
        keep: Keep<'_>,
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
        let mut answered = |answered: Answered<'_>| {
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
        self.refuse_the_server(prompts, &texts, round.is_broken)?;
        round.keep_pending();
        if let Some(failure) = round.failure.take() {
            return Err(failure);
        }
        let written = texts.into_iter().zip(prompts);
        let written = written.map(|(text, prompt)| match text {
            Ok(answer) => of_server(answer, prompt),
            Err(error) => unanswered(&error),
        });
        Ok(Some(written.collect()))
    }

    /// The error of a server whose faults are not those of single prompts.
    fn refuse_the_server(
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
        let concerns_all = |(_, error): &&(&str, &EndpointError)| error.concern() == Concern::All;
        let shown = |(id, error): &(&str, &EndpointError)| format!("{id}: {error}");
        if let Some(fault) = faults.iter().find(concerns_all) {
            return Err(self.failed(shown(fault)));
        }
        let (Some(first), Some(last)) = (faults.first(), faults.last()) else {
            return Ok(());
        };
        if is_broken {
            return Err(self.failed(format!(
                "{}; as several requests in a row had no answer, the fault is taken for the \
                 server's, and not for that of their rows",
                shown(last)
            )));
        }
        if !self.tolerance().has_answers() {
            let n = faults.len();
            return Err(self.failed(format!(
                "{}; none of the {n} requests has an answer",
                shown(first)
            )));
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
        if !answer.model.is_empty() && answer.model != self.endpoint.model() {
            let others = self.other_models.lock();
            let mut others = others.unwrap_or_else(PoisonError::into_inner);
            others.insert(answer.model.clone());
        }
    }
}

impl Round<'_> {
    fn take(&mut self, number: usize, result: &Result<ChatAnswer, EndpointError>) {
        let mut tolerance = self.generator.tolerance();
        match result {
            Ok(answer) => {
                tolerance.answered();
                self.generator.note_model(answer);
                self.keep_pending();
                self.keep(number, &of_server(answer.clone(), &self.prompts[number]));
            }
            Err(EndpointError::Stopped { .. }) => {}
            Err(error) => {
                self.is_broken |= !tolerance.goes_on_after(error);
                if self.is_broken {
                    return;
                }
                let written = unanswered(error);
                if tolerance.has_answers() && error.concern() == Concern::Request {
                    self.keep(number, &written)
                } else {
                    self.pending.push((number, written))
                }
            }
        }
    }

    fn keep_pending(&mut self) {
        for (number, written) in std::mem::take(&mut self.pending) {
            self.keep(number, &written);
        }
    }

    fn keep(&mut self, number: usize, written: &Completion) {
        if self.failure.is_none() {
            self.failure = (self.keep)(number, written).err();
        }
    }
}

/// Calls of tools count where the prompt has tools; elsewhere they are an answer without a text.
fn of_server(answer: ChatAnswer, prompt: &GenerationRequest<'_>) -> Completion {
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
    }
}

/// The text of a prompt without an answer: empty, as that of a prompt beyond the context of a model
/// here.
fn unanswered(error: &EndpointError) -> Completion {
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
    }
}
