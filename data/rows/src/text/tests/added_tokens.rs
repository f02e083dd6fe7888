//! Compares the tokens that a tokenizer adds around text with transformers' ids.

use super::*;
use tooltune_template::{ChatTemplate, SpecialTokens};

struct Case {
    name: String,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    values: Value,
}

fn cases() -> Vec<Case> {
    let read = |file: &str| std::fs::read_to_string(fixtures().join(file)).unwrap();
    let json = |file: &str| tooltune_json::parse(&read(file)).unwrap();
    let tiny = json("tiny_tokenizer/tokenizer.json");
    let special = SpecialTokens {
        bos_token: Some("<|endoftext|>".to_owned()),
        eos_token: Some("<|im_end|>".to_owned()),
        ..SpecialTokens::default()
    };
    json("added_tokens/cases.json")
        .as_array()
        .unwrap()
        .iter()
        .map(|case| {
            let mut tokenizer = tiny.clone();
            tokenizer["post_processor"] = case["post_processor"].clone();
            let tokenizer: tokenizers::Tokenizer = tokenizer.to_string().parse().unwrap();
            let template = ChatTemplate::new(case["template"].as_str().unwrap(), special.clone());
            Case {
                name: case["name"].as_str().unwrap().to_owned(),
                tokenizer: Tokenizer::from_tokenizers(tokenizer),
                template: template.unwrap(),
                values: case.clone(),
            }
        })
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

fn chat(case: &Case) -> Row {
    row(tooltune_template::conversation::parse_messages(&case.values["chat"], "chat").unwrap())
}

/// Invariant: Chats have the token IDs of transformers, whatever the tokenizer adds to plain text.
#[test]
fn chats_have_the_ids_of_transformers_with_any_post_processor() {
    for case in cases() {
        let options = options(&case.tokenizer);
        let prepared = prepare(
            [Ok(chat(&case))].into_iter(),
            &case.template,
            &case.tokenizer,
            &options,
        );
        let Prepared { examples, report } = prepared.unwrap();
        assert_eq!(
            examples[0].input_ids,
            ids(&case.values["chat_ids"]),
            "{}",
            case.name
        );
        // Only a missing begin token is reported.
        let has_bos = !case.tokenizer.added_tokens().before.is_empty();
        let is_missing = has_bos && case.name.ends_with("writes_none");
        assert_eq!(
            report.without_bos.n_examples,
            usize::from(is_missing),
            "{}",
            case.name
        );
        let inspected =
            inspect_row(&chat(&case), &case.template, &case.tokenizer, &options).unwrap();
        assert_eq!(
            inspected.without_bos,
            is_missing.then(|| "<|endoftext|>".to_owned()),
            "{}",
            case.name
        );
        let prompt = prompt_ids(&chat(&case), &case.template, &case.tokenizer).unwrap();
        assert_eq!(
            examples[0].input_ids[..prompt.len()],
            prompt,
            "{}",
            case.name
        );
    }
}

#[test]
fn plain_prompts_start_with_the_added_tokens_once_and_have_no_end_token() {
    let mut n_with_bos = 0;
    for case in cases() {
        let added = case.tokenizer.added_tokens();
        n_with_bos += usize::from(added.before == [0]);
        for plain in case.values["plain"].as_array().unwrap() {
            let text = plain["text"].as_str().unwrap();
            let prompt = TokenizedPrompt::from_text("--prompt", text, &case.tokenizer).unwrap();
            // transformers adds the begin token even if the text starts with it, and also adds an
            // end token.
            let theirs = ids(&plain["ids"]);
            let theirs = theirs.strip_suffix(added.after.as_slice()).unwrap();
            let expected = theirs
                .strip_prefix(&[0])
                .filter(|rest| rest.starts_with(&[0]));
            assert_eq!(prompt.ids, expected.unwrap_or(theirs), "{}", case.name);
            let spelled = case.tokenizer.decode(&prompt.ids, Specials::Keep).unwrap();
            assert_eq!(prompt.text, spelled, "{}", case.name);
        }
    }
    assert_eq!(n_with_bos, 8);
}

#[test]
fn the_bos_token_of_a_gguf_file_precedes_plain_text() {
    let tokenizer = tokenizer().with_bos(Some(0));
    let prompt = TokenizedPrompt::from_text("--prompt", "Once", &tokenizer).unwrap();
    assert_eq!(
        (prompt.text.as_str(), prompt.ids[0]),
        ("<|endoftext|>Once", 0)
    );
    let none = super::tokenizer().with_bos(None);
    let prompt = TokenizedPrompt::from_text("--prompt", "Once", &none).unwrap();
    assert_eq!(prompt.text, "Once");
}
