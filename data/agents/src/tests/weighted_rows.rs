//! Renders and tokenizes trajectories, and checks the weights of their tokens.

use std::path::Path;

use tooltune_rows::text::{
    ArgumentMask, MaskConfig, OnOverflow, PrepareOptions, Row, Specials, Tokenizer, inspect_row,
    prepare,
};
use tooltune_template::{ChatTemplate, SpecialTokens};

use super::*;

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn tools(mask: ArgumentMask) -> (ChatTemplate, Tokenizer, PrepareOptions) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/tiny_tokenizer/tokenizer.json");
    let tokenizer = Tokenizer::from_file(&path).unwrap();
    let options = PrepareOptions {
        mask: MaskConfig {
            arguments: mask,
            ..MaskConfig::default()
        },
        max_length: 8192,
        on_overflow: OnOverflow::Error,
        stop_ids: vec![tokenizer.token_to_id("<|im_end|>").unwrap()],
    };
    let template = ChatTemplate::new(CHATML, SpecialTokens::default()).unwrap();
    (template, tokenizer, options)
}

fn rows(method: Method, weights: KindWeights) -> Vec<Row> {
    let catalogue = catalogue();
    let options = GoatOptions {
        weights,
        ..options(method)
    };
    let expansion = Expansion {
        catalogue: &catalogue,
        options: &options,
        seed: 5,
    };
    let trajectories = [Ok::<_, DataError>(trajectory())];
    goat_rows(trajectories, expansion, Ranking::Random)
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn argument_values_are_masked_and_the_rest_of_a_completion_is_supervised() {
    let (template, tokenizer, options) = tools(ArgumentMask::All);
    let rows = rows(Method::React, KindWeights::default());
    let prepared = prepare(rows.into_iter().map(Ok), &template, &tokenizer, &options).unwrap();
    let supervised_texts: Vec<String> = prepared
        .examples
        .iter()
        .map(|example| {
            let mut text = String::new();
            for (&id, &weight) in example.input_ids.iter().zip(&example.loss_weights) {
                if weight > 0.0 {
                    text += &tokenizer.decode(&[id], Specials::Keep).unwrap();
                } else if !text.ends_with('…') {
                    text.push('…');
                }
            }
            text
        })
        .collect();
    assert_eq!(
        supervised_texts,
        [
            "…Thought: Get the quote of BOLX.\nAction: {\"name\": \"Stocks/Quote\", \"arguments\": \
             {\"symbol\": \"…\"}}<|im_end|>…",
            "…Thought: Convert the price to DSD.\nAction: {\"name\": \"Stocks/Convert\", \"arguments\": \
             {\"amount\":…, \"from\": [\"…\", \"…\"], \"to\": \"…\"}}<|im_end|>…",
            "…Finish: It is 12.91 DSD.<|im_end|>…",
        ]
    );
}

#[test]
fn inspection_shows_masked_argument_values() {
    let rows = rows(Method::Global, KindWeights::default());
    for (mask, masked) in [
        (ArgumentMask::None, vec![]),
        (ArgumentMask::Fixed, vec!["DSD"]),
        (ArgumentMask::Derived, vec!["385.62", "BVK", "é"]),
        (ArgumentMask::All, vec!["385.62", "BVK", "é", "DSD"]),
    ] {
        let (template, tokenizer, options) = tools(mask);
        let inspected = inspect_row(&rows[2], &template, &tokenizer, &options).unwrap();
        assert_eq!(
            (inspected.id.as_str(), inspected.argument_values.len()),
            ("t1/call-2", 4)
        );
        let hidden: Vec<&str> = inspected
            .argument_values
            .iter()
            .filter(|value| value.is_masked)
            .map(|value| value.text.as_str())
            .collect();
        assert_eq!(hidden, masked, "{mask:?}");
    }
}

#[test]
fn the_weight_of_a_kind_applies_to_its_tokens() {
    let (template, tokenizer, options) = tools(ArgumentMask::All);
    let weights = KindWeights {
        call: 0.25,
        ..KindWeights::default()
    };
    let rows = rows(Method::Global, weights);
    let prepared = prepare(rows.into_iter().map(Ok), &template, &tokenizer, &options).unwrap();
    for example in &prepared.examples {
        let kind_weight = if example.id.contains("call") {
            0.25
        } else {
            1.0
        };
        assert!(
            example
                .loss_weights
                .iter()
                .all(|&weight| weight == 0.0 || weight == kind_weight),
            "{}",
            example.id
        );
    }
}

#[test]
fn a_failing_trajectory_is_one_error_and_the_next_one_follows() {
    let catalogue = catalogue();
    let options = options(Method::Global);
    let expansion = Expansion {
        catalogue: &catalogue,
        options: &options,
        seed: 5,
    };
    let mut broken_trajectory = trajectory();
    broken_trajectory.calls.clear();
    let read_error = DataError::NoStopIds;
    let trajectories = [Ok(broken_trajectory), Err(read_error), Ok(trajectory())];
    let mut n_asked = 0;
    let mut rank = |_: &str, k: usize| {
        n_asked += 1;
        (0..k).collect()
    };
    let rows: Vec<_> = goat_rows(trajectories, expansion, Ranking::Retriever(&mut rank)).collect();
    let faults: Vec<String> = rows
        .iter()
        .filter_map(|row| row.as_ref().err().map(ToString::to_string))
        .collect();
    assert_eq!((rows.len(), faults.len(), n_asked), (6, 2, 1));
    assert!(faults[0].starts_with("t1: calls is empty"), "{}", faults[0]);
}
