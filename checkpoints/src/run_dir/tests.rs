//! Runs saved, resumed, rotated, and killed at every moment.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::atomic::write_file;

fn run() -> (TempDir, RunDir) {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create_or_open(&dir.path().join("runs/a")).unwrap();
    (dir, run)
}

fn save(run: &RunDir, step: u64) -> Checkpoint {
    let content = step.to_string().repeat(100);
    let saved = run.save_checkpoint(step, |staging| {
        fs::create_dir(staging.join("optimizer"))
            .map_err(CheckpointError::io("create", staging))?;
        write_file(&staging.join("adapter.safetensors"), content.as_bytes())?;
        write_file(&staging.join("optimizer/state"), b"moments")
    });
    saved.unwrap()
}

fn selected(metric: &str, step: u64, value: f64) -> Selected<'_> {
    Selected {
        step,
        metric,
        value,
        chosen_at: None,
    }
}

fn steps(run: &RunDir) -> Vec<u64> {
    run.list()
        .unwrap()
        .iter()
        .map(|checkpoint| checkpoint.step)
        .collect()
}

fn names(run: &RunDir) -> Vec<String> {
    run.entries().unwrap()
}

#[test]
fn a_saved_checkpoint_is_found_and_fits_its_manifest() {
    let (_dir, run) = run();
    assert!(run.latest_valid().unwrap().checkpoint.is_none());
    save(&run, 50);
    let saved = save(&run, 100);
    assert_eq!(saved.path, run.path().join("checkpoint-000100"));
    saved.verify().unwrap();
    let latest = run.latest_valid().unwrap();
    assert_eq!(latest.checkpoint, Some(saved));
    assert!(latest.rejected.is_empty());
    assert_eq!(
        run.latest().unwrap().unwrap().checkpoint,
        "checkpoint-000100"
    );
    assert_eq!(
        names(&run),
        [".lock", "LATEST", "checkpoint-000050", "checkpoint-000100"]
    );
    let manifest: Value = serde_json::from_slice(
        &fs::read(run.path().join("checkpoint-000050/manifest.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(manifest["files"]["optimizer/state"]["size"], 7);
}

#[test]
fn steps_beyond_six_digits_sort_as_numbers() {
    let (_dir, run) = run();
    for step in [1_000_000, 999_999, 5] {
        save(&run, step);
    }
    fs::create_dir(run.path().join("checkpoint-7")).unwrap();
    assert_eq!(steps(&run), [5, 999_999, 1_000_000]);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_with_the_reason() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("No such file", |dir| {
            fs::remove_file(dir.join("manifest.json")).unwrap()
        }),
        ("EOF", |dir| {
            fs::write(dir.join("manifest.json"), "{").unwrap()
        }),
        ("SHA-256", |dir| {
            fs::write(dir.join("optimizer/state"), "MOMENTS").unwrap()
        }),
        ("6 bytes instead of 7", |dir| {
            fs::write(dir.join("optimizer/state"), "moment").unwrap()
        }),
        ("adapter.safetensors", |dir| {
            fs::remove_file(dir.join("adapter.safetensors")).unwrap()
        }),
    ];
    for (reason, damage) in damages {
        let (_dir, run) = run();
        save(&run, 50);
        damage(&save(&run, 100).path);
        let latest = run.latest_valid().unwrap();
        assert_eq!(latest.checkpoint.unwrap().step, 50);
        let [(rejected, error)] = latest.rejected.as_slice() else {
            panic!("not one rejected")
        };
        assert_eq!(rejected.step, 100);
        assert!(
            error.to_string().contains(reason),
            "no \"{reason}\" in: {error}"
        );
    }
}

#[test]
fn files_added_later_do_not_damage_a_checkpoint() {
    let (_dir, run) = run();
    let saved = save(&run, 1);
    fs::write(saved.path.join("eval.json"), "{}").unwrap();
    saved.verify().unwrap();
}

#[test]
fn a_failed_save_leaves_no_trace_and_earlier_checkpoints_intact() {
    let (_dir, run) = run();
    save(&run, 50);
    let before = names(&run);
    let error = run
        .save_checkpoint(100, |staging| {
            write_file(&staging.join("half"), b"half")?;
            Err(CheckpointError::field(staging, "value", "went wrong"))
        })
        .unwrap_err();
    assert!(error.to_string().contains("went wrong"), "{error}");
    assert_eq!(names(&run), before);
    assert_eq!(run.latest_valid().unwrap().checkpoint.unwrap().step, 50);
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced() {
    let (_dir, run) = run();
    fs::write(save(&run, 100).path.join("optimizer/state"), "damaged").unwrap();
    save(&run, 100).verify().unwrap();
    assert_eq!(names(&run), [".lock", "LATEST", "checkpoint-000100"]);
}

#[test]
fn opening_removes_what_a_killed_save_left_and_nothing_else() {
    let (_dir, run) = run();
    save(&run, 50);
    let root = run.path().to_owned();
    drop(run);
    fs::create_dir(root.join(".checkpoint-000100.tmp-4711")).unwrap();
    fs::write(
        root.join(".checkpoint-000100.tmp-4711/adapter.safetensors"),
        "half",
    )
    .unwrap();
    fs::write(root.join(".LATEST.tmp-4711"), "{").unwrap();
    fs::write(root.join(".notes.tmp-1"), "the user's").unwrap();
    fs::write(root.join("config.resolved.toml"), "").unwrap();
    let run = RunDir::create_or_open(&root).unwrap();
    let expected = [
        ".lock",
        ".notes.tmp-1",
        "LATEST",
        "checkpoint-000050",
        "config.resolved.toml",
    ];
    assert_eq!(names(&run), expected);
}

#[test]
fn a_checkpoint_whose_replacement_was_interrupted_comes_back() {
    let (_dir, run) = run();
    let saved = save(&run, 100);
    let root = run.path().to_owned();
    drop(run);
    fs::rename(&saved.path, root.join(".checkpoint-000100.old-4711")).unwrap();
    let run = RunDir::create_or_open(&root).unwrap();
    assert_eq!(run.latest_valid().unwrap().checkpoint, Some(saved.clone()));
    drop(run);
    fs::create_dir(root.join(".checkpoint-000100.old-4712")).unwrap();
    let run = RunDir::create_or_open(&root).unwrap();
    assert_eq!(names(&run), [".lock", "LATEST", "checkpoint-000100"]);
    saved.verify().unwrap();
}

#[test]
fn a_run_directory_has_one_writer_and_any_number_of_readers() {
    let (_dir, run) = run();
    save(&run, 1);
    let error = RunDir::create_or_open(run.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::RunInUse { .. }), "{error}");
    let reader = RunDir::open_to_read(run.path()).unwrap();
    assert_eq!(steps(&reader), [1]);
    let root = run.path().to_owned();
    drop(run);
    RunDir::create_or_open(&root).unwrap();
    assert!(RunDir::open_to_read(&root.join("absent")).is_err());
}

#[test]
fn rotation_keeps_the_newest_and_never_removes_the_best() {
    let (_dir, run) = run();
    for step in [10, 20, 30, 40, 50] {
        save(&run, step);
    }
    run.set_best(selected("slot_score", 20, 0.75)).unwrap();
    assert_eq!(run.rotate(5).unwrap(), [0_u64; 0]);
    assert_eq!(run.rotate(3).unwrap(), [10, 30]);
    assert_eq!(steps(&run), [20, 40, 50]);
    assert_eq!(run.rotate(1).unwrap(), [40]);
    assert_eq!(steps(&run), [20, 50]);
    assert_eq!(run.rotate(0).unwrap(), [0_u64; 0]);
    assert_eq!(
        names(&run),
        [
            ".lock",
            "BEST",
            "LATEST",
            "checkpoint-000020",
            "checkpoint-000050"
        ]
    );
}

#[test]
fn the_best_pointer_tells_metric_step_and_value() {
    let (_dir, run) = run();
    assert_eq!(run.best().unwrap(), None);
    save(&run, 40);
    run.set_best(selected("slot_score", 40, 0.75)).unwrap();
    let text: Value = serde_json::from_slice(&fs::read(run.path().join("BEST")).unwrap()).unwrap();
    let expected = json!({"checkpoint": "checkpoint-000040", "step": 40,
        "metric": "slot_score", "value": 0.75});
    assert_eq!(text, expected);
    assert_eq!(run.best().unwrap().unwrap().value, Some(0.75));
    assert!(
        run.set_best(selected("slot_score", 50, 0.8))
            .unwrap_err()
            .to_string()
            .contains("step 50")
    );
    assert!(run.set_best(selected("slot_score", 40, f64::NAN)).is_err());
    fs::write(run.path().join("BEST"), "{").unwrap();
    let damaged = run.rotate(1).unwrap_err().to_string();
    assert!(
        damaged.contains("BEST: EOF") && damaged.contains("tooltune train"),
        "{damaged}"
    );
}

#[test]
fn checkpoints_behind_the_resumed_step_are_set_aside_the_newest_first() {
    let (_dir, run) = run();
    for step in [10, 20, 30, 40] {
        save(&run, step);
    }
    run.set_best(selected("loss", 40, 1.0)).unwrap();
    // A file in the way of the last one to go: what is left is one course without a gap.
    let in_the_way = run.path().join("aside-checkpoint-000020");
    fs::write(&in_the_way, "mine").unwrap();
    fs::create_dir_all(run.path().join("aside-checkpoint-000020-2")).unwrap();
    let moved = run.set_aside_after(20).unwrap();
    let asides = [30, 40].map(|step| run.path().join(format!("aside-checkpoint-{step:06}")));
    assert_eq!(moved, asides);
    assert_eq!(steps(&run), [10, 20]);
    assert_eq!(run.best().unwrap(), None);
    // The same course again is not kept twice, and another one beside it.
    save(&run, 30);
    assert_eq!(run.set_aside_after(20).unwrap(), asides[..1]);
    fs::write(asides[0].join("manifest.json"), "{}").unwrap();
    save(&run, 30);
    let second = run.path().join("aside-checkpoint-000030-2");
    assert_eq!(run.set_aside_after(20).unwrap(), [second]);
    let third = run.path().join("aside-checkpoint-000020-3");
    assert_eq!(run.set_aside_after(10).unwrap(), [third]);
    assert_eq!(fs::read(&in_the_way).unwrap(), b"mine");
}

#[test]
fn a_damaged_best_can_be_removed_and_latest_is_fixed() {
    let (_dir, run) = run();
    for step in [10, 20] {
        save(&run, step);
    }
    for damaged in ["{", ""] {
        fs::write(run.path().join("BEST"), damaged).unwrap();
        fs::write(run.path().join("LATEST"), damaged).unwrap();
        let error = run.best().unwrap_err();
        let is_damaged = matches!(error, CheckpointError::DamagedPointer { .. });
        assert!(is_damaged, "{error}");
        run.set_aside_after(20).unwrap();
        run.remove_best().unwrap();
        run.fix_latest().unwrap();
        assert_eq!(run.best().unwrap(), None);
        assert_eq!(run.latest().unwrap().unwrap().step, 20);
    }
    // A process that died between a checkpoint and its pointer.
    run.set_latest(10).unwrap();
    run.fix_latest().unwrap();
    assert_eq!(run.latest().unwrap().unwrap().step, 20);
}

const FULL_DISK_ROOT: &str = "TOOLTUNE_TEST_FULL_DISK_ROOT";
const FULL_DISK_CHILD: &str =
    "run_dir::tests::child_saves_two_checkpoints_of_which_one_does_not_fit";

/// Runs by itself in a process whose files may not exceed 64 kB; without that it has no work.
#[test]
fn child_saves_two_checkpoints_of_which_one_does_not_fit() {
    let Ok(root) = std::env::var(FULL_DISK_ROOT) else {
        return;
    };
    let run = RunDir::create_or_open(Path::new(&root)).unwrap();
    save(&run, 50);
    let too_long = vec![7; 1 << 20];
    let error = run
        .save_checkpoint(100, |staging| {
            write_file(&staging.join("optimizer"), &too_long)
        })
        .unwrap_err();
    let CheckpointError::Write { path, bytes, .. } = &error else {
        panic!("{error}")
    };
    assert!(path.ends_with(
        ".checkpoint-000100.tmp-".to_owned() + &std::process::id().to_string() + "/optimizer"
    ));
    assert_eq!(*bytes, 1 << 20);
    assert!(error.to_string().contains("no larger file"), "{error}");
    assert_eq!(names(&run), [".lock", "LATEST", "checkpoint-000050"]);
}

/// A limit on the size of files stands in for a full disk: both cut a write short.
#[cfg(unix)]
#[test]
fn a_save_that_does_not_fit_keeps_the_earlier_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    let status = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 128; exec \"$0\" --exact \"$1\" --nocapture",
        ])
        .arg(std::env::current_exe().unwrap())
        .arg(FULL_DISK_CHILD)
        .env(FULL_DISK_ROOT, &root)
        .output()
        .unwrap();
    assert!(
        status.status.success(),
        "{}",
        String::from_utf8_lossy(&status.stderr)
    );
    let run = RunDir::create_or_open(&root).unwrap();
    assert_eq!(run.latest_valid().unwrap().checkpoint.unwrap().step, 50);
}

const KILLED_ROOT: &str = "TOOLTUNE_TEST_KILLED_ROOT";
const KILLED_CHILD: &str = "run_dir::tests::child_saves_until_it_is_killed";

/// Runs by itself in a process that is killed; without that it has no work.
#[test]
fn child_saves_until_it_is_killed() {
    let Ok(root) = std::env::var(KILLED_ROOT) else {
        return;
    };
    let run = RunDir::create_or_open(Path::new(&root)).unwrap();
    let begin = run
        .list()
        .unwrap()
        .last()
        .map_or(0, |checkpoint| checkpoint.step);
    for step in begin + 1.. {
        save(&run, step);
        save(&run, step);
        run.set_best(selected("loss", step, 0.5)).unwrap();
        run.rotate(2).unwrap();
    }
}

#[test]
fn killing_at_any_moment_leaves_a_run_that_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    let mut last_step = 0;
    for kill_idx in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", KILLED_CHILD])
            .env(KILLED_ROOT, &root)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Moments spread over several saves; the first child gets time to make one.
        let patience = if kill_idx == 0 {
            500
        } else {
            40 + 7 * kill_idx
        };
        std::thread::sleep(std::time::Duration::from_millis(patience));
        child.kill().unwrap();
        child.wait().unwrap();
        let run = RunDir::create_or_open(&root).unwrap();
        let latest = run.latest_valid().unwrap();
        assert!(latest.rejected.is_empty(), "{:?}", latest.rejected);
        let step = latest.checkpoint.unwrap().step;
        assert!(step >= last_step, "step {step} after {last_step}");
        assert!(names(&run).iter().all(|name| !name.contains(STAGING_MARK)));
        last_step = step;
    }
}

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
    // Killed at step 9, in the middle of its line, five steps after the last checkpoint.
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
fn lines_without_a_step_stay_with_those_before_them() {
    let (_dir, path) =
        metrics("{\"start\":1}\n{\"step\":1}\n{\"note\":1}\n{\"step\":2}\n{\"note\":2}\n");
    MetricsFile::resume(&path, 1, None, &|_| true).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"start\":1}\n{\"step\":1}\n{\"note\":1}\n"
    );
}

#[test]
fn a_torn_last_line_is_passed_over_and_a_broken_one_elsewhere_is_named() {
    let (_dir, path) = metrics("{\"step\":1}\n{\"st");
    assert_eq!(MetricsFile::read(&path).unwrap(), [json!({"step": 1})]);
    let (_dir, path) = metrics("{\"step\":1}\n{\"st\n{\"step\":3}\n");
    let error = MetricsFile::read(&path).unwrap_err().to_string();
    assert!(error.contains("metrics.jsonl:2:"), "{error}");
    let (_, remark) = MetricsFile::resume(&path, 9, None, &|_| true).unwrap();
    let remark = remark.expect("a word on the broken line");
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
fn a_folder_that_is_taken_away_is_said_to_be_gone() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    let run = RunDir::create_or_open(&root).unwrap();
    run.check_still_there().unwrap();
    fs::remove_dir_all(&root).unwrap();
    for _ in 0..2 {
        for error in [
            run.check_still_there().unwrap_err(),
            run.save_checkpoint(1, |_| Ok(())).unwrap_err(),
        ] {
            let is_gone = matches!(error, CheckpointError::RunDirGone { .. });
            assert!(
                is_gone && error.to_string().contains("removed or replaced"),
                "{error}"
            );
        }
        // Another folder in its place is not the run's.
        drop(RunDir::create_or_open(&root).unwrap());
    }
    let to_read = RunDir::open_to_read(&root).unwrap();
    to_read.check_still_there().unwrap();
}

#[test]
fn a_marked_file_is_cut_to_the_byte_and_a_changed_one_is_told() {
    let (_dir, path) = metrics("");
    let mut file = MetricsFile::open(&path).unwrap();
    file.append(&json!({"step": 1, "loss": 0.5})).unwrap();
    file.append(&json!({"step": 2, "loss": 0.4})).unwrap();
    let mark = file.mark();
    let whole = fs::read(&path).unwrap();
    assert_eq!(mark.bytes, whole.len() as u64);
    // An evaluation of the same step, whose checkpoint was never saved.
    file.append(&json!({"step": 2, "eval/loss": 0.4})).unwrap();
    drop(file);
    let keep = |line: &Value| line.get("eval/loss").is_none();
    let (file, remark) = MetricsFile::resume(&path, 2, Some(&mark), &keep).unwrap();
    assert_eq!((file.mark(), remark), (mark.clone(), None));
    assert_eq!(fs::read(&path).unwrap(), whole);

    let flipped = String::from_utf8(whole.clone())
        .unwrap()
        .replace("0.5", "0.7");
    let half = &whole[..30];
    let evaluated = [&whole[26..], b"{\"step\":2,\"eval/loss\":0.4}\n"].concat();
    for damaged in [
        Some(flipped.as_bytes()),
        Some(half),
        Some(b""),
        Some(&evaluated),
        None,
    ] {
        match damaged {
            Some(damaged) => fs::write(&path, damaged).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let (mut file, remark) = MetricsFile::resume(&path, 2, Some(&mark), &keep).unwrap();
        let remark = remark.expect("a word on it");
        assert!(remark.contains("up to step 2 are not those"), "{remark}");
        // What comes now is marked with what is there.
        file.append(&json!({"step": 3})).unwrap();
        let after = file.mark();
        drop(file);
        let lines = MetricsFile::read(&path).unwrap();
        assert_eq!(lines.last(), Some(&json!({"step": 3})));
        assert!(lines.iter().all(keep), "{lines:?}");
        let (_, remark) = MetricsFile::resume(&path, 3, Some(&after), &keep).unwrap();
        assert_eq!(remark, None);
    }
}
