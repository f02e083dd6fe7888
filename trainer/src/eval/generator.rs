//! Prompts to texts: by the model here, or by a server that speaks OpenAI's chat completions.

use std::collections::HashMap;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_agents::TextEnd;
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_grammar::{CallFormat, Grammar, GrammarError, GrammarOptions, Lengths, Vocabulary};
use tooltune_rows::text::{Conversation, Message, Row, prompt_ids};

use super::endings::Endings;
use super::endpoint_generator::EndpointGenerator;
use super::generate::{
    FinishReason, Generation, GenerationOptions, GenerationProgress, Jobs, Observer, StopStrings,
    Work, complete,
};
use super::journal::Journal;
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::models::Decoder;
use crate::not_finite;

/// What writes the texts of suites.
#[derive(Debug, Clone, Copy)]
pub enum Generator<'a> {
    /// The model here.
    Local(LocalGenerator<'a>),
    /// One behind an endpoint.
    Endpoint(&'a EndpointGenerator),
}

/// The model with its adapter.
#[derive(Debug, Clone, Copy)]
pub struct LocalGenerator<'a> {
    /// The model.
    pub decoder: &'a Decoder,
    /// Its tokenizer and template.
    pub base: &'a BaseModel,
    /// How it generates; the tokens that a text may have are those of its prompt.
    pub options: &'a GenerationOptions,
    /// Counts how texts end.
    pub endings: &'a Endings,
}

/// A prompt that is to be gone on with.
#[derive(Debug, Clone, Copy)]
pub struct GenerationRequest<'a> {
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
    /// For a server, which is asked for calls of the tools in the prompt.
    ToolChoice,
}

/// Schemas to what a generator enforces them with.
#[derive(Debug)]
pub enum Constrainer {
    /// Grammars over the tokens of the model here.
    Model(Vocabulary),
    /// Schemas as they are.
    Endpoint,
}

/// A text that was written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Without the stop token or stop string.
    pub text: String,
    /// `stop`, `length`, `context`, `time` or `constraint`; where a server wrote it, in the
    /// server's word, and empty where it does not say.
    pub finish_reason: String,
    /// Tokens of the text; where a server wrote it, as it counts them, and 0 where it does not.
    pub n_tokens: usize,
    /// Where a server gave no text, what it gave: `refusal`, `reasoning`, `tool_calls` or
    /// `nothing`; the text is then empty. Where it gave no answer, the kind of fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// Why a server gave no answer to this prompt, though it answers others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Calls of tools that a server has read out of the text, as its protocol writes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
}

/// A text's end, as `predictions.jsonl` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ending {
    /// As in [`Completion::finish_reason`].
    pub finish_reason: String,
    /// As in [`Completion::n_tokens`].
    pub n_tokens: usize,
    /// As in [`Completion::without_text`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// As in [`Completion::error`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Completion {
    /// How it ended, as an outcome of a loop has it.
    pub fn end(&self) -> TextEnd {
        TextEnd {
            finish_reason: self.finish_reason.clone(),
            n_tokens: self.n_tokens,
        }
    }

    /// How it ended.
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
    /// What each schema becomes, or why it cannot be enforced; equal schemas are compiled once.
    pub fn constraints(&self, schemas: &[&Value]) -> Vec<Result<TextConstraint, String>> {
        let Self::Model(vocabulary) = self else {
            let of = |schema: &&Value| Ok(TextConstraint::Schema((*schema).clone()));
            return schemas.iter().map(of).collect();
        };
        let texts: Vec<String> = schemas.iter().map(|schema| schema.to_string()).collect();
        let distinct: HashMap<&str, &Value> = texts
            .iter()
            .zip(schemas)
            .map(|(text, schema)| (text.as_str(), *schema))
            .collect();
        let compiled: HashMap<&str, Result<TextConstraint, String>> = distinct
            .into_par_iter()
            .map(|(text, schema)| {
                let grammar = Grammar::json_schema(vocabulary, schema, &GrammarOptions::default())
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

    /// What a schema becomes with limits for its lists and texts ([`Lengths::Short`]); none where it
    /// sets such limits itself, and where a server would have to.
    pub fn short(&self, schema: &Value) -> Option<TextConstraint> {
        let Self::Model(vocabulary) = self else {
            return None;
        };
        let options = GrammarOptions {
            lengths: Lengths::Short,
            ..GrammarOptions::default()
        };
        let grammar = Grammar::json_schema(vocabulary, schema, &options).ok()?;
        let is_other = grammar.is_shortened();
        is_other.then(|| TextConstraint::Grammar(Box::new(grammar)))
    }

    /// What each list of tools becomes in a format of calls, or why that cannot be enforced.
    pub fn calls(
        &self,
        tools: &[Vec<Value>],
        format: CallFormat,
        options: &GrammarOptions,
    ) -> Vec<Result<TextConstraint, String>> {
        let of_server = |tools: &Vec<Value>| match format.server_schema(tools) {
            Ok(Some(schema)) => Ok(TextConstraint::Schema(schema)),
            Ok(None) => Err("no JSON Schema says for a server what its calls are".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let Self::Model(vocabulary) = self else {
            return tools.iter().map(of_server).collect();
        };
        let compiled = tools.par_iter().map(|tools| {
            Grammar::tool_call(vocabulary, tools, format, options)
                .map(|grammar| TextConstraint::Grammar(Box::new(grammar)))
                .map_err(|error: GrammarError| error.to_string())
        });
        compiled.collect()
    }
}

impl Generator<'_> {
    /// What turns schemas into constraints for this generator.
    ///
    /// # Errors
    ///
    /// A tokenizer that cannot be constrained.
    pub fn constrainer(&self) -> Result<Constrainer, Error> {
        let Generator::Local(model) = self else {
            return Ok(Constrainer::Endpoint);
        };
        let base = model.base;
        let vocabulary = Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids)?;
        Ok(Constrainer::Model(vocabulary))
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
        prompts: &[GenerationRequest<'_>],
        journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let keys: Vec<&str> = prompts.iter().map(|prompt| prompt.id).collect();
        self.write_kept(prompts, &keys, journal, watch)
    }

    /// [`Self::write`] of prompts that the journal has under names of their own.
    fn write_kept<K: AsRef<str>>(
        &self,
        prompts: &[GenerationRequest<'_>],
        keys: &[K],
        mut journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let kept = |key: &K| journal.as_ref()?.written(key.as_ref());
        let mut texts: Vec<Option<Completion>> = keys.iter().map(kept).collect();
        let left: Vec<usize> = (0..prompts.len()).filter(|&i| texts[i].is_none()).collect();
        let pending: Vec<GenerationRequest<'_>> = left.iter().map(|&i| prompts[i]).collect();
        let mut finished = |number: usize, written: &Completion| match &mut journal {
            Some(journal) => journal.add(keys[left[number]].as_ref(), written),
            None => Ok(()),
        };
        let new = match self {
            Generator::Local(model) => model.write(&pending, &left, watch, &mut finished)?,
            Generator::Endpoint(endpoint) => {
                if texts
                    .iter()
                    .flatten()
                    .any(|written| written.error.is_none())
                {
                    endpoint.has_answered();
                }
                endpoint.write(&pending, watch, &mut finished)?
            }
        };
        let Some(new) = new else {
            return Ok(None);
        };
        for (place, written) in left.into_iter().zip(new) {
            texts[place] = Some(written);
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

/// Rounds of texts for loops that each ask for one after another, with the progress of all.
#[derive(Debug)]
pub struct Rounds {
    n_loops: usize,
    n_tokens: usize,
}

impl Rounds {
    /// Before the first round of so many loops.
    pub fn of(n_loops: usize) -> Self {
        Self {
            n_loops,
            n_tokens: 0,
        }
    }

    /// The texts of a round, in which `n_done` loops have ended already, but for those that
    /// `journal` has; `None` if `watch` ended the work.
    ///
    /// # Errors
    ///
    /// As [`Generator::write`].
    pub fn write(
        &mut self,
        generator: &Generator<'_>,
        prompts: &[GenerationRequest<'_>],
        n_done: usize,
        journal: Option<&mut Journal>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Completion>>, Error> {
        // A loop that comes to another prompt than before the interruption has it written anew.
        let key = |prompt: &GenerationRequest<'_>| {
            let digest = sha256_bytes(prompt.text.digest().as_bytes());
            format!("{} {digest}", prompt.id)
        };
        let keys: Vec<String> = prompts.iter().map(key).collect();
        let mut n_tokens = self.n_tokens;
        let texts = generator.write_kept(prompts, &keys, journal, &mut |progress| {
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

impl LocalGenerator<'_> {
    /// The text after each prompt; draws follow the seed and `places`, which need not be different.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, what `finished` says, or logits that are not finite.
    pub(crate) fn write(
        &self,
        prompts: &[GenerationRequest<'_>],
        places: &[usize],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        finished: &mut dyn FnMut(usize, &Completion) -> Result<(), Error>,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let longest = prompts.iter().map(|prompt| prompt.max_new_tokens).max();
        let options = GenerationOptions {
            max_new_tokens: longest.unwrap_or(0),
            ..self.options.clone()
        };
        let ids = prompts
            .iter()
            .map(|prompt| self.prompt_ids(prompt))
            .collect::<Result<Vec<_>, Error>>()?;
        let constraints: Vec<_> = prompts
            .iter()
            .map(|prompt| match prompt.constraint {
                Some(TextConstraint::Grammar(grammar)) => Some(grammar.constraint()),
                _ => None,
            })
            .collect();
        let streams: Vec<u64> = places.iter().map(|&place| place as u64).collect();
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
        };
        let generations = complete(self.decoder, jobs, &options, &mut told);
        if matches!(generations, Err(Error::NonFiniteLogits)) {
            let what = "the logits after a prompt are not finite";
            not_finite::blame_weights(&self.base.files.weights, what)?;
        }
        let generations = generations?;
        self.warn_of_overlong(prompts, generations.as_deref().unwrap_or_default());
        let written = |generations: Vec<Generation>| {
            let written = generations
                .iter()
                .map(|generation| written(generation, stop));
            written.collect::<Result<Vec<_>, _>>()
        };
        generations.map(written).transpose()
    }

    /// Says which prompts have no text because the model could not hold them.
    fn warn_of_overlong(&self, prompts: &[GenerationRequest<'_>], generations: &[Generation]) {
        let pairs = prompts.iter().zip(generations);
        let overlong: Vec<&str> = pairs
            .filter(|(_, generation)| generation.finish == FinishReason::Context)
            .map(|(prompt, _)| prompt.id)
            .collect();
        if let Some(first) = overlong.first() {
            tracing::warn!(
                "{} of {} prompts have no answer, such as {first}: they fill the model's context of \
                 {} tokens; shorten them, or take a model that holds more",
                overlong.len(),
                prompts.len(),
                self.base.config.max_position_embeddings
            );
        }
    }

    pub(super) fn prompt_ids(&self, prompt: &GenerationRequest<'_>) -> Result<Vec<u32>, Error> {
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

fn written(generation: &Generation, stop: StopStrings<'_>) -> Result<Completion, Error> {
    Ok(Completion {
        text: stop.text(generation)?,
        finish_reason: generation.finish.name().to_owned(),
        n_tokens: generation.ids.len(),
        without_text: None,
        error: None,
        tool_calls: Vec::new(),
    })
}

/// Hands completions on as texts.
struct Told<'a> {
    stop: StopStrings<'a>,
    watch: &'a mut dyn FnMut(GenerationProgress) -> bool,
    finished: &'a mut dyn FnMut(usize, &Completion) -> Result<(), Error>,
}

impl Observer for Told<'_> {
    fn progress(&mut self, progress: GenerationProgress) -> bool {
        (self.watch)(progress)
    }

    fn finished(&mut self, prompt: usize, generation: &Generation) -> Result<(), Error> {
        (self.finished)(prompt, &written(generation, self.stop)?)
    }
}
