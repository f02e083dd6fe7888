//! The machines that tests run on: this machine, and simulated machines that lack a part of the
//! isolation.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use nix::libc;
use seccompiler::{SeccompAction, SeccompFilter};
use tooltune_sandbox::{Launcher, PythonRunner, Requirement, Sandbox, SandboxError, enter};

/// A machine and its runner.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    pub(crate) runner: Arc<PythonRunner>,
}

/// A test that runs on every machine.
pub(crate) type Test = (&'static str, fn(&Machine));

/// The machines that can isolate. This machine must be one of them.
pub(crate) fn isolating_machines() -> Vec<Machine> {
    let kinds = [
        ("as_it_is", ""),
        ("without_namespaces", "namespaces"),
        ("without_landlock", "landlock"),
    ];
    let machines = kinds.into_iter().filter_map(|(name, lacking)| {
        match Sandbox::new(launcher(lacking), Requirement::Isolated) {
            Ok(sandbox) => Some(Machine {
                name,
                runner: Arc::new(PythonRunner::new(sandbox, "python3").expect("python3")),
            }),
            Err(SandboxError::NotIsolated { .. }) if name != "as_it_is" => None,
            Err(error) => panic!("{name}: {error}"),
        }
    });
    machines.collect()
}

/// This test binary as a launcher, without the given parts.
pub(crate) fn launcher(lacking: &str) -> Launcher {
    let arguments = match lacking {
        "" => vec!["stage".to_owned()],
        lacking => vec!["stage-without".to_owned(), lacking.to_owned()],
    };
    Launcher {
        program: std::env::current_exe().expect("this binary"),
        arguments,
    }
}

/// Runs a stage in a process that is denied the system calls of the parts named in the first
/// argument.
pub(crate) fn stage_without(arguments: &[OsString]) -> ExitCode {
    let (lacking, remaining) = arguments.split_first().expect("names of parts");
    let lacking = lacking.to_str().expect("names of parts");
    let calls = lacking.split(',').map(|part| match part {
        "namespaces" => libc::SYS_unshare,
        "landlock" => libc::SYS_landlock_create_ruleset,
        "seccomp" => libc::SYS_seccomp,
        other => panic!("{other} is not a part"),
    });
    let rules: BTreeMap<i64, _> = calls.map(|call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        std::env::consts::ARCH
            .try_into()
            .expect("a known processor"),
    );
    let program: seccompiler::BpfProgram = filter
        .and_then(TryInto::try_into)
        .expect("a filter of system calls");
    // The second stage inherits the filter of the first, and that filter may prevent installing
    // another one.
    if let Err(error) = seccompiler::apply_filter(&program) {
        assert!(lacking.contains("seccomp"), "{error}");
    }
    enter(remaining.to_vec())
}
