//! Scores NESTFUL: sequences of nested calls, by matches and win rates.
//!
//! Matches compare calls as texts, with references replaced by function names. A win means that the
//! calls were executed and the result of the last one equals the gold answer (Basu et al., NESTFUL,
//! section 4.2).
//!
//! `win_official` keeps the peculiarities of the published scorer, because papers report its
//! numbers. `win_strict` is the comparison that a reader would expect. They differ in failed
//! executions (`False` equals a gold value of zero), in arguments (by position or by name), in gold
//! values printed with an exponent, and in booleans (equal to 1 and 0).
//!
//! The 40 arithmetic functions run in this process, all other functions through [`PythonTools`]. A
//! row that needs missing tools has no win, and reports show the number of such rows. Macro F1 is
//! computed as published, but is not informative, because most function names occur in only one
//! sample.

mod call_texts;
mod call_tools;
mod compare;
mod dag;
mod error;
mod examples;
mod ground;
mod leaf_errors;
mod lenient;
mod macro_f1;
mod math_specs;
mod math_tools;
pub mod mathqa;
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
pub use ground::{GroundedCall, ground_calls};
pub use leaf_errors::completion_leaf_errors;
pub use lenient::lenient_calls;
pub use macro_f1::{MacroF1, MacroF1Counter};
pub use math_specs::math_tool_specs;
pub use math_tools::{MathTool, MathToolError, math_tool, math_tools};
pub use parse::{ParsedCalls, Parser};
pub use prompts::{NestfulPrompt, PromptOptions, PromptSet, ToolsEncoding, parser_of_family};
pub use python_tools::{BASIC_FUNCTIONS_FILE, FUNCTION_MAP_FILE, PythonTools};
pub use react::{ReactEnd, ReactLimits, ReactLoop, ReactOutcome, ReactRequest, ReactStep};
pub use react_report::{ReactReport, ReactScore, score_react};
pub use replay::{GoldReplay, replay_gold};
pub use report::{NestfulGroup, NestfulMetrics, NestfulReport, nestful_table, score_rows};
pub use row::{NestfulRow, ToolSpec, gold_calls};
pub use rows::{NestfulReader, read_nestful_rows};
pub use runner::{Execution, MathRunner, ToolRunner};
pub use sample::{SampleScore, SlotTexts, Win, score_sample};
pub use sequence::{Argument, Binding, BoundCall, CallFailure, Sequence};
pub use suite::SUITE;
pub use templates::built_in_families;
#[cfg(test)]
pub(crate) use templates::built_in_templates;
