//! Runs a program with limits and returns its output, its result, and how it ended.

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
use tooltune_disk::regular_file;

use super::SandboxError;
use super::finished::{Ended, Finished};
use super::isolation::{Isolation, MissingPart, Parts, Requirement};
use super::launcher::Launcher;
use super::limits::Limits;
use super::protocol::{self, ExitEnd, Program, RunOrder, StageFailure};
use super::stage::GUARD;
use super::watch::{StopReason, WatchedRun, wait_for_guard, watch};

/// Runs programs in isolation. Create it once; it can be used from any number of threads.
#[derive(Debug, Clone)]
pub struct Sandbox {
    launcher: Launcher,
    isolation: Isolation,
    /// Set if the caller stops the work.
    stop: Arc<AtomicBool>,
}

impl Sandbox {
    /// Detects the available isolation by entering it in a test process.
    ///
    /// # Errors
    /// - The available parts do not isolate, and `requirement` does not allow this. The error lists
    ///   each missing part, the reason, and how to enable it.
    /// - The launcher does not become a stage of the sandbox.
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

    /// Returns this sandbox with a stop flag: its runs end immediately when `stop` is set.
    #[must_use]
    pub fn with_stop_flag(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// The isolation of the runs.
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
        let wall = limits.validated_wall()?;
        let order = RunOrder {
            parts: self.isolation.parts,
            launcher_arguments: self.launcher.arguments.clone(),
            program,
            read_only: checked_folders(read_only)?,
            limits: limits.clone(),
        };
        let folder = control_folder(&order, request)?;
        let start = Instant::now();
        let mut guard = self.start(folder.path())?;
        let watched_run = watch_guard(&mut guard, start + wall, limits.output_bytes, &self.stop)?;
        if watched_run.stop == Some(StopReason::Caller) {
            return Err(SandboxError::Stopped);
        }
        let finished = finish(self, folder.path(), watched_run, start.elapsed(), limits)?;
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

/// Returns absolute paths of existing folders. The root directory is refused, because it would make
/// every file readable.
fn checked_folders(folders: &[PathBuf]) -> Result<Vec<PathBuf>, SandboxError> {
    let checked = |path: &PathBuf| {
        let bad_folder = |reason: String| SandboxError::BadFolder {
            path: path.clone(),
            reason,
        };
        let real = fs::canonicalize(path).map_err(|error| bad_folder(error.to_string()))?;
        if real.parent().is_none() {
            return Err(bad_folder(
                "is the root directory; give only the required folders".to_owned(),
            ));
        }
        std::path::absolute(path).map_err(|error| bad_folder(error.to_string()))
    };
    folders.iter().map(checked).collect()
}

fn control_folder(order: &RunOrder, request: &[u8]) -> Result<TempDir, SandboxError> {
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
        let file_path = path.join(name);
        fs::create_dir(&file_path).map_err(failed(&file_path))?;
    }
    for (name, bytes) in [
        (protocol::REQUEST, request),
        (protocol::RESULT, &[]),
        (protocol::FAILURE, &[]),
    ] {
        let file_path = path.join(name);
        fs::write(&file_path, bytes).map_err(failed(&file_path))?;
    }
    protocol::write(&path.join(protocol::ORDER), order)?;
    Ok(folder)
}

/// Monitors the guard until it ends. The program has also ended by then.
fn watch_guard(
    guard: &mut Child,
    deadline: Instant,
    limit: u64,
    is_stopped: &AtomicBool,
) -> Result<WatchedRun, SandboxError> {
    let leash = guard.stdin.take();
    let streams = guard.stdout.take().zip(guard.stderr.take());
    let watched_run = match streams {
        Some((out, err)) => watch(
            [OwnedFd::from(out), OwnedFd::from(err)].map(File::from),
            deadline,
            limit,
            is_stopped,
        ),
        None => Err(std::io::Error::other("the process has no pipes")),
    };
    drop(leash);
    let guard_result = wait_for_guard(guard);
    watched_run
        .and_then(|watched_run| guard_result.map(|()| watched_run))
        .map_err(SandboxError::Watch)
}

fn finish(
    sandbox: &Sandbox,
    folder: &Path,
    watched_run: WatchedRun,
    wall: Duration,
    limits: &Limits,
) -> Result<Finished, SandboxError> {
    let failure = folder.join(protocol::FAILURE);
    if fs::metadata(&failure).is_ok_and(|file| file.len() > 0) {
        let StageFailure { part, reason } = protocol::read(&failure)?;
        return Err(SandboxError::Stage { part, reason });
    }
    let end: Option<ExitEnd> = match protocol::read(&folder.join(protocol::END)) {
        Ok(end) => Some(end),
        // A guard that was killed together with its process group reports nothing.
        Err(_) if watched_run.stop.is_some() => None,
        Err(error) => {
            return Err(SandboxError::Launcher {
                program: sandbox.launcher.program.clone(),
                reason: format!("{error}; it printed {:?}", stderr_excerpt(&watched_run)),
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
        ended: to_ended(watched_run.stop, end, limits),
        stdout: watched_run.stdout,
        stderr: watched_run.stderr,
        result,
        wall,
        cpu_secs,
    })
}

fn stderr_excerpt(watched_run: &WatchedRun) -> String {
    let [out, err] =
        [&watched_run.stdout, &watched_run.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{err}{out}").chars().take(400).collect()
}

fn to_ended(stop: Option<StopReason>, end: Option<ExitEnd>, limits: &Limits) -> Ended {
    const SIGKILL: i32 = 9;
    const SIGXCPU: i32 = 24;
    match (stop, end) {
        (Some(StopReason::WallTime | StopReason::Caller), _) => Ended::WallTime,
        (Some(StopReason::Output), _) => Ended::OutputTooLarge,
        (None, Some(end)) => match end.signal {
            Some(SIGXCPU) => Ended::CpuTime,
            Some(SIGKILL) if end.cpu_secs >= limits.cpu_secs as f64 => Ended::CpuTime,
            Some(signal) => Ended::Signalled(signal),
            None => Ended::Exited(end.code.unwrap_or_default()),
        },
        (None, None) => Ended::Signalled(SIGKILL),
    }
}
