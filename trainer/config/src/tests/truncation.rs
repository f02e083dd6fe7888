//! Settings for shortened outputs in prompts: valid and invalid ones.

use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS};
use tooltune_suites::{Reduction, Shortening};

use super::*;

const GOAT: &str = include_str!("../presets/goat.toml");

fn reduce(toolqa: &str) -> Option<Shortening> {
    parse_valid(SLOT, &[&format!("eval.toolqa={toolqa}")])
        .eval
        .toolqa
        .and_then(|toolqa| toolqa.shortening())
}

#[test]
fn responses_are_shortened_with_the_defaults_of_data_reduce() {
    assert_eq!(reduce("{}"), None);
    let paths = reduce("{ reduce = \"paths\" }");
    assert_eq!(paths, Some(Shortening::Reduce(Reduction::Paths)));
    let Some(Shortening::Truncate(options)) = reduce("{ reduce = \"truncate\" }") else {
        panic!("not truncated");
    };
    let prune = &options.shape.prune;
    assert_eq!(
        (prune.max_items, prune.max_depth, options.max_chars),
        (MAX_ITEMS, MAX_DEPTH, MAX_CHARS)
    );
    assert_eq!(options.shape.filter, None);
    let typed =
        "{ reduce = \"truncate\", max_items = 2, max_depth = 1, max_chars = 9, jmespath = \"a\" }";
    let Some(Shortening::Truncate(options)) = reduce(typed) else {
        panic!("not truncated");
    };
    let prune = &options.shape.prune;
    let numbers = (prune.max_items, prune.max_depth, options.max_chars);
    assert_eq!(numbers, (2, 1, 9));
    assert_eq!(options.shape.filter.as_deref(), Some("a"));
}

#[test]
fn unused_settings_and_invalid_expressions_are_refused() {
    for (setting, expected) in [
        (
            "eval.toolqa={ max_items = 3 }",
            ["`eval.toolqa.max_items`", "write reduce = \"truncate\""],
        ),
        (
            "eval.toolqa={ reduce = \"paths\", jmespath = \"a\" }",
            ["`eval.toolqa.jmespath` is for", "delete this line"],
        ),
        (
            "eval.toolqa={ reduce = \"truncated\", max_chars = 3 }",
            ["`eval.toolqa.reduce`", "did you mean \"truncate\""],
        ),
        (
            "eval.toolqa={ reduce = \"truncate\", jmespath = \"a[\" }",
            [
                "`eval.toolqa.jmespath` cannot be applied",
                "JMESPath expression \"a[\": column ",
            ],
        ),
    ] {
        check_mistake(SLOT, &[setting], &expected);
    }
    for (setting, expected) in [
        (
            "goat.truncate={ jmespath = \"nope(@)\" }",
            ["`goat.truncate.jmespath`", "unknown function \"nope\""],
        ),
        (
            "goat.truncate={ max_chars = 3 }",
            ["`max_chars`", "[goat.truncate]"],
        ),
    ] {
        check_mistake(GOAT, &[setting], &expected);
    }
}

#[test]
fn truncation_changes_training_prompts_but_evaluations_do_not_bind_a_run() {
    assert_eq!(
        parse_valid(GOAT, &[]).goat.and_then(|goat| goat.truncate),
        None
    );
    let full = parse_valid(GOAT, &[]);
    let short = parse_valid(GOAT, &["goat.truncate={ max_items = 3 }"]);
    let [change] = &diff(&full, &short)[..] else {
        panic!("one setting differs");
    };
    assert_eq!(change.path, "goat.truncate");
    assert_eq!(change.on_resume, OnResume::Refused);
    assert_ne!(full.resume_digest(), short.resume_digest());
    let truncated = parse_valid(GOAT, &["eval.toolqa={ reduce = \"truncate\" }"]);
    assert_eq!(full.resume_digest(), truncated.resume_digest());
}
