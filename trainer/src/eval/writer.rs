//! Prompts to texts: by the model here, or by a server that speaks OpenAI's chat completions.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tooltune_data::endpoint::{
    Answered, ChatEndpoint, ChatOptions, ChatRequest, EndpointError, EndpointOptions,
};
use tooltune_data::grammar::{Grammar, GrammarError, GrammarOptions, Vocabulary};
use tooltune_data::text::{Conversation, Message, Row, prompt_ids};

use super::generate::{
    Generation, GenerationOptions, GenerationProgress, Jobs, Observer, StopStrings, complete,
};
use super::journal::Journal;
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::models::Decoder;

/// Why a text is empty whose prompt the model has no positions for.
pub const BEYOND_CONTEXT: &str = "context";

/// What writes the texts of suites.
#[derive(Debug, Clone, Copy)]
pub enum Writer<'a> {
    /// The model here.
    Model(ModelWriter<'a>),
    /// One behind an endpoint.
    Endpoint(&'a EndpointWriter),
}

/// The model with its adapter.
#[derive(Debug, Clone, Copy)]
pub struct ModelWriter<'a> {
    /// The model.
    pub decoder: &'a Decoder,
    /// Its tokenizer and template.
    pub base: &'a BaseModel,
    /// How it generates; `max_new_tokens` bounds that of each prompt.
    pub options: &'a GenerationOptions,
}

/// A server and how it is asked.
#[derive(Debug)]
pub struct EndpointWriter {
    endpoint: ChatEndpoint,
    concurrency: usize,
    options: GenerationOptions,
}

/// A prompt that is to be gone on with.
#[derive(Debug, Clone, Copy)]
pub struct Prompted<'a> {
    /// Unique among the prompts.
    pub id: &'a str,
    /// What is gone on with.
    pub text: PromptText<'a>,
    /// Tokens that the text may have.
    pub max_new_tokens: usize,
    /// What the text keeps to.
    pub constraint: Option<&'a TextConstraint>,
}

/// A prompt as it is given.
#[derive(Debug, Clone, Copy)]
pub enum PromptText<'a> {
    /// Messages, for the model's chat template.
    Chat(&'a Conversation),
    /// A whole text with the model's special tokens in it.
    Raw(&'a str),
}

impl PromptText<'_> {
    /// Everything of it that a text follows from, as text.
    pub fn digest(&self) -> String {
        match self {
            Self::Chat(conversation) => format!("{:?}", conversation.prompt()),
            Self::Raw(text) => format!("{text:?}"),
        }
    }

    fn messages(&self, id: &str) -> Result<&[Message], Error> {
        match self {
            Self::Chat(conversation) => Ok(conversation.prompt()),
            Self::Raw(_) => Err(Error::Usage(format!(
                "{id}: the prompt is a whole text with special tokens, which a server of chat \
                 completions cannot take; use prompts of messages, or the model here"
            ))),
        }
    }
}

/// What a text keeps to.
#[derive(Debug, Clone)]
pub enum TextConstraint {
    /// For the model here.
    Grammar(Box<Grammar>),
    /// For a server, which enforces it in its own way.
    Schema(Value),
}

/// A text that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Without the stop token or stop string.
    pub text: String,
    /// `stop`, `length`, `time` or `constraint`; `context` where the prompt does not fit the model;
    /// empty where a server wrote it.
    pub finish_reason: String,
    /// Tokens of the text; 0 where a server wrote it.
    pub n_tokens: usize,
}

impl EndpointWriter {
    /// Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// An address that is none, or the variable of the key is not set.
    pub fn open(
        options: &EndpointOptions,
        concurrency: usize,
        generation: GenerationOptions,
    ) -> Result<Self, Error> {
        let endpoint = ChatEndpoint::new(options)
            .map_err(|error| Error::Usage(format!("--endpoint: {error}")))?;
        Ok(Self {
            endpoint,
            concurrency,
            options: generation,
        })
    }

    fn chat_options(&self, prompt: &Prompted<'_>) -> ChatOptions {
        let sampling = self.options.sampling;
        let mut extra = serde_json::Map::new();
        if sampling.temperature > 0.0 {
            extra.insert("top_p".to_owned(), json!(sampling.top_p));
            extra.insert("seed".to_owned(), json!(self.options.seed));
        }
        if !self.options.stop_strings.is_empty() {
            extra.insert("stop".to_owned(), json!(self.options.stop_strings));
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
            max_tokens: Some(prompt.max_new_tokens.min(self.options.max_new_tokens)),
            response_format,
            extra,
        }
    }

    fn write(
        &self,
        prompts: &[Prompted<'_>],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        finished: &mut dyn FnMut(usize, &Written) -> Result<(), Error>,
    ) -> Result<Option<Vec<Written>>, Error> {
        let options: Vec<ChatOptions> = prompts.iter().map(|p| self.chat_options(p)).collect();
        let requests: Vec<ChatRequest<'_>> = prompts
            .iter()
            .zip(&options)
            .map(|(prompt, options)| {
                let messages = prompt.text.messages(prompt.id)?;
                Ok(ChatRequest { messages, options })
            })
            .collect::<Result<_, Error>>()?;
        let mut failure = None;
        let mut goes_on = true;
        let mut answered = |answered: Answered<'_>| {
            match answered.latest {
                Some((number, Ok(text))) => {
                    let written = of_server(text.clone());
                    failure = finished(number, &written).err();
                }
                // One request that fails for good fails the evaluation; the answers so far are
                // kept in the journal.
                Some((_, Err(_))) => return false,
                None => {}
            }
            goes_on = watch(GenerationProgress {
                n_done: answered.progress.n_done,
                n_total: answered.progress.n_all,
                n_tokens: 0,
            });
            goes_on && failure.is_none()
        };
        let texts = self
            .endpoint
            .complete_each(&requests, self.concurrency, &mut answered);
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !goes_on {
            return Ok(None);
        }
        let failed = |(prompt, error): (&Prompted<'_>, &EndpointError)| {
            Error::Endpoint(format!("{}: {error}", prompt.id))
        };
        let errors = prompts
            .iter()
            .zip(&texts)
            .filter_map(|(prompt, text)| Some((prompt, text.as_ref().err()?)));
        let mut errors =
            errors.filter(|(_, error)| !matches!(error, EndpointError::Stopped { .. }));
        if let Some(error) = errors.next() {
            return Err(failed(error));
        }
        Ok(Some(texts.into_iter().flatten().map(of_server).collect()))
    }
}

fn of_server(text: String) -> Written {
    Written {
        text,
        finish_reason: String::new(),
        n_tokens: 0,
    }
}

impl Writer<'_> {
    /// What each schema becomes for this writer, or why it cannot be enforced; equal schemas are
    /// compiled once.
    ///
    /// # Errors
    ///
    /// A tokenizer that cannot be constrained.
    pub fn constraints(
        &self,
        schemas: &[&Value],
    ) -> Result<Vec<Result<TextConstraint, String>>, Error> {
        let Writer::Model(model) = self else {
            let of = |schema: &&Value| Ok(TextConstraint::Schema((*schema).clone()));
            return Ok(schemas.iter().map(of).collect());
        };
        let base = model.base;
        let vocabulary = Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids)?;
        let mut compiled: HashMap<String, Result<TextConstraint, String>> = HashMap::new();
        Ok(schemas
            .iter()
            .map(|schema| {
                let grammar = || {
                    Grammar::json_schema(&vocabulary, schema, &GrammarOptions::default())
                        .map(|grammar| TextConstraint::Grammar(Box::new(grammar)))
                        .map_err(|error: GrammarError| error.to_string())
                };
                compiled
                    .entry(schema.to_string())
                    .or_insert_with(grammar)
                    .clone()
            })
            .collect())
    }

    /// The text after each prompt, those that `journal` has already taken from there; `None` if
    /// `watch` ended the work.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, a server that does not answer, or a journal that cannot
    /// be written.
    pub fn write(
        &self,
        prompts: &[Prompted<'_>],
        mut journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Written>>, Error> {
        let mut texts: Vec<Option<Written>> = prompts
            .iter()
            .map(|prompt| {
                journal
                    .as_ref()
                    .and_then(|journal| journal.written(prompt.id))
            })
            .collect();
        let left: Vec<usize> = (0..prompts.len()).filter(|&i| texts[i].is_none()).collect();
        let pending: Vec<Prompted<'_>> = left.iter().map(|&i| prompts[i]).collect();
        let mut finished = |number: usize, written: &Written| match &mut journal {
            Some(journal) => journal.add(pending[number].id, written),
            None => Ok(()),
        };
        let new = match self {
            Writer::Model(model) => model.write((&pending, &left), watch, &mut finished)?,
            Writer::Endpoint(endpoint) => endpoint.write(&pending, watch, &mut finished)?,
        };
        let Some(new) = new else {
            return Ok(None);
        };
        for (place, written) in left.into_iter().zip(new) {
            texts[place] = Some(written);
        }
        Ok(Some(texts.into_iter().flatten().collect()))
    }
}

impl ModelWriter<'_> {
    fn write(
        &self,
        (prompts, places): (&[Prompted<'_>], &[usize]),
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        finished: &mut dyn FnMut(usize, &Written) -> Result<(), Error>,
    ) -> Result<Option<Vec<Written>>, Error> {
        let longest = prompts.iter().map(|prompt| prompt.max_new_tokens).max();
        let options = GenerationOptions {
            max_new_tokens: longest.unwrap_or(0).min(self.options.max_new_tokens),
            ..self.options.clone()
        };
        let ids = prompts
            .iter()
            .map(|prompt| self.prompt_ids(prompt))
            .collect::<Result<Vec<_>, Error>>()?;
        let fitting = self.fitting(prompts, &ids);
        let mut texts = vec![beyond_context(); prompts.len()];
        let fits = |number: &usize| fitting.binary_search(number).is_ok();
        for number in (0..prompts.len()).filter(|number| !fits(number)) {
            finished(number, &texts[number])?;
        }
        let constraints: Vec<_> = fitting
            .iter()
            .map(|&number| match prompts[number].constraint {
                Some(TextConstraint::Grammar(grammar)) => Some(grammar.constraint()),
                _ => None,
            })
            .collect();
        let streams: Vec<u64> = fitting.iter().map(|&n| places[n] as u64).collect();
        let ids = ids.into_iter().enumerate();
        let ids: Vec<Vec<u32>> = ids.filter(|(n, _)| fits(n)).map(|(_, ids)| ids).collect();
        let stop = StopStrings {
            tokenizer: &self.base.tokenizer,
            strings: &self.options.stop_strings,
        };
        let jobs = Jobs {
            prompts: &ids,
            constraints: &constraints,
            streams: &streams,
            stop: Some(stop),
        };
        let mut told = Told {
            stop,
            watch,
            finished,
            numbers: &fitting,
        };
        let Some(generations) = complete(self.decoder, jobs, &options, &mut told)? else {
            return Ok(None);
        };
        for (&number, generation) in fitting.iter().zip(&generations) {
            texts[number] = written(generation, stop)?;
        }
        Ok(Some(texts))
    }

    /// The prompts that the model has positions for, in their order. One that does not fit costs a suite its row,
    /// not the evaluation: prompts of agents grow from round to round.
    fn fitting(&self, prompts: &[Prompted<'_>], ids: &[Vec<u32>]) -> Vec<usize> {
        let context = self.base.config.max_position_embeddings;
        let fits = |number: &usize| ids[*number].len() < context;
        let fitting: Vec<usize> = (0..ids.len()).filter(fits).collect();
        if let Some(first) = (0..ids.len()).find(|number| !fits(number)) {
            tracing::warn!(
                "{} of {} prompts do not fit the model's context of {context} tokens and stay \
                 without an answer, such as {} with {} tokens; shorten them, or take another model",
                ids.len() - fitting.len(),
                ids.len(),
                prompts[first].id,
                ids[first].len()
            );
        }
        fitting
    }

    fn prompt_ids(&self, prompt: &Prompted<'_>) -> Result<Vec<u32>, Error> {
        let conversation = match prompt.text {
            PromptText::Chat(conversation) => conversation,
            PromptText::Raw(text) => return Ok(self.base.tokenizer.encode(text)?.ids),
        };
        let row = Row {
            id: prompt.id.to_string(),
            conversation: conversation.clone(),
            weight: 1.0,
            slot: None,
        };
        Ok(prompt_ids(&row, &self.base.template, &self.base.tokenizer)?)
    }
}

fn written(generation: &Generation, stop: StopStrings<'_>) -> Result<Written, Error> {
    Ok(Written {
        text: stop.text(generation)?,
        finish_reason: generation.finish.name().to_owned(),
        n_tokens: generation.ids.len(),
    })
}

/// What is written after a prompt that the model has no positions for.
fn beyond_context() -> Written {
    Written {
        text: String::new(),
        finish_reason: BEYOND_CONTEXT.to_owned(),
        n_tokens: 0,
    }
}

/// Hands completions on as texts.
struct Told<'a> {
    stop: StopStrings<'a>,
    watch: &'a mut dyn FnMut(GenerationProgress) -> bool,
    finished: &'a mut dyn FnMut(usize, &Written) -> Result<(), Error>,
    /// The prompt of each job.
    numbers: &'a [usize],
}

impl Observer for Told<'_> {
    fn progress(&mut self, progress: GenerationProgress) -> bool {
        (self.watch)(progress)
    }

    fn finished(&mut self, prompt: usize, generation: &Generation) -> Result<(), Error> {
        (self.finished)(self.numbers[prompt], &written(generation, self.stop)?)
    }
}
