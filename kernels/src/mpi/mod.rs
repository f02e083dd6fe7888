//! Sums of integers over the processes of MPI, through its standard ABI.
//!
//! The ABI of MPI 5.0 lets one program use any library that has it: MPICH 5, Open MPI 6, Intel MPI.
//! The library is opened at run time, so a machine without MPI needs none. All calls are made by
//! one thread of their own. A caller that waits for one can therefore give up when it learns that
//! another process was lost; MPI itself would wait forever.
//!
//! `MPI_Abort` is never called, because it may hang. A process whose last call has not returned
//! ends by [`end_process_if_running`].

#[cfg(unix)]
mod library;
mod search;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

#[cfg(unix)]
use library::Functions;

/// Environment variable: `0` disables MPI, and a path selects the library.
pub const SWITCH: &str = "TOOLTUNE_MPI";

/// Values of one call of MPI: 4 MiB. The library needs a buffer of the same size.
const PIECE_VALUES: usize = 512 << 10;

/// Pieces that are copied ahead of the one that MPI adds.
const PIECES_AHEAD: usize = 2;

/// How often a caller that waits looks whether it should give up.
const POLL: Duration = Duration::from_millis(20);

/// Whether MPI is initialised and not finalised.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Why there is no MPI library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The user has switched it off.
    #[error("TOOLTUNE_MPI=0")]
    SwitchedOff,
    /// None of the usual names and paths exists.
    #[error("found no libmpi_abi; set TOOLTUNE_MPI=PATH")]
    NotFound,
    /// A file whose name does not begin with `libmpi_abi`.
    #[error("{path} is not a libmpi_abi: other MPI libraries have another ABI")]
    OtherName {
        /// Path of the file.
        path: PathBuf,
    },
    /// The dynamic loader refuses the file.
    #[error("cannot open {path}: {reason}")]
    Unopened {
        /// Path or name of the library.
        path: PathBuf,
        /// The loader's reason.
        reason: String,
    },
    /// The library does not have version 1 of the standard ABI.
    #[error("{path} has version {found} of MPI's ABI; supported: 1")]
    OtherAbi {
        /// Path or name of the library.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// The library lacks a function.
    #[error("{path} lacks {name}, so it does not have MPI's standard ABI")]
    Function {
        /// Path or name of the library.
        path: PathBuf,
        /// Name of the function.
        name: String,
    },
    /// The operating system has no such libraries.
    #[error("MPI is not supported on this operating system")]
    Unsupported,
}

/// A call of MPI that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct CallFailed {
    /// Name of the call.
    pub call: &'static str,
    /// MPI's description of the error.
    pub reason: String,
}

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MpiError {
    /// MPI returned an error.
    #[error(transparent)]
    Failed(#[from] CallFailed),
    /// The caller gave up. The call may still be in progress.
    #[error("the call was given up")]
    GivenUp,
    /// The thread of the calls has ended.
    #[error("the thread of MPI's calls has ended")]
    ThreadEnded,
}

/// A library with the standard ABI, not initialised yet.
#[derive(Debug)]
pub struct Library {
    #[cfg(unix)]
    functions: Functions,
    path: PathBuf,
    description: String,
}

impl Library {
    /// Opens the library that `switch` selects, the value of [`SWITCH`]. Without it, opens the library
    /// next to the launcher which started this process, in the dynamic loader's folders, or next to
    /// `mpiexec` in `PATH`.
    ///
    /// # Errors
    ///
    /// No library is found, or it has another ABI. A library with another name than `libmpi_abi` is not
    /// opened.
    pub fn open(switch: Option<&str>) -> Result<Self, Absent> {
        let switch = switch.map(str::trim).filter(|switch| !switch.is_empty());
        let paths = match switch {
            Some("0") => return Err(Absent::SwitchedOff),
            Some(path) => vec![PathBuf::from(path)],
            None => search::candidates(),
        };
        let is_selected = switch.is_some();
        let mut reason = Absent::NotFound;
        for path in paths {
            match Self::open_file(&path) {
                Ok(library) => return Ok(library),
                // A name that the loader does not find says nothing.
                Err(Absent::Unopened { .. }) if !is_selected && !path.is_absolute() => {}
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    #[cfg(unix)]
    fn open_file(path: &Path) -> Result<Self, Absent> {
        if !search::has_name(path) {
            return Err(Absent::OtherName {
                path: path.to_owned(),
            });
        }
        let functions = library::open(path)?;
        Ok(Self {
            functions,
            path: library::mapped(path),
            description: functions.description(),
        })
    }

    #[cfg(not(unix))]
    fn open_file(_: &Path) -> Result<Self, Absent> {
        Err(Absent::Unsupported)
    }

    /// Path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's description of itself, such as `MPICH Version: 5.0.2`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Initialises MPI in a thread of its own. Call it once in the life of a process, on all ranks
    /// at the same time. `is_wanted` is called every 20 ms while MPI waits; with `false`, the caller
    /// gives up.
    ///
    /// # Errors
    ///
    /// MPI fails, or the caller gave up.
    pub fn start(self, is_wanted: &dyn Fn() -> bool) -> Result<Mpi, MpiError> {
        let (sender, requests) = channel();
        let (answers, replies) = channel();
        let thread = std::thread::Builder::new().name("mpi".to_owned());
        let started = thread.spawn(move || serve(&self, &requests, &answers));
        // The thread is not joined: a call that hangs must not hold up the end of the process.
        drop(started.map_err(|_| MpiError::ThreadEnded)?);
        let mut mpi = Mpi {
            requests: sender,
            replies,
            spare: Vec::new(),
            is_blocked: false,
            rank: 0,
            world_size: 0,
        };
        match mpi.wait(is_wanted)? {
            Reply::Started(place) => (mpi.rank, mpi.world_size) = place?,
            _ => return Err(MpiError::ThreadEnded),
        }
        Ok(mpi)
    }
}

/// What the thread of the calls has to do.
#[derive(Debug)]
enum Request {
    /// Add these values.
    Add(Vec<i64>),
    /// End MPI.
    Finalize,
}

/// What the thread of the calls has done.
#[derive(Debug)]
enum Reply {
    /// Rank and number of ranks.
    Started(Result<(usize, usize), CallFailed>),
    /// The sums in place of the values.
    Added(Result<Vec<i64>, CallFailed>),
    /// MPI has ended.
    Finalized(Result<(), CallFailed>),
}

/// Makes all calls, until the other side has gone.
fn serve(library: &Library, requests: &Receiver<Request>, replies: &Sender<Reply>) {
    #[cfg(unix)]
    {
        let functions = library.functions;
        IS_RUNNING.store(true, Ordering::Release);
        // The caller may have given up.
        let _ = replies.send(Reply::Started(functions.init()));
        while let Ok(request) = requests.recv() {
            let reply = match request {
                Request::Add(mut values) => {
                    Reply::Added(functions.add_all(&mut values).map(|()| values))
                }
                Request::Finalize => {
                    let ended = functions.finalize();
                    if ended.is_ok() {
                        IS_RUNNING.store(false, Ordering::Release);
                    }
                    Reply::Finalized(ended)
                }
            };
            let _ = replies.send(reply);
        }
    }
    #[cfg(not(unix))]
    let _ = (library, requests, replies);
}

/// MPI as one rank of a run.
#[derive(Debug)]
pub struct Mpi {
    requests: Sender<Request>,
    replies: Receiver<Reply>,
    /// Buffers of finished pieces.
    spare: Vec<Vec<i64>>,
    /// Whether a call was given up, which may still be in progress.
    is_blocked: bool,
    rank: usize,
    world_size: usize,
}

impl Mpi {
    /// The rank of this process in MPI.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of MPI's ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Replaces `sums` by the elementwise sums over all ranks, modulo 2^64. All ranks call it with
    /// as many values. `is_wanted` is as in [`Library::start`]; after `false`, all other calls fail.
    ///
    /// # Errors
    ///
    /// MPI fails, or the caller gave up. The values are then undefined.
    pub fn add_all(
        &mut self,
        sums: &mut [i64],
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), MpiError> {
        let n_pieces = sums.len().div_ceil(PIECE_VALUES);
        let range = |i: usize| i * PIECE_VALUES..sums.len().min((i + 1) * PIECE_VALUES);
        let ranges: Vec<_> = (0..n_pieces).map(range).collect();
        let mut n_sent = 0;
        for (i, piece) in ranges.iter().enumerate() {
            while n_sent < n_pieces.min(i + PIECES_AHEAD) {
                let mut values = self.spare.pop().unwrap_or_default();
                values.clear();
                values.extend_from_slice(&sums[ranges[n_sent].clone()]);
                self.send(Request::Add(values))?;
                n_sent += 1;
            }
            let Reply::Added(added) = self.wait(is_wanted)? else {
                return Err(MpiError::ThreadEnded);
            };
            let added = added?;
            sums[piece.clone()].copy_from_slice(&added);
            self.spare.push(added);
        }
        Ok(())
    }

    /// Ends MPI. All ranks call it. `is_wanted` is as in [`Library::start`].
    ///
    /// # Errors
    ///
    /// MPI fails, or the caller gave up.
    pub fn finalize(mut self, is_wanted: &dyn Fn() -> bool) -> Result<(), MpiError> {
        self.send(Request::Finalize)?;
        match self.wait(is_wanted)? {
            Reply::Finalized(ended) => Ok(ended?),
            _ => Err(MpiError::ThreadEnded),
        }
    }

    fn send(&self, request: Request) -> Result<(), MpiError> {
        if self.is_blocked {
            return Err(MpiError::GivenUp);
        }
        let sent = self.requests.send(request);
        sent.map_err(|_| MpiError::ThreadEnded)
    }

    /// Waits for the next reply.
    fn wait(&mut self, is_wanted: &dyn Fn() -> bool) -> Result<Reply, MpiError> {
        loop {
            match self.replies.recv_timeout(POLL) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Timeout) if is_wanted() => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.is_blocked = true;
                    return Err(MpiError::GivenUp);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(MpiError::ThreadEnded),
            }
        }
    }
}

/// Ends the process with this exit status, without the usual clean-up, if MPI was not finalised: a
/// call may still be in progress, and the clean-up of a library that is in use may crash or hang.
/// Otherwise returns. Buffered output must have been written before.
pub fn end_process_if_running(status: u8) {
    #[cfg(unix)]
    if IS_RUNNING.load(Ordering::Acquire) {
        // SAFETY: ends the process at once; nothing of it is used afterwards.
        unsafe { libc::_exit(i32::from(status)) }
    }
    #[cfg(not(unix))]
    let _ = status;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_turns_mpi_off() {
        assert_eq!(Library::open(Some("0")).err(), Some(Absent::SwitchedOff));
    }

    #[cfg(unix)]
    #[test]
    fn a_library_with_another_abi_is_refused_with_its_reason() {
        let refused = |path: &Path| {
            let path = path.to_str().expect("a path in UTF-8");
            Library::open(Some(path))
                .err()
                .map(|error| error.to_string())
        };
        let folder = tempfile::tempdir().expect("a folder");
        let other_name = folder.path().join("libmpi.so.40");
        let reason = refused(&other_name).expect("an error");
        assert!(
            reason.ends_with("other MPI libraries have another ABI"),
            "{reason}"
        );

        let path = folder.path().join("libmpi_abi.so.1");
        let reason = refused(&path).expect("an error");
        assert!(reason.starts_with("cannot open"), "{reason}");

        std::fs::write(&path, "INPUT(libmpi_abi.so.1)").expect("a file");
        let reason = refused(&path).expect("an error");
        assert!(reason.starts_with("cannot open"), "{reason}");
    }

    /// A library that can be opened, but is not one of MPI: this test's own C library.
    // A statically linked test can open no library.
    #[cfg(all(target_os = "linux", not(target_env = "musl")))]
    #[test]
    fn a_library_without_the_functions_is_refused() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let mut paths = maps
            .lines()
            .filter_map(|line| Some(&line[line.find('/')?..]));
        let c_library = paths.find(|path| path.contains("libc.so") || path.contains("libc-"));
        let c_library = c_library.expect("the C library");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libmpi_abi.so.1");
        std::os::unix::fs::symlink(c_library, &path).expect("a link");
        let error = Library::open(path.to_str()).err();
        let name = "MPI_Abi_get_version".to_owned();
        assert_eq!(error, Some(Absent::Function { path, name }));
    }
}
