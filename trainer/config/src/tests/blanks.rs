//! Whitespace in strings, in files and in overrides.

use super::*;

/// Strings keep their whitespace, however they are written.
#[test]
fn whitespace_in_strings_is_preserved() {
    let system = |set: &str| parse_valid(MINIMAL, &[set]).data.system;
    for (set, expected) in [
        ("data.system=find ", "find "),
        ("data.system= find  ", " find  "),
        ("data.system = find ", "find "),
        ("data.system=find\t", "find\t"),
        ("data.system=find: \n", "find: \n"),
        ("data.system=\"find \"", "find "),
        ("data.system = ' find ' ", " find "),
        ("data.system=a # b ", "a # b "),
    ] {
        assert_eq!(system(set).as_deref(), Some(expected), "{set:?}");
    }
    let retriever = "[retriever]\nmodel_name_or_path = \"m\"\ntrain = [\"p\"]\nquery_prompt = 'find '\n\
                     [train]\noutput_dir = \"run\"\n";
    let prompts = |text: &str, sets: &[&str]| {
        let retriever = parse_valid(text, sets).retriever.unwrap();
        (retriever.query_prompt.unwrap(), retriever.document_prompt)
    };
    let set = ["retriever.document_prompt=passage: "];
    let expected = ("find ".to_owned(), Some("passage: ".to_owned()));
    assert_eq!(prompts(retriever, &set), expected);
    let yaml = "retriever:\n  model_name_or_path: m\n  train: [p]\n  query_prompt: 'find '\n  \
                document_prompt: \"passage: \"\ntrain:\n  output_dir: run\n";
    let loaded = parse("c.yaml", yaml, &[])
        .expect("a config")
        .config
        .retriever
        .unwrap();
    assert_eq!(
        (loaded.query_prompt.unwrap(), loaded.document_prompt),
        expected
    );
    // A number with blanks around it is a number.
    assert_eq!(parse_valid(MINIMAL, &["train.seed= 3 "]).train.seed, 3);
    check_mistake(MINIMAL, &["device=cuda "], &["cuda "]);
}
