//! Opens a row file in any format. The first bytes determine the format; file extensions are
//! ignored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::Path;

use tooltune_disk::regular_file;
use tooltune_disk::regular_file::STANDARD_INPUT;
use tooltune_json::gzip::GzipMembers;
use tooltune_json::input_limits::ExpansionBudget;
use tooltune_json::lines::{Records, json_lines, open_rows};
use tooltune_json::{ReadError, refuse_a_folder};

use crate::array::ArrayItems;
use crate::columns::ColumnRows;

/// The first bytes of a zstd frame with data.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// The first bytes of a skippable zstd frame after one byte from 0x50 to 0x5f. Parallel and seekable
/// compressors begin a stream with such frames.
const ZSTD_SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];
const GZIP: &[u8] = &[0x1f, 0x8b];
const PARQUET: &[u8] = b"PAR1";
/// The first bytes of an Arrow IPC file, which `datasets` calls Feather, and of a stream.
const ARROW_FILE: &[u8] = b"ARROW1";
const ARROW_STREAM: &[u8] = &[0xff, 0xff, 0xff, 0xff];

/// Opens a row file.
///
/// The path `-` is the standard input, which must be JSON Lines.
///
/// # Errors
///
/// - The file cannot be opened, or is a folder.
/// - It begins like Parquet or Arrow but is damaged, or has an unsupported compression.
pub fn open(path: &Path) -> Result<Box<dyn Records>, ReadError> {
    if path == Path::new(STANDARD_INPUT) {
        return open_rows(path);
    }
    refuse_a_folder(path)?;
    let unreadable = |error| ReadError::unreadable_or_truncated(path, error);
    let mut file = regular_file::open(path).map_err(unreadable)?;
    let start = read_beginning(&mut file).map_err(unreadable)?;
    if start.starts_with(PARQUET) {
        return Ok(Box::new(ColumnRows::open_parquet(path, file)?));
    }
    if start.starts_with(ARROW_FILE) {
        return Ok(Box::new(ColumnRows::open_arrow_file(path, file)?));
    }
    if start.starts_with(ARROW_STREAM) {
        return Ok(Box::new(ColumnRows::open_arrow_stream(path, file)?));
    }
    let file = BufReader::with_capacity(1 << 16, file);
    let text: Box<dyn BufRead + Send> = if start.starts_with(GZIP) {
        Box::new(BufReader::new(GzipMembers::new(file)))
    } else if is_zstd(&start) {
        let budget = ExpansionBudget::new(file.get_ref().metadata().map_err(unreadable)?.len());
        let decoder = zstd::Decoder::with_buffer(file).map_err(unreadable)?;
        let bounded = Bounded {
            decoder,
            expanded: budget,
        };
        Box::new(BufReader::with_capacity(1 << 16, bounded))
    } else {
        Box::new(file)
    };
    open_text(path, text).map_err(unreadable)
}

/// Opens text as an array if its first character is a bracket, otherwise as JSON Lines.
fn open_text(path: &Path, mut text: Box<dyn BufRead + Send>) -> io::Result<Box<dyn Records>> {
    let start = text.fill_buf()?;
    let start = start.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(start);
    Ok(match start.trim_ascii_start().first() {
        Some(b'[') => Box::new(ArrayItems::new(path, text)),
        _ => json_lines(path, text),
    })
}

/// The decoder's output, up to the maximum plausible expansion; zstd itself has no limit.
struct Bounded<R> {
    decoder: R,
    expanded: ExpansionBudget,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.decoder.read(buffer)?;
        self.expanded.add(n).map_err(io::Error::other)?;
        Ok(n)
    }
}

/// Whether a zstd stream begins with these bytes.
///
/// # Source
///
/// RFC 8878, sections 3.1.1 and 3.1.2.
fn is_zstd(start: &[u8]) -> bool {
    match start {
        [0x50..=0x5f, rest @ ..] => rest.starts_with(ZSTD_SKIPPABLE),
        _ => start.starts_with(ZSTD),
    }
}

fn read_beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    Read::by_ref(file).take(8).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start)
}
