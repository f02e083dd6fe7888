//! Values of columns as JSON text.

use std::fmt::Debug;
use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_schema::{DataType, TimeUnit};

/// A value that JSON does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CellFault {
    #[error("a number that is not finite, which JSON does not have")]
    NotFinite,
    #[error("a map whose keys are no texts, which JSON does not have")]
    Keys,
    #[error("a time that no calendar has")]
    NoTime,
    #[error("values of the type {0}, which is not read; leave the column out")]
    Type(String),
}

/// Whether there is no value.
pub(crate) fn is_null(array: &dyn Array, row: usize) -> bool {
    match array.data_type() {
        DataType::Null => true,
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            dictionary.keys().is_null(row)
                || key(dictionary.keys(), row)
                    .is_none_or(|at| is_null(dictionary.values().as_ref(), at))
        }
        _ => array.is_null(row),
    }
}

/// Writes a value that is not null.
pub(crate) fn write(array: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<(), CellFault> {
    macro_rules! number {
        ($type:ty) => {
            plain(out, array.as_primitive::<$type>().value(row))
        };
    }
    macro_rules! decimal {
        ($type:ty) => {
            plain(out, array.as_primitive::<$type>().value_as_string(row))
        };
    }
    macro_rules! time {
        ($type:ty, $as:ident, $behind:expr) => {
            match array.as_primitive::<$type>().$as(row) {
                Some(time) => Ok(time_text(out, &time, $behind)),
                None => Err(CellFault::NoTime),
            }
        };
    }
    match array.data_type() {
        DataType::Boolean => plain(out, array.as_boolean().value(row)),
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
            return float(out, value, value.is_finite());
        }
        DataType::Float32 => {
            let value = array.as_primitive::<Float32Type>().value(row);
            return float(out, value, value.is_finite());
        }
        DataType::Float64 => {
            let value = array.as_primitive::<Float64Type>().value(row);
            return float(out, value, value.is_finite());
        }
        DataType::Decimal32(..) => decimal!(Decimal32Type),
        DataType::Decimal64(..) => decimal!(Decimal64Type),
        DataType::Decimal128(..) => decimal!(Decimal128Type),
        DataType::Decimal256(..) => decimal!(Decimal256Type),
        DataType::Utf8 => text(out, array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => text(out, array.as_string::<i64>().value(row)),
        DataType::Utf8View => text(out, array.as_string_view().value(row)),
        DataType::Binary => bytes(out, array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(out, array.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(out, array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(out, array.as_fixed_size_binary().value(row)),
        DataType::List(_) => return list(out, &array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => return list(out, &array.as_list::<i64>().value(row)),
        DataType::ListView(_) => return list(out, &array.as_list_view::<i32>().value(row)),
        DataType::LargeListView(_) => return list(out, &array.as_list_view::<i64>().value(row)),
        DataType::FixedSizeList(..) => return list(out, &array.as_fixed_size_list().value(row)),
        DataType::Struct(_) => return record(out, array.as_struct(), row),
        DataType::Map(..) => return map(out, &array.as_map().value(row)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            return match key(dictionary.keys(), row) {
                Some(at) => write(dictionary.values().as_ref(), at, out),
                None => Err(CellFault::Type(array.data_type().to_string())),
            };
        }
        DataType::Date32 => return time!(Date32Type, value_as_date, ""),
        DataType::Date64 => return time!(Date64Type, value_as_datetime, ""),
        DataType::Timestamp(unit, zone) => {
            let behind = if zone.is_some() { "Z" } else { "" };
            return match unit {
                TimeUnit::Second => time!(TimestampSecondType, value_as_datetime, behind),
                TimeUnit::Millisecond => time!(TimestampMillisecondType, value_as_datetime, behind),
                TimeUnit::Microsecond => time!(TimestampMicrosecondType, value_as_datetime, behind),
                TimeUnit::Nanosecond => time!(TimestampNanosecondType, value_as_datetime, behind),
            };
        }
        other => return Err(CellFault::Type(other.to_string())),
    }
    Ok(())
}

/// Writing to memory never fails.
fn plain(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    let _ = write!(out, "{value}");
}

fn text(out: &mut Vec<u8>, text: &str) {
    let _ = serde_json::to_writer(out, text);
}

fn float(
    out: &mut Vec<u8>,
    value: impl serde::Serialize,
    is_finite: bool,
) -> Result<(), CellFault> {
    if !is_finite {
        return Err(CellFault::NotFinite);
    }
    let _ = serde_json::to_writer(out, &value);
    Ok(())
}

/// In hexadecimal digits, as JSON has no bytes.
fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out.push(b'"');
}

/// By ISO 8601, which is how the crate of times shows a value to programmers.
fn time_text(out: &mut Vec<u8>, time: &impl Debug, behind: &str) {
    let _ = write!(out, "\"{time:?}{behind}\"");
}

fn list(out: &mut Vec<u8>, items: &ArrayRef) -> Result<(), CellFault> {
    out.push(b'[');
    for at in 0..items.len() {
        if at > 0 {
            out.extend_from_slice(b", ");
        }
        if is_null(items, at) {
            out.extend_from_slice(b"null");
        } else {
            write(items, at, out)?;
        }
    }
    out.push(b']');
    Ok(())
}

/// Fields that are null are left out.
fn record(out: &mut Vec<u8>, fields: &StructArray, row: usize) -> Result<(), CellFault> {
    out.push(b'{');
    let mut is_first = true;
    for (field, values) in fields.fields().iter().zip(fields.columns()) {
        if is_null(values, row) {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            out.extend_from_slice(b", ");
        }
        text(out, field.name());
        out.extend_from_slice(b": ");
        write(values, row, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn map(out: &mut Vec<u8>, entries: &StructArray) -> Result<(), CellFault> {
    let (keys, values) = (entries.column(0), entries.column(1));
    use DataType::{LargeUtf8, Utf8, Utf8View};
    if !matches!(keys.data_type(), Utf8 | LargeUtf8 | Utf8View) {
        return Err(CellFault::Keys);
    }
    out.push(b'{');
    for at in 0..entries.len() {
        if at > 0 {
            out.extend_from_slice(b", ");
        }
        write(keys, at, out)?;
        out.extend_from_slice(b": ");
        if is_null(values, at) {
            out.extend_from_slice(b"null");
        } else {
            write(values, at, out)?;
        }
    }
    out.push(b'}');
    Ok(())
}

/// The place in the values of a dictionary that a key names.
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
