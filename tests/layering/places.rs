//! Code that may occur in only one file: opening the device, autodiff, shifting targets, `unsafe`,
//! and the reference of each operation.

use super::sources::{files, read, regex, rust_sources};
use super::{assert_none, in_library};

/// Modules of `kernels` that are building blocks of operations instead of operations.
const NOT_OPERATIONS: [&str; 13] = [
    "cpu",
    "cube",
    "dropout",
    "frozen_weight",
    "gpu",
    "host_memory",
    "backward_with_gradient",
    "mpi",
    "nccl",
    "node_memory",
    "nvidia",
    "profile",
    "recording",
];

/// Invariant: `Backend` generics and `unsafe` occur only in `kernels`.
#[test]
fn backend_generics_and_unsafe_occur_only_in_kernels() {
    let violations = in_library(&regex(r"\bBackend\b|\bunsafe\b"), |source| {
        source.top() != "kernels"
    });
    assert_none("`Backend` and `unsafe` occur only in kernels", &violations);
}

/// Invariant: Only one file opens the device.
#[test]
fn the_device_is_opened_in_one_file() {
    let opened = regex(r"\bDevice::(?:flex|cuda|wgpu|vulkan|metal|rocm|cpu|default)\s*\(");
    let path = "trainer/src/device.rs";
    let violations = in_library(&opened, |source| source.path != path);
    assert_none("only trainer/src/device.rs opens a device", &violations);
    let here = in_library(&opened, |source| source.path == path);
    assert!(
        here.iter().any(|line| line.contains("flex")),
        "{path} does not open the CPU: {here:?}"
    );
}

/// Invariant: Only one function starts autodiff.
#[test]
fn autodiff_begins_in_one_function() {
    let autodiff_call = regex(r"\.(?:require_grad|autodiff)\s*\(");
    let path = "trainer/src/optim/backward.rs";
    let violations = in_library(&autodiff_call, |source| {
        source.path != path && source.top() != "kernels"
    });
    assert_none("autodiff starts only in the function `leaf`", &violations);
    let here = in_library(&autodiff_call, |source| source.path == path);
    assert_eq!(here.len(), 1, "{here:?}");
    let source = rust_sources()
        .iter()
        .find(|source| source.path == path)
        .expect(path);
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

/// Invariant: Targets are shifted in one function, once per document.
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
    assert_none("only one function shifts tokens by one", &violations);
}

/// Invariant: Every operation has a reference, and every faster path is compared with it.
#[test]
fn every_operation_keeps_its_reference() {
    let library = read("kernels/src/lib.rs");
    let public = regex(r"(?m)^pub mod (\w+);");
    let operations: Vec<&str> = public
        .captures_iter(&library)
        .map(|captures| captures.get(1).unwrap().as_str())
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
        .map(|name| format!("kernels/src/{name}/mod.rs:1: no reference.rs next to it"))
        .collect();
    assert_none("every operation has a reference", &violations);
}

/// Invariant: Every operation has a reference, and every faster path is compared with it.
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
                .any(|(_, text)| text.contains(&format!("{}::", name.replace('/', "::"))) && reference.is_match(text));
            has_faster && !is_compared
        })
        .map(|name| format!("kernels/src/{name}/mod.rs:1: no test in kernels/tests compares it with its reference"))
        .collect();
    assert_none(
        "every faster path is compared with its reference",
        &violations,
    );
}

#[test]
fn tolerances_are_in_one_table() {
    let bounds_path = "tests/support/bounds.rs";
    // The expected value of a comparison: a call of the reference, or a variable that holds it.
    let compared = regex(r"<=?\s*[^;{}&|()<>=]*(?:\de-\d|\b0\.0)");
    let named_bound = regex(r"\b(?:bound|tolerance)\s*(?::[^=]*)?=\s*[^;{}()]*(?:\de-\d|\b0\.0)");
    let mut violations = Vec::new();
    for source in rust_sources() {
        let path = &source.path;
        if path.starts_with("kernels/tests/") || path.starts_with("tests/parity/") {
            violations.extend(source.matches(&source.code, &compared));
            violations.extend(source.matches(&source.code, &named_bound));
        }
    }
    assert_none(
        &format!("tolerances are only in {bounds_path}, with a reason"),
        &violations,
    );
    let table = read(bounds_path);
    assert!(
        regex(r"\de-\d").is_match(&table),
        "{bounds_path} has no table"
    );
}

/// Invariant: Each unsafe block states why it is sound.
#[test]
fn every_unsafe_block_has_a_safety_comment() {
    let block = regex(r"\bunsafe\s*\{");
    let reason = regex(r"\bSAFETY:");
    let mut n_blocks = 0;
    let mut violations = Vec::new();
    for source in rust_sources() {
        for location in source.matches(&source.library, &block) {
            n_blocks += 1;
            let line: usize = location
                .split(':')
                .nth(1)
                .and_then(|n| n.parse().ok())
                .expect("a line");
            let lines: Vec<&str> = source.text.lines().take(line).collect();
            // The SAFETY comment may be above the statement that contains the block, but not
            // further away.
            let mut near = lines
                .iter()
                .rev()
                .take(14)
                .take_while(|line| !line.trim().is_empty());
            if !near.any(|line| reason.is_match(line)) {
                violations.push(location);
            }
        }
    }
    assert!(n_blocks > 0, "no unsafe block was found");
    assert_none("every unsafe block has a SAFETY comment", &violations);
}

/// Library code that opens files for reading without `regular_file`, and the reason.
const OWN_READING: &[(&str, &str)] = &[
    ("data/disk/src/regular_file.rs", "the function itself"),
    (
        "data/disk/src/atomic.rs",
        "opens files for writing, and folders to sync",
    ),
    (
        "checkpoints/src/input_files.rs",
        "checks the type of directory entries",
    ),
    (
        "checkpoints/src/run_dir/manifest.rs",
        "checks the type of directory entries",
    ),
    (
        "checkpoints/src/run_dir/mod.rs",
        "a folder that it has locked",
    ),
    (
        "data/sandbox/src/stage/child.rs",
        "files that the guard has placed next to it",
    ),
    (
        "data/endpoint/src/mcp/tests.rs",
        "files of the kernel and of its own server",
    ),
    (
        "data/hub/src/download.rs",
        "files that an earlier process started, after checking their type",
    ),
    ("trainer/src/process.rs", "files of the kernel"),
    ("trainer/config/src/paths.rs", "checks the path of a folder"),
    (
        "trainer/src/commands/new_file.rs",
        "checks the type of an output",
    ),
    (
        "kernels/src/gpu/mod.rs",
        "files of the kernel and of drivers",
    ),
    ("kernels/src/mpi/library.rs", "files of the kernel"),
    ("kernels/src/mpi/search.rs", "files of the kernel"),
    (
        "kernels/src/nvidia.rs",
        "checks for files of CUDA, and reads their version",
    ),
    (
        "kernels/src/choice_cache.rs",
        "its own files, after checking their type",
    ),
];

/// Invariant: One module opens files for reading, and it accepts only regular files.
#[test]
fn one_module_opens_files_for_reading() {
    let opened = regex(
        r"\bFile::open\b|\bfs::read\s*\(|\bfs::read_to_string\b|\bread_to_string\s*\(|\.read\(true\)|\.is_file\(\)",
    );
    let is_excepted = |path: &str| OWN_READING.iter().any(|(excepted, _)| *excepted == path);
    // These append to files that they have checked.
    let appending = [
        "checkpoints/src/run_dir/metrics_file.rs",
        "data/agents/src/executors/recording.rs",
        "data/disk/src/appended.rs",
        "trainer/src/metrics/tensorboard.rs",
    ];
    let violations = in_library(&opened, |source| {
        !is_excepted(&source.path) && !appending.contains(&source.path.as_str())
    });
    assert_none(
        "files are opened for reading by `regular_file`, which rejects pipes and devices",
        &violations,
    );
    for (path, _) in OWN_READING {
        let here = in_library(&opened, |source| source.path == *path);
        assert!(
            !here.is_empty(),
            "{path} no longer needs an exception; remove it from the list"
        );
    }
}

/// Invariant: A file gets its final name only when it is complete.
#[test]
fn only_the_atomic_module_creates_files_under_their_final_names() {
    let makes = regex(r"\bfs::write\s*\(|\bFile::create|\bFile::options\b|\bOpenOptions::new\b");
    // These open for reading, append to growing files, lock or sync, or create files that exist
    // only as long as the process.
    let others = [
        "data/disk/src/regular_file.rs",
        "data/disk/src/appended.rs",
        "data/agents/src/executors/recording.rs",
        "data/pipelines/src/journal/mod.rs",
        "data/hub/src/cache.rs",
        "data/hub/src/download.rs",
        "checkpoints/src/run_dir/mod.rs",
        "checkpoints/src/run_dir/manifest.rs",
        "checkpoints/src/run_dir/metrics_file.rs",
        "trainer/src/eval/journal.rs",
        "trainer/src/structure/output.rs",
        "trainer/src/structure/partial.rs",
        "trainer/src/metrics/tensorboard.rs",
    ];
    let path = "data/disk/src/atomic.rs";
    let violations = in_library(&makes, |source| {
        source.path != path
            && !others.contains(&source.path.as_str())
            && !source.path.starts_with("data/sandbox/src/")
            && ["data", "checkpoints", "trainer"].contains(&source.top())
    });
    assert_none(
        "files are created by data/disk/src/atomic.rs, under a temporary name until they are complete",
        &violations,
    );
    let here = in_library(&makes, |source| source.path == path);
    assert!(!here.is_empty(), "{path} creates no file");
}
