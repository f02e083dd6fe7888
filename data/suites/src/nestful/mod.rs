//! Scores NESTFUL: sequences of calls that use each other's results, by matches and win rates.
//!
//! Matches compare calls as texts, with references named after functions; a win runs the calls and
//! compares what the last one returns with the gold answer (Basu et al., NESTFUL, section 4.2).
//! The decision to question: the published scorer's oddities are kept in `win_official`, since its
//! numbers are what papers report; `win_strict` beside it says what a reader expects. They differ in
//! failed executions (`False`, which equals a gold of zero), in arguments (by position, by name), in
//! golds printed with an exponent, and in booleans (equal to 1 and 0).
//! The 40 functions of arithmetic run here, all others by [`PythonTools`]; rows that need tools which the runner lacks have no win, and reports say how many.
//! Macro F1 are computed as published and say little: most function names occur in one sample.

mod call_texts;
mod call_tools;
mod compare;
mod dag;
mod error;
mod examples;
mod ground;
mod lenient;
mod macro_f1;
mod math_tools;
mod operations;
mod parse;
mod prompts;
mod python_tools;
mod react;
mod react_report;
mod replay;
mod report;
mod row;
mod rows;
mod runner;
mod sample;
mod sequence;
mod suite;
mod templates;

#[cfg(test)]
mod tests;

pub use compare::{official_win, strict_win};
pub use dag::{DagPattern, DagStatistics, dag_statistics};
pub use error::NestfulError;
pub use examples::{ExampleForm, PromptExample};
pub use ground::{GroundedCall, ground};
pub use lenient::lenient_calls;
pub use macro_f1::{MacroF1, MacroF1Counter};
pub use math_tools::{MathTool, MathToolError, math_tool, math_tools};
pub use parse::{ParsedCalls, Parser};
pub use prompts::{NestfulPrompt, PromptOptions, PromptSet, ToolsEncoding, parser_of_family};
pub use python_tools::{BASIC_FUNCTIONS_FILE, FUNCTION_MAP_FILE, PythonTools};
pub use react::{ReactEnd, ReactLimits, ReactLoop, ReactOutcome, ReactRequest, ReactStep};
pub use react_report::{ReactReport, ReactScore, score_react};
pub use replay::{GoldReplay, replay_gold};
pub use report::{NestfulGroup, NestfulMetrics, NestfulReport, nestful_table, score_rows};
pub use row::{NestfulRow, ToolSpec, gold_calls};
pub use rows::{NestfulReader, nestful_lines, read_nestful_rows};
pub use runner::{Execution, MathRunner, ToolRunner};
pub use sample::{SampleScore, SlotTexts, Win, score_sample};
pub use sequence::{Argument, Binding, BoundCall, CallFailure, Sequence};
pub use suite::SUITE;
pub use templates::own_families;
#[cfg(test)]
pub(crate) use templates::own_templates;
