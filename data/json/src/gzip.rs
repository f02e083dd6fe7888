//! Decompresses gzip, which may have several members.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

use crate::budgets::{GZIP_MEMBER_BYTES, GZIP_MEMBERS};
use crate::input_limits::InputTooLarge;

/// The bytes of all members of a gzip stream.
///
/// An empty member has 20 bytes, and creating its decoder takes a tenth of a millisecond. A file of
/// empty members would take minutes and decompress to nothing, so the number of members is limited.
#[derive(Debug)]
pub struct GzipMembers<R> {
    member: Option<GzDecoder<R>>,
    n_members: u64,
    n_bytes: u64,
}

impl<R: BufRead> GzipMembers<R> {
    /// Decompresses the bytes of `reader`.
    pub fn new(reader: R) -> Self {
        Self {
            member: Some(GzDecoder::new(reader)),
            n_members: 1,
            n_bytes: 0,
        }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = self.member.as_mut().filter(|_| !buffer.is_empty()) {
            let n = member.read(buffer)?;
            if n > 0 {
                self.n_bytes = self.n_bytes.saturating_add(n as u64);
                return Ok(n);
            }
            if member.get_mut().fill_buf()?.is_empty() {
                break;
            }
            self.n_members += 1;
            let limit = GZIP_MEMBERS.saturating_add(self.n_bytes / GZIP_MEMBER_BYTES);
            if self.n_members > limit {
                return Err(io::Error::other(InputTooLarge::Members {
                    limit,
                    bytes: self.n_bytes,
                }));
            }
            let reader = self.member.take().map(GzDecoder::into_inner);
            self.member = reader.map(GzDecoder::new);
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::read::MultiGzDecoder;
    use flate2::write::GzEncoder;

    use super::*;

    fn member(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).expect("compressed");
        encoder.finish().expect("compressed")
    }

    fn read(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        let read = GzipMembers::new(bytes).read_to_end(&mut text);
        read.map(|_| text).map_err(|error| error.to_string())
    }

    #[test]
    fn members_are_read_one_after_another() {
        // More members than the limit for a stream that decompresses to nothing.
        let line = member(b"{\"text\": \"a line of its own\"}\n");
        let one_per_line = line.repeat(GZIP_MEMBERS as usize + 1_000);
        let blocks = [
            member(b""),
            member(b"one\n"),
            member(b""),
            member(b"two\n"),
            member(b""),
        ];
        for bytes in [one_per_line, blocks.concat(), member(b"")] {
            let mut expected = Vec::new();
            let mut reference = MultiGzDecoder::new(&*bytes);
            reference.read_to_end(&mut expected).expect("decompressed");
            assert_eq!(read(&bytes), Ok(expected));
        }
        let blocks = blocks.concat();
        assert!(read(&blocks[..blocks.len() - 3]).is_err());
        let with_trailing_bytes = [member(b"one\n"), b"no gzip".to_vec()].concat();
        assert!(read(&with_trailing_bytes).is_err());
    }

    #[test]
    fn empty_members_are_limited() {
        let n = GZIP_MEMBERS as usize;
        let text = member(b"{}\n");
        let empty = member(b"").repeat(n - 1);
        assert_eq!(read(&[&*text, &*empty].concat()), Ok(b"{}\n".to_vec()));
        let error = read(&[&*text, &*empty, &*member(b"")].concat()).expect_err("too many");
        assert!(error.contains("GZIP_MEMBERS in docs/limits.md"), "{error}");
        let error = read(&member(b"x").repeat(2 * n)).expect_err("too many");
        assert!(error.contains("gzip members"), "{error}");
    }
}
