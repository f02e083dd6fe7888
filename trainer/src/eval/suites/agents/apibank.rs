//! The `apibank` suite: agent loops for level-3 samples, single turns for dialogues of levels 1 and
//! 2.
//!
//! A file that begins with `[` has level-3 samples; any other file has dialogues. The decision to
//! question: an evaluation covers only one kind, because their rates mean different things.

use std::path::Path;

use serde::Serialize;
use tooltune_agents::{ExampleKind, Outcome, dialogue_outcome, dialogue_prompt};
use tooltune_apis::{
    ApiCatalogue, DialogueGold, DialogueStep, GoldCall, import_apibank_dialogues,
    import_apibank_level3, read_text,
};
use tooltune_suites::JudgeVerdict;
use tooltune_suites::goat::{
    APIBANK, ApiBankReport, ApiBankScore, api_bank_table, outcome_leaf_errors,
};
use tooltune_suites::leaf_errors::LeafErrors;

use super::report::with_leaf_errors;
use super::{AgentBenchmark, AgentLoops, AgentScores, AgentTask, Means};
use crate::config::{Config, Suite};
use crate::error::Error;
use crate::eval::by_file::SampleFiles;
use crate::eval::generator::{GenerationRequest, PromptText};
use crate::eval::report_files::json_value;
use crate::eval::suites::{eval_files, named_means};
use crate::rows::goat_options;
use tooltune_terminal::GenerationProgress;

/// Samples with recorded calls and answers, and the documents of all APIs.
#[derive(Debug)]
pub(super) struct ApiBankBenchmark {
    catalogue: ApiCatalogue,
    tasks: Vec<AgentTask>,
    golds: Vec<Gold>,
    /// The dialogue steps that the tasks come from; empty for level 3.
    steps: Vec<DialogueStep>,
    files: SampleFiles,
}

/// The reference, with the field names of outcomes.
#[derive(Debug, Serialize)]
struct Gold {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<GoldCall>,
    #[serde(skip_serializing_if = "String::is_empty")]
    response: String,
}

/// The result of one sample; a line of `predictions.jsonl`.
#[derive(Debug, Serialize)]
struct ApiBankPrediction<'a> {
    id: &'a str,
    query: &'a str,
    gold: &'a Gold,
    leaf_errors: &'a LeafErrors,
    outcome: Outcome,
    score: ApiBankScore,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

impl ApiBankBenchmark {
    /// Reads the documents and up to `eval.max_samples` samples of `data.eval`.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is not in API-Bank's layout, both kinds of files are given, or no
    /// file is given.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let catalogue = ApiCatalogue::read(&goat_options(config)?.documents)?;
        let mut suite = Self {
            catalogue,
            tasks: Vec::new(),
            golds: Vec::new(),
            steps: Vec::new(),
            files: SampleFiles::default(),
        };
        for file in eval_files(config)? {
            let n_before = suite.tasks.len();
            if is_level_3(file)? {
                suite.add_level_3(file)?
            } else {
                suite.add_dialogues(file)?
            }
            suite.files.add(file, suite.tasks.len() - n_before);
        }
        if !suite.steps.is_empty() && suite.steps.len() < suite.tasks.len() {
            return Err(Error::Usage(
                "data.eval has both level-3 samples and dialogues of levels 1 and 2; evaluate them \
                 separately with --data"
                    .to_string(),
            ));
        }
        let limit = config.eval.max_samples.unwrap_or(usize::MAX);
        suite.tasks.truncate(limit);
        suite.golds.truncate(limit);
        suite.steps.truncate(limit);
        suite.files.truncate(limit);
        Ok(suite)
    }

    /// Reference calls whose arguments do not match the document of their API, as messages with the
    /// sample and the mismatch. Also returns the number of all reference calls.
    ///
    /// Some published samples have such calls: one cancels a switch by `device_id` although the
    /// document requires `name`.
    fn mismatched_calls(&self) -> (Vec<String>, usize) {
        let mut misfits = Vec::new();
        let mut n_calls = 0;
        for (task, gold) in self.tasks.iter().zip(&self.golds) {
            for (i, call) in gold.calls.iter().enumerate() {
                n_calls += 1;
                let document = self.catalogue.get(&call.name);
                let (Some(document), Some(arguments)) = (document, &call.arguments) else {
                    continue;
                };
                let field = format!("calls[{i}].arguments");
                if let Err(error) = document.check_arguments(arguments, &field) {
                    misfits.push(error.at(&task.id).to_string());
                }
            }
        }
        (misfits, n_calls)
    }

    fn add_level_3(&mut self, file: &Path) -> Result<(), Error> {
        for path in import_apibank_level3(file)? {
            self.tasks.push(AgentTask {
                id: path.id,
                query: path.query,
            });
            self.golds.push(Gold {
                calls: path.calls,
                response: path.response,
            });
        }
        Ok(())
    }

    fn add_dialogues(&mut self, file: &Path) -> Result<(), Error> {
        for step in import_apibank_dialogues(file, &self.catalogue)? {
            self.tasks.push(AgentTask {
                id: step.id.clone(),
                query: step.query().to_string(),
            });
            self.golds.push(match &step.gold {
                DialogueGold::Call(call) => Gold {
                    calls: vec![call.clone()],
                    response: String::new(),
                },
                DialogueGold::Reply(text) => Gold {
                    calls: Vec::new(),
                    response: text.clone(),
                },
            });
            self.steps.push(step);
        }
        Ok(())
    }
}

fn is_level_3(file: &Path) -> Result<bool, Error> {
    Ok(read_text(file)?.trim_start().starts_with('['))
}

impl AgentBenchmark for ApiBankBenchmark {
    fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    fn tasks(&self) -> &[AgentTask] {
        &self.tasks
    }

    /// Reports reference calls that contradict the benchmark's own documents. They are scored
    /// unchanged.
    fn remark(&self) -> Option<String> {
        let (misfits, n_calls) = self.mismatched_calls();
        let first = misfits.first()?;
        Some(format!(
            "{} of {n_calls} reference calls do not match the documents of their APIs; they are \
             scored unchanged; the first one: {first}",
            misfits.len()
        ))
    }

    /// Single steps of a dialogue have no answer that a judge could rate.
    fn has_answers(&self) -> bool {
        self.steps.is_empty()
    }

    fn outcomes(
        &self,
        loops: &AgentLoops,
        means: Means<'_>,
        watch: &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<Vec<Outcome>>, Error> {
        if self.steps.is_empty() {
            return loops.run(&self.catalogue, &self.tasks, means, watch);
        }
        let Means {
            generator,
            executor,
            journal,
        } = means;
        let limits = loops.limits();
        let conversations: Vec<_> = self
            .steps
            .iter()
            .map(|step| dialogue_prompt(step, &self.catalogue, limits))
            .collect();
        let prompted = |(step, conversation)| {
            let step: &DialogueStep = step;
            let kind = match step.gold {
                DialogueGold::Call(_) => ExampleKind::Call,
                DialogueGold::Reply(_) => ExampleKind::Final,
            };
            GenerationRequest {
                id: &step.id,
                text: PromptText::Chat(conversation),
                max_new_tokens: limits.max_new_tokens(kind),
                constraint: None,
            }
        };
        let prompts: Vec<_> = self
            .steps
            .iter()
            .zip(&conversations)
            .map(prompted)
            .collect();
        let Some(texts) = generator.write(&prompts, journal, watch)? else {
            return Ok(None);
        };
        let outcomes = self.steps.iter().zip(&texts).map(|(step, completion)| {
            let text = &completion.text;
            let outcome = dialogue_outcome(step, loops.method(), text, &self.catalogue, executor);
            Outcome {
                texts: vec![completion.end()],
                ..outcome
            }
        });
        Ok(Some(outcomes.collect()))
    }

    fn score(
        &self,
        outcomes: Vec<Outcome>,
        verdicts: Option<&[JudgeVerdict]>,
    ) -> Result<AgentScores, Error> {
        let mut scores = Vec::new();
        let mut predictions = Vec::new();
        let mut all_leaf_errors = Vec::new();
        let samples = self.tasks.iter().zip(&self.golds).zip(outcomes);
        for (i, ((task, gold), outcome)) in samples.enumerate() {
            let success = verdicts.map(|verdicts| verdicts[i].is_solved());
            let score = ApiBankScore::from_outcome(&outcome, &gold.calls, &gold.response, success);
            scores.push(score);
            let leaf_errors = outcome_leaf_errors(&outcome, &gold.calls);
            predictions.push(json_value(&ApiBankPrediction {
                id: &task.id,
                query: &task.query,
                gold,
                leaf_errors: &leaf_errors,
                outcome,
                score,
                file: self.files.file_of(i),
            })?);
            all_leaf_errors.push(leaf_errors);
        }
        let report = ApiBankReport::new(&scores)?;
        let golds = self.golds.iter();
        let golds = golds.map(|gold| ApiBankScore::from_gold(&gold.calls, &gold.response));
        let golds = ApiBankReport::new(&golds.collect::<Vec<_>>())?;
        Ok(AgentScores {
            ceilings: APIBANK.ceilings(|name| golds.value(name)),
            metrics: named_means(Suite::from_info(&APIBANK), &ApiBankReport::NAMES, |name| {
                report.value(name)
            }),
            verdicts: None,
            table: api_bank_table(&[("this run", &report)]),
            by_file: self.files.measure_by_file(ApiBankReport::NAMES, |range| {
                let report = ApiBankReport::new(&scores[range])?;
                Ok(ApiBankReport::NAMES.map(|name| report.value(name)))
            })?,
            report: with_leaf_errors(
                ("apibank", json_value(&report)?),
                self.tasks
                    .iter()
                    .map(|task| task.id.as_str())
                    .zip(&all_leaf_errors),
            )?,
            predictions,
        })
    }
}
