//! Reads compressed Parquet pages, and refuses those that would fill the memory.
//!
//! A page declares its length after decompression. The decoders of gzip and of the old LZ4 format
//! ignore it and decompress everything: ten megabytes can become ten gigabytes. Such a page is
//! first decompressed without storing the output, to count its bytes.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use crate::budgets::COLUMN_BYTES;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

/// Maximum factors by which the decoders expand their input.
const GZIP_GROWTH: usize = 1032;
const LZ4_GROWTH: usize = 255;

/// The first bytes of a gzip stream.
const GZIP_START: &[u8] = &[0x1f, 0x8b, 0x08];

/// The chunk of a column.
pub(crate) struct CompressedPages {
    file: Arc<File>,
    compression: Compression,
}

impl CompressedPages {
    pub(crate) fn new(file: Arc<File>, compression: Compression) -> Self {
        Self { file, compression }
    }
}

impl Length for CompressedPages {
    fn len(&self) -> u64 {
        Length::len(self.file.as_ref())
    }
}

impl ChunkReader for CompressedPages {
    type T = <File as ChunkReader>::T;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        self.file.get_read(start)
    }

    /// Reads the bytes of one page.
    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let end = start.saturating_add(length as u64);
        if end > self.len() {
            return Err(ParquetError::EOF(
                "a page ends beyond the end of the file".to_owned(),
            ));
        }
        let page = self.file.get_bytes(start, length)?;
        check_size(self.compression, &page)?;
        Ok(page)
    }
}

fn check_size(compression: Compression, page: &[u8]) -> ParquetResult<()> {
    let can_exceed = |growth: usize| page.len().saturating_mul(growth) > COLUMN_BYTES;
    let exceeds = match compression {
        Compression::GZIP(_) => can_exceed(GZIP_GROWTH) && gzip_exceeds(page, COLUMN_BYTES),
        Compression::LZ4 => can_exceed(LZ4_GROWTH),
        _ => false,
    };
    match exceeds {
        true => Err(ParquetError::General(format!(
            "a page may exceed {COLUMN_BYTES} bytes after decompression, the limit for columns \
             decoded together (COLUMN_BYTES in docs/limits.md)"
        ))),
        false => Ok(()),
    }
}

/// Whether a gzip stream in the page expands to more than `limit` bytes. In version 2 pages it is
/// preceded by levels.
fn gzip_exceeds(page: &[u8], limit: usize) -> bool {
    let starts = page.windows(GZIP_START.len()).enumerate();
    let mut starts = starts.filter(|(_, bytes)| *bytes == GZIP_START);
    starts.any(|(start, _)| {
        let limit = limit as u64;
        let mut stream = MultiGzDecoder::new(&page[start..]).take(limit.saturating_add(1));
        // An invalid stream is left to the page decoder.
        io::copy(&mut stream, &mut io::sink()).is_ok_and(|n| n > limit)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_gzip_stream_is_counted_at_any_offset() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[7; 5_000]).expect("memory");
        let stream = encoder.finish().expect("memory");
        // A false gzip header before the stream does not hide the stream.
        let page = [GZIP_START, b"levels", &stream].concat();
        for page in [&stream, &page] {
            assert!(gzip_exceeds(page, 4_999));
            assert!(!gzip_exceeds(page, 5_000));
        }
    }
}
