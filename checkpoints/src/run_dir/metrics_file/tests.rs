//! Tests the metrics files of resumed and damaged runs.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;

fn metrics(lines: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.jsonl");
    fs::write(&path, lines).unwrap();
    (dir, path)
}

#[test]
fn a_resumed_run_writes_the_same_metrics_as_an_uninterrupted_one() {
    let lines = |from: u64, to: u64| (from..=to).map(|step| json!({"step": step, "loss": 0.5}));
    let (_dir, whole) = metrics("");
    let mut file = MetricsFile::open(&whole).unwrap();
    lines(1, 10).for_each(|line| file.append(&line).unwrap());
    let (_dir, resumed) = metrics("");
    let mut file = MetricsFile::open(&resumed).unwrap();
    lines(1, 8).for_each(|line| file.append(&line).unwrap());
    drop(file);
    // The run was killed while it wrote the line of step 9, four steps after its last checkpoint.
    let mut torn = fs::read(&resumed).unwrap();
    torn.extend(br#"{"step":9,"lo"#);
    fs::write(&resumed, torn).unwrap();
    let (mut file, remark) = MetricsFile::resume(&resumed, 5, None, &|_| true).unwrap();
    assert_eq!(remark, None);
    lines(6, 10).for_each(|line| file.append(&line).unwrap());
    file.sync().unwrap();
    assert_eq!(fs::read(&resumed).unwrap(), fs::read(&whole).unwrap());
}

#[test]
fn lines_without_a_step_belong_to_the_step_before_them() {
    let (_dir, path) =
        metrics("{\"start\":1}\n{\"step\":1}\n{\"note\":1}\n{\"step\":2}\n{\"note\":2}\n");
    MetricsFile::resume(&path, 1, None, &|_| true).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"start\":1}\n{\"step\":1}\n{\"note\":1}\n"
    );
}

#[test]
fn a_partial_last_line_is_ignored_and_other_invalid_lines_are_errors() {
    let (_dir, path) = metrics("{\"step\":1}\n{\"st");
    assert_eq!(MetricsFile::read(&path).unwrap(), [json!({"step": 1})]);
    let (_dir, path) = metrics("{\"step\":1}\n{\"st\n{\"step\":3}\n");
    let error = MetricsFile::read(&path).unwrap_err().to_string();
    assert!(error.contains("metrics.jsonl:2:"), "{error}");
    let (_, remark) = MetricsFile::resume(&path, 9, None, &|_| true).unwrap();
    let remark = remark.expect("a remark on the broken line");
    assert!(remark.contains("1 of its lines"), "{remark}");
    let lines = fs::read_to_string(&path).unwrap();
    assert_eq!(lines, "{\"step\":1}\n{\"step\":3}\n");
    let aside = path.with_file_name("aside-metrics.jsonl");
    assert!(fs::read_to_string(aside).unwrap().contains("{\"st\n"));
    let (_dir, path) = metrics("[]\n");
    assert!(
        MetricsFile::read(&path)
            .unwrap_err()
            .to_string()
            .contains("must be a JSON object")
    );
    assert!(MetricsFile::open(&path).unwrap().append(&json!(1)).is_err());
}

#[test]
fn a_marked_file_is_truncated_exactly_and_changes_are_reported() {
    let (_dir, path) = metrics("");
    let mut file = MetricsFile::open(&path).unwrap();
    file.append(&json!({"step": 1, "loss": 0.5})).unwrap();
    file.append(&json!({"step": 2, "loss": 0.4})).unwrap();
    let mark = file.mark();
    let whole = fs::read(&path).unwrap();
    assert_eq!(mark.bytes, whole.len() as u64);
    // The evaluation is at the same step, but no checkpoint with it was saved.
    file.append(&json!({"step": 2, "eval/loss": 0.4})).unwrap();
    drop(file);
    let keep = |line: &Value| line.get("eval/loss").is_none();
    let (file, remark) = MetricsFile::resume(&path, 2, Some(&mark), &keep).unwrap();
    assert_eq!((file.mark(), remark), (mark.clone(), None));
    assert_eq!(fs::read(&path).unwrap(), whole);

    let flipped = String::from_utf8(whole.clone())
        .unwrap()
        .replace("0.5", "0.7");
    let prefix = &whole[..30];
    let evaluated = [&whole[26..], b"{\"step\":2,\"eval/loss\":0.4}\n"].concat();
    for damaged in [
        Some(flipped.as_bytes()),
        Some(prefix),
        Some(b""),
        Some(&evaluated),
        None,
    ] {
        match damaged {
            Some(damaged) => fs::write(&path, damaged).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let (mut file, remark) = MetricsFile::resume(&path, 2, Some(&mark), &keep).unwrap();
        let remark = remark.expect("a remark");
        assert!(remark.contains("up to step 2 differ from"), "{remark}");
        // Later marks include the existing lines.
        file.append(&json!({"step": 3})).unwrap();
        let later_mark = file.mark();
        drop(file);
        let lines = MetricsFile::read(&path).unwrap();
        assert_eq!(lines.last(), Some(&json!({"step": 3})));
        assert!(lines.iter().all(keep), "{lines:?}");
        let (_, remark) = MetricsFile::resume(&path, 3, Some(&later_mark), &keep).unwrap();
        assert_eq!(remark, None);
    }
}

#[test]
fn a_removed_or_replaced_metrics_file_is_written_again_and_a_truncated_one_is_reported() {
    let (dir, path) = metrics("");
    let line = |step: u64| json!({"step": step});
    let steps = || -> Vec<Value> { MetricsFile::read(&path).unwrap() };
    let mut file = MetricsFile::open(&path).unwrap();
    file.append(&line(1)).unwrap();
    file.sync().unwrap();
    assert!(file.take_remarks().is_empty());
    let remark = |file: &mut MetricsFile, expected: &str| {
        file.sync().unwrap();
        let remarks = file.take_remarks();
        let [remark] = remarks.as_slice() else {
            panic!("{remarks:?}")
        };
        assert!(
            remark.contains(expected) && remark.contains("metrics.jsonl: "),
            "{remark}"
        );
        file.sync().unwrap();
        assert!(file.take_remarks().is_empty());
    };

    fs::remove_file(&path).unwrap();
    file.append(&line(2)).unwrap();
    remark(&mut file, "was removed during the run");
    assert_eq!(steps(), [line(1), line(2)]);

    let other = dir.path().join("other");
    fs::write(&other, "of an editor").unwrap();
    fs::rename(&other, &path).unwrap();
    file.append(&line(3)).unwrap();
    remark(&mut file, "is now aside-metrics.jsonl");
    assert_eq!(steps(), [line(1), line(2), line(3)]);
    let aside = dir.path().join("aside-metrics.jsonl");
    assert_eq!(fs::read_to_string(aside).unwrap(), "of an editor");

    // Truncate in the middle of the second line.
    fs::write(&path, "{\"step\":1}\n{\"st").unwrap();
    file.append(&line(4)).unwrap();
    remark(&mut file, "from 33 to 15 bytes");
    assert_eq!(steps(), [line(1), line(4)]);
    let mark = file.mark();
    drop(file);
    let (_, remark) = MetricsFile::resume(&path, 4, Some(&mark), &|_| true).unwrap();
    assert_eq!(remark, None);
}
