//! Finds the executable of a Python interpreter and the files that it needs.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::SandboxError;

/// A Python interpreter that can run in the sandbox.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    /// The executable as Python reports it (`sys.executable`).
    pub(super) program: PathBuf,
    pub(super) version: String,
    /// Paths that must be readable in addition to system files.
    pub(super) read_only: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct InterpreterPaths {
    program: PathBuf,
    version: Vec<u32>,
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

/// Prints the folders of the interpreter and of its virtual environment, its executable with and
/// without resolved links, and the libraries that it has loaded.
const PATHS_SCRIPT: &str = r#"
import json, os, sys
folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
files = {sys.executable, os.path.realpath(sys.executable)}
with open("/proc/self/maps", errors="surrogateescape") as maps:
    files.update(line[line.index("/"):].rstrip("\n") for line in maps if "/" in line)
told = {
    "program": sys.executable,
    "version": sys.version_info[:3],
    "folders": sorted(filter(os.path.isdir, folders)),
    "files": sorted(filter(os.path.isfile, files)),
}
print(json.dumps(told))
"#;

impl Interpreter {
    pub(super) fn find(python: &str) -> Result<Self, SandboxError> {
        let no_python = |reason: String| SandboxError::NoPython {
            program: python.to_owned(),
            reason,
        };
        let output = Command::new(python)
            .args(["-I", "-c", PATHS_SCRIPT])
            .output()
            .map_err(|error| no_python(format!("cannot be started ({error})")))?;
        if !output.status.success() {
            let stderr_text = String::from_utf8_lossy(&output.stderr);
            let stderr_text: String = stderr_text.trim().chars().take(400).collect();
            return Err(no_python(format!(
                "ended with {} ({stderr_text:?})",
                output.status
            )));
        }
        let interpreter_paths: InterpreterPaths =
            serde_json::from_slice(&output.stdout).map_err(|error| {
                no_python(format!("does not print the paths of its files ({error})"))
            })?;
        if interpreter_paths.version < vec![3, 8] {
            return Err(no_python(format!(
                "is Python {}",
                version_text(&interpreter_paths.version)
            )));
        }
        let mut read_only = interpreter_paths.folders;
        read_only.extend(interpreter_paths.files);
        Ok(Self {
            program: interpreter_paths.program,
            version: version_text(&interpreter_paths.version),
            read_only,
        })
    }
}

fn version_text(version: &[u32]) -> String {
    let parts: Vec<String> = version.iter().map(u32::to_string).collect();
    parts.join(".")
}
