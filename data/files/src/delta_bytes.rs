//! The decoded size of a delta-encoded Parquet page, which stores each value as a prefix of the
//! previous one and a suffix.
//!
//! A page of a megabyte can expand to a terabyte: one long value, followed by a million values that
//! repeat all of it as their prefix. The prefix lengths come first, so their sum is known before
//! any value is decoded.

use parquet::basic::Encoding;
use parquet::column::page::Page;
use tooltune_disk::leb128::take_number;

/// The bytes of all values of a `DELTA_BYTE_ARRAY` page; `None` if its lengths cannot be read.
/// `max_levels` are the maximum repetition and definition levels.
pub(crate) fn expanded_bytes(page: &Page, max_levels: [i16; 2]) -> Option<usize> {
    let values = match page {
        Page::DataPage {
            buf,
            num_values,
            rep_level_encoding,
            def_level_encoding,
            ..
        } => {
            let encodings = [*rep_level_encoding, *def_level_encoding];
            let mut levels = encodings.into_iter().zip(max_levels);
            levels.try_fold(&buf[..], |rest, (encoding, max_level)| {
                skip_levels(rest, encoding, max_level, *num_values)
            })?
        }
        Page::DataPageV2 {
            buf,
            rep_levels_byte_len,
            def_levels_byte_len,
            ..
        } => {
            let n = rep_levels_byte_len.checked_add(*def_levels_byte_len)?;
            buf.get(usize::try_from(n).ok()?..)?
        }
        Page::DictionaryPage { .. } => return Some(0),
    };
    let prefixes = sum_of_lengths(values)?;
    Some(prefixes.saturating_add(values.len()))
}

/// The bytes after the levels of one kind, in a version 1 page.
fn skip_levels(bytes: &[u8], encoding: Encoding, max_level: i16, n_values: u32) -> Option<&[u8]> {
    if max_level == 0 {
        return Some(bytes);
    }
    #[expect(deprecated, reason = "old files have levels in this encoding")]
    if encoding == Encoding::BIT_PACKED {
        let bits = u64::from(16 - max_level.leading_zeros()) * u64::from(n_values);
        return bytes.get(usize::try_from(bits.div_ceil(8)).ok()?..);
    }
    let (length, rest) = bytes.split_first_chunk()?;
    rest.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)
}

/// The sum of lengths in `DELTA_BINARY_PACKED`.
///
/// # Source
///
/// "Delta Encoding" in Encodings.md of parquet-format 2.11.
fn sum_of_lengths(mut bytes: &[u8]) -> Option<usize> {
    let bytes = &mut bytes;
    let block = usize::try_from(take_number(bytes)?).ok()?;
    let n_parts = usize::try_from(take_number(bytes)?).ok()?;
    let mut n_left = usize::try_from(take_number(bytes)?).ok()?;
    let mut length = decode_zigzag(take_number(bytes)?);
    let part_size = block.checked_div(n_parts)?;
    let mut sum = 0_usize;
    let mut count = |length: i32| -> Option<()> {
        sum = sum.saturating_add(usize::try_from(length).ok()?);
        Some(())
    };
    if n_left == 0 {
        return Some(0);
    }
    count(length)?;
    n_left -= 1;
    while n_left > 0 {
        if part_size == 0 {
            return None;
        }
        let min_delta = decode_zigzag(take_number(bytes)?);
        let widths = bytes.split_off(..n_parts.min(bytes.len()))?;
        for &width in widths {
            let mut bits = Bits::new(bytes, usize::from(width), part_size)?;
            let n = part_size.min(n_left);
            for _ in 0..n {
                length = length.wrapping_add(min_delta).wrapping_add(bits.next());
                count(length)?;
            }
            n_left -= n;
        }
    }
    Some(sum)
}

/// Numbers of a fixed bit width, lowest bit first.
struct Bits<'b> {
    bytes: &'b [u8],
    width: usize,
    at: usize,
}

impl<'b> Bits<'b> {
    /// Removes `n` numbers from the start of `bytes`. Writers omit the padding after the last
    /// number.
    fn new(bytes: &mut &'b [u8], width: usize, n: usize) -> Option<Self> {
        if width > 64 {
            return None;
        }
        let n_bytes = width.checked_mul(n)?.div_ceil(8).min(bytes.len());
        Some(Self {
            bytes: bytes.split_off(..n_bytes)?,
            width,
            at: 0,
        })
    }

    /// The next number; lengths have 32 bits.
    fn next(&mut self) -> i32 {
        let mut number = 0_u32;
        for bit in 0..self.width {
            let at = self.at + bit;
            let byte = self.bytes.get(at / 8).copied().unwrap_or_default();
            if bit < 32 && byte >> (at % 8) & 1 == 1 {
                number |= 1 << bit;
            }
        }
        self.at += self.width;
        number.cast_signed()
    }
}

/// Decodes a zigzag number to a 32-bit length.
fn decode_zigzag(number: u64) -> i32 {
    let value = (number >> 1).cast_signed() ^ -((number & 1).cast_signed());
    value as i32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    /// The pages of one delta-encoded string column.
    fn pages(texts: &[Option<String>], version: WriterVersion) -> Vec<Page> {
        let array: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        let batch = RecordBatch::try_from_iter_with_nullable([("c", array, true)]);
        let batch = batch.expect("a batch");
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::DELTA_BYTE_ARRAY)
            .build();
        let mut bytes = Vec::new();
        let writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties));
        let mut writer = writer.expect("a writer");
        writer.write(&batch).expect("written");
        writer.close().expect("written");
        let file = SerializedFileReader::new(Bytes::from(bytes)).expect("a file");
        let group = file.get_row_group(0).expect("a group");
        let pages = group.get_column_page_reader(0).expect("pages");
        pages.map(|page| page.expect("a page")).collect()
    }

    #[test]
    fn the_length_of_all_values_is_known_from_the_page() {
        // Lengths that increase and decrease, nulls, and more values than a block has.
        let text = "sea and wind and tide ".repeat(20);
        let text_at = |i: usize| (i % 5 != 4).then(|| text[i % 7..7 + i * 37 % 400].to_owned());
        for n in [1, 2, 5, 32, 129, 5_000] {
            let texts: Vec<_> = (0..n).map(text_at).collect();
            let right: usize = texts.iter().flatten().map(String::len).sum();
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                let pages = pages(&texts, version);
                let n_page_bytes: usize = pages.iter().map(|page| page.buffer().len()).sum();
                let expanded = pages.iter().map(|page| expanded_bytes(page, [0, 1]));
                let expanded: usize = expanded.map(|n| n.expect("lengths")).sum();
                assert!(
                    (right..=right + n_page_bytes).contains(&expanded),
                    "{n}: {right} {expanded}"
                );
            }
        }
    }

    #[test]
    fn damaged_lengths_return_none() {
        let page = &pages(
            &vec![Some("tide".to_owned()); 300],
            WriterVersion::PARQUET_2_0,
        )[0];
        let Page::DataPageV2 { buf, .. } = page else {
            panic!("{page:?}");
        };
        for at in 0..buf.len() {
            for bit in 0..8 {
                let mut damaged = buf.to_vec();
                damaged[at] ^= 1 << bit;
                let _ = sum_of_lengths(&damaged);
                let _ = sum_of_lengths(&damaged[..at]);
            }
        }
        assert_eq!(sum_of_lengths(&[]), None);
    }
}
