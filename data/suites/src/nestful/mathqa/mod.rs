//! Imports MathQA as NESTFUL rows: word problems whose formulas become nested calls of the
//! benchmark's 40 arithmetic functions.
//!
//! Every row is executed and kept only if its result is the value of the correct option. As in
//! NESTFUL, the gold answer is the result of the gold calls.

mod formula;
mod numbers;
mod options;
mod prompt;
mod reason;
mod shortlist;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::JsonLines;
use tooltune_json::lines::Records;
use tooltune_json::python::{PyDict, PyValue, python_repr};

pub use super::math_specs::math_tool_specs;
pub use prompt::{PromptCompletion, RowPrompt};
pub use reason::Reason;
pub use shortlist::{ShortlistCounts, ToolShortlist};

use self::formula::{Operand, Operation, parse_annotated, parse_linear};
use self::numbers::problem_numbers;
use self::options::check_answer;
use self::reason::Dropped;
use super::error::NestfulError;
use super::math_tools::{MathTool, math_tool};
use super::row::{NestfulRow, ToolSpec};
use super::runner::{Execution, MathRunner, ToolRunner};
use super::sequence::{Binding, Sequence};

/// The rows of a MathQA file, and counts of dropped ones.
#[derive(Debug, Clone, Default)]
pub struct MathQaRows {
    /// The rows, in file order.
    pub rows: Vec<NestfulRow>,
    /// Number of entries, with or without a row.
    pub n_entries: usize,
    /// Number of rows with a single call.
    pub n_single_calls: usize,
    /// Dropped entries, by reason.
    pub dropped: BTreeMap<Reason, DroppedEntries>,
    /// Counts of the shortlists of tools.
    pub shortlists: ShortlistCounts,
}

/// The entries that were dropped for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DroppedEntries {
    /// Number of entries.
    pub n: usize,
    /// The location of the first one, and what is wrong with it.
    pub example: String,
}

/// Imports a file of MathQA.
///
/// The calls of `annotated_formula` are in the order in which they run, and equal subterms are
/// separate calls. If `linear_formula` exists too, it must compute the same result. An entry with
/// only one of the two uses that one.
///
/// # Errors
///
/// - the file cannot be read, has no rows, or has a row that is not an object with MathQA's fields
/// - the prompt of `shortlist` has no such family, or not as many examples
///
/// # Source
///
/// MathQA (Amini et al., 2019); NESTFUL, section 3.2.1.
pub fn import_mathqa(
    records: Box<dyn Records>,
    shortlist: &ToolShortlist,
) -> Result<MathQaRows, NestfulError> {
    let specs = math_tool_specs();
    let lines = JsonLines::from_records(records);
    let file = lines.path().to_owned();
    let stem = split_name(&file);
    let mut imported = MathQaRows::default();
    for line in lines {
        let (location, value) = line.map_err(NestfulError::File)?;
        let format_error =
            |reason: String| NestfulError::Entry { reason }.with_location(location.clone());
        let entry = Entry::new(&value).map_err(format_error)?;
        imported.n_entries += 1;
        match entry.solve(&specs) {
            Ok(solved) => {
                let number = location.rsplit(':').next().unwrap_or_default();
                let row = NestfulRow {
                    sample_id: format!("{stem}-{number}"),
                    input: entry.problem.trim().to_owned(),
                    output: solved.calls,
                    tools: Vec::new(),
                    gold_answer: solved.result,
                };
                let row = shortlist.offer_tools(row, &specs, &mut imported.shortlists)?;
                imported.n_single_calls += usize::from(row.output.len() == 1);
                imported.rows.push(row);
            }
            Err(Dropped { reason, detail }) => {
                let dropped = imported.dropped.entry(reason).or_default();
                if dropped.n == 0 {
                    dropped.example = format!("{location}: {}", shortened(&detail));
                }
                dropped.n += 1;
            }
        }
    }
    if imported.n_entries == 0 {
        return Err(NestfulError::Entry {
            reason: "the file has no rows".to_owned(),
        }
        .with_location(file.display().to_string()));
    }
    Ok(imported)
}

/// The name of a file without its extensions: `train` for `train.json.gz`.
fn split_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    name.rsplit_once('.')
        .map_or(name, |(stem, _)| stem)
        .to_owned()
}

fn shortened(detail: &str) -> String {
    const MAX_CHARS: usize = 200;
    match detail.char_indices().nth(MAX_CHARS) {
        None => detail.to_owned(),
        Some((end, _)) => format!("{}...", &detail[..end]),
    }
}

/// An entry of MathQA.
struct Entry<'v> {
    problem: &'v str,
    options: &'v str,
    correct: &'v str,
    annotated_formula: &'v str,
    linear_formula: &'v str,
}

/// The calls of an entry and their result.
struct Solved {
    calls: Vec<PyValue>,
    result: PyValue,
}

impl<'v> Entry<'v> {
    fn new(value: &'v Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or("the row is not an object")?;
        let needed = |name: &str| text(fields, name)?.ok_or(format!("no field {name}"));
        let formula = |name: &str| Ok::<_, String>(text(fields, name)?.unwrap_or_default().trim());
        let entry = Self {
            problem: needed("Problem")?,
            options: needed("options")?,
            correct: needed("correct")?,
            annotated_formula: formula("annotated_formula")?,
            linear_formula: formula("linear_formula")?,
        };
        let has_formula = |name: &str| fields.contains_key(name);
        if has_formula("annotated_formula") || has_formula("linear_formula") {
            Ok(entry)
        } else {
            Err("no field annotated_formula and no field linear_formula".to_owned())
        }
    }

    fn solve(&self, specs: &[ToolSpec]) -> Result<Solved, Dropped> {
        let numbers = problem_numbers(self.problem);
        let operations = match self.annotated_formula {
            "" => parse_linear(self.linear_formula, &numbers)?,
            formula => parse_annotated(formula, &numbers)?,
        };
        let solved = Solved::new(&operations, specs)?;
        if !self.annotated_formula.is_empty() && !self.linear_formula.is_empty() {
            let linear = parse_linear(self.linear_formula, &numbers);
            let linear = linear.and_then(|operations| Solved::new(&operations, specs));
            let differs = |detail| Dropped::new(Reason::LinearDiffers, detail);
            let linear = linear.map_err(|dropped| differs(dropped.detail))?;
            if !solved.has_result_of(&linear) {
                let [one, other] = [&solved, &linear].map(|solved| python_repr(&solved.result));
                return Err(differs(format!("{one} and {other}")));
            }
        }
        let result = solved.float().ok_or_else(|| {
            let result = shortened(&python_repr(&solved.result));
            Dropped::new(Reason::NoResult, format!("{result} is not a finite number"))
        })?;
        check_answer(self.options, self.correct, result)?;
        Ok(solved)
    }
}

/// A field of text; `None` if it is absent or null.
fn text<'v>(fields: &'v Map<String, Value>, name: &str) -> Result<Option<&'v str>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("the field {name} is not a string")),
    }
}

impl Solved {
    /// Executes operations in the way in which the suite executes gold calls.
    fn new(operations: &[Operation], specs: &[ToolSpec]) -> Result<Self, Dropped> {
        let calls = operations.iter().enumerate();
        let calls = calls.map(|(idx, operation)| call(idx, operation));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        let no_result = |detail: String| Dropped::new(Reason::NoResult, detail);
        let sequence = Sequence::bind(&calls, specs, Binding::Position);
        let sequence = sequence.map_err(|failure| no_result(failure.to_string()))?;
        match MathRunner.run(&sequence) {
            Ok(Execution::Value(result)) => Ok(Self { calls, result }),
            Ok(Execution::Failed(failure)) => Err(no_result(failure.to_string())),
            Err(error) => Err(no_result(error.to_string())),
        }
    }

    fn float(&self) -> Option<f64> {
        let float = self.result.number()?.to_float().ok()?;
        float.is_finite().then_some(float)
    }

    fn has_result_of(&self, other: &Self) -> bool {
        const MAX_DIFFERENCE: f64 = 1e-9;
        match (self.float(), other.float()) {
            (Some(one), Some(other)) => (one - other).abs() <= MAX_DIFFERENCE * one.abs(),
            _ => false,
        }
    }
}

/// The call of an operation: `{"name", "label", "arguments"}`.
fn call(idx: usize, operation: &Operation) -> Result<PyValue, Dropped> {
    let (tool, takes_list) = tool_of(operation)?;
    let arguments = operation.arguments.iter().map(|operand| match operand {
        Operand::Number(value) => Ok(value.clone()),
        Operand::Result(_) if takes_list => {
            Err(Dropped::new(Reason::ReferenceInList, &operation.name))
        }
        Operand::Result(call_idx) => Ok(PyValue::Text(format!("{}.result$", label(*call_idx)))),
    });
    let mut arguments = arguments.collect::<Result<Vec<_>, _>>()?;
    if takes_list {
        arguments = vec![PyValue::List(arguments)];
    }
    if !(tool.n_required..=tool.parameters.len()).contains(&arguments.len()) {
        let detail = format!("{} with {}", operation.name, arguments.len());
        return Err(Dropped::new(Reason::Arity, detail));
    }
    let names = (0..).map(|number| format!("arg_{number}"));
    let arguments: PyDict = names.zip(arguments).collect();
    let fields = [
        ("name", PyValue::Text(tool.name.to_owned())),
        ("label", PyValue::Text(label(idx))),
        ("arguments", PyValue::Dict(arguments)),
    ];
    let fields = fields.map(|(key, value)| (key.to_owned(), value));
    Ok(PyValue::Dict(PyDict::from_iter(fields)))
}

fn label(call_idx: usize) -> String {
    format!("$var_{}", call_idx + 1)
}

/// The function of an operation, and whether its arguments are one list.
fn tool_of(operation: &Operation) -> Result<(&'static MathTool, bool), Dropped> {
    let (name, takes_list) = match operation.name.as_str() {
        "max" => ("max_number", true),
        "min" => ("min_number", true),
        name => (name, false),
    };
    let unknown = || Dropped::new(Reason::UnknownOperation, &operation.name);
    let tool = math_tool(name).ok_or_else(unknown)?;
    Ok((tool, takes_list))
}
