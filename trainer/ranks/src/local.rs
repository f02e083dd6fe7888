//! `--ranks N`: starts the ranks of one host and waits for them.
//!
//! The starting process is not a rank. It passes signals on, prints the output of followers line by
//! line, and ends all ranks when one fails. Ranks end when it is killed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::budgets::RANK_LINE_BYTES;
use crate::launcher::{LEADER_VARIABLE, Launch, LeaderAddress, Node};
use crate::meeting::PORTS;
use crate::token::{Token, hex, random_bytes};

/// How often the ranks are looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long the other ranks may take to notice a failure by themselves, with their own message.
const NOTICE: Duration = Duration::from_secs(5);

/// How long they may take after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// How long the last lines may take after all ranks have ended. A process that a rank left behind
/// can keep its output open.
const OUTPUT: Duration = Duration::from_secs(2);

/// The program of every rank: this program, with the arguments of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Path of the program.
    pub program: PathBuf,
    /// All its arguments.
    pub arguments: Vec<OsString>,
}

/// The exit status of a rank that ends only because another one did. The launcher returns it only if
/// no rank has another one.
pub const OTHER_RANK_STATUS: i32 = 76;

/// The exit status of a rank that was stopped by a signal and has saved its state.
pub const STOPPED_STATUS: i32 = 75;

/// How the ranks ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The exit status for this process: 0, or the status of the first rank that failed with another
    /// status than [`OTHER_RANK_STATUS`]. 128 plus the signal's number if a signal ended it.
    pub status: i32,
    /// That rank.
    pub failed: Option<FailedRank>,
}

/// A rank that ended with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRank {
    /// The rank.
    pub rank: usize,
    /// How it ended, such as "exit status: 1" or "signal: 9 (SIGKILL)".
    pub how: String,
}

/// Why ranks cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The program cannot start.
    #[error("cannot start rank {rank} ({program}): {reason}")]
    Spawn {
        /// The rank that did not start. Those before it have been ended.
        rank: usize,
        /// The program.
        program: String,
        /// The operating system's reason.
        reason: String,
    },

    /// There is no free port on 127.0.0.1.
    #[error("found no free port on 127.0.0.1 for the ranks: {reason}")]
    NoPort {
        /// The operating system's reason.
        reason: String,
    },

    /// Signals cannot be handled, or a state of a rank cannot be read.
    #[error("cannot watch the ranks: {reason}")]
    Watch {
        /// The operating system's reason.
        reason: String,
    },

    /// The process that started this rank has ended.
    #[error("the process that started this rank has ended; start the run again")]
    ParentGone,
}

/// Starts the ranks of this host and waits until all have ended.
///
/// The rank with number 0 keeps this process's output. `print` gets each line that another rank
/// writes, with its rank, from several threads. SIGINT and SIGTERM are passed on to all ranks; the
/// caller must prevent that they end this process. Ranks are in process groups of their own, so that
/// a terminal sends its signals only to this process.
///
/// Call it in a thread that lives as long as the process: the ranks are killed when it ends.
///
/// # Errors
///
/// - A rank cannot start. The others have been ended.
/// - There is no free port, or signals cannot be handled.
pub fn start(
    node: &Node,
    command: &Command,
    print: impl Fn(usize, &str) + Send + Sync + 'static,
) -> Result<Ended, StartError> {
    let watch = |error: std::io::Error| StartError::Watch {
        reason: error.to_string(),
    };
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(watch)?;
    let mut ranks = LocalRanks::default();
    let print: Arc<Print> = Arc::new(print);
    spawn_all(node, command, &mut ranks, &print)?;
    let mut passed_on: Option<i32> = None;
    let mut failing_since: Option<Instant> = None;
    let mut is_terminated = false;
    while ranks.poll().map_err(watch)? {
        for signal in signals.pending() {
            passed_on = Some(signal);
            ranks.signal(match signal {
                SIGINT => Signal::INT,
                _ => Signal::TERM,
            });
        }
        if failing_since.is_none() && ranks.has_failed(passed_on) {
            failing_since = Some(Instant::now());
        }
        if let Some(since) = failing_since {
            if since.elapsed() > NOTICE + GRACE {
                ranks.signal(Signal::KILL);
            } else if since.elapsed() > NOTICE && !is_terminated {
                is_terminated = true;
                ranks.signal(Signal::TERM);
            }
        }
        std::thread::sleep(POLL);
    }
    ranks.finish_output();
    Ok(ranks.ended())
}

/// The status that a shell reports.
fn code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(1)
}

type Print = dyn Fn(usize, &str) + Send + Sync;

/// The started processes. Dropping it ends those that still run.
#[derive(Debug, Default)]
struct LocalRanks {
    processes: Vec<LocalRank>,
    /// Threads that print lines.
    output: Vec<JoinHandle<()>>,
    /// Numbers of the processes that failed, in order.
    failures: Vec<usize>,
}

#[derive(Debug)]
struct LocalRank {
    rank: usize,
    child: Child,
    status: Option<ExitStatus>,
}

impl LocalRanks {
    /// Notes the ranks that have ended, and returns whether others still run.
    fn poll(&mut self) -> std::io::Result<bool> {
        for (i, process) in self.processes.iter_mut().enumerate() {
            if process.status.is_some() {
                continue;
            }
            process.status = process.child.try_wait()?;
            if process.status.is_some_and(|status| !status.success()) {
                self.failures.push(i);
            }
        }
        Ok(self.processes.iter().any(|p| p.status.is_none()))
    }

    /// Whether a rank has failed, so that the others cannot continue. Ranks that stop in order after
    /// a signal may take different times to save.
    fn has_failed(&self, passed_on: Option<i32>) -> bool {
        let is_stopped = |status: i32| {
            passed_on.is_some_and(|signal| [STOPPED_STATUS, 128 + signal].contains(&status))
        };
        let mut statuses = self.failures().map(|(_, status)| code(status));
        statuses.any(|status| !is_stopped(status))
    }

    /// Ranks that failed, in the order in which they ended.
    fn failures(&self) -> impl Iterator<Item = (usize, ExitStatus)> {
        self.failures.iter().filter_map(|i| {
            let process = &self.processes[*i];
            Some((process.rank, process.status?))
        })
    }

    fn ended(&self) -> Ended {
        // A rank that noticed the end of another one can be gone before it.
        let first_cause = self
            .failures()
            .find(|(_, status)| code(*status) != OTHER_RANK_STATUS);
        match first_cause.or_else(|| self.failures().next()) {
            None => Ended {
                status: 0,
                failed: None,
            },
            Some((rank, status)) => Ended {
                status: code(status),
                failed: Some(FailedRank {
                    rank,
                    how: status.to_string(),
                }),
            },
        }
    }

    /// Sends a signal to the ranks that still run. Their process IDs are not in use by others,
    /// because an ended child keeps its own until it has been waited for.
    fn signal(&self, signal: Signal) {
        let running = self.processes.iter().filter(|p| p.status.is_none());
        for process in running {
            let id = i32::try_from(process.child.id())
                .ok()
                .and_then(Pid::from_raw);
            // A rank that has just ended needs no signal.
            let _ = id.map(|id| kill_process(id, signal));
        }
    }

    /// Waits shortly for the last lines.
    fn finish_output(&mut self) {
        let deadline = Instant::now() + OUTPUT;
        for thread in self.output.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
            if thread.is_finished() {
                // A panic has already been reported.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for LocalRanks {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for process in &mut self.processes {
            if process.status.is_none() {
                let _ = process.child.wait();
            }
        }
    }
}

fn spawn_all(
    node: &Node,
    command: &Command,
    ranks: &mut LocalRanks,
    print: &Arc<Print>,
) -> Result<(), StartError> {
    let leader = match &node.leader {
        Some(leader) => leader.clone(),
        None => LeaderAddress {
            host: Ipv4Addr::LOCALHOST.to_string(),
            port: free_port()?,
        },
    };
    let run_id = node
        .run_id
        .clone()
        .unwrap_or_else(|| hex(&random_bytes()[..8]));
    let token = match (&node.token, node.n_nodes) {
        (Some(token), _) => Some(token.clone()),
        (None, 1) => Some(Token::random()),
        (None, _) => None,
    };
    for local_rank in 0..node.n_local {
        let rank = node.node * node.n_local + local_rank;
        let variables = node.variables_of(local_rank, &leader, &run_id, token.as_ref());
        let mut process = std::process::Command::new(&command.program);
        process
            .args(&command.arguments)
            .env_remove(LEADER_VARIABLE)
            .envs(variables)
            .process_group(0)
            .stdin(Stdio::null());
        if rank > 0 {
            process.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let failed = |reason: std::io::Error| StartError::Spawn {
            rank,
            program: command.program.display().to_string(),
            reason: reason.to_string(),
        };
        let mut child = process.spawn().map_err(failed)?;
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|out| Box::new(out) as _),
            child.stderr.take().map(|out| Box::new(out) as _),
        ];
        ranks.processes.push(LocalRank {
            rank,
            child,
            status: None,
        });
        for stream in streams.into_iter().flatten() {
            let print = print.clone();
            let thread = std::thread::Builder::new().name(format!("output-{rank}"));
            let thread = thread.spawn(move || print_lines(stream, |line| print(rank, line)));
            ranks.output.push(thread.map_err(failed)?);
        }
    }
    Ok(())
}

/// A port with free ports after it. Another process can take them before the leader does, which
/// tries several.
fn free_port() -> Result<u16, StartError> {
    let no_port = |error: std::io::Error| StartError::NoPort {
        reason: error.to_string(),
    };
    let mut reason = std::io::Error::other("all free ports are too high");
    for _ in 0..100 {
        let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
        let port = own.local_addr().map_err(no_port)?.port();
        if port.checked_add(PORTS).is_none() {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1)) {
            Ok(_) => return Ok(port),
            Err(error) => reason = error,
        }
    }
    Err(no_port(reason))
}

/// Gives each line to `print`, without its end; a longer one in parts of [`RANK_LINE_BYTES`].
fn print_lines(stream: impl Read, print: impl Fn(&str)) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut part = reader.by_ref().take(RANK_LINE_BYTES as u64);
        match part.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        print(text.trim_end_matches(['\n', '\r']));
    }
}

/// Makes this process end with the one that started it, if that was [`start`]. A rank calls it before
/// everything else.
///
/// # Errors
///
/// - The starting process has already ended.
/// - The system cannot watch it.
pub fn watch_parent(launch: &Launch) -> Result<(), StartError> {
    let Some(parent) = &launch.parent else {
        return Ok(());
    };
    end_with_parent()?;
    // The parent may have ended before the system knew of our wish.
    let current = rustix::process::getppid().map(|id| id.as_raw_nonzero().to_string());
    if current.as_ref() == Some(parent) {
        Ok(())
    } else {
        Err(StartError::ParentGone)
    }
}

#[cfg(target_os = "linux")]
fn end_with_parent() -> Result<(), StartError> {
    // SIGKILL, because a rank that waits for others would not look at a flag.
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    set.map_err(|error| StartError::Watch {
        reason: error.to_string(),
    })
}

/// Other systems do not report the end of a parent, so a thread looks.
#[cfg(not(target_os = "linux"))]
fn end_with_parent() -> Result<(), StartError> {
    let parent = rustix::process::getppid();
    let watch = move || {
        while rustix::process::getppid() == parent {
            std::thread::sleep(Duration::from_secs(1));
        }
        let _ = kill_process(rustix::process::getpid(), Signal::KILL);
    };
    let thread = std::thread::Builder::new().name("parent".to_owned());
    thread
        .spawn(watch)
        .map(drop)
        .map_err(|error| StartError::Watch {
            reason: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn lines_are_whole_and_long_ones_are_split() {
        let lines = Mutex::new(Vec::new());
        let text = format!("one\r\n\n{}\nlast", "x".repeat(RANK_LINE_BYTES + 5));
        print_lines(text.as_bytes(), |line| {
            lines.lock().expect("lines").push(line.to_owned());
        });
        let lines = lines.into_inner().expect("lines");
        let lengths: Vec<usize> = lines.iter().map(String::len).collect();
        assert_eq!(lengths, [3, 0, RANK_LINE_BYTES, 5, 4]);
    }

    #[test]
    fn a_free_port_has_ports_after_it() {
        let port = free_port().expect("a port");
        assert!(port.checked_add(PORTS).is_some());
    }
}
