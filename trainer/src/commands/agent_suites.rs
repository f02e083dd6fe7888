//! `eval` of the suites whose queries are answered by calls: goat, restbench and apibank.
//!
//! Outcomes are written before a judge is asked, so that a judge that fails costs no generation:
//! `--predictions` goes on from there.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use tooltune_agents::Outcome;
use tooltune_agents::executors::Executor;
use tooltune_suites::goat::JudgeVerdict;

use super::evaluate::{generated, journal, retriever, say_by_file, write_files};
use super::{say, watching};
use crate::cli::EvalArgs;
use crate::config::Config;
use crate::encoder::documents::warn_of_cut_documents;
use crate::error::Error;
use crate::eval::agents::{
    AgentLoops, AgentScores, AgentSuite, JUDGE_FILE, Means, open_suite, read_outcomes,
};
use crate::eval::executor::open_executor;
use crate::eval::judge::{GOAT_JUDGE, Judge};
use crate::eval::report_files::json_lines;
use crate::rows::goat_config;

/// What one evaluation works with.
struct Evaluation<'a> {
    args: &'a EvalArgs,
    config: &'a Config,
    judge: Option<Judge>,
    /// Absent where nothing is generated.
    loops: Option<AgentLoops>,
    /// What answers the calls of the loops, and there with them.
    executor: Option<Box<dyn Executor>>,
}

pub(super) fn run(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    let mut config = config.of_agents(args.suite);
    if !args.target.data.is_empty() {
        config.data.eval.clone_from(&args.target.data);
    }
    let suite = open_suite(args.suite, &config)?;
    if let Some(remark) = suite.remark() {
        say(&remark)?;
    }
    let mut evaluation = Evaluation::open(args, &config, &*suite, device)?;
    let outcomes = evaluation.outcomes(&*suite, device)?;
    let verdicts = evaluation.verdicts(&*suite, &outcomes)?;
    let mut scores = suite.score(outcomes, verdicts.as_deref())?;
    if let Some(loops) = &evaluation.loops {
        suite.add_retrieval(&mut scores, loops)?;
    }
    evaluation.finish(scores, verdicts)
}

impl<'a> Evaluation<'a> {
    fn open(
        args: &'a EvalArgs,
        config: &'a Config,
        suite: &dyn AgentSuite,
        device: &Device,
    ) -> Result<Self, Error> {
        let judge = goat_config(config)?.judge.as_ref();
        let judge = judge
            .filter(|_| suite.has_answers())
            .map(|judge| Judge::open(GOAT_JUDGE, judge))
            .transpose()?;
        let (loops, executor) = match &args.predictions {
            Some(_) => (None, None),
            None => {
                // What is opened in no time comes before thousands of documents are embedded.
                let executor = open_executor(goat_config(config)?, suite.catalogue())?;
                let retriever = retriever(args, config, device)?;
                warn_of_cut_documents(suite.catalogue(), &retriever.files)?;
                let loops = AgentLoops::open(config, suite.catalogue(), retriever)?;
                (Some(loops), Some(executor))
            }
        };
        Ok(Self {
            args,
            config,
            judge,
            loops,
            executor,
        })
    }

    /// What became of the queries: read from a file, or made now.
    fn outcomes(&mut self, suite: &dyn AgentSuite, device: &Device) -> Result<Vec<Outcome>, Error> {
        let Some((loops, executor)) = self.loops.as_ref().zip(self.executor.as_mut()) else {
            let path = self.args.predictions.as_deref().unwrap_or(Path::new(""));
            let (outcomes, n_left) = read_outcomes(path, suite.tasks())?;
            if n_left > 0 {
                say(&format!(
                    "{n_left} predictions belong to no query and are left out"
                ))?;
            }
            return Ok(outcomes);
        };
        let n = suite.tasks().len();
        // Texts and results are kept under names that say what they follow from.
        let mut texts = journal(self.args, self.config, &[])?;
        generated(self.args, self.config, n, device, |generator, watch| {
            let means = Means {
                generator,
                executor: &mut **executor,
                journal: texts.as_mut(),
            };
            suite.outcomes(loops, means, watch)
        })
    }

    /// The judge's verdicts, if there is a judge.
    fn verdicts(
        &self,
        suite: &dyn AgentSuite,
        outcomes: &[Outcome],
    ) -> Result<Option<Vec<JudgeVerdict>>, Error> {
        let Some(judge) = &self.judge else {
            return Ok(None);
        };
        let mut files = suite.score(outcomes.to_vec(), None)?.files()?;
        files.remove("metrics.json");
        write_files(self.args, &files)?;
        let judged = watching(outcomes.len(), |watch| {
            judge.judge(suite.tasks(), outcomes, watch)
        })?;
        let Some(failure) = judged.failure else {
            return Ok(Some(judged.verdicts));
        };
        let lines = json_lines(&judged.verdicts)?;
        write_files(
            self.args,
            &BTreeMap::from([(JUDGE_FILE.to_string(), lines)]),
        )?;
        Err(match (&self.args.output, failure) {
            (Some(output), Error::Judge(message)) => Error::Judge(format!(
                "{message}; the outcomes are kept: go on with --predictions {}",
                output.join("predictions.jsonl").display()
            )),
            (_, failure) => failure,
        })
    }

    /// Writes and shows what came of it.
    fn finish(
        &self,
        mut scores: AgentScores,
        verdicts: Option<Vec<JudgeVerdict>>,
    ) -> Result<(), Error> {
        if let (Some(judge), Some(verdicts)) = (&self.judge, verdicts) {
            judge.add_to(&mut scores, verdicts)?;
        }
        write_files(self.args, &scores.files()?)?;
        let name = match &self.args.predictions {
            Some(_) => "predictions",
            None => &self.args.target.checkpoint,
        };
        say(&scores.table.replace("| this run |", &format!("| {name} |")))?;
        say_by_file(scores.by_file.as_ref())?;
        let Some((judge, verdicts)) = self.judge.as_ref().zip(scores.verdicts.as_ref()) else {
            return Ok(());
        };
        say(&judge.summary(verdicts).line("queries", "unsolved"))
    }
}
