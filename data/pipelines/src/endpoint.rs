//! A chat-completions server as a generator.
//!
//! The client retries requests that a busy or failing server rejects, waits as long as the server
//! asks, and limits every wait. A prompt without a reply affects only its own item. Server errors
//! stop the run: a wrong key, model or address, or several prompts in a row without a reply.

use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tooltune_endpoint::{
    ChatAnswer, ChatEndpoint, ChatOptions, ChatRequest, EndpointError, EndpointOptions, FaultScope,
    OtherModels, Tolerance, without_secret_fields,
};
use tooltune_template::{Message, Role};

use crate::error::PipelineError;
use crate::generator::{
    Generator, GeneratorFailure, ModelInfo, Prompt, PromptResult, Reply, Unanswered,
    estimated_tokens,
};

/// A server and its request options.
#[derive(Debug)]
pub struct EndpointGenerator {
    endpoint: ChatEndpoint,
    concurrency: usize,
    /// Additional fields of every request.
    extra_body: Map<String, Value>,
    /// Whether requests contain the schema of the reply.
    is_constrained: bool,
    /// Error tolerance over all prompts of the run.
    tolerance: Mutex<Tolerance>,
    /// Models reported by the server other than the requested one.
    other_models: OtherModels,
}

/// Options of the requests to a server.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratorOptions {
    /// Number of concurrent requests.
    pub concurrency: usize,
    /// Additional fields of every request.
    pub extra_body: Map<String, Value>,
    /// Whether requests contain the schema of the reply, for constrained decoding by the server.
    pub is_constrained: bool,
}

impl EndpointGenerator {
    /// Opens the endpoint without sending anything.
    ///
    /// # Errors
    ///
    /// The address is invalid, or the environment variable of the key is not set.
    pub fn open(
        endpoint: &EndpointOptions,
        options: GeneratorOptions,
    ) -> Result<Self, PipelineError> {
        let endpoint = ChatEndpoint::new(endpoint);
        let endpoint = endpoint.map_err(|error| PipelineError::Usage(error.to_string()))?;
        Ok(Self::from_endpoint(endpoint, options))
    }

    /// Uses an open endpoint.
    pub fn from_endpoint(endpoint: ChatEndpoint, options: GeneratorOptions) -> Self {
        Self {
            endpoint,
            concurrency: options.concurrency,
            extra_body: options.extra_body,
            is_constrained: options.is_constrained,
            tolerance: Mutex::default(),
            other_models: OtherModels::default(),
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
        self.other_models.add(self.endpoint.model(), &answer.model);
        let count_or_estimate =
            |n: usize, text: &str| if n > 0 { n } else { estimated_tokens(text) };
        Reply {
            n_prompt_tokens: count_or_estimate(answer.n_prompt_tokens, &prompt.text),
            n_tokens: count_or_estimate(answer.n_tokens, &answer.text),
            text: answer.text.clone(),
            finish_reason: answer.finish_reason.clone(),
            without_text: answer.without_text.map(|what| what.name().to_owned()),
        }
    }
}

fn to_unanswered(error: &EndpointError) -> Unanswered {
    Unanswered {
        kind: error
            .kind()
            .map_or_else(|| "not sent".to_owned(), |kind| kind.name()),
        message: error.to_string(),
        is_final: error.scope() == FaultScope::Request,
    }
}

impl ModelInfo for EndpointGenerator {
    fn identity(&self) -> Map<String, Value> {
        Map::from_iter([
            ("endpoint-model".to_owned(), json!(self.endpoint.model())),
            // Stored in the journal, which must not contain a key.
            (
                "extra-body".to_owned(),
                json!(without_secret_fields(&self.extra_body)),
            ),
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
        take: &mut dyn FnMut(Option<PromptResult>) -> bool,
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
                        tolerance.record_answer();
                        true
                    }
                    Err(error) => tolerance.can_continue_after(error),
                };
                drop(tolerance);
                if let (false, Err(error)) = (goes_on, &result) {
                    failure = Some(error_message(error));
                }
                is_taken[number] = true;
                let result = result.map_err(to_unanswered);
                take(Some(PromptResult { number, result })) && goes_on
            });
        // Replies that arrived during the last waits have a cost and are delivered as well.
        for (number, result) in results.iter().enumerate() {
            if let (false, Ok(answer)) = (is_taken[number], result) {
                let result = Ok(self.reply(prompts[number], answer));
                take(Some(PromptResult { number, result }));
            }
        }
        failure.map_or(Ok(()), |message| Err(GeneratorFailure(message)))
    }

    fn notes(&self) -> Vec<String> {
        let note = (self.other_models).note_text(self.endpoint.model(), "--endpoint-model");
        note.into_iter().collect()
    }
}

/// The message of the error that ends the run.
fn error_message(error: &EndpointError) -> String {
    match error.scope() {
        FaultScope::All => error.to_string(),
        FaultScope::Request | FaultScope::Perhaps => format!(
            "{error}; several requests in a row failed, so this is treated as a server error"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_settings_contain_no_secret() {
        let generator = |key: &str| {
            let extra = json!({"top_k": 3, "provider": {"api_key": key}});
            let options = GeneratorOptions {
                concurrency: 1,
                extra_body: extra.as_object().cloned().unwrap(),
                is_constrained: true,
            };
            let endpoint = EndpointOptions::new("http://localhost:1/v1", "m");
            EndpointGenerator::open(&endpoint, options).unwrap()
        };
        let first_generator = generator("hunter2");
        let identity = json!(first_generator.identity());
        assert_eq!(
            identity["extra-body"],
            json!({"top_k": 3, "provider": {"api_key": "***"}})
        );
        // Another key continues the same run, and requests contain the key.
        assert_eq!(first_generator.identity(), generator("hunter3").identity());
        let prompt = Prompt {
            text: String::new(),
            schema: None,
            max_tokens: 1,
            temperature: 0.0,
            seed: 0,
        };
        let extra_body = first_generator.chat_options(&prompt).extra;
        assert_eq!(extra_body["provider"]["api_key"], "hunter2");
    }
}
