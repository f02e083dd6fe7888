//! Checksums of individual lines. If a line of a file is damaged, only its own content is lost.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// Length of a checksum in characters.
pub const CHECK_CHARS: usize = 16;

/// Returns the first [`CHECK_CHARS`] hexadecimal digits of the SHA-256 of `bytes`.
pub fn check_of_bytes(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let digits = digest.iter().take(CHECK_CHARS / 2);
    digits.map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the [`check_of_bytes`] of a value written as JSON. For a value that JSON cannot
/// represent, it returns the checksum of empty input; writing the line of such a value then fails.
pub fn check_of_value(value: &impl Serialize) -> String {
    check_of_bytes(&serde_json::to_vec(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_the_start_of_the_sha256() {
        assert_eq!(check_of_bytes(b"abc"), "ba7816bf8f01cfea");
        assert_eq!(check_of_bytes(b"abc").len(), CHECK_CHARS);
        assert_eq!(check_of_value(&["a", "b"]), check_of_bytes(br#"["a","b"]"#));
    }
}
