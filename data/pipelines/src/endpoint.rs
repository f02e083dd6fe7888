//! A server of chat completions as what generates.
//!
//! The client repeats what a busy or failing server refuses, waits as the server asks, and bounds
//! every wait. A prompt that has no reply all the same costs itself alone; faults that are the
//! server's end the work: a key, a model or an address that is wrong, or several prompts in a row
//! without a reply.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tooltune_endpoint::{
    ChatAnswer, ChatEndpoint, ChatOptions, ChatRequest, Concern, EndpointError, EndpointOptions,
    Tolerance,
};
use tooltune_rows::text::{Message, Role};

use crate::error::PipelineError;
use crate::generator::{
    Came, Generator, GeneratorFailure, ModelInfo, Prompt, Reply, Unanswered, estimated_tokens,
};

/// A server and how it is asked.
#[derive(Debug)]
pub struct EndpointGenerator {
    endpoint: ChatEndpoint,
    concurrency: usize,
    /// Further fields of every request.
    extra_body: Map<String, Value>,
    /// Whether the server is asked to keep to a schema.
    is_constrained: bool,
    /// Over all prompts of the run.
    tolerance: Mutex<Tolerance>,
    /// Models that the server says have answered, besides the one that was asked.
    other_models: Mutex<BTreeSet<String>>,
}

/// How a server is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    /// Requests at once.
    pub concurrency: usize,
    /// Further fields of every request.
    pub extra_body: Map<String, Value>,
    /// Whether requests name the schema of their reply, which the server is to keep to.
    pub is_constrained: bool,
}

impl EndpointGenerator {
    /// Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// An address that is none, or the variable of the key is not set.
    pub fn open(options: &EndpointOptions, asking: Asking) -> Result<Self, PipelineError> {
        let endpoint = ChatEndpoint::new(options);
        let endpoint = endpoint.map_err(|error| PipelineError::Usage(error.to_string()))?;
        Ok(Self::of(endpoint, asking))
    }

    /// Of an endpoint that is open.
    pub fn of(endpoint: ChatEndpoint, asking: Asking) -> Self {
        Self {
            endpoint,
            concurrency: asking.concurrency,
            extra_body: asking.extra_body,
            is_constrained: asking.is_constrained,
            tolerance: Mutex::default(),
            other_models: Mutex::default(),
        }
    }

    fn chat_options(&self, prompt: &Prompt) -> ChatOptions {
        let mut extra = self.extra_body.clone();
        if prompt.temperature > 0.0 {
            extra.entry("seed").or_insert_with(|| json!(prompt.seed));
        }
        let schema = prompt.schema.as_ref().filter(|_| self.is_constrained);
        ChatOptions {
            temperature: Some(prompt.temperature),
            max_tokens: Some(prompt.max_tokens),
            response_format: schema.map(|schema| {
                json!({"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}})
            }),
            extra,
        }
    }

    fn reply(&self, prompt: &Prompt, answer: &ChatAnswer) -> Reply {
        if !answer.model.is_empty() && answer.model != self.endpoint.model() {
            let others = self.other_models.lock();
            let mut others = others.unwrap_or_else(PoisonError::into_inner);
            others.insert(answer.model.clone());
        }
        let counted = |n: usize, text: &str| if n > 0 { n } else { estimated_tokens(text) };
        Reply {
            n_prompt_tokens: counted(answer.n_prompt_tokens, &prompt.text),
            n_tokens: counted(answer.n_tokens, &answer.text),
            text: answer.text.clone(),
            finish_reason: answer.finish_reason.clone(),
            without_text: answer.without_text.map(|what| what.name().to_owned()),
        }
    }
}

fn unanswered(error: &EndpointError) -> Unanswered {
    Unanswered {
        kind: error
            .kind()
            .map_or_else(|| "not sent".to_owned(), |kind| kind.name()),
        message: error.to_string(),
        is_final: error.concern() == Concern::Request,
    }
}

impl ModelInfo for EndpointGenerator {
    fn identity(&self) -> Map<String, Value> {
        Map::from_iter([
            ("endpoint-model".to_owned(), json!(self.endpoint.model())),
            ("extra-body".to_owned(), json!(self.extra_body)),
        ])
    }

    fn count_tokens(&self, text: &str) -> usize {
        estimated_tokens(text)
    }
}

impl Generator for EndpointGenerator {
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<Came>) -> bool,
    ) -> Result<(), GeneratorFailure> {
        let messages: Vec<[Message; 1]> = prompts
            .iter()
            .map(|prompt| [Message::new(Role::User, prompt.text.as_str())])
            .collect();
        let options: Vec<ChatOptions> = prompts.iter().map(|p| self.chat_options(p)).collect();
        let requests: Vec<ChatRequest<'_>> = messages
            .iter()
            .zip(&options)
            .map(|(messages, options)| ChatRequest { messages, options })
            .collect();
        let mut failure = None;
        let mut is_taken = vec![false; prompts.len()];
        let results = self
            .endpoint
            .complete_each(&requests, self.concurrency, &mut |answered| {
                let Some((number, result)) = answered.latest else {
                    return take(None);
                };
                let result = match result {
                    Ok(answer) => Ok(self.reply(prompts[number], answer)),
                    Err(EndpointError::Stopped { .. }) => return take(None),
                    Err(error) => Err(error),
                };
                let mut tolerance = self
                    .tolerance
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let goes_on = match &result {
                    Ok(_) => {
                        tolerance.answered();
                        true
                    }
                    Err(error) => tolerance.goes_on_after(error),
                };
                drop(tolerance);
                if let (false, Err(error)) = (goes_on, &result) {
                    failure = Some(said(error));
                }
                is_taken[number] = true;
                let result = result.map_err(unanswered);
                take(Some(Came { number, result })) && goes_on
            });
        // What came while the last ones were waited for is paid for as well.
        for (number, result) in results.iter().enumerate() {
            if let (false, Ok(answer)) = (is_taken[number], result) {
                let result = Ok(self.reply(prompts[number], answer));
                take(Some(Came { number, result }));
            }
        }
        failure.map_or(Ok(()), |message| Err(GeneratorFailure(message)))
    }

    fn notes(&self) -> Vec<String> {
        let others = self.other_models.lock();
        let others = others.unwrap_or_else(PoisonError::into_inner);
        if others.is_empty() {
            return Vec::new();
        }
        let named: Vec<String> = others.iter().map(|name| format!("{name:?}")).collect();
        vec![format!(
            "asked for {:?}, the server says that {} answered; if that is another model, check \
             --endpoint-model",
            self.endpoint.model(),
            named.join(", ")
        )]
    }
}

/// Why the work cannot go on.
fn said(error: &EndpointError) -> String {
    match error.concern() {
        Concern::All => error.to_string(),
        Concern::Request | Concern::Perhaps => format!(
            "{error}; as several requests in a row had no answer, the fault is taken for the server's"
        ),
    }
}
