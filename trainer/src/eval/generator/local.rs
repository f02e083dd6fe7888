//! Generates completions with a local model, several prompts at a time.

use tooltune_rows::text::{Row, Specials, prompt_ids};

use super::{Completion, GenerationRequest, LocalGenerator, PromptText, TextConstraint};
use crate::error::Error;
use crate::eval::generate::{
    FinishReason, Generation, GenerationOptions, GenerationProgress, Jobs, Observer, StopStrings,
    complete,
};
use crate::eval::held::Rewritten;
use crate::eval::served::ServedJobs;
use crate::not_finite;

impl LocalGenerator<'_> {
    /// Completes each prompt. Random numbers depend on the seed and on `streams`; prompts may share
    /// a stream.
    ///
    /// A completion that does not end within its constraint is generated once more, as described in
    /// [`FallbackGrammar`]. `finished` is called with the final completion of each prompt.
    ///
    /// # Errors
    ///
    /// The template rejects a prompt, `finished` fails, or logits are not finite.
    pub(crate) fn write(
        &self,
        prompts: &[GenerationRequest<'_>],
        streams: &[usize],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        finished: &mut dyn FnMut(usize, &Completion) -> Result<(), Error>,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let ids = prompts
            .iter()
            .map(|prompt| self.prompt_ids(prompt))
            .collect::<Result<Vec<_>, Error>>()?;
        let all: Vec<PendingPrompt<'_>> = prompts
            .iter()
            .zip(ids)
            .zip(streams)
            .enumerate()
            .map(|(number, ((prompt, ids), &stream))| PendingPrompt {
                number,
                prompt,
                ids,
                stream,
                rewritten: None,
            })
            .collect();
        let mut retries: Vec<(usize, Rewritten)> = Vec::new();
        let mut first = |number: usize, written: &Completion| -> Result<(), Error> {
            let prompt = &prompts[number];
            let grammar = match prompt.constraint {
                Some(TextConstraint::Grammar(grammar)) => Some(grammar),
                _ => None,
            };
            match grammar.and_then(|grammar| grammar.second_attempt(written, prompt.max_new_tokens))
            {
                Some(rewritten) => retries.push((number, rewritten)),
                None => finished(number, written)?,
            }
            Ok(())
        };
        let Some(mut texts) = self.write_once(&all, watch, &mut first)? else {
            return Ok(None);
        };
        if retries.is_empty() {
            return Ok(Some(texts));
        }
        retries.sort_unstable_by_key(|(number, _)| *number);
        let mut all: Vec<Option<PendingPrompt<'_>>> = all.into_iter().map(Some).collect();
        let rewritten = retries.iter().filter_map(|&(number, rewritten)| {
            let prompt = all[number].take()?;
            Some(PendingPrompt {
                rewritten: Some(rewritten),
                ..prompt
            })
        });
        let rewritten: Vec<PendingPrompt<'_>> = rewritten.collect();
        let Some(completions) = self.write_once(&rewritten, watch, finished)? else {
            return Ok(None);
        };
        for ((number, _), completions) in retries.into_iter().zip(completions) {
            texts[number] = completions;
        }
        Ok(Some(texts))
    }

    /// Completes one prompt in one attempt. After each token except the last, `streamed` gets the
    /// whole text so far. Returns `None` if `watch` stopped the work.
    ///
    /// # Errors
    ///
    /// The template rejects the prompt, `streamed` fails, or logits are not finite.
    pub fn stream(
        &self,
        prompt: &GenerationRequest<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        streamed: &mut dyn FnMut(&str) -> Result<(), Error>,
    ) -> Result<Option<Completion>, Error> {
        let pending = PendingPrompt {
            number: 0,
            prompt,
            ids: self.prompt_ids(prompt)?,
            stream: 0,
            rewritten: None,
        };
        let stop = self.stop();
        let observer = CompletionObserver {
            prompts: &[pending],
            stop,
            watch,
            finished: &mut |_, _| Ok(()),
            streamed: Some(streamed),
        };
        let completions = self.complete_observed(observer)?;
        Ok(completions.and_then(|mut completions| completions.pop()))
    }

    fn stop(&self) -> StopStrings<'_> {
        StopStrings {
            tokenizer: &self.base.tokenizer,
            strings: &self.options.stop_strings,
        }
    }

    /// Completes each prompt in one attempt.
    fn write_once(
        &self,
        prompts: &[PendingPrompt<'_>],
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
        finished: &mut dyn FnMut(usize, &Completion) -> Result<(), Error>,
    ) -> Result<Option<Vec<Completion>>, Error> {
        self.complete_observed(CompletionObserver {
            prompts,
            stop: self.stop(),
            watch,
            finished,
            streamed: None,
        })
    }

    fn complete_observed(
        &self,
        mut observer: CompletionObserver<'_>,
    ) -> Result<Option<Vec<Completion>>, Error> {
        let (prompts, stop) = (observer.prompts, observer.stop);
        let longest = prompts.iter().map(|one| one.prompt.max_new_tokens).max();
        let options = GenerationOptions {
            max_new_tokens: longest.unwrap_or(0),
            ..self.options.clone()
        };
        let ids: Vec<Vec<u32>> = prompts.iter().map(|one| one.ids.clone()).collect();
        let grammars: Vec<_> = prompts
            .iter()
            .map(|one| match one.prompt.constraint {
                Some(TextConstraint::Grammar(grammar)) => Some((&**grammar, one.rewritten)),
                _ => None,
            })
            .collect();
        let constraints: Vec<_> = grammars
            .iter()
            .map(|grammar| grammar.and_then(|(grammar, rewritten)| grammar.constraint(rewritten)))
            .collect();
        let streams: Vec<u64> = prompts.iter().map(|one| one.stream as u64).collect();
        let jobs = Jobs {
            prompts: &ids,
            constraints: &constraints,
            streams: &streams,
            stop: Some(stop),
        };
        let generations = match self.served {
            Some(served) if observer.streamed.is_none() => {
                let jobs = ServedJobs {
                    jobs,
                    grammars: &grammars,
                };
                served.complete(self.decoder, &jobs, &options, &mut observer)
            }
            _ => complete(self.decoder, jobs, &options, &mut observer),
        };
        if matches!(generations, Err(Error::NonFiniteLogits)) {
            let what = "the logits after a prompt are not finite";
            not_finite::blame_weights(&self.base.files.weights, what)?;
        }
        let generations = generations?;
        self.warn_of_overlong(prompts, generations.as_deref().unwrap_or_default());
        let to_completions = |generations: Vec<Generation>| {
            let pairs = prompts.iter().zip(&generations);
            pairs
                .map(|(prompt, generation)| prompt.to_completion(generation, stop))
                .collect::<Result<Vec<_>, _>>()
        };
        generations.map(to_completions).transpose()
    }

    /// Warns about prompts that fill the model's context and get no completion.
    fn warn_of_overlong(&self, prompts: &[PendingPrompt<'_>], generations: &[Generation]) {
        let pairs = prompts.iter().zip(generations);
        let overlong: Vec<&str> = pairs
            .filter(|(_, generation)| generation.finish == FinishReason::Context)
            .map(|(prompt, _)| prompt.prompt.id)
            .collect();
        if let Some(first) = overlong.first() {
            tracing::warn!(
                "{} of {} prompts get no completion, such as {first}: they fill the model's \
                 context of {} tokens; shorten them, or use a model with a longer context",
                overlong.len(),
                prompts.len(),
                self.base.config.max_position_embeddings
            );
        }
    }

    pub(in crate::eval) fn prompt_ids(
        &self,
        prompt: &GenerationRequest<'_>,
    ) -> Result<Vec<u32>, Error> {
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

/// A prompt in progress.
struct PendingPrompt<'a> {
    /// Index among all prompts.
    number: usize,
    prompt: &'a GenerationRequest<'a>,
    ids: Vec<u32>,
    /// Random stream of the prompt.
    stream: usize,
    rewritten: Option<Rewritten>,
}

impl PendingPrompt<'_> {
    /// Whether to keep special tokens, such as `[TOOL_CALLS]`: without them, a tool call cannot be
    /// detected.
    fn specials(&self) -> Specials {
        let tools = self.prompt.text.tools();
        match tools.is_some_and(|tools| !tools.is_empty()) {
            true => Specials::Keep,
            false => Specials::Skip,
        }
    }

    fn to_completion(
        &self,
        generation: &Generation,
        stop: StopStrings<'_>,
    ) -> Result<Completion, Error> {
        Ok(Completion {
            text: stop.text(generation, self.specials())?,
            finish_reason: generation.finish.name().to_owned(),
            n_tokens: generation.ids.len(),
            rewritten: self.rewritten,
            ..Completion::default()
        })
    }
}

/// Receives the text generated so far.
type Streamed<'a> = dyn FnMut(&str) -> Result<(), Error> + 'a;

/// Decodes completions and passes them to the callbacks.
struct CompletionObserver<'a> {
    prompts: &'a [PendingPrompt<'a>],
    stop: StopStrings<'a>,
    watch: &'a mut dyn FnMut(GenerationProgress) -> bool,
    finished: &'a mut dyn FnMut(usize, &Completion) -> Result<(), Error>,
    /// Streaming callback for a single prompt.
    streamed: Option<&'a mut Streamed<'a>>,
}

impl Observer for CompletionObserver<'_> {
    fn progress(&mut self, progress: GenerationProgress) -> bool {
        (self.watch)(progress)
    }

    fn token(&mut self, prompt: usize, ids: &[u32]) -> Result<(), Error> {
        let specials = self.prompts[prompt].specials();
        match &mut self.streamed {
            Some(streamed) => streamed(&self.stop.tokenizer.decode(ids, specials)?),
            None => Ok(()),
        }
    }

    fn on_finished(&mut self, prompt: usize, generation: &Generation) -> Result<(), Error> {
        let pending = &self.prompts[prompt];
        (self.finished)(
            pending.number,
            &pending.to_completion(generation, self.stop)?,
        )
    }
}
