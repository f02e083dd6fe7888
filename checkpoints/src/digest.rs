//! Streaming SHA-256 of files that may be larger than memory.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::CheckpointError;
use crate::regular_file;

const CHUNK_BYTES: usize = 1 << 20;

/// SHA-256 of a file's bytes in lower-case hexadecimal, as `sha256sum` prints it.
///
/// # Errors
///
/// The file cannot be opened or read.
pub fn sha256_file(path: &Path) -> Result<String, CheckpointError> {
    Ok(size_and_sha256(path, u64::MAX)?.1)
}

/// SHA-256 of `bytes` in lower-case hexadecimal.
pub fn sha256_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Length in bytes and SHA-256 of a file or its first `limit` bytes, computed in one pass.
pub(crate) fn size_and_sha256(path: &Path, limit: u64) -> Result<(u64, String), CheckpointError> {
    let mut file = regular_file::open(path)?.take(limit);
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut size = 0_u64;
    loop {
        let n = file
            .read(&mut chunk)
            .map_err(CheckpointError::io("read", path))?;
        if n == 0 {
            return Ok((size, hex(&hasher.finalize())));
        }
        hasher.update(&chunk[..n]);
        size += n as u64;
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_equal_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_file(&path).unwrap(), expected);
        assert_eq!(sha256_bytes(b"abc"), expected);
    }
}
