//! The rules of the house, read from its files: who may know whom, what stands in one place only,
//! how things are written, and that each invariant of ARCHITECTURE.md names a test.
//!
//! Each test prints every violation as `file:line`. A rule that must change is changed here and in
//! ARCHITECTURE.md together.

mod crates;
mod gpu;
mod places;
mod sources;
mod suites;
mod writing;

use std::collections::BTreeSet;

use regex::Regex;

use sources::{Source, read, regex, rust_sources};

/// The folder of each crate, and the crates of ours that it knows; each stands below those it knows.
const CRATES: [(&str, &[&str]); 15] = [
    ("data/rows", &[]),
    ("data/files", &["rows"]),
    ("data/agents", &["rows"]),
    ("data/grammar", &["rows"]),
    ("data/endpoint", &["agents", "rows"]),
    ("data/hub", &["endpoint", "rows"]),
    ("data/sandbox", &["rows"]),
    (
        "data/suites",
        &["agents", "endpoint", "grammar", "rows", "sandbox"],
    ),
    ("data/synth", &["agents", "rows", "suites"]),
    (
        "data/pipelines",
        &["agents", "endpoint", "rows", "suites", "synth"],
    ),
    ("data/score", &["agents", "rows", "suites", "synth"]),
    ("data/report", &["rows"]),
    ("kernels", &[]),
    ("checkpoints", &[]),
    (
        "trainer",
        &[
            "agents",
            "checkpoints",
            "endpoint",
            "files",
            "grammar",
            "hub",
            "kernels",
            "pipelines",
            "report",
            "rows",
            "sandbox",
            "score",
            "suites",
            "synth",
        ],
    ),
];

/// The modules of the trainer from the lowest to the highest: each uses those before it.
const LAYERS: [&str; 32] = [
    "budgets",
    "terminal_table",
    "progress",
    "log",
    "config",
    "models",
    "lora",
    "optim",
    "out_of_memory",
    "error",
    "interrupt",
    "not_finite",
    "retriever",
    "process",
    "device",
    "profile",
    "settings",
    "base_model",
    "metrics",
    "modelfile",
    "export",
    "encoder",
    "rows",
    "examples",
    "eval",
    "structure",
    "recipes",
    "plan",
    "doctor",
    "cli",
    "commands",
    "main",
];

/// The modules of the trainer's config, likewise; `load` is its entry.
const CONFIG_LAYERS: [&str; 24] = [
    "diagnostics",
    "did_you_mean",
    "document",
    "yaml",
    "overrides",
    "enums",
    "suite",
    "metric",
    "template_kwargs",
    "hub_names",
    "fetch_hint",
    "findings",
    "rules",
    "tables",
    "schema",
    "read",
    "written",
    "paths",
    "names",
    "derived",
    "validate",
    "presets",
    "foreign",
    "load",
];

/// Uses against the order, and why they may be.
const AGAINST_THE_ORDER: [(&str, &str); 1] = [
    // A projection applies the mask of the key it is given; the key belongs to LoRA.
    ("models", "lora"),
];

#[track_caller]
fn assert_none(rule: &str, violations: &[String]) {
    let n = violations.len();
    assert!(
        violations.is_empty(),
        "{rule}; violated {n} times:\n{}",
        violations.join("\n")
    );
}

/// Matches in library code of the files that `is_bound`.
fn in_library(pattern: &Regex, is_bound: impl Fn(&Source) -> bool) -> Vec<String> {
    let bound = rust_sources().iter().filter(|source| is_bound(source));
    bound
        .flat_map(|source| source.matches(&source.library, pattern))
        .collect()
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    let text = read("ARCHITECTURE.md");
    let section = text
        .split("\n## ")
        .find(|part| part.starts_with("Invariants"))
        .expect("Invariants");
    let tests: BTreeSet<String> = rust_sources().iter().flat_map(Source::tests).collect();
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("held by"))
        .collect();
    assert!(rows.len() >= 20, "only {} invariants", rows.len());
    let name = regex(r"`(\w+)`");
    let mut violations = Vec::new();
    for row in rows {
        let holders = row
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default();
        let names: Vec<&str> = name
            .captures_iter(holders)
            .map(|found| found.get(1).unwrap().as_str())
            .collect();
        if names.is_empty() {
            violations.push(format!("ARCHITECTURE.md: no test named: {row}"));
        }
        let missing = names.into_iter().filter(|name| !tests.contains(*name));
        violations
            .extend(missing.map(|name| format!("ARCHITECTURE.md: there is no test `{name}`")));
    }
    assert_none("an invariant is held by a test", &violations);
}
