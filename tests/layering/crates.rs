//! Allowed dependencies: crates, external packages, and modules of the trainer.

use regex::Regex;
use toml::Table;

use super::sources::{Source, files, read, regex, rust_sources};
use super::{CONFIG_LAYERS, CRATES, LAYERS, assert_none, in_library};

fn manifest(folder: &str) -> Table {
    let path = format!("{folder}/Cargo.toml");
    read(&path)
        .parse()
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Cargo tables whose dependencies are linked into a crate.
const LINKED: [&str; 2] = ["dependencies", "build-dependencies"];

/// A crate's dependencies with their features in these tables, including target-specific tables.
fn dependencies(folder: &str, kinds: &[&str]) -> Table {
    let manifest = manifest(folder);
    let systems = manifest.get("target").and_then(toml::Value::as_table);
    let systems = systems
        .into_iter()
        .flat_map(|table| table.values().filter_map(|v| v.as_table()));
    let holders = std::iter::once(&manifest).chain(systems);
    let tables = holders.flat_map(|holder| kinds.iter().map(|kind| holder.get(*kind)?.as_table()));
    tables
        .flatten()
        .flatten()
        .map(|(name, dependency)| (name.clone(), dependency.clone()))
        .collect()
}

/// All dependencies of a crate, including its dev-dependencies.
fn all_dependencies(folder: &str) -> Table {
    dependencies(
        folder,
        &["dependencies", "dev-dependencies", "build-dependencies"],
    )
}

/// Invariant: Crates depend on each other in one direction, and only the trainer joins data,
/// kernels and checkpoints.
#[test]
fn crates_depend_on_each_other_in_one_direction() {
    let workspace: Table = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let members = workspace["workspace"]["dependencies"].as_table().unwrap();
    let n_ours = members
        .keys()
        .filter(|name| name.starts_with("tooltune"))
        .count();
    assert_eq!(
        n_ours + 1,
        CRATES.len(),
        "CRATES lists every crate, including the trainer"
    );
    for (i, (folder, allowed)) in CRATES.iter().enumerate() {
        let mut ours: Vec<String> = dependencies(folder, &LINKED)
            .into_iter()
            .filter_map(|(name, _)| Some(name.strip_prefix("tooltune-")?.to_owned()))
            .collect();
        ours.sort();
        assert_eq!(
            &ours, allowed,
            "{folder}/Cargo.toml: the workspace dependencies differ from CRATES"
        );
        let is_below = |name: &String| {
            let lower = CRATES[..i].iter();
            lower
                .map(|(folder, _)| folder.rsplit('/').next())
                .any(|allowed| allowed == Some(name))
        };
        assert!(
            ours.iter().all(is_below),
            "{folder}: may depend only on crates above it in CRATES"
        );
    }
}

/// Invariant: The crates that prepare training rows link no network, sandbox or grammar code.
#[test]
fn training_crates_link_no_network_sandbox_or_grammar() {
    for folder in [
        "data/disk",
        "data/json",
        "data/template",
        "data/apis",
        "data/rows",
        "data/files",
        "data/agents",
    ] {
        let linked = dependencies(folder, &LINKED);
        for name in ["ureq", "seccompiler", "landlock", "nix", "llguidance"] {
            assert!(
                !linked.contains_key(name),
                "{folder}/Cargo.toml links {name}"
            );
        }
    }
}

/// Invariant: The crates in `data` and `checkpoints` do not depend on Burn.
#[test]
fn only_crates_with_tensors_depend_on_burn() {
    let without_tensors = [
        "checkpoints",
        "trainer/config",
        "trainer/ranks",
        "trainer/terminal",
    ];
    let below_tensors =
        |folder: &&str| folder.starts_with("data/") || without_tensors.contains(folder);
    for folder in CRATES
        .map(|(folder, _)| folder)
        .iter()
        .filter(|f| below_tensors(f))
    {
        let devices: Vec<String> = all_dependencies(folder)
            .into_iter()
            .map(|(name, _)| name)
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
    assert_none(
        "the crates in data and checkpoints do not depend on Burn",
        &violations,
    );
}

/// Invariant: Only the root `Cargo.toml` contains Burn's version.
#[test]
fn the_version_of_burn_is_in_one_manifest() {
    let workspace: Table = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let burn = &workspace["workspace"]["dependencies"]["burn"];
    let pin = burn["version"].as_str().expect("a version");
    let version = pin
        .strip_prefix('=')
        .unwrap_or_else(|| panic!("Cargo.toml: {pin:?} is not a pinned version"));
    for (folder, _) in CRATES {
        for (name, dependency) in all_dependencies(folder) {
            let inherits = dependency.get("workspace").and_then(toml::Value::as_bool) == Some(true);
            assert!(
                inherits,
                "{folder}/Cargo.toml: {name} must say `workspace = true`"
            );
        }
    }
    let naming_pattern = regex(&format!(
        r"(?:^|[^\d.]){}(?:\D|$)",
        version.replace('.', r"\.")
    ));
    let violations: Vec<String> = files()
        .iter()
        .filter(|path| !["Cargo.toml", "Cargo.lock"].contains(&path.as_str()))
        // Recorded measurements name the version that they were made with.
        .filter(|path| !path.starts_with("benchmarks/"))
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
                .filter(|(_, line)| naming_pattern.is_match(line));
            lines
                .map(|(i, line)| format!("{path}:{}: {}", i + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_none(&format!("only Cargo.toml contains {version}"), &violations);
}

/// The names that follow `path` in the library code of a file, each with its line.
fn names_after<'s>(source: &'s Source, path: &Regex) -> Vec<(usize, &'s str)> {
    let code = &source.library;
    let names = path.captures_iter(code).flat_map(|captures| {
        let line = code[..captures.get(0).unwrap().start()].lines().count();
        let names = captures
            .get(1)
            .or(captures.get(2))
            .map_or("", |n| n.as_str());
        let first = |name: &'s str| name.trim().split("::").next().unwrap_or_default();
        names.split(',').map(move |name| (line, first(name)))
    });
    names.collect()
}

/// Whether `name` is above `module` in `layers`; other names have no position.
fn is_above(layers: &[&str], module: &str, name: &str) -> bool {
    let position = |wanted: &str| layers.iter().position(|layer| *layer == wanted);
    position(name) > position(module)
}

/// Invariant: Modules of the trainer and of its config use only modules below them.
#[test]
fn modules_of_the_trainer_use_only_those_below_them() {
    let path = regex(r"\bcrate::(\w+)|\bcrate::\{([^}]*)\}");
    let mut violations = Vec::new();
    for source in rust_sources() {
        let Some(relative) = source.path.strip_prefix("trainer/src/") else {
            continue;
        };
        let module = relative.split('/').next().unwrap_or_default();
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        if !LAYERS.contains(&module) {
            let path = &source.path;
            violations.push(format!("{path}:1: `{module}` is missing from LAYERS"));
            continue;
        }
        for (line, name) in names_after(source, &path) {
            if is_above(&LAYERS, module, name) {
                violations.push(format!("{}:{line}: {module} uses {name}", source.path));
            }
        }
    }
    assert_none(
        "modules of the trainer use only modules below them",
        &violations,
    );
}

/// Invariant: Modules of the trainer and of its config use only modules below them.
#[test]
fn modules_of_the_config_use_only_those_below_them() {
    let from_top = regex(r"\bsuper::(\w+)|\bsuper::\{([^}]*)\}");
    let from_below = regex(r"\bcrate::(\w+)|\bcrate::\{([^}]*)\}");
    let mut n_uses = 0;
    let mut violations = Vec::new();
    for source in rust_sources() {
        let Some(relative) = source.path.strip_prefix("trainer/config/src/") else {
            continue;
        };
        let (module, path) = match relative.split_once('/') {
            Some((folder, _)) => (folder, &from_below),
            None => (relative.trim_end_matches(".rs"), &from_top),
        };
        if ["lib", "tests"].contains(&module) {
            continue;
        }
        assert!(
            CONFIG_LAYERS.contains(&module),
            "{}: `{module}` is missing from the layers of the config",
            source.path
        );
        for (line, name) in names_after(source, path) {
            n_uses += usize::from(name != module);
            if is_above(&CONFIG_LAYERS, module, name) {
                violations.push(format!("{}:{line}: {module} uses {name}", source.path));
            }
        }
    }
    assert!(n_uses > 30, "{n_uses}");
    assert_none(
        "modules of the config use only modules below them",
        &violations,
    );
}
