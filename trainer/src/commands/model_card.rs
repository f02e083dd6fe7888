//! The README.md of an export: what it is, what it was learned from, what it scores, and how it is asked.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;
use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::load_adapter;
use tooltune_rows::regular_file;
use tooltune_suites::SuiteInfo;

use crate::budgets::RUN_FILE_BYTES;
use crate::config::Config;
use crate::error::Error;
use crate::eval::report_files::METRICS_FILE;
use crate::recipes::run_lock::{BASE_MODEL, RunLock};

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
    let (rank, alpha) = (adapter.r, adapter.lora_alpha);
    line(&mut text, "## What it is\n");
    line(&mut text, "| | |\n|---|---|");
    let step = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    let rows = [
        ("LoRA", format!("r {rank}, alpha {alpha}")),
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
        line(
            &mut text,
            &format!("| `{setting}` | {path} (sha256 {}) |", sums.join(", ")),
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
        if !has_head {
            line(
                text,
                "\n## What it scores\n\nMeans with their 95 % bootstrap intervals.\n",
            );
            line(
                text,
                "| evaluation | metric | value | interval |\n|---|---|--:|---|",
            );
            has_head = true;
        }
        for name in suite.metrics {
            let number = |key: &str| found[*name][key].as_f64();
            if let (Some(value), Some(low), Some(high)) =
                (number("value"), number("low"), number("high"))
            {
                let suite = suite.name;
                line(
                    text,
                    &format!("| {of} | {suite}.{name} | {value:.4} | {low:.4} to {high:.4} |"),
                );
            }
        }
    }
    Ok(())
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
