//! Generates the replies of data pipelines with a local model.
//!
//! Prompts with the same temperature are completed together. Random numbers depend on the seed of
//! each prompt, not on its index, so an interrupted pipeline gets the same results. Grammars
//! enforce the schemas. If no grammar can express a schema, its replies are unconstrained, and this
//! is reported.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_checkpoints::input_files::{FileDigest, model_files};
use tooltune_pipelines::{
    Generator as PipelineGenerator, GeneratorFailure, ModelInfo, Prompt, PromptResult, Reply,
    Unanswered, estimated_tokens,
};
use tooltune_rows::text::Tokenizer;
use tooltune_template::{Conversation, Message, Role};

use super::generate::{FinishReason, GenerationOptions, GenerationProgress};
use super::generator::{
    Completion, Constrainer, GenerationRequest, Generator, LocalGenerator, PromptText,
    TextConstraint,
};
use crate::base_model::BaseModel;
use crate::config::Sampling;
use crate::error::Error;

/// A compiled schema, or the reason why it cannot be enforced.
type Compiled = Result<TextConstraint, String>;

/// A local model with compiled grammars.
#[derive(Debug)]
pub struct LocalPipelineGenerator<'a> {
    local: LocalGenerator<'a>,
    constrainer: Constrainer,
    identity: Map<String, Value>,
    compiled: RefCell<BTreeMap<String, Compiled>>,
    refused: RefCell<BTreeSet<String>>,
}

/// The identity of a model: everything that its replies depend on, except for the prompts.
///
/// # Errors
///
/// Files of the model cannot be read.
pub fn identity(
    base: &BaseModel,
    options: &GenerationOptions,
    adapter: &str,
) -> Result<Map<String, Value>, Error> {
    let mut files = String::new();
    for (name, path) in model_files(&base.path)? {
        let digest = FileDigest::compute(&path, None)?;
        let pages = digest.pages_sha256.unwrap_or_default();
        files.push_str(&format!("{name} {} {pages}\n", digest.sha256));
    }
    let sampling = options.sampling;
    let settings = [
        ("model", json!(sha256_bytes(files.as_bytes()))),
        ("adapter", json!(adapter)),
        ("chat-template", json!(base.template.sha256())),
        ("top-k", json!(sampling.top_k)),
        ("top-p", json!(sampling.top_p)),
        ("stop-strings", json!(options.stop_strings)),
        ("sampling-seed", json!(options.seed)),
    ];
    let settings = settings.into_iter();
    Ok(settings
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

impl<'a> LocalPipelineGenerator<'a> {
    /// Wraps a model with its [`identity`].
    ///
    /// # Errors
    ///
    /// The tokenizer does not support constrained decoding.
    pub fn new(local: LocalGenerator<'a>, identity: Map<String, Value>) -> Result<Self, Error> {
        Ok(Self {
            constrainer: Generator::Local(local).constrainer()?,
            local,
            identity,
            compiled: RefCell::default(),
            refused: RefCell::default(),
        })
    }

    fn constraint(&self, schema: &Value) -> Option<TextConstraint> {
        let text = schema.to_string();
        let mut compiled = self.compiled.borrow_mut();
        let found = compiled.entry(text).or_insert_with(|| {
            let constraint = self.constrainer.constraints(&[schema]).into_iter().next();
            constraint.unwrap_or_else(|| Err("the schema was not compiled".to_owned()))
        });
        match found {
            Ok(constraint) => Some(constraint.clone()),
            Err(reason) => {
                self.refused.borrow_mut().insert(reason.clone());
                None
            }
        }
    }

    /// Completes prompts that have the same temperature. Returns whether to continue.
    fn complete_group(
        &self,
        prompts: &[&Prompt],
        numbers: &[usize],
        take: &mut dyn FnMut(Option<PromptResult>) -> bool,
    ) -> Result<bool, Error> {
        let options = GenerationOptions {
            sampling: Sampling {
                temperature: prompts[numbers[0]].temperature,
                ..self.local.options.sampling
            },
            ..self.local.options.clone()
        };
        let local = LocalGenerator {
            options: &options,
            ..self.local
        };
        let prompt_at = |number: &usize| prompts[*number];
        let conversations: Vec<Conversation> = numbers
            .iter()
            .map(|number| {
                Conversation::new(vec![Message::new(
                    Role::User,
                    prompt_at(number).text.as_str(),
                )])
            })
            .collect();
        let constraints: Vec<Option<TextConstraint>> = numbers
            .iter()
            .map(|number| {
                prompt_at(number)
                    .schema
                    .as_ref()
                    .and_then(|schema| self.constraint(schema))
            })
            .collect();
        let ids: Vec<String> = numbers
            .iter()
            .map(|number| format!("prompt {number}"))
            .collect();
        let requests: Vec<GenerationRequest<'_>> = numbers
            .iter()
            .enumerate()
            .map(|(idx, number)| GenerationRequest {
                id: &ids[idx],
                text: PromptText::Chat(&conversations[idx]),
                max_new_tokens: prompt_at(number).max_tokens,
                constraint: constraints[idx].as_ref(),
            })
            .collect();
        let lengths = requests
            .iter()
            .map(|request| Ok(local.prompt_ids(request)?.len()))
            .collect::<Result<Vec<usize>, Error>>()?;
        let streams: Vec<usize> = numbers
            .iter()
            .map(|number| usize::try_from(prompt_at(number).seed).unwrap_or(usize::MAX))
            .collect();
        let is_stopped = RefCell::new(false);
        let take = RefCell::new(take);
        let mut watch = |_: GenerationProgress| {
            let continues = (take.borrow_mut())(None);
            *is_stopped.borrow_mut() |= !continues;
            !*is_stopped.borrow()
        };
        let mut finished = |idx: usize, written: &Completion| {
            let reply = PromptResult {
                number: numbers[idx],
                result: result(written, lengths[idx]),
            };
            let continues = (take.borrow_mut())(Some(reply));
            *is_stopped.borrow_mut() |= !continues;
            Ok(())
        };
        let completions = local.write(&requests, &streams, &mut watch, &mut finished)?;
        Ok(completions.is_some() && !*is_stopped.borrow())
    }
}

fn result(completion: &Completion, n_prompt_tokens: usize) -> Result<Reply, Unanswered> {
    let context = FinishReason::Context.name();
    if completion.finish_reason == context {
        return Err(Unanswered {
            kind: context.to_owned(),
            message: format!(
                "the prompt has {n_prompt_tokens} tokens, which fill the model's context"
            ),
            is_final: true,
        });
    }
    Ok(Reply {
        text: completion.text.clone(),
        finish_reason: completion.finish_reason.clone(),
        n_prompt_tokens,
        n_tokens: completion.n_tokens,
        without_text: None,
    })
}

impl ModelInfo for LocalPipelineGenerator<'_> {
    fn identity(&self) -> Map<String, Value> {
        self.identity.clone()
    }

    fn count_tokens(&self, text: &str) -> usize {
        count_tokens(&self.local.base.tokenizer, text)
    }
}

impl PipelineGenerator for LocalPipelineGenerator<'_> {
    fn ask(
        &self,
        prompts: &[&Prompt],
        take: &mut dyn FnMut(Option<PromptResult>) -> bool,
    ) -> Result<(), GeneratorFailure> {
        let mut by_temperature: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (number, prompt) in prompts.iter().enumerate() {
            let together = by_temperature.entry(prompt.temperature.to_bits());
            together.or_default().push(number);
        }
        for numbers in by_temperature.values() {
            let outcome = self.complete_group(prompts, numbers, take);
            if !outcome.map_err(|error| GeneratorFailure(error.to_string()))? {
                break;
            }
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let refused = self.refused.borrow();
        let note = |reason: &String| {
            format!("a reply is unconstrained, because no grammar can enforce its schema: {reason}")
        };
        refused.iter().map(note).collect()
    }
}

/// Counts the tokens of a text, or estimates them if the tokenizer rejects it.
fn count_tokens(tokenizer: &Tokenizer, text: &str) -> usize {
    let encoded = tokenizer.encode(text);
    encoded.map_or_else(|_| estimated_tokens(text), |encoded| encoded.ids.len())
}

/// A model without its weights, for the plan of a pipeline.
#[derive(Debug)]
pub struct UnloadedModel<'a> {
    /// The tokenizer and chat template.
    pub base: &'a BaseModel,
    /// Identity of the loaded model.
    pub identity: Map<String, Value>,
}

impl ModelInfo for UnloadedModel<'_> {
    fn identity(&self) -> Map<String, Value> {
        self.identity.clone()
    }

    fn count_tokens(&self, text: &str) -> usize {
        count_tokens(&self.base.tokenizer, text)
    }
}
