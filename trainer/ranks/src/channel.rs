//! Frames: the unit of data on a connection between two ranks.
//!
//! A frame is a header of 12 bytes and its content: kind (1 byte), whether the message continues in
//! another frame (1), zero (2), length of the content (4, little-endian), CRC-32C of all that and
//! the content (4, little-endian). The length is checked against a limit before memory is allocated.

use std::io::{self, ErrorKind, Read};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 12;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The leader's first frame: protocol version and a random number.
    Challenge = 1,
    /// A follower's reply to the challenge.
    Hello = 2,
    /// The leader's reason not to accept a follower.
    Refused = 3,
    /// The leader has accepted a follower, which now waits for the others.
    Welcome = 4,
    /// All ranks have arrived.
    Begin = 5,
    /// A sign of life with phase and progress.
    Beat = 6,
    /// The sender's error, which ends the run: an exit status (0 for none) and a message.
    Failed = 7,
    /// The sender will send nothing more.
    Bye = 8,
    /// A line for the leader's log.
    Warning = 9,
    /// An order from the leader.
    Order = 10,
    /// A follower's part of a gather.
    Gather = 11,
    /// The leader's message to all.
    Broadcast = 12,
    /// Integers to add, or their sums.
    Sums = 13,
    /// A message from one rank to another.
    Direct = 14,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 14] = [
        Kind::Challenge,
        Kind::Hello,
        Kind::Refused,
        Kind::Welcome,
        Kind::Begin,
        Kind::Beat,
        Kind::Failed,
        Kind::Bye,
        Kind::Warning,
        Kind::Order,
        Kind::Gather,
        Kind::Broadcast,
        Kind::Sums,
        Kind::Direct,
    ];

    fn from_byte(byte: u8) -> Option<Kind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// The name for error messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Challenge => "a challenge",
            Kind::Hello => "a hello",
            Kind::Refused => "a refusal",
            Kind::Welcome => "a welcome",
            Kind::Begin => "the begin of the run",
            Kind::Beat => "a beat",
            Kind::Failed => "an error",
            Kind::Bye => "the end of the run",
            Kind::Warning => "a warning",
            Kind::Order => "an order",
            Kind::Gather => "a part of a gather",
            Kind::Broadcast => "a broadcast",
            Kind::Sums => "sums",
            Kind::Direct => "a direct message",
        }
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub kind: Kind,
    /// Whether the message continues in the next frame of this kind.
    pub has_more: bool,
    /// The content.
    pub bytes: Vec<u8>,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stream ended between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The stream ended inside a frame.
    #[error("the connection was closed inside a frame")]
    Truncated,
    /// The first byte is not a known kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A byte of the header has an undefined value.
    #[error("invalid frame header")]
    Header,
    /// The content is longer than allowed.
    #[error("a frame of {bytes} bytes, at most {limit} are allowed")]
    TooLong {
        /// The claimed length.
        bytes: usize,
        /// The maximum length.
        limit: usize,
    },
    /// The checksum does not match the bytes.
    #[error("the checksum of a frame is wrong")]
    Checksum,
    /// The content of a frame is invalid for its kind.
    #[error("invalid content of {0}")]
    Content(&'static str),
    /// The system failed to read.
    #[error("{message}")]
    Io {
        /// The kind of the system's error.
        kind: ErrorKind,
        /// The system's message.
        message: String,
    },
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        FrameError::Io {
            kind: error.kind(),
            message: error.to_string(),
        }
    }
}

/// The header of a frame with this content, which must be shorter than 4 GiB.
pub fn header(kind: Kind, has_more: bool, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let n_bytes = u32::try_from(bytes.len()).expect("callers split messages into frames");
    let mut header = [0; HEADER_BYTES];
    header[0] = kind as u8;
    header[1] = u8::from(has_more);
    header[4..8].copy_from_slice(&n_bytes.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..8]), bytes);
    header[8..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Reads one frame with at most `limit` bytes of content.
///
/// # Errors
///
/// - The stream ends between frames ([`FrameError::Closed`]) or inside one.
/// - The header is invalid, the content exceeds the limit, or the checksum does not match.
/// - The system fails to read.
pub fn read(reader: &mut impl Read, limit: usize) -> Result<Frame, FrameError> {
    let mut header = [0; HEADER_BYTES];
    let n_first = read_first(reader, &mut header)?;
    // Checked at once, so that other programs' data is refused before they send 12 bytes.
    let kind = Kind::from_byte(header[0]).ok_or(FrameError::UnknownKind(header[0]))?;
    read_exact(reader, &mut header[n_first..])?;
    if header[1] > 1 || header[2..4] != [0, 0] {
        return Err(FrameError::Header);
    }
    let [_, _, _, _, l0, l1, l2, l3, c0, c1, c2, c3] = header;
    let n_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if n_bytes > limit {
        return Err(FrameError::TooLong {
            bytes: n_bytes,
            limit,
        });
    }
    let mut bytes = vec![0; n_bytes];
    read_exact(reader, &mut bytes)?;
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..8]), &bytes);
    if checksum != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(FrameError::Checksum);
    }
    Ok(Frame {
        kind,
        has_more: header[1] == 1,
        bytes,
    })
}

/// Reads at least one byte, and returns the number of bytes read.
fn read_first(reader: &mut impl Read, header: &mut [u8]) -> Result<usize, FrameError> {
    loop {
        match reader.read(header) {
            Ok(0) => return Err(FrameError::Closed),
            Ok(n) => return Ok(n),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_exact(reader: &mut impl Read, bytes: &mut [u8]) -> Result<(), FrameError> {
    reader
        .read_exact(bytes)
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => FrameError::Truncated,
            _ => error.into(),
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(kind: Kind, has_more: bool, bytes: &[u8]) -> Vec<u8> {
        let mut all = header(kind, has_more, bytes).to_vec();
        all.extend_from_slice(bytes);
        all
    }

    /// Gives out a stream in pieces, and records the largest buffer that was offered to it.
    struct Pieces<'a> {
        bytes: &'a [u8],
        piece: usize,
        largest: usize,
    }

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.largest = self.largest.max(buffer.len());
            let n = buffer.len().min(self.piece).min(self.bytes.len());
            buffer[..n].copy_from_slice(&self.bytes[..n]);
            self.bytes = &self.bytes[n..];
            Ok(n)
        }
    }

    #[test]
    fn every_kind_has_its_own_byte_and_name() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i + 1);
            assert!(Kind::ALL[..i].iter().all(|k| k.name() != kind.name()));
        }
        assert_eq!(Kind::from_byte(0), None);
        assert_eq!(Kind::from_byte(15), None);
    }

    #[test]
    fn a_long_frame_is_refused_by_its_header_and_reserves_nothing() {
        let content = vec![7; 100];
        let bytes = encoded(Kind::Order, false, &content);
        let error = read(&mut &bytes[..HEADER_BYTES], 99).expect_err("too long");
        assert_eq!(
            error,
            FrameError::TooLong {
                bytes: 100,
                limit: 99
            }
        );
        assert_eq!(read(&mut &bytes[..], 100).expect("a frame").bytes, content);
        assert_eq!(
            read(&mut &bytes[..HEADER_BYTES], 100),
            Err(FrameError::Truncated)
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_an_error_or_a_frame(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            kind in 0u8..16,
            limit in 0usize..64,
            piece in 1usize..40,
        ) {
            let mut typed = bytes.clone();
            if let Some(first) = typed.first_mut() {
                *first = kind;
            }
            for bytes in [&bytes, &typed] {
                let mut stream = Pieces { bytes, piece, largest: 0 };
                // Each frame takes bytes from the stream, so this ends.
                while let Ok(frame) = read(&mut stream, limit) {
                    prop_assert!(frame.bytes.len() <= limit);
                }
                prop_assert!(stream.largest <= limit.max(HEADER_BYTES));
            }
        }

        #[test]
        fn a_changed_or_shortened_frame_is_an_error(
            content in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0usize..14,
            has_more: bool,
            position: prop::sample::Index,
            flip in 1u8..=255,
            piece in 1usize..40,
        ) {
            let whole = encoded(Kind::ALL[kind], has_more, &content);
            let mut stream = Pieces { bytes: &whole, piece, largest: 0 };
            let frame = read(&mut stream, 300).expect("a frame");
            prop_assert_eq!((frame.kind, frame.has_more), (Kind::ALL[kind], has_more));
            prop_assert_eq!(frame.bytes, content);
            prop_assert_eq!(read(&mut stream, 300), Err(FrameError::Closed));
            let position = position.index(whole.len());
            prop_assert!(read(&mut &whole[..position], 300).is_err());
            let mut changed = whole;
            changed[position] ^= flip;
            prop_assert!(read(&mut &changed[..], 300).is_err());
        }
    }
}
