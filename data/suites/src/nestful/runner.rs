//! Runs a sequence of calls with a tool runner.
//!
//! A sequence runs as a whole, because a function may modify a list returned by another function,
//! and intermediate values need not be representable in JSON. The 40 arithmetic functions run in
//! this process; the benchmark's other functions need a runner with a Python process.

use std::fmt::Debug;

use tooltune_json::python::PyValue;

use super::error::NestfulError;
use super::math_tools::{MathTool, math_tool};
use super::row::NestfulRow;
use super::sequence::{Argument, BoundCall, CallFailure, Sequence};

/// The result of running a sequence.
#[derive(Debug, Clone)]
pub enum Execution {
    /// The result of the last call.
    Value(PyValue),
    /// A call raised an error, timed out, or could not be made.
    Failed(CallFailure),
}

/// Runs sequences of calls.
pub trait ToolRunner: Debug {
    /// Whether the runner has the function.
    fn can_run(&self, name: &str) -> bool;

    /// Runs the calls in order, and passes results to later calls as objects. Stops if a call fails
    /// or the time limit is reached (ten seconds in the published scorer).
    ///
    /// # Errors
    ///
    /// The runner itself fails; an error of a function is an [`Execution::Failed`].
    fn run(&self, sequence: &Sequence) -> Result<Execution, NestfulError>;
}

impl NestfulRow {
    /// Whether a runner has all tools that the row may call: the available tools and the tools of
    /// the gold calls.
    ///
    /// This depends only on the row, not on the tools that a prediction uses, so the same rows have
    /// a result for every model.
    pub fn is_runnable(&self, runner: &dyn ToolRunner) -> bool {
        let available = self.tools.iter().map(|tool| tool.name.as_str());
        let gold = self
            .output
            .iter()
            .filter_map(|call| call.get("name")?.as_text());
        available.chain(gold).all(|name| runner.can_run(name))
    }
}

/// Runs the arithmetic and geometry functions in this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct MathRunner;

impl ToolRunner for MathRunner {
    fn can_run(&self, name: &str) -> bool {
        math_tool(name).is_some()
    }

    fn run(&self, sequence: &Sequence) -> Result<Execution, NestfulError> {
        let mut results: Vec<PyValue> = Vec::new();
        for (call_idx, call) in sequence.calls.iter().enumerate() {
            match run_call(call, &results) {
                Ok(result) => results.push(result),
                Err(reason) => {
                    return Ok(Execution::Failed(CallFailure { call_idx, reason }));
                }
            }
        }
        Ok(Execution::Value(results.pop().unwrap_or_default()))
    }
}

fn run_call(call: &BoundCall, results: &[PyValue]) -> Result<PyValue, String> {
    let tool = math_tool(&call.name);
    let tool = tool.ok_or_else(|| format!("{} needs Python", call.name))?;
    let value = |argument: &Argument| match argument {
        Argument::Literal(value) => Ok(value.clone()),
        Argument::Result(call_idx) => {
            let result = results.get(*call_idx).cloned();
            result.ok_or_else(|| format!("call {call_idx} has no result yet"))
        }
    };
    let mut arguments: Vec<PyValue> = call
        .positional
        .iter()
        .map(value)
        .collect::<Result<_, _>>()?;
    for parameter in keywords_in_order(tool, call)? {
        arguments.push(value(parameter)?);
    }
    tool.run(&arguments).map_err(|error| error.to_string())
}

/// The keyword arguments, in the order of the function's parameters after the positional arguments.
fn keywords_in_order<'c>(
    tool: &MathTool,
    call: &'c BoundCall,
) -> Result<Vec<&'c Argument>, String> {
    let parameters = tool
        .parameters
        .get(call.positional.len()..)
        .unwrap_or_default();
    let is_free = |keyword: &str| parameters.contains(&keyword);
    if let Some((keyword, _)) = call.keywords.iter().find(|(keyword, _)| !is_free(keyword)) {
        return Err(format!(
            "{} takes no further argument {keyword:?}",
            call.name
        ));
    }
    let argument_of = |parameter: &&str| {
        let mut keywords = call.keywords.iter();
        keywords.find_map(|(keyword, argument)| (keyword == parameter).then_some(argument))
    };
    let argument_of: Vec<Option<&Argument>> = parameters.iter().map(argument_of).collect();
    let n_given = argument_of.iter().flatten().count();
    // A parameter with a default is never before a parameter without a default.
    if argument_of.iter().take(n_given).all(Option::is_some) {
        Ok(argument_of.into_iter().flatten().collect())
    } else {
        Err(format!("{} misses an argument", call.name))
    }
}
