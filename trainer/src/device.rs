//! The device that a command computes on; the only place that opens one.
//!
//! `Device::default()` is never used: in a build with CUDA it takes the first GPU even where there
//! is none.

use burn::tensor::Device;

use crate::config::Device as DeviceName;
use crate::error::Error;

/// Opens the device of a config or of `--device`.
///
/// # Errors
///
/// CUDA is asked for in a build without it, or without a driver on this machine.
pub fn open(name: DeviceName) -> Result<Device, Error> {
    match name {
        DeviceName::Cpu => Ok(Device::flex()),
        DeviceName::Cuda(index) => open_cuda(index),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(index: usize) -> Result<Device, Error> {
    // Burn panics in a thread of its own where the driver is missing; look for it first.
    let directories = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/lib",
    ];
    let in_path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let found = directories
        .into_iter()
        .chain(in_path.split(':'))
        .any(|directory| {
            std::path::Path::new(directory)
                .join("libcuda.so.1")
                .exists()
        });
    match found {
        true => Ok(Device::cuda(index)),
        false => Err(Error::Device(format!(
            "cuda:{index}: no libcuda.so.1 on this machine; install the NVIDIA driver, add its \
             folder to LD_LIBRARY_PATH, or use --device cpu"
        ))),
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(index: usize) -> Result<Device, Error> {
    Err(Error::Device(format!(
        "cuda:{index}: this build has no CUDA; build with `cargo build --release --features cuda`, \
         or use --device cpu"
    )))
}
