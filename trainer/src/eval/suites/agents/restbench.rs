//! The `restbench` suite: agents answer queries with paths of endpoint calls.

use serde::Serialize;
use tooltune_agents::Outcome;
use tooltune_apis::{ApiCatalogue, GoldPath, import_restbench};
use tooltune_suites::JudgeVerdict;
use tooltune_suites::goat::{
    Endpoints, RESTBENCH, RestBenchReport, RestBenchScore, restbench_table,
};

use super::{AgentBenchmark, AgentScores, AgentTask};
use crate::config::{Config, Suite};
use crate::error::Error;
use crate::eval::by_file::SampleFiles;
use crate::eval::report_files::json_value;
use crate::eval::suites::{eval_files, named_means};
use crate::rows::goat_options;

/// Queries with reference paths, and the documents of all endpoints.
#[derive(Debug)]
pub(super) struct RestBenchBenchmark {
    catalogue: ApiCatalogue,
    endpoints: Endpoints,
    paths: Vec<GoldPath>,
    tasks: Vec<AgentTask>,
    files: SampleFiles,
}

/// The result of one query; a line of `predictions.jsonl`.
#[derive(Debug, Serialize)]
struct RestBenchPrediction<'a> {
    id: &'a str,
    query: &'a str,
    gold: Vec<&'a str>,
    outcome: Outcome,
    score: RestBenchScore,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

impl RestBenchBenchmark {
    /// Reads the documents and up to `eval.max_samples` queries of `data.eval`.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is not in RestBench's layout, or no file is given.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let catalogue = ApiCatalogue::read(&goat_options(config)?.documents)?;
        let mut paths = Vec::new();
        let mut files = SampleFiles::default();
        for file in eval_files(config)? {
            let file_paths = import_restbench(file, &catalogue)?;
            files.add(file, file_paths.len());
            paths.extend(file_paths);
        }
        let limit = config.eval.max_samples.unwrap_or(usize::MAX);
        paths.truncate(limit);
        files.truncate(limit);
        let names: Vec<String> = catalogue.iter().map(|api| api.call_name()).collect();
        let task = |path: &GoldPath| AgentTask {
            id: path.id.clone(),
            query: path.query.clone(),
        };
        Ok(Self {
            endpoints: Endpoints::new(&names),
            tasks: paths.iter().map(task).collect(),
            catalogue,
            paths,
            files,
        })
    }

    /// Reference calls without a document.
    fn unknown_calls(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .paths
            .iter()
            .flat_map(|path| path.unknown_calls(&self.catalogue))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl AgentBenchmark for RestBenchBenchmark {
    fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn tasks(&self) -> &[AgentTask] {
        &self.tasks
    }

    fn remark(&self) -> Option<String> {
        let unknown = self.unknown_calls();
        (!unknown.is_empty()).then(|| {
            format!(
                "these reference calls have no document, so their queries cannot be solved: {}",
                unknown.join(", ")
            )
        })
    }

    fn score(
        &self,
        outcomes: Vec<Outcome>,
        verdicts: Option<&[JudgeVerdict]>,
    ) -> Result<AgentScores, Error> {
        let mut scores = Vec::new();
        let mut predictions = Vec::new();
        for (i, (path, outcome)) in self.paths.iter().zip(outcomes).enumerate() {
            let gold: Vec<&str> = path.calls.iter().map(|call| call.name.as_str()).collect();
            let success = verdicts.map(|verdicts| verdicts[i].is_solved());
            let score = RestBenchScore::from_outcome(&outcome, &gold, success, &self.endpoints)?;
            scores.push(score);
            predictions.push(json_value(&RestBenchPrediction {
                id: &path.id,
                query: &path.query,
                gold,
                outcome,
                score,
                file: self.files.file_of(i),
            })?);
        }
        let report = RestBenchReport::new(&scores)?;
        let golds = self.paths.iter().map(|path| {
            let gold: Vec<&str> = path.calls.iter().map(|call| call.name.as_str()).collect();
            RestBenchScore::from_gold(&gold, &self.endpoints)
        });
        let golds = RestBenchReport::new(&golds.collect::<Result<Vec<_>, _>>()?)?;
        Ok(AgentScores {
            ceilings: RESTBENCH.ceilings(|name| golds.value(name)),
            metrics: named_means(
                Suite::from_info(&RESTBENCH),
                &RestBenchReport::NAMES,
                |name| report.value(name),
            ),
            verdicts: None,
            table: restbench_table(&[("this run", &report)]),
            by_file: self
                .files
                .measure_by_file(RestBenchReport::NAMES, |range| {
                    let report = RestBenchReport::new(&scores[range])?;
                    Ok(RestBenchReport::NAMES.map(|name| report.value(name)))
                })?,
            report: [("restbench", json_value(&report)?)].into(),
            predictions,
        })
    }
}
