//! Checks the rules of ARCHITECTURE.md against the source: dependencies between crates, code that
//! may occur in only one file, style, and the list of invariants.
//!
//! Each test prints every violation as `file:line`. Change a rule here and in ARCHITECTURE.md
//! together.

mod crates;
mod gpu;
mod invariants;
mod places;
mod sources;
mod suites;
mod writing;

use regex::Regex;

use sources::{Source, rust_sources};

/// The folder of each crate and the workspace crates that it uses, all of them earlier in the list.
const CRATES: [(&str, &[&str]); 23] = [
    ("data/disk", &[]),
    ("data/json", &["disk"]),
    ("data/template", &["disk", "json"]),
    ("data/apis", &["json"]),
    ("data/rows", &["apis", "disk", "json", "template"]),
    ("data/files", &["disk", "json", "rows"]),
    (
        "data/traces",
        &["disk", "files", "json", "rows", "template"],
    ),
    ("data/agents", &["apis", "disk", "json", "rows", "template"]),
    ("data/grammar", &["json", "rows"]),
    (
        "data/endpoint",
        &["agents", "apis", "disk", "json", "template"],
    ),
    ("data/hub", &["disk", "endpoint", "json"]),
    ("data/sandbox", &["disk", "json"]),
    (
        "data/suites",
        &[
            "agents", "apis", "disk", "endpoint", "grammar", "json", "rows", "sandbox", "template",
        ],
    ),
    (
        "data/synth",
        &["agents", "apis", "json", "rows", "suites", "template"],
    ),
    (
        "data/pipelines",
        &[
            "agents", "apis", "disk", "endpoint", "json", "rows", "suites", "synth", "template",
        ],
    ),
    ("data/score", &["agents", "json", "suites", "synth"]),
    ("data/report", &["json", "rows", "template"]),
    ("kernels", &[]),
    ("checkpoints", &["disk"]),
    ("trainer/ranks", &["disk"]),
    ("trainer/terminal", &["disk", "hub", "json"]),
    (
        "trainer/config",
        &[
            "agents",
            "apis",
            "checkpoints",
            "disk",
            "endpoint",
            "files",
            "hub",
            "json",
            "rows",
            "suites",
            "template",
            "terminal",
        ],
    ),
    (
        "trainer",
        &[
            "agents",
            "apis",
            "checkpoints",
            "config",
            "disk",
            "endpoint",
            "files",
            "grammar",
            "hub",
            "json",
            "kernels",
            "pipelines",
            "ranks",
            "report",
            "rows",
            "sandbox",
            "score",
            "suites",
            "synth",
            "template",
            "terminal",
            "traces",
        ],
    ),
];

/// The modules of the trainer from the lowest to the highest: each uses those before it.
const LAYERS: [&str; 29] = [
    "budgets",
    "models",
    "lora",
    "optim",
    "out_of_memory",
    "error",
    "checkpoint_choice",
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

/// The modules of the trainer's config in the same order; `load` is the entry point.
const CONFIG_LAYERS: [&str; 26] = [
    "budgets",
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
    "peft",
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

#[track_caller]
fn assert_none(rule: &str, violations: &[String]) {
    let n = violations.len();
    assert!(
        violations.is_empty(),
        "{rule}; violated {n} times:\n{}",
        violations.join("\n")
    );
}

/// Matches of `pattern` in the library code of the files that `is_checked` accepts.
fn in_library(pattern: &Regex, is_checked: impl Fn(&Source) -> bool) -> Vec<String> {
    let bound = rust_sources().iter().filter(|source| is_checked(source));
    bound
        .flat_map(|source| source.matches(&source.library, pattern))
        .collect()
}
