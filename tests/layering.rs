//! The rules of the house, read from its files: who may know whom, what stands in one place only,
//! how large things may be, and what is never written.
//!
//! Each test prints every violation as `file:line`. The rules are those of ARCHITECTURE.md; a rule
//! that must change is changed there and here together.

mod sources;

use std::collections::BTreeMap;

use regex::Regex;
use toml::Table;

use sources::{Source, files, read, regex, rust_sources};

/// The folders of the crates, the leaves first.
const LEAVES: [&str; 3] = ["data", "kernels", "checkpoints"];
const TRAINER: &str = "trainer";

/// The modules of the trainer from the lowest to the highest: each uses those before it.
const LAYERS: [&str; 16] = [
    "config",
    "models",
    "lora",
    "optim",
    "error",
    "process",
    "device",
    "base_model",
    "metrics",
    "export",
    "eval",
    "progress",
    "recipes",
    "cli",
    "commands",
    "main",
];

/// Uses against the order, and why they may be.
const AGAINST_THE_ORDER: [(&str, &str); 2] = [
    // A projection applies the mask of the key it is given; the key belongs to LoRA.
    ("models", "lora"),
    // The evaluation inside a run is prepared by the run.
    ("eval", "recipes"),
];

/// Modules of `kernels` that are no operations but what operations are made of.
const NOT_OPERATIONS: [&str; 1] = ["cpu"];

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 120;

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

fn manifest(folder: &str) -> Table {
    let path = format!("{folder}/Cargo.toml");
    read(&path)
        .parse()
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of everything that a crate depends on, for tests and builds too.
fn dependencies(folder: &str) -> Vec<String> {
    let manifest = manifest(folder);
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|kind| manifest.get(*kind)?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

#[test]
fn the_crates_form_a_star() {
    for leaf in LEAVES {
        let ours: Vec<String> = dependencies(leaf)
            .into_iter()
            .filter(|name| name.starts_with("tooltune"))
            .collect();
        assert!(
            ours.is_empty(),
            "{leaf}/Cargo.toml: a leaf depends on {}",
            ours.join(", ")
        );
    }
    let known = dependencies(TRAINER);
    for leaf in LEAVES {
        let name = format!("tooltune-{leaf}");
        assert!(
            known.contains(&name),
            "{TRAINER}/Cargo.toml does not depend on {name}"
        );
    }
    let other = regex(r"\btooltune(_\w+)?::");
    let own = |source: &Source| format!("tooltune_{}::", source.top());
    let violations: Vec<String> = rust_sources()
        .iter()
        .filter(|source| LEAVES.contains(&source.top()))
        .flat_map(|source| {
            let foreign = other
                .find_iter(&source.code)
                .filter(|m| m.as_str() != own(source));
            foreign
                .map(|m| format!("{}: {}", source.path, m.as_str()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_none("a leaf names no other crate of ours", &violations);
}

#[test]
fn burn_is_named_only_where_tensors_are_computed() {
    for folder in ["data", "checkpoints"] {
        let devices: Vec<String> = dependencies(folder)
            .into_iter()
            .filter(|name| {
                ["burn", "cubecl", "cudarc"]
                    .iter()
                    .any(|b| name.starts_with(b))
            })
            .collect();
        assert!(
            devices.is_empty(),
            "{folder}/Cargo.toml: {}",
            devices.join(", ")
        );
    }
    let burn = regex(r"\b(?:burn\w*|cubecl\w*)::");
    let violations = in_library(&burn, |source| {
        ["data", "checkpoints"].contains(&source.top())
    });
    assert_none("text and files know no device", &violations);
}

#[test]
fn the_version_of_burn_stands_in_one_place() {
    let workspace: Table = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let burn = &workspace["workspace"]["dependencies"]["burn"];
    let pin = burn["version"].as_str().expect("a version");
    let version = pin
        .strip_prefix('=')
        .unwrap_or_else(|| panic!("Cargo.toml: {pin:?} is no pin"));
    for folder in LEAVES.iter().chain([&TRAINER]) {
        for (name, wanted) in manifest(folder)["dependencies"]
            .as_table()
            .expect("a table")
        {
            let inherits = wanted.get("workspace").and_then(toml::Value::as_bool) == Some(true);
            assert!(
                inherits,
                "{folder}/Cargo.toml: {name} must say `workspace = true`"
            );
        }
    }
    let named = regex(&format!(
        r"(?:^|[^\d.]){}(?:\D|$)",
        version.replace('.', r"\.")
    ));
    let violations: Vec<String> = files()
        .iter()
        .filter(|path| !["Cargo.toml", "Cargo.lock"].contains(&path.as_str()))
        .filter(|path| {
            [".rs", ".toml", ".md", ".sh"]
                .iter()
                .any(|end| path.ends_with(end))
        })
        .flat_map(|path| {
            let text = read(path);
            let lines = text
                .lines()
                .enumerate()
                .filter(|(_, line)| named.is_match(line));
            lines
                .map(|(i, line)| format!("{path}:{}: {}", i + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_none(&format!("only Cargo.toml says {version}"), &violations);
}

#[test]
fn backend_generics_and_unsafe_stay_in_kernels() {
    let violations = in_library(&regex(r"\bBackend\b|\bunsafe\b"), |source| {
        source.top() != "kernels"
    });
    assert_none("`Backend` and `unsafe` stay in kernels", &violations);
}

#[test]
fn the_device_is_opened_in_one_file() {
    let opened = regex(r"\bDevice::(?:flex|cuda|wgpu|vulkan|metal|rocm|cpu|default)\s*\(");
    let place = "trainer/src/device.rs";
    let violations = in_library(&opened, |source| source.path != place);
    assert_none(
        "a device is opened in trainer/src/device.rs only",
        &violations,
    );
    let here = in_library(&opened, |source| source.path == place);
    assert!(
        here.iter().any(|line| line.contains("flex")),
        "{place} opens no CPU: {here:?}"
    );
}

#[test]
fn autodiff_begins_in_one_function() {
    let begun = regex(r"\.(?:require_grad|autodiff)\s*\(");
    let place = "trainer/src/optim/backward.rs";
    let violations = in_library(&begun, |source| {
        source.path != place && source.top() != "kernels"
    });
    assert_none("autodiff begins in one function, `leaf`", &violations);
    let here = in_library(&begun, |source| source.path == place);
    assert_eq!(here.len(), 1, "{here:?}");
    let source = rust_sources()
        .iter()
        .find(|source| source.path == place)
        .expect(place);
    let leaf = source
        .functions()
        .into_iter()
        .find(|f| f.name == "leaf")
        .expect("the function leaf");
    let line: usize = here[0]
        .split(':')
        .nth(1)
        .and_then(|line| line.parse().ok())
        .expect("a line");
    assert!(
        (leaf.line..leaf.line + leaf.n_lines).contains(&line),
        "{} is not in leaf",
        here[0]
    );
}

#[test]
fn the_shift_happens_in_one_function() {
    let name = regex(r"\bshift_for_next_token\s*\(");
    let uses = in_library(&name, |_| true);
    let (defined, called): (Vec<_>, Vec<_>) = uses.into_iter().partition(|u| u.contains("fn "));
    assert_eq!(defined.len(), 1, "defined at:\n{}", defined.join("\n"));
    assert_eq!(called.len(), 1, "called at:\n{}", called.join("\n"));
    assert!(
        called[0].starts_with("data/src/batches/collate.rs:"),
        "{}",
        called[0]
    );
    let own = regex(r"\btargets\s*\[\s*1\s*\.\.|\binput_ids\s*\[\s*1\s*\.\.");
    let violations = in_library(&own, |source| source.path != "data/src/batches/collate.rs");
    assert_none("nothing else moves tokens by one", &violations);
}

#[test]
fn every_operation_keeps_its_reference() {
    let library = read("kernels/src/lib.rs");
    let public = regex(r"(?m)^pub mod (\w+);");
    let operations: Vec<&str> = public
        .captures_iter(&library)
        .map(|found| found.get(1).unwrap().as_str())
        .filter(|name| !NOT_OPERATIONS.contains(name))
        .collect();
    assert!(operations.len() >= 6, "{operations:?}");
    let all = files();
    let violations: Vec<String> = operations
        .into_iter()
        .filter(|name| {
            let folder = format!("kernels/src/{name}/");
            let own: Vec<&str> = all.iter().filter_map(|p| p.strip_prefix(&folder)).collect();
            // An operation that has no faster version is its own reference.
            let is_plain = own == ["mod.rs"] && {
                let text = read(&format!("{folder}mod.rs"));
                !regex(r"\b(?:reference|crate::cpu|rayon|fused)\b").is_match(&text)
            };
            !own.contains(&"reference.rs") && !is_plain
        })
        .map(|name| format!("kernels/src/{name}/mod.rs:1: no reference.rs beside it"))
        .collect();
    assert_none("an operation keeps its reference for ever", &violations);
}

#[test]
fn modules_of_the_trainer_use_only_those_below_them() {
    let path = regex(r"\bcrate::(\w+)|\bcrate::\{([^}]*)\}");
    let place = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let mut violations = Vec::new();
    for source in rust_sources() {
        let Some(below) = source.path.strip_prefix("trainer/src/") else {
            continue;
        };
        let module = below
            .split('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let Some(own) = place(module) else {
            violations.push(format!(
                "{}:1: `{module}` has no place in LAYERS",
                source.path
            ));
            continue;
        };
        for found in path.captures_iter(&source.library) {
            let names = found
                .get(1)
                .or(found.get(2))
                .map_or("", |names| names.as_str());
            let used = names
                .split(',')
                .map(|n| n.trim().split("::").next().unwrap_or_default());
            for name in used.filter(|name| *name != module) {
                let is_above = place(name).is_some_and(|layer| layer > own);
                if is_above && !AGAINST_THE_ORDER.contains(&(module, name)) {
                    let line = source.library[..found.get(0).unwrap().start()]
                        .lines()
                        .count();
                    violations.push(format!("{}:{line}: {module} uses {name}", source.path));
                }
            }
        }
    }
    assert_none("a module of the trainer uses those below it", &violations);
}

#[test]
#[allow(
    clippy::print_stdout,
    reason = "the sizes are what a reader of the test wants to see"
)]
fn files_and_functions_keep_to_their_sizes() {
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
            let place = |f: &sources::Function| format!("{}:{}: {}", source.path, f.line, f.name);
            source
                .functions()
                .iter()
                .map(|f| (f.n_lines, place(f)))
                .collect::<Vec<_>>()
        })
        .collect();
    lengths.sort();
    let at = |share: usize| lengths[(lengths.len() - 1) * share / 100].0;
    println!(
        "{} functions: median {} lines, p90 {}",
        lengths.len(),
        at(50),
        at(90)
    );
    let (longest, place) = lengths.last().expect("functions");
    println!("the longest: {longest} lines, {place}");

    let files = sizes.iter().filter(|(lines, _)| *lines > MAX_FILE_LINES);
    let mut violations: Vec<String> = files
        .map(|(lines, path)| format!("{path}:1: {lines} lines"))
        .collect();
    let functions = lengths
        .iter()
        .filter(|(lines, _)| *lines > MAX_FUNCTION_LINES);
    violations.extend(functions.map(|(lines, place)| format!("{place} has {lines} lines")));
    assert_none("at most 600 lines a file, 120 a function", &violations);
}

#[test]
fn every_module_says_what_it_is() {
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
    assert_none(
        "a module opens with //! and what it turns into what",
        &violations,
    );
}

#[test]
fn nothing_has_a_shelf_name() {
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
        "a thing without a better name has no owner yet",
        &violations,
    );
}

#[test]
fn no_test_is_switched_off_and_no_code_is_a_stub() {
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
        .filter(|place| !place.starts_with("tests/layering"))
        .collect();
    assert_none("nothing is ignored, stubbed or left to do", &violations);
}

#[test]
fn library_code_does_not_print() {
    let print = regex(r"\be?print(?:ln)?!");
    let speaks = |path: &str| {
        let may = [
            "trainer/src/commands/",
            "trainer/src/main.rs",
            "trainer/src/progress.rs",
        ];
        may.iter().any(|prefix| path.starts_with(prefix)) || !path.contains("/src/")
    };
    let violations = in_library(&print, |source| !speaks(&source.path));
    assert_none("the commands print, nothing below them does", &violations);
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
            let bytes = std::fs::read(crate::support::root().join(&file)).ok()?;
            let found = path.find(&bytes).or_else(|| windows.find(&bytes))?;
            let line = bytes[..found.start()]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
                + 1;
            Some(format!(
                "{file}:{line}: {}",
                String::from_utf8_lossy(found.as_bytes()).trim()
            ))
        })
        .collect();
    assert_none("no path of one machine", &violations);
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    let text = read("ARCHITECTURE.md");
    let section = text
        .split("\n## ")
        .find(|part| part.starts_with("Invariants"))
        .expect("Invariants");
    let mut files_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in rust_sources() {
        for test in source.tests() {
            files_of.entry(test).or_default().push(source.path.clone());
        }
    }
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
        let missing = names
            .into_iter()
            .filter(|name| !files_of.contains_key(*name));
        violations
            .extend(missing.map(|name| format!("ARCHITECTURE.md: there is no test `{name}`")));
    }
    assert_none("an invariant is held by a test", &violations);
}
