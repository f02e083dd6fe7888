//! The programs that compute gold answers: select records of a response, then compute one answer.
//!
//! A program is JSON, and is written with each row, so that any other program can repeat it:
//!
//! - `records`: JMESPath expression of the list of records. Without it, `answer` is `value` and
//!   `field` is an expression for the whole response.
//! - `where`: conditions `[field, comparator, value]`, all of which a record must fulfil. The
//!   comparators are `==`, `!=`, `<`, `<=`, `>`, `>=` and `in`. A missing or null field fulfils no
//!   condition. Numbers are compared by value, strings exactly. Only numbers have an order.
//! - `answer`: what to compute, see [`Answer`]; `field`, `by` and `n` are its arguments.
//!
//! A program has no answer if the answer is ambiguous, see [`run`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field_path::FieldPath;
use super::number::{ExactNumber, number_text};
use super::read_keys::without_covered;

/// A program as it is written in files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// JMESPath expression of the list of records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<String>,
    /// Conditions on records.
    #[serde(default, rename = "where", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What to compute.
    pub answer: Answer,
    /// JMESPath expression of the answer within a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// JMESPath expression of the number that ranks records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The rank of `nth_lowest` and `nth_highest`, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<Value>,
}

/// A condition on a record: field, comparator and value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Condition(pub String, pub Comparator, pub Value);

/// How a field is compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Comparator {
    #[serde(rename = "==")]
    Equal,
    #[serde(rename = "!=")]
    NotEqual,
    #[serde(rename = "<")]
    Below,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">")]
    Above,
    #[serde(rename = ">=")]
    AtLeast,
    /// Equal to an item of the list.
    #[serde(rename = "in")]
    In,
}

/// The computation over the selected records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// `field` of the only record.
    Value,
    /// `field` of all records, without repetitions.
    List,
    /// The number of records.
    Count,
    /// `yes` if there is a record, otherwise `no`.
    Exists,
    /// The smallest `field`.
    Min,
    /// The largest `field`.
    Max,
    /// The sum of `field`.
    Sum,
    /// The mean of `field`, rounded to two decimals, half to even.
    Mean,
    /// `field` of the record with the smallest `by`.
    Argmin,
    /// `field` of the record with the largest `by`.
    Argmax,
    /// `field` of the record with the nth smallest `by`.
    NthLowest,
    /// `field` of the record with the nth largest `by`.
    NthHighest,
    /// `field` of the one of two records with the smaller `by`.
    LowerOf,
    /// `field` of the one of two records with the larger `by`.
    HigherOf,
}

impl Answer {
    /// Whether the program reads `field`, and whether it reads `by`.
    pub(super) fn arguments(self) -> (bool, bool) {
        match self {
            Self::Count | Self::Exists => (false, false),
            Self::Value | Self::List | Self::Min | Self::Max | Self::Sum | Self::Mean => {
                (true, false)
            }
            _ => (true, true),
        }
    }
}

/// Why a program has no unambiguous answer; counted by these words.
pub(super) type Ambiguity = &'static str;

pub(super) const NO_RECORD: Ambiguity = "no record fulfils the conditions";
pub(super) const SEVERAL_RECORDS: Ambiguity = "several records fulfil the conditions of one";
pub(super) const TIE: Ambiguity = "records tie";
pub(super) const NOT_A_NUMBER: Ambiguity = "a field to compute with is not a number";
pub(super) const INEXACT: Ambiguity = "a number has too many digits to compute with exactly";
pub(super) const NOT_SCALAR: Ambiguity = "the answer is missing, empty, a list or an object";
pub(super) const COMMA: Ambiguity = "a list item contains a comma or a line break";
pub(super) const CASE: Ambiguity = "values differ only in case";
pub(super) const NOT_A_LIST: Ambiguity = "`records` is not a list of objects";
pub(super) const RANK: Ambiguity = "there are fewer records than the rank";

/// The answer of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The answer as text.
    pub(super) gold: String,
    /// Index of the only record that holds the answer, if there is one.
    pub(super) record: Option<usize>,
}

/// A program with parsed expressions.
#[derive(Debug, Clone)]
pub(super) struct CompiledProgram {
    records: Option<FieldPath>,
    conditions: Vec<(FieldPath, Comparator, Value)>,
    answer: Answer,
    field: Option<FieldPath>,
    by: Option<FieldPath>,
    n: usize,
}

impl CompiledProgram {
    /// Checks a program whose slots are filled.
    ///
    /// # Errors
    ///
    /// An expression is not JMESPath, or an argument is missing, unused or of the wrong kind.
    pub(super) fn new(program: &Program) -> Result<Self, String> {
        let parse = |name: &str, expression: &str| {
            FieldPath::parse(expression).map_err(|error| format!("{name}: {error}"))
        };
        let (needs_field, needs_by) = program.answer.arguments();
        let argument = |name: &str, expression: &Option<String>, is_needed: bool| match expression {
            None if is_needed => Err(format!("{:?} needs `{name}`; add it", program.answer)),
            Some(_) if !is_needed => Err(format!(
                "{:?} does not use `{name}`; remove it",
                program.answer
            )),
            Some(expression) => parse(name, expression).map(Some),
            None => Ok(None),
        };
        let is_ranked = matches!(program.answer, Answer::NthLowest | Answer::NthHighest);
        let n = match (&program.n, is_ranked) {
            (Some(n), true) => n
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n > 0),
            (None, false) => Some(1),
            _ => None,
        };
        let n =
            n.ok_or("`n`, an integer from 1, belongs to nth_lowest and nth_highest; correct it")?;
        if program.records.is_none()
            && (program.answer != Answer::Value || !program.conditions.is_empty())
        {
            return Err("without `records`, only the answer value without conditions is possible; add `records`".to_owned());
        }
        let condition = |Condition(field, comparator, value): &Condition| {
            if (*comparator == Comparator::In) != value.is_array() {
                return Err(format!(
                    "where: {field}: `in` needs a list, the other comparators one value"
                ));
            }
            Ok((parse("where", field)?, *comparator, value.clone()))
        };
        Ok(Self {
            records: program
                .records
                .as_deref()
                .map(|expression| parse("records", expression))
                .transpose()?,
            conditions: program
                .conditions
                .iter()
                .map(condition)
                .collect::<Result<_, String>>()?,
            answer: program.answer,
            field: argument("field", &program.field, needs_field)?,
            by: argument("by", &program.by, needs_by)?,
            n,
        })
    }

    /// The keys of the list of records, if it is a plain path.
    pub(super) fn records_keys(&self) -> Option<&[String]> {
        self.records.as_ref()?.keys()
    }

    /// The paths of keys that the program reads, from the outermost object on; lists add no key.
    pub(super) fn read_keys(&self) -> Vec<Vec<String>> {
        let fields = self.conditions.iter().map(|(field, ..)| field);
        let fields: Vec<&FieldPath> = fields.chain(&self.field).chain(&self.by).collect();
        let within: Vec<Vec<String>> = fields.iter().flat_map(|field| field.read_keys()).collect();
        let Some(records) = &self.records else {
            return without_covered(within);
        };
        if records.keys().is_none() {
            // The expression may already read fields of the records, or construct them.
            return without_covered(records.read_keys());
        }
        let within = if within.is_empty() {
            vec![Vec::new()]
        } else {
            within
        };
        let paths = records.read_keys().into_iter().flat_map(|records| {
            within
                .iter()
                .map(move |keys| [records.as_slice(), keys].concat())
        });
        without_covered(paths.collect())
    }

    /// Runs the program.
    ///
    /// # Errors
    ///
    /// Why there is no unambiguous answer: ties, no record or several where one is needed, missing
    /// values, values that differ only in case, and numbers that cannot be compared exactly.
    pub(super) fn run(&self, response: &Value) -> Result<Outcome, Ambiguity> {
        let Some(records) = &self.records else {
            let value = self
                .field
                .as_ref()
                .map_or(Value::Null, |field| field.get(response));
            return Ok(Outcome {
                gold: scalar_text(&value).ok_or(NOT_SCALAR)?,
                record: None,
            });
        };
        let records = records.look_up(response);
        let records = records.as_array().ok_or(NOT_A_LIST)?;
        if !records.iter().all(Value::is_object) {
            return Err(NOT_A_LIST);
        }
        let selected = self.select(records)?;
        self.compute(&selected)
    }

    fn select<'r>(&self, records: &'r [Value]) -> Result<Vec<(usize, &'r Value)>, Ambiguity> {
        let mut selected = Vec::new();
        for (idx, record) in records.iter().enumerate() {
            let mut is_selected = true;
            for (field, comparator, value) in &self.conditions {
                // All conditions are checked, because each may be ambiguous.
                is_selected &= fulfils(&field.get(record), *comparator, value)?;
            }
            if is_selected {
                selected.push((idx, record));
            }
        }
        Ok(selected)
    }

    fn compute(&self, selected: &[(usize, &Value)]) -> Result<Outcome, Ambiguity> {
        let field = |record: &Value| {
            self.field
                .as_ref()
                .map_or(Value::Null, |field| field.get(record))
        };
        let of_all = |gold: String| Ok(Outcome { gold, record: None });
        match self.answer {
            Answer::Count => return of_all(selected.len().to_string()),
            Answer::Exists => {
                return of_all(if selected.is_empty() { "no" } else { "yes" }.to_owned());
            }
            _ if selected.is_empty() => return Err(NO_RECORD),
            Answer::List => {
                return of_all(list_text(selected.iter().map(|(_, record)| field(record)))?);
            }
            _ => {}
        }
        let one = |(idx, record): (usize, &Value)| {
            let gold = scalar_text(&field(record)).ok_or(NOT_SCALAR)?;
            Ok(Outcome {
                gold,
                record: Some(idx),
            })
        };
        let ranked_by = if self.by.is_some() {
            &self.by
        } else {
            &self.field
        };
        let numbers = || -> Result<Vec<ExactNumber>, Ambiguity> {
            let values = selected.iter().map(|(_, record)| {
                ranked_by
                    .as_ref()
                    .map_or(Value::Null, |field| field.get(record))
            });
            values.map(|value| exact(&value)).collect()
        };
        match self.answer {
            Answer::Value => match selected {
                [record] => one(*record),
                _ => Err(SEVERAL_RECORDS),
            },
            Answer::Sum => of_all(ExactNumber::sum(&numbers()?).ok_or(INEXACT)?.text()),
            Answer::Mean => of_all(ExactNumber::mean(&numbers()?).ok_or(INEXACT)?.text()),
            Answer::Min | Answer::Max => {
                let numbers = numbers()?;
                let best = if self.answer == Answer::Min {
                    numbers.iter().min()
                } else {
                    numbers.iter().max()
                };
                let mut holders = (0..numbers.len()).filter(|idx| Some(&numbers[*idx]) == best);
                // Equal numbers are one answer, which then has no position.
                let (first, second) = (holders.next().ok_or(NO_RECORD)?, holders.next());
                let mut outcome = one(selected[first])?;
                if second.is_some() {
                    outcome.record = None;
                }
                Ok(outcome)
            }
            Answer::LowerOf | Answer::HigherOf if selected.len() != 2 => {
                Err(if selected.len() < 2 {
                    NO_RECORD
                } else {
                    SEVERAL_RECORDS
                })
            }
            _ => one(selected[self.ranked(&numbers()?)?]),
        }
    }

    /// The position in `numbers` with the rank of the program.
    fn ranked(&self, numbers: &[ExactNumber]) -> Result<usize, Ambiguity> {
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_by_key(|idx| numbers[*idx]);
        if matches!(
            self.answer,
            Answer::Argmax | Answer::NthHighest | Answer::HigherOf
        ) {
            order.reverse();
        }
        let chosen = *order.get(self.n - 1).ok_or(RANK)?;
        let n_equal = numbers
            .iter()
            .filter(|number| **number == numbers[chosen])
            .count();
        if n_equal > 1 { Err(TIE) } else { Ok(chosen) }
    }
}

fn exact(value: &Value) -> Result<ExactNumber, Ambiguity> {
    let number = value.as_number().ok_or(NOT_A_NUMBER)?;
    ExactNumber::new(number).ok_or(INEXACT)
}

fn fulfils(field: &Value, comparator: Comparator, value: &Value) -> Result<bool, Ambiguity> {
    if field.is_null() {
        return Ok(false);
    }
    if let (Comparator::In, Value::Array(items)) = (comparator, value) {
        let mut is_in = false;
        for item in items {
            is_in |= is_equal(field, item)?;
        }
        return Ok(is_in);
    }
    let order = || -> Result<Option<std::cmp::Ordering>, Ambiguity> {
        match (field, value) {
            (Value::Number(_), Value::Number(_)) => Ok(Some(exact(field)?.cmp(&exact(value)?))),
            _ => Ok(None),
        }
    };
    Ok(match comparator {
        Comparator::Equal | Comparator::In => is_equal(field, value)?,
        Comparator::NotEqual => !is_equal(field, value)?,
        Comparator::Below => order()?.is_some_and(std::cmp::Ordering::is_lt),
        Comparator::AtMost => order()?.is_some_and(std::cmp::Ordering::is_le),
        Comparator::Above => order()?.is_some_and(std::cmp::Ordering::is_gt),
        Comparator::AtLeast => order()?.is_some_and(std::cmp::Ordering::is_ge),
    })
}

/// Whether two values are equal. Metrics and code prompts ignore case, so strings that differ only
/// in case are ambiguous.
fn is_equal(field: &Value, value: &Value) -> Result<bool, Ambiguity> {
    match (field, value) {
        (Value::Number(_), Value::Number(_)) => Ok(exact(field)? == exact(value)?),
        (Value::String(a), Value::String(b)) if a != b => {
            let fold = |text: &str| text.trim().to_lowercase();
            if fold(a) == fold(b) {
                Err(CASE)
            } else {
                Ok(false)
            }
        }
        _ => Ok(field == value),
    }
}

/// A scalar as an answer: strings as they are, numbers as Python writes them, `true` and `false`.
/// `None` for null, blank strings, lists and objects.
pub(super) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => (!text.trim().is_empty()).then(|| text.clone()),
        Value::Number(number) => Some(number_text(number)),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Scalars as a comma-separated list, each once.
fn list_text(values: impl Iterator<Item = Value>) -> Result<String, Ambiguity> {
    let mut seen = std::collections::HashSet::new();
    let mut texts = Vec::new();
    for value in values {
        let text = scalar_text(&value).ok_or(NOT_SCALAR)?;
        if text.contains([',', '\n', '\r']) {
            return Err(COMMA);
        }
        if seen.insert(text.trim().to_lowercase()) {
            texts.push(text);
        }
    }
    Ok(texts.join(", "))
}
