//! The eight prompt settings that the paper compares.

use serde::{Deserialize, Serialize};

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
