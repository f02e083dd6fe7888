//! Evaluates for the first process.

use std::cell::OnceCell;

use tooltune_grammar::{Constraint, Vocabulary};
use tooltune_ranks::Ranks;
use tooltune_rows::text::TokenizedExample;

use super::messages::{ConstraintSource, Reply, Request, ServedPass, ServedPrompt, loss_bits};
use super::{from_bytes, to_bytes, unreadable, wait_for_work};
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::eval::generate::{
    Generation, GenerationOptions, GenerationProgress, Jobs, JoiningPrompt, Observer, StopStrings,
    complete,
};
use crate::eval::loss::pass_losses;
use crate::models::Decoder;

/// A process that evaluates for the first one.
struct Server<'s> {
    decoder: &'s Decoder,
    base: &'s BaseModel,
    options: &'s GenerationOptions,
    ranks: &'s mut Ranks,
    is_interrupted: &'s dyn Fn() -> bool,
    vocabulary: OnceCell<Vocabulary>,
}

/// Completes prompts and computes losses for the first process until
/// [`Served::end`](super::Served::end). `is_interrupted` tells whether a signal has arrived.
///
/// # Errors
///
/// Logits are not finite, or a process was lost.
pub fn serve(
    (decoder, base): (&Decoder, &BaseModel),
    options: &GenerationOptions,
    ranks: &mut Ranks,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let mut server = Server {
        decoder,
        base,
        options,
        ranks,
        is_interrupted,
        vocabulary: OnceCell::new(),
    };
    // The adapter does not change during an evaluation.
    let combined = OnceCell::new();
    let mut votes = false;
    loop {
        match server.next_request(votes)? {
            Request::Done => return Ok(()),
            request @ (Request::BeginVotes | Request::EndVotes) => {
                votes = matches!(request, Request::BeginVotes);
                server.set_voting(votes)?;
            }
            Request::Cancel => server.reply(&Reply::Cancelled)?,
            Request::Complete {
                max_new_tokens,
                prompts,
            } => server.complete(max_new_tokens, prompts)?,
            Request::Losses { passes } => {
                let combined = combined.get_or_init(|| decoder.with_combined_adapters());
                server.losses(combined, passes)?;
            }
        }
    }
}

impl Server<'_> {
    fn reply(&mut self, reply: &Reply) -> Result<(), Error> {
        Ok(self.ranks.send_to(0, &to_bytes(reply))?)
    }

    /// The next request. While the ranks vote, this one gathers weights along with the others.
    fn next_request(&mut self, votes: bool) -> Result<Request, Error> {
        if !votes {
            return from_bytes(&self.ranks.receive_from(0)?);
        }
        loop {
            self.ranks.pulse().progress();
            if let Some((_, bytes)) = self.ranks.try_receive_any()? {
                return from_bytes(&bytes);
            }
            wait_for_work(self.decoder)?;
        }
    }

    fn set_voting(&self, votes: bool) -> Result<(), Error> {
        match &self.decoder.node {
            Some(node) if votes => node.begin_votes(),
            Some(node) => node.end_votes()?,
            None => {}
        }
        Ok(())
    }

    fn losses(&mut self, decoder: &Decoder, passes: Vec<ServedPass>) -> Result<(), Error> {
        for pass in passes {
            if (self.is_interrupted)() {
                return self.reply(&Reply::Interrupted);
            }
            let examples = pass.examples.into_iter().map(TokenizedExample::from);
            let losses = pass_losses(decoder, &examples.collect::<Vec<_>>())?;
            self.ranks.pulse().progress();
            self.reply(&Reply::Losses {
                number: pass.number,
                bits: loss_bits(&losses),
            })?;
        }
        Ok(())
    }

    fn complete(&mut self, max_new_tokens: usize, prompts: Vec<ServedPrompt>) -> Result<(), Error> {
        let (decoder, base, options) = (self.decoder, self.base, self.options);
        let jobs = Jobs {
            prompts: &[],
            constraints: &[],
            streams: &[],
            stop: Some(StopStrings {
                tokenizer: &base.tokenizer,
                strings: &options.stop_strings,
            }),
        };
        let options = GenerationOptions {
            max_new_tokens,
            ..options.clone()
        };
        let mut batch = ServedBatch {
            server: self,
            max_new_tokens,
            numbers: Vec::new(),
            joining: Vec::new(),
            n_unfinished: 0,
            is_cancelled: false,
            error: None,
        };
        batch.add(prompts)?;
        complete(decoder, jobs, &options, &mut batch)?;
        let (is_cancelled, n_unfinished) = (batch.is_cancelled, batch.n_unfinished);
        if let Some(error) = batch.error {
            return Err(error);
        }
        match is_cancelled {
            true => self.reply(&Reply::Cancelled),
            // The first process may have all results already, and expects no further message.
            false if n_unfinished == 0 => Ok(()),
            false => self.reply(&Reply::Interrupted),
        }
    }

    fn constraint(&self, source: &ConstraintSource) -> Result<Option<Constraint>, Error> {
        if self.vocabulary.get().is_none() {
            let base = self.base;
            let new = Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids)?;
            let _ = self.vocabulary.set(new);
        }
        let compiled = self
            .vocabulary
            .get()
            .map(|vocabulary| source.grammar.clone().compile(vocabulary));
        let grammar = compiled.transpose()?;
        Ok(grammar.and_then(|grammar| grammar.constraint(source.rewritten)))
    }
}

/// Prompts that are completed together; further ones arrive in the meantime.
struct ServedBatch<'b, 's> {
    server: &'b mut Server<'s>,
    max_new_tokens: usize,
    /// The number of each prompt in the first process, in the order in which they joined.
    numbers: Vec<usize>,
    /// Prompts that have not joined yet.
    joining: Vec<JoiningPrompt>,
    n_unfinished: usize,
    is_cancelled: bool,
    error: Option<Error>,
}

impl ServedBatch<'_, '_> {
    fn add(&mut self, prompts: Vec<ServedPrompt>) -> Result<(), Error> {
        for prompt in prompts {
            let constraint = prompt.constraint.as_ref();
            let constraint = constraint.map(|source| self.server.constraint(source));
            self.joining.push(JoiningPrompt {
                ids: prompt.ids,
                constraint: constraint.transpose()?.flatten(),
                stream: prompt.stream,
            });
            self.numbers.push(prompt.number);
            self.n_unfinished += 1;
        }
        Ok(())
    }

    /// Takes the requests that have arrived. As long as a prompt is unfinished, they belong to this
    /// batch.
    fn receive(&mut self) -> Result<(), Error> {
        while self.n_unfinished > 0
            && !self.is_cancelled
            && let Some((_, bytes)) = self.server.ranks.try_receive_any()?
        {
            match from_bytes(&bytes)? {
                Request::Cancel => self.is_cancelled = true,
                Request::Complete {
                    max_new_tokens,
                    prompts,
                } if max_new_tokens == self.max_new_tokens => self.add(prompts)?,
                _ => return Err(unreadable()),
            }
        }
        Ok(())
    }
}

impl Observer for ServedBatch<'_, '_> {
    fn joining(&mut self, _: usize) -> Result<Vec<JoiningPrompt>, Error> {
        Ok(std::mem::take(&mut self.joining))
    }

    fn progress(&mut self, _: GenerationProgress) -> bool {
        self.server.ranks.pulse().progress();
        if let Err(error) = self.receive() {
            self.error = Some(error);
        }
        self.error.is_none() && !self.is_cancelled && !(self.server.is_interrupted)()
    }

    fn on_finished(&mut self, prompt: usize, generation: &Generation) -> Result<(), Error> {
        self.n_unfinished -= 1;
        self.server.reply(&Reply::Completed {
            number: self.numbers[prompt],
            generation: generation.clone(),
        })
    }
}
