//! Who may know whom: crates, dependencies, and modules of the trainer.

use regex::Regex;
use toml::Table;

use super::sources::{Source, files, read, regex, rust_sources};
use super::{AGAINST_THE_ORDER, CONFIG_LAYERS, CRATES, LAYERS, assert_none, in_library};

fn manifest(folder: &str) -> Table {
    let path = format!("{folder}/Cargo.toml");
    read(&path)
        .parse()
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Kinds of tables that name what is linked into a crate.
const LINKED: [&str; 2] = ["dependencies", "build-dependencies"];

/// What a crate depends on with what it asks for, in tables of these kinds, for single systems too.
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
        .map(|(name, wanted)| (name.clone(), wanted.clone()))
        .collect()
}

/// Everything that a crate depends on, for its tests too.
fn all_dependencies(folder: &str) -> Table {
    dependencies(
        folder,
        &["dependencies", "dev-dependencies", "build-dependencies"],
    )
}

#[test]
fn the_crates_know_each_other_in_one_direction() {
    let workspace: Table = read("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let members = workspace["workspace"]["dependencies"].as_table().unwrap();
    let n_ours = members
        .keys()
        .filter(|name| name.starts_with("tooltune"))
        .count();
    assert_eq!(
        n_ours + 1,
        CRATES.len(),
        "CRATES names every crate, the trainer too"
    );
    for (i, (folder, known)) in CRATES.iter().enumerate() {
        let mut ours: Vec<String> = dependencies(folder, &LINKED)
            .into_iter()
            .filter_map(|(name, _)| Some(name.strip_prefix("tooltune-")?.to_owned()))
            .collect();
        ours.sort();
        assert_eq!(
            &ours, known,
            "{folder}/Cargo.toml: the crates of ours that it knows"
        );
        let is_below = |name: &String| {
            let below = CRATES[..i].iter();
            below
                .map(|(folder, _)| folder.rsplit('/').next())
                .any(|known| known == Some(name))
        };
        assert!(
            ours.iter().all(is_below),
            "{folder}: it knows only crates above it in CRATES"
        );
    }
}

#[test]
fn what_training_reads_links_no_network_sandbox_or_grammar() {
    for folder in ["data/rows", "data/files", "data/agents"] {
        let linked = dependencies(folder, &LINKED);
        for name in ["ureq", "seccompiler", "landlock", "nix", "llguidance"] {
            assert!(
                !linked.contains_key(name),
                "{folder}/Cargo.toml links {name}"
            );
        }
    }
}

#[test]
fn burn_is_named_only_where_tensors_are_computed() {
    let below_tensors = |folder: &&str| folder.starts_with("data/") || *folder == "checkpoints";
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
    for (folder, _) in CRATES {
        for (name, wanted) in all_dependencies(folder) {
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
        // A measured table tells what it was measured with.
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
                .filter(|(_, line)| named.is_match(line));
            lines
                .map(|(i, line)| format!("{path}:{}: {}", i + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_none(&format!("only Cargo.toml says {version}"), &violations);
}

/// The names that follow `path` in a file's library code, each with its line.
fn names_after<'s>(source: &'s Source, path: &Regex) -> Vec<(usize, &'s str)> {
    let code = &source.library;
    let names = path.captures_iter(code).flat_map(|found| {
        let line = code[..found.get(0).unwrap().start()].lines().count();
        let names = found.get(1).or(found.get(2)).map_or("", |n| n.as_str());
        let first = |name: &'s str| name.trim().split("::").next().unwrap_or_default();
        names.split(',').map(move |name| (line, first(name)))
    });
    names.collect()
}

/// Whether `name` stands above `module` among `layers`; what is no layer stands nowhere.
fn is_above(layers: &[&str], module: &str, name: &str) -> bool {
    let place = |wanted: &str| layers.iter().position(|layer| *layer == wanted);
    place(name) > place(module)
}

#[test]
fn modules_of_the_trainer_use_only_those_below_them() {
    let path = regex(r"\bcrate::(\w+)|\bcrate::\{([^}]*)\}");
    let mut violations = Vec::new();
    for source in rust_sources() {
        let Some(below) = source.path.strip_prefix("trainer/src/") else {
            continue;
        };
        let module = below.split('/').next().unwrap_or_default();
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        if !LAYERS.contains(&module) {
            let path = &source.path;
            violations.push(format!("{path}:1: `{module}` has no place in LAYERS"));
            continue;
        }
        for (line, name) in names_after(source, &path) {
            if is_above(&LAYERS, module, name) && !AGAINST_THE_ORDER.contains(&(module, name)) {
                violations.push(format!("{}:{line}: {module} uses {name}", source.path));
            }
        }
    }
    assert_none("a module of the trainer uses those below it", &violations);
}

#[test]
fn modules_of_the_config_use_only_those_below_them() {
    let from_top = regex(r"\bsuper::(\w+)|\bsuper::\{([^}]*)\}");
    let from_below = regex(r"\bcrate::config::(\w+)|\bcrate::config::\{([^}]*)\}");
    let mut n_uses = 0;
    let mut violations = Vec::new();
    for source in rust_sources() {
        let Some(below) = source.path.strip_prefix("trainer/src/config/") else {
            continue;
        };
        let (module, path) = match below.split_once('/') {
            Some((folder, _)) => (folder, &from_below),
            None => (below.trim_end_matches(".rs"), &from_top),
        };
        if ["mod", "tests"].contains(&module) {
            continue;
        }
        assert!(
            CONFIG_LAYERS.contains(&module),
            "{}: `{module}` has no place",
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
    assert_none("a module of the config uses those below it", &violations);
}
