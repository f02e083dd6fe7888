//! Code that wants out of the sandbox, and code that only wants its answer, in real processes.
//!
//! A harness of its own, because the stages of the sandbox need a program that has started no
//! thread: with the argument `stage` this binary is that program. With `stage-without` and names
//! of parts it first takes those parts from itself, so that every test also runs as on machines
//! that lack them. What a machine really lacks cannot be given to it: which kinds of isolation were
//! tested stands in the names of the tests.

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
        Some((first, rest)) if first == "stage" => tooltune_sandbox::enter(rest.to_vec()),
        #[cfg(target_os = "linux")]
        Some((first, rest)) if first == "stage-without" => machines::stage_without(rest),
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

#[cfg(target_os = "linux")]
fn trials() -> Vec<Trial> {
    let mut trials = refusals::trials();
    let machines = machines::isolating();
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
            let refused = Sandbox::new(launcher, requirement);
            assert!(matches!(refused, Err(SandboxError::OtherSystem)));
        }
        Ok(())
    })]
}
