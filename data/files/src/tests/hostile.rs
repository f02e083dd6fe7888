//! Tests columns that declare more than they contain, and columns of bytes.

use std::sync::Arc;

use arrow_array::builder::{BinaryViewBuilder, FixedSizeBinaryBuilder};
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array,
    LargeListArray, ListArray, NullArray, RecordBatch, RunArray, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_disk::regular_file;
use tooltune_json::input_limits::ExpansionBudget;
use tooltune_json::lines::Records;

use super::{read, write_file};
use crate::columns::ColumnRows;
use crate::open;

fn batch(name: &str, array: ArrayRef) -> RecordBatch {
    let field = Field::new(name, array.data_type().clone(), true);
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).expect("a batch")
}

fn arrow(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).expect("a writer");
    writer.write(batch).expect("written");
    writer.into_inner().expect("written")
}

fn parquet(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut bytes = Vec::new();
    let writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties));
    let mut writer = writer.expect("a writer");
    writer.write(batch).expect("written");
    writer.close().expect("written");
    bytes
}

fn zstd() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .build()
}

fn read_rows(bytes: Vec<u8>) -> Result<Vec<Value>, String> {
    let folder = TempDir::new().expect("a folder");
    read(&write_file(&folder, "rows", bytes))
}

/// The number of rows before the first error, and the error.
fn until_fault(bytes: Vec<u8>) -> (usize, String) {
    let folder = TempDir::new().expect("a folder");
    let path = write_file(&folder, "rows", bytes);
    let mut rows = match open(&path) {
        Ok(rows) => rows,
        Err(error) => return (0, error.to_string()),
    };
    let mut n = 0;
    loop {
        match rows.next_record() {
            Ok(Some(_)) => n += 1,
            Ok(None) => return (n, "none".to_owned()),
            Err(error) => return (n, error.to_string()),
        }
    }
}

#[test]
fn bytes_that_are_utf8_are_text_and_others_are_refused_with_file_row_and_column() {
    let texts: [&[u8]; 2] = ["Wo liegt Å?".as_bytes(), b""];
    let mut views = BinaryViewBuilder::new();
    texts.iter().for_each(|text| views.append_value(text));
    let values: ArrayRef = Arc::new(BinaryArray::from(texts.to_vec()));
    let keys = Int32Array::from(vec![0, 1]);
    let dictionary = DictionaryArray::<Int32Type>::try_new(keys, Arc::clone(&values));
    let columns: [ArrayRef; 3] = [
        values,
        Arc::new(views.finish()),
        Arc::new(dictionary.expect("a dictionary")),
    ];
    for column in columns {
        let kind = column.data_type().to_string();
        let batch = batch("prompt", column);
        for bytes in [arrow(&batch), parquet(&batch, zstd())] {
            let expected = vec![json!({"prompt": "Wo liegt Å?"}), json!({"prompt": ""})];
            assert_eq!(read_rows(bytes), Ok(expected), "{kind}");
        }
    }
    let mut fixed = FixedSizeBinaryBuilder::new(2);
    fixed.append_value(b"ab").expect("two bytes");
    fixed.append_value([0xff, 0xfe]).expect("two bytes");
    let batch = batch("image", Arc::new(fixed.finish()));
    for bytes in [arrow(&batch), parquet(&batch, zstd())] {
        let error = read_rows(bytes).expect_err("no text");
        for part in [
            "rows: cannot read",
            "\"image\"",
            "row 2 of",
            "bytes that are not valid UTF-8",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn values_longer_than_a_row_are_refused_before_decoding() {
    let nulls: ArrayRef = Arc::new(NullArray::new(1_000_000_000));
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let list = LargeListArray::new(
        Arc::clone(&item),
        OffsetBuffer::from_lengths([1_000_000_000]),
        Arc::clone(&nulls),
        None,
    );
    let fixed = FixedSizeListArray::new(item, 1_000_000_000, nulls, None);
    let nested = StructArray::from(vec![(
        Arc::new(Field::new("x", list.data_type().clone(), true)),
        Arc::new(list.clone()) as ArrayRef,
    )]);
    let runs = Int64Array::from(vec![500_000_000_i64]);
    let runs = RunArray::<Int64Type>::try_new(&runs, &StringArray::from(vec!["x"]));
    let runs: ArrayRef = Arc::new(runs.expect("runs"));
    let run_lists = LargeListArray::new(
        Arc::new(Field::new("item", runs.data_type().clone(), true)),
        OffsetBuffer::from_lengths([500_000_000]),
        runs,
        None,
    );
    let columns: [ArrayRef; 4] = [
        Arc::new(list),
        Arc::new(fixed),
        Arc::new(nested),
        Arc::new(run_lists),
    ];
    for column in columns {
        let kind = column.data_type().to_string();
        let error = read_rows(arrow(&batch("c", column))).expect_err("too long");
        assert!(
            error.contains("row 1 of the column \"c\" contains"),
            "{kind}: {error}"
        );
        assert!(
            error.contains("LINE_BYTES in docs/limits.md"),
            "{kind}: {error}"
        );
    }
}

#[test]
fn empty_rows_are_limited() {
    let rows = |n| arrow(&batch("c", Arc::new(NullArray::new(n))));
    let (_, error) = until_fault(rows(1_000_000_000));
    assert!(error.contains("FILE_ROWS in docs/limits.md"), "{error}");
    let (_, error) = until_fault(rows(1_000_001));
    assert!(error.contains("EMPTY_ROWS in docs/limits.md"), "{error}");
    assert_eq!(until_fault(rows(1_000_000)), (1_000_000, "none".to_owned()));
    let runs = |n: i32| {
        let ends = Int32Array::from(vec![n]);
        let runs = RunArray::<Int32Type>::try_new(&ends, &StringArray::from(vec!["x"]));
        arrow(&batch("c", Arc::new(runs.expect("runs"))))
    };
    assert_eq!(read_rows(runs(3)), Ok(vec![json!({"c": "x"}); 3]));
    let (n, error) = until_fault(runs(1_000_000_000));
    assert!(n == 0 && error.contains("FILE_ROWS"), "{error}");
}

#[test]
fn a_declared_length_is_limited_by_the_existing_bytes() {
    let text = "one text and one text and one text".repeat(100);
    let batch = batch("c", Arc::new(StringArray::from(vec![text.as_str()])));
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        let options = IpcWriteOptions::default().try_with_compression(Some(codec));
        let options = options.expect("a codec");
        let writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options.clone());
        let mut file = writer.expect("a writer");
        file.write(&batch).expect("written");
        let stream = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options);
        let mut stream = stream.expect("a writer");
        stream.write(&batch).expect("written");
        let files = [file.into_inner(), stream.into_inner()];
        for whole in files.map(|bytes| bytes.expect("written")) {
            assert_eq!(read_rows(whole.clone()), Ok(vec![json!({"c": text})]));
            let declared = (text.len() as i64).to_le_bytes();
            // The frame distinguishes the declared length from offsets with the same value.
            let frame: &[u8] = match codec {
                CompressionType::LZ4_FRAME => &[0x04, 0x22, 0x4d, 0x18],
                _ => &[0x28, 0xb5, 0x2f, 0xfd],
            };
            let prefix = [&declared[..], frame].concat();
            let position = whole.windows(12).position(|bytes| bytes == prefix);
            let at = position.expect("the length of the text");
            for bit in [12, 30, 42, 62, 63] {
                let mut damaged = whole.clone();
                damaged[at + bit / 8] ^= 1 << (bit % 8);
                let error = read_rows(damaged).expect_err("damaged");
                // Bit 12 adds 4096 bytes, which LZ4 could expand to. Its decoder detects that it
                // does not.
                let is_reported = error.contains("the file is damaged") || bit == 12;
                assert!(is_reported, "{codec:?} {bit}: {error}");
            }
        }
    }
}

/// Many rows, or one list, of one large value that the file stores once.
fn repeat_value(n: usize, value: &str) -> DictionaryArray<Int32Type> {
    let values = Arc::new(StringArray::from(vec![value]));
    DictionaryArray::try_new(Int32Array::from(vec![0; n]), values).expect("a dictionary")
}

#[test]
fn a_value_that_a_file_stores_once_is_in_memory_once() {
    let value = "a".repeat(1 << 20);
    let flat = batch("c", Arc::new(repeat_value(200, &value)));
    let folder = TempDir::new().expect("a folder");
    for (name, bytes) in [("arrow", arrow(&flat)), ("parquet", parquet(&flat, zstd()))] {
        let path = write_file(&folder, name, &bytes);
        let file = regular_file::open(&path).expect("opens");
        let mut rows = match name {
            "arrow" => ColumnRows::open_arrow_file(&path, file),
            _ => ColumnRows::open_parquet(&path, file),
        }
        .expect("rows");
        rows.expanded = ExpansionBudget::with_limit(bytes.len() as u64, 40 << 20);
        let results = std::iter::from_fn(|| match rows.next_record() {
            Ok(record) => record.map(|record| Ok(record.len())),
            Err(error) => Some(Err(error.to_string())),
        });
        let results: Vec<Result<usize, String>> = results.collect();
        let (last, rows) = results.split_last().expect("rows");
        assert!((36..=40).contains(&rows.len()), "{name}: {}", rows.len());
        let error = last.as_ref().expect_err(name);
        assert!(error.contains("EXPANSION in docs/limits.md"), "{error}");
    }
    let items: ArrayRef = Arc::new(repeat_value(600, &value));
    let list = ListArray::new(
        Arc::new(Field::new("item", items.data_type().clone(), true)),
        OffsetBuffer::from_lengths([1, 599]),
        items,
        None,
    );
    let nested = batch("c", Arc::new(list));
    for bytes in [arrow(&nested), parquet(&nested, zstd())] {
        let (n, error) = until_fault(bytes);
        assert_eq!(n, 0, "rows before the fault are decoded with it: {error}");
        assert!(error.contains("row 2 of"), "{error}");
        assert!(error.contains("LINE_BYTES in docs/limits.md"), "{error}");
    }
}

#[test]
fn strings_survive_every_parquet_encoding() {
    let texts: Vec<Option<String>> = (0..3_000)
        .map(|i| (i % 7 != 0).then(|| format!("a common beginning of text {}", i / 3)))
        .collect();
    let strings: ArrayRef = Arc::new(StringArray::from(texts.clone()));
    let lengths = (0..1_000).map(|i| [1, 4, 1][i % 3]).chain([1_000]);
    let list = ListArray::new(
        Arc::new(Field::new("item", DataType::Utf8, true)),
        OffsetBuffer::from_lengths(lengths),
        Arc::clone(&strings),
        None,
    );
    for encoding in [
        None,
        Some(Encoding::PLAIN),
        Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
        Some(Encoding::DELTA_BYTE_ARRAY),
    ] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let mut properties = WriterProperties::builder()
                .set_writer_version(version)
                .set_data_page_row_count_limit(700)
                .set_write_batch_size(100);
            if let Some(encoding) = encoding {
                properties = properties
                    .set_dictionary_enabled(false)
                    .set_encoding(encoding);
            }
            let properties = properties.build();
            let flat = batch("c", Arc::clone(&strings));
            let expected = texts.iter().map(|text| match text {
                Some(text) => json!({"c": text}),
                None => json!({}),
            });
            let rows = read_rows(parquet(&flat, properties.clone()));
            assert_eq!(rows, Ok(expected.collect()), "{encoding:?}");
            let nested = read_rows(parquet(&batch("c", Arc::new(list.clone())), properties));
            let nested = nested.expect("rows");
            let items = nested
                .iter()
                .flat_map(|row| row["c"].as_array().expect("a list"));
            let items: Vec<Option<&str>> = items.map(Value::as_str).collect();
            let right: Vec<Option<&str>> = texts.iter().map(Option::as_deref).collect();
            assert_eq!(items, right[..items.len()], "{encoding:?}");
            assert_eq!(nested.len(), 1_001);
        }
    }
}

#[test]
fn delta_encoding_that_expands_to_gigabytes_is_refused() {
    // Each value has the whole previous value as its prefix.
    let texts = Arc::new(repeat_value(2_200, &"a".repeat(1 << 20)));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BYTE_ARRAY)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_data_page_row_count_limit(usize::MAX)
        .set_data_page_size_limit(usize::MAX)
        .build();
    let bytes = parquet(&batch("c", texts), properties);
    let (n, error) = until_fault(bytes);
    assert_eq!(n, 0);
    assert!(error.contains("COLUMN_BYTES in docs/limits.md"), "{error}");
}
