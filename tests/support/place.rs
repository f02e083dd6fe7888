//! Where the tests compute: `TOOLTUNE_TEST_DEVICE`, which is `cpu` unless it says otherwise.
//!
//! The integration tests and those of `kernels` share this file. A word that is no device is an
//! error, and so is a GPU that is not there: a test never passes on another device than was asked
//! for.

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
    /// The one that the variable names.
    pub(crate) fn chosen() -> Self {
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

    fn parse(word: &str) -> Option<Self> {
        match word {
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => word.strip_prefix("cuda:")?.parse().ok().map(Self::Cuda),
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
fn a_word_that_is_no_device_is_not_taken_for_one() {
    for (word, place) in [("cpu", TestDevice::Cpu), ("cuda:3", TestDevice::Cuda(3))] {
        assert_eq!(TestDevice::parse(word), Some(place));
        assert_eq!(place.to_string(), word);
    }
    assert_eq!(TestDevice::parse("cuda"), Some(TestDevice::Cuda(0)));
    for word in ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x"] {
        assert_eq!(TestDevice::parse(word), None, "{word}");
    }
}
