//! What a run of Python code came to: a value, or why there is none.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::Limits;
use crate::finished::{Ended, Finished};

/// A run that took place.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was returned, or why nothing was.
    pub result: Result<Returned, Failure>,
    /// What the code printed; bytes that are no UTF-8 are replaced by U+FFFD.
    pub stdout: String,
    /// The same of standard error.
    pub stderr: String,
    /// From the start of the process to its end.
    pub wall: Duration,
    /// Seconds of processor time, those of starting Python included.
    pub cpu_secs: f64,
}

/// What a function returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    /// As `json.dumps` writes it, or why it does not: a type that JSON lacks, or no finite number.
    /// Tuples are lists, and keys of objects are texts.
    pub json: Result<String, String>,
    /// Python's `repr` of it.
    pub repr: String,
    /// Python's `str` of it.
    pub str: String,
    /// The name of its type.
    pub type_name: String,
}

/// Why a run brought no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The code raised an exception, or is no Python.
    #[error("{kind}: {message}")]
    Raised {
        /// The exception's class.
        kind: String,
        /// Its text.
        message: String,
        /// As Python prints it, from the first line of the code.
        traceback: String,
    },

    /// The code defines no such function.
    #[error("the code defines no function {name}")]
    NoFunction {
        /// The function.
        name: String,
    },

    /// The code ended its process instead of returning.
    #[error("the code ended its process with {code}")]
    Left {
        /// The code of the end, as text.
        code: String,
    },

    /// The wall-clock limit came first.
    #[error("the code took longer than {secs} s")]
    TimedOut {
        /// The limit.
        secs: String,
    },

    /// The limit of processor time came first.
    #[error("the code used more than {secs} s of processor time")]
    CpuTime {
        /// The limit.
        secs: u64,
    },

    /// The limit of memory came first.
    #[error("the code needs more than {bytes} bytes of memory")]
    Memory {
        /// The limit.
        bytes: u64,
    },

    /// A signal ended the process, such as 11 for a fault in a library.
    #[error("the process of the code was ended by signal {signal}")]
    Killed {
        /// Its number.
        signal: i32,
    },

    /// The code printed too much.
    #[error("the code printed more than {bytes} bytes")]
    OutputTooLarge {
        /// The limit.
        bytes: u64,
    },

    /// The value, as text, is too long.
    #[error("the value is longer than {bytes} bytes")]
    ResultTooLarge {
        /// The limit.
        bytes: u64,
    },

    /// The process ended without a result.
    #[error("the process of the code ended with {code} and without a result")]
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
    pub(super) fn of(finished: Finished, limits: &Limits) -> Self {
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
    // What is no answer was not written by the bootstrap: the code ended the process itself.
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
