//! Writes the README.md of an export with its model, training data, settings, scores and usage.

use std::fmt::Write;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use serde_json::Value;
use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{PeftConfig, load_adapter};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_disk::regular_file;
use tooltune_hub::marked_card;
use tooltune_suites::SuiteInfo;

use crate::commands::count_noun;
use crate::commands::export::nf4::is_trained_in_nf4;
use crate::commands::export::published::{file_name, publishable_settings};
use crate::config::budgets::RUN_FILE_BYTES;
use crate::config::{ComputeDtype, Config};
use crate::error::Error;
use crate::eval::report_files::METRICS_FILE;
use crate::export::MergeBase;
use crate::recipes::run_lock::{BASE_MODEL, RunLock};
use crate::recipes::selection::measured_lines;

/// Kind of export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum CardKind {
    /// An adapter without its base.
    Adapter,
    /// The base with the adapter merged into its weights; for an adapter that was trained with NF4
    /// weights, into these.
    Merged(Option<MergeBase>),
}

/// Returns the README.md of an export.
///
/// # Errors
///
/// A file of the checkpoint cannot be read.
pub(in crate::commands) fn model_card(
    config: &Config,
    checkpoint: &Path,
    kind: CardKind,
) -> Result<String, Error> {
    let in_nf4 = is_trained_in_nf4(config);
    let base = config.language_model()?;
    let path = file_name(&base.model_name_or_path);
    let hub_name = base.hub_id.as_deref();
    let lock = RunLock::read_for_checkpoint(checkpoint)?;
    let (library, what) = match kind {
        CardKind::Adapter => ("peft", "A LoRA adapter of"),
        CardKind::Merged(_) => ("transformers", "A LoRA adapter merged into"),
    };
    let mut text = "---\n".to_owned();
    // The hub rejects `base_model` if it is not a hub name.
    if let Some(hub_id) = hub_name {
        line(&mut text, &format!("base_model: {hub_id}"));
    }
    line(
        &mut text,
        &format!("library_name: {library}\ntags:\n- lora\n- tooltune\n---\n"),
    );
    line(
        &mut text,
        &format!("{what} {}.\n", hub_name.unwrap_or(&path)),
    );
    if hub_name.is_none() {
        line(
            &mut text,
            "The base is named after its local file, because `model.hub_id` was not set.\n",
        );
    }
    let adapter = load_adapter(checkpoint)?.config;
    line(&mut text, "## Model\n");
    line(&mut text, "| | |\n|---|---|");
    let step = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    let rows = [
        ("LoRA", lora_variant(config, &adapter)),
        ("checkpoint", step.into_owned()),
        (
            "made with",
            format!("tooltune {}", env!("CARGO_PKG_VERSION")),
        ),
    ];
    let nf4 = in_nf4.then(|| {
        let layers = "linear layers in NF4 with double quantisation (QLoRA)".to_owned();
        ("base in training", layers)
    });
    let onto = match kind {
        CardKind::Merged(onto) => onto.map(|onto| ("merged onto", onto.name().to_owned())),
        CardKind::Adapter => None,
    };
    for (name, value) in rows.into_iter().chain(nf4).chain(onto) {
        line(&mut text, &format!("| {name} | {value} |"));
    }
    let inputs = lock.iter().flat_map(|lock| &lock.inputs);
    for input in inputs.filter(|input| input.setting == BASE_MODEL || is_data(&input.setting)) {
        let sums = input
            .files
            .values()
            .map(|file| file.sha256.get(..12).unwrap_or_default());
        let sums: Vec<&str> = sums.take(4).collect();
        let (setting, path) = (&input.setting, file_name(&input.path));
        let rows = if is_data(setting) {
            n_rows(&input.path)?
        } else {
            None
        };
        let rows = rows.map_or_else(String::new, |n| format!("{}, ", count_noun(n, "row")));
        line(
            &mut text,
            &format!(
                "| `{setting}` | {path} ({rows}sha256 {}) |",
                sums.join(", ")
            ),
        );
    }
    metrics(&mut text, config, checkpoint)?;
    line(&mut text, "\n## Training\n");
    line(&mut text, "```toml");
    text.push_str(settings(config)?.trim_end());
    line(
        &mut text,
        "\n\
         ```\n\n\
         To repeat the run, use `tooltune train FILE` with these settings. File names are shown \
         without folders and addresses without secrets.",
    );
    let name = hub_name.unwrap_or(&path);
    let nf4_dtype = in_nf4.then_some(match base.compute_dtype {
        ComputeDtype::F32 => "float32",
        ComputeDtype::Bf16 | ComputeDtype::Auto => "bfloat16",
    });
    usage(&mut text, checkpoint, name, kind, nf4_dtype)?;
    Ok(marked_card(&text))
}

/// The settings as TOML, safe to publish.
fn settings(config: &Config) -> Result<String, Error> {
    let unwritable = |error: &dyn std::fmt::Display| Error::Usage(format!("the settings: {error}"));
    let settings = config.to_toml().map_err(|error| unwritable(&error))?;
    let settings: toml::Table = settings.parse().map_err(|error| unwritable(&error))?;
    toml::to_string(&publishable_settings(settings)).map_err(|error| unwritable(&error))
}

/// Describes the LoRA variant.
fn lora_variant(config: &Config, adapter: &PeftConfig) -> String {
    let mut words = vec![format!("r {}, alpha {}", adapter.r, adapter.lora_alpha)];
    if config.lora.principal_init().is_some() {
        let rank = adapter.r / 2;
        words.push(format!("PiSSA of rank {rank}, saved at twice the rank"));
    }
    if adapter.use_rslora {
        words.push("rsLoRA".to_owned());
    }
    if adapter.use_dora {
        words.push("DoRA".to_owned());
    }
    let modules = adapter.modules_to_save.iter().flatten();
    words.extend(modules.map(|module| format!("the whole of {module}")));
    words.join(", ")
}

/// Counts the rows of a `.jsonl` file. Returns `None` for other formats and for missing files.
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

/// Writes the metrics of the evaluations in the checkpoint and in the run's `eval` folder.
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
    for (source, name, value) in run_metrics(checkpoint)? {
        head(text, &mut has_head);
        line(text, &format!("| {source} | {name} | {value:.4} | | |"));
    }
    for (source, path) in tables {
        let bytes = regular_file::read_if_there(&path, RUN_FILE_BYTES);
        let Some(bytes) = bytes.map_err(Error::io(&path, "read"))? else {
            continue;
        };
        let Ok(metrics) = tooltune_json::from_slice::<Value>(&bytes) else {
            continue;
        };
        let Some(suite) = SuiteInfo::for_metrics(&metrics) else {
            continue;
        };
        head(text, &mut has_head);
        let n = |count: Option<&Value>| {
            count
                .and_then(Value::as_u64)
                .map_or_else(String::new, |n| n.to_string())
        };
        if let Some(loss) = metrics["loss"].as_f64() {
            let rows = n(metrics.get("n_loss_rows"));
            line(text, &format!("| {source} | loss | {loss:.4} | | {rows} |"));
        }
        for name in suite.metrics {
            let number = |key: &str| metrics[*name][key].as_f64();
            if let (Some(value), Some(low), Some(high)) =
                (number("value"), number("low"), number("high"))
            {
                let rows = n(metrics[*name].get("n").or_else(|| metrics.get("n")));
                let suite = suite.name;
                line(
                    text,
                    &format!(
                        "| {source} | {suite}.{name} | {value:.4} | {low:.4} to {high:.4} | {rows} |"
                    ),
                );
            }
        }
    }
    Ok(())
}

/// Writes the header of the metrics table, but only once.
fn head(text: &mut String, is_written: &mut bool) {
    if std::mem::replace(is_written, true) {
        return;
    }
    line(
        text,
        "\n## Evaluation\n\nMeans over n samples, with 95 % bootstrap intervals.\n",
    );
    line(
        text,
        "| evaluation | metric | value | interval | n |\n|---|---|--:|---|--:|",
    );
}

/// Metrics from the files of the run, each with a label: the metric that selected the checkpoint,
/// and the loss on held-out rows.
fn run_metrics(checkpoint: &Path) -> Result<Vec<(&'static str, String, f64)>, Error> {
    const LOSS: &str = "loss";
    let mut metrics = Vec::new();
    let Some(run) = checkpoint.parent().filter(|run| run.is_dir()) else {
        return Ok(metrics);
    };
    let run_dir = RunDir::open_to_read(run)?;
    let checkpoints = run_dir.list()?;
    let name = checkpoint.file_name();
    let Some(own) = checkpoints.iter().find(|one| one.path.file_name() == name) else {
        return Ok(metrics);
    };
    let best = run_dir.best()?.filter(|best| best.step == own.step);
    if let Some((metric, value)) = best.and_then(|best| best.metric.zip(best.value)) {
        metrics.push(("at its checkpoint (selection metric)", metric, value));
    }
    let lines = measured_lines(&run_dir)?;
    let mut step_lines = lines.iter().rev();
    let loss = step_lines.find_map(|line| {
        let is_of_step = line["step"].as_u64() == Some(own.step);
        line["eval/loss"].as_f64().filter(|_| is_of_step)
    });
    let has_loss = metrics.iter().any(|(_, name, _)| name == LOSS);
    metrics.extend(
        loss.filter(|_| !has_loss)
            .map(|loss| ("at its checkpoint", LOSS.to_owned(), loss)),
    );
    Ok(metrics)
}

/// Describes the prompts and writes the code that loads the export. `nf4_dtype` is torch's name of the
/// compute dtype if the adapter was trained with NF4 weights.
fn usage(
    text: &mut String,
    checkpoint: &Path,
    base: &str,
    kind: CardKind,
    nf4_dtype: Option<&str>,
) -> Result<(), Error> {
    let prompts = PromptFiles::read(checkpoint)?;
    line(text, "\n## Usage\n");
    if let Some(prompt) = &prompts.slot_prompt {
        line(
            text,
            "`prompt.jinja` renders the user message from `input_text` and `json_schema`:\n",
        );
        let _ = writeln!(text, "```jinja\n{}\n```\n", prompt.trim_end());
    }
    line(
        text,
        match &prompts.chat_template {
            Some(_) => "`chat_template.jinja` is the chat template that training used.\n",
            None => "The chat template is the base model's own.\n",
        },
    );
    let lines = match kind {
        CardKind::Adapter if is_gguf(base) => {
            line(
                text,
                "The base is a GGUF file. `tooltune export RUN --checkpoint base --to merged \
                 --output base` converts it to a folder for transformers:\n",
            );
            adapter_code("base", nf4_dtype)
        }
        CardKind::Adapter => adapter_code(base, nf4_dtype),
        CardKind::Merged(_) => "from transformers import AutoModelForCausalLM\n\n\
             model = AutoModelForCausalLM.from_pretrained(\"this folder\")"
            .to_owned(),
    };
    let _ = writeln!(text, "```python\n{lines}\n```");
    Ok(())
}

fn is_gguf(base: &str) -> bool {
    Path::new(base).extension().is_some_and(|end| end == "gguf")
}

/// The code that loads the adapter onto its base.
fn adapter_code(base: &str, nf4_dtype: Option<&str>) -> String {
    let model = "AutoModelForCausalLM.from_pretrained";
    let load = match nf4_dtype {
        None => format!(
            "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n\
             model = {model}({base:?})"
        ),
        Some(dtype) => format!(
            "import torch\nfrom peft import PeftModel\n\
             from transformers import AutoModelForCausalLM, BitsAndBytesConfig\n\n\
             nf4 = BitsAndBytesConfig(\n    load_in_4bit=True,\n    bnb_4bit_quant_type=\"nf4\",\n    \
             bnb_4bit_use_double_quant=True,\n    bnb_4bit_compute_dtype=torch.{dtype},\n)\n\
             model = {model}({base:?}, dtype=torch.{dtype}, quantization_config=nf4)"
        ),
    };
    format!("{load}\nmodel = PeftModel.from_pretrained(model, \"this folder\")")
}
