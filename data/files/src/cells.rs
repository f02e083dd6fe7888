//! Converts column values to JSON text.
//!
//! A small file can represent terabytes, because lists of nulls, runs and dictionaries repeat a
//! value that is stored once. The text of a row is therefore limited while it is written.

use std::fmt::Debug;
use std::io::{self, Write};

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, RunArray, StructArray};
use arrow_schema::{DataType, TimeUnit};
use tooltune_json::budgets::LINE_BYTES;

/// A value that JSON cannot represent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CellFault {
    #[error("a number that is not finite, which JSON cannot represent; leave the column out")]
    NotFinite,
    #[error(
        "bytes that are not valid UTF-8, which JSON cannot represent; leave the column out, or decode \
         it to text"
    )]
    Bytes,
    #[error(
        "a value that makes the row longer than {LINE_BYTES} bytes as text \
         (LINE_BYTES in docs/limits.md); leave the column out, or split the row"
    )]
    TooLong,
    #[error("a map whose keys are not strings, which JSON cannot represent; leave the column out")]
    Keys,
    #[error("a time outside the calendar range; correct it")]
    NoTime,
    #[error("values of the type {0}, which is not supported; leave the column out")]
    Type(String),
}

/// The text of the row being written, with its limit.
pub(crate) struct RowText<'t> {
    out: &'t mut Vec<u8>,
    /// Maximum length of `out` including the row.
    end: usize,
}

impl<'t> RowText<'t> {
    /// Starts a row after the rows that `out` already contains.
    pub(crate) fn new(out: &'t mut Vec<u8>) -> Self {
        let end = out.len().saturating_add(LINE_BYTES);
        Self { out, end }
    }

    /// Appends bytes unchanged.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), CellFault> {
        if bytes.len() > self.remaining_bytes() {
            return Err(CellFault::TooLong);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn remaining_bytes(&self) -> usize {
        self.end.saturating_sub(self.out.len())
    }

    /// Checks, before writing, that `n_values` values fit; each needs at least two bytes.
    fn check_room(&self, n_values: usize) -> Result<(), CellFault> {
        match n_values > self.remaining_bytes() / 2 {
            true => Err(CellFault::TooLong),
            false => Ok(()),
        }
    }
}

impl Write for RowText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where an array stores a value that several rows share.
enum StoredValue<'a> {
    /// In the array itself.
    Inline,
    /// In the values of a dictionary or of runs.
    Shared(&'a dyn Array, usize),
    /// The row is null, so there is no value.
    Null,
}

fn stored_value(array: &dyn Array, row: usize) -> StoredValue<'_> {
    macro_rules! run {
        ($type:ty) => {
            match array.as_any().downcast_ref::<RunArray<$type>>() {
                Some(runs) => {
                    StoredValue::Shared(runs.values().as_ref(), runs.get_physical_index(row))
                }
                None => StoredValue::Inline,
            }
        };
    }
    match array.data_type() {
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let keys = dictionary.keys();
            match key(keys, row).filter(|_| !keys.is_null(row)) {
                Some(at) => StoredValue::Shared(dictionary.values().as_ref(), at),
                None => StoredValue::Null,
            }
        }
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => run!(Int16Type),
            DataType::Int32 => run!(Int32Type),
            _ => run!(Int64Type),
        },
        _ => StoredValue::Inline,
    }
}

/// Whether the value is null.
pub(crate) fn is_null(array: &dyn Array, row: usize) -> bool {
    match stored_value(array, row) {
        StoredValue::Inline => array.data_type() == &DataType::Null || array.is_null(row),
        StoredValue::Shared(values, at) => is_null(values, at),
        StoredValue::Null => true,
    }
}

/// Returns the value if it is a string. Bytes are a string if they are UTF-8.
pub(crate) fn string_at(array: &dyn Array, row: usize) -> Option<&str> {
    if let StoredValue::Shared(values, at) = stored_value(array, row) {
        return string_at(values, at);
    }
    if is_null(array, row) {
        return None;
    }
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(array.as_string_view().value(row)),
        _ => std::str::from_utf8(bytes_at(array, row)?).ok(),
    }
}

fn bytes_at(array: &dyn Array, row: usize) -> Option<&[u8]> {
    match array.data_type() {
        DataType::Binary => Some(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Some(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Some(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => Some(array.as_fixed_size_binary().value(row)),
        _ => None,
    }
}

/// Writes a value that is not null.
pub(crate) fn write(array: &dyn Array, row: usize, out: &mut RowText<'_>) -> Result<(), CellFault> {
    if let StoredValue::Shared(values, at) = stored_value(array, row) {
        return write(values, at, out);
    }
    macro_rules! number {
        ($type:ty) => {
            write_plain(out, array.as_primitive::<$type>().value(row))
        };
    }
    macro_rules! decimal {
        ($type:ty) => {
            write_plain(out, array.as_primitive::<$type>().value_as_string(row))
        };
    }
    macro_rules! time {
        ($type:ty, $as:ident, $zone_suffix:expr) => {
            match array.as_primitive::<$type>().$as(row) {
                Some(time) => time_text(out, &time, $zone_suffix),
                None => Err(CellFault::NoTime),
            }
        };
    }
    match array.data_type() {
        DataType::Boolean => write_plain(out, array.as_boolean().value(row)),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => {
            let value = f32::from(array.as_primitive::<Float16Type>().value(row));
            float(out, value, value.is_finite())
        }
        DataType::Float32 => {
            let value = array.as_primitive::<Float32Type>().value(row);
            float(out, value, value.is_finite())
        }
        DataType::Float64 => {
            let value = array.as_primitive::<Float64Type>().value(row);
            float(out, value, value.is_finite())
        }
        DataType::Decimal32(..) => decimal!(Decimal32Type),
        DataType::Decimal64(..) => decimal!(Decimal64Type),
        DataType::Decimal128(..) => decimal!(Decimal128Type),
        DataType::Decimal256(..) => decimal!(Decimal256Type),
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => match string_at(array, row) {
            Some(value) => write_text(out, value),
            None => Err(CellFault::Bytes),
        },
        DataType::List(_) => list(out, &array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => list(out, &array.as_list::<i64>().value(row)),
        DataType::ListView(_) => list(out, &array.as_list_view::<i32>().value(row)),
        DataType::LargeListView(_) => list(out, &array.as_list_view::<i64>().value(row)),
        DataType::FixedSizeList(..) => list(out, &array.as_fixed_size_list().value(row)),
        DataType::Struct(_) => record(out, array.as_struct(), row),
        DataType::Map(..) => map(out, &array.as_map().value(row)),
        DataType::Date32 => time!(Date32Type, value_as_date, ""),
        DataType::Date64 => time!(Date64Type, value_as_datetime, ""),
        DataType::Timestamp(unit, zone) => {
            let zone_suffix = if zone.is_some() { "Z" } else { "" };
            match unit {
                TimeUnit::Second => time!(TimestampSecondType, value_as_datetime, zone_suffix),
                TimeUnit::Millisecond => {
                    time!(TimestampMillisecondType, value_as_datetime, zone_suffix)
                }
                TimeUnit::Microsecond => {
                    time!(TimestampMicrosecondType, value_as_datetime, zone_suffix)
                }
                TimeUnit::Nanosecond => {
                    time!(TimestampNanosecondType, value_as_datetime, zone_suffix)
                }
            }
        }
        other => Err(CellFault::Type(other.to_string())),
    }
}

/// Writes a value as `Display` formats it. Fails only if the row is too long.
fn write_plain(out: &mut RowText<'_>, value: impl std::fmt::Display) -> Result<(), CellFault> {
    write!(out, "{value}").map_err(|_| CellFault::TooLong)
}

pub(crate) fn write_text(out: &mut RowText<'_>, text: &str) -> Result<(), CellFault> {
    serde_json::to_writer(out, text).map_err(|_| CellFault::TooLong)
}

fn float(
    out: &mut RowText<'_>,
    value: impl serde::Serialize,
    is_finite: bool,
) -> Result<(), CellFault> {
    if !is_finite {
        return Err(CellFault::NotFinite);
    }
    serde_json::to_writer(out, &value).map_err(|_| CellFault::TooLong)
}

/// Writes a time in ISO 8601, which is the time crate's debug format.
fn time_text(out: &mut RowText<'_>, time: &impl Debug, zone_suffix: &str) -> Result<(), CellFault> {
    write!(out, "\"{time:?}{zone_suffix}\"").map_err(|_| CellFault::TooLong)
}

fn list(out: &mut RowText<'_>, items: &ArrayRef) -> Result<(), CellFault> {
    out.check_room(items.len())?;
    out.push(b"[")?;
    for at in 0..items.len() {
        if at > 0 {
            out.push(b", ")?;
        }
        write_or_null(items, at, out)?;
    }
    out.push(b"]")
}

fn write_or_null(array: &ArrayRef, at: usize, out: &mut RowText<'_>) -> Result<(), CellFault> {
    if is_null(array, at) {
        out.push(b"null")
    } else {
        write(array, at, out)
    }
}

/// Writes a struct; null fields are left out.
fn record(out: &mut RowText<'_>, fields: &StructArray, row: usize) -> Result<(), CellFault> {
    out.push(b"{")?;
    let mut is_first = true;
    for (field, values) in fields.fields().iter().zip(fields.columns()) {
        if is_null(values, row) {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            out.push(b", ")?;
        }
        write_text(out, field.name())?;
        out.push(b": ")?;
        write(values, row, out)?;
    }
    out.push(b"}")
}

fn map(out: &mut RowText<'_>, entries: &StructArray) -> Result<(), CellFault> {
    let (keys, values) = (entries.column(0), entries.column(1));
    out.check_room(entries.len())?;
    out.push(b"{")?;
    for at in 0..entries.len() {
        if at > 0 {
            out.push(b", ")?;
        }
        write_text(out, string_at(keys, at).ok_or(CellFault::Keys)?)?;
        out.push(b": ")?;
        write_or_null(values, at, out)?;
    }
    out.push(b"}")
}

/// The index in the dictionary's values.
fn key(keys: &dyn Array, row: usize) -> Option<usize> {
    macro_rules! key {
        ($type:ty) => {
            usize::try_from(keys.as_primitive::<$type>().value(row)).ok()
        };
    }
    match keys.data_type() {
        DataType::Int8 => key!(Int8Type),
        DataType::Int16 => key!(Int16Type),
        DataType::Int32 => key!(Int32Type),
        DataType::Int64 => key!(Int64Type),
        DataType::UInt8 => key!(UInt8Type),
        DataType::UInt16 => key!(UInt16Type),
        DataType::UInt32 => key!(UInt32Type),
        DataType::UInt64 => key!(UInt64Type),
        _ => None,
    }
}
