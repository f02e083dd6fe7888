//! Style rules: lengths, names, required documentation, and forbidden code.

use super::sources::{Function, files, regex, rust_sources};
use super::{assert_none, in_library};
use crate::support::root;

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 120;
const MAX_KERNEL_LINES: usize = 160;

#[test]
#[allow(clippy::print_stdout, reason = "the test reports the sizes")]
fn files_and_functions_stay_within_their_size_limits() {
    let sources = rust_sources();
    let mut sizes: Vec<(usize, &str)> = sources
        .iter()
        .map(|source| (source.text.lines().count(), source.path.as_str()))
        .collect();
    sizes.sort_by(|a, b| b.cmp(a));
    println!("the ten largest files:");
    sizes
        .iter()
        .take(10)
        .for_each(|(lines, path)| println!("{lines:6} {path}"));
    let mut lengths: Vec<(usize, String)> = sources
        .iter()
        .flat_map(|source| {
            let location = |f: &Function| format!("{}:{}: {}", source.path, f.line, f.name);
            source
                .functions()
                .iter()
                .map(|f| (f.n_lines, location(f)))
                .collect::<Vec<_>>()
        })
        .collect();
    lengths.sort();
    let percentile = |share: usize| lengths[(lengths.len() - 1) * share / 100].0;
    println!(
        "{} functions: median {} lines, p90 {}",
        lengths.len(),
        percentile(50),
        percentile(90)
    );
    let (longest, location) = lengths.last().expect("functions");
    println!("the longest: {longest} lines, {location}");

    let files = sizes.iter().filter(|(lines, _)| *lines > MAX_FILE_LINES);
    let mut violations: Vec<String> = files
        .map(|(lines, path)| format!("{path}:1: {lines} lines"))
        .collect();
    let functions = lengths
        .iter()
        .filter(|(lines, location)| *lines > most_lines(location));
    violations.extend(functions.map(|(lines, location)| format!("{location} has {lines} lines")));
    assert_none(
        "at most 600 lines per file, 120 per function, 160 per GPU kernel",
        &violations,
    );
}

/// A GPU kernel is one sequential program: splitting it would hide where its threads wait for each
/// other.
fn most_lines(location: &str) -> usize {
    if location.contains("/cuda/") {
        MAX_KERNEL_LINES
    } else {
        MAX_FUNCTION_LINES
    }
}

#[test]
fn every_module_has_a_doc_comment() {
    let violations: Vec<String> = rust_sources()
        .iter()
        .filter(|source| source.path.contains("/src/") || source.path.contains("tests/"))
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| {
            format!(
                "{}:1: {}",
                source.path,
                source.text.lines().next().unwrap_or("")
            )
        })
        .collect();
    assert_none("every module starts with a //! description", &violations);
}

#[test]
fn no_module_has_a_generic_name() {
    let shelves = [
        "util", "utils", "common", "helper", "helpers", "manager", "misc", "stuff",
    ];
    let mut violations: Vec<String> = files()
        .into_iter()
        .filter(|path| {
            let parts = path.split(['/', '_', '.', '-']);
            parts.into_iter().any(|part| shelves.contains(&part))
        })
        .collect();
    let item = regex(
        r"\b(?:mod|struct|enum|trait|type)\s+(?:\w*(?:Manager|Helper|Utils?|Misc)|(?:utils?|common|helpers?|manager|misc))\b",
    );
    for source in rust_sources() {
        violations.extend(source.matches(&source.code, &item));
    }
    assert_none(
        "nothing is named Manager, Helper, Utils, Misc or common",
        &violations,
    );
}

/// Invariant: No test is ignored and no code is a stub.
#[test]
fn no_test_is_ignored_and_no_code_is_a_stub() {
    let never = regex(
        r"#\[\s*(?:ignore|should_panic)\b|\b(?:todo|unimplemented|dbg)!|#!?\[allow\(dead_code",
    );
    let mut violations = Vec::new();
    for source in rust_sources() {
        violations.extend(source.matches(&source.code, &never));
        let open = regex(r"//.*\b(?:FIXME|XXX)\b");
        violations.extend(source.matches(&source.text, &open));
    }
    let violations: Vec<String> = violations
        .into_iter()
        .filter(|location| !location.starts_with("tests/layering"))
        .collect();
    assert_none(
        "no test is ignored, and no code is a stub or a TODO",
        &violations,
    );
}

/// Invariant: Only commands print.
#[test]
fn library_code_does_not_print() {
    let print = regex(r"\be?print(?:ln)?!");
    let speaks = |path: &str| {
        let may = [
            "trainer/src/commands/",
            "trainer/src/main.rs",
            "trainer/terminal/src/bar.rs",
        ];
        may.iter().any(|prefix| path.starts_with(prefix)) || !path.contains("/src/")
    };
    let violations = in_library(&print, |source| !speaks(&source.path));
    assert_none("only commands print", &violations);
}

#[test]
fn no_path_of_a_developers_machine_is_in_the_repository() {
    let folders = ["home", "Users", "root", "work", "mnt", "workspace"].join("|");
    let path = regex(&format!(r"(?-u)(?:^|[\s\x22'`=(:,])/(?:{folders})/[\w.-]"));
    let windows = regex(r"(?-u)[A-Z]:\\\\?Users");
    let path = regex::bytes::Regex::new(path.as_str()).expect("a pattern");
    let windows = regex::bytes::Regex::new(windows.as_str()).expect("a pattern");
    let violations: Vec<String> = files()
        .into_iter()
        .filter_map(|file| {
            let bytes = std::fs::read(root().join(&file)).ok()?;
            let hit = path.find(&bytes).or_else(|| windows.find(&bytes))?;
            let line = bytes[..hit.start()]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
                + 1;
            Some(format!(
                "{file}:{line}: {}",
                String::from_utf8_lossy(hit.as_bytes()).trim()
            ))
        })
        .collect();
    assert_none("no path of a particular machine", &violations);
}
