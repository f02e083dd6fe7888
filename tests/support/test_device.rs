//! The device of the tests: `TOOLTUNE_TEST_DEVICE`, by default `cpu`.
//!
//! The integration tests and the tests of `kernels` share this file. An unknown device or a missing
//! GPU is an error, so a test never passes on a device other than the requested one.

use std::fmt;
use std::sync::LazyLock;

const VARIABLE: &str = "TOOLTUNE_TEST_DEVICE";

/// A device by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestDevice {
    Cpu,
    Cuda(usize),
}

impl TestDevice {
    /// The device in the variable.
    pub(crate) fn from_env() -> Self {
        static CHOSEN: LazyLock<TestDevice> = LazyLock::new(|| match std::env::var_os(VARIABLE) {
            None => TestDevice::Cpu,
            Some(word) => {
                let word = word.to_string_lossy();
                TestDevice::parse(&word).unwrap_or_else(|| {
                    panic!("{VARIABLE}={word}: expected cpu, cuda or cuda:INDEX")
                })
            }
        });
        *CHOSEN
    }

    fn parse(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => name.strip_prefix("cuda:")?.parse().ok().map(Self::Cuda),
        }
    }
}

impl fmt::Display for TestDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(index) => write!(formatter, "cuda:{index}"),
        }
    }
}

#[test]
fn invalid_device_names_are_rejected() {
    for (name, device) in [("cpu", TestDevice::Cpu), ("cuda:3", TestDevice::Cuda(3))] {
        assert_eq!(TestDevice::parse(name), Some(device));
        assert_eq!(device.to_string(), name);
    }
    assert_eq!(TestDevice::parse("cuda"), Some(TestDevice::Cuda(0)));
    for name in ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x"] {
        assert_eq!(TestDevice::parse(name), None, "{name}");
    }
}
