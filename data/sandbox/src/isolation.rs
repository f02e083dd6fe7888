//! The parts of the isolation: which ones are active, and which ones are required.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of the isolation that may be unavailable on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Separate user, mount, process, network, IPC and host name namespaces.
    Namespaces,
    /// Files outside the list cannot be opened.
    Landlock,
    /// System calls outside the list fail.
    Seccomp,
}

impl Part {
    /// How to enable this part.
    fn remedy(self) -> &'static str {
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

/// A part that is unavailable on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPart {
    /// The part.
    pub part: Part,
    /// The system's error.
    pub reason: String,
}

impl fmt::Display for MissingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, reason } = self;
        write!(f, "{part} ({reason}; to enable it, {})", part.remedy())
    }
}

/// The isolation parts of a run.
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

    fn flag(&mut self, part: Part) -> &mut bool {
        match part {
            Part::Namespaces => &mut self.namespaces,
            Part::Landlock => &mut self.landlock,
            Part::Seccomp => &mut self.seccomp,
        }
    }

    pub(super) fn has(mut self, part: Part) -> bool {
        *self.flag(part)
    }

    pub(super) fn without(mut self, part: Part) -> Self {
        *self.flag(part) = false;
        self
    }

    /// Whether files, network and other processes are inaccessible. Seccomp blocks network and
    /// processes; namespaces or Landlock restrict the files.
    pub(super) fn isolate(self) -> bool {
        self.seccomp && (self.namespaces || self.landlock)
    }
}

/// The isolation that a caller requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Code runs isolated, or not at all.
    Isolated,
    /// Code runs with the available parts, even if there are none. Use this only for trusted code,
    /// or on a disposable machine. Limits still apply.
    AllowUnisolated,
}

/// The isolation of a [`super::Sandbox`] on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    pub(super) parts: Parts,
    pub(super) missing: Vec<MissingPart>,
}

impl Isolation {
    /// Whether the part is active.
    pub fn has(&self, part: Part) -> bool {
        self.parts.has(part)
    }

    /// The unavailable parts, with reasons.
    pub fn missing(&self) -> &[MissingPart] {
        &self.missing
    }

    /// Whether the active parts suffice: seccomp, and namespaces or Landlock.
    pub fn is_isolated(&self) -> bool {
        self.parts.isolate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant: Model-written code runs only where system calls and files are isolated.
    #[test]
    fn isolation_needs_seccomp_and_one_file_restriction() {
        let all_parts = Parts::ALL;
        assert!(all_parts.isolate());
        assert!(all_parts.without(Part::Namespaces).isolate());
        assert!(all_parts.without(Part::Landlock).isolate());
        assert!(!all_parts.without(Part::Seccomp).isolate());
        let neither = all_parts.without(Part::Landlock).without(Part::Namespaces);
        assert!(!neither.isolate() && neither.has(Part::Seccomp));
    }
}
