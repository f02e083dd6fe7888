//! `scripts/gpu/run` runs every integration test that computes on the GPU.

use std::collections::BTreeSet;

use super::assert_none;
use super::sources::{files, read, regex};

/// The modules in `tests/main.rs`, each with the contents of its files.
fn modules() -> Vec<(String, Vec<String>)> {
    let main = read("tests/main.rs");
    let all = files();
    regex(r"(?m)^mod (\w+);")
        .captures_iter(&main)
        .map(|captures| {
            let name = captures[1].to_owned();
            let (file, folder) = (format!("tests/{name}.rs"), format!("tests/{name}/"));
            let own = all
                .iter()
                .filter(|path| **path == file || path.starts_with(&folder));
            let texts = own.filter(|path| path.ends_with(".rs"));
            let texts = texts.map(|path| read(path)).collect();
            (name, texts)
        })
        .collect()
}

/// The default modules of `scripts/gpu/run`.
fn modules_on_a_gpu() -> BTreeSet<String> {
    let script = read("scripts/gpu/run.py");
    let list = regex(r"(?m)^TEST_MODULES = \[([^\]]*)\]")
        .captures(&script)
        .expect("TEST_MODULES in scripts/gpu/run.py")[1]
        .to_owned();
    let name = regex(r#""(\w+)""#);
    name.captures_iter(&list)
        .map(|captures| captures[1].to_owned())
        .collect()
}

/// Invariant: Every integration test that computes also runs on a GPU.
#[test]
fn every_integration_test_that_computes_runs_on_a_gpu() {
    // The device itself, a run folder whose config names it, or a model that is loaded onto it.
    let computes = regex(
        r"\buse (?:crate|super)::(?:workplace|support)\b[^;]*\b(?:TestDevice|Workplace|test_device|load_base(?:_in)?)\b",
    );
    let helpers = ["support", "workplace"];
    let expected: BTreeSet<String> = modules()
        .into_iter()
        .filter(|(name, _)| !helpers.contains(&name.as_str()))
        .filter(|(_, texts)| texts.iter().any(|text| computes.is_match(text)))
        .map(|(name, _)| name)
        .collect();
    assert!(expected.len() >= 10, "{expected:?}");
    let listed = modules_on_a_gpu();
    let missing = expected.difference(&listed);
    let needless = listed.difference(&expected);
    let violations: Vec<String> = missing
        .map(|name| format!("tests/{name}.rs:1: computes but is missing from the list"))
        .chain(needless.map(|name| format!("{name}: is in the list but does not compute")))
        .collect();
    assert_none(
        "TEST_MODULES in scripts/gpu/run.py lists exactly the modules that compute",
        &violations,
    );
}
