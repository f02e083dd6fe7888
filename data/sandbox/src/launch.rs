//! A program and its limits become the bytes that it printed and returned, and how it ended.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tooltune_rows::regular_file;

use super::SandboxError;
use super::finished::{Ended, Finished};
use super::isolation::{Isolation, MissingPart, Parts, Requirement};
use super::launcher::Launcher;
use super::limits::Limits;
use super::protocol::{self, End, Order, Program, StageFailure};
use super::stage::GUARD;
use super::watch::{Stop, Watched, wait_for_guard, watch};

/// Runs programs isolated; made once, used from any number of threads.
#[derive(Debug, Clone)]
pub struct Sandbox {
    launcher: Launcher,
    isolation: Isolation,
    /// Whether the caller has ended the work.
    stop: Arc<AtomicBool>,
}

impl Sandbox {
    /// Finds out which parts of isolation this machine has, by entering them.
    ///
    /// # Errors
    ///
    /// - what there is does not isolate, unless `requirement` allows it; the error names each
    ///   missing part, why it is missing, and what to do
    /// - the launcher does not become a stage
    pub fn new(launcher: Launcher, requirement: Requirement) -> Result<Self, SandboxError> {
        let mut parts = Parts::ALL;
        let mut missing = Vec::new();
        loop {
            let isolation = Isolation {
                parts,
                missing: missing.clone(),
            };
            let sandbox = Self {
                launcher: launcher.clone(),
                isolation,
                stop: Arc::default(),
            };
            match sandbox.run_order(None, &[], &[], &Limits::default()) {
                Ok(_) if parts.isolate() || requirement == Requirement::AllowUnisolated => {
                    return Ok(sandbox);
                }
                Ok(_) => return Err(SandboxError::NotIsolated { missing }),
                Err(SandboxError::Stage {
                    part: Some(part),
                    reason,
                }) if parts.has(part) => {
                    parts = parts.without(part);
                    missing.push(MissingPart { part, reason });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The same, whose runs end at once when `stop` is set.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// What isolates the runs.
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// Runs a program with `request` as its standard input.
    pub(super) fn run(
        &self,
        program: Program,
        request: &[u8],
        read_only: &[PathBuf],
        limits: &Limits,
    ) -> Result<Finished, SandboxError> {
        self.run_order(Some(program), request, read_only, limits)
    }

    fn run_order(
        &self,
        program: Option<Program>,
        request: &[u8],
        read_only: &[PathBuf],
        limits: &Limits,
    ) -> Result<Finished, SandboxError> {
        let wall = limits.checked_wall()?;
        let order = Order {
            parts: self.isolation.parts,
            launcher_arguments: self.launcher.arguments.clone(),
            program,
            read_only: checked_folders(read_only)?,
            limits: limits.clone(),
        };
        let folder = control_folder(&order, request)?;
        let start = Instant::now();
        let mut guard = self.start(folder.path())?;
        let watched = attend(&mut guard, start + wall, limits.output_bytes, &self.stop)?;
        if watched.stop == Some(Stop::Caller) {
            return Err(SandboxError::Stopped);
        }
        let finished = finish(self, folder.path(), watched, start.elapsed(), limits)?;
        let path = folder.path().to_owned();
        folder
            .close()
            .map_err(|error| SandboxError::File { path, error })?;
        Ok(finished)
    }

    fn start(&self, folder: &Path) -> Result<Child, SandboxError> {
        Command::new(&self.launcher.program)
            .args(&self.launcher.arguments)
            .arg(GUARD)
            .arg(folder)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| SandboxError::Launcher {
                program: self.launcher.program.clone(),
                reason: error.to_string(),
            })
    }
}

/// Absolute paths of what exists; the root would make everything readable.
fn checked_folders(folders: &[PathBuf]) -> Result<Vec<PathBuf>, SandboxError> {
    let checked = |path: &PathBuf| {
        let bad = |reason: String| SandboxError::BadFolder {
            path: path.clone(),
            reason,
        };
        let real = fs::canonicalize(path).map_err(|error| bad(error.to_string()))?;
        if real.parent().is_none() {
            return Err(bad(
                "is the root of all files; name what is needed".to_owned()
            ));
        }
        std::path::absolute(path).map_err(|error| bad(error.to_string()))
    };
    folders.iter().map(checked).collect()
}

fn control_folder(order: &Order, request: &[u8]) -> Result<TempDir, SandboxError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| SandboxError::File { path, error }
    };
    let folder = tempfile::Builder::new()
        .prefix("sandbox-")
        .tempdir()
        .map_err(failed(&std::env::temp_dir()))?;
    let path = folder.path();
    for name in [protocol::ROOT, protocol::WORK] {
        let made = path.join(name);
        fs::create_dir(&made).map_err(failed(&made))?;
    }
    for (name, bytes) in [
        (protocol::REQUEST, request),
        (protocol::RESULT, &[]),
        (protocol::FAILURE, &[]),
    ] {
        let made = path.join(name);
        fs::write(&made, bytes).map_err(failed(&made))?;
    }
    protocol::write(&path.join(protocol::ORDER), order)?;
    Ok(folder)
}

/// Watches until the guard is gone; then the program is gone, too.
fn attend(
    guard: &mut Child,
    deadline: Instant,
    limit: u64,
    is_stopped: &AtomicBool,
) -> Result<Watched, SandboxError> {
    let leash = guard.stdin.take();
    let streams = guard.stdout.take().zip(guard.stderr.take());
    let watched = match streams {
        Some((out, err)) => watch(
            [OwnedFd::from(out), OwnedFd::from(err)].map(File::from),
            deadline,
            limit,
            is_stopped,
        ),
        None => Err(std::io::Error::other("a process without its pipes")),
    };
    drop(leash);
    let gone = wait_for_guard(guard);
    watched
        .and_then(|watched| gone.map(|()| watched))
        .map_err(SandboxError::Watch)
}

fn finish(
    sandbox: &Sandbox,
    folder: &Path,
    watched: Watched,
    wall: Duration,
    limits: &Limits,
) -> Result<Finished, SandboxError> {
    let failure = folder.join(protocol::FAILURE);
    if fs::metadata(&failure).is_ok_and(|file| file.len() > 0) {
        let StageFailure { part, reason } = protocol::read(&failure)?;
        return Err(SandboxError::Stage { part, reason });
    }
    let end: Option<End> = match protocol::read(&folder.join(protocol::END)) {
        Ok(end) => Some(end),
        // A guard that was killed with its group says nothing.
        Err(_) if watched.stop.is_some() => None,
        Err(error) => {
            return Err(SandboxError::Launcher {
                program: sandbox.launcher.program.clone(),
                reason: format!("{error}; it said {:?}", excerpt(&watched)),
            });
        }
    };
    let path = folder.join(protocol::RESULT);
    let mut result = Vec::new();
    regular_file::open(&path)
        .and_then(|file| {
            file.take(limits.output_bytes.saturating_add(1))
                .read_to_end(&mut result)
        })
        .map_err(|error| SandboxError::File { path, error })?;
    let cpu_secs = end.map_or(0.0, |end| end.cpu_secs);
    Ok(Finished {
        ended: ended(watched.stop, end, limits),
        stdout: watched.stdout,
        stderr: watched.stderr,
        result,
        wall,
        cpu_secs,
    })
}

fn excerpt(watched: &Watched) -> String {
    let [out, err] = [&watched.stdout, &watched.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{err}{out}").chars().take(400).collect()
}

fn ended(stop: Option<Stop>, end: Option<End>, limits: &Limits) -> Ended {
    const SIGKILL: i32 = 9;
    const SIGXCPU: i32 = 24;
    match (stop, end) {
        (Some(Stop::WallTime | Stop::Caller), _) => Ended::WallTime,
        (Some(Stop::Output), _) => Ended::OutputTooLarge,
        (None, Some(end)) => match end.signal {
            Some(SIGXCPU) => Ended::CpuTime,
            Some(SIGKILL) if end.cpu_secs >= limits.cpu_secs as f64 => Ended::CpuTime,
            Some(signal) => Ended::Signalled(signal),
            None => Ended::Exited(end.code.unwrap_or_default()),
        },
        (None, None) => Ended::Signalled(SIGKILL),
    }
}
