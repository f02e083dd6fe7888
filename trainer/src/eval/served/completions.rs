//! Divides completions: each process decodes a batch, and gets another prompt for each completion.

use std::collections::{BTreeSet, VecDeque};

use tooltune_ranks::Ranks;

use super::messages::{ConstraintSource, Reply, Request, ServedPrompt};
use super::{ServedJobs, from_bytes, to_bytes, unreadable, wait_for_work};
use crate::error::Error;
use crate::eval::generate::{
    Generation, GenerationOptions, GenerationProgress, Jobs, JoiningPrompt, Observer, Work,
    complete,
};
use crate::models::Decoder;

/// Completions that are divided among processes.
pub(super) struct CompletionDivision<'d> {
    ranks: &'d mut Ranks,
    jobs: &'d ServedJobs<'d>,
    options: &'d GenerationOptions,
    observer: &'d mut dyn Observer,
    /// Prompts that no process has yet, the shortest first.
    waiting: VecDeque<usize>,
    /// The prompts that this process has, in the order in which they joined.
    own: Vec<usize>,
    /// The unfinished prompts of each other process, by its rank minus 1.
    outstanding: Vec<BTreeSet<usize>>,
    results: Vec<Option<Generation>>,
    n_done: usize,
    /// Tokens of the other processes.
    n_tokens: usize,
    is_stopped: bool,
}

impl<'d> CompletionDivision<'d> {
    pub(super) fn new(
        ranks: &'d mut Ranks,
        jobs: &'d ServedJobs<'d>,
        options: &'d GenerationOptions,
        observer: &'d mut dyn Observer,
    ) -> Self {
        let prompts = jobs.jobs.prompts;
        let mut waiting: Vec<usize> = (0..prompts.len()).collect();
        waiting.sort_by_key(|&i| (prompts[i].len(), i));
        Self {
            outstanding: vec![BTreeSet::new(); ranks.world_size() - 1],
            ranks,
            jobs,
            options,
            observer,
            waiting: waiting.into(),
            own: Vec::new(),
            results: vec![None; prompts.len()],
            n_done: 0,
            n_tokens: 0,
            is_stopped: false,
        }
    }

    /// Computes until all prompts have results; `false` if the work was stopped.
    pub(super) fn run(&mut self, decoder: &Decoder) -> Result<bool, Error> {
        self.fill_batches()?;
        let nothing = Jobs {
            prompts: &[],
            constraints: &[],
            streams: &[],
            stop: self.jobs.jobs.stop,
        };
        let own = complete(decoder, nothing, self.options, self)?;
        if own.is_none() {
            return Ok(false);
        }
        let n_own_tokens = own.iter().flatten().map(|own| own.ids.len()).sum();
        while self.n_done < self.results.len() {
            if !self.collect()? {
                wait_for_work(decoder)?;
            }
            let progress = self.all_progress(n_own_tokens);
            if self.is_stopped || !self.observer.progress(progress) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The result of each prompt; `None` if one is missing.
    pub(super) fn into_results(self) -> Option<Vec<Generation>> {
        self.results.into_iter().collect()
    }

    /// Sends the first prompts to the other processes: equal numbers of all lengths, at most a
    /// batch for each process. This process takes its prompts from the front of the queue.
    fn fill_batches(&mut self) -> Result<(), Error> {
        let n_processes = self.ranks.world_size();
        let most = n_processes.saturating_mul(self.options.batch_size.max(1));
        let first = self.waiting.len().min(most);
        let first: Vec<usize> = self.waiting.drain(..first).collect();
        let dealt = |process: usize| first.iter().copied().skip(process).step_by(n_processes);
        // The own process gets the last share, which is the smallest: it also scores.
        for rank in 1..n_processes {
            self.send(rank, dealt(rank - 1).collect())?;
        }
        let own: Vec<usize> = dealt(n_processes - 1).collect();
        for number in own.into_iter().rev() {
            self.waiting.push_front(number);
        }
        Ok(())
    }

    fn send(&mut self, rank: usize, numbers: Vec<usize>) -> Result<(), Error> {
        if numbers.is_empty() {
            return Ok(());
        }
        let (jobs, grammars) = (&self.jobs.jobs, self.jobs.grammars);
        let prompts = numbers.iter().map(|&i| ServedPrompt {
            number: i,
            ids: jobs.prompts[i].clone(),
            stream: jobs.streams[i],
            constraint: grammars[i].map(|(grammar, rewritten)| ConstraintSource {
                grammar: grammar.source(),
                rewritten,
            }),
        });
        let request = Request::Complete {
            max_new_tokens: self.options.max_new_tokens,
            prompts: prompts.collect(),
        };
        self.ranks.send_to(rank, &to_bytes(&request))?;
        self.outstanding[rank - 1].extend(numbers);
        Ok(())
    }

    /// Takes the results that have arrived, and sends a further prompt for each. Returns whether
    /// there were any.
    fn collect(&mut self) -> Result<bool, Error> {
        let mut n_completed = vec![0; self.outstanding.len()];
        while let Some((rank, bytes)) = self.ranks.try_receive_any()? {
            match from_bytes::<Reply>(&bytes)? {
                Reply::Completed { number, generation } => {
                    if !self.outstanding[rank - 1].remove(&number) {
                        return Err(unreadable());
                    }
                    self.n_tokens += generation.ids.len();
                    self.record(number, generation)?;
                    n_completed[rank - 1] += 1;
                }
                Reply::Interrupted => self.is_stopped = true,
                Reply::Losses { .. } | Reply::Cancelled => return Err(unreadable()),
            }
        }
        for (i, &n) in n_completed.iter().enumerate() {
            let n = if self.is_stopped { 0 } else { n };
            let next = self.waiting.drain(..self.waiting.len().min(n)).collect();
            self.send(i + 1, next)?;
        }
        Ok(n_completed.iter().any(|&n| n > 0))
    }

    fn record(&mut self, number: usize, generation: Generation) -> Result<(), Error> {
        self.observer.on_finished(number, &generation)?;
        self.results[number] = Some(generation);
        self.n_done += 1;
        Ok(())
    }

    fn all_progress(&self, n_own_tokens: usize) -> GenerationProgress {
        GenerationProgress {
            work: Work::Generating,
            n_done: self.n_done,
            n_total: self.results.len(),
            n_tokens: self.n_tokens + n_own_tokens,
            waiting: None,
        }
    }
}

/// Observes the own prompts, and keeps the other processes busy after each token.
impl Observer for CompletionDivision<'_> {
    fn joining(&mut self, room: usize) -> Result<Vec<JoiningPrompt>, Error> {
        let jobs = &self.jobs.jobs;
        let numbers = self.waiting.drain(..room.min(self.waiting.len()));
        let numbers: Vec<usize> = numbers.collect();
        let prompts = numbers.iter().map(|&i| JoiningPrompt {
            ids: jobs.prompts[i].clone(),
            constraint: jobs.constraints[i].clone(),
            stream: jobs.streams[i],
        });
        let prompts = prompts.collect();
        self.own.extend(numbers);
        Ok(prompts)
    }

    fn progress(&mut self, progress: GenerationProgress) -> bool {
        let all = self.all_progress(progress.n_tokens);
        !self.is_stopped && self.observer.progress(all)
    }

    fn token(&mut self, prompt: usize, ids: &[u32]) -> Result<(), Error> {
        self.collect()?;
        self.observer.token(self.own[prompt], ids)
    }

    fn on_finished(&mut self, prompt: usize, generation: &Generation) -> Result<(), Error> {
        self.record(self.own[prompt], generation.clone())
    }
}
