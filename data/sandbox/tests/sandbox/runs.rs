//! Helper functions of the tests.

use serde_json::Value;
use tooltune_sandbox::{Failure, Limits, Outcome};

use crate::machines::Machine;

/// Limits that give enough time even on a busy machine.
pub(crate) fn long_limits() -> Limits {
    Limits {
        wall_secs: 600.0,
        ..Limits::default()
    }
}

/// Calls the function `attack` of the code.
pub(crate) fn run_within(
    machine: &Machine,
    code: &str,
    argument: &Value,
    limits: &Limits,
) -> Outcome {
    machine
        .runner
        .run_function(code, "attack", &argument.to_string(), limits)
        .expect("a sandbox")
}

pub(crate) fn run(machine: &Machine, code: &str, argument: &Value) -> Outcome {
    run_within(machine, code, argument, &long_limits())
}

/// The value that the function `attack` returns.
pub(crate) fn value(machine: &Machine, code: &str, argument: &Value) -> Value {
    value_of(&run(machine, code, argument))
}

pub(crate) fn value_of(outcome: &Outcome) -> Value {
    let returned = outcome
        .result
        .as_ref()
        .unwrap_or_else(|failure| panic!("{failure}\n{failure:?}\n{}", outcome.stderr));
    let json = returned.json.as_ref().expect("a value of JSON");
    serde_json::from_str(json).expect("JSON")
}

pub(crate) fn failure(outcome: &Outcome) -> &Failure {
    match &outcome.result {
        Ok(returned) => panic!("it returned {returned:?}"),
        Err(failure) => failure,
    }
}

/// Python code that makes each attempt and records its outcome: an error number, or the returned
/// value.
pub(crate) fn attempt_code(lines: &str) -> String {
    format!(
        r#"
import ctypes, fcntl, os, shutil, signal, socket, subprocess, sys, threading, time

def tried(attempt):
    try:
        return repr(attempt())
    except OSError as error:
        return error.errno

def attack(given):
{lines}
"#
    )
}
