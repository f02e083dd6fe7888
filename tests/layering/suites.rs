//! A suite is named only in its own folders and in the lists of suites, so that adding one changes
//! few files.
//!
//! A file names a suite if its library code, without comments,
//! - uses the suite's module, `tooltune_suites::toolqa`, or has a variant of that name,
//! - or has a string with its settings (`eval.toolqa`), one of its metrics (`slot.mean`), its name
//!   after the word suite, or only its name.
//!
//! Some suites have the names of row formats, presets and prompting methods. `slot`, `goat` and
//! `calls` alone, the table `[goat]`, `SlotRow` and the layouts of `data import` therefore do not
//! name a suite.

use tooltune_suites::{SUITES, SuiteInfo};

use super::assert_none;
use super::sources::{Source, regex, rust_sources};
use crate::support::root;

/// Shared by goat, restbench and apibank: agents answer their queries.
const AGENTS: &[&str] = &[
    "data/suites/src/goat/",
    "trainer/src/eval/suites/agents/",
    "trainer/config/src/tables/eval/agents.rs",
];

/// Suites in another suite's module.
const IN_GOAT: [&str; 2] = ["restbench", "apibank"];

/// Names that row formats, a config table or fields share with a suite; alone, they do not name it.
const NAMES_OF_MORE: [&str; 3] = ["slot", "goat", "calls"];

/// Files that may name other suites, and the reason.
const LISTS: [(&str, &str); 5] = [
    (
        "data/suites/src/lib.rs",
        "the modules of the crate and the list of suites",
    ),
    (
        "trainer/src/eval/suites/mod.rs",
        "lists the function that opens each suite",
    ),
    (
        "trainer/config/src/tables/eval/mod.rs",
        "the table [eval] has a field for the table of each suite",
    ),
    (
        "trainer/src/eval/suites/agents/goat.rs",
        "its report has the numbers of the retriever under their suite's name",
    ),
    (
        "data/suites/src/goat/suite.rs",
        "its samples have the retriever's recall under that suite's name",
    ),
];

/// The files and folders of a suite, by its name.
fn own_paths(suite: &str) -> Vec<String> {
    if suite == "goat" || IN_GOAT.contains(&suite) {
        return AGENTS.iter().map(|path| (*path).to_owned()).collect();
    }
    let paths = [
        format!("data/suites/src/{suite}/"),
        format!("data/suites/src/{suite}.rs"),
        format!("trainer/src/eval/suites/{suite}/"),
        format!("trainer/src/eval/suites/{suite}.rs"),
        format!("trainer/config/src/tables/eval/{suite}.rs"),
    ];
    let is_there = |path: &String| {
        let mut sources = rust_sources().iter();
        sources.any(|source| source.path.starts_with(path.as_str()))
    };
    let own: Vec<String> = paths.into_iter().filter(is_there).collect();
    let is_whole = own.first().is_some_and(|path| path.starts_with("data/"));
    assert!(is_whole, "{suite} has no file or folder in data/suites/src");
    own
}

/// Lines in which a file names a suite.
fn lines_naming(source: &Source, suite: &SuiteInfo) -> Vec<String> {
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
        // Also within braces, as in `use tooltune_suites::{goat, slot};`.
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

/// Invariant: Only a suite's own folders and the lists of suites name the suite.
#[test]
fn a_suite_is_named_in_its_own_folders_and_where_suites_are_listed() {
    let is_listed = |path: &str| LISTS.iter().any(|(listed, _)| *listed == path);
    let (mut violations, mut naming_lists) = (Vec::new(), Vec::new());
    for suite in SUITES {
        let folders = own_paths(suite.name);
        let is_own = |path: &str| {
            folders
                .iter()
                .any(|folder| path.starts_with(folder.as_str()))
        };
        for source in rust_sources().iter().filter(|source| !is_own(&source.path)) {
            let lines = lines_naming(source, suite);
            if !lines.is_empty() && is_listed(&source.path) {
                naming_lists.push(source.path.clone());
            } else {
                violations.extend(lines);
            }
        }
    }
    assert_none(
        "a suite is named only in its own folders and in the files of LISTS",
        &violations,
    );
    for (path, _) in LISTS {
        assert!(
            naming_lists.iter().any(|naming_lists| naming_lists == path),
            "{path} no longer names a suite; remove it from LISTS"
        );
    }
}

/// The files that name a suite outside its own folder, in the steps of "Add a suite": step, file,
/// and what the file contains.
fn steps(suite: &SuiteInfo) -> Vec<(u8, String, String)> {
    let name = suite.name;
    let mut steps = Vec::new();
    if !suite.operations.is_empty() {
        let examples = format!("data/score/tests/fixtures/score/{name}.jsonl");
        steps.push((1, examples, format!("\"{name}.")));
    }
    if suite.needs.generator && suite.needs.rows.is_none() {
        let tables = "trainer/config/src/tables/eval/mod.rs";
        steps.push((2, tables.to_owned(), format!("    {name}: ")));
        steps.push((
            3,
            "docs/config.md".to_owned(),
            format!("| `{name}` | - | [table]"),
        ));
    }
    for (prompt, _) in suite.prompts {
        let heading = format!("======== {name} {prompt} ========");
        steps.push((3, "docs/prompts.txt".to_owned(), heading));
    }
    if !IN_GOAT.contains(&name) && name != "goat" {
        let kinds = "trainer/src/eval/suites/mod.rs";
        steps.push((2, kinds.to_owned(), format!("{name}::")));
    }
    steps
}

/// Invariant: A suite has every part that "Add a suite" in CONTRIBUTING.md lists.
#[test]
fn every_suite_has_all_steps() {
    for suite in SUITES {
        for (step, file, part) in steps(suite) {
            let text = std::fs::read_to_string(root().join(&file)).unwrap_or_default();
            assert!(
                text.contains(&part),
                "the suite {}: {file} lacks `{part}`: see step {step} of \"Add a suite\" in \
                 CONTRIBUTING.md",
                suite.name
            );
        }
    }
}

#[test]
fn every_way_to_name_a_suite_is_detected() {
    let toolqa = SuiteInfo::from_name("toolqa").expect("a suite");
    let slot = SuiteInfo::from_name("slot").expect("a suite");
    let count_lines = |text: &str, suite: &SuiteInfo| {
        let source = Source::from_text("trainer/src/a.rs", text);
        lines_naming(&source, suite).len()
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
        assert_eq!(count_lines(text, toolqa), 1, "{text}");
    }
    for text in [
        "// the suite toolqa\nlet toolqa = 1;",
        "#[cfg(test)]\nmod tests { fn a() { let s = \"toolqa\"; } }",
    ] {
        assert_eq!(count_lines(text, toolqa), 0, "{text}");
    }
    assert_eq!(count_lines("let s = \"slot\"; DataFormat::Slot", slot), 0);
    assert_eq!(count_lines("let s = \"slot.mean\";", slot), 1);
}
