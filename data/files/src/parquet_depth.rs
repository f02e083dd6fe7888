//! Checks the nesting depth of Parquet columns before the schema is built.
//!
//! A footer lists the schema elements in depth-first order, each with its number of children. The
//! Parquet crate builds the tree by unlimited recursion, so a footer of a megabyte could overflow
//! the stack and abort the program.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crate::columns::ColumnFault;
use tooltune_disk::leb128::take_number;

/// Maximum nesting of columns: JSON is read up to 127 levels, and a Parquet list needs three.
const MAX_LEVELS: usize = 400;

/// Maximum nesting of skipped footer structs.
const MAX_SKIPPED: usize = 16;

/// Footer length and magic bytes at the end of a file.
const TRAILER_BYTES: u64 = 8;

/// The fields of the footer and of schema elements that are read.
const SCHEMA_FIELD: i64 = 2;
const CHILDREN_FIELD: i64 = 5;

/// Types of Thrift's compact protocol.
const BYTE: u8 = 3;
const INTEGERS: [u8; 3] = [4, 5, 6];
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LISTS: [u8; 2] = [9, 10];
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Refuses a file whose columns are nested too deeply.
pub(crate) fn refuse_deep(file: &mut File) -> Result<(), ColumnFault> {
    let footer = footer(file)?;
    match schema_depth(&mut &footer[..]) {
        Some(levels) if levels <= MAX_LEVELS => Ok(()),
        Some(levels) => Err(ColumnFault::Damaged(format!(
            "its columns are nested {levels} levels deep, but the limit is {MAX_LEVELS}"
        ))),
        None => Err(ColumnFault::Damaged("its footer cannot be read".to_owned())),
    }
}

fn footer(file: &mut File) -> io::Result<Vec<u8>> {
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "the file is cut off");
    let length = file.seek(SeekFrom::End(0))?;
    let end = length.checked_sub(TRAILER_BYTES).ok_or_else(cut_off)?;
    let mut n_bytes = [0; 4];
    file.seek(SeekFrom::Start(end))?;
    file.read_exact(&mut n_bytes)?;
    let n_bytes = u64::from(u32::from_le_bytes(n_bytes));
    file.seek(SeekFrom::Start(
        end.checked_sub(n_bytes).ok_or_else(cut_off)?,
    ))?;
    let mut footer = Vec::new();
    Read::by_ref(file).take(n_bytes).read_to_end(&mut footer)?;
    file.rewind()?;
    Ok(footer)
}

/// The maximum depth of the schema in a footer.
fn schema_depth(bytes: &mut &[u8]) -> Option<usize> {
    let mut id = 0;
    while let Some(kind) = field(bytes, &mut id)? {
        if id != SCHEMA_FIELD || !LISTS.contains(&kind) {
            skip_value(bytes, kind, 0)?;
            continue;
        }
        let (n, item) = list(bytes)?;
        if item != STRUCT {
            return None;
        }
        // For each enclosing element, the number of remaining children.
        let mut open: Vec<i64> = Vec::new();
        let mut deepest = 0;
        for _ in 0..n {
            let n_children = children(bytes)?;
            while open
                .pop_if(|n_children_left| *n_children_left <= 0)
                .is_some()
            {}
            if let Some(n_children_left) = open.last_mut() {
                *n_children_left -= 1;
            }
            if n_children > 0 {
                open.push(n_children);
                deepest = deepest.max(open.len());
            }
        }
        return Some(deepest);
    }
    None
}

/// Reads past a schema element and returns its number of children.
fn children(bytes: &mut &[u8]) -> Option<i64> {
    let mut id = 0;
    let mut n_children = 0;
    while let Some(kind) = field(bytes, &mut id)? {
        if id == CHILDREN_FIELD && INTEGERS.contains(&kind) {
            n_children = integer(bytes)?;
        } else {
            skip_value(bytes, kind, 0)?;
        }
    }
    Some(n_children)
}

/// Returns the type of the next field of a struct, and stores its number in `id`. The inner option
/// is empty at the end of the struct.
fn field(bytes: &mut &[u8], id: &mut i64) -> Option<Option<u8>> {
    let header = *bytes.split_off_first()?;
    if header == 0 {
        return Some(None);
    }
    match i64::from(header >> 4) {
        0 => *id = integer(bytes)?,
        delta => *id += delta,
    }
    Some(Some(header & 0x0f))
}

/// The number and type of the items of a list.
fn list(bytes: &mut &[u8]) -> Option<(u64, u8)> {
    let header = *bytes.split_off_first()?;
    let n = match header >> 4 {
        15 => take_number(bytes)?,
        n => u64::from(n),
    };
    Some((n, header & 0x0f))
}

/// Skips a field's value; the type of a boolean contains its value.
fn skip_value(bytes: &mut &[u8], kind: u8, level: usize) -> Option<()> {
    if level > MAX_SKIPPED {
        return None;
    }
    match kind {
        1 | 2 => {}
        BYTE => drop(bytes.split_off(..1)?),
        DOUBLE => drop(bytes.split_off(..8)?),
        BINARY => {
            let n = usize::try_from(take_number(bytes)?).ok()?;
            bytes.split_off(..n)?;
        }
        STRUCT => {
            let mut id = 0;
            while let Some(kind) = field(bytes, &mut id)? {
                skip_value(bytes, kind, level + 1)?;
            }
        }
        MAP => {
            let n = take_number(bytes)?;
            if n > 0 {
                let kinds = *bytes.split_off_first()?;
                for _ in 0..n {
                    skip_item(bytes, kinds >> 4, level + 1)?;
                    skip_item(bytes, kinds & 0x0f, level + 1)?;
                }
            }
        }
        kind if LISTS.contains(&kind) => {
            let (n, item) = list(bytes)?;
            for _ in 0..n {
                skip_item(bytes, item, level + 1)?;
            }
        }
        kind if INTEGERS.contains(&kind) => drop(take_number(bytes)?),
        _ => return None,
    }
    Some(())
}

/// Skips an item of a list or a map, in which a boolean has its own byte.
fn skip_item(bytes: &mut &[u8], kind: u8, level: usize) -> Option<()> {
    match kind {
        1 | 2 => bytes.split_off(..1).map(drop),
        kind => skip_value(bytes, kind, level),
    }
}

fn integer(bytes: &mut &[u8]) -> Option<i64> {
    let number = take_number(bytes)?;
    Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file whose schema is a chain of `n` nested groups.
    fn chain(n: usize) -> File {
        let part = |n_children: u8| {
            // Optional, "a", and the number of its children.
            let mut part = vec![0x35, 0x02, 0x18, 0x01, b'a'];
            if n_children > 0 {
                part.extend([0x15, 2 * n_children]);
            }
            part.push(0);
            part
        };
        let mut footer = vec![0x15, 0x04, 0x19, 0xfc];
        let mut varint = n + 1;
        while varint >= 0x80 {
            footer.push((varint as u8) | 0x80);
            varint >>= 7;
        }
        footer.push(varint as u8);
        (0..n).for_each(|_| footer.extend(part(1)));
        footer.extend(part(0));
        footer.push(0);
        let mut file = tempfile::tempfile().expect("a file");
        let length = u32::try_from(footer.len()).expect("short").to_le_bytes();
        let parts: [&[u8]; 4] = [b"PAR1", &footer, &length, b"PAR1"];
        file.write_all(&parts.concat()).expect("written");
        file
    }

    #[test]
    fn excessively_nested_columns_are_refused_before_building_the_schema() {
        assert!(refuse_deep(&mut chain(MAX_LEVELS)).is_ok());
        for n in [MAX_LEVELS + 1, 1_000_000] {
            let error = refuse_deep(&mut chain(n)).expect_err("deep").to_string();
            assert!(
                error.contains(&format!("nested {n} levels deep")),
                "{error}"
            );
        }
        let mut cut = tempfile::tempfile().expect("a file");
        cut.write_all(b"PAR1").expect("written");
        assert!(refuse_deep(&mut cut).is_err());
    }
}
