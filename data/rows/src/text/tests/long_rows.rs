//! Rows with thousands of turns or megabytes of text are prepared in bounded time and memory, or
//! rejected with the row, the limit and the fix.

use tooltune_template::budgets::TEMPLATE_TEXT_BYTES;
use tooltune_template::{ChatTemplate, SpecialTokens};

use super::*;

fn chat(n_turns: usize) -> Row {
    let turns = (0..n_turns).flat_map(|i| turn(&format!("Question {i}?"), &format!("Answer {i}.")));
    row(turns.collect())
}

fn prepare_row(row: &Row, template: &ChatTemplate, train_on: TrainOn) -> Result<usize, DataError> {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask.train_on = train_on;
    options.max_length = usize::MAX;
    let TokenizeOutcome::Example { example, .. } =
        tokenize_row(row, template, &tokenizer, &options)?
    else {
        panic!("dropped")
    };
    let stop = options.stop_ids[0];
    let tokens = example.input_ids.iter().zip(&example.loss_weights);
    Ok(tokens
        .filter(|&(id, weight)| *id == stop && *weight > 0.0)
        .count())
}

#[test]
fn every_turn_of_a_chat_with_2000_messages_is_supervised() {
    let chat = chat(1_000);
    assert_eq!(
        prepare_row(&chat, &chatml(), TrainOn::Assistant).unwrap(),
        1_000
    );
    assert_eq!(
        prepare_row(&chat, &chatml(), TrainOn::LastAssistant).unwrap(),
        1
    );
}

/// Invariant: The renderings of a row and the memory of a text are bounded.
#[test]
fn a_row_whose_turns_take_too_many_renderings_is_refused_with_the_setting() {
    let chat = chat(10_000);
    let error = prepare_row(&chat, &chatml(), TrainOn::Assistant).unwrap_err();
    let error = error.to_string();
    for part in ["row: ", "ROW_STEPS in docs/limits.md", "mask.train_on"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(
        prepare_row(&chat, &chatml(), TrainOn::LastAssistant).unwrap(),
        1
    );
    // The count is per row: the next row starts at zero.
    let short = self::chat(10);
    assert_eq!(
        prepare_row(&short, &chatml(), TrainOn::Assistant).unwrap(),
        10
    );
}

/// Without markers in the text, each message is located by a separate rendering.
#[test]
fn renderings_that_locate_messages_one_by_one_count_against_the_budget() {
    let numbers = "{% for m in messages %}{{ m.content | length }}<|im_end|>\n{% endfor %}\
                   {% if add_generation_prompt %}{% endif %}";
    let template = ChatTemplate::new(numbers, SpecialTokens::default()).unwrap();
    let error = prepare_row(&chat(10_000), &template, TrainOn::LastAssistant);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("ROW_STEPS in docs/limits.md"), "{error}");
}

/// Invariant: The renderings of a row and the memory of a text are bounded.
#[test]
fn a_row_with_megabytes_of_text_is_refused_with_its_id() {
    let long = row(turn(&"word ".repeat(TEMPLATE_TEXT_BYTES / 5), "Yes.").into());
    let template = chatml().with_origin("model/chat_template.jinja");
    let error = prepare_row(&long, &template, TrainOn::Completion);
    let error = error.unwrap_err().to_string();
    for part in [
        "row: chat template",
        "TEMPLATE_TEXT_BYTES in docs/limits.md",
        "shorten the row",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
