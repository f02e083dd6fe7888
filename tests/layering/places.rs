//! What stands in one place only: devices, autodiff, the shift, `unsafe`, and each operation's
//! reference.

use super::sources::{files, read, regex, rust_sources};
use super::{assert_none, in_library};

/// Modules of `kernels` that are no operations but what operations are made of.
const NOT_OPERATIONS: [&str; 8] = [
    "cpu",
    "cube",
    "dropout",
    "frozen_weight",
    "gpu",
    "backward_with_gradient",
    "profile",
    "recording",
];

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
        called[0].starts_with("data/rows/src/batches/collate.rs:"),
        "{}",
        called[0]
    );
    let own = regex(r"\btargets\s*\[\s*1\s*\.\.|\binput_ids\s*\[\s*1\s*\.\.");
    let violations = in_library(&own, |source| {
        source.path != "data/rows/src/batches/collate.rs"
    });
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
            let reference = format!("kernels/src/{name}/reference.rs");
            !all.contains(&reference)
        })
        .map(|name| format!("kernels/src/{name}/mod.rs:1: no reference.rs beside it"))
        .collect();
    assert_none("an operation keeps its reference for ever", &violations);
}

#[test]
fn every_faster_path_is_compared_with_its_reference() {
    let all = files();
    let tests: Vec<(&String, String)> = all
        .iter()
        .filter(|path| path.starts_with("kernels/tests/") && path.ends_with(".rs"))
        .map(|path| (path, read(path)))
        .collect();
    let reference = regex(r"\breference\b");
    let violations: Vec<String> = all
        .iter()
        .filter_map(|path| {
            path.strip_prefix("kernels/src/")?
                .strip_suffix("/reference.rs")
        })
        .filter(|name| {
            let folder = format!("kernels/src/{name}/");
            let is_own = |file: &str| ["mod.rs", "reference.rs"].contains(&file);
            let has_faster = all
                .iter()
                .filter_map(|path| path.strip_prefix(&folder))
                .any(|file| !is_own(file));
            let is_compared = tests
                .iter()
                .any(|(_, text)| text.contains(&format!("{name}::")) && reference.is_match(text));
            has_faster && !is_compared
        })
        .map(|name| format!("kernels/src/{name}/mod.rs:1: no test in kernels/tests compares it"))
        .collect();
    assert_none("a faster path is compared with its reference", &violations);
}

#[test]
fn tolerances_stand_in_one_table() {
    let place = "tests/support/bounds.rs";
    // What a difference is compared with, as it is written or by a name.
    let compared = regex(r"<=?\s*[^;{}&|()<>=]*(?:\de-\d|\b0\.0)");
    let named = regex(r"\b(?:bound|tolerance)\s*(?::[^=]*)?=\s*[^;{}()]*(?:\de-\d|\b0\.0)");
    let mut violations = Vec::new();
    for source in rust_sources() {
        let path = &source.path;
        if path.starts_with("kernels/tests/") || path.starts_with("tests/parity/") {
            violations.extend(source.matches(&source.code, &compared));
            violations.extend(source.matches(&source.code, &named));
        }
    }
    assert_none(
        &format!("how near two results must be stands in {place}, with its reason"),
        &violations,
    );
    let table = read(place);
    assert!(regex(r"\de-\d").is_match(&table), "{place} holds no table");
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let block = regex(r"\bunsafe\s*\{");
    let reason = regex(r"\bSAFETY:");
    let mut n_blocks = 0;
    let mut violations = Vec::new();
    for source in rust_sources() {
        for place in source.matches(&source.library, &block) {
            n_blocks += 1;
            let line: usize = place
                .split(':')
                .nth(1)
                .and_then(|n| n.parse().ok())
                .expect("a line");
            let lines: Vec<&str> = source.text.lines().take(line).collect();
            // The reason may stand above the statement that holds the block, not at a distance.
            let mut near = lines
                .iter()
                .rev()
                .take(14)
                .take_while(|line| !line.trim().is_empty());
            if !near.any(|line| reason.is_match(line)) {
                violations.push(place);
            }
        }
    }
    assert!(n_blocks > 0, "no unsafe block is found at all");
    assert_none("an unsafe block has a comment SAFETY:", &violations);
}

/// Library code that opens files to read in its own way, and why it may.
const OWN_READING: [(&str, &str); 13] = [
    ("data/rows/src/regular_file.rs", "the place itself"),
    ("checkpoints/src/regular_file.rs", "the place itself"),
    (
        "checkpoints/src/atomic.rs",
        "opens to write, and folders to sync",
    ),
    (
        "checkpoints/src/input_files.rs",
        "asks what the entries of a folder are",
    ),
    (
        "checkpoints/src/run_dir/manifest.rs",
        "asks what the entries of a folder are",
    ),
    (
        "data/sandbox/src/stage/child.rs",
        "what the guard has laid beside it",
    ),
    (
        "data/endpoint/src/mcp/tests.rs",
        "files of the kernel, and of its own server",
    ),
    (
        "data/hub/src/download.rs",
        "what an earlier process has begun, after asking what it is",
    ),
    ("trainer/src/process.rs", "files of the kernel"),
    (
        "trainer/src/config/paths.rs",
        "asks what is in the way of a folder",
    ),
    ("trainer/src/commands/generate.rs", "asks what an output is"),
    ("kernels/src/gpu.rs", "files of the kernel and of drivers"),
    (
        "kernels/src/kept.rs",
        "what it has written itself, after asking what it is",
    ),
];

#[test]
fn files_are_opened_to_read_in_one_place() {
    let opened = regex(
        r"\bFile::open\b|\bfs::read\s*\(|\bfs::read_to_string\b|\bread_to_string\s*\(|\.read\(true\)|\.is_file\(\)",
    );
    let is_excepted = |path: &str| OWN_READING.iter().any(|(excepted, _)| *excepted == path);
    // Appends to what it has asked about.
    let appends = "checkpoints/src/run_dir/metrics_file.rs";
    let violations = in_library(&opened, |source| {
        !is_excepted(&source.path) && source.path != appends
    });
    assert_none(
        "files are opened to read by `regular_file`, which refuses pipes and devices",
        &violations,
    );
    for (path, _) in OWN_READING {
        let here = in_library(&opened, |source| source.path == path);
        assert!(!here.is_empty(), "{path} needs no exception any more");
    }
}

#[test]
fn only_the_staging_module_makes_files_under_their_final_names() {
    let makes = regex(r"\bfs::write\s*\(|\bFile::create|\bFile::options\b|\bOpenOptions::new\b");
    // What opens to read, what is appended to while it grows, locks and syncs; and files that live as long as a process.
    let others = [
        "checkpoints/src/regular_file.rs",
        "data/rows/src/regular_file.rs",
        "data/agents/src/executors/recording.rs",
        "data/pipelines/src/journal.rs",
        "data/hub/src/cache.rs",
        "data/hub/src/download.rs",
        "checkpoints/src/run_dir/mod.rs",
        "checkpoints/src/run_dir/manifest.rs",
        "checkpoints/src/run_dir/metrics_file.rs",
        "trainer/src/eval/journal.rs",
        "trainer/src/structure/output.rs",
        "trainer/src/metrics/tensorboard.rs",
    ];
    let place = "checkpoints/src/atomic.rs";
    let violations = in_library(&makes, |source| {
        source.path != place
            && !others.contains(&source.path.as_str())
            && !source.path.starts_with("data/sandbox/src/")
            && ["data", "checkpoints", "trainer"].contains(&source.top())
    });
    assert_none(
        "files are made by checkpoints/src/atomic.rs, under another name until they are whole",
        &violations,
    );
    let here = in_library(&makes, |source| source.path == place);
    assert!(!here.is_empty(), "{place} makes no file");
}
