//! `init`: a config to begin with, from a preset or from the config of another trainer.

use std::path::Path;

use serde_json::{Map, Value};
use tooltune_checkpoints::atomic::create_file;
use tooltune_rows::regular_file;
use tooltune_rows::text::{DataFormat, RecognisedFormat, recognise_file};

use super::{eprint_line, print_line};
use crate::budgets::CONFIG_BYTES;
use crate::cli::{InitArgs, PresetName};
use crate::config::foreign::{Origin, arguments, rows_to_learn, toml_to_yaml, translate, words};
use crate::config::{LoadedConfig, Preset, Source, table_names};
use crate::error::Error;

pub(super) fn run(args: &InitArgs) -> Result<(), Error> {
    if let Some(path) = args.output.as_deref().filter(|path| path.exists()) {
        return Err(Error::Usage(format!(
            "{} exists already; remove it or name another --output",
            path.display()
        )));
    }
    let text = match &args.from {
        Some(path) => translated(path)?,
        None => preset(args),
    };
    let Some(path) = &args.output else {
        return print_line(text.trim_end());
    };
    let is_yaml = path
        .extension()
        .is_some_and(|end| end == "yaml" || end == "yml");
    let text = if is_yaml { toml_to_yaml(&text) } else { text };
    Ok(create_file(path, text.as_bytes())?)
}

/// The preset, whose comments name the file that it is written to.
fn preset(args: &InitArgs) -> String {
    let (preset, name) = match args.preset {
        PresetName::Slot => (Preset::Slot, "slot.toml"),
        PresetName::Sft => (Preset::Sft, "sft.toml"),
        PresetName::Goat => (Preset::Goat, "goat.toml"),
        PresetName::Retriever => (Preset::Retriever, "retriever.toml"),
        PresetName::Joint => (Preset::Joint, "joint.toml"),
    };
    let text = preset.text();
    match &args.output {
        None => text.to_owned(),
        Some(path) => text.replace(&format!(" {name}"), &format!(" {}", path.display())),
    }
}

/// The config of another trainer in our words; what became what, and what did not, is said.
fn translated(path: &Path) -> Result<String, Error> {
    let text = regular_file::read_text(path, CONFIG_BYTES).map_err(Error::io(path, "read"))?;
    let theirs = settings_of(path, &text)?;
    let origin = Origin::of(theirs.keys().map(String::as_str)).ok_or_else(|| {
        Error::Usage(format!(
            "{}: too few of its keys are those of Axolotl, LLaMA-Factory, ms-swift or TRL to say what \
             it is; `tooltune init --preset sft` is a config to begin with",
            path.display()
        ))
    })?;
    let is_script = !matches!(end_of(path), Some("yaml" | "yml" | "json"));
    let started = words(&text).filter(|_| is_script).unwrap_or_default();
    if let Some(refusal) = origin.refusal(&theirs, &started) {
        return Err(Error::Usage(format!("{}: {refusal}", path.display())));
    }
    let run = path.file_stem().unwrap_or_default().to_string_lossy();
    let rows = rows_to_learn(origin, &theirs);
    let has_completions = |file: &String| {
        let found = recognise_file(Path::new(file)).map(|found| found.format);
        matches!(
            found,
            Ok(RecognisedFormat::Rows(DataFormat::PromptCompletion))
        )
    };
    let has_completions = !rows.is_empty() && rows.iter().all(has_completions);
    let translation = translate(origin, &theirs, &run, has_completions);
    eprint_line(&format!("{}: a config of {}", path.display(), origin.name))?;
    for (head, lines) in [
        ("carried over", &translation.carried),
        ("left out", &translation.left),
        ("to do", &translation.to_do),
    ] {
        for line in lines {
            eprint_line(&format!("  {head:<12}  {line}"))?;
        }
    }
    let head = format!("From {}, a config of {}.", path.display(), origin.name);
    let text = translation.to_toml(&table_names(), &head);
    let text = text.map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
    // What was carried over may still be refused, and who runs it would learn that later.
    let source = Source {
        name: "the translation".to_owned(),
        text: text.clone(),
    };
    if let Err(error) = LoadedConfig::parse(source, &[]) {
        eprint_line(&format!("the translation is not a config yet:\n{error}"))?;
    }
    Ok(text)
}

fn end_of(path: &Path) -> Option<&str> {
    path.extension().and_then(|end| end.to_str())
}

fn settings_of(path: &Path, text: &str) -> Result<Map<String, Value>, Error> {
    let unreadable = |error: String| Error::Usage(format!("{}: {error}", path.display()));
    let value = match end_of(path) {
        Some("yaml" | "yml") => {
            serde_saphyr::from_str::<Value>(text).map_err(|e| unreadable(e.to_string()))?
        }
        Some("json") => serde_json::from_str(text).map_err(|e| unreadable(e.to_string()))?,
        _ => Value::Object(arguments(text).ok_or_else(|| {
            unreadable("a quote is not closed, or the text ends with a backslash".to_owned())
        })?),
    };
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(unreadable(
            "the file is no mapping of keys to values".to_owned(),
        )),
    }
}
