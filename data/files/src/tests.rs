//! Tests rows that are converted to every format and back, damaged files, and selections.

mod hostile;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_json::budgets::JSON_VALUES;
use tooltune_rows::text::RowRecords;

use super::*;

const FILE_NAMES: [&str; 8] = [
    "rows.jsonl",
    "rows.json",
    "rows.parquet",
    "rows.arrow",
    "rows.jsonl.gz",
    "rows.jsonl.zst",
    "rows.json.gz",
    "rows.json.zst",
];

fn write_file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("written");
    path
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

fn read(path: &Path) -> Result<Vec<Value>, String> {
    let records = open(path).map_err(|error| error.to_string())?;
    let rows = RowRecords::new(records).map(|record| {
        let (_, record) = record.map_err(|error| error.to_string())?;
        serde_json::from_slice(&record).map_err(|error| error.to_string())
    });
    rows.collect()
}

fn convert_file(from: &Path, name: &str) -> (PathBuf, Conversion) {
    let path = from.with_file_name(name);
    let file = File::create(&path).expect("a file");
    let format = FileFormat::from_path(&path).expect("a form");
    let done = convert(&[from.to_owned()], format, file, &mut || {}).expect("converted");
    (path, done)
}

/// Rows with values that are difficult for columns.
fn hard_rows(n: usize) -> Vec<Value> {
    (0..n)
        .map(|i| {
            json!({
                "id": i,
                "score": i as f64 / 8.0,
                "is_good": i % 3 == 0,
                "messages": [
                    {"role": "user", "content": format!("line\nbreak \"{i}\" é 😀")},
                    {"role": "assistant", "content": "x", "tool_calls": [{"name": "f"}]},
                ],
                "json_schema": if i % 2 == 0 {
                    json!({"type": "object", "properties": {"a": {"type": "integer"}}})
                } else {
                    json!({"type": "array", "items": {}, "default": null})
                },
                "gold": if i % 2 == 0 { json!({"a": i}) } else { json!([i, null, 1.0]) },
                "order": if i % 2 == 0 { json!({"b": 1, "a": 2}) } else { json!({"a": 2, "b": 1}) },
                "list": (0..i % 4).collect::<Vec<_>>(),
            })
        })
        .collect()
}

/// Invariant: The file format changes no row, and every error names the file and the row.
#[test]
fn rows_survive_conversion_to_every_format() {
    let folder = TempDir::new().expect("a folder");
    let rows = hard_rows(700);
    let source = write_file(&folder, "source.jsonl", lines(&rows));
    for name in FILE_NAMES {
        let (path, done) = convert_file(&source, name);
        assert_eq!(done.n_rows, rows.len());
        let back = read(&path).expect(name);
        // Key order and the spelling of numbers are preserved.
        assert_eq!(lines(&back), lines(&rows), "{name}");
        let (converted_back, _) = convert_file(&path, "again.jsonl");
        assert_eq!(
            fs::read_to_string(&converted_back)
                .expect("text")
                .lines()
                .count(),
            rows.len()
        );
        let texts: &[&str] = match path.extension().and_then(|ending| ending.to_str()) {
            Some("parquet" | "arrow") => &["json_schema", "gold", "order"],
            _ => &[],
        };
        assert_eq!(done.json_texts, texts, "{name}");
        assert_eq!(done.losses, [""; 0], "{name}");
        assert_eq!(
            open(&path).expect("opens").location(),
            format!("{}:0", path.display())
        );
    }
}

#[test]
fn information_lost_in_columns_is_reported() {
    let folder = TempDir::new().expect("a folder");
    let rows = [json!({"a": null, "b": null}), json!({"a": 1, "b": null})];
    let source = write_file(&folder, "source.jsonl", lines(&rows));
    let (path, done) = convert_file(&source, "rows.parquet");
    let [a, b] = done.losses.as_slice() else {
        panic!("{:?}", done.losses);
    };
    assert!(
        a.starts_with("the field \"a\" is null in 1 rows; columns"),
        "{a}"
    );
    assert!(b.starts_with("the field \"b\" is null in every row"), "{b}");
    assert_eq!(read(&path), Ok(vec![json!({}), json!({"a": 1})]));
    let (_, done) = convert_file(&source, "rows.json");
    assert_eq!(done.losses, [""; 0]);
}

#[test]
fn invalid_rows_are_refused_with_their_location() {
    let folder = TempDir::new().expect("a folder");
    for (text, message) in [
        (
            "{\"a\": 1}\n[1]\n",
            "source:2: the row is a list, but must be a JSON object",
        ),
        ("{\"a\": 1}\n{\"a\": }\n", "source:2: not valid JSON"),
        (
            "{\"a\": 1, \"a\": 2}\n",
            "source:1: column 12: the key \"a\" occurs twice",
        ),
        (
            "{\"a\": 99999999999999999999}\n",
            "source:1: a is the integer 99999999999999999999",
        ),
        ("[{\"a\": 1}, 7]", "source:2: the row is a number"),
        ("[{\"a\": 1}", "source:1: cannot read: the array has no end"),
        ("", "source: "),
        ("[]", "source: "),
    ] {
        let source = write_file(&folder, "source", text);
        for name in ["out.jsonl", "out.parquet"] {
            let format = FileFormat::from_path(Path::new(name)).expect("a form");
            let error = convert(
                std::slice::from_ref(&source),
                format,
                Vec::new(),
                &mut || {},
            );
            let error = error.expect_err(text).to_string();
            assert!(error.contains(message), "{text:?} as {name}: {error}");
        }
    }
}

#[test]
fn damaged_files_give_errors_or_rows_but_never_a_panic() {
    let folder = TempDir::new().expect("a folder");
    let rows = hard_rows(40);
    let source = write_file(&folder, "source.jsonl", lines(&rows));
    for name in FILE_NAMES {
        let (path, _) = convert_file(&source, name);
        let bytes = fs::read(&path).expect("read");
        let mut n_errors = 0;
        let step = (bytes.len() / 150).max(1);
        for at in (0..bytes.len()).step_by(step) {
            for damage in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= damage;
                n_errors += usize::from(read(&write_file(&folder, "damaged", damaged)).is_err());
            }
            let cut = read(&write_file(&folder, "damaged", &bytes[..at]));
            if let Ok(cut) = cut {
                assert!(cut.len() <= rows.len(), "{name}, cut at {at}");
            }
        }
        assert!(n_errors > 0, "{name}: the damage was not detected");
    }
}

#[test]
fn non_finite_numbers_and_invalid_json_strings_are_refused() {
    use std::sync::Arc;

    use arrow_array::{Array, Float64Array, RecordBatch, StringArray};
    use arrow_schema::extension::Json;
    use arrow_schema::{DataType, Field, Schema};

    let folder = TempDir::new().expect("a folder");
    let write = |field: Field, array: Arc<dyn Array>| {
        let schema = Arc::new(Schema::new(vec![field]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![array]).expect("a batch");
        let mut bytes = Vec::new();
        let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &schema);
        let writer = writer.as_mut().expect("a writer");
        writer.write(&batch).expect("written");
        writer.finish().expect("written");
        write_file(&folder, "rows", bytes)
    };
    let floats = Arc::new(Float64Array::from(vec![1.0, f64::NAN]));
    let path = write(Field::new("x", DataType::Float64, true), floats);
    let error = read(&path).expect_err("not finite");
    assert!(
        error.contains("row 2 of the column \"x\" contains a number that is not finite"),
        "{error}"
    );

    let texts = Arc::new(StringArray::from(vec![
        Some("[1, 2]"),
        None,
        Some("1, \"y\": 2"),
    ]));
    let json = Field::new("x", DataType::Utf8, true).with_extension_type(Json::default());
    let error = read(&write(json, texts.clone())).expect_err("no JSON");
    assert!(
        error.contains("\"x\" contains JSON strings, but row 3 is not JSON"),
        "{error}"
    );
    let plain = Field::new("x", DataType::Utf8, true);
    let expected = vec![
        json!({"x": "[1, 2]"}),
        json!({}),
        json!({"x": "1, \"y\": 2"}),
    ];
    assert_eq!(read(&write(plain, texts)), Ok(expected));
}

fn select_rows(path: &Path, selection: &Selection) -> Vec<String> {
    let mut records = select(open(path).expect("opens"), selection);
    let mut rows = Vec::new();
    while let Some(record) = records.next_record().expect("a record") {
        rows.push(String::from_utf8(record).expect("UTF-8").trim().to_owned());
    }
    assert!(records.has_any());
    rows
}

fn side(share: f64, group_by: Option<&str>, side: Side) -> Selection {
    let split = Split {
        share,
        seed: 17,
        group_by: group_by.map(str::to_owned),
    };
    Selection {
        side: Some((split, side)),
        ..Selection::default()
    }
}

/// Invariant: Held-out rows are never trained on.
#[test]
fn a_rows_side_of_a_split_is_independent_of_other_rows() {
    let folder = TempDir::new().expect("a folder");
    let rows: Vec<Value> = (0..2_000)
        .map(|i| json!({"i": i, "group": i % 100}))
        .collect();
    let all = write_file(&folder, "all.jsonl", lines(&rows));
    let training = side(0.1, None, Side::Training);
    let validation = side(0.1, None, Side::Validation);
    let (training_rows, validation_rows) =
        (select_rows(&all, &training), select_rows(&all, &validation));
    assert_eq!(training_rows.len() + validation_rows.len(), rows.len());
    assert!(
        (150..250).contains(&validation_rows.len()),
        "{}",
        validation_rows.len()
    );
    let record = training.counts.record();
    assert_eq!(
        (record.n_training, record.n_validation),
        (training_rows.len(), validation_rows.len())
    );
    assert_eq!(record, validation.counts.record());

    let mut moved = rows.clone();
    moved.reverse();
    moved.truncate(1_500);
    let moved = write_file(&folder, "moved.jsonl", lines(&moved));
    let found = select_rows(&moved, &side(0.1, None, Side::Validation));
    assert!(found.iter().all(|row| validation_rows.contains(row)));

    let group = |row: &String| serde_json::from_str::<Value>(row).expect("JSON")["group"].clone();
    let validation_rows = select_rows(&all, &side(0.2, Some("group"), Side::Validation));
    let training_rows = select_rows(&all, &side(0.2, Some("group"), Side::Training));
    assert!(!validation_rows.is_empty());
    let validation_rows: Vec<Value> = validation_rows.iter().map(group).collect();
    assert!(
        training_rows
            .iter()
            .map(group)
            .all(|group| !validation_rows.contains(&group))
    );

    let mut records = select(
        open(&all).expect("opens"),
        &side(0.2, Some("grup"), Side::Training),
    );
    let error = records
        .next_record()
        .expect_err("no such field")
        .to_string();
    assert!(
        error.contains("field \"grup\" is missing; data.validation_group_by"),
        "{error}"
    );

    let first = Selection {
        max_samples: Some(7),
        ..Selection::default()
    };
    assert_eq!(select_rows(&all, &first).len(), 7);
}

#[test]
fn a_row_beyond_the_value_budget_is_refused_before_its_group_is_read() {
    let folder = TempDir::new().expect("a folder");
    let row = format!(
        "{{\"group\":1,\"x\":[{}0]}}\n",
        "0,".repeat(JSON_VALUES.max_values())
    );
    let path = write_file(&folder, "wide.jsonl", row);
    let selection = side(0.2, Some("group"), Side::Training);
    let mut records = select(open(&path).expect("opens"), &selection);
    let error = records.next_record().expect_err("too many values");
    let message = error.to_string();
    assert!(
        message.contains("JSON_VALUES in docs/limits.md"),
        "{message}"
    );
}

#[test]
fn zstd_is_recognised_after_skippable_frames() {
    let rows = b"{\"a\": 1}\n{\"a\": 2}\n";
    let data = zstd::encode_all(&rows[..], 0).expect("compressed");
    let folder = TempDir::new().expect("a folder");
    for (kind, content) in [(0x50, &b""[..]), (0x5f, b"seek table")] {
        let mut bytes = vec![kind, 0x2a, 0x4d, 0x18];
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend(content);
        bytes.extend(&data);
        let path = write_file(&folder, &format!("rows-{kind}"), bytes);
        assert_eq!(read(&path), Ok(vec![json!({"a": 1}), json!({"a": 2})]));
    }
    // Neither a capital P nor an underscore begins a zstd frame by itself.
    let path = write_file(&folder, "text", b"P*no");
    assert!(read(&path).is_err());
}

#[test]
fn a_file_of_empty_gzip_members_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let encoder = || flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let bytes = encoder().finish().expect("compressed").repeat(50_000);
    let path = write_file(&folder, "empty.gz", bytes);
    let Err(error) = open(&path) else {
        panic!("it is read");
    };
    let error = error.to_string();
    assert!(error.contains("GZIP_MEMBERS in docs/limits.md"), "{error}");
}

#[test]
fn a_compression_bomb_is_read_with_bounded_memory() {
    // The file compresses one valid row and an unterminated string to a thousandth of their size.
    let folder = TempDir::new().expect("a folder");
    let mut encoder = zstd::Encoder::new(Vec::new(), 0).expect("an encoder");
    encoder.write_all(b"[{\"a\": 1}, \"").expect("memory");
    let mut endless = std::io::repeat(b'x').take(300 << 20);
    std::io::copy(&mut endless, &mut encoder).expect("memory");
    let path = write_file(&folder, "bomb.json.zst", encoder.finish().expect("memory"));
    let mut rows = open(&path).expect("opens");
    assert!(rows.next_record().expect("a row").is_some());
    let error = rows.next_record().expect_err("a bomb").to_string();
    assert!(error.contains("EXPANSION in docs/limits.md"), "{error}");
    assert!(rows.next_record().expect("the end").is_none());
}
