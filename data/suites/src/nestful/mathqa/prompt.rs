//! The prompt and the completion of a row, as the suite nestful asks for it and parses it.

use super::super::error::NestfulError;
use super::super::prompts::{NestfulPrompt, PromptOptions, PromptSet};
use super::super::row::NestfulRow;
use super::super::templates::built_in_families;
use serde::Serialize;

/// Which built-in prompt of the suite nestful to use.
#[derive(Debug, Clone)]
pub struct RowPrompt {
    set: PromptSet,
    family: String,
    options: PromptOptions,
}

/// A row for training, in the format `prompt-completion`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromptCompletion {
    /// The prompt of the suite.
    pub prompt: String,
    /// The gold calls, in the notation that the prompt asks for.
    pub completion: String,
}

impl RowPrompt {
    /// The prompt of a family with its first `n_examples` examples; by default the first family, and
    /// the number of examples of [`PromptOptions`].
    pub fn new(family: Option<&str>, n_examples: Option<usize>) -> Self {
        let family = family.or_else(|| built_in_families().next());
        let defaults = PromptOptions::default();
        Self {
            set: PromptSet::built_in(),
            family: family.unwrap_or_default().to_owned(),
            options: PromptOptions {
                n_examples: n_examples.unwrap_or(defaults.n_examples),
                ..defaults
            },
        }
    }

    /// Names of the functions that the examples call.
    ///
    /// # Errors
    ///
    /// There are fewer examples.
    pub(super) fn example_tools(&self) -> Result<Vec<&str>, NestfulError> {
        let examples = self.set.first_examples(self.options.n_examples)?;
        Ok(examples
            .iter()
            .flat_map(|example| example.called_names())
            .collect())
    }

    /// The text of the prompt.
    ///
    /// # Errors
    ///
    /// The family is unknown, or there are fewer examples.
    pub(super) fn text(&self, row: &NestfulRow) -> Result<String, NestfulError> {
        Ok(match self.set.prompt(row, &self.family, self.options)? {
            NestfulPrompt::Raw(text) => text,
            NestfulPrompt::Chat(chat) => {
                let contents = chat.messages.into_iter().filter_map(|turn| turn.content);
                contents.collect()
            }
        })
    }

    /// The row for training.
    ///
    /// # Errors
    ///
    /// The family is unknown, or there are fewer examples.
    pub fn training_row(&self, row: &NestfulRow) -> Result<PromptCompletion, NestfulError> {
        Ok(PromptCompletion {
            prompt: self.text(row)?,
            completion: self.set.completion(row, &self.family),
        })
    }
}
