//! Draws templates that fit a response, from the structure of the response alone.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tooltune_rows::batches::SeededRandom;
use tooltune_suites::toolqa::TaskType;

use super::field_path::expression_of;
use super::program::{Ambiguity, Answer, Comparator, Condition, Program};
use super::response::{Field, Kind, RecordList, Shape};
use super::template::{Slot, Template};
use super::words::{names_an_identifier, nouns};
use crate::slot::pick;

pub(super) const NO_TEMPLATE: Ambiguity = "the response has no fields for the drawn template";

/// Draws a template of a drawn type. `is_of_one_record` restricts templates to those whose answer is in
/// one record.
///
/// # Errors
///
/// The list has no fields for the drawn template.
pub(super) fn draw_template(
    shape: &Shape,
    list: Option<&RecordList>,
    is_of_one_record: bool,
    random: &mut SeededRandom,
) -> Result<Template, Ambiguity> {
    use Answer::*;
    let task_types: &[TaskType] = if is_of_one_record {
        &[TaskType::Extractive, TaskType::Aggregation]
    } else {
        &TaskType::ALL
    };
    let task_type = *pick(task_types, random);
    let Some(list) = list else {
        return scalar_template(shape, random);
    };
    let draw = Draw { list, random };
    match task_type {
        // One in eight extractive questions asks about a value outside of the list.
        TaskType::Extractive
            if !is_of_one_record && draw.random.below(8) == 0 && !shape.scalars.is_empty() =>
        {
            scalar_template(shape, draw.random)
        }
        TaskType::Extractive => draw.value(),
        TaskType::Filtering => draw.filter(List),
        TaskType::Aggregation => {
            let answers: &[Answer] = if is_of_one_record {
                &[
                    Min, Max, Argmin, Argmax, NthLowest, NthHighest, LowerOf, HigherOf,
                ]
            } else {
                &[
                    Count, Exists, Min, Max, Sum, Mean, Argmin, Argmax, NthLowest, NthHighest,
                    LowerOf, HigherOf,
                ]
            };
            match *pick(answers, draw.random) {
                answer @ (Count | Exists) => draw.filter(answer),
                answer @ (Min | Max | Sum | Mean) => draw.number(answer),
                answer => draw.ranked(answer),
            }
        }
    }
}

/// Asks for a scalar outside of lists.
fn scalar_template(shape: &Shape, random: &mut SeededRandom) -> Result<Template, Ambiguity> {
    let usable: Vec<&Field> = shape
        .scalars
        .iter()
        .filter(|field| field.is_quotable)
        .collect();
    if usable.is_empty() {
        return Err(NO_TEMPLATE);
    }
    let field = pick(&usable, random);
    let expression = expression_of(&field.keys);
    Ok(Template {
        task: format!("value/{expression}"),
        task_type: TaskType::Extractive,
        metric: None,
        endpoint: None,
        question: format!(
            "What is the {} of the response? Return only the value.",
            field.words
        ),
        slots: BTreeMap::new(),
        program: Program {
            records: None,
            conditions: Vec::new(),
            answer: Answer::Value,
            field: Some(expression),
            by: None,
            n: None,
        },
    })
}

/// A list to ask about, and the source of random choices.
struct Draw<'l, 'r> {
    list: &'l RecordList,
    random: &'r mut SeededRandom,
}

/// A condition in words and as a condition of the program.
struct Clause {
    words: String,
    condition: Condition,
    slot: (String, Slot),
}

impl<'l> Draw<'l, '_> {
    fn one(&mut self, is_usable: impl Fn(&Field) -> bool) -> Result<&'l Field, Ambiguity> {
        let list = self.list;
        let usable: Vec<&'l Field> = list
            .fields
            .iter()
            .filter(|field| is_usable(field))
            .collect();
        if usable.is_empty() {
            return Err(NO_TEMPLATE);
        }
        Ok(*pick(&usable, self.random))
    }

    /// A field that names a record: nearly all values differ.
    fn label(&mut self) -> Result<&'l Field, Ambiguity> {
        let n = self.list.n;
        self.one(|field| {
            let is_name = match field.kind {
                Kind::Text => true,
                Kind::Number => names_an_identifier(&field.words),
                Kind::Flag => false,
            };
            is_name && field.is_quotable && field.n_present == n && field.n_distinct * 10 >= n * 9
        })
    }

    /// A number that can be ranked and added.
    fn quantity(&mut self) -> Result<&'l Field, Ambiguity> {
        let n = self.list.n;
        self.one(|field| {
            field.kind == Kind::Number && field.n_present == n && !names_an_identifier(&field.words)
        })
    }

    /// A condition on a category or on a number.
    fn clause(&mut self, slot: &str, kind: Option<Kind>) -> Result<(Clause, &'l Field), Ambiguity> {
        let n = self.list.n;
        let field = self.one(|field| {
            let is_condition = match field.kind {
                Kind::Number => !names_an_identifier(&field.words),
                _ => field.is_quotable && field.n_distinct * 2 <= n,
            };
            let is_kind =
                kind.is_none_or(|kind| (kind == Kind::Number) == (field.kind == Kind::Number));
            is_condition && is_kind && field.n_distinct > 1
        })?;
        let (words, comparator) = match field.kind {
            Kind::Number => *pick(
                &[
                    ("above", Comparator::Above),
                    ("below", Comparator::Below),
                    ("at least", Comparator::AtLeast),
                    ("at most", Comparator::AtMost),
                ],
                self.random,
            ),
            _ => ("", Comparator::Equal),
        };
        let value = match field.kind {
            Kind::Text => format!("\"{{{slot}}}\""),
            _ => format!("{words} {{{slot}}}").trim_start().to_owned(),
        };
        let name = match field.kind {
            // Names of flags are often not nouns, such as "is free".
            Kind::Flag => format!("\"{}\"", field.words),
            _ => field.words.clone(),
        };
        let expression = expression_of(&field.keys);
        let clause = Clause {
            words: format!("whose {name} is {value}"),
            condition: Condition(expression.clone(), comparator, json!(format!("{{{slot}}}"))),
            slot: (slot.to_owned(), Slot::Field(expression)),
        };
        Ok((clause, field))
    }

    fn template(&self, answer: Answer, task: &str, question: String) -> Template {
        let records = expression_of(&self.list.keys);
        let task_type = match answer {
            Answer::Value => TaskType::Extractive,
            Answer::List => TaskType::Filtering,
            _ => TaskType::Aggregation,
        };
        Template {
            task: format!("{task}/{records}"),
            task_type,
            metric: None,
            endpoint: None,
            question,
            slots: BTreeMap::new(),
            program: Program {
                records: Some(records),
                conditions: Vec::new(),
                answer,
                field: None,
                by: None,
                n: None,
            },
        }
    }

    fn nouns(&self) -> (String, String) {
        nouns(self.list.keys.last().map_or("", String::as_str))
    }

    fn value(mut self) -> Result<Template, Ambiguity> {
        let label = self.label()?;
        let field = self.one(|field| {
            field.keys != label.keys && field.is_quotable && field.kind != Kind::Flag
        })?;
        let (noun, _) = self.nouns();
        let key = match label.kind {
            Kind::Text => "\"{key}\"",
            _ => "{key}",
        };
        let question = format!(
            "What is the {} of the {noun} with the {} {key}? Return only the value.",
            field.words, label.words
        );
        let mut template = self.template(Answer::Value, "value", question);
        let label = expression_of(&label.keys);
        template
            .task
            .push_str(&format!(".{}", expression_of(&field.keys)));
        template.program.conditions =
            vec![Condition(label.clone(), Comparator::Equal, json!("{key}"))];
        template.program.field = Some(expression_of(&field.keys));
        template.slots.insert("key".to_owned(), Slot::Field(label));
        Ok(template)
    }

    /// Lists, counts or looks for the records that fulfil one or two conditions.
    fn filter(mut self, answer: Answer) -> Result<Template, Ambiguity> {
        let (noun, plural) = self.nouns();
        let (first, field) = self.clause("first", None)?;
        let mut clauses = vec![first];
        if self.random.below(2) == 0 {
            // The second condition is on a number if the first is not.
            let other = if field.kind == Kind::Number {
                Kind::Text
            } else {
                Kind::Number
            };
            clauses.extend(
                self.clause("second", Some(other))
                    .ok()
                    .map(|(clause, _)| clause),
            );
        }
        let words: Vec<&str> = clauses.iter().map(|clause| clause.words.as_str()).collect();
        let words = words.join(" and ");
        let (question, field) = match answer {
            Answer::Count => (
                format!("How many {plural} are there {words}? Return only the number."),
                None,
            ),
            Answer::Exists => (
                format!("Is there a {noun} {words}? Answer yes or no."),
                None,
            ),
            _ => {
                let label = self.label()?;
                let question = format!(
                    "List the {} of all {plural} {words}. Output a comma separated list.",
                    label.words
                );
                (question, Some(expression_of(&label.keys)))
            }
        };
        let task = match answer {
            Answer::Count => "count",
            Answer::Exists => "exists",
            _ => "list",
        };
        let mut template = self.template(answer, task, question);
        template.program.field = field;
        for Clause {
            condition, slot, ..
        } in clauses
        {
            template.task.push_str(&format!(".{}", condition.0));
            template.program.conditions.push(condition);
            template.slots.insert(slot.0, slot.1);
        }
        Ok(template)
    }

    fn number(mut self, answer: Answer) -> Result<Template, Ambiguity> {
        let quantity = self.quantity()?;
        let (_, plural) = self.nouns();
        let (task, adjective) = match answer {
            Answer::Min => ("min", "lowest"),
            Answer::Max => ("max", "highest"),
            Answer::Sum => ("sum", "total"),
            _ => ("mean", "average"),
        };
        let rounding = if answer == Answer::Mean {
            " Round it to two decimals."
        } else {
            ""
        };
        let question = format!(
            "What is the {adjective} {} of all {plural}?{rounding} Return only the number.",
            quantity.words
        );
        let mut template = self.template(answer, task, question);
        let field = expression_of(&quantity.keys);
        template.task.push_str(&format!(".{field}"));
        template.program.field = Some(field);
        Ok(template)
    }

    fn ranked(mut self, answer: Answer) -> Result<Template, Ambiguity> {
        let quantity = self.quantity()?;
        let label = self.label()?;
        let (noun, _) = self.nouns();
        let by = expression_of(&quantity.keys);
        let field = expression_of(&label.keys);
        let (task, adjective) = match answer {
            Answer::Argmin => ("argmin", "lowest"),
            Answer::Argmax => ("argmax", "highest"),
            Answer::NthLowest => ("nth_lowest", "lowest"),
            Answer::NthHighest => ("nth_highest", "highest"),
            Answer::LowerOf => ("lower_of", "lower"),
            _ => ("higher_of", "higher"),
        };
        let quote = if label.kind == Kind::Text { "\"" } else { "" };
        let (quantity, label) = (&quantity.words, &label.words);
        let question = match answer {
            Answer::NthLowest | Answer::NthHighest => format!(
                "If the {noun} with the {adjective} {quantity} has rank 1, what is the {label} of the {noun} with rank {{n}}? Return only the value."
            ),
            Answer::LowerOf | Answer::HigherOf => format!(
                "Which of the two has the {adjective} {quantity}, the {noun} with the {label} {quote}{{a}}{quote} or the one with {quote}{{b}}{quote}? Return only its {label}."
            ),
            _ => format!(
                "What is the {label} of the {noun} with the {adjective} {quantity}? Return only the value."
            ),
        };
        let mut template = self.template(answer, task, question);
        template.task.push_str(&format!(".{by}"));
        match answer {
            Answer::NthLowest | Answer::NthHighest => {
                let ranks = (2..=5).map(Value::from).collect();
                template.slots.insert("n".to_owned(), Slot::Values(ranks));
                template.program.n = Some(json!("{n}"));
            }
            Answer::LowerOf | Answer::HigherOf => {
                for name in ["a", "b"] {
                    template
                        .slots
                        .insert(name.to_owned(), Slot::Field(field.clone()));
                }
                template.program.conditions = vec![Condition(
                    field.clone(),
                    Comparator::In,
                    json!(["{a}", "{b}"]),
                )];
            }
            _ => {}
        }
        template.program.field = Some(field);
        template.program.by = Some(by);
        Ok(template)
    }
}
