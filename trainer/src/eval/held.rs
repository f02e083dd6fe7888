//! Grammars of constrained completions, and the fallback if a completion does not end within its
//! grammar.
//!
//! Small models can repeat an entry endlessly. If a completion is cut off by the token limit and
//! its schema does not limit lengths, it is generated once more with short lists and strings. A
//! completion that reaches a limit of its constraint is generated once more without the constraint.
//! All commands with constraints use this fallback.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_grammar::{
    CallFormat, Constraint, Grammar, GrammarError, GrammarOptions, Lengths, Vocabulary,
};

use super::generate::FinishReason;
use super::generator::Completion;

/// Source of a grammar.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Source {
    Schema(Value),
    Calls {
        tools: Vec<Value>,
        format: CallFormat,
    },
}

/// A grammar with its variant for short lists and strings.
#[derive(Debug, Clone)]
pub struct FallbackGrammar {
    grammar: Grammar,
    source: Source,
    options: GrammarOptions,
    short: OnceLock<Option<Grammar>>,
}

/// How a completion was generated a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewritten {
    /// With the grammar for short lists and strings.
    Short,
    /// Without a constraint.
    Free,
}

/// A grammar before it is compiled, for another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::eval) struct GrammarSource {
    source: Source,
    options: GrammarOptions,
}

impl GrammarSource {
    /// Compiles the grammar.
    pub(in crate::eval) fn compile(
        self,
        vocabulary: &Vocabulary,
    ) -> Result<FallbackGrammar, GrammarError> {
        FallbackGrammar::compile(vocabulary, self.source, self.options)
    }
}

impl Source {
    fn compile_grammar(
        &self,
        vocabulary: &Vocabulary,
        options: &GrammarOptions,
    ) -> Result<Grammar, GrammarError> {
        match self {
            Self::Schema(schema) => Grammar::json_schema(vocabulary, schema, options),
            Self::Calls { tools, format } => {
                Grammar::tool_call(vocabulary, tools, *format, options)
            }
        }
    }
}

impl FallbackGrammar {
    /// Compiles the grammar of JSON that satisfies a schema.
    ///
    /// # Errors
    ///
    /// As for [`Grammar::json_schema`].
    pub fn for_schema(
        vocabulary: &Vocabulary,
        schema: &Value,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let source = Source::Schema(schema.clone());
        Self::compile(vocabulary, source, options.clone())
    }

    /// Compiles the grammar of tool calls.
    ///
    /// # Errors
    ///
    /// As for [`Grammar::tool_call`].
    pub fn for_calls(
        vocabulary: &Vocabulary,
        tools: &[Value],
        format: CallFormat,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let tools = tools.to_vec();
        Self::compile(vocabulary, Source::Calls { tools, format }, options.clone())
    }

    fn compile(
        vocabulary: &Vocabulary,
        source: Source,
        options: GrammarOptions,
    ) -> Result<Self, GrammarError> {
        Ok(Self {
            grammar: source.compile_grammar(vocabulary, &options)?,
            source,
            options,
            short: OnceLock::new(),
        })
    }

    /// The source of the grammar.
    pub(in crate::eval) fn source(&self) -> GrammarSource {
        GrammarSource {
            source: self.source.clone(),
            options: self.options.clone(),
        }
    }

    /// The constraint of an attempt; `None` for an unconstrained second attempt.
    pub fn constraint(&self, rewritten: Option<Rewritten>) -> Option<Constraint> {
        match rewritten {
            None => Some(self.grammar.constraint()),
            Some(Rewritten::Short) => self.short_grammar().map(Grammar::constraint),
            Some(Rewritten::Free) => None,
        }
    }

    /// How to generate a constrained completion a second time; `None` if it is kept.
    pub fn second_attempt(
        &self,
        completion: &Completion,
        max_new_tokens: usize,
    ) -> Option<Rewritten> {
        let is = |reason: FinishReason| completion.finish_reason == reason.name();
        if is(FinishReason::Constraint) {
            return Some(Rewritten::Free);
        }
        let is_cut = is(FinishReason::Length) && completion.n_tokens >= max_new_tokens;
        (is_cut && self.short_grammar().is_some()).then_some(Rewritten::Short)
    }

    /// The grammar for short lists and strings, compiled on first use; `None` if the schema itself
    /// limits lengths.
    fn short_grammar(&self) -> Option<&Grammar> {
        let compile = || {
            let options = GrammarOptions {
                lengths: Lengths::Short,
                ..self.options.clone()
            };
            let grammar = self
                .source
                .compile_grammar(self.grammar.vocabulary(), &options);
            grammar.ok().filter(Grammar::is_shortened)
        };
        self.short.get_or_init(compile).as_ref()
    }
}
