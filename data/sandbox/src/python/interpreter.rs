//! Finds the program that the name of a Python means, and the files that it needs to run.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::SandboxError;

/// A Python that can be run in the sandbox.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    /// The program itself, whatever the name leads through.
    pub(super) program: PathBuf,
    pub(super) version: String,
    /// What must be readable beside the system's files.
    pub(super) read_only: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Told {
    program: PathBuf,
    version: Vec<u32>,
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

/// Folders of the interpreter and of its virtual environment, if it is one's, its program behind
/// all links, and the libraries that it has loaded.
const QUESTION: &str = r#"
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
        let bad = |reason: String| SandboxError::NoPython {
            program: python.to_owned(),
            reason,
        };
        let output = Command::new(python)
            .args(["-I", "-c", QUESTION])
            .output()
            .map_err(|error| bad(format!("cannot be started ({error})")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: String = said.trim().chars().take(400).collect();
            return Err(bad(format!("ended with {} ({said:?})", output.status)));
        }
        let told: Told = serde_json::from_slice(&output.stdout)
            .map_err(|error| bad(format!("does not say where its files are ({error})")))?;
        if told.version < vec![3, 8] {
            return Err(bad(format!("is Python {}", dotted(&told.version))));
        }
        let mut read_only = told.folders;
        read_only.extend(told.files);
        Ok(Self {
            program: told.program,
            version: dotted(&told.version),
            read_only,
        })
    }
}

fn dotted(version: &[u32]) -> String {
    let parts: Vec<String> = version.iter().map(u32::to_string).collect();
    parts.join(".")
}
