//! The suites of a run's evaluations, opened before anything is read for training: a file, an
//! executor or a judge that will not do is found then, and not at the first evaluation.

use super::agents_in_loop::AgentsInLoop;
use super::nestful::NestfulSuite;
use super::retrieval::RetrievalSuite;
use super::toolqa::ToolQaSuite;
use crate::config::{Config, EvalStrategy, Suite};
use crate::error::Error;

/// What suites read and reach outside; that of slot is in the rows.
#[derive(Debug, Default)]
pub struct LoadedSuites {
    /// The suites of agents.
    pub agents: Vec<AgentsInLoop>,
    /// EvalTarget where rankings are evaluated.
    pub retrieval: Option<RetrievalSuite>,
    /// EvalTarget where sequences of calls are evaluated.
    pub nestful: Option<NestfulSuite>,
    /// EvalTarget where answers about outputs of tools are evaluated.
    pub toolqa: Option<ToolQaSuite>,
}

impl LoadedSuites {
    /// Opens those that the run evaluates.
    ///
    /// # Errors
    ///
    /// As the suites.
    pub fn open(config: &Config) -> Result<Self, Error> {
        if config.eval.eval_strategy == EvalStrategy::No {
            return Ok(Self::default());
        }
        let asks = |suite: Suite| config.eval.suites.contains(&suite);
        let suites = config.eval.suites.iter().copied();
        let agents = suites
            .filter(|suite| suite.needs().agents)
            .map(|suite| AgentsInLoop::open(suite, config))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            agents,
            retrieval: match asks(Suite::Retrieval) {
                true => Some(RetrievalSuite::open(config)?),
                false => None,
            },
            nestful: match asks(Suite::Nestful) {
                true => Some(nestful(config)?),
                false => None,
            },
            toolqa: match asks(Suite::Toolqa) {
                true => Some(toolqa(config)?),
                false => None,
            },
        })
    }

    /// The suites by their names, with how many queries each has.
    pub fn sizes(&self) -> Vec<(&'static str, usize)> {
        let agents = self.agents.iter();
        let mut sizes: Vec<(&'static str, usize)> = agents
            .map(|suite| (suite.name(), suite.n_queries()))
            .collect();
        let retrieval = self.retrieval.as_ref();
        sizes.extend(retrieval.map(|suite| ("retrieval", suite.queries().len())));
        sizes.extend(
            self.nestful
                .as_ref()
                .map(|suite| ("nestful", suite.n_rows())),
        );
        sizes.extend(self.toolqa.as_ref().map(|suite| ("toolqa", suite.n_rows())));
        sizes
    }
}

fn nestful(config: &Config) -> Result<NestfulSuite, Error> {
    let suite = config.eval.nestful.clone().unwrap_or_default();
    NestfulSuite::open(&suite, &config.eval, &suite.data)
}

fn toolqa(config: &Config) -> Result<ToolQaSuite, Error> {
    let mut suite = config.eval.toolqa.clone().unwrap_or_default();
    suite.judge = suite.judge.filter(|judge| judge.in_loop);
    ToolQaSuite::open(&suite, &config.eval, &suite.data)
}
