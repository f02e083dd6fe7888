//! Scores one answer: which of the wanted calls it makes, and which rule it breaks.

use std::collections::BTreeMap;
use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_rows::json::{self, Style};
use tooltune_rows::json_schema::{BoundedValidator, KeptBySchema};
use tooltune_rows::text::DeclaredTool;
use tooltune_rows::tools::{did_you_mean, kind_of};

use super::answer::{CallsAnswer, WrittenCall};
use super::item::CallsItem;
use super::pairing::best_pairs;
use super::read::CallDialect;
use super::same::is_same;
use super::tools::{Schema, ToolSet};

/// A rule of a turn that an answer breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// What is to be a call can be read as one.
    Malformed,
    /// A call is of a tool that there is.
    InventedName,
    /// Calls are made where some are wanted.
    MissedCall,
    /// No more calls are made than are wanted.
    ExtraCall,
    /// No call is made where a text is wanted.
    UnwantedCall,
    /// An argument has the wanted value.
    Value,
    /// An argument that is wanted is there.
    MissingArgument,
    /// An argument that the tool requires is there.
    MissingRequired,
    /// An argument is wanted.
    UnwantedArgument,
    /// An argument is one of the tool's.
    UnknownArgument,
    /// The arguments are valid under the tool's schema.
    Schema,
}

/// A rule that an answer breaks, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which.
    pub rule: Rule,
    /// What was found where, and what was wanted.
    pub message: String,
}

/// What became of a wanted call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallScore {
    /// The tool that is wanted.
    pub tool: String,
    /// Levels of objects and lists in its schema; none where the schema is not known.
    pub depth: Option<usize>,
    /// Whether the answer has a call of the tool for it.
    pub name: bool,
    /// Wanted arguments, and given ones that are not wanted.
    pub n_arguments: usize,
    /// Those of them that are right.
    pub n_right_arguments: usize,
    /// Whether the call is made, and all of its arguments are right.
    pub exact: bool,
}

/// The scores of one answer. A share is none where nothing of its kind is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnScore {
    /// Calls that are wanted.
    pub n_wanted: usize,
    /// Calls that are made.
    pub n_made: usize,
    /// Whether the answer is the gold's: `exact`, or no call where a text is wanted.
    pub right: bool,
    /// Whether the wanted calls are made, all of their arguments right, and nothing else.
    pub exact: Option<bool>,
    /// Share of the wanted calls whose tool is called for them.
    pub name: Option<f64>,
    /// Share of right arguments, over those that are wanted or given.
    pub arguments: Option<f64>,
    /// Share of the calls made that their tool takes: the name exists, the arguments are declared
    /// and valid.
    pub valid: Option<f64>,
    /// Whether something is to be a call and is none.
    pub malformed: bool,
    /// Whether a call is of a tool that there is not.
    pub invented: bool,
    /// Whether a call is made, or begun, where a text is wanted.
    pub unwanted: Option<bool>,
    /// Whether no call is made, nor begun, where one is wanted.
    pub missed: Option<bool>,
    /// Calls that stand for no wanted one, where some are wanted.
    pub n_extra: usize,
    /// Calls that their tool takes.
    pub n_valid: usize,
    /// Calls of tools whose parameters are no usable JSON Schema; their names alone are checked.
    pub n_unchecked: usize,
    /// The wanted calls.
    pub calls: Vec<CallScore>,
    /// How the calls are written; none without calls.
    pub dialect: Option<CallDialect>,
    /// Every rule that is broken.
    pub faults: Vec<Fault>,
}

/// Scores answers, with the compiled schemas of earlier ones kept.
#[derive(Debug, Default)]
pub struct CallsScorer {
    /// None where a schema is unusable.
    checkers: KeptBySchema<Option<BoundedValidator>>,
}

/// Scores one answer; for more of them use a [`CallsScorer`], which compiles each schema once.
pub fn score_turn(item: &CallsItem, answer: &CallsAnswer) -> TurnScore {
    CallsScorer::default().score_turn(item, answer)
}

/// How a call that is made compares with a wanted one of the same tool.
struct Comparison<'c> {
    n_arguments: usize,
    n_right: usize,
    differences: Vec<Difference<'c>>,
}

/// An argument that is not the wanted one.
struct Difference<'c> {
    rule: Rule,
    key: &'c str,
    wanted: Option<&'c Value>,
    given: Option<&'c Value>,
}

/// A wanted call and the one that is made for it.
struct Pair<'c> {
    gold: usize,
    made: usize,
    comparison: Comparison<'c>,
}

impl CallsScorer {
    /// Scores an answer, with nested arguments.
    pub fn score_turn(&mut self, item: &CallsItem, answer: &CallsAnswer) -> TurnScore {
        let (gold, made) = (&item.gold, &answer.calls);
        let pairs = paired(gold, made, &item.tools);
        let mut faults: Vec<Fault> = Vec::new();
        let malformed = answer.malformed.iter().cloned();
        faults.extend(malformed.map(|message| Fault {
            rule: Rule::Malformed,
            message,
        }));
        let mut checks = Vec::with_capacity(made.len());
        for call in made {
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
        let mut is_paired = vec![false; made.len()];
        for pair in pairs {
            is_paired[pair.made] = true;
            let score = &mut calls[pair.gold];
            score.name = true;
            score.n_arguments = pair.comparison.n_arguments;
            score.n_right_arguments = pair.comparison.n_right;
            score.exact = pair.comparison.is_exact();
            if !score.exact {
                let differences = pair.comparison.differences.iter();
                faults.extend(differences.map(|one| one.fault(&score.tool)));
                faults.append(&mut checks[pair.made].faults);
            }
        }
        for ((call, check), is_paired) in made.iter().zip(&mut checks).zip(&is_paired) {
            if !is_paired {
                faults.push(unpaired(call, gold.is_empty()));
                faults.append(&mut check.names);
                faults.append(&mut check.faults);
            }
        }
        faults.extend(calls.iter().filter(|call| !call.name).map(|call| Fault {
            rule: Rule::MissedCall,
            message: format!("{} is wanted and not called", call.tool),
        }));
        let n_valid = checks.iter().filter(|check| check.is_valid).count();
        let is_malformed = !answer.malformed.is_empty();
        let is_called = !made.is_empty() || is_malformed;
        let wants = !gold.is_empty();
        let n_paired = is_paired.iter().filter(|paired| **paired).count();
        let all_exact = calls.iter().all(|call| call.exact) && n_paired == made.len();
        let exact = wants.then_some(all_exact && !is_malformed);
        TurnScore {
            n_wanted: gold.len(),
            n_made: made.len(),
            right: exact.unwrap_or(!is_called),
            exact,
            name: Share::new(n_paired, gold.len()).value(),
            arguments: Share::of_arguments(&calls).value(),
            valid: Share::new(n_valid, made.len()).value(),
            malformed: is_malformed,
            invented: made.iter().any(|call| item.tools.is_invented(&call.name)),
            unwanted: (!wants).then_some(is_called),
            missed: wants.then_some(!is_called),
            n_extra: if wants { made.len() - n_paired } else { 0 },
            n_valid,
            n_unchecked: checks.iter().filter(|check| check.is_unchecked).count(),
            calls,
            dialect: answer.dialect,
            faults,
        }
    }

    /// Whether a tool takes a call, and why not.
    fn check(&mut self, call: &WrittenCall, tools: &ToolSet) -> Check {
        let mut check = Check::default();
        let Some(tool) = tools.named(&call.name) else {
            if tools.is_invented(&call.name) {
                check.faults.push(Fault {
                    rule: Rule::InventedName,
                    message: format!(
                        "no tool is called {}{}",
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
        let Ok(checker) = self.checkers.of(schema, |schema| {
            Ok::<_, Infallible>(BoundedValidator::new(schema).ok())
        });
        let Some(checker) = &*checker else {
            check.is_unchecked = true;
            return check;
        };
        let broken = checker.faults(&Value::Object(call.arguments.clone()));
        check.is_valid &= broken.is_empty();
        for one in broken {
            let is_of_names = matches!(&*one.rule, "required" | "additionalProperties");
            let place = one.place.to_string();
            let faults = if place.is_empty() && is_of_names {
                &mut check.names
            } else {
                &mut check.faults
            };
            faults.push(Fault {
                rule: Rule::Schema,
                message: format!("{}{}: {}", call.name, place.replace('/', "."), one.masked),
            });
        }
        check
    }
}

/// What a tool says of a call.
#[derive(Default)]
struct Check {
    is_valid: bool,
    is_unchecked: bool,
    /// Arguments that are missing or not declared; the comparison with a wanted call tells them.
    names: Vec<Fault>,
    faults: Vec<Fault>,
}

fn unpaired(call: &WrittenCall, wants_text: bool) -> Fault {
    if wants_text {
        Fault {
            rule: Rule::UnwantedCall,
            message: format!("{} is called where a text is wanted", call.name),
        }
    } else {
        Fault {
            rule: Rule::ExtraCall,
            message: format!("{} is called and not wanted", call.name),
        }
    }
}

/// Pairs each wanted call with one that is made of the same tool: calls that are exact first, then
/// those with the most right arguments.
fn paired<'c>(gold: &'c [WrittenCall], made: &'c [WrittenCall], tools: &ToolSet) -> Vec<Pair<'c>> {
    let mut by_name: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (idx, call) in gold.iter().enumerate() {
        by_name.entry(&call.name).or_default().0.push(idx);
    }
    for (idx, call) in made.iter().enumerate() {
        if let Some((_, of_name)) = by_name.get_mut(call.name.as_str()) {
            of_name.push(idx);
        }
    }
    let mut pairs = Vec::new();
    for (name, (mut wanted, mut given)) in by_name {
        let tool = tools.named(name);
        let compared =
            |gold_idx: usize, made_idx: usize| compared(tool, &gold[gold_idx], &made[made_idx]);
        // Calls that are exact to one are exact to the same others, so that the first will do.
        wanted.retain(|&gold| {
            let exact = given.iter().enumerate().find_map(|(place, &made)| {
                let comparison = compared(gold, made);
                comparison.is_exact().then_some((place, made, comparison))
            });
            let Some((place, made, comparison)) = exact else {
                return true;
            };
            given.remove(place);
            pairs.push(Pair {
                gold,
                made,
                comparison,
            });
            false
        });
        let worth: Vec<Vec<i64>> = wanted
            .iter()
            .map(|&gold| {
                given
                    .iter()
                    .map(|&made| compared(gold, made).worth())
                    .collect()
            })
            .collect();
        for (row, column) in best_pairs(&worth) {
            let (gold, made) = (wanted[row], given[column]);
            pairs.push(Pair {
                gold,
                made,
                comparison: compared(gold, made),
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

    /// Right arguments first, then few differences.
    fn worth(&self) -> i64 {
        const MAX_DIFFERENCES: usize = 1_000_000;
        let n_differences = self.differences.len().min(MAX_DIFFERENCES);
        self.n_right as i64 * MAX_DIFFERENCES as i64 - n_differences as i64
    }
}

impl Difference<'_> {
    fn fault(&self, tool: &str) -> Fault {
        let key = self.key;
        let message = match (self.wanted, self.given) {
            (Some(wanted), Some(given)) => format!(
                "{tool}.{key} is {}, not {}",
                shown(given, wanted),
                shown(wanted, given)
            ),
            (Some(_), None) if self.rule == Rule::MissingRequired => {
                format!("{tool} lacks {key}, which it requires")
            }
            (Some(wanted), None) => {
                format!("{tool} lacks {key}, which is to be {}", excerpt(wanted))
            }
            (None, _) if self.rule == Rule::UnknownArgument => {
                return unknown_argument(tool, key);
            }
            (None, given) => {
                let given = given.map(excerpt).unwrap_or_default();
                format!("{tool}.{key} is {given}, and is not wanted")
            }
        };
        Fault {
            rule: self.rule,
            message,
        }
    }
}

fn compared<'c>(
    tool: Option<&DeclaredTool>,
    gold: &'c WrittenCall,
    made: &'c WrittenCall,
) -> Comparison<'c> {
    let schema = tool.and_then(|tool| tool.parameters.as_ref());
    let schema = schema.map(Schema::whole);
    let mut n_right = 0;
    let mut differences = Vec::new();
    for (key, wanted) in &gold.arguments {
        let part = schema.and_then(|schema| schema.property(key));
        let given = made.arguments.get(key);
        let counted = given.or_else(|| part.and_then(Schema::default));
        if counted.is_some_and(|value| is_same(part, wanted, value)) {
            n_right += 1;
            continue;
        }
        let requires = |tool: &DeclaredTool| tool.required.iter().any(|one| one == key);
        let rule = match given {
            Some(_) => Rule::Value,
            None if tool.is_some_and(requires) => Rule::MissingRequired,
            None => Rule::MissingArgument,
        };
        differences.push(Difference {
            rule,
            key,
            wanted: Some(wanted),
            given,
        });
    }
    let n_before = differences.len();
    let unwanted = unwanted_arguments(schema, &gold.arguments, &made.arguments);
    differences.extend(unwanted.map(|(key, given)| Difference {
        rule: if tool.is_some_and(|tool| !is_declared(tool, key)) {
            Rule::UnknownArgument
        } else {
            Rule::UnwantedArgument
        },
        key,
        wanted: None,
        given: Some(given),
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

/// The given arguments that the gold does not have, and that are not their schema's defaults.
fn unwanted_arguments<'m>(
    schema: Option<Schema<'_>>,
    gold: &Map<String, Value>,
    made: &'m Map<String, Value>,
) -> impl Iterator<Item = (&'m String, &'m Value)> {
    made.iter().filter(move |(key, value)| {
        let part = schema.and_then(|schema| schema.property(key));
        let default = part.and_then(Schema::default);
        !gold.contains_key(*key) && !default.is_some_and(|default| is_same(part, default, value))
    })
}

fn is_declared(tool: &DeclaredTool, key: &str) -> bool {
    let arguments = tool.arguments.as_ref();
    arguments.is_none_or(|all| all.iter().any(|one| one == key))
}

/// A value as JSON, with its type where that is another than of the value that it is compared with.
fn shown(value: &Value, other: &Value) -> String {
    let (kind, text) = (kind_of(value), excerpt(value));
    if kind == kind_of(other) || value.is_null() {
        text
    } else {
        format!("{kind} {text}")
    }
}

/// The beginning of a value as JSON.
fn excerpt(value: &Value) -> String {
    const MAX_CHARACTERS: usize = 80;
    let text = json::dumps(value, Style::Python);
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Some of all there are.
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
    pub(super) fn of_arguments<'c>(calls: impl IntoIterator<Item = &'c CallScore>) -> Self {
        let none = Self::new(0, 0);
        calls.into_iter().fold(none, |sum, call| Self {
            n: sum.n + call.n_right_arguments,
            n_all: sum.n_all + call.n_arguments,
        })
    }

    fn value(self) -> Option<f64> {
        (self.n_all > 0).then(|| self.n as f64 / self.n_all as f64)
    }
}
