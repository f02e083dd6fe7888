//! Draws the value of a field, as JSON and as text.
//!
//! Both are built from one string, so that the text states a value exactly as the JSON contains it.
//! Fractions never end in zero, because JSON would drop the zero.

use serde_json::{Value, json};
use tooltune_rows::batches::SeededRandom;

use super::field::{Field, Kind};
use super::vocabulary::VOCABULARY;

/// A drawn value.
#[derive(Debug, Clone)]
pub(super) struct FieldValue {
    pub(super) json: Value,
    /// The value in a text, including the unit; for a flag, the clause that states it.
    pub(super) text: String,
}

/// Picks one of `items`, which must not be empty.
pub(crate) fn pick<'a, T>(items: &'a [T], random: &mut SeededRandom) -> &'a T {
    &items[random.below(items.len())]
}

/// Returns true with a probability of `percent`.
pub(crate) fn happens(percent: usize, random: &mut SeededRandom) -> bool {
    random.below(100) < percent
}

/// Up to `n` distinct elements of `items`, in random order.
pub(crate) fn sample<'a, T>(items: &'a [T], n: usize, random: &mut SeededRandom) -> Vec<&'a T> {
    let mut sampled: Vec<&T> = items.iter().collect();
    random.shuffle(&mut sampled);
    sampled.truncate(n);
    sampled
}

/// Draws a value of `field`.
pub(super) fn draw(field: &Field, random: &mut SeededRandom) -> FieldValue {
    match &field.kind {
        Kind::Int(low, high) => with_unit(json!(random_between(*low, *high, random)), &field.unit),
        Kind::Tenths(low, high) => {
            let tenths = match random_between(*low, *high, random) {
                whole if whole.is_multiple_of(10) => whole + 1,
                fraction => fraction,
            };
            with_unit(json!(f64::from(tenths) / 10.0), &field.unit)
        }
        Kind::Flag(yes, no) => {
            let value = happens(50, random);
            FieldValue {
                json: json!(value),
                text: if value { yes } else { no }.clone(),
            }
        }
        kind => {
            let text = draw_string(kind, random);
            FieldValue {
                json: json!(text),
                text,
            }
        }
    }
}

fn random_between(low: u32, high: u32, random: &mut SeededRandom) -> u32 {
    low + random.below((high - low + 1) as usize) as u32
}

fn with_unit(json: Value, unit: &str) -> FieldValue {
    let text = if unit.is_empty() {
        json.to_string()
    } else {
        format!("{json} {unit}")
    };
    FieldValue { json, text }
}

fn draw_string(kind: &Kind, random: &mut SeededRandom) -> String {
    match kind {
        Kind::Person => {
            let first_name = pick(&VOCABULARY.first_names, random);
            format!("{first_name} {}", pick(&VOCABULARY.last_names, random))
        }
        Kind::Place => pick(&VOCABULARY.places, random).clone(),
        Kind::Address => {
            let number = 1 + random.below(98);
            format!("{number} {}", pick(&VOCABULARY.streets, random))
        }
        Kind::Company => pick(&VOCABULARY.companies, random).clone(),
        Kind::Date => {
            let (year, month, day) = (2018, 1 + random.below(12), 1 + random.below(28));
            format!("{}-{month:02}-{day:02}", year + random.below(8))
        }
        Kind::Time => format!("{:02}:{:02}", 6 + random.below(17), 5 * random.below(12)),
        Kind::Code(prefix) => format!("{prefix}-{}", 100 + random.below(900)),
        Kind::Text(values) | Kind::Choice(values) => pick(values, random).clone(),
        Kind::Int(..) | Kind::Tenths(..) | Kind::Flag(..) => {
            unreachable!("drawn by its own type above")
        }
    }
}

/// The schema of a field's value.
pub(super) fn schema(field: &Field) -> Value {
    match &field.kind {
        Kind::Int(..) => json!({"type": "integer"}),
        Kind::Tenths(..) => json!({"type": "number"}),
        Kind::Flag(..) => json!({"type": "boolean"}),
        Kind::Choice(values) => json!({"type": "string", "enum": values}),
        _ => json!({"type": "string"}),
    }
}
