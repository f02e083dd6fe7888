//! A suite is named in its own folders and where suites are listed, so that a new one is a matter of
//! few places.
//!
//! A file names a suite if its library code, without comments,
//! - goes through the suite's module, `tooltune_suites::toolqa`, or has a variant of that name,
//! - or has a text with its settings (`eval.toolqa`), one of its metrics (`slot.mean`), its name after
//!   the word suite, or its name alone.
//!
//! Formats of rows, presets and ways of prompting have names of their own, some of which suites were
//! named after: `slot`, `goat` and `calls` alone, the table `[goat]`, `SlotRow` and the layouts of `data
//! import` name no suite.

use tooltune_suites::{SUITES, SuiteInfo};

use super::assert_none;
use super::sources::{Source, regex, rust_sources};

/// The files and folders of each suite.
const OWN: [(&str, &[&str]); 6] = [
    (
        "slot",
        &["data/suites/src/slot/", "trainer/src/eval/suites/slot/"],
    ),
    (
        "calls",
        &["data/suites/src/calls/", "trainer/src/eval/suites/calls.rs"],
    ),
    ("goat", AGENTS),
    (
        "retrieval",
        &[
            "data/suites/src/retrieval/",
            "trainer/src/eval/suites/retrieval.rs",
        ],
    ),
    (
        "nestful",
        &[
            "data/suites/src/nestful/",
            "trainer/src/eval/suites/nestful.rs",
            "trainer/src/config/tables/eval/nestful.rs",
        ],
    ),
    (
        "toolqa",
        &[
            "data/suites/src/toolqa/",
            "trainer/src/eval/suites/toolqa/",
            "trainer/src/config/tables/eval/toolqa.rs",
        ],
    ),
];

/// What goat, restbench and apibank share: agents answer their queries.
const AGENTS: &[&str] = &[
    "data/suites/src/goat/",
    "trainer/src/eval/suites/agents/",
    "trainer/src/config/tables/eval/agents.rs",
];

/// Suites in the module of another.
const IN_GOAT: [&str; 2] = ["restbench", "apibank"];

/// Names of row formats, of a table of the config and of fields, which alone name no suite.
const NAMES_OF_MORE: [&str; 3] = ["slot", "goat", "calls"];

/// Files that name suites of others, and why they may.
const LISTS: [(&str, &str); 5] = [
    ("data/suites/src/lib.rs", "the modules of the crate"),
    ("data/suites/src/registry.rs", "the registry"),
    (
        "trainer/src/eval/suites/mod.rs",
        "lists what opens each suite",
    ),
    (
        "trainer/src/config/tables/eval/mod.rs",
        "the table [eval] has a field for the table of each suite",
    ),
    (
        "trainer/src/eval/suites/agents/goat.rs",
        "its report has the numbers of the retriever under their suite's name",
    ),
];

fn own(suite: &str) -> &'static [&'static str] {
    let folder = if IN_GOAT.contains(&suite) {
        "goat"
    } else {
        suite
    };
    let own = OWN.into_iter().find(|(name, _)| *name == folder);
    own.map(|(_, own)| own)
        .unwrap_or_else(|| panic!("OWN has no folders of {suite}"))
}

/// Where a file names a suite.
fn named(source: &Source, suite: &SuiteInfo) -> Vec<String> {
    let name = suite.name;
    let mut chars = name.chars();
    let variant: String = chars
        .next()
        .iter()
        .flat_map(|c| c.to_uppercase())
        .chain(chars)
        .collect();
    let mut paths = format!(r"\bSuite::{variant}\b");
    if !IN_GOAT.contains(&name) {
        // In braces too, as in `use tooltune_suites::{goat, slot};`.
        paths += &format!(r"|\b(?:tooltune_suites|suites)::(?:\{{[^;]*?)?\b{name}\b(?:::|,|\}}|;)");
        if source.path.starts_with("data/suites/src/") {
            paths += &format!(
                r"|\b(?:crate|super)::(?:\{{[^;]*?)?\b{name}\b(?:::|,|\}}|;)|\bmod {name};"
            );
        }
        if source.path.starts_with("trainer/src/eval/suites/") {
            paths += &format!(r"|\b(?:self|super)::{name}::|\bmod {name};");
        }
    }
    let metrics = suite.metrics.iter().chain(suite.flat_metrics);
    let metrics: Vec<&str> = metrics.copied().collect();
    let mut texts = format!(
        r"\beval\.{name}\b|\b{name}\.(?:{})\b|\bsuite {name}\b",
        metrics.join("|")
    );
    if !NAMES_OF_MORE.contains(&name) {
        texts += &format!(r#"|"{name}""#);
    }
    let mut places = source.matches(&source.library, &regex(&paths));
    places.extend(source.matches(&source.strings, &regex(&texts)));
    places
}

#[test]
fn a_suite_is_named_in_its_own_folders_and_where_suites_are_listed() {
    let is_listed = |path: &str| LISTS.iter().any(|(listed, _)| *listed == path);
    let (mut violations, mut seen) = (Vec::new(), Vec::new());
    for suite in SUITES {
        let folders = own(suite.name);
        for folder in folders {
            let is_there = |source: &Source| source.path.starts_with(folder);
            assert!(rust_sources().iter().any(is_there), "there is no {folder}");
        }
        let is_own = |path: &str| folders.iter().any(|folder| path.starts_with(folder));
        for source in rust_sources().iter().filter(|source| !is_own(&source.path)) {
            let found = named(source, suite);
            if !found.is_empty() && is_listed(&source.path) {
                seen.push(source.path.clone());
            } else {
                violations.extend(found);
            }
        }
    }
    assert_none(
        "a suite is named in its own folders and in the files of LISTS",
        &violations,
    );
    for (path, _) in LISTS {
        assert!(
            seen.iter().any(|seen| seen == path),
            "{path} names no suite any more"
        );
    }
}

#[test]
fn every_way_of_naming_a_suite_is_seen() {
    let toolqa = SuiteInfo::named("toolqa").expect("a suite");
    let slot = SuiteInfo::named("slot").expect("a suite");
    let seen = |text: &str, suite: &SuiteInfo| {
        let source = Source::of_text("trainer/src/a.rs", text);
        named(&source, suite).len()
    };
    for text in [
        "use tooltune_suites::toolqa::Setting;",
        "use tooltune_suites::{Estimate, goat::Call, toolqa::Setting};",
        "use crate::eval::suites::toolqa;",
        "let s = Suite::Toolqa;",
        "let s = \"set eval.toolqa.judge\";",
        "let s = \"toolqa.contains\";",
        "let s = \"toolqa\";",
        "let s = \"the suite toolqa\";",
    ] {
        assert_eq!(seen(text, toolqa), 1, "{text}");
    }
    for text in [
        "// the suite toolqa\nlet toolqa = 1;",
        "#[cfg(test)]\nmod tests { fn a() { let s = \"toolqa\"; } }",
    ] {
        assert_eq!(seen(text, toolqa), 0, "{text}");
    }
    assert_eq!(seen("let s = \"slot\"; DataFormat::Slot", slot), 0);
    assert_eq!(seen("let s = \"slot.mean\";", slot), 1);
}
