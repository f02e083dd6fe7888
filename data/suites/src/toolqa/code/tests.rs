//! Extracts code from typical outputs, by both rules.

use proptest::prelude::*;

use super::*;

const GET: &str = "def get(d):\n    return d[\"x\"]";

fn extract(output: &str, rule: CodeRule) -> Option<(String, String)> {
    extract_code(output, rule).map(|extracted| (extracted.code, extracted.name))
}

fn check(output: &str, rule: CodeRule, expected: Option<(&str, &str)>) {
    let expected = expected.map(|(code, name)| (code.to_owned(), name.to_owned()));
    assert_eq!(extract(output, rule), expected, "{rule:?} {output:?}");
}

#[test]
fn a_plain_function_is_found_by_both_rules() {
    let outputs = [
        GET.to_owned(),
        format!("```python\n{GET}\n```"),
        format!("Here it is:\n\n```python\n{GET}\n```\nIt returns x."),
        format!("```python\n{GET}"),
    ];
    for output in outputs {
        for rule in [CodeRule::Official, CodeRule::Robust] {
            check(&output, rule, Some((GET, "get")));
        }
    }
}

#[test]
fn an_output_without_code_has_none() {
    for output in [
        "",
        "The answer is 4.",
        "```json\n{}\n```",
        "undef ined(",
        "define it",
    ] {
        check(output, CodeRule::Robust, None);
    }
    for output in ["", "The answer is 4.", "```json\n{}\n```", "define it"] {
        check(output, CodeRule::Official, None);
    }
}

#[test]
fn the_published_rule_uses_the_first_function_and_the_robust_rule_the_last() {
    let both = format!("def clean(x):\n    return x\n\n{GET}");
    let output = format!("```python\n{both}\n```");
    check(&output, CodeRule::Official, Some((&both, "clean")));
    check(&output, CodeRule::Robust, Some((&both, "get")));
}

#[test]
fn the_published_function_name_is_the_text_between_two_markers() {
    let rows = [
        ("LIMIT = max(3, 4)\ndef get(d):\n    return d", ""),
        ("x = 1", ""),
        ("xy = get", "= ge"),
        ("(lambda d: d)", ""),
        ("lambda d: d", "bda d:"),
        ("default = 1\ndef get(d): 0", "ult = 1\ndef get"),
        ("def é日(d): 0", "é日"),
        ("def", ""),
        ("", ""),
    ];
    for (code, name) in rows {
        check(
            &format!("```python\n{code}\n```"),
            CodeRule::Official,
            Some((code, name)),
        );
    }
}

#[test]
fn the_published_rule_finds_no_code_in_a_fence_without_python() {
    let output = format!("```\n{GET}\n```");
    check(&output, CodeRule::Official, Some(("", "")));
    check(&output, CodeRule::Robust, Some((GET, "get")));
    let mixed_blocks = format!("```json\n{{}}\n```\n```py\n{GET}\n```");
    check(&mixed_blocks, CodeRule::Robust, Some((GET, "get")));
}

#[test]
fn example_usage_is_removed() {
    let output = format!("```python\n{GET}\n\n# Example usage:\nprint(get({{}}))\n```");
    check(
        &output,
        CodeRule::Official,
        Some((&format!("{GET}\n\n"), "get")),
    );
    check(&output, CodeRule::Robust, Some((GET, "get")));
    let only_example = "```python\n# Example usage:\ndef get(d):\n    return d\n```";
    check(only_example, CodeRule::Official, Some(("", "")));
    check(only_example, CodeRule::Robust, None);
}

#[test]
fn a_program_begins_at_its_first_import_or_definition() {
    let rows = [
        (format!("import re\n{GET}"), format!("import re\n{GET}")),
        (
            format!("from math import pi, e\n{GET}"),
            format!("from math import pi, e\n{GET}"),
        ),
        (
            format!("import a.b as c # why\n{GET}"),
            format!("import a.b as c # why\n{GET}"),
        ),
        (
            format!("import a, b\r\n{GET}"),
            format!("import a, b\r\n{GET}"),
        ),
        (
            format!("class A:\n    pass\n{GET}"),
            format!("class A:\n    pass\n{GET}"),
        ),
        (format!("@cache\n{GET}"), format!("@cache\n{GET}")),
        (format!("X = 1\n{GET}"), GET.to_owned()),
        (
            format!("import the data first\nfrom it, read\n{GET}"),
            GET.to_owned(),
        ),
    ];
    for (output, code) in rows {
        check(&output, CodeRule::Robust, Some((&code, "get")));
    }
}

#[test]
fn inner_and_asynchronous_functions_are_not_called() {
    let code = "def get(d):\n    def inner(x):\n        return x\n    return inner(d)\n\nasync def later(d):\n    pass";
    check(code, CodeRule::Robust, Some((code, "get")));
    check("async def later(d):\n    pass", CodeRule::Robust, None);
}

#[test]
fn a_block_may_begin_on_the_line_of_its_fence() {
    check(
        "```python def get(d): return d```",
        CodeRule::Robust,
        Some(("def get(d): return d", "get")),
    );
    check(
        "```def get(d): return d```",
        CodeRule::Robust,
        Some(("def get(d): return d", "get")),
    );
}

proptest! {
    #[test]
    fn no_output_makes_the_extraction_panic(output in r"(```|python|def |\(|\n|import x|# Example usage:|\PC){0,30}") {
        for rule in [CodeRule::Official, CodeRule::Robust] {
            if let Some(extracted) = extract_code(&output, rule) {
                prop_assert!(output.contains(&extracted.code));
                prop_assert!(extracted.code.contains(&extracted.name));
            }
        }
    }
}
