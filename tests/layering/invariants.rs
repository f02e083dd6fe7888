//! The doc lines `/// Invariant: …` of tests are the rows of tests/invariants.md.

use std::collections::{BTreeMap, BTreeSet};

use super::assert_none;
use super::sources::{Source, read, regex, rust_sources};

const PAGE: &str = "tests/invariants.md";
const MARK: &str = "/// Invariant: ";
const HEADER: &str = "| invariant | tests |";

/// The invariants of a file, each with the name of the function below it.
fn parse_invariants(source: &Source) -> Vec<(String, String)> {
    let function = regex(r"^(?:async )?fn (\w+)");
    let (mut invariants, mut pending) = (Vec::new(), Vec::<String>::new());
    let mut is_open = false;
    for line in source.text.lines().map(str::trim) {
        if let Some(sentence) = line.strip_prefix(MARK) {
            pending.push(sentence.to_owned());
            is_open = true;
        } else if let Some(rest) = line.strip_prefix("///") {
            let rest = rest.trim();
            is_open &= !rest.is_empty();
            if let Some(sentence) = pending.last_mut().filter(|_| is_open) {
                *sentence += &format!(" {rest}");
            }
        } else {
            is_open = false;
            if let Some(name) = function.captures(line) {
                let with_name = |sentence| (sentence, name[1].to_owned());
                invariants.extend(pending.drain(..).map(with_name));
            }
        }
    }
    invariants
}

#[test]
fn the_page_of_invariants_lists_each_with_its_tests() {
    let mut invariants: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut violations = Vec::new();
    for source in rust_sources() {
        let tests = source.tests();
        for (sentence, name) in parse_invariants(source) {
            if !tests.contains(&name) {
                let path = &source.path;
                violations.push(format!(
                    "{path}: `{name}` has an invariant but is not a test"
                ));
            }
            let names = invariants.entry(sentence).or_default();
            names.insert(format!("`{name}`"));
        }
    }
    let n = invariants.len();
    assert!(n >= 100, "only {n} invariants");
    let row = |(sentence, names): (String, BTreeSet<String>)| {
        let names: Vec<String> = names.into_iter().collect();
        format!("| {sentence} | {} |", names.join(", "))
    };
    let expected: BTreeSet<String> = invariants.into_iter().map(row).collect();
    let page = read(PAGE);
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && *line != HEADER);
    let listed: BTreeSet<String> = rows.map(str::to_owned).collect();
    let missing = expected.difference(&listed);
    violations.extend(missing.map(|row| format!("{PAGE}: missing row: {row}")));
    let outdated = listed.difference(&expected);
    violations.extend(outdated.map(|row| format!("{PAGE}: outdated row: {row}")));
    assert_none(
        "tests/invariants.md lists the tests' invariants: run scripts/docs --invariants",
        &violations,
    );
}
