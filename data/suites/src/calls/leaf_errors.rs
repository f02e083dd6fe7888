//! Classifies the errors of a turn's arguments leaf by leaf.

use serde_json::{Map, Value};

use super::answer::{AnswerEnd, CallsAnswer, WrittenCall};
use super::item::CallsItem;
use super::same::is_same;
use super::score::pair_calls;
use super::tools::Schema;
use crate::leaf_errors::{ComparedCall, LeafErrors};

impl CallsItem {
    /// The errors of an answer's arguments. Calls are paired and values are compared as in
    /// [`CallsScorer::score_turn`](super::CallsScorer::score_turn), so a right call has no errors.
    pub fn leaf_errors(&self, answer: &CallsAnswer) -> LeafErrors {
        let pairs = pair_calls(&self.gold, &answer.calls, &self.tools);
        let pairs: Vec<(usize, usize)> = pairs.iter().map(|pair| (pair.gold, pair.made)).collect();
        let compared = |call: &WrittenCall| ComparedCall::new(&call.name, call.arguments.clone());
        let reference: Vec<ComparedCall> = self.gold.iter().map(compared).collect();
        let mut predicted: Vec<ComparedCall> = answer.calls.iter().map(compared).collect();
        for (gold, made) in &pairs {
            let wanted = &self.gold[*gold];
            let tool = self.tools.find_tool(&wanted.name);
            let schema = tool.and_then(|tool| tool.parameters.as_ref());
            let schema = schema.map(Schema::from_root);
            let arguments = &answer.calls[*made].arguments;
            predicted[*made].arguments = Some(Value::Object(with_defaults(
                schema,
                &wanted.arguments,
                arguments,
            )));
        }
        let finish_reasons: &[&str] = match answer.end {
            AnswerEnd::Cut => &["length"],
            AnswerEnd::Whole | AnswerEnd::Empty => &[],
        };
        let is_malformed = !answer.malformed.is_empty();
        LeafErrors::compare_calls(&reference, &predicted, &pairs, is_malformed, finish_reasons)
    }
}

/// The predicted fields, in which a missing field and its default are written as in the reference.
fn with_defaults(
    schema: Option<Schema<'_>>,
    reference: &Map<String, Value>,
    predicted: &Map<String, Value>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    for (key, value) in predicted {
        let part = schema.and_then(|schema| schema.property(key));
        match reference.get(key) {
            Some(wanted) => {
                fields.insert(key.clone(), value_with_defaults(part, wanted, value));
            }
            None => {
                let default = part.and_then(Schema::default);
                if !default.is_some_and(|default| is_same(part, default, value)) {
                    fields.insert(key.clone(), value.clone());
                }
            }
        }
    }
    for (key, wanted) in reference {
        let part = schema.and_then(|schema| schema.property(key));
        let default = part.and_then(Schema::default);
        if !predicted.contains_key(key)
            && default.is_some_and(|default| is_same(part, default, wanted))
        {
            fields.insert(key.clone(), wanted.clone());
        }
    }
    fields
}

fn value_with_defaults(schema: Option<Schema<'_>>, wanted: &Value, value: &Value) -> Value {
    match (wanted, value) {
        (Value::Object(wanted), Value::Object(fields)) => {
            Value::Object(with_defaults(schema, wanted, fields))
        }
        (Value::Array(wanted), Value::Array(items)) => {
            let item = |(idx, item): (usize, &Value)| match wanted.get(idx) {
                Some(wanted) => {
                    value_with_defaults(schema.and_then(|schema| schema.item(idx)), wanted, item)
                }
                None => item.clone(),
            };
            Value::Array(items.iter().enumerate().map(item).collect())
        }
        _ => value.clone(),
    }
}
