//! A suite of agents within a training run: queries, executor and judge, opened once.

use super::agents::{AgentLoops, AgentScores, AgentSuite, Means, open_suite};
use super::executor::open_executor;
use super::generate::GenerationProgress;
use super::generator::Generator;
use super::judge::{GOAT_JUDGE, Judge, Judged};
use crate::config::{Config, Suite};
use crate::encoder::documents::warn_of_cut_documents;
use crate::encoder::{EncoderFiles, MiniLmEncoder};
use crate::error::Error;
use crate::rows::goat_config;

/// A suite of agents within a training run.
#[derive(Debug)]
pub struct AgentsInLoop {
    suite: Box<dyn AgentSuite>,
    config: Config,
    judge: Option<Judge>,
}

impl AgentsInLoop {
    /// Opens everything that the evaluations will need but a retriever, so that a mistake ends the
    /// run before it begins.
    ///
    /// # Errors
    ///
    /// As [`open_suite`], or an executor or judge that cannot be opened.
    pub fn open(suite: Suite, config: &Config) -> Result<Self, Error> {
        let config = config.of_agents(suite);
        let suite = open_suite(suite, &config)?;
        if let Some(remark) = suite.remark() {
            tracing::warn!("{}: {remark}", suite.name());
        }
        if let Some(retriever) = &config.retriever {
            warn_of_cut_documents(suite.catalogue(), &EncoderFiles::of_retriever(retriever)?)?;
        }
        let goat = goat_config(&config)?;
        open_executor(goat, suite.catalogue())?;
        let judge = goat.judge.as_ref();
        let judge = judge.filter(|judge| judge.in_loop && suite.has_answers());
        Ok(Self {
            judge: judge
                .map(|judge| Judge::open(GOAT_JUDGE, judge))
                .transpose()?,
            suite,
            config,
        })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.suite.name()
    }

    /// How many queries it has.
    pub fn n_queries(&self) -> usize {
        self.suite.tasks().len()
    }

    /// Its loops, whose documents `retriever` ranks.
    ///
    /// # Errors
    ///
    /// As [`AgentLoops::open`].
    pub fn loops(&self, retriever: &MiniLmEncoder) -> Result<AgentLoops, Error> {
        AgentLoops::open(&self.config, self.suite.catalogue(), retriever.clone())
    }

    /// Runs and scores a loop for each query; `None` if `watch` ended it.
    ///
    /// # Errors
    ///
    /// A prompt that the template refuses, a query without gold calls, or a judge that fails.
    pub fn evaluate(
        &self,
        generator: Generator<'_>,
        loops: &AgentLoops,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<AgentScores>, Error> {
        let catalogue = self.suite.catalogue();
        let mut executor = open_executor(goat_config(&self.config)?, catalogue)?;
        let means = Means {
            generator,
            executor: &mut *executor,
            journal: None,
        };
        let outcomes = self.suite.outcomes(loops, means, watch)?;
        let Some(outcomes) = outcomes else {
            return Ok(None);
        };
        let judged = self
            .judge
            .as_ref()
            .map(|judge| judge.judge(self.suite.tasks(), &outcomes, watch));
        let verdicts = match judged {
            None => None,
            Some(Judged {
                failure: Some(Error::Stopped),
                ..
            }) => return Ok(None),
            Some(Judged {
                failure: Some(failure),
                ..
            }) => return Err(failure),
            Some(Judged { verdicts, .. }) => Some(verdicts),
        };
        let mut scores = self.suite.score(outcomes, verdicts.as_deref())?;
        self.suite.add_retrieval(&mut scores, loops)?;
        if let (Some(judge), Some(verdicts)) = (&self.judge, verdicts) {
            judge.add_to(&mut scores, verdicts)?;
        }
        Ok(Some(scores))
    }
}
