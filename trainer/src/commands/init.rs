//! `init`: writes a config from a preset or from another trainer's config.

use std::path::Path;

use clap::ValueEnum as _;
use serde_json::{Map, Value};
use tooltune_disk::atomic::create_file;
use tooltune_disk::regular_file;
use tooltune_json::parse_unique;
use tooltune_rows::text::{DataFormat, RecognisedFormat, recognise_file};

use super::{eprint_line, print_result};
use crate::cli::InitArgs;
use crate::config::budgets::CONFIG_BYTES;
use crate::config::foreign::{
    Origin, RowFacts, RowFile, TrainingCommand, find_training_command, one_line, rows_to_learn,
    to_toml, to_yaml, toml_to_yaml, translate,
};
use crate::config::{LoadedConfig, Source, table_names};
use crate::error::Error;

/// Maximum bytes of row files to read when converting epochs to steps.
const MAX_COUNTED_BYTES: u64 = 256 << 20;

pub(super) fn run(args: &InitArgs) -> Result<(), Error> {
    if let Some(path) = args.output.as_deref().filter(|path| path.exists()) {
        return Err(Error::Usage(format!(
            "{} already exists; remove it or name another --output",
            path.display()
        )));
    }
    let is_yaml = args
        .output
        .as_deref()
        .is_some_and(|path| matches!(extension(path), Some("yaml" | "yml")));
    let text = match &args.from {
        Some(path) => translate_config(path, args.command, is_yaml)?,
        None if is_yaml => toml_to_yaml(&preset(args)),
        None => preset(args),
    };
    match &args.output {
        None => print_result(text.trim_end()),
        Some(path) => Ok(create_file(path, text.as_bytes())?),
    }
}

/// Returns a preset, with the name of the new file in its comments.
fn preset(args: &InitArgs) -> String {
    let text = args.preset.text();
    match &args.output {
        None => text.to_owned(),
        Some(path) => {
            // The comments contain commands for the user to copy.
            let path = path.display().to_string();
            let quoted = shlex::try_quote(&path).map_or_else(|_| path.clone(), Into::into);
            let value = args
                .preset
                .to_possible_value()
                .expect("presets are values of the option");
            let name = format!(" {}.toml", value.get_name());
            text.replace(&name, &format!(" {}", one_line(&quoted)))
        }
    }
}

/// Translates another trainer's config, and prints which settings were carried over and which were
/// not.
fn translate_config(path: &Path, command: Option<usize>, is_yaml: bool) -> Result<String, Error> {
    let text = regular_file::read_text(path, CONFIG_BYTES).map_err(Error::io(path, "read"))?;
    let TrainingCommand {
        settings: theirs,
        words,
        left_out,
        to_do,
        ..
    } = read_training_command(path, &text, command)?;
    let name = one_line(&path.display().to_string());
    let origin = Origin::detect(theirs.keys().map(String::as_str)).ok_or_else(|| unknown(path))?;
    if let Some(refusal) = origin.refusal(&theirs, &words) {
        let refusal = one_line(&refusal);
        return Err(Error::Usage(format!("{name}: {refusal}")));
    }
    let run = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut translation = translate(
        origin,
        &theirs,
        &run,
        row_facts(&rows_to_learn(origin, &theirs)),
    );
    translation.results.left_out.extend(left_out);
    translation.results.to_do.extend(to_do);
    eprint_line(&format!("{name}: config of {}", origin.name))?;
    let carried = translation
        .results
        .carried
        .iter()
        .map(|carried| carried.line());
    for (head, lines) in [
        ("carried over", carried.collect()),
        ("dropped", translation.results.left_out.clone()),
        ("to do", translation.results.to_do.clone()),
    ] {
        let lines: Vec<String> = lines;
        for line in lines {
            eprint_line(&format!("  {head:<12}  {}", one_line(&line)))?;
        }
    }
    let head = format!("Translated from {name}, a config of {}.", origin.name);
    let comments = translation.comments(&head);
    let tables = table_names();
    let toml = to_toml(&comments, &translation.settings, &tables);
    let toml = toml.map_err(|error| Error::Usage(format!("{name}: {error}")))?;
    // Validate now, so that an invalid translation is reported here and not by the first run.
    let source = Source {
        name: "the translation".to_owned(),
        text: toml.clone(),
    };
    if let Err(error) = LoadedConfig::parse(source, &[]) {
        eprint_line(&format!(
            "the translation is not a valid config yet:\n{error}"
        ))?;
    }
    if is_yaml {
        Ok(to_yaml(&comments, &translation.settings, &tables))
    } else {
        Ok(toml)
    }
}

fn unknown(path: &Path) -> Error {
    Error::Usage(format!(
        "{}: unknown config format: too few keys match Axolotl, LLaMA-Factory, ms-swift or TRL; \
         start with `tooltune init --preset sft` instead",
        one_line(&path.display().to_string())
    ))
}

/// Facts about the rows in these files, if the files exist.
fn row_facts(files: &[RowFile]) -> RowFacts {
    let has_completions = |file: &RowFile| {
        let recognised = recognise_file(Path::new(&file.path)).map(|found| found.format);
        matches!(
            recognised,
            Ok(RecognisedFormat::Rows(DataFormat::PromptCompletion))
        )
    };
    let counts = n_rows(files);
    let weighted = |counts: &Vec<u64>| {
        let weighted = files.iter().zip(counts);
        weighted
            .map(|(file, &n_rows)| file.weight * n_rows as f64)
            .sum()
    };
    RowFacts {
        have_completions: !files.is_empty() && files.iter().all(has_completions),
        n_in_epoch: counts.as_ref().map(weighted),
        n_rows: counts.map(|counts| counts.iter().sum()),
    }
}

/// Counts the rows of each file. Returns `None` if a file is missing or unreadable, or if the files
/// together are larger than [`MAX_COUNTED_BYTES`].
fn n_rows(files: &[RowFile]) -> Option<Vec<u64>> {
    let sizes = files
        .iter()
        .map(|file| std::fs::metadata(&file.path).map(|metadata| metadata.len()));
    let n_bytes: u64 = sizes.collect::<Result<Vec<u64>, _>>().ok()?.iter().sum();
    if files.is_empty() || n_bytes > MAX_COUNTED_BYTES {
        return None;
    }
    let counts = files.iter().map(|file| {
        let mut records = tooltune_files::open(Path::new(&file.path)).ok()?;
        let mut n_rows = 0;
        while records.next_record().ok()?.is_some() {
            n_rows += 1;
        }
        Some(n_rows)
    });
    counts.collect()
}

fn extension(path: &Path) -> Option<&str> {
    path.extension().and_then(|end| end.to_str())
}

/// Describes why a file is not valid YAML. Messages of the YAML library would name its options and
/// budgets, which users cannot set.
fn why_not_yaml(text: &str) -> String {
    match tooltune_json::yaml::parse(text) {
        Err(error) => format!("invalid YAML: {error}"),
        Ok(_) => "the file has too many values for a config, aliases included, or nests them too \
                  deeply; remove aliases (*name) and merge keys (<<)"
            .to_owned(),
    }
}

/// Returns the settings of a file, or the arguments of the command that a script starts.
fn read_training_command(
    path: &Path,
    text: &str,
    command: Option<usize>,
) -> Result<TrainingCommand, Error> {
    let name = one_line(&path.display().to_string());
    let unreadable = |error: String| Error::Usage(format!("{name}: {}", one_line(&error)));
    let value = match extension(path) {
        Some("yaml" | "yml") => {
            let read = serde_saphyr::from_str::<Value>(text);
            read.map_err(|_| unreadable(why_not_yaml(text)))?
        }
        Some("json") => parse_unique(text).map_err(|e| unreadable(e.to_string()))?,
        _ => {
            let training = find_training_command(text, command);
            // The error lists the commands of the script, one per line.
            let training = training.map_err(|e| Error::Usage(format!("{name}: {e}")))?;
            return training.ok_or_else(|| unknown(path));
        }
    };
    if command.is_some() {
        let what = "--command selects a command of a script, but this file contains settings; \
                    omit --command";
        return Err(unreadable(what.to_owned()));
    }
    let settings: Result<Map<String, Value>, Error> = match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(unreadable(
            "the file is not a mapping of keys to values".to_owned(),
        )),
    };
    Ok(TrainingCommand {
        settings: settings?,
        ..TrainingCommand::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_errors_have_our_wording_and_the_line() {
        let wide_list = format!("b: &b [{}0]\n{}", "0, ".repeat(999), "c: [*b, *b]\n");
        let many: String = (0..300).map(|n| format!("k{n}: [*b, *b]\n")).collect();
        for (text, expected) in [
            (
                format!("a: {}{}\n", "[".repeat(300), "]".repeat(300)),
                "line 1, column",
            ),
            ("a: 1\nb: 1e400\n".to_owned(), "line 2, column 4"),
            (
                "a: 1\na: 2\n".to_owned(),
                "line 2, column 1: the key \"a\" occurs twice",
            ),
            ("a: 1\n\tb: 2\n".to_owned(), "line 2, column 1: a tab"),
            (wide_list + &many, "too many values for a config"),
        ] {
            let Err(error) = read_training_command(Path::new("x.yaml"), &text, None) else {
                panic!("{expected}");
            };
            let message = error.to_string();
            assert!(message.contains(expected), "{message}");
            for word in ["budget", "recursion", "policy", "Nodes"] {
                assert!(!message.contains(word), "{message}");
            }
        }
    }
}
