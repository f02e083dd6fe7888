//! Constrained completions, and the fallback for those that do not end within their grammar.
//!
//! A completion cut off by the token limit is generated once more with short lists and strings if
//! the schema leaves lengths open, because small models can repeat an entry endlessly. A completion
//! that reaches a limit of its constraint is generated once more without it. All commands with
//! constraints use this fallback.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_grammar::{
    CallFormat, Constraint, Grammar, GrammarError, GrammarOptions, Lengths, Vocabulary,
};

use super::generate::FinishReason;
use super::generator::Completion;

/// Source of a grammar.
#[derive(Debug, Clone)]
enum Source {
    Schema(Value),
    Calls {
        tools: Vec<Value>,
        format: CallFormat,
    },
}

/// A grammar, and its variant with short lists and strings.
#[derive(Debug, Clone)]
pub struct HeldGrammar {
    grammar: Grammar,
    source: Source,
    options: GrammarOptions,
    short: OnceLock<Option<Grammar>>,
}

/// How a completion was generated a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewritten {
    /// Under the grammar with short lists and strings.
    Short,
    /// The second attempt is unconstrained.
    Free,
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

impl HeldGrammar {
    /// The grammar of JSON that satisfies a schema.
    ///
    /// # Errors
    ///
    /// Same as [`Grammar::json_schema`].
    pub fn of_schema(
        vocabulary: &Vocabulary,
        schema: &Value,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let source = Source::Schema(schema.clone());
        Self::compile(vocabulary, source, options.clone())
    }

    /// The grammar of tool calls.
    ///
    /// # Errors
    ///
    /// Same as [`Grammar::tool_call`].
    pub fn of_calls(
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

    /// The constraint of an attempt; `None` for an unconstrained second attempt.
    pub fn constraint(&self, rewritten: Option<Rewritten>) -> Option<Constraint> {
        match rewritten {
            None => Some(self.grammar.constraint()),
            Some(Rewritten::Short) => self.short().map(Grammar::constraint),
            Some(Rewritten::Free) => None,
        }
    }

    /// How to generate a constrained completion a second time; `None` to keep it.
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
        (is_cut && self.short().is_some()).then_some(Rewritten::Short)
    }

    /// The grammar with short lists and strings, compiled on first use; `None` if the schema limits
    /// lengths itself.
    fn short(&self) -> Option<&Grammar> {
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
