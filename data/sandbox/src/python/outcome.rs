//! The outcome of a Python run: a value, or the reason why there is none.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::Limits;
use crate::finished::{Ended, Finished};

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The returned value, or the reason why there is none.
    pub result: Result<Returned, Failure>,
    /// The printed text; invalid UTF-8 is replaced by U+FFFD.
    pub stdout: String,
    /// The text printed to standard error; invalid UTF-8 is replaced by U+FFFD.
    pub stderr: String,
    /// Wall-clock time of the process.
    pub wall: Duration,
    /// Seconds of processor time, including the start of Python.
    pub cpu_secs: f64,
}

/// The value that a function returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    /// The value as `json.dumps` writes it. The error is the reason why it cannot: a type that JSON
    /// does not have, or a number that is not finite. Tuples become lists, and object keys become
    /// strings.
    pub json: Result<String, String>,
    /// The value's `repr` in Python.
    pub repr: String,
    /// The value's `str` in Python.
    pub str: String,
    /// The name of its type.
    pub type_name: String,
}

/// Why a run returned no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The code raised an exception, or is not valid Python.
    #[error("{kind}: {message}")]
    Raised {
        /// The exception's class.
        kind: String,
        /// The exception's message.
        message: String,
        /// The traceback as Python prints it, from the first line of the code.
        traceback: String,
    },

    /// The code does not define the requested function.
    #[error("the code does not define a function {name}")]
    NoFunction {
        /// The function.
        name: String,
    },

    /// The code ended its process instead of returning a value.
    #[error("the code ended its process (SystemExit: {code})")]
    Left {
        /// The exit code, as text.
        code: String,
    },

    /// The run exceeded the wall-clock limit.
    #[error("the code took longer than {secs} s")]
    TimedOut {
        /// The limit.
        secs: String,
    },

    /// The run exceeded the limit of processor time.
    #[error("the code used more than {secs} s of processor time")]
    CpuTime {
        /// The limit.
        secs: u64,
    },

    /// The run exceeded the memory limit.
    #[error("the code needs more than {bytes} bytes of memory")]
    Memory {
        /// The limit.
        bytes: u64,
    },

    /// A signal ended the process, such as 11 for a crash in a library.
    #[error("signal {signal} ended the process of the code")]
    Killed {
        /// The signal number.
        signal: i32,
    },

    /// The code printed more than the limit.
    #[error("the code printed more than {bytes} bytes")]
    OutputTooLarge {
        /// The limit.
        bytes: u64,
    },

    /// The value, as text, exceeds the limit.
    #[error("the value is longer than {bytes} bytes")]
    ResultTooLarge {
        /// The limit.
        bytes: u64,
    },

    /// The process ended without a result.
    #[error("the process of the code ended with exit code {code} without a result")]
    NoResult {
        /// Its exit code.
        code: i32,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Returned {
        #[serde(default)]
        json: Option<String>,
        #[serde(default)]
        no_json: Option<String>,
        repr: String,
        str: String,
        r#type: String,
    },
    Raised {
        r#type: String,
        message: String,
        traceback: String,
    },
    NoFunction(String),
    Left {
        code: String,
    },
    Memory,
    TooLarge,
}

impl Outcome {
    pub(super) fn from_finished(finished: Finished, limits: &Limits) -> Self {
        Self {
            result: result(&finished, limits),
            stdout: String::from_utf8_lossy(&finished.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&finished.stderr).into_owned(),
            wall: finished.wall,
            cpu_secs: finished.cpu_secs,
        }
    }
}

fn result(finished: &Finished, limits: &Limits) -> Result<Returned, Failure> {
    let bytes = limits.output_bytes;
    let code = match finished.ended {
        Ended::WallTime => {
            let secs = limits.wall_secs.to_string();
            return Err(Failure::TimedOut { secs });
        }
        Ended::CpuTime => {
            let secs = limits.cpu_secs;
            return Err(Failure::CpuTime { secs });
        }
        Ended::OutputTooLarge => return Err(Failure::OutputTooLarge { bytes }),
        Ended::Signalled(signal) => return Err(Failure::Killed { signal }),
        Ended::Exited(code) => code,
    };
    if finished.result.len() as u64 > bytes {
        return Err(Failure::ResultTooLarge { bytes });
    }
    // If the result does not parse, the bootstrap script did not write it, because the code ended
    // the process itself.
    let answer = serde_json::from_slice(&finished.result);
    match answer.map_err(|_| Failure::NoResult { code })? {
        Answer::Returned {
            json,
            no_json,
            repr,
            str,
            r#type,
        } => Ok(Returned {
            json: json.ok_or_else(|| no_json.unwrap_or_default()),
            repr,
            str,
            type_name: r#type,
        }),
        Answer::Raised {
            r#type,
            message,
            traceback,
        } => Err(Failure::Raised {
            kind: r#type,
            message,
            traceback,
        }),
        Answer::NoFunction(name) => Err(Failure::NoFunction { name }),
        Answer::Left { code } => Err(Failure::Left { code }),
        Answer::Memory => Err(Failure::Memory {
            bytes: limits.memory_bytes,
        }),
        Answer::TooLarge => Err(Failure::ResultTooLarge { bytes }),
    }
}
