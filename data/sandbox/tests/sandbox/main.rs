//! Tests code that tries to escape the sandbox, and code that only computes a result, in real
//! processes.
//!
//! The test harness is custom, because the stages of the sandbox need a program that has not
//! started a thread: with the argument `stage` this binary is that program. With `stage-without`
//! and names of parts, it first removes those parts from itself, so that every test also runs as on
//! machines without them. A part that the machine really lacks cannot be added; the test names
//! contain the tested isolation.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

#[cfg(target_os = "linux")]
mod escapes;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod machines;
#[cfg(target_os = "linux")]
mod nestful;
#[cfg(target_os = "linux")]
mod refusals;
#[cfg(target_os = "linux")]
mod results;
#[cfg(target_os = "linux")]
mod runs;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.split_first() {
        Some((first_argument, other_arguments)) if first_argument == "stage" => {
            tooltune_sandbox::enter(other_arguments.to_vec())
        }
        #[cfg(target_os = "linux")]
        Some((first_argument, other_arguments)) if first_argument == "stage-without" => {
            machines::stage_without(other_arguments)
        }
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

#[cfg(target_os = "linux")]
fn trials() -> Vec<Trial> {
    let mut trials = refusals::trials();
    let machines = machines::isolating_machines();
    for machine in machines {
        let tests = [
            escapes::TESTS,
            limits::TESTS,
            results::TESTS,
            nestful::TESTS,
        ]
        .concat();
        trials.extend(tests.into_iter().map(|(name, test)| {
            let machine = machine.clone();
            Trial::test(format!("{}::{name}", machine.name), move || {
                test(&machine);
                Ok(())
            })
        }));
    }
    trials
}

#[cfg(not(target_os = "linux"))]
fn trials() -> Vec<Trial> {
    use tooltune_sandbox::{Launcher, Requirement, Sandbox, SandboxError};

    vec![Trial::test("other_systems_are_refused", || {
        for requirement in [Requirement::Isolated, Requirement::AllowUnisolated] {
            let launcher = Launcher {
                program: "unused".into(),
                arguments: Vec::new(),
            };
            let refusal = Sandbox::new(launcher, requirement);
            assert!(matches!(refusal, Err(SandboxError::UnsupportedSystem)));
        }
        Ok(())
    })]
}
