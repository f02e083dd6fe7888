//! Masked argument values of calls in every call format.

use std::collections::BTreeSet;
use tooltune_template::{ChatTemplate, ContentValue, Message, Role, SpecialTokens, ValueOrigin};

use serde_json::json;

use super::*;

/// A family's template, and the tiny tokenizer with the special tokens that its turns need.
fn family(name: &str) -> (ChatTemplate, Tokenizer, PrepareOptions) {
    let directory = fixtures().join("chat_templates");
    let source =
        std::fs::read_to_string(directory.join(format!("templates/{name}.jinja"))).unwrap();
    let cases = std::fs::read_to_string(directory.join("cases.json")).unwrap();
    let special = &tooltune_json::parse(&cases).unwrap()["special_tokens"][name];
    let token = |key: &str| special[key].as_str().map(str::to_owned);
    let tokens = SpecialTokens {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        ..SpecialTokens::default()
    };
    let path = fixtures().join("tiny_tokenizer/tokenizer.json");
    let mut base = tokenizers::Tokenizer::from_file(path).unwrap();
    let added = [tokens.bos_token.clone(), tokens.eos_token.clone()]
        .into_iter()
        .flatten()
        .map(|token| tokenizers::AddedToken::from(token, true))
        .collect::<Vec<_>>();
    base.add_special_tokens(added).unwrap();
    let tokenizer = Tokenizer::from_tokenizers(base);
    let stop = tokenizer.token_to_id(&token("eos_token").unwrap()).unwrap();
    let options = PrepareOptions {
        stop_ids: vec![stop],
        ..super::options(&tokenizer)
    };
    (
        ChatTemplate::new(&source, tokens).unwrap(),
        tokenizer,
        options,
    )
}

fn booking() -> Message {
    let mut message = call(
        "book",
        json!({
            "city": "Oslo", "days": 12, "price": 3.5, "open": true, "note": "", "more": null,
            "tags": ["a\"b", {"k": "deep"}],
        }),
    );
    let only = &mut message.tool_calls[0];
    only.derived = BTreeSet::from(["days".to_owned(), "tags".to_owned()]);
    only.id = Some("abcdef123".to_owned());
    message
}

/// The supervised tokens of the row's answer as text, with `…` for each run of other tokens.
fn supervised_answer(row: &Row, family: &(ChatTemplate, Tokenizer, PrepareOptions)) -> String {
    let (template, tokenizer, options) = family;
    let outcome = tokenize_row(row, template, tokenizer, options).unwrap();
    let TokenizeOutcome::Example { example, .. } = outcome else {
        panic!("{outcome:?}")
    };
    let mut text = String::new();
    for (&id, &weight) in example.input_ids.iter().zip(&example.loss_weights) {
        if weight > 0.0 {
            text += &tokenizer.decode(&[id], Specials::Keep).unwrap();
        } else if !text.ends_with('…') {
            text.push('…');
        }
    }
    text
}

fn booking_row() -> Row {
    row(vec![Message::new(Role::User, "Go"), booking()])
}

const BLANKED: &str = "{\"city\": \"…\", \"days\":…, \"price\":…, \"open\":…, \"note\": \"\", \
                       \"more\": …, \"tags\": [\"…\", {\"k\": \"…\"}]}";

/// The native call format of each family with its values replaced by blanks.
fn formats() -> [(&'static str, String); 6] {
    let tagged = format!(
        "…<tool_call>\n{{\"name\": \"book\", \"arguments\": {BLANKED}}}\n</tool_call><|im_end|>…"
    );
    let llama = format!("…{{\"name\": \"book\", \"parameters\": {BLANKED}}}<|eot_id|>");
    [
        ("llama3_1", llama.clone()),
        ("llama3_2", llama),
        ("qwen2_5", tagged.clone()),
        // The template writes the empty reasoning block before the call.
        ("qwen3", tagged.clone()),
        ("hermes", tagged),
        (
            "mistral_v3",
            format!(
                "…[TOOL_CALLS] [{{\"name\": \"book\", \"arguments\": {BLANKED}, \"id\": \
                 \"abcdef123\"}}]</s>"
            ),
        ),
    ]
}

#[test]
fn the_native_call_of_each_family_is_supervised_without_its_values() {
    for (name, expected) in formats() {
        let mut family = family(name);
        family.2.mask.arguments = ArgumentMask::All;
        assert_eq!(
            supervised_answer(&booking_row(), &family),
            expected,
            "{name}"
        );
    }
}

#[test]
fn values_of_either_origin_can_be_masked_alone_in_each_family() {
    let fixed = "{\"city\": \"…\", \"days\": 12, \"price\":…, \"open\":…, \"note\": \"\", \
                 \"more\": …, \"tags\": [\"a\\\"b\", {\"k\": \"deep\"}]}";
    let derived = "{\"city\": \"Oslo\", \"days\":…, \"price\": 3.5, \"open\": true, \"note\": \"\", \
                   \"more\": null, \"tags\": [\"…\", {\"k\": \"…\"}]}";
    for (name, blanked) in formats() {
        for (mask, values) in [
            (ArgumentMask::Fixed, fixed),
            (ArgumentMask::Derived, derived),
        ] {
            let mut family = family(name);
            family.2.mask.arguments = mask;
            assert_eq!(
                supervised_answer(&booking_row(), &family),
                blanked.replace(BLANKED, values),
                "{name} {mask:?}"
            );
        }
    }
}

const STEP: &str = "Thought: the \"arguments\": {\"city\": \"Oslo\"} are known\nAction: \
                    {\"name\": \"book\", \"arguments\": {\"city\": \"Oslo\", \"days\": 12}}";

/// A call in the content of a message, with a fixed city and derived days.
fn text_row(before: &str, after: &str) -> Row {
    let mut answer = Message::new(Role::Assistant, format!("{before}{STEP}{after}"));
    let city = before.len() + STEP.rfind("Oslo").unwrap();
    let days = before.len() + STEP.rfind("12").unwrap();
    answer.content_values = vec![
        ContentValue {
            range: city..city + 4,
            origin: ValueOrigin::Fixed,
        },
        ContentValue {
            range: days..days + 2,
            origin: ValueOrigin::Derived,
        },
    ];
    row(vec![Message::new(Role::User, "Go"), answer])
}

#[test]
fn a_call_written_in_the_content_is_trained_without_its_values() {
    let thought = "Thought: the \"arguments\": {\"city\": \"Oslo\"} are known\nAction: ";
    for (name, start, end) in [
        ("llama3_1", "…", "<|eot_id|>"),
        ("llama2", "…", "</s>"),
        ("qwen2_5", "…", "<|im_end|>…"),
        ("hermes", "…", "<|im_end|>…"),
        ("mistral_v3", "…", "</s>"),
    ] {
        for (mask, city, days) in [
            (ArgumentMask::All, "…", "…"),
            (ArgumentMask::Fixed, "…", " 12"),
            (ArgumentMask::Derived, "Oslo", "…"),
            (ArgumentMask::None, "Oslo", " 12"),
        ] {
            let mut family = family(name);
            family.2.mask.arguments = mask;
            let answer = supervised_answer(&text_row("", ""), &family);
            let call = format!(
                "{thought}{{\"name\": \"book\", \"arguments\": {{\"city\": \"{city}\", \
                 \"days\":{days}}}}}"
            );
            let arguments = answer
                .strip_prefix(start)
                .and_then(|rest| rest.strip_suffix(end));
            assert_eq!(
                arguments.map(str::trim),
                Some(call.as_str()),
                "{name} {mask:?}: {answer}"
            );
        }
    }
}

#[test]
fn values_are_located_if_a_template_trims_the_answer() {
    let mut family = family("llama3_1");
    family.2.mask.arguments = ArgumentMask::All;
    let plain = supervised_answer(&text_row("", ""), &family);
    assert_eq!(supervised_answer(&text_row(" \n ", "\n"), &family), plain);
}

#[test]
fn argument_values_that_a_template_hides_are_an_error() {
    let upper = CHATML.replace("{{ m.content }}", "{{ m.content | replace('O', 'o') }}");
    let template = ChatTemplate::new(&upper, SpecialTokens::default()).unwrap();
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask.arguments = ArgumentMask::All;
    let error = tokenize_row(&text_row("", ""), &template, &tokenizer, &options).unwrap_err();
    assert!(
        matches!(error.fault(), DataError::SpanLost { .. }),
        "{error}"
    );
}

#[test]
fn a_token_that_contains_one_character_of_a_value_is_masked_with_it() {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask.arguments = ArgumentMask::All;
    // The tokenizer has a token of a comma and a quote.
    let row = row(vec![
        Message::new(Role::User, "Go"),
        call("f", json!({"a": "x,", "b": "y"})),
    ]);
    let inspected = inspect_row(&row, &chatml(), &tokenizer, &options).unwrap();
    for value in &inspected.argument_values {
        for token in &inspected.tokens {
            let shares = token.start < value.end && value.start < token.end;
            assert!(
                !shares || token.weight == 0.0,
                "{token:?} shares with {value:?}"
            );
        }
        assert!(value.is_masked);
    }
    let straddling: Vec<&str> = inspected
        .tokens
        .iter()
        .filter(|token| token.straddles)
        .map(|token| token.text.as_str())
        .collect();
    assert_eq!(straddling, [",\""]);
    let supervised_text: String = inspected
        .tokens
        .iter()
        .filter(|token| token.weight > 0.0)
        .map(|token| token.text.as_str())
        .collect();
    assert!(
        supervised_text.contains("{\"a\": \", \"b\": \"\"}"),
        "{supervised_text}"
    );
}

#[test]
fn argument_values_can_have_a_lower_weight_instead_of_none() {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask = weights("tool_call.arguments.value.fixed", 0.3);
    options
        .mask
        .weights
        .extend(weights("tool_call.arguments.value.derived", 0.7).weights);
    let inspected = inspect_row(&text_row("", ""), &chatml(), &tokenizer, &options).unwrap();
    let weights_of = |text: &str| -> Vec<f32> {
        let value = inspected
            .argument_values
            .iter()
            .find(|value| value.text == text);
        let value = value.unwrap();
        inspected
            .tokens
            .iter()
            .filter(|token| token.start < value.end && value.start < token.end)
            .map(|token| token.weight)
            .collect()
    };
    assert!(weights_of("Oslo").iter().all(|&weight| weight == 0.3));
    assert!(weights_of("12").iter().all(|&weight| weight == 0.7));
    assert!(
        inspected
            .argument_values
            .iter()
            .all(|value| !value.is_masked)
    );
    options.mask.arguments = ArgumentMask::Derived;
    let masked = inspect_row(&text_row("", ""), &chatml(), &tokenizer, &options).unwrap();
    let values: Vec<(&str, ValueOrigin, bool)> = masked
        .argument_values
        .iter()
        .map(|value| (value.text.as_str(), value.origin, value.is_masked))
        .collect();
    assert_eq!(
        values,
        [
            ("Oslo", ValueOrigin::Fixed, false),
            ("12", ValueOrigin::Derived, true)
        ]
    );
}

#[test]
fn the_weight_of_a_row_multiplies_the_weights_of_its_tokens() {
    let tokenizer = tokenizer();
    let mut options = options(&tokenizer);
    options.mask = weights("assistant.content", 0.5);
    let mut row = row(turn("Hi", "Bye").to_vec());
    let plain = example(&row, &options);
    row.weight = 3.0;
    let heavy = example(&row, &options);
    let tripled: Vec<f32> = plain
        .loss_weights
        .iter()
        .map(|weight| weight * 3.0)
        .collect();
    assert_eq!(heavy.loss_weights, tripled);
    let inspected = inspect_row(&row, &chatml(), &tokenizer, &options).unwrap();
    let weights: Vec<f32> = inspected.tokens.iter().map(|token| token.weight).collect();
    assert_eq!(weights, tripled);
    for weight in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        row.weight = weight;
        assert!(
            fault(&row, &options).contains("the weight of the row is"),
            "{weight}"
        );
    }
}

#[test]
fn the_origin_of_arguments_is_read_from_the_calls_of_a_file() {
    let derived_of = |derived: Value| {
        let message = json!([{"role": "assistant", "tool_calls": [{
            "function": {"name": "f", "arguments": {"a": 1, "b": 2}}, "derived": derived,
        }]}]);
        tooltune_template::conversation::parse_messages(&message, "messages")
            .map(|mut messages| messages.remove(0).tool_calls.remove(0).derived)
    };
    let b = BTreeSet::from(["b".to_owned()]);
    assert_eq!(derived_of(json!(["b"])).unwrap(), b);
    assert_eq!(
        derived_of(json!({"b": {"call": 0, "path": "x"}})).unwrap(),
        b
    );
    assert_eq!(derived_of(json!(null)).unwrap(), BTreeSet::new());
    let unknown = derived_of(json!(["c"])).unwrap_err().to_string();
    assert!(
        unknown.starts_with("messages[0].tool_calls[0].derived names \"c\""),
        "{unknown}"
    );
    assert!(derived_of(json!([1])).is_err() && derived_of(json!("b")).is_err());
}
