//! Builds an executable sequence from calls as written: resolves labels and binds arguments.
//!
//! Errors that can be detected without running a function are found here. A sequence with such an
//! error has no result. The same is true in the published scorer, which detects the error when it
//! reaches the call.

use std::collections::HashMap;

use tooltune_json::python::PyValue;

use super::row::ToolSpec;

/// How arguments are passed to the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// By their order in the JSON text, ignoring names, as in the published scorer.
    Position,
    /// Arguments `arg_0`, `arg_1`, .. by number, all others as keywords.
    Name,
}

/// Calls in order. The result of the sequence is the result of its last call.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// The calls, at least one.
    pub calls: Vec<BoundCall>,
}

/// A call of a function.
#[derive(Debug, Clone)]
pub struct BoundCall {
    /// Name of the function.
    pub name: String,
    /// Positional arguments.
    pub positional: Vec<Argument>,
    /// Keyword arguments, in order.
    pub keywords: Vec<(String, Argument)>,
}

/// An argument.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A value.
    Literal(PyValue),
    /// The result of an earlier call, by index. It must be passed as the same object, because
    /// functions may modify it.
    Result(usize),
}

/// Why a sequence cannot be run, or has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("call {call_idx}: {reason}")]
pub struct CallFailure {
    /// Index of the call.
    pub call_idx: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl Sequence {
    /// Binds calls to the available tools.
    ///
    /// A string of the form `$..$`, or a string that starts with `$var`, is a reference if it is a
    /// whole argument. Inside a list or an object it is an ordinary string.
    ///
    /// # Errors
    ///
    /// - there are no calls
    /// - a call is not an object, or has no label or arguments object
    /// - a tool is not available, or does not have exactly one output
    /// - a reference has an unknown label or output
    /// - when binding by name, the numbers of `arg_N` have a gap
    pub fn bind(
        calls: &[PyValue],
        tools: &[ToolSpec],
        binding: Binding,
    ) -> Result<Self, CallFailure> {
        let mut producers = HashMap::new();
        let mut bound = Vec::new();
        for (call_idx, call) in calls.iter().enumerate() {
            let failure = |reason: String| CallFailure { call_idx, reason };
            let parts = CallParts::parse(call, tools).map_err(failure)?;
            let resolved = parts.resolve(&producers).map_err(failure)?;
            bound.push(bind_call(parts.name, resolved, binding).map_err(failure)?);
            producers.insert(parts.label, (call_idx, parts.output));
        }
        if bound.is_empty() {
            Err(CallFailure {
                call_idx: 0,
                reason: "there are no calls".to_owned(),
            })
        } else {
            Ok(Self { calls: bound })
        }
    }
}

/// The last call of each label, and the name of this call's output.
type Producers<'c> = HashMap<String, (usize, &'c str)>;

/// The parts of a call.
struct CallParts<'c> {
    name: &'c str,
    label: String,
    output: &'c str,
    arguments: Vec<(&'c str, &'c PyValue)>,
}

impl<'c> CallParts<'c> {
    fn parse(call: &'c PyValue, tools: &'c [ToolSpec]) -> Result<Self, String> {
        let text = |key: &str| call.get(key).and_then(PyValue::as_text);
        let label = text("label").ok_or("it has no label")?;
        let name = text("name").ok_or("it has no name")?;
        let tool = tools.iter().find(|tool| tool.name == name);
        let tool = tool.ok_or_else(|| format!("no tool {name:?} is on offer"))?;
        let [output] = tool.outputs.as_slice() else {
            return Err(format!(
                "{name} has {} outputs, not one",
                tool.outputs.len()
            ));
        };
        let arguments = call.get("arguments").and_then(PyValue::as_dict);
        let arguments = arguments.ok_or("it has no object of arguments")?;
        Ok(Self {
            name,
            label: label.replace('$', ""),
            output,
            arguments: arguments
                .iter()
                .map(|(key, value)| (key.as_str(), value))
                .collect(),
        })
    }

    fn resolve(&self, producers: &Producers<'_>) -> Result<Vec<(&'c str, Argument)>, String> {
        let resolve = |(key, value): &(&'c str, &'c PyValue)| {
            let argument = match value.as_text().and_then(reference) {
                None => Argument::Literal((*value).clone()),
                Some(reference) => Argument::Result(producer(reference, producers)?),
            };
            Ok((*key, argument))
        };
        self.arguments.iter().map(resolve).collect()
    }
}

/// The content between the dollar signs of a reference: `var_1.result`. A single dollar sign has
/// empty content, which matches no output.
pub(super) fn reference(text: &str) -> Option<&str> {
    let label = text.strip_prefix('$')?;
    match label.strip_suffix('$') {
        Some(enclosed) => Some(enclosed),
        None if label.is_empty() => Some(label),
        None if label.starts_with("var") => Some(label),
        None => None,
    }
}

fn producer(reference: &str, producers: &Producers<'_>) -> Result<usize, String> {
    let (label, output) = reference
        .split_once('.')
        .ok_or_else(|| format!("the reference {reference:?} names no output"))?;
    match producers.get(label) {
        None => Err(format!("no earlier call has the label {label:?}")),
        Some((_, known)) if *known != output => {
            Err(format!("{label} has no output {output:?}, but {known:?}"))
        }
        Some((call_idx, _)) => Ok(*call_idx),
    }
}

fn bind_call(
    name: &str,
    arguments: Vec<(&str, Argument)>,
    binding: Binding,
) -> Result<BoundCall, String> {
    let mut positional = Vec::new();
    let mut keywords = Vec::new();
    for (position, (key, argument)) in arguments.into_iter().enumerate() {
        match (binding, parameter_number(key)) {
            (Binding::Position, _) => positional.push((position, argument)),
            (Binding::Name, Some(number)) => positional.push((number, argument)),
            (Binding::Name, None) => keywords.push((key.to_owned(), argument)),
        }
    }
    positional.sort_by_key(|(number, _)| *number);
    let gap = (0..positional.len()).find(|&position| positional[position].0 != position);
    match gap {
        Some(position) => Err(format!("{name} has no argument arg_{position}")),
        None => Ok(BoundCall {
            name: name.to_owned(),
            positional: positional
                .into_iter()
                .map(|(_, argument)| argument)
                .collect(),
            keywords,
        }),
    }
}

/// The number of `arg_N`.
fn parameter_number(key: &str) -> Option<usize> {
    let digits = key.strip_prefix("arg_")?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| is_plain)
}
