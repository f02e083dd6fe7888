//! Rows through every form of file and back, damaged files, and what a selection leaves.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_rows::text::RowRecords;

use super::*;

const FORMS: [&str; 8] = [
    "rows.jsonl",
    "rows.json",
    "rows.parquet",
    "rows.arrow",
    "rows.jsonl.gz",
    "rows.jsonl.zst",
    "rows.json.gz",
    "rows.json.zst",
];

fn written(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
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

fn converted(from: &Path, name: &str) -> (PathBuf, Conversion) {
    let path = from.with_file_name(name);
    let file = File::create(&path).expect("a file");
    let form = FileForm::of(&path).expect("a form");
    let done = convert(&[from.to_owned()], form, file).expect("converted");
    (path, done)
}

/// Rows with all that is hard for columns.
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

#[test]
fn rows_come_back_from_every_form_as_they_were() {
    let folder = TempDir::new().expect("a folder");
    let rows = hard_rows(700);
    let source = written(&folder, "source.jsonl", lines(&rows));
    for name in FORMS {
        let (path, done) = converted(&source, name);
        assert_eq!(done.n_rows, rows.len());
        let back = read(&path).expect(name);
        // Keys in their order, and numbers as they are spelled.
        assert_eq!(lines(&back), lines(&rows), "{name}");
        let (again, _) = converted(&path, "again.jsonl");
        assert_eq!(
            fs::read_to_string(&again).expect("text").lines().count(),
            rows.len()
        );
        let texts: &[&str] = match path.extension().and_then(|ending| ending.to_str()) {
            Some("parquet" | "arrow") => &["json_schema", "gold", "order"],
            _ => &[],
        };
        assert_eq!(done.json_texts, texts, "{name}");
        assert_eq!(done.losses, [""; 0], "{name}");
        assert_eq!(
            open(&path).expect("opens").place(),
            format!("{}:0", path.display())
        );
    }
}

#[test]
fn what_columns_cannot_hold_is_said() {
    let folder = TempDir::new().expect("a folder");
    let rows = [json!({"a": null, "b": null}), json!({"a": 1, "b": null})];
    let source = written(&folder, "source.jsonl", lines(&rows));
    let (path, done) = converted(&source, "rows.parquet");
    let [a, b] = done.losses.as_slice() else {
        panic!("{:?}", done.losses);
    };
    assert!(
        a.starts_with("the field \"a\" is null in 1 rows; columns"),
        "{a}"
    );
    assert!(b.starts_with("the field \"b\" is null in every row"), "{b}");
    assert_eq!(read(&path), Ok(vec![json!({}), json!({"a": 1})]));
    let (_, done) = converted(&source, "rows.json");
    assert_eq!(done.losses, [""; 0]);
}

#[test]
fn rows_that_are_none_are_refused_with_their_place() {
    let folder = TempDir::new().expect("a folder");
    for (text, said) in [
        (
            "{\"a\": 1}\n[1]\n",
            "source:2: the row is a list, but must be a JSON object",
        ),
        ("{\"a\": 1}\n{\"a\": }\n", "source:2: not valid JSON"),
        (
            "{\"a\": 1, \"a\": 2}\n",
            "source:1: column 12: the key \"a\" stands twice",
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
        let source = written(&folder, "source", text);
        for name in ["out.jsonl", "out.parquet"] {
            let form = FileForm::of(Path::new(name)).expect("a form");
            let error = convert(std::slice::from_ref(&source), form, Vec::new());
            let error = error.expect_err(text).to_string();
            assert!(error.contains(said), "{text:?} as {name}: {error}");
        }
    }
}

#[test]
fn damaged_files_are_errors_or_rows_and_never_a_panic() {
    let folder = TempDir::new().expect("a folder");
    let rows = hard_rows(40);
    let source = written(&folder, "source.jsonl", lines(&rows));
    for name in FORMS {
        let (path, _) = converted(&source, name);
        let whole = fs::read(&path).expect("read");
        let mut n_errors = 0;
        let step = (whole.len() / 150).max(1);
        for at in (0..whole.len()).step_by(step) {
            for damage in [0x01, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= damage;
                n_errors += usize::from(read(&written(&folder, "damaged", damaged)).is_err());
            }
            let cut = read(&written(&folder, "damaged", &whole[..at]));
            if let Ok(cut) = cut {
                assert!(cut.len() <= rows.len(), "{name}, cut at {at}");
            }
        }
        assert!(n_errors > 0, "{name}: no damage is seen");
    }
}

#[test]
fn numbers_that_json_does_not_have_and_texts_that_are_no_json_are_refused() {
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
        written(&folder, "rows", bytes)
    };
    let floats = Arc::new(Float64Array::from(vec![1.0, f64::NAN]));
    let path = write(Field::new("x", DataType::Float64, true), floats);
    let error = read(&path).expect_err("not finite");
    assert!(
        error.contains("the column \"x\" holds, in row 2, a number that is not finite"),
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
        error.contains("\"x\" holds JSON texts, and that of row 3 is none"),
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

fn selected(path: &Path, selection: &Selection) -> Vec<String> {
    let mut records = select(open(path).expect("opens"), selection);
    let mut found = Vec::new();
    while let Some(record) = records.next_record().expect("a record") {
        found.push(String::from_utf8(record).expect("UTF-8").trim().to_owned());
    }
    assert!(records.has_any());
    found
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

#[test]
fn a_row_is_on_one_side_of_a_split_whatever_stands_beside_it() {
    let folder = TempDir::new().expect("a folder");
    let rows: Vec<Value> = (0..2_000)
        .map(|i| json!({"i": i, "group": i % 100}))
        .collect();
    let all = written(&folder, "all.jsonl", lines(&rows));
    let training = side(0.1, None, Side::Training);
    let validation = side(0.1, None, Side::Validation);
    let (learned, kept) = (selected(&all, &training), selected(&all, &validation));
    assert_eq!(learned.len() + kept.len(), rows.len());
    assert!((150..250).contains(&kept.len()), "{}", kept.len());
    let record = training.counts.record();
    assert_eq!(
        (record.n_training, record.n_validation),
        (learned.len(), kept.len())
    );
    assert_eq!(record, validation.counts.record());

    let mut moved = rows.clone();
    moved.reverse();
    moved.truncate(1_500);
    let moved = written(&folder, "moved.jsonl", lines(&moved));
    let found = selected(&moved, &side(0.1, None, Side::Validation));
    assert!(found.iter().all(|row| kept.contains(row)));

    let group = |row: &String| serde_json::from_str::<Value>(row).expect("JSON")["group"].clone();
    let kept = selected(&all, &side(0.2, Some("group"), Side::Validation));
    let learned = selected(&all, &side(0.2, Some("group"), Side::Training));
    assert!(!kept.is_empty());
    let kept: Vec<Value> = kept.iter().map(group).collect();
    assert!(
        learned
            .iter()
            .map(group)
            .all(|group| !kept.contains(&group))
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
    assert_eq!(selected(&all, &first).len(), 7);
}

#[test]
fn memory_holds_some_rows_of_a_bomb_and_not_all() {
    // A thousandth of its size: one good row and a text without end.
    let folder = TempDir::new().expect("a folder");
    let mut encoder = zstd::Encoder::new(Vec::new(), 0).expect("an encoder");
    encoder.write_all(b"[{\"a\": 1}, \"").expect("memory");
    let mut endless = std::io::repeat(b'x').take(300 << 20);
    std::io::copy(&mut endless, &mut encoder).expect("memory");
    let path = written(&folder, "bomb.json.zst", encoder.finish().expect("memory"));
    let mut rows = open(&path).expect("opens");
    assert!(rows.next_record().expect("a row").is_some());
    let error = rows.next_record().expect_err("a bomb").to_string();
    assert!(error.contains("LINE_BYTES in docs/limits.md"), "{error}");
    assert!(rows.next_record().expect("the end").is_none());
}
