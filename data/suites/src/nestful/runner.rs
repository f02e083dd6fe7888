//! Runs a sequence of calls, by whoever can run the tools.
//!
//! A sequence is run as a whole: a function may change the list that another returned, and objects
//! between the calls need not be JSON. The 40 functions of arithmetic run here; the benchmark's
//! other functions are Python, for a runner that has a process for it.

use std::fmt::Debug;

use tooltune_rows::python::PyValue;

use super::error::NestfulError;
use super::math_tools::{MathTool, math_tool};
use super::row::NestfulRow;
use super::sequence::{Argument, BoundCall, CallFailure, Sequence};

/// What became of a sequence.
#[derive(Debug, Clone)]
pub enum Execution {
    /// The result of the last call.
    Value(PyValue),
    /// A call raised, ran out of time, or could not be made.
    Failed(CallFailure),
}

/// Runs sequences of calls.
pub trait ToolRunner: Debug {
    /// Whether the runner has the function.
    fn can_run(&self, name: &str) -> bool;

    /// Runs the calls in order, each result passed on as the object that it is, and gives up where
    /// one fails or the whole takes longer than its time: ten seconds in the published scorer.
    ///
    /// # Errors
    ///
    /// - the runner itself cannot work; what a function does wrong is an [`Execution::Failed`]
    fn run(&self, sequence: &Sequence) -> Result<Execution, NestfulError>;
}

impl NestfulRow {
    /// Whether a runner has all that the row may call: the tools on offer and those of the gold.
    ///
    /// A row is judged by what it offers, not by what a prediction uses of it, so that the rows with
    /// a result are the same for every model.
    pub fn is_runnable(&self, runner: &dyn ToolRunner) -> bool {
        let offered = self.tools.iter().map(|tool| tool.name.as_str());
        let gold = self
            .output
            .iter()
            .filter_map(|call| call.get("name")?.as_text());
        offered.chain(gold).all(|name| runner.can_run(name))
    }
}

/// Runs the functions of arithmetic and geometry, in this process.
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

/// The keyword arguments in the order of the function's parameters, which begin after the
/// positional ones.
fn keywords_in_order<'c>(
    tool: &MathTool,
    call: &'c BoundCall,
) -> Result<Vec<&'c Argument>, String> {
    let open = tool
        .parameters
        .get(call.positional.len()..)
        .unwrap_or_default();
    let is_open = |keyword: &str| open.contains(&keyword);
    if let Some((keyword, _)) = call.keywords.iter().find(|(keyword, _)| !is_open(keyword)) {
        return Err(format!(
            "{} takes no further argument {keyword:?}",
            call.name
        ));
    }
    let given = |parameter: &&str| {
        let mut keywords = call.keywords.iter();
        keywords.find_map(|(keyword, argument)| (keyword == parameter).then_some(argument))
    };
    let given: Vec<Option<&Argument>> = open.iter().map(given).collect();
    let n_given = given.iter().flatten().count();
    // None of the functions has a parameter with a default before one without.
    if given.iter().take(n_given).all(Option::is_some) {
        Ok(given.into_iter().flatten().collect())
    } else {
        Err(format!("{} misses an argument", call.name))
    }
}
