//! How outputs are shortened in prompts: what is read, and what is refused.

use tooltune_agents::truncation::{MAX_CHARS, MAX_DEPTH, MAX_ITEMS};
use tooltune_suites::{Reduction, Shortening};

use super::*;

const GOAT: &str = include_str!("../presets/goat.toml");

fn reduce(toolqa: &str) -> Option<Shortening> {
    good(SLOT, &[&format!("eval.toolqa={toolqa}")])
        .eval
        .toolqa
        .and_then(|toolqa| toolqa.shortening())
}

#[test]
fn responses_are_shortened_as_typed_with_the_defaults_of_data_reduce() {
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
fn what_nothing_reads_and_what_is_no_expression_is_refused() {
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
            ["`goat.truncate.jmespath`", "no function is called \"nope\""],
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
fn training_prompts_depend_on_it_and_evaluations_do_not_bind_a_run() {
    assert_eq!(good(GOAT, &[]).goat.and_then(|goat| goat.truncate), None);
    let whole = good(GOAT, &[]);
    let short = good(GOAT, &["goat.truncate={ max_items = 3 }"]);
    let [change] = &diff(&whole, &short)[..] else {
        panic!("one setting differs");
    };
    assert_eq!(change.path, "goat.truncate");
    assert_eq!(change.on_resume, OnResume::Refused);
    assert_ne!(whole.resume_digest(), short.resume_digest());
    let asked = good(GOAT, &["eval.toolqa={ reduce = \"truncate\" }"]);
    assert_eq!(whole.resume_digest(), asked.resume_digest());
}
