//! The README.md of an export: what it is, what it was learned from, what it scores, and how it is asked.

use std::fmt::Write;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use serde_json::Value;
use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{PeftConfig, load_adapter};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_rows::regular_file;
use tooltune_suites::SuiteInfo;

use super::counted;
use crate::budgets::RUN_FILE_BYTES;
use crate::config::Config;
use crate::error::Error;
use crate::eval::report_files::METRICS_FILE;
use crate::recipes::run_lock::{BASE_MODEL, RunLock};
use crate::recipes::selection::measured_lines;

/// What is handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// An adapter beside its base.
    Adapter,
    /// The base with the adapter in its weights.
    Merged,
}

/// The text of the README.md of an export.
///
/// # Errors
///
/// A file of the checkpoint that cannot be read.
pub(super) fn model_card(
    config: &Config,
    checkpoint: &Path,
    handed: Handed,
) -> Result<String, Error> {
    let base = config.language_model()?;
    let path = base.model_name_or_path.display().to_string();
    let named = base.hub_id.as_deref();
    let lock = RunLock::of_checkpoint(checkpoint)?;
    let (library, what) = match handed {
        Handed::Adapter => ("peft", "A LoRA adapter of"),
        Handed::Merged => ("transformers", "With a LoRA adapter in its weights:"),
    };
    let mut text = "---\n".to_owned();
    // A hub refuses a base that is no name of its own.
    if let Some(hub_id) = named {
        line(&mut text, &format!("base_model: {hub_id}"));
    }
    line(
        &mut text,
        &format!("library_name: {library}\ntags:\n- lora\n- tooltune\n---\n"),
    );
    line(&mut text, &format!("{what} {}.\n", named.unwrap_or(&path)));
    if named.is_none() {
        line(
            &mut text,
            "The base is named by a path of the machine that trained it: `model.hub_id` was not set.\n",
        );
    }
    let adapter = load_adapter(checkpoint)?.config;
    line(&mut text, "## What it is\n");
    line(&mut text, "| | |\n|---|---|");
    let step = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    let rows = [
        ("LoRA", kind(config, &adapter)),
        ("checkpoint", step.into_owned()),
        (
            "made with",
            format!("tooltune {}", env!("CARGO_PKG_VERSION")),
        ),
    ];
    for (name, value) in rows {
        line(&mut text, &format!("| {name} | {value} |"));
    }
    let inputs = lock.iter().flat_map(|lock| &lock.inputs);
    for input in inputs.filter(|input| input.setting == BASE_MODEL || is_data(&input.setting)) {
        let sums = input
            .files
            .values()
            .map(|file| file.sha256.get(..12).unwrap_or_default());
        let sums: Vec<&str> = sums.take(4).collect();
        let (setting, path) = (&input.setting, input.path.display());
        let rows = if is_data(setting) {
            n_rows(&input.path)?
        } else {
            None
        };
        let rows = rows.map_or_else(String::new, |n| format!("{}, ", counted(n, "row")));
        line(
            &mut text,
            &format!(
                "| `{setting}` | {path} ({rows}sha256 {}) |",
                sums.join(", ")
            ),
        );
    }
    metrics(&mut text, config, checkpoint)?;
    line(&mut text, "\n## How it was trained\n");
    line(&mut text, "```toml");
    let settings = config.to_toml();
    let settings = settings.map_err(|error| Error::Usage(format!("the settings: {error}")))?;
    text.push_str(
        settings
            .split_once("\n\n")
            .map_or(&*settings, |(_, body)| body)
            .trim_end(),
    );
    line(
        &mut text,
        "\n```\n\n`tooltune train FILE` with these settings repeats the run.",
    );
    how_to_ask(&mut text, checkpoint, named.unwrap_or(&path), handed)?;
    Ok(text)
}

/// What kind of LoRA it is, in words.
fn kind(config: &Config, adapter: &PeftConfig) -> String {
    let mut words = vec![format!("r {}, alpha {}", adapter.r, adapter.lora_alpha)];
    if config.lora.principal_init().is_some() {
        let rank = adapter.r / 2;
        words.push(format!("PiSSA of rank {rank}, saved with twice the rank"));
    }
    if adapter.use_rslora {
        words.push("rsLoRA".to_owned());
    }
    if adapter.use_dora {
        words.push("DoRA".to_owned());
    }
    let whole = adapter.modules_to_save.iter().flatten();
    words.extend(whole.map(|module| format!("the whole of {module}")));
    words.join(", ")
}

/// The rows of a file of plain text, where it is still here.
fn n_rows(path: &Path) -> Result<Option<usize>, Error> {
    if path.extension().is_none_or(|end| end != "jsonl") {
        return Ok(None);
    }
    let file = match regular_file::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, "count the rows of")(error)),
    };
    let mut n = 0;
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(Error::io(path, "count the rows of"))?;
        n += usize::from(!line.trim_ascii().is_empty());
    }
    Ok(Some(n))
}

fn is_data(setting: &str) -> bool {
    setting.starts_with("data.train") || setting.starts_with("data.eval")
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// The metrics of the checkpoint's own evaluations, and of those that lie in the run's folder `eval`.
fn metrics(text: &mut String, config: &Config, checkpoint: &Path) -> Result<(), Error> {
    let mut tables = Vec::new();
    for suite in tooltune_suites::SUITES {
        let path = checkpoint.join(format!("eval.{}.{METRICS_FILE}", suite.name));
        tables.push(("at its checkpoint".to_owned(), path));
    }
    let run = checkpoint.parent().unwrap_or(&config.train.output_dir);
    for name in ["base", "best"] {
        tables.push((
            format!("eval/{name}"),
            run.join("eval").join(name).join(METRICS_FILE),
        ));
    }
    let mut has_head = false;
    for (of, name, value) in of_run(checkpoint)? {
        head(text, &mut has_head);
        line(text, &format!("| {of} | {name} | {value:.4} | | |"));
    }
    for (of, path) in tables {
        let bytes = regular_file::read_if_there(&path, RUN_FILE_BYTES);
        let Some(bytes) = bytes.map_err(Error::io(&path, "read"))? else {
            continue;
        };
        let Ok(found) = serde_json::from_slice::<Value>(&bytes) else {
            continue;
        };
        let Some(suite) = SuiteInfo::of_metrics(&found) else {
            continue;
        };
        head(text, &mut has_head);
        let n = |count: Option<&Value>| {
            count
                .and_then(Value::as_u64)
                .map_or_else(String::new, |n| n.to_string())
        };
        if let Some(loss) = found["loss"].as_f64() {
            let rows = n(found.get("n_loss_rows"));
            line(text, &format!("| {of} | loss | {loss:.4} | | {rows} |"));
        }
        for name in suite.metrics {
            let number = |key: &str| found[*name][key].as_f64();
            if let (Some(value), Some(low), Some(high)) =
                (number("value"), number("low"), number("high"))
            {
                let rows = n(found[*name].get("n").or_else(|| found.get("n")));
                let suite = suite.name;
                line(
                    text,
                    &format!(
                        "| {of} | {suite}.{name} | {value:.4} | {low:.4} to {high:.4} | {rows} |"
                    ),
                );
            }
        }
    }
    Ok(())
}

/// The head of the table of metrics, once.
fn head(text: &mut String, is_there: &mut bool) {
    if std::mem::replace(is_there, true) {
        return;
    }
    line(
        text,
        "\n## What it scores\n\nMeans over so many samples, with their 95 % bootstrap intervals.\n",
    );
    line(
        text,
        "| evaluation | metric | value | interval | n |\n|---|---|--:|---|--:|",
    );
}

/// What the files of the run say of a checkpoint: by which metric it was chosen as the best, and its
/// loss on the held-out rows; each with what it is of.
fn of_run(checkpoint: &Path) -> Result<Vec<(&'static str, String, f64)>, Error> {
    const LOSS: &str = "loss";
    let mut found = Vec::new();
    let Some(run) = checkpoint.parent().filter(|run| run.is_dir()) else {
        return Ok(found);
    };
    let run_dir = RunDir::open_to_read(run)?;
    let checkpoints = run_dir.list()?;
    let name = checkpoint.file_name();
    let Some(own) = checkpoints.iter().find(|one| one.path.file_name() == name) else {
        return Ok(found);
    };
    let best = run_dir.best()?.filter(|best| best.step == own.step);
    if let Some((metric, value)) = best.and_then(|best| best.metric.zip(best.value)) {
        found.push(("at its checkpoint, which was chosen by it", metric, value));
    }
    let lines = measured_lines(&run_dir)?;
    let mut of_step = lines.iter().rev();
    let loss = of_step.find_map(|line| {
        let is_of_step = line["step"].as_u64() == Some(own.step);
        line["eval/loss"].as_f64().filter(|_| is_of_step)
    });
    let is_told = found.iter().any(|(_, name, _)| name == LOSS);
    found.extend(
        loss.filter(|_| !is_told)
            .map(|loss| ("at its checkpoint", LOSS.to_owned(), loss)),
    );
    Ok(found)
}

/// The prompts that training used, and the lines that load the export.
fn how_to_ask(
    text: &mut String,
    checkpoint: &Path,
    base: &str,
    handed: Handed,
) -> Result<(), Error> {
    let prompts = PromptFiles::read(checkpoint)?;
    line(text, "\n## How it is asked\n");
    if let Some(prompt) = &prompts.slot_prompt {
        line(
            text,
            "`prompt.jinja` makes the message of the user from `input_text` and `json_schema`:\n",
        );
        let _ = writeln!(text, "```jinja\n{}\n```\n", prompt.trim_end());
    }
    line(
        text,
        match &prompts.chat_template {
            Some(_) => "`chat_template.jinja` is the chat template that training used.\n",
            None => "The chat template is that of the base.\n",
        },
    );
    let lines = match handed {
        Handed::Adapter => format!(
            "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n\
             model = AutoModelForCausalLM.from_pretrained({base:?})\n\
             model = PeftModel.from_pretrained(model, \"this folder\")"
        ),
        Handed::Merged => "from transformers import AutoModelForCausalLM\n\n\
             model = AutoModelForCausalLM.from_pretrained(\"this folder\")"
            .to_owned(),
    };
    let _ = writeln!(text, "```python\n{lines}\n```");
    Ok(())
}
