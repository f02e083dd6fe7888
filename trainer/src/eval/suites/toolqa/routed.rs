//! The setting `routed`: the model first names the type of each question, which decides between an
//! answer and code.

use std::path::Path;

use tooltune_suites::toolqa::{
    Routes, SUITE, Setting, TaskType, ToolQaError, ToolQaPrediction, ToolQaRow,
};
use tooltune_template::Conversation;

use super::ToolQaSuite;
use crate::config::Suite;
use crate::error::Error;
use crate::eval::generator::{GenerationRequest, PromptText, Rounds};
use crate::eval::suites::prompt_suite::{
    Answer, PromptSettings, PromptSuite, Scoring, score_saved, unless_stopped,
};
use crate::eval::suites::{EvalContext, LoadedSuite, SuiteResult};

/// Questions that are classified before they are answered.
#[derive(Debug)]
pub(super) struct RoutedSuite {
    suite: ToolQaSuite,
    routes: Routes,
    settings: PromptSettings,
    /// The prompts that ask for the type of each question.
    classifier_prompts: Vec<Conversation>,
}

impl RoutedSuite {
    /// Builds the classifier's prompts and wraps the suite for evaluations.
    ///
    /// # Errors
    ///
    /// A schema is missing, or a row lacks the keys of its projection.
    pub(super) fn into_loaded(
        suite: ToolQaSuite,
        routes: Routes,
        settings: PromptSettings,
    ) -> Result<Box<dyn LoadedSuite>, Error> {
        let prompts = suite
            .rows
            .iter()
            .map(|row| suite.classifier_conversation(row));
        Ok(Box::new(Self {
            classifier_prompts: prompts.collect::<Result<_, ToolQaError>>()?,
            suite,
            routes,
            settings,
        }))
    }

    fn requests<'a>(&'a self, prompts: &'a [Conversation]) -> Vec<GenerationRequest<'a>> {
        let rows = self.suite.rows.iter().zip(prompts);
        let request = |(row, prompt): (&'a ToolQaRow, &'a Conversation)| GenerationRequest {
            id: &row.uid,
            text: PromptText::Chat(prompt),
            max_new_tokens: self.settings.max_new_tokens,
            constraint: None,
        };
        rows.map(request).collect()
    }
}

impl LoadedSuite for RoutedSuite {
    fn suite(&self) -> Suite {
        Suite::from_info(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.suite.rows.len()
    }

    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        Ok(self.requests(&self.classifier_prompts))
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let EvalContext {
            mut journal,
            keep,
            watch,
            ..
        } = context;
        let mut rounds = Rounds::new(self.n_samples());
        let requests = self.requests(&self.classifier_prompts);
        let types = rounds.write(&generator, &requests, 0, journal.as_deref_mut(), watch)?;
        let Some(types) = types else {
            return Ok(None);
        };
        let settings: Vec<Setting> = types
            .iter()
            .map(|completion| self.routes.setting(TaskType::from_output(&completion.text)))
            .collect();
        let rows = self.suite.rows.iter().zip(&settings);
        let prompts = rows.map(|(row, setting)| self.suite.conversation(row, *setting));
        let prompts: Vec<Conversation> = prompts.collect::<Result<_, ToolQaError>>()?;
        let requests = self.requests(&prompts);
        let Some(texts) = rounds.write(&generator, &requests, 0, journal, watch)? else {
            return Ok(None);
        };
        let predictions = self.suite.rows.iter().zip(texts).zip(types).zip(settings);
        let predictions: Vec<ToolQaPrediction> = predictions
            .map(
                |(((row, completion), classified), setting)| ToolQaPrediction {
                    setting: Some(setting),
                    classifier_output: Some(classified.text),
                    ..ToolQaPrediction::from_completion(&row.uid, completion)
                },
            )
            .collect();
        let scoring = Scoring {
            unsupported: None,
            keep,
            watch,
        };
        unless_stopped(self.suite.score(predictions, scoring))
    }

    fn score_saved(
        &self,
        path: &Path,
        context: EvalContext<'_>,
    ) -> Result<Option<SuiteResult>, Error> {
        score_saved(&self.suite, self.settings.is_limited, path, context)
    }
}
