//! The parts that isolate, which of them are in force, and which must be.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of the isolation that a machine may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Users, mounts, processes, network, IPC and host name of its own.
    Namespaces,
    /// Files that are not listed cannot be opened.
    Landlock,
    /// System calls that are not listed fail.
    Seccomp,
}

impl Part {
    /// What a user can do for a machine without it.
    fn fix(self) -> &'static str {
        match self {
            Self::Namespaces => {
                "allow unprivileged user namespaces (sysctl user.max_user_namespaces above 0, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0, in Docker --security-opt seccomp=unconfined)"
            }
            Self::Landlock => {
                "boot Linux 6.2 or newer with landlock in its lsm= list, and in a container allow the landlock_* system calls"
            }
            Self::Seccomp => {
                "run a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64, and in a container allow the system call seccomp"
            }
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "Landlock",
            Self::Seccomp => "seccomp",
        })
    }
}

/// A part that this machine refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPart {
    /// The part.
    pub part: Part,
    /// What the machine said.
    pub reason: String,
}

impl fmt::Display for MissingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, reason } = self;
        write!(f, "{part} ({reason}; to have it, {})", part.fix())
    }
}

/// The parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Parts {
    pub(super) namespaces: bool,
    pub(super) landlock: bool,
    pub(super) seccomp: bool,
}

impl Parts {
    pub(super) const ALL: Self = Self {
        namespaces: true,
        landlock: true,
        seccomp: true,
    };

    fn place(&mut self, part: Part) -> &mut bool {
        match part {
            Part::Namespaces => &mut self.namespaces,
            Part::Landlock => &mut self.landlock,
            Part::Seccomp => &mut self.seccomp,
        }
    }

    pub(super) fn has(mut self, part: Part) -> bool {
        *self.place(part)
    }

    pub(super) fn without(mut self, part: Part) -> Self {
        *self.place(part) = false;
        self
    }

    /// Whether files, network and other processes are out of reach: seccomp takes network and
    /// processes away, and either namespaces or Landlock the files.
    pub(super) fn isolate(self) -> bool {
        self.seccomp && (self.namespaces || self.landlock)
    }
}

/// What a caller asks of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Code runs isolated or not at all.
    Isolated,
    /// Code runs with whatever parts the machine has, even none: only for code that is trusted,
    /// or on a machine that is thrown away. Limits hold all the same.
    AllowUnisolated,
}

/// What isolates the runs of a [`super::Sandbox`] on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    pub(super) parts: Parts,
    pub(super) missing: Vec<MissingPart>,
}

impl Isolation {
    /// Whether the part is in force.
    pub fn has(&self, part: Part) -> bool {
        self.parts.has(part)
    }

    /// The parts that this machine refuses, and why.
    pub fn missing(&self) -> &[MissingPart] {
        &self.missing
    }

    /// Whether what is in force suffices: seccomp, and namespaces or Landlock.
    pub fn is_isolated(&self) -> bool {
        self.parts.isolate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_and_one_guard_of_files_isolate() {
        let all = Parts::ALL;
        assert!(all.isolate());
        assert!(all.without(Part::Namespaces).isolate());
        assert!(all.without(Part::Landlock).isolate());
        assert!(!all.without(Part::Seccomp).isolate());
        let neither = all.without(Part::Landlock).without(Part::Namespaces);
        assert!(!neither.isolate() && neither.has(Part::Seccomp));
    }
}
