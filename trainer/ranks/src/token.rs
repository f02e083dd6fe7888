//! The secret of a run: random tokens, and proofs of knowing one without sending it.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};

use sha2::{Digest as _, Sha256};

/// Bytes of a proof and of a nonce.
pub(crate) const PROOF_BYTES: usize = 32;

/// Bytes of a block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// A secret that all ranks of a run know. It is never sent, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token from the launcher's environment or from a file.
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// A new random token of 64 hexadecimal digits.
    pub fn random() -> Self {
        Self(hex(&random_bytes()))
    }

    /// The secret, for the environment of a child process.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Random bytes that other processes cannot predict. The keys of `RandomState` are 128 bits from
/// the operating system's generator, and the hash hides them.
pub(crate) fn random_bytes() -> [u8; PROOF_BYTES] {
    let mut hash = Sha256::new();
    for i in 0..4u64 {
        // Each thread gets its keys from the system once, and increments them per value.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(i);
        hash.update(hasher.finish().to_le_bytes());
    }
    let mut own_thread = RandomState::new().build_hasher();
    own_thread.write_u32(std::process::id());
    hash.update(own_thread.finish().to_le_bytes());
    hash.finalize().into()
}

/// HMAC-SHA256 of the joined parts, each preceded by its length so that their borders count.
pub(crate) fn proof(key: &[u8], parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    let mut message = Vec::new();
    for part in parts {
        message.extend_from_slice(&(part.len() as u64).to_le_bytes());
        message.extend_from_slice(part);
    }
    hmac_sha256(key, &message)
}

/// HMAC-SHA256 as defined in RFC 2104.
fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; PROOF_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    if key.len() > BLOCK_BYTES {
        block[..PROOF_BYTES].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x36))
        .chain_update(message)
        .finalize();
    let outer = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x5c))
        .chain_update(inner);
    outer.finalize().into()
}

/// Compares in a time that does not depend on the position of the first difference.
pub(crate) fn is_equal(one: &[u8; PROOF_BYTES], other: &[u8; PROOF_BYTES]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn hmac_is_that_of_rfc_4231() {
        let cases: [(&[u8], &[u8], &str); 3] = [
            (
                &[0x0b; 20],
                b"Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];
        for (key, message, expected) in cases {
            assert_eq!(hex(&hmac_sha256(key, message)), expected);
        }
    }

    #[test]
    fn proofs_depend_on_the_borders_of_parts() {
        assert_ne!(proof(b"k", &[b"ab", b"c"]), proof(b"k", &[b"a", b"bc"]));
        assert!(is_equal(&proof(b"k", &[b"a"]), &proof(b"k", &[b"a"])));
        assert!(!is_equal(&proof(b"k", &[b"a"]), &proof(b"l", &[b"a"])));
    }

    #[test]
    fn tokens_differ_and_are_not_printed() {
        let tokens: Vec<Token> = (0..100).map(|_| Token::random()).collect();
        for (i, token) in tokens.iter().enumerate() {
            assert_eq!(token.secret().len(), 64);
            assert!(!tokens[..i].contains(token));
            assert_eq!(format!("{token:?}"), "Token(…)");
        }
    }
}
