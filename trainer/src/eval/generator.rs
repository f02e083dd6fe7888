//! Generates completions with the local model or with a server that implements OpenAI's chat
//! completions API.

use std::collections::HashMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_agents::TextEnd;
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_grammar::{CallFormat, Formats, GrammarError, GrammarOptions, Vocabulary};
use tooltune_suites::is_cut;
use tooltune_template::{Conversation, Message};

use super::endings::Endings;
use super::endpoint_generator::EndpointGenerator;
use super::generate::{GenerationOptions, GenerationProgress, Work};
use super::held::{FallbackGrammar, Rewritten};
use super::journal::Journal;
use super::served::OtherProcesses;
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::models::Decoder;

mod local;

/// Generates the completions of suites.
#[derive(Debug, Clone, Copy)]
pub enum Generator<'a> {
    /// The local model.
    Local(LocalGenerator<'a>),
    /// A server.
    Endpoint(&'a EndpointGenerator),
}

/// A local model with its adapter.
#[derive(Debug, Clone, Copy)]
pub struct LocalGenerator<'a> {
    /// The model.
    pub decoder: &'a Decoder,
    /// The tokenizer and chat template.
    pub base: &'a BaseModel,
    /// Generation options; each prompt sets its own token limit.
    pub options: &'a GenerationOptions,
    /// Counts of how completions end.
    pub endings: &'a Endings,
    /// The other processes of the run, if they complete prompts too.
    pub served: Option<&'a dyn OtherProcesses>,
}

/// A prompt to complete.
#[derive(Debug, Clone, Copy)]
pub struct GenerationRequest<'a> {
    /// Unique id.
    pub id: &'a str,
    /// The prompt itself.
    pub text: PromptText<'a>,
    /// Maximum number of new tokens.
    pub max_new_tokens: usize,
    /// Constraint of the completion.
    pub constraint: Option<&'a TextConstraint>,
}

/// The content of a prompt.
#[derive(Debug, Clone, Copy)]
pub enum PromptText<'a> {
    /// Messages for the chat template.
    Chat(&'a Conversation),
    /// A rendered prompt, including the model's special tokens.
    Raw(&'a str),
}

impl PromptText<'_> {
    /// A string that determines the prompt, for digests.
    pub fn digest(&self) -> String {
        match self {
            Self::Chat(conversation) => format!("{:?}", conversation.prompt()),
            Self::Raw(text) => format!("{text:?}"),
        }
    }

    /// The tools that the model may call.
    pub(super) fn tools(&self) -> Option<&[Value]> {
        match self {
            Self::Chat(conversation) => conversation.tools.as_deref(),
            Self::Raw(_) => None,
        }
    }

    pub(super) fn messages(&self, id: &str) -> Result<&[Message], Error> {
        match self {
            Self::Chat(conversation) => Ok(conversation.prompt()),
            Self::Raw(_) => Err(Error::Usage(format!(
                "{id}: this prompt is text with special tokens, which a chat completions server \
                 does not accept; use prompts of messages, or a local model"
            ))),
        }
    }
}

/// A compiled constraint.
#[derive(Debug, Clone)]
pub enum TextConstraint {
    /// A grammar, for the local model.
    Grammar(Box<FallbackGrammar>),
    /// A JSON Schema that a server enforces.
    Schema(Value),
    /// Requires a server to call one of the prompt's tools.
    ToolChoice,
}

/// Compiles schemas for a generator.
#[derive(Debug)]
pub enum Constrainer {
    /// Grammars over the tokens of the local model.
    Model(Vocabulary),
    /// Schemas that are sent to a server.
    Endpoint,
}

/// A completion.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Text without the stop token or stop string.
    pub text: String,
    /// `stop`, `length`, `context`, `time` or `constraint`. For a server, the value that it
    /// returned, or empty.
    pub finish_reason: String,
    /// Number of tokens. For a server, the number that it returned, or 0.
    pub n_tokens: usize,
    /// If a server answered without text, the kind of its answer: `refusal`, `reasoning`,
    /// `tool_calls` or `nothing`. If it did not answer, the kind of error. `text` is then empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// Why a server did not answer this prompt although it answers others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Tool calls that a server parsed from the completion, in the format of its API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// How the completion was generated a second time, if the first one did not end within its
    /// constraint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewritten: Option<Rewritten>,
}

/// How a completion ended, as in `predictions.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ending {
    /// See [`Completion::finish_reason`].
    pub finish_reason: String,
    /// See [`Completion::n_tokens`].
    pub n_tokens: usize,
    /// See [`Completion::without_text`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// See [`Completion::error`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Completion {
    /// Whether the completion was cut off or a server did not answer. It is then scored as wrong.
    pub fn is_cut(&self) -> bool {
        is_cut(&self.finish_reason) || self.error.is_some()
    }

    /// The finish reason; `error` if a server did not answer.
    pub fn end_reason(&self) -> &str {
        match &self.error {
            Some(_) => "error",
            None => &self.finish_reason,
        }
    }

    /// The text to score; empty if the completion was cut off.
    pub fn whole_text(&self) -> &str {
        if self.is_cut() { "" } else { &self.text }
    }

    /// The ending for the outcome of an agent loop.
    pub fn end(&self) -> TextEnd {
        TextEnd {
            finish_reason: self.finish_reason.clone(),
            n_tokens: self.n_tokens,
        }
    }

    /// The ending for `predictions.jsonl`.
    pub fn ending(&self) -> Ending {
        Ending {
            finish_reason: self.finish_reason.clone(),
            n_tokens: self.n_tokens,
            without_text: self.without_text.clone(),
            error: self.error.clone(),
        }
    }
}

impl Constrainer {
    /// Compiles each schema. Equal schemas are compiled only once. An error is the reason why a
    /// schema cannot be enforced.
    pub fn constraints(&self, schemas: &[&Value]) -> Vec<Result<TextConstraint, String>> {
        self.constraints_with(schemas, Formats::Annotated)
    }

    /// Like [`Self::constraints`]; `formats` sets how `format` is handled.
    pub fn constraints_with(
        &self,
        schemas: &[&Value],
        formats: Formats,
    ) -> Vec<Result<TextConstraint, String>> {
        let Self::Model(vocabulary) = self else {
            let constraint_of = |schema: &&Value| Ok(TextConstraint::Schema((*schema).clone()));
            return schemas.iter().map(constraint_of).collect();
        };
        let texts: Vec<String> = schemas.iter().map(|schema| schema.to_string()).collect();
        let distinct: HashMap<&str, &Value> = texts
            .iter()
            .zip(schemas)
            .map(|(text, schema)| (text.as_str(), *schema))
            .collect();
        let options = GrammarOptions {
            formats,
            ..GrammarOptions::default()
        };
        let compiled: HashMap<&str, Result<TextConstraint, String>> = distinct
            .into_par_iter()
            .map(|(text, schema)| {
                let grammar = FallbackGrammar::for_schema(vocabulary, schema, &options)
                    .map(|grammar| TextConstraint::Grammar(Box::new(grammar)))
                    .map_err(|error: GrammarError| error.to_string());
                (text, grammar)
            })
            .collect();
        texts
            .iter()
            .map(|text| compiled[text.as_str()].clone())
            .collect()
    }

    /// Compiles lists of tools for a call format. An error is the reason why calls cannot be
    /// enforced.
    pub fn calls(
        &self,
        tools: &[Vec<Value>],
        format: CallFormat,
        options: &GrammarOptions,
    ) -> Vec<Result<TextConstraint, String>> {
        let server_constraint = |tools: &Vec<Value>| match format.server_schema(tools) {
            Ok(Some(schema)) => Ok(TextConstraint::Schema(schema)),
            Ok(None) => Err("servers do not accept a JSON Schema for calls".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let Self::Model(vocabulary) = self else {
            return tools.iter().map(server_constraint).collect();
        };
        let compiled = tools.par_iter().map(|tools| {
            FallbackGrammar::for_calls(vocabulary, tools, format, options)
                .map(|grammar| TextConstraint::Grammar(Box::new(grammar)))
                .map_err(|error: GrammarError| error.to_string())
        });
        compiled.collect()
    }
}

impl Generator<'_> {
    /// Returns the constraint compiler for this generator.
    ///
    /// # Errors
    ///
    /// The tokenizer does not support constrained decoding.
    pub fn constrainer(&self) -> Result<Constrainer, Error> {
        let Generator::Local(model) = self else {
            return Ok(Constrainer::Endpoint);
        };
        let base = model.base;
        let vocabulary = Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids)?;
        Ok(Constrainer::Model(vocabulary))
    }

    /// Completes each prompt, and reuses completions in `journal`. Returns `None` if `watch`
    /// stopped the work.
    ///
    /// # Errors
    ///
    /// The template rejects a prompt, a server does not answer, or the journal cannot be written.
    pub fn write(
        &self,
        prompts: &[GenerationRequest<'_>],
        journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let keys: Vec<&str> = prompts.iter().map(|prompt| prompt.id).collect();
        self.write_with_keys(prompts, &keys, journal, watch)
    }

    /// Like [`Self::write`]; `keys` has the journal key of each prompt.
    fn write_with_keys<K: AsRef<str>>(
        &self,
        prompts: &[GenerationRequest<'_>],
        keys: &[K],
        mut journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let saved = |key: &K| journal.as_ref()?.saved_completion(key.as_ref());
        let mut texts: Vec<Option<Completion>> = keys.iter().map(saved).collect();
        let missing: Vec<usize> = (0..prompts.len()).filter(|&i| texts[i].is_none()).collect();
        let pending: Vec<GenerationRequest<'_>> = missing.iter().map(|&i| prompts[i]).collect();
        let mut finished = |number: usize, written: &Completion| match &mut journal {
            Some(journal) => journal.add(keys[missing[number]].as_ref(), written),
            None => Ok(()),
        };
        let new = match self {
            Generator::Local(model) => model.write(&pending, &missing, watch, &mut finished)?,
            Generator::Endpoint(endpoint) => {
                if texts
                    .iter()
                    .flatten()
                    .any(|completion| completion.error.is_none())
                {
                    endpoint.note_earlier_answers();
                }
                endpoint.write(&pending, watch, &mut finished)?
            }
        };
        let Some(new) = new else {
            return Ok(None);
        };
        for (idx, completion) in missing.into_iter().zip(new) {
            texts[idx] = Some(completion);
        }
        let texts: Vec<Completion> = texts.into_iter().flatten().collect();
        let ids = prompts.iter().map(|prompt| prompt.id);
        self.endings().add(ids.zip(&texts));
        Ok(Some(texts))
    }

    fn endings(&self) -> &Endings {
        match self {
            Generator::Local(model) => model.endings,
            Generator::Endpoint(endpoint) => endpoint.endings(),
        }
    }
}

/// Generates the rounds of several agent loops, with shared progress.
#[derive(Debug)]
pub struct Rounds {
    n_loops: usize,
    n_tokens: usize,
}

impl Rounds {
    /// The state before the first round of `n_loops` loops.
    pub fn new(n_loops: usize) -> Self {
        Self {
            n_loops,
            n_tokens: 0,
        }
    }

    /// Generates the completions of a round, and reuses completions in `journal`. `n_done` is the
    /// number of loops that have already ended. Returns `None` if `watch` stopped the work.
    ///
    /// # Errors
    ///
    /// As for [`Generator::write`].
    pub fn write(
        &mut self,
        generator: &Generator<'_>,
        prompts: &[GenerationRequest<'_>],
        n_done: usize,
        journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Completion>>, Error> {
        // The key includes a digest of the prompt, because a resumed loop may reach a different
        // prompt than before. Its completion is then generated again.
        let key = |prompt: &GenerationRequest<'_>| {
            let digest = sha256_bytes(prompt.text.digest().as_bytes());
            format!("{} {digest}", prompt.id)
        };
        let keys: Vec<String> = prompts.iter().map(key).collect();
        let mut n_tokens = self.n_tokens;
        let texts = generator.write_with_keys(prompts, &keys, journal, &mut |progress| {
            n_tokens = self.n_tokens + progress.n_tokens;
            watch(GenerationProgress {
                work: Work::Generating,
                n_done,
                n_total: self.n_loops,
                n_tokens,
                waiting: progress.waiting,
            })
        })?;
        self.n_tokens = n_tokens;
        Ok(texts)
    }
}
