//! Programs against hard-coded answers, generation, resizing, hostile responses, and the
//! published layout.

mod generation;
mod hostile;
mod programs;
mod published;

use serde_json::{Value, json};

use super::*;

/// Ten flights. Prices: 120, 80.5, 80.5, 300, 95, 60, 410, 150, 75, 220.
fn flights() -> Value {
    let rows = [
        ("F1", "Oslo", 120.0, 2, true),
        ("F2", "Rome", 80.5, 0, false),
        ("F3", "Oslo", 80.5, 1, true),
        ("F4", "Paris", 300.0, 0, true),
        ("F5", "Rome", 95.0, 1, false),
        ("F6", "Oslo", 60.0, 2, false),
        ("F7", "Paris", 410.0, 0, true),
        ("F8", "Oslo", 150.0, 0, true),
        ("F9", "Rome", 75.0, 1, true),
        ("F10", "Paris", 220.0, 3, false),
    ];
    let flights = rows.map(|(number, to, total, stops, meal)| {
        json!({"number": number, "to": to, "price": {"total": total, "currency": "EUR"}, "stops": stops, "meal": meal})
    });
    json!({"status": "ok", "data": {"page": 3, "flights": flights}})
}

fn input(response_id: &str, response: Value) -> InputResponse {
    InputResponse {
        response_id: response_id.to_owned(),
        endpoint: "flights".to_owned(),
        split: "synth".to_owned(),
        response,
    }
}

fn options(rows: usize, seed: u64) -> ToolQaSynthOptions<'static> {
    ToolQaSynthOptions {
        rows,
        seed,
        target_tokens: Vec::new(),
        answer_positions: Vec::new(),
        templates: Vec::new(),
        count_tokens: &estimated_tokens,
    }
}

fn generate(
    responses: Vec<InputResponse>,
    options: ToolQaSynthOptions<'_>,
) -> (Vec<SynthQuestion>, BTreeMap<&'static str, usize>) {
    let rows = options.rows;
    let mut generator = QuestionGenerator::new(responses, options).expect("options");
    let questions: Vec<SynthQuestion> = (0..rows).filter_map(|row| generator.draw(row)).collect();
    assert_eq!(questions.len() + generator.n_missing(), rows);
    (questions, generator.dropped().clone())
}
