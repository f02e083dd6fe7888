//! Scores an answer: which of the expected calls it makes, and which rules it breaks.

use std::collections::BTreeMap;
use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_apis::did_you_mean;
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_json::json_schema::{BoundedValidator, SchemaCache};
use tooltune_json::kind_of;
use tooltune_rows::text::DeclaredTool;

use super::answer::{AnswerEnd, CallsAnswer, WrittenCall};
use super::item::CallsItem;
use super::pairing::max_gain_pairs;
use super::read::CallDialect;
use super::same::is_same;
use super::tools::{Schema, ToolSet};

/// A rule that an answer can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Every attempted call can be parsed.
    Malformed,
    /// Every call names a tool of the row.
    InventedName,
    /// At least one call is made if calls are expected.
    MissedCall,
    /// No more calls are made than expected.
    ExtraCall,
    /// No call is made if text is expected.
    UnwantedCall,
    /// An argument has the expected value.
    Value,
    /// Every expected argument is present.
    MissingArgument,
    /// Every argument required by the tool is present.
    MissingRequired,
    /// Every argument is expected.
    UnwantedArgument,
    /// Every argument is declared by the tool.
    UnknownArgument,
    /// The arguments are valid under the tool's schema.
    Schema,
    /// The answer was not cut off.
    Cut,
    /// The answer is not empty if text is expected.
    Empty,
}

/// A broken rule, with a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The rule.
    pub rule: Rule,
    /// The actual and the expected content, with the location.
    pub message: String,
}

/// The score of an expected call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallScore {
    /// The expected tool.
    pub tool: String,
    /// Levels of objects and lists in the tool's schema; `None` if the schema is unknown.
    pub depth: Option<usize>,
    /// Whether the answer contains a call to the tool that is paired with this expected call.
    pub name: bool,
    /// Number of expected arguments plus unexpected arguments of the paired call.
    pub n_arguments: usize,
    /// Number of these arguments that are right.
    pub n_right_arguments: usize,
    /// Whether the call is made with all arguments right.
    pub exact: bool,
}

/// The scores of one answer. A ratio is `None` if its denominator is zero.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnScore {
    /// Number of expected calls.
    pub n_wanted: usize,
    /// Number of predicted calls.
    pub n_made: usize,
    /// Whether the answer is right: `exact`, or complete text without a call if text is expected.
    pub right: bool,
    /// Whether the answer has exactly the expected calls with all arguments right, and was not cut
    /// off.
    pub exact: Option<bool>,
    /// Fraction of the expected calls that are paired with a call to the same tool.
    pub name: Option<f64>,
    /// Fraction of right arguments among the expected and the unexpected arguments.
    pub arguments: Option<f64>,
    /// Fraction of the predicted calls that are valid for their tool: the tool exists, and the
    /// arguments are declared and valid.
    pub valid: Option<f64>,
    /// Whether an attempted call cannot be parsed.
    pub malformed: bool,
    /// Whether the answer was cut off.
    pub cut: bool,
    /// Whether the answer has neither a call nor text.
    pub empty: bool,
    /// Whether a call names an unknown tool.
    pub invented: bool,
    /// Whether a call is made or attempted if text is expected.
    pub unwanted: Option<bool>,
    /// Whether no call is made or attempted if calls are expected.
    pub missed: Option<bool>,
    /// Number of predicted calls without a matching expected call, if calls are expected.
    pub n_extra: usize,
    /// Number of calls that are valid for their tool.
    pub n_valid: usize,
    /// Number of calls to tools without a usable JSON Schema; only their names are checked.
    pub n_unchecked: usize,
    /// The expected calls.
    pub calls: Vec<CallScore>,
    /// The notation of the calls; `None` without calls.
    pub dialect: Option<CallDialect>,
    /// All broken rules.
    pub faults: Vec<Fault>,
}

impl TurnScore {
    /// Whether [`CallsScorer::rejection`] rejects the answer.
    pub(super) fn is_rejected(&self) -> bool {
        !self.cut && (self.malformed || self.n_valid < self.n_made)
    }
}

/// Scores answers and caches the compiled schemas.
#[derive(Debug, Default)]
pub struct CallsScorer {
    /// `None` if a schema is unusable.
    checkers: SchemaCache<Option<BoundedValidator>>,
}

/// Scores one answer. To score several answers, use a [`CallsScorer`], which compiles each schema
/// once.
pub fn score_turn(item: &CallsItem, answer: &CallsAnswer) -> TurnScore {
    CallsScorer::default().score_turn(item, answer)
}

/// Comparison of a predicted call with an expected call of the same tool.
struct Comparison<'c> {
    n_arguments: usize,
    n_right: usize,
    differences: Vec<Difference<'c>>,
}

/// An argument that differs from the expected one.
struct Difference<'c> {
    rule: Rule,
    key: &'c str,
    expected_value: Option<&'c Value>,
    predicted: Option<&'c Value>,
}

/// An expected call and the predicted call paired with it.
pub(super) struct Pair<'c> {
    pub(super) gold: usize,
    pub(super) made: usize,
    comparison: Comparison<'c>,
}

impl CallsScorer {
    /// Scores an answer with nested arguments.
    pub fn score_turn(&mut self, item: &CallsItem, answer: &CallsAnswer) -> TurnScore {
        let (gold, predicted) = (&item.gold, &answer.calls);
        let pairs = pair_calls(gold, predicted, &item.tools);
        let mut faults: Vec<Fault> = Vec::new();
        let malformed = answer.malformed.iter().cloned();
        faults.extend(malformed.map(|message| Fault {
            rule: Rule::Malformed,
            message,
        }));
        let wants = !gold.is_empty();
        faults.extend(end_fault(answer.end, wants));
        let mut checks = Vec::with_capacity(predicted.len());
        for call in predicted {
            checks.push(self.check(call, &item.tools));
        }
        let mut calls: Vec<CallScore> = gold
            .iter()
            .map(|call| CallScore {
                tool: call.name.clone(),
                depth: item.tools.depth(&call.name),
                name: false,
                n_arguments: call.arguments.len(),
                n_right_arguments: 0,
                exact: false,
            })
            .collect();
        let mut is_paired = vec![false; predicted.len()];
        for pair in pairs {
            is_paired[pair.made] = true;
            let score = &mut calls[pair.gold];
            score.name = true;
            score.n_arguments = pair.comparison.n_arguments;
            score.n_right_arguments = pair.comparison.n_right;
            score.exact = pair.comparison.is_exact();
            if !score.exact {
                let differences = pair.comparison.differences.iter();
                faults.extend(differences.map(|difference| difference.to_fault(&score.tool)));
                faults.append(&mut checks[pair.made].faults);
            }
        }
        for ((call, check), is_paired) in predicted.iter().zip(&mut checks).zip(&is_paired) {
            if !is_paired {
                faults.push(unpaired_fault(call, gold.is_empty()));
                faults.append(&mut check.names);
                faults.append(&mut check.faults);
            }
        }
        faults.extend(calls.iter().filter(|call| !call.name).map(|call| Fault {
            rule: Rule::MissedCall,
            message: format!("missing call to {}", call.tool),
        }));
        let n_valid = checks.iter().filter(|check| check.is_valid).count();
        let is_malformed = !answer.malformed.is_empty();
        let is_called = !predicted.is_empty() || is_malformed;
        let n_paired = is_paired.iter().filter(|paired| **paired).count();
        let all_exact = calls.iter().all(|call| call.exact) && n_paired == predicted.len();
        let is_cut = answer.end == AnswerEnd::Cut;
        let exact = wants.then_some(all_exact && !is_malformed && !is_cut);
        let is_text = !is_called && answer.end == AnswerEnd::Whole;
        TurnScore {
            n_wanted: gold.len(),
            n_made: predicted.len(),
            right: exact.unwrap_or(is_text),
            exact,
            name: Share::new(n_paired, gold.len()).value(),
            arguments: Share::right_arguments(&calls).value(),
            valid: Share::new(n_valid, predicted.len()).value(),
            malformed: is_malformed,
            cut: is_cut,
            empty: answer.end == AnswerEnd::Empty,
            invented: predicted
                .iter()
                .any(|call| item.tools.is_unknown(&call.name)),
            unwanted: (!wants).then_some(is_called),
            missed: wants.then_some(!is_called),
            n_extra: if wants { predicted.len() - n_paired } else { 0 },
            n_valid,
            n_unchecked: checks.iter().filter(|check| check.is_unchecked).count(),
            calls,
            dialect: answer.dialect,
            faults,
        }
    }

    /// Checks whether a call is valid for its tool.
    pub(super) fn check(&mut self, call: &WrittenCall, tools: &ToolSet) -> Check {
        let mut check = Check::default();
        let Some(tool) = tools.find_tool(&call.name) else {
            if tools.is_unknown(&call.name) {
                check.faults.push(Fault {
                    rule: Rule::InventedName,
                    message: format!(
                        "unknown tool {}{}",
                        call.name,
                        did_you_mean(&call.name, tools.names())
                    ),
                });
            } else {
                check.is_valid = true;
                check.is_unchecked = true;
            }
            return check;
        };
        let undeclared = call.arguments.keys().filter(|key| !is_declared(tool, key));
        check
            .names
            .extend(undeclared.map(|key| unknown_argument(&call.name, key)));
        check.is_valid = check.names.is_empty();
        let Some(schema) = &tool.parameters else {
            check.is_unchecked = true;
            return check;
        };
        // Formats are annotations, because the references of the benchmarks that define these
        // metrics contain dates such as "20 July 2026".
        let Ok(checker) = self.checkers.get_or_compile(schema, |schema| {
            Ok::<_, Infallible>(BoundedValidator::new(schema).ok())
        });
        let Some(checker) = &*checker else {
            check.is_unchecked = true;
            return check;
        };
        let schema_faults = checker.faults(&Value::Object(call.arguments.clone()));
        check.is_valid &= schema_faults.is_empty();
        for schema_fault in schema_faults {
            let is_of_names = matches!(&*schema_fault.rule, "required" | "additionalProperties");
            let location = schema_fault.place.to_string();
            let faults = if location.is_empty() && is_of_names {
                &mut check.names
            } else {
                &mut check.faults
            };
            faults.push(Fault {
                rule: Rule::Schema,
                message: format!(
                    "{}{}: {}",
                    call.name,
                    location.replace('/', "."),
                    schema_fault.masked
                ),
            });
        }
        check
    }
}

/// Result of checking a call against its tool.
#[derive(Default)]
pub(super) struct Check {
    pub(super) is_valid: bool,
    is_unchecked: bool,
    /// Missing or undeclared arguments, which the comparison with an expected call also reports.
    pub(super) names: Vec<Fault>,
    pub(super) faults: Vec<Fault>,
}

/// The rule that the end of an answer breaks, if any.
fn end_fault(end: AnswerEnd, wants_calls: bool) -> Option<Fault> {
    let (rule, message) = match end {
        AnswerEnd::Cut => (Rule::Cut, "the answer was cut off"),
        AnswerEnd::Empty if !wants_calls => {
            (Rule::Empty, "the answer is empty, but text is expected")
        }
        AnswerEnd::Empty | AnswerEnd::Whole => return None,
    };
    Some(Fault {
        rule,
        message: message.to_owned(),
    })
}

fn unpaired_fault(call: &WrittenCall, wants_text: bool) -> Fault {
    if wants_text {
        Fault {
            rule: Rule::UnwantedCall,
            message: format!("unexpected call to {}: text is expected", call.name),
        }
    } else {
        Fault {
            rule: Rule::ExtraCall,
            message: format!("unexpected call to {}", call.name),
        }
    }
}

/// Pairs each expected call with a predicted call to the same tool: exact matches first, then the
/// calls with the most correct arguments.
pub(super) fn pair_calls<'c>(
    gold: &'c [WrittenCall],
    predicted: &'c [WrittenCall],
    tools: &ToolSet,
) -> Vec<Pair<'c>> {
    let mut by_name: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (idx, call) in gold.iter().enumerate() {
        by_name.entry(&call.name).or_default().0.push(idx);
    }
    for (idx, call) in predicted.iter().enumerate() {
        if let Some((_, of_name)) = by_name.get_mut(call.name.as_str()) {
            of_name.push(idx);
        }
    }
    let mut pairs = Vec::new();
    for (name, (mut gold_idxs, mut predicted_idxs)) in by_name {
        let tool = tools.find_tool(name);
        let compare_at =
            |gold_idx: usize, made_idx: usize| compare(tool, &gold[gold_idx], &predicted[made_idx]);
        // Predicted calls that exactly match one expected call also match the same other expected
        // calls, so the first of them suffices.
        gold_idxs.retain(|&gold| {
            let exact_match =
                predicted_idxs
                    .iter()
                    .enumerate()
                    .find_map(|(position, &predicted)| {
                        let comparison = compare_at(gold, predicted);
                        comparison
                            .is_exact()
                            .then_some((position, predicted, comparison))
                    });
            let Some((position, predicted, comparison)) = exact_match else {
                return true;
            };
            predicted_idxs.remove(position);
            pairs.push(Pair {
                gold,
                made: predicted,
                comparison,
            });
            false
        });
        let gains: Vec<Vec<i64>> = gold_idxs
            .iter()
            .map(|&gold| {
                predicted_idxs
                    .iter()
                    .map(|&predicted| compare_at(gold, predicted).gain())
                    .collect()
            })
            .collect();
        for (row, column) in max_gain_pairs(&gains) {
            let (gold, predicted) = (gold_idxs[row], predicted_idxs[column]);
            pairs.push(Pair {
                gold,
                made: predicted,
                comparison: compare_at(gold, predicted),
            });
        }
    }
    pairs.sort_unstable_by_key(|pair| pair.gold);
    pairs
}

impl Comparison<'_> {
    fn is_exact(&self) -> bool {
        self.differences.is_empty()
    }

    /// More correct arguments first, then fewer differences.
    fn gain(&self) -> i64 {
        const MAX_DIFFERENCES: usize = 1_000_000;
        let n_differences = self.differences.len().min(MAX_DIFFERENCES);
        self.n_right as i64 * MAX_DIFFERENCES as i64 - n_differences as i64
    }
}

impl Difference<'_> {
    fn to_fault(&self, tool: &str) -> Fault {
        let key = self.key;
        let message = match (self.expected_value, self.predicted) {
            (Some(expected), Some(predicted)) => format!(
                "{tool}.{key} is {}, expected {}",
                display_value(predicted, expected),
                display_value(expected, predicted)
            ),
            (Some(_), None) if self.rule == Rule::MissingRequired => {
                format!("{tool} lacks the required argument {key}")
            }
            (Some(expected), None) => {
                format!("{tool} lacks {key}, expected {}", shorten_json(expected))
            }
            (None, _) if self.rule == Rule::UnknownArgument => {
                return unknown_argument(tool, key);
            }
            (None, predicted) => {
                let predicted = predicted.map(shorten_json).unwrap_or_default();
                format!("{tool}.{key} is {predicted}, but is not expected")
            }
        };
        Fault {
            rule: self.rule,
            message,
        }
    }
}

fn compare<'c>(
    tool: Option<&DeclaredTool>,
    gold: &'c WrittenCall,
    predicted: &'c WrittenCall,
) -> Comparison<'c> {
    let schema = tool.and_then(|tool| tool.parameters.as_ref());
    let schema = schema.map(Schema::from_root);
    let mut n_right = 0;
    let mut differences = Vec::new();
    for (key, expected) in &gold.arguments {
        let part = schema.and_then(|schema| schema.property(key));
        let predicted_value = predicted.arguments.get(key);
        let value_or_default = predicted_value.or_else(|| part.and_then(Schema::default));
        if value_or_default.is_some_and(|value| is_same(part, expected, value)) {
            n_right += 1;
            continue;
        }
        let requires = |tool: &DeclaredTool| tool.required.iter().any(|required| required == key);
        let rule = match predicted_value {
            Some(_) => Rule::Value,
            None if tool.is_some_and(requires) => Rule::MissingRequired,
            None => Rule::MissingArgument,
        };
        differences.push(Difference {
            rule,
            key,
            expected_value: Some(expected),
            predicted: predicted_value,
        });
    }
    let n_before = differences.len();
    let unwanted = unwanted_arguments(schema, &gold.arguments, &predicted.arguments);
    differences.extend(unwanted.map(|(key, predicted_value)| Difference {
        rule: if tool.is_some_and(|tool| !is_declared(tool, key)) {
            Rule::UnknownArgument
        } else {
            Rule::UnwantedArgument
        },
        key,
        expected_value: None,
        predicted: Some(predicted_value),
    }));
    Comparison {
        n_arguments: gold.arguments.len() + differences.len() - n_before,
        n_right,
        differences,
    }
}

fn unknown_argument(tool: &str, key: &str) -> Fault {
    Fault {
        rule: Rule::UnknownArgument,
        message: format!("{tool} has no argument {key}"),
    }
}

/// The predicted arguments that are neither in the gold call nor equal to their schema's default.
fn unwanted_arguments<'m>(
    schema: Option<Schema<'_>>,
    gold: &Map<String, Value>,
    predicted: &'m Map<String, Value>,
) -> impl Iterator<Item = (&'m String, &'m Value)> {
    predicted.iter().filter(move |(key, value)| {
        let part = schema.and_then(|schema| schema.property(key));
        let default = part.and_then(Schema::default);
        !gold.contains_key(*key) && !default.is_some_and(|default| is_same(part, default, value))
    })
}

fn is_declared(tool: &DeclaredTool, key: &str) -> bool {
    let arguments = tool.arguments.as_ref();
    arguments.is_none_or(|declared| declared.iter().any(|name| name == key))
}

/// A value as JSON, preceded by its type if the other value has a different type.
fn display_value(value: &Value, other: &Value) -> String {
    let (kind, text) = (kind_of(value), shorten_json(value));
    if kind == kind_of(other) || value.is_null() {
        text
    } else {
        format!("{kind} {text}")
    }
}

/// The start of a value as JSON.
fn shorten_json(value: &Value) -> String {
    const MAX_CHARACTERS: usize = 80;
    let text = json::dumps(value, Style::Python);
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A fraction of a total.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) n: usize,
    pub(super) n_all: usize,
}

impl Share {
    pub(super) fn new(n: usize, n_all: usize) -> Self {
        Self { n, n_all }
    }

    /// The right arguments of calls.
    pub(super) fn right_arguments<'c>(calls: impl IntoIterator<Item = &'c CallScore>) -> Self {
        let zero = Self::new(0, 0);
        calls.into_iter().fold(zero, |sum, call| Self {
            n: sum.n + call.n_right_arguments,
            n_all: sum.n_all + call.n_arguments,
        })
    }

    fn value(self) -> Option<f64> {
        (self.n_all > 0).then(|| self.n as f64 / self.n_all as f64)
    }
}
