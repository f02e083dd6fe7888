//! Retrievers that several processes train on the CPU, alone and together with a language model.

use std::path::Path;

use tooltune_rows::batches::SeededRandom;

use crate::ranks::{children_of, finish, output_of, rank_of, send, train_with_ranks};
use crate::runs::wait_for_step;
use crate::support::fixture;
use crate::workplace::{self, CommandOutput, GOAT_DATA, tiny_model_lora};

/// Steps of a retriever.
const STEPS: usize = 24;

const RETRIEVER: [&str; 3] = [
    "retriever.safetensors",
    "retriever_optimizer.safetensors",
    "retriever_state.json",
];

/// A workplace with pairs and the config of a retriever.
fn retriever_workplace(mini_batch_size: &str) -> workplace::Workplace {
    let workplace = workplace::Workplace::new();
    workplace.write_pairs();
    let config = format!(
        r#"device = "cpu"
[retriever]
model_name_or_path = "{encoder}"
train = ["pairs.jsonl"]
eval = ["dev.jsonl"]
max_steps = {STEPS}
per_device_train_batch_size = 6
learning_rate = 1e-2
compute_dtype = "f32"
weight_decay = 0.1
hard_negatives = 1
{mini_batch_size}
[train]
output_dir = "run"
logging_steps = 2
[eval]
eval_steps = 12
[checkpoint]
save_steps = 4
save_total_limit = 10
"#,
        encoder = fixture("retriever/model").display(),
    );
    workplace.write("config.toml", config);
    workplace
}

/// The files of the last checkpoint that runs must share, and the metrics.
fn outcome(run: &Path, last: usize, files: &[&str]) -> Vec<(String, Vec<u8>)> {
    let checkpoint = format!("checkpoint-{last:06}");
    let files = files.iter().map(|file| format!("{checkpoint}/{file}"));
    let paths = files.chain(["metrics.jsonl".to_owned()]);
    let read = |path: String| (std::fs::read(run.join(&path)).unwrap(), path);
    paths.map(read).map(|(bytes, path)| (path, bytes)).collect()
}

fn assert_same(ours: &[(String, Vec<u8>)], expected: &[(String, Vec<u8>)], name: &str) {
    for ((path, ours), (_, theirs)) in ours.iter().zip(expected) {
        assert!(ours == theirs, "{name}: {path} differs");
    }
}

fn kill(parent: &std::process::Child, rank: usize, signal: &str) {
    let children = children_of(parent);
    let process = children.iter().find(|&&child| rank_of(child) == Some(rank));
    send(signal, *process.expect("the rank runs"));
}

/// Invariant: A run writes the same bytes with any number of processes.
#[test]
fn one_to_three_ranks_train_the_same_retriever() {
    for (kind, extra) in [
        ("all", ""),
        ("bf16", "symmetric = true"),
        ("lora", "[retriever.lora]\nr = 2\nlora_alpha = 4"),
    ] {
        let workplace = retriever_workplace(&format!("mini_batch_size = 3\n{extra}"));
        if kind == "bf16" {
            let config = workplace.read("config.toml");
            workplace.write("config.toml", config.replace("\"f32\"", "\"bf16\""));
        }
        let results = [1, 2, 3].map(|ranks| {
            let name = format!("{kind}-{ranks}");
            finish(&workplace, &name, ranks);
            outcome(&workplace.path(&name), STEPS, &RETRIEVER)
        });
        assert_same(&results[1], &results[0], &format!("{kind}, 2 ranks"));
        assert_same(&results[2], &results[0], &format!("{kind}, 3 ranks"));
    }
}

/// Invariant: A run that lost processes at random moments resumes with any number of processes, and
/// writes the bytes of an uninterrupted run.
#[test]
fn a_retriever_survives_kills_and_signals_of_a_rank() {
    let workplace = retriever_workplace("mini_batch_size = 3");
    finish(&workplace, "whole", 1);
    let expected = outcome(&workplace.path("whole"), STEPS, &RETRIEVER);
    let mut random = SeededRandom::new(6, 48);
    // Rank 0 can end with 75 before the launcher sees that another rank was killed.
    let killed: &[i32] = &[137, 75];
    for (i, signal, statuses) in [
        (0, "-KILL", killed),
        (1, "-TERM", &[75]),
        (2, "-KILL", killed),
        (3, "-TERM", &[75]),
    ] {
        let name = format!("{signal}-{i}");
        let run = workplace.path(&name);
        let mut parent = train_with_ranks(&workplace, &name, 3).spawn().unwrap();
        wait_for_step(&run, 1 + random.below(6), &mut parent);
        kill(&parent, 1 + random.below(2), signal);
        let (status, stderr) = output_of(parent);
        assert!(
            status.is_some_and(|status| statuses.contains(&status)),
            "{status:?} {stderr}"
        );
        assert!(stderr.contains("saved"), "{stderr}");
        finish(&workplace, &name, 1 + i % 2);
        assert_same(&outcome(&run, STEPS, &RETRIEVER), &expected, &name);
    }
}

#[test]
fn several_ranks_need_several_mini_batches() {
    let workplace = retriever_workplace("");
    let output = CommandOutput::from_command(&mut train_with_ranks(&workplace, "run", 2));
    assert_eq!(output.status, Some(2), "{}", output.stderr);
    let setting = "retriever.mini_batch_size is not set";
    assert!(output.stderr.contains(setting), "{}", output.stderr);
}

/// Invariant: A rank with other rows or other weights than the first is refused.
#[test]
fn a_rank_with_other_pairs_is_refused() {
    let workplaces = [0, 1].map(|_| retriever_workplace("mini_batch_size = 3"));
    let pairs = workplaces[1].read("pairs.jsonl");
    workplaces[1].write("pairs.jsonl", pairs.replacen("hotel", "museum", 1));
    let variables = crate::ranks::torchrun(crate::ranks::free_port());
    let ranks = [0, 1].map(|rank| {
        let mut command = crate::runs::train(&workplaces[rank], "run");
        command.envs(variables(rank));
        command.spawn().unwrap()
    });
    for (status, stderr) in ranks.map(output_of) {
        assert_ne!(status, Some(0), "{stderr}");
        assert!(stderr.contains("different pairs"), "{stderr}");
    }
}

/// A workplace with the config of a model and a retriever that are trained together.
fn joint_workplace(mini_batch_size: &str) -> workplace::Workplace {
    let workplace = workplace::Workplace::with_rows("4");
    workplace.generate_trajectories();
    let config = format!(
        r#"{lora}{GOAT_DATA}[goat]
documents = "goat/documents.jsonl"
[retriever]
model_name_or_path = "{encoder}"
train = "trajectories"
max_steps = 13
per_device_train_batch_size = 4
learning_rate = 1e-2
hard_negatives = 1
{mini_batch_size}
[train]
output_dir = "run"
max_steps = 6
gradient_accumulation_steps = 3
logging_steps = 1
[eval]
eval_steps = 3
suites = ["goat", "retrieval"]
max_samples = 2
max_new_tokens = 4
metric_for_best_model = "goat.sa"
"#,
        lora = tiny_model_lora(),
        encoder = fixture("retriever/model").display(),
    );
    workplace.write("config.toml", config);
    workplace
}

const JOINT: [&str; 5] = [
    "adapter_model.safetensors",
    "optimizer.safetensors",
    "retriever.safetensors",
    "retriever_optimizer.safetensors",
    "retriever_state.json",
];

/// Invariant: A run writes the same bytes with any number of processes.
#[test]
fn a_joint_run_is_the_same_for_one_to_three_ranks() {
    for (kind, setting) in [("divided", "mini_batch_size = 3"), ("undivided", "")] {
        let workplace = joint_workplace(setting);
        let results = [1, 2, 3].map(|ranks| {
            let name = format!("{kind}-{ranks}");
            finish(&workplace, &name, ranks);
            outcome(&workplace.path(&name), 6, &JOINT)
        });
        assert_same(&results[1], &results[0], &format!("{kind}, 2 ranks"));
        assert_same(&results[2], &results[0], &format!("{kind}, 3 ranks"));
    }
}

/// Invariant: A run that lost processes at random moments resumes with any number of processes, and
/// writes the bytes of an uninterrupted run.
#[test]
fn a_joint_run_survives_the_kill_of_a_rank() {
    let workplace = joint_workplace("mini_batch_size = 3");
    finish(&workplace, "whole", 1);
    let expected = outcome(&workplace.path("whole"), 6, &JOINT);
    let mut random = SeededRandom::new(7, 49);
    for i in 0..4 {
        let name = format!("killed-{i}");
        let run = workplace.path(&name);
        let mut parent = train_with_ranks(&workplace, &name, 3).spawn().unwrap();
        wait_for_step(&run, 1 + i, &mut parent);
        std::thread::sleep(std::time::Duration::from_millis(random.below(200) as u64));
        kill(&parent, 1 + i % 2, "-KILL");
        let (status, stderr) = output_of(parent);
        assert!(status.is_some_and(|status| status != 0), "{stderr}");
        assert!(stderr.contains("saved"), "{stderr}");
        finish(&workplace, &name, 1 + i % 3);
        assert_same(&outcome(&run, 6, &JOINT), &expected, &name);
    }
}
