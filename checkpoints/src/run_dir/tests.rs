//! Tests run directories that are saved, resumed, rotated, and killed at any time.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tooltune_disk::atomic::write_file;

use super::*;

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
        Ok(write_file(&staging.join("optimizer/state"), b"moments")?)
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
fn a_saved_checkpoint_is_found_and_matches_its_manifest() {
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
fn a_damaged_checkpoint_is_rejected_with_the_reason() {
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
fn opening_removes_only_leftovers_of_killed_saves() {
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
fn a_checkpoint_is_restored_if_its_replacement_was_interrupted() {
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

/// Invariant: A run directory has one writer.
#[test]
fn a_run_directory_has_one_writer_and_many_readers() {
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

/// Invariant: Rotation never deletes the best checkpoint.
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
fn the_best_pointer_contains_metric_step_and_value() {
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
fn checkpoints_after_the_resumed_step_are_set_aside_newest_first() {
    let (_dir, run) = run();
    for step in [10, 20, 30, 40] {
        save(&run, step);
    }
    run.set_best(selected("loss", 40, 1.0)).unwrap();
    // A file blocks the last rename. The remaining checkpoints still belong together.
    let in_the_way = run.path().join("aside-checkpoint-000020");
    fs::write(&in_the_way, "mine").unwrap();
    fs::create_dir_all(run.path().join("aside-checkpoint-000020-2")).unwrap();
    let moved = run.set_aside_after(20).unwrap();
    let asides = [30, 40].map(|step| run.path().join(format!("aside-checkpoint-{step:06}")));
    assert_eq!(moved, asides);
    assert_eq!(steps(&run), [10, 20]);
    assert_eq!(run.best().unwrap(), None);
    // An identical copy is not kept twice; a different one is kept in addition.
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
    // The process died between saving a checkpoint and updating its pointer.
    run.set_latest(10).unwrap();
    run.fix_latest().unwrap();
    assert_eq!(run.latest().unwrap().unwrap().step, 20);
}

const FULL_DISK_ROOT: &str = "TOOLTUNE_TEST_FULL_DISK_ROOT";
const FULL_DISK_CHILD: &str =
    "run_dir::tests::child_saves_two_checkpoints_of_which_one_does_not_fit";

/// Runs only in a child process with a file size limit of 64 kB; otherwise returns immediately.
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
            Ok(write_file(&staging.join("optimizer"), &too_long)?)
        })
        .unwrap_err();
    let CheckpointError::Disk(tooltune_disk::DiskError::Write { path, bytes, .. }) = &error else {
        panic!("{error}")
    };
    assert!(path.ends_with(
        ".checkpoint-000100.tmp-".to_owned() + &std::process::id().to_string() + "/optimizer"
    ));
    assert_eq!(*bytes, 1 << 20);
    assert!(
        error.to_string().contains("does not allow a larger file"),
        "{error}"
    );
    assert_eq!(names(&run), [".lock", "LATEST", "checkpoint-000050"]);
}

/// A file size limit simulates a full disk, because both cut a write short.
#[cfg(unix)]
/// Invariant: A checkpoint is complete or absent, whenever the process dies or the disk fills up.
#[test]
fn a_save_that_fills_the_disk_keeps_earlier_checkpoints() {
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

/// Runs only in a child process that is killed; otherwise returns immediately.
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

/// Invariant: A checkpoint is complete or absent, whenever the process dies or the disk fills up.
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
        // Kill at moments spread over several saves. The first child has enough time for one save.
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

#[test]
fn a_removed_run_folder_is_an_error() {
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
        // A different folder with the same name does not belong to the run.
        drop(RunDir::create_or_open(&root).unwrap());
    }
    let to_read = RunDir::open_to_read(&root).unwrap();
    to_read.check_still_there().unwrap();
}

#[test]
fn a_removed_lock_file_is_an_error_that_keeps_the_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create_or_open(dir.path()).unwrap();
    let lock = dir.path().join(LOCK_FILE);
    fs::remove_file(&lock).unwrap();
    for _ in 0..2 {
        let error = run.check_still_there().unwrap_err();
        assert!(matches!(error, CheckpointError::LockGone { .. }), "{error}");
        let expected = "the saved checkpoints are complete: run the same command again";
        assert!(error.to_string().contains(expected), "{error}");
        // A different file with the same name is not the lock.
        fs::write(&lock, "").unwrap();
    }
}

#[test]
fn a_best_pointer_to_a_missing_checkpoint_is_an_error_that_lists_the_existing_ones() {
    let (_dir, run) = run();
    assert!(run.best_checkpoint().unwrap().is_none());
    for step in [10, 20, 30] {
        save(&run, step);
    }
    run.set_best(selected("loss", 20, 0.5)).unwrap();
    let (best, pointer) = run.best_checkpoint().unwrap().unwrap();
    assert_eq!((best.step, pointer.step), (20, 20));
    fs::remove_dir_all(&best.path).unwrap();
    let error = run.best_checkpoint().unwrap_err().to_string();
    for part in [
        "BEST names checkpoint-000020, which does not exist",
        "steps 10, 30",
        "tooltune select",
        "--checkpoint last",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    for name in ["checkpoint-000030", "../other", ""] {
        let best = json!({"checkpoint": name, "step": 10});
        fs::write(run.path().join("BEST"), best.to_string()).unwrap();
        let error = run.best_checkpoint().unwrap_err().to_string();
        assert!(
            error.contains("is not the checkpoint of step 10"),
            "{error}"
        );
    }
}
