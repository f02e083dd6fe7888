//! Where an MPI library with the standard ABI may be.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Names of the library, the newest version of the ABI first.
#[cfg(not(target_os = "macos"))]
const NAMES: [&str; 3] = ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"];
#[cfg(target_os = "macos")]
const NAMES: [&str; 3] = [
    "libmpi_abi.1.dylib",
    "libmpi_abi.0.dylib",
    "libmpi_abi.dylib",
];

/// Beginning of every such name. Other libraries of MPI, such as `libmpi.so`, have another ABI.
const STEM: &str = "libmpi_abi.";

/// Programs that start processes of MPI, in `PATH`.
const STARTERS: [&str; 2] = ["mpiexec", "mpirun"];

/// Parent processes that are looked at: the launcher may start this program through shells.
const N_ANCESTORS: usize = 6;

/// Whether a file may have the standard ABI, judged by its name.
pub(super) fn has_name(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::to_string_lossy);
    name.is_some_and(|name| name.starts_with(STEM))
}

/// Paths and names of the library, the best one first: next to the launcher which started this
/// process, in the dynamic loader's folders, next to a launcher in `PATH`.
pub(super) fn candidates() -> Vec<PathBuf> {
    let starters = std::env::var_os("PATH").map_or_else(Vec::new, |path| starters_in(&path));
    let names = NAMES.iter().map(PathBuf::from);
    let mut found = libraries_of(&ancestors());
    found.extend(names);
    found.extend(libraries_of(&starters));
    found
}

/// The libraries in the installations that these programs belong to.
fn libraries_of(programs: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for program in programs {
        let Some(prefix) = program.parent().and_then(Path::parent) else {
            continue;
        };
        for folder in ["lib", "lib64"] {
            let paths = NAMES.map(|name| prefix.join(folder).join(name));
            found.extend(paths.into_iter().filter(|path| path.exists()));
        }
    }
    found
}

/// The programs of [`STARTERS`] in the folders of `PATH`, without symbolic links.
fn starters_in(path: &OsString) -> Vec<PathBuf> {
    let folders = std::env::split_paths(path);
    let programs = folders.flat_map(|folder| STARTERS.map(|name| folder.join(name)));
    programs
        .filter_map(|program| program.canonicalize().ok())
        .collect()
}

/// The programs of the processes above this one, the nearest first. Only Linux reports them.
fn ancestors() -> Vec<PathBuf> {
    let mut process = "self".to_owned();
    let mut programs = Vec::new();
    for _ in 0..N_ANCESTORS {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
        let Some(parent) = stat.ok().as_deref().and_then(parent_in) else {
            break;
        };
        process = parent;
        let program = std::fs::read_link(format!("/proc/{process}/exe"));
        programs.extend(program);
    }
    programs
}

/// The parent's process ID in a line of `/proc/PID/stat`: `12 (name) S 7 …`, where the name may
/// contain spaces and parentheses.
fn parent_in(stat: &str) -> Option<String> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let parent = after_name.split_whitespace().nth(1)?;
    (parent != "0").then(|| parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_standard_abi_are_accepted() {
        for (path, is_accepted) in [
            ("/opt/mpi/lib/libmpi_abi.so.1", true),
            ("libmpi_abi.so", true),
            ("/usr/lib/libmpi.so", false),
            ("/usr/lib/libmpi.so.40", false),
            ("/usr/lib/libmpi_abi.so.1/..", false),
        ] {
            assert_eq!(has_name(Path::new(path)), is_accepted, "{path}");
        }
    }

    #[test]
    fn the_parent_is_read_after_the_last_parenthesis() {
        assert_eq!(parent_in("12 (a) b (c) S 7 12 0"), Some("7".to_owned()));
        assert_eq!(parent_in("1 (init) S 0 1 1"), None);
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn libraries_are_found_next_to_their_launcher() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["bin", "lib"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let program = folder.path().join("bin/mpiexec");
        let library = folder.path().join("lib").join(NAMES[0]);
        for path in [&program, &library] {
            std::fs::write(path, "").expect("a file");
        }
        let path = folder.path().join("bin").into_os_string();
        let programs = starters_in(&path);
        let prefix = folder.path().canonicalize().expect("a path");
        assert_eq!(programs, [prefix.join("bin/mpiexec")]);
        assert_eq!(libraries_of(&programs), [prefix.join("lib").join(NAMES[0])]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_parent_process_has_a_program() {
        assert!(!ancestors().is_empty());
    }
}
