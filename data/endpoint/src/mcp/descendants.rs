//! Finds the processes that a server started, wherever they are now.
//!
//! A process group can be ended with one signal, but a process can leave it by starting its own
//! session, and lose its parent when an intermediate process ends. On Linux two things still
//! identify it: the inherited environment, which contains a variable that names the server, and the
//! process tree while the server runs. A process that has cleared its environment and lost its
//! parents is not found. Only a namespace or a control group would contain it, and they need
//! permissions that users may not have.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The variable that names the server in the environment of its processes.
const MARK: &str = "TOOLTUNE_MCP_SERVER";

/// The processes that a server started.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    #[cfg(target_os = "linux")]
    mark: String,
    #[cfg(target_os = "linux")]
    seen: Vec<linux::Process>,
}

/// The processes that may still run after a server has ended.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "each system constructs one variant")
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Survivors {
    /// The IDs of processes that could not be ended.
    Known(Vec<u32>),
    /// This system does not show which processes a server started.
    Unknown,
}

impl Survivors {
    /// Prints a warning, unless one was printed for an earlier server.
    pub(super) fn report_once(&self) {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        if let Some(warning) = self.warning(&IS_REPORTED) {
            tracing::warn!("{warning}");
        }
    }

    fn warning(&self, is_reported: &AtomicBool) -> Option<String> {
        let text = match self {
            Self::Known(ids) if ids.is_empty() => return None,
            Self::Known(ids) => {
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                format!(
                    "processes of an MCP server still run after its end and cannot be ended \
                     (process {}); end them yourself",
                    ids.join(", ")
                )
            }
            Self::Unknown => "processes that an MCP server started outside its process group may \
                              still run after its end, because they are found only on Linux; \
                              check the process list"
                .to_owned(),
        };
        (!is_reported.swap(true, Ordering::Relaxed)).then_some(text)
    }
}

#[cfg(not(target_os = "linux"))]
impl Descendants {
    pub(super) fn mark(_: &mut Command) -> Self {
        Self::default()
    }

    pub(super) fn record(&mut self, _: u32) {}

    pub(super) fn end(&mut self) -> Survivors {
        Survivors::Unknown
    }
}

#[cfg(target_os = "linux")]
impl Descendants {
    /// Marks the environment of a server before it starts.
    pub(super) fn mark(command: &mut Command) -> Self {
        use std::sync::atomic::AtomicU64;
        use std::time::{SystemTime, UNIX_EPOCH};
        static N_MARKED: AtomicU64 = AtomicU64::new(0);
        let number = N_MARKED.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map(|now| now.as_nanos()).unwrap_or_default();
        let value = format!("{}-{number}-{now}", std::process::id());
        command.env(MARK, &value);
        Self {
            mark: format!("{MARK}={value}"),
            seen: Vec::new(),
        }
    }

    /// Records the descendants of the server while it is still running.
    pub(super) fn record(&mut self, server: u32) {
        self.seen = linux::descendants_of(server);
    }

    /// Kills the recorded processes and all that have the mark, and returns those that still run.
    pub(super) fn end(&mut self) -> Survivors {
        /// Several rounds, because processes may start others meanwhile.
        const ROUNDS: usize = 20;
        let seen_processes = std::mem::take(&mut self.seen);
        seen_processes.iter().for_each(linux::Process::end);
        let mut survivors = Vec::new();
        for _ in 0..ROUNDS {
            let marked = linux::with_mark(&self.mark);
            let unmarked = seen_processes
                .iter()
                .filter(|process| !marked.contains(process));
            survivors = unmarked
                .filter(|process| process.is_alive())
                .cloned()
                .collect();
            survivors.extend(marked.iter().cloned());
            if survivors.is_empty() {
                break;
            }
            marked.iter().for_each(linux::Process::end);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let survivors = survivors.into_iter().filter(linux::Process::is_alive);
        Survivors::Known(survivors.map(|process| process.id()).collect())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;
    use std::path::Path;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    use tooltune_disk::budgets::Limit;
    use tooltune_disk::regular_file;

    /// Maximum bytes of a kernel status file; real ones are shorter.
    const STATUS: Limit = Limit::new("STATUS", 1 << 16);
    const ENVIRONMENT: Limit = Limit::new("ENVIRONMENT", 8 << 20);

    /// A process and its start time, because its ID may be reused.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Process {
        id: u32,
        began: String,
    }

    impl Process {
        /// The process ID.
        pub(super) fn id(&self) -> u32 {
            self.id
        }

        /// Whether it still runs; a zombie does not.
        pub(super) fn is_alive(&self) -> bool {
            process_status(self.id)
                .is_some_and(|status| status.process == *self && !status.is_zombie)
        }

        /// Kills it, unless its ID has been reused.
        pub(super) fn end(&self) {
            let pid = i32::try_from(self.id).ok().and_then(Pid::from_raw);
            // A process handle stays valid even if the ID is reused after opening it.
            let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            if let Some(handle) = handle
                && process_status(self.id).is_some_and(|status| status.process == *self)
            {
                // A process that has already ended is fine.
                pidfd_send_signal(&handle, Signal::KILL).unwrap_or_default();
            }
        }
    }

    struct Status {
        process: Process,
        parent: u32,
        is_zombie: bool,
    }

    /// All descendants of this process.
    pub(super) fn descendants_of(root: u32) -> Vec<Process> {
        let statuses: Vec<Status> = process_ids().filter_map(process_status).collect();
        let mut children: HashMap<u32, Vec<&Status>> = HashMap::new();
        for process_status in &statuses {
            children
                .entry(process_status.parent)
                .or_default()
                .push(process_status);
        }
        let mut descendants: Vec<Process> = Vec::new();
        let mut parents = vec![root];
        while let Some(parent) = parents.pop() {
            for process_status in children.remove(&parent).unwrap_or_default() {
                parents.push(process_status.process.id);
                descendants.push(process_status.process.clone());
            }
        }
        descendants
    }

    /// The processes whose environment contains this entry.
    pub(super) fn with_mark(mark: &str) -> Vec<Process> {
        let has_mark = |id: &u32| {
            let path = Path::new("/proc").join(id.to_string()).join("environ");
            let environment = regular_file::read(&path, ENVIRONMENT).unwrap_or_default();
            let mut entries = environment.split(|byte| *byte == 0);
            entries.any(|entry| entry == mark.as_bytes())
        };
        let marked = process_ids().filter(has_mark).filter_map(process_status);
        let living = marked.filter(|status| !status.is_zombie);
        living.map(|status| status.process).collect()
    }

    fn process_ids() -> impl Iterator<Item = u32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    /// Parses `/proc/ID/stat`; `None` if the process is gone.
    fn process_status(id: u32) -> Option<Status> {
        let path = Path::new("/proc").join(id.to_string()).join("stat");
        let bytes = regular_file::read(&path, STATUS).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        // The name in parentheses may itself contain spaces and parentheses.
        let (_, after_name) = text.rsplit_once(')')?;
        let mut fields = after_name.split_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // The state is field 3 and the parent is field 4; the start time is field 22.
        let began = fields.nth(17)?.to_owned();
        Some(Status {
            process: Process { id, began },
            parent,
            is_zombie: state == "Z",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_are_reported_once_with_their_ids() {
        let is_reported = AtomicBool::new(false);
        assert_eq!(Survivors::Known(Vec::new()).warning(&is_reported), None);
        let survivors = Survivors::Known(vec![17, 23]);
        let warning = survivors.warning(&is_reported).expect("the first");
        assert!(warning.contains("(process 17, 23)"), "{warning}");
        assert_eq!(survivors.warning(&is_reported), None);
        let unknown = Survivors::Unknown.warning(&AtomicBool::new(false));
        assert!(unknown.expect("the first").contains("only on Linux"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_running_process_is_alive() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let children = linux::descendants_of(std::process::id());
        let process = children.iter().find(|process| process.id() == child.id());
        let process = process.expect("a child");
        assert!(process.is_alive());
        process.end();
        child.wait().expect("it was killed");
        assert!(!process.is_alive());
    }
}
