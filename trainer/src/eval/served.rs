//! Divides the completions of an evaluation among the processes of a run.
//!
//! Suites, judges and files remain with the first process. The others receive prompts as token IDs
//! in portions of a batch, and return tokens. A completion does not depend on the prompts next to
//! it, so the results are those of a single process.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooltune_grammar::Vocabulary;
use tooltune_ranks::Ranks;

use super::generate::{
    Generation, GenerationOptions, GenerationProgress, Jobs, Observer, StopStrings, Work, complete,
};
use super::held::{FallbackGrammar, GrammarSource, Rewritten};
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::models::Decoder;

/// Pause between two looks for results, if this process has nothing to compute.
const POLL: Duration = Duration::from_millis(2);

/// Processes that complete prompts together with this one.
pub trait OtherProcesses: std::fmt::Debug {
    /// Completes each prompt, here and in the other processes. Returns `None` if `observer` or a
    /// signal stopped the work.
    ///
    /// # Errors
    ///
    /// As [`complete`], or a process was lost.
    fn complete(
        &self,
        decoder: &Decoder,
        jobs: &ServedJobs<'_>,
        options: &GenerationOptions,
        observer: &mut dyn Observer,
    ) -> Result<Option<Vec<Generation>>, Error>;
}

/// The other processes of a run.
#[derive(Debug)]
pub struct Served<'a>(RefCell<&'a mut Ranks>);

/// A constraint with the attempt that it is for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ConstraintSource {
    grammar: GrammarSource,
    rewritten: Option<Rewritten>,
}

/// A prompt for another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ServedPrompt {
    ids: Vec<u32>,
    stream: u64,
    constraint: Option<ConstraintSource>,
}

/// What the first process asks of another one.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Complete these prompts.
    Complete {
        max_new_tokens: usize,
        prompts: Vec<ServedPrompt>,
    },
    /// Stop the completions in progress.
    Cancel,
    /// The evaluation is over.
    Done,
}

/// The answer to [`Request::Complete`]; `None` if a signal or a cancellation stopped the work.
type Reply = Option<Vec<Generation>>;

/// Prompts with everything that their completions depend on.
#[derive(Debug)]
pub struct ServedJobs<'a> {
    /// The prompts.
    pub jobs: Jobs<'a>,
    /// The grammar of each prompt, and the attempt.
    pub grammars: &'a [Option<(&'a FallbackGrammar, Option<Rewritten>)>],
}

impl ServedJobs<'_> {
    fn prompt(&self, i: usize) -> ServedPrompt {
        ServedPrompt {
            ids: self.jobs.prompts[i].clone(),
            stream: self.jobs.streams[i],
            constraint: self.grammars[i].map(|(grammar, rewritten)| ConstraintSource {
                grammar: grammar.source(),
                rewritten,
            }),
        }
    }
}

/// A generation that is divided among processes.
struct Division<'a, 'r> {
    ranks: &'a mut &'r mut Ranks,
    jobs: &'a ServedJobs<'a>,
    options: &'a GenerationOptions,
    /// Prompts that no process has yet, the next one last.
    waiting: Vec<usize>,
    /// The prompts of each process that computes.
    outstanding: BTreeMap<usize, Vec<usize>>,
    results: Vec<Option<Generation>>,
    n_tokens: usize,
    is_stopped: bool,
}

impl<'a> Served<'a> {
    /// The other processes, which must be in [`serve`] until [`Served::end`].
    pub fn new(ranks: &'a mut Ranks) -> Self {
        Self(RefCell::new(ranks))
    }

    /// Ends [`serve`] in all other processes.
    ///
    /// # Errors
    ///
    /// A process was lost.
    pub fn end(self) -> Result<(), Error> {
        let ranks = self.0.into_inner();
        for rank in 1..ranks.world_size() {
            ranks.send_to(rank, &to_bytes(&Request::Done))?;
        }
        Ok(())
    }
}

impl OtherProcesses for Served<'_> {
    fn complete(
        &self,
        decoder: &Decoder,
        jobs: &ServedJobs<'_>,
        options: &GenerationOptions,
        observer: &mut dyn Observer,
    ) -> Result<Option<Vec<Generation>>, Error> {
        let mut ranks = self.0.borrow_mut();
        let n = jobs.jobs.prompts.len();
        let mut division = Division {
            ranks: &mut ranks,
            jobs,
            options,
            waiting: (0..n).rev().collect(),
            outstanding: BTreeMap::new(),
            results: vec![None; n],
            n_tokens: 0,
            is_stopped: false,
        };
        let completed = division.run(decoder, observer);
        if !matches!(completed, Ok(true)) {
            division.cancel()?;
        }
        Ok(match completed? {
            true => division.results.into_iter().collect(),
            false => None,
        })
    }
}

impl Division<'_, '_> {
    /// Computes until all prompts have results; `false` if the work was stopped.
    fn run(&mut self, decoder: &Decoder, observer: &mut dyn Observer) -> Result<bool, Error> {
        let options = self.options;
        for rank in 1..self.ranks.world_size() {
            self.send_portion(rank)?;
        }
        loop {
            let own = self.take_portion();
            if own.is_empty() {
                break;
            }
            let all = self.jobs.jobs;
            let prompts: Vec<Vec<u32>> = own.iter().map(|&i| all.prompts[i].clone()).collect();
            let constraints: Vec<_> = own.iter().map(|&i| all.constraints[i].clone()).collect();
            let streams: Vec<u64> = own.iter().map(|&i| all.streams[i]).collect();
            let jobs = Jobs {
                prompts: &prompts,
                constraints: &constraints,
                streams: &streams,
                stop: all.stop,
            };
            let mut own_observer = OwnObserver {
                division: &mut *self,
                own: &own,
                observer: &mut *observer,
            };
            let generations = complete(decoder, jobs, options, &mut own_observer)?;
            let Some(generations) = generations.filter(|_| !self.is_stopped) else {
                return Ok(false);
            };
            for (i, generation) in own.into_iter().zip(generations) {
                self.n_tokens += generation.ids.len();
                self.results[i] = Some(generation);
            }
        }
        while !self.outstanding.is_empty() {
            if !self.collect(observer)? {
                std::thread::sleep(POLL);
            }
            if self.is_stopped || !observer.progress(self.progress(0)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take_portion(&mut self) -> Vec<usize> {
        let n = self.waiting.len();
        // Small last portions, so that no process waits long for another one.
        let share = n.div_ceil(self.ranks.world_size());
        let size = share.clamp(1, self.options.batch_size.max(1)).min(n);
        let mut portion = self.waiting.split_off(n - size);
        portion.reverse();
        portion
    }

    fn send_portion(&mut self, rank: usize) -> Result<(), Error> {
        let portion = self.take_portion();
        if portion.is_empty() {
            return Ok(());
        }
        let request = Request::Complete {
            max_new_tokens: self.options.max_new_tokens,
            prompts: portion.iter().map(|&i| self.jobs.prompt(i)).collect(),
        };
        self.ranks.send_to(rank, &to_bytes(&request))?;
        self.outstanding.insert(rank, portion);
        Ok(())
    }

    /// Takes the results that have arrived, and hands out further portions. Returns whether there
    /// were any.
    fn collect(&mut self, observer: &mut dyn Observer) -> Result<bool, Error> {
        let mut is_any = false;
        while let Some((rank, bytes)) = self.ranks.try_receive_any()? {
            is_any = true;
            let portion = self.outstanding.remove(&rank).unwrap_or_default();
            let Some(generations) = from_bytes::<Reply>(&bytes)? else {
                // A signal reached that process.
                self.is_stopped = true;
                continue;
            };
            for (i, generation) in portion.into_iter().zip(generations) {
                observer.on_finished(i, &generation)?;
                self.n_tokens += generation.ids.len();
                self.results[i] = Some(generation);
            }
            if !self.is_stopped {
                self.send_portion(rank)?;
            }
        }
        Ok(is_any)
    }

    /// Stops the other processes, and waits until they have.
    fn cancel(&mut self) -> Result<(), Error> {
        for &rank in self.outstanding.keys() {
            self.ranks.send_to(rank, &to_bytes(&Request::Cancel))?;
        }
        while !self.outstanding.is_empty() {
            let (rank, _) = self.ranks.receive_any()?;
            self.outstanding.remove(&rank);
        }
        Ok(())
    }

    fn progress(&self, n_own_tokens: usize) -> GenerationProgress {
        GenerationProgress {
            work: Work::Generating,
            n_done: self.results.iter().flatten().count(),
            n_total: self.results.len(),
            n_tokens: self.n_tokens + n_own_tokens,
            waiting: None,
        }
    }
}

/// Observes the own portion, and keeps the other processes busy after each token.
struct OwnObserver<'d, 'a, 'r> {
    division: &'d mut Division<'a, 'r>,
    /// The prompts of the portion.
    own: &'d [usize],
    observer: &'d mut dyn Observer,
}

impl Observer for OwnObserver<'_, '_, '_> {
    fn progress(&mut self, progress: GenerationProgress) -> bool {
        let mut all = self.division.progress(progress.n_tokens);
        all.n_done += progress.n_done;
        !self.division.is_stopped && self.observer.progress(all)
    }

    fn token(&mut self, prompt: usize, ids: &[u32]) -> Result<(), Error> {
        self.division.collect(self.observer)?;
        self.observer.token(self.own[prompt], ids)
    }

    fn on_finished(&mut self, prompt: usize, generation: &Generation) -> Result<(), Error> {
        self.observer.on_finished(self.own[prompt], generation)
    }
}

/// Completes prompts for the first process until [`Served::end`]. `is_interrupted` tells whether a
/// signal has arrived.
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
    let vocabulary = OnceCell::new();
    loop {
        let (max_new_tokens, prompts) = match from_bytes(&ranks.receive_from(0)?)? {
            Request::Done => return Ok(()),
            // It came after the answer was sent.
            Request::Cancel => continue,
            Request::Complete {
                max_new_tokens,
                prompts,
            } => (max_new_tokens, prompts),
        };
        let constraint = |source: ConstraintSource| {
            if vocabulary.get().is_none() {
                let new = Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids)?;
                let _ = vocabulary.set(new);
            }
            let compiled = vocabulary
                .get()
                .map(|vocabulary| source.grammar.compile(vocabulary));
            let grammar = compiled.transpose()?;
            Ok::<_, Error>(grammar.and_then(|grammar| grammar.constraint(source.rewritten)))
        };
        let (mut ids, mut streams, mut constraints) = (Vec::new(), Vec::new(), Vec::new());
        for prompt in prompts {
            ids.push(prompt.ids);
            streams.push(prompt.stream);
            constraints.push(prompt.constraint.map(constraint).transpose()?.flatten());
        }
        let jobs = Jobs {
            prompts: &ids,
            constraints: &constraints,
            streams: &streams,
            stop: Some(StopStrings {
                tokenizer: &base.tokenizer,
                strings: &options.stop_strings,
            }),
        };
        let options = GenerationOptions {
            max_new_tokens,
            ..options.clone()
        };
        let pulse = ranks.pulse();
        let mut lost = None;
        let mut watch = |_: GenerationProgress| {
            pulse.progress();
            match ranks.try_receive_any() {
                Ok(None) => !is_interrupted(),
                // Only a cancellation can come while the answer is due.
                Ok(Some(_)) => false,
                Err(error) => {
                    lost = Some(error);
                    false
                }
            }
        };
        let reply: Reply = complete(decoder, jobs, &options, &mut &mut watch)?;
        if let Some(error) = lost {
            return Err(error.into());
        }
        ranks.send_to(0, &to_bytes(&reply))?;
    }
}

/// A message as JSON.
pub(crate) fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages have text keys")
}

/// Reads [`to_bytes`].
///
/// # Errors
///
/// The bytes are no such message.
pub(crate) fn from_bytes<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|_| unreadable())
}

/// The error for a message of another program version, which the meeting refuses.
pub(crate) fn unreadable() -> Error {
    Error::Usage(
        "a message of another rank cannot be read; run the same tooltune build on all ranks"
            .to_owned(),
    )
}
