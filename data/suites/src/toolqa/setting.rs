//! The eight prompt settings that the paper compares, and their choice by question type.

use serde::{Deserialize, Serialize};

use super::rows::TaskType;

/// A prompt setting. It determines whether the prompt asks for an answer or for code, and whether
/// it contains the schema, the response and an instruction to reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// The answer, from the response.
    Answer,
    /// The answer, from response and schema.
    AnswerSchema,
    /// The answer after reasoning, from response and schema.
    CotAnswerSchema,
    /// Code, from the response.
    Code,
    /// Code, from response and schema.
    CodeSchema,
    /// Code, from only the schema.
    CodeSchemaNoResponse,
    /// Code, from the schema and a reduced response.
    CodeSchemaReduced,
    /// Code after reasoning, from response and schema.
    CotCodeSchema,
}

impl Setting {
    /// All settings, in the paper's order.
    pub const ALL: [Self; 8] = [
        Self::Answer,
        Self::AnswerSchema,
        Self::CotAnswerSchema,
        Self::Code,
        Self::CodeSchema,
        Self::CodeSchemaNoResponse,
        Self::CodeSchemaReduced,
        Self::CotCodeSchema,
    ];

    /// The name used in files and configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::AnswerSchema => "answer_schema",
            Self::CotAnswerSchema => "cot_answer_schema",
            Self::Code => "code",
            Self::CodeSchema => "code_schema",
            Self::CodeSchemaNoResponse => "code_schema_no_response",
            Self::CodeSchemaReduced => "code_schema_reduced",
            Self::CotCodeSchema => "cot_code_schema",
        }
    }

    /// Looks a setting up by name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// Whether the model writes a function that must be run.
    pub fn is_code(self) -> bool {
        !matches!(
            self,
            Self::Answer | Self::AnswerSchema | Self::CotAnswerSchema
        )
    }

    /// Whether the prompt shows the schema.
    pub fn shows_schema(self) -> bool {
        !matches!(self, Self::Answer | Self::Code)
    }

    /// Whether the prompt shows the response, complete or reduced.
    pub fn shows_response(self) -> bool {
        self != Self::CodeSchemaNoResponse
    }
}

/// One setting for all questions, or a setting per question, by the type that the model names first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SettingChoice {
    /// This setting for all questions.
    All(Setting),
    /// By type of the question, see [`Routes`].
    Routed,
}

impl SettingChoice {
    /// The name of [`SettingChoice::Routed`].
    pub const ROUTED: &'static str = "routed";

    /// The names of all choices.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Setting::ALL
            .into_iter()
            .map(Setting::name)
            .chain([Self::ROUTED])
    }
}

impl From<SettingChoice> for String {
    fn from(choice: SettingChoice) -> Self {
        match choice {
            SettingChoice::All(setting) => setting.name().to_owned(),
            SettingChoice::Routed => SettingChoice::ROUTED.to_owned(),
        }
    }
}

impl TryFrom<String> for SettingChoice {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == Self::ROUTED {
            return Ok(Self::Routed);
        }
        Setting::from_name(&name).map(Self::All).ok_or_else(|| {
            let names: Vec<&str> = Self::names().collect();
            format!("unknown setting {name:?}; use one of {}", names.join(", "))
        })
    }
}

/// The setting for each type of question.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", section 4.4.1: the types go where Table 2 found
/// most right answers, extractive questions to answers and the others to code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routes {
    /// For extractive questions.
    pub extractive: Setting,
    /// For filtering questions.
    pub filtering: Setting,
    /// For aggregation questions, and for questions whose type the model did not name.
    pub aggregation: Setting,
}

impl Routes {
    /// The setting for a question of this type.
    pub fn setting(&self, task_type: Option<TaskType>) -> Setting {
        match task_type {
            Some(TaskType::Extractive) => self.extractive,
            Some(TaskType::Filtering) => self.filtering,
            Some(TaskType::Aggregation) | None => self.aggregation,
        }
    }

    /// All three settings.
    pub fn all(&self) -> [Setting; 3] {
        [self.extractive, self.filtering, self.aggregation]
    }
}
