//! A folder with a config, rows and run directories, and the built program to run in it.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::test_device::TestDevice;
use crate::support::{fixture, model, program};

/// The program as users start it.
pub(crate) fn tooltune() -> Command {
    let mut command = Command::new(program());
    // Two threads on any machine: results must not depend on the number of threads.
    command
        .env("RAYON_NUM_THREADS", "2")
        .env("RUST_LOG", "error")
        .env("TOOLTUNE_CACHE", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

/// A command's exit status and output.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    pub(crate) fn from_command(command: &mut Command) -> Self {
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output in UTF-8");
        Self {
            status: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
        }
    }

    /// Returns the standard output; panics if the command failed.
    pub(crate) fn success(self) -> String {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self.stdout
    }
}

/// `train.jsonl`, `dev.jsonl` and `config.toml` for a run of 4 steps on the tiny chat model.
pub(crate) struct Workplace(TempDir);

impl Workplace {
    pub(crate) fn new() -> Self {
        let workplace = Self::with_rows("24");
        workplace.write("config.toml", config());
        workplace
    }

    /// `n_rows` training rows and three evaluation rows, without a config.
    pub(crate) fn with_rows(n_rows: &str) -> Self {
        let workplace = Self(TempDir::new().unwrap());
        for (split, rows) in [("train", n_rows), ("dev", "3")] {
            let file = format!("{split}.jsonl");
            let arguments = "data synth slot --split".split(' ');
            let arguments = arguments.chain([split, "--rows", rows, "--output", &file]);
            workplace.run(arguments).success();
        }
        workplace
    }

    /// Like [`Workplace::new`], but the config evaluates only the loss. `dtype` is
    /// `model.compute_dtype`.
    pub(crate) fn with_losses(model: &str, dtype: &str) -> Self {
        let workplace = Self::with_rows("24");
        let config = format!(
            r#"{lora}{SLOT_DATA}[train]
output_dir = "first"
max_steps = 4
per_device_train_batch_size = 2
gradient_accumulation_steps = 2
learning_rate = 1e-2
lr_scheduler_type = "constant"
logging_steps = 1
[eval]
eval_strategy = "steps"
eval_steps = 2
suites = []
metric_for_best_model = "loss"
[checkpoint]
save_steps = 2
"#,
            lora = small_lora(model, &format!("compute_dtype = \"{dtype}\"\n")),
        );
        workplace.write("config.toml", config);
        workplace
    }

    /// Writes pairs of query and document to `pairs.jsonl` and `dev.jsonl`, and returns all of
    /// them. The query and document of a pair share two words that no other pair has together.
    pub(crate) fn write_pairs(&self) -> Vec<Value> {
        let words = ["train", "hotel", "ticket", "table", "report", "forecast"];
        let towns = ["bath", "graz", "riga", "cork"];
        let pair = |word: &str, town: &str| {
            json!({
                "query": format!("get a {word} in {town}"),
                "positive": format!("{word} of a city. parameters: city {town}"),
            })
        };
        let pairs: Vec<Value> = words
            .iter()
            .flat_map(|word| towns.map(|town| pair(word, town)))
            .collect();
        self.write("pairs.jsonl", json_lines(&pairs[..18]));
        self.write("dev.jsonl", json_lines(&pairs[18..]));
        pairs
    }

    /// Writes synthetic trajectories to `goat/train.jsonl` and `goat/dev.jsonl`, and their API
    /// documents to `goat/documents.jsonl`.
    pub(crate) fn generate_trajectories(&self) {
        for options in [
            "--rows 12 --output goat/train.jsonl --documents goat/documents.jsonl",
            "--rows 4 --output goat/dev.jsonl --split dev",
        ] {
            let synth = format!("data synth goat {options}");
            self.run(synth.split(' ')).success();
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    /// Runs the program in this folder, so that all paths are relative to it.
    pub(crate) fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> CommandOutput {
        CommandOutput::from_command(tooltune().current_dir(self.0.path()).args(arguments))
    }

    /// Runs the program with `input` on standard input.
    pub(crate) fn run_with_input<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        input: &str,
    ) -> CommandOutput {
        let file = self.path("standard-input");
        std::fs::write(&file, input).unwrap();
        let file = std::fs::File::open(file).unwrap();
        let mut command = tooltune();
        command
            .current_dir(self.0.path())
            .args(arguments)
            .stdin(file);
        CommandOutput::from_command(&mut command)
    }

    /// Copies the tiny chat model, so that a test can change it.
    pub(crate) fn copy_model(&self, name: &str) -> PathBuf {
        let copy = self.path(name);
        std::fs::create_dir(&copy).unwrap();
        for file in std::fs::read_dir(fixture("tiny_chat_model")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        copy
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }
}

/// The tables `[data]` of configs for the rows of [`Workplace::with_rows`].
pub(crate) const SLOT_DATA: &str = r#"[data]
train = ["train.jsonl"]
eval = ["dev.jsonl"]
format = "slot"
max_length = 4096
"#;

/// The tables `[data]` of configs for the trajectories of [`Workplace::generate_trajectories`].
pub(crate) const GOAT_DATA: &str = r#"[data]
train = ["goat/train.jsonl"]
eval = ["goat/dev.jsonl"]
format = "goat"
max_length = 8192
"#;

/// A run of four steps that the suite slot evaluates after every second one; `[eval]` is last, so
/// that a config can continue it.
pub(crate) const FOUR_STEPS: &str = r#"[train]
output_dir = "run"
max_steps = 4
per_device_train_batch_size = 2
learning_rate = 1e-2
logging_steps = 1
[eval]
eval_steps = 2
suites = ["slot"]
"#;

/// The setting `device`, and the tables `[model]` and `[lora]` of a small run; `[lora]` is last, so
/// that a config can continue it.
pub(crate) fn small_lora(model: &str, model_settings: &str) -> String {
    format!(
        r#"device = "{device}"
[model]
model_name_or_path = "{model}"
{model_settings}[lora]
r = 2
lora_alpha = 4
"#,
        device = TestDevice::from_env(),
    )
}

/// [`small_lora`] with the tiny chat model.
pub(crate) fn tiny_model_lora() -> String {
    small_lora(&fixture("tiny_chat_model").display().to_string(), "")
}

/// The config of [`Workplace::new`].
pub(crate) fn config() -> String {
    format!(
        r#"{lora}target_modules = "all-linear"
{SLOT_DATA}{FOUR_STEPS}max_new_tokens = 12
metric_for_best_model = "slot.mean"
encoder = "{encoder}"
[checkpoint]
save_steps = 2
"#,
        lora = tiny_model_lora(),
        encoder = model("all-minilm-l6-v2").display(),
    )
}

/// Fails with the text if it lacks one of `parts`.
#[track_caller]
pub(crate) fn assert_contains<'a>(text: &str, parts: impl IntoIterator<Item = &'a str>) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Parses JSON Lines.
pub(crate) fn parse_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// Writes rows as JSON Lines.
pub(crate) fn json_lines(rows: impl IntoIterator<Item: Display>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

/// Changes the tokenizer of a model so that it adds `<|endoftext|>` before plain text.
pub(crate) fn put_begin_token(model: &Path) {
    let path = model.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    });
    std::fs::write(&path, tokenizer.to_string()).unwrap();
}
