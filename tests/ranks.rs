//! Runs of several processes on the CPU: the run directory has the same bytes for any number of them,
//! whatever starts, stops or kills them.
//!
//! `TOOLTUNE_KILLS` sets the number of kills, `TOOLTUNE_KILLS_SEED` their moments; see
//! `scripts/rank-kills`.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tooltune_rows::batches::SeededRandom;

use crate::runs::{assert_same_outcome, outcome, signal, train, wait_for_step, workplace_with};
use crate::workplace::{self, CommandOutput};

/// Longer than any command here takes.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn train_with_ranks(
    workplace: &workplace::Workplace,
    name: &str,
    ranks: usize,
) -> Command {
    let mut command = train(workplace, name);
    command.args(["--ranks", &ranks.to_string()]);
    command
}

pub(crate) fn finish(workplace: &workplace::Workplace, name: &str, ranks: usize) {
    let mut command = train_with_ranks(workplace, name, ranks);
    CommandOutput::from_command(&mut command).success();
}

/// Waits for the end of a command, and returns its exit status and its standard error.
pub(crate) fn output_of(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

/// The processes that a process has started.
pub(crate) fn children_of(parent: &Child) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", parent.id()));
    let children = tasks.into_iter().flatten().filter_map(|task| {
        let path = task.ok()?.path().join("children");
        std::fs::read_to_string(path).ok()
    });
    let children: String = children.collect();
    let children = children.split_whitespace();
    children.filter_map(|child| child.parse().ok()).collect()
}

/// The rank of a process, from its environment.
pub(crate) fn rank_of(process: u32) -> Option<usize> {
    let variables = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let variables = String::from_utf8_lossy(&variables).into_owned();
    let rank = variables
        .split('\0')
        .find_map(|v| v.strip_prefix("RANK="))?;
    rank.parse().ok()
}

pub(crate) fn send(name: &str, process: u32) {
    let sent = Command::new("kill")
        .args([name, &process.to_string()])
        .status();
    assert!(sent.is_ok());
}

/// Invariant: A run writes the same bytes with any number of processes.
#[test]
fn one_to_four_ranks_write_the_same_run() {
    let workplace = workplace_with(4);
    CommandOutput::from_command(&mut train(&workplace, "alone")).success();
    let expected = outcome(&workplace.path("alone"));
    for ranks in [2, 3, 4] {
        let name = format!("with-{ranks}");
        finish(&workplace, &name, ranks);
        assert_same_outcome(&workplace.path(&name), &expected);
    }
}

#[test]
fn packed_bf16_steps_are_the_same_for_two_ranks() {
    let workplace = workplace_with(3);
    let settings = [
        "--set",
        "model.compute_dtype=\"bf16\"",
        "--set",
        "data.packing=\"block-diagonal\"",
        "--set",
        "train.neftune_noise_alpha=5.0",
    ];
    let run = |name: &str, ranks: usize, frozen_weights: &str| {
        let mut command = train_with_ranks(&workplace, name, ranks);
        let set = format!("model.frozen_weights={frozen_weights}");
        command.args(settings).args(["--set", &set]);
        let output = CommandOutput::from_command(command.env("RUST_LOG", "warn"));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        output.stderr
    };
    run("alone", 1, "resident");
    let expected = outcome(&workplace.path("alone"));
    run("two", 2, "resident");
    assert_same_outcome(&workplace.path("two"), &expected);
    // CPUs have no weights to divide.
    for (name, ranks) in [("divided", 2), ("undivided", 1)] {
        let stderr = run(name, ranks, "node");
        let warning = "model.frozen_weights = \"node\" has no effect on a CPU";
        assert!(stderr.contains(warning), "{stderr}");
        assert_same_outcome(&workplace.path(name), &expected);
    }
}

/// Invariant: A run that lost processes at random moments resumes with any number of processes, and
/// writes the bytes of an uninterrupted run.
#[test]
fn a_run_survives_kills_of_random_ranks() {
    let number = |variable: &str, default: u64| {
        std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
    };
    let kills = number("TOOLTUNE_KILLS", 20);
    let mut random = SeededRandom::new(number("TOOLTUNE_KILLS_SEED", 5), 47);
    let workplace = workplace_with(4);
    finish(&workplace, "whole", 1);
    let expected = outcome(&workplace.path("whole"));
    let (mut n_killed, mut n_runs) = (0, 0);
    while n_killed < kills {
        n_runs += 1;
        let name = format!("killed-{n_runs}");
        while n_killed < kills && kill_one_rank(&workplace, &name, &mut random) {
            n_killed += 1;
        }
        finish(&workplace, &name, 1 + random.below(4));
        assert_same_outcome(&workplace.path(&name), &expected);
    }
}

/// Continues a run with two to four ranks, and kills one of them at a random moment: before the first
/// step, in one of the next steps, or while a checkpoint is written. Returns `false` if the run ended
/// before.
fn kill_one_rank(workplace: &workplace::Workplace, name: &str, random: &mut SeededRandom) -> bool {
    let run = workplace.path(name);
    let saved = last_saved_step(&run);
    let ranks = 2 + random.below(3);
    let mut parent = train_with_ranks(workplace, name, ranks).spawn().unwrap();
    let (step, victim) = (saved + random.below(4), random.below(ranks));
    let delay = Duration::from_millis(random.below(20) as u64);
    wait_for_step_or_end(&run, step, &mut parent);
    let started = Instant::now();
    let children = loop {
        let children = children_of(&parent);
        if children.len() == ranks || parent.try_wait().unwrap().is_some() {
            break children;
        }
        assert!(started.elapsed() < PATIENCE, "{ranks} ranks did not start");
        std::thread::sleep(Duration::from_millis(2));
    };
    std::thread::sleep(delay);
    let child = children.get(victim);
    if let Some(child) = child {
        send("-KILL", *child);
    }
    let (status, stderr) = output_of(parent);
    match status {
        // The signal came after the last rank's end.
        Some(0) => false,
        Some(137) => true,
        other => panic!("exit status {other:?} after the kill of {child:?}: {stderr}"),
    }
}

/// The step of the newest checkpoint.
fn last_saved_step(run: &Path) -> usize {
    let names = std::fs::read_dir(run).into_iter().flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let steps = names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Like [`wait_for_step`], but a run may end before.
fn wait_for_step_or_end(run: &Path, step: usize, child: &mut Child) {
    let started = Instant::now();
    loop {
        let timing = std::fs::read_to_string(run.join("timing.jsonl")).unwrap_or_default();
        if timing.lines().count() >= step || child.try_wait().unwrap().is_some() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "no step {step}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_signal_to_one_rank_saves_the_run_and_ends_all() {
    let workplace = workplace_with(4);
    finish(&workplace, "whole", 1);
    for (rank, name) in [(0, "leader"), (2, "follower")] {
        let run = workplace.path(name);
        let mut parent = train_with_ranks(&workplace, name, 3).spawn().unwrap();
        wait_for_step(&run, 4, &mut parent);
        let children = children_of(&parent);
        let process = children
            .iter()
            .find(|&&process| rank_of(process) == Some(rank));
        send("-TERM", *process.expect("the rank runs"));
        let (status, stderr) = output_of(parent);
        assert_eq!(status, Some(75), "{stderr}");
        assert!(stderr.contains("saved"), "{stderr}");
        finish(&workplace, name, 2);
        assert_same_outcome(&run, &outcome(&workplace.path("whole")));
    }
}

#[test]
fn a_signal_to_the_launcher_saves_the_run() {
    let workplace = workplace_with(2);
    let run = workplace.path("run");
    let mut parent = train_with_ranks(&workplace, "run", 2).spawn().unwrap();
    wait_for_step(&run, 3, &mut parent);
    signal(&parent, "-TERM");
    let (status, stderr) = output_of(parent);
    assert_eq!(status, Some(75), "{stderr}");
    assert!(stderr.contains("saved"), "{stderr}");
}

/// A port below eight free ones.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener
        .local_addr()
        .unwrap()
        .port()
        .saturating_sub(20)
        .max(1024)
}

/// The variables that a launcher sets for a rank of two.
pub(crate) type Variables = Box<dyn Fn(usize) -> Vec<(&'static str, String)>>;

/// Runs two ranks with these variables, and returns their exit statuses and errors.
fn two_ranks(
    workplace: &workplace::Workplace,
    name: &str,
    variables: &Variables,
    arguments: [&[&str]; 2],
) -> [(Option<i32>, String); 2] {
    let ranks = [0, 1].map(|rank| {
        let mut command = train(workplace, name);
        command.args(arguments[rank]).envs(variables(rank));
        command.stderr(Stdio::piped()).spawn().unwrap()
    });
    ranks.map(output_of)
}

/// The variables of torchrun.
pub(crate) fn torchrun(port: u16) -> Variables {
    Box::new(move |rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "2".to_owned()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
            ("TORCHELASTIC_RUN_ID", "test".to_owned()),
        ]
    })
}

/// The variables of `srun`.
fn slurm(port: u16) -> Variables {
    Box::new(move |rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "2".to_owned()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_NODEID", "0".to_owned()),
            ("SLURM_NNODES", "1".to_owned()),
            ("SLURM_NTASKS_PER_NODE", "2".to_owned()),
            ("SLURM_STEP_TASKS_PER_NODE", "2".to_owned()),
            ("SLURM_STEP_NUM_TASKS", "2".to_owned()),
            ("SLURM_STEP_NODELIST", "localhost".to_owned()),
            ("SLURM_JOB_ID", (u32::from(port) + 10_000).to_string()),
            ("SLURM_STEP_ID", "0".to_owned()),
        ]
    })
}

#[test]
fn launchers_are_recognised_by_their_variables() {
    let workplace = workplace_with(2);
    finish(&workplace, "alone", 1);
    let expected = outcome(&workplace.path("alone"));
    for (name, variables) in [
        ("torchrun", torchrun(free_port())),
        ("slurm", slurm(free_port())),
    ] {
        let ranks = two_ranks(&workplace, name, &variables, [&[], &[]]);
        for (status, stderr) in ranks {
            assert_eq!(status, Some(0), "{name}: {stderr}");
        }
        assert_same_outcome(&workplace.path(name), &expected);
    }
}

#[test]
fn ranks_that_do_not_belong_together_are_refused_by_name() {
    let workplace = workplace_with(2);
    let other: &[&str] = &["--set", "train.learning_rate=0.5"];
    let variables = torchrun(free_port());
    let [leader, follower] = two_ranks(&workplace, "run", &variables, [&[], other]);
    for (status, stderr) in [leader, follower] {
        assert_eq!(status, Some(1), "{stderr}");
        assert!(stderr.contains("config"), "{stderr}");
    }

    let mut command = train_with_ranks(&workplace, "run", 3);
    let output = CommandOutput::from_command(&mut command);
    assert_eq!(output.status, Some(2), "{}", output.stderr);
    let setting = "train.gradient_accumulation_steps = 2";
    assert!(output.stderr.contains(setting), "{}", output.stderr);

    let mut command = train(&workplace, "run");
    command.env("RANK", "0");
    let output = CommandOutput::from_command(&mut command);
    assert_eq!(output.status, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains("WORLD_SIZE"), "{}", output.stderr);
}

/// Invariant: A rank with other rows or other weights than the first is refused.
#[test]
fn ranks_with_other_rows_or_weights_are_refused() {
    let own_files = || {
        let workplace = workplace_with(2);
        workplace.copy_model("model");
        workplace
    };
    let arguments: &[&str] = &["--set", "model.model_name_or_path=\"model\""];
    let refused = |change: &dyn Fn(&workplace::Workplace), expected: &str| {
        let workplaces = [own_files(), own_files()];
        change(&workplaces[1]);
        let variables = torchrun(free_port());
        let ranks = [0, 1].map(|rank| {
            let mut command = train(&workplaces[rank], "run");
            command.args(arguments).envs(variables(rank));
            command.spawn().unwrap()
        });
        for (status, stderr) in ranks.map(output_of) {
            assert_ne!(status, Some(0), "{stderr}");
            assert!(stderr.contains(expected), "{expected}: {stderr}");
        }
    };
    // A digit in place of another one: the row has as many tokens as before.
    let change_digit = |workplace: &workplace::Workplace| {
        let rows = workplace.read("train.jsonl");
        let digit = rows.find(|c: char| c.is_ascii_digit()).expect("a digit");
        let other = if rows[digit..].starts_with('7') {
            "8"
        } else {
            "7"
        };
        let changed = format!("{}{other}{}", &rows[..digit], &rows[digit + 1..]);
        workplace.write("train.jsonl", changed);
    };
    refused(&change_digit, "different examples");
    let change_weight = |workplace: &workplace::Workplace| {
        let path = workplace.path("model/model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    refused(&change_weight, "different weights");
}

/// Invariant: An error of one rank ends all ranks with its exit status.
#[test]
fn an_error_of_one_rank_ends_all_with_its_exit_status() {
    for failing in [0, 1] {
        let workplaces = [workplace_with(2), workplace_with(2)];
        let rows = workplaces[failing].read("train.jsonl");
        let damaged = rows.replacen('{', "{{", 1);
        workplaces[failing].write("train.jsonl", damaged);
        let variables = torchrun(free_port());
        let ranks = [0, 1].map(|rank| {
            let mut command = train(&workplaces[rank], "run");
            command.envs(variables(rank)).spawn().unwrap()
        });
        for (status, stderr) in ranks.map(output_of) {
            assert_eq!(status, Some(3), "rank {failing} fails: {stderr}");
            assert!(stderr.contains("train.jsonl:1"), "{stderr}");
        }
    }
}

#[test]
fn a_rank_that_hangs_ends_the_run_with_its_name() {
    let workplace = workplace_with(2);
    let run = workplace.path("run");
    let mut command = train_with_ranks(&workplace, "run", 2);
    command.args(["--set", "ranks.silence_seconds=6"]);
    let mut parent = command.spawn().unwrap();
    wait_for_step(&run, 3, &mut parent);
    let children = children_of(&parent);
    let follower = children
        .iter()
        .find(|&&process| rank_of(process) == Some(1));
    let follower = *follower.expect("the rank runs");
    send("-STOP", follower);
    let (status, stderr) = output_of(parent);
    send("-KILL", follower);
    assert!(status.is_some_and(|status| status != 0), "{stderr}");
    assert!(stderr.contains("rank 1"), "{stderr}");
    assert!(stderr.contains("saved"), "{stderr}");
}
