//! Opens a file of rows, whatever its form, by its first bytes; names say nothing.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tooltune_rows::lines::{Records, open_rows, rows_of};
use tooltune_rows::regular_file::{self, STANDARD_INPUT};
use tooltune_rows::{ReadError, refuse_a_folder};

use crate::array::ArrayItems;
use crate::columns::ColumnRows;

/// The first bytes of what zstd compressed.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const GZIP: &[u8] = &[0x1f, 0x8b];
const PARQUET: &[u8] = b"PAR1";
/// Of a file of Arrow's IPC, which `datasets` calls Feather, and of a stream.
const ARROW_FILE: &[u8] = b"ARROW1";
const ARROW_STREAM: &[u8] = &[0xff, 0xff, 0xff, 0xff];

/// Opens a file of rows.
///
/// The path `-` is the standard input, which holds JSON Lines.
///
/// # Errors
///
/// - the file cannot be opened, or is a folder
/// - it begins as Parquet or Arrow does and is damaged, or in a compression that is not read
pub fn open(path: &Path) -> Result<Box<dyn Records>, ReadError> {
    if path == Path::new(STANDARD_INPUT) {
        return open_rows(path);
    }
    refuse_a_folder(path)?;
    let unreadable = |error| ReadError::unreadable_or_cut(path, error);
    let mut file = regular_file::open(path).map_err(unreadable)?;
    let start = beginning(&mut file).map_err(unreadable)?;
    if start.starts_with(PARQUET) {
        return Ok(Box::new(ColumnRows::of_parquet(path, file)?));
    }
    if start.starts_with(ARROW_FILE) {
        return Ok(Box::new(ColumnRows::of_arrow_file(path, file)?));
    }
    if start.starts_with(ARROW_STREAM) {
        return Ok(Box::new(ColumnRows::of_arrow_stream(path, file)?));
    }
    let file = BufReader::with_capacity(1 << 16, file);
    let text: Box<dyn BufRead + Send> = if start.starts_with(GZIP) {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else if start.starts_with(ZSTD) {
        let decoder = zstd::Decoder::with_buffer(file).map_err(unreadable)?;
        Box::new(BufReader::with_capacity(1 << 16, decoder))
    } else {
        Box::new(file)
    };
    of_text(path, text).map_err(unreadable)
}

/// A text is an array where its first character is a bracket.
fn of_text(path: &Path, mut text: Box<dyn BufRead + Send>) -> io::Result<Box<dyn Records>> {
    let start = text.fill_buf()?;
    let start = start.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(start);
    Ok(match start.trim_ascii_start().first() {
        Some(b'[') => Box::new(ArrayItems::new(path, text)),
        _ => rows_of(path, text),
    })
}

fn beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    Read::by_ref(file).take(8).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start)
}
