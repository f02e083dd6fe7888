//! Collective operations between the GPUs of several processes, by NVIDIA's NCCL.
//!
//! Collectives are queued on CubeCL's CUDA stream between its launches. The library is loaded at
//! run time. If it is missing or disabled, the processes add their gradients on the hosts.

mod communicator;
mod library;

use std::ffi::CStr;

pub use communicator::{Communicator, UniqueId};
pub(crate) use library::Element;

/// Environment variable; `0` disables NCCL, so that gradients are added on the hosts.
pub const SWITCH: &str = "TOOLTUNE_NCCL";

/// Why NCCL is not used, or how it failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NcclError {
    /// The environment variable [`SWITCH`] is `0`.
    #[error("TOOLTUNE_NCCL is 0")]
    Disabled,
    /// The library cannot be loaded.
    #[error(
        "libnccl.so.2 cannot be loaded ({0}); install the Python package nvidia-nccl-cu13 or -cu12 \
         into the environment of tooltune"
    )]
    Missing(String),
    /// The library lacks a function.
    #[error("NCCL has no function {0:?}; install version 2.13 or newer")]
    OldLibrary(&'static CStr),
    /// The device is not a CUDA device.
    #[error("NCCL needs a CUDA device; set TOOLTUNE_NCCL=0")]
    NotCuda,
    /// A call failed.
    #[error(
        "{call}: {problem}; run with NCCL_DEBUG=INFO to see the cause, or with TOOLTUNE_NCCL=0 to \
         add gradients without NCCL"
    )]
    Call {
        /// NCCL's function.
        call: &'static str,
        /// NCCL's description.
        problem: String,
    },
    /// A collective was not queued, because earlier work on the GPU failed.
    #[error("{call} was not queued, because earlier work on this GPU failed")]
    NotQueued {
        /// NCCL's function.
        call: &'static str,
    },
    /// The first sum is wrong.
    #[error(
        "a test sum by NCCL has the value {found} instead of {expected}; run with TOOLTUNE_NCCL=0, \
         and check the GPUs and their connections with nccl-tests"
    )]
    WrongSum {
        /// The wrong value.
        found: f32,
        /// The sum.
        expected: f32,
    },
}

/// The version of NCCL, such as 22703 for 2.27.3, if it can be used.
///
/// # Errors
///
/// NCCL is disabled, missing or too old.
pub fn version() -> Result<i32, NcclError> {
    if library::is_disabled() {
        return Err(NcclError::Disabled);
    }
    Ok(library::functions()?.version)
}

/// Ends the process without its exit handlers: those of CUDA may wait for a collective that never
/// ends.
pub fn end_process(status: i32) -> ! {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no requirements.
    unsafe {
        libc::_exit(status)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = status;
        std::process::abort()
    }
}

/// "2.27.3" for 22703, "2.8.4" for 2804.
pub fn version_name(version: i32) -> String {
    let (major, rest) = match version {
        ..10_000 => (version / 1000, version % 1000),
        _ => (version / 10_000, version % 10_000),
    };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}
