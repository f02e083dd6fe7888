//! `inspect`: shows which tokens of a row are supervised, in color or as JSON.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_apis::TrajectoryReader;
use tooltune_json::faults::Faults;
use tooltune_json::printable;
use tooltune_rows::text::{
    InspectedRow, InspectedSystem, InspectedToken, InspectedTurn, Row, SystemSource, inspect_row,
};
use tooltune_template::TurnBegin;

use super::{
    DeviceOption, count_noun, eprint_line, load_config, print_exactly, print_line, print_result,
};
use crate::base_model::BaseModel;
use crate::cli::{InspectArgs, OutputFormat};
use crate::config::{Config, DataFormat};
use crate::error::Error;
use crate::recipes::preparation::prepare_run;
use crate::recipes::run_files;
use crate::rows::{ReadingReport, RowFiles, SharedFunctions, note_lines, with_rows};
use crate::settings;

/// Default number of rows to show.
const DEFAULT_ROWS: usize = 3;

/// Maximum number of characters that are shown of a system message.
const N_SHOWN: usize = 100;

pub(super) fn run(args: &InspectArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let loaded = load_config(&args.config)?;
    let mut config = loaded.clone();
    // Rows are read without `data.system`, which is added below. This shows which rows have their
    // own system message.
    let system = config.data.system.take();
    let device = device_option.open(config.device)?;
    let base = BaseModel::from_config(&config)?;
    let options = settings::prepare_options(&config, &base.stop_ids);
    let files = files_of(args.row.as_deref(), &config);
    let selection = RowSelection::from_args(args, &files, &config)?;
    let max_rows = match (args.rows, &args.row) {
        (Some(max_rows), _) => max_rows,
        (None, Some(_)) => usize::MAX,
        (None, None) => DEFAULT_ROWS,
    };
    let mut report = ReadingReport::default();
    let n_shown = with_rows(&config, &files, &device, &mut report, |rows| {
        let (mut n_shown, mut faults) = (0, Faults::default());
        for row in rows {
            let Some(row) = faults.take(row) else {
                continue;
            };
            if n_shown == max_rows || !selection.contains(&row) {
                continue;
            }
            n_shown += 1;
            let default_system = system
                .as_ref()
                .filter(|_| row.conversation.system().is_none());
            let row = match default_system {
                None => row,
                Some(text) => Row {
                    conversation: row.conversation.with_system(text),
                    ..row
                },
            };
            let inspected = inspect_row(&row, &base.template, &base.tokenizer, &options);
            let Some(mut inspected) = faults.take(inspected) else {
                continue;
            };
            if let (Some(_), Some(system)) = (default_system, &mut inspected.system) {
                system.from = SystemSource::Setting;
            }
            match args.format {
                OutputFormat::Text => print(&inspected, &base)?,
                OutputFormat::Json => {
                    let line = serde_json::to_string(&inspected);
                    print_result(&line.map_err(|error| Error::Usage(error.to_string()))?)?;
                }
            }
        }
        faults.into_result()?;
        Ok(n_shown)
    })?;
    for line in note_lines("data.train", &report.notes) {
        eprint_line(&line)?;
    }
    match (&args.row, n_shown) {
        (Some(row), 0) => Err(Error::Usage(format!(
            "--row {row}: no such row in data.train; give a line number or FILE:LINE, which can \
             also name a row of data.eval"
        ))),
        _ => {
            let eval_rows = run_plan_checks(loaded, &device)?;
            match SharedFunctions::read(&config, &eval_rows, &device)? {
                Some(shared) => eprint_line(&shared.line()),
                None => Ok(()),
            }
        }
    }
}

/// Runs the checks of `plan` and `train` on all rows, on the evaluation, and on the run folder. The
/// selected rows were shown before. Returns the evaluation rows.
fn run_plan_checks(mut config: Config, device: &Device) -> Result<Vec<Row>, Error> {
    run_files::pin_run_settings(&mut config)?;
    Ok(prepare_run(&config, device)?.eval_rows)
}

/// Selection of rows to show.
enum RowSelection {
    All,
    /// The row with this id, or this line of any file.
    Row(String),
    /// All examples of the trajectories with these ids, which are on the requested line.
    Trajectories(BTreeSet<String>),
}

impl RowSelection {
    /// Resolves `--row`. For trajectories this reads the files, because their examples have
    /// different ids.
    fn from_args(args: &InspectArgs, files: &RowFiles, config: &Config) -> Result<Self, Error> {
        let Some(requested) = &args.row else {
            return Ok(Self::All);
        };
        if config.data.format == DataFormat::Goat {
            let mut ids = BTreeSet::new();
            for records in files.open()? {
                // Invalid rows are reported when all rows are read.
                let placed = TrajectoryReader::new(records).with_locations();
                let placed = placed.filter_map(Result::ok);
                let matching = placed.filter(|(location, _)| is_row_location(requested, location));
                ids.extend(matching.map(|(_, row)| row.id));
            }
            if !ids.is_empty() {
                return Ok(Self::Trajectories(ids));
            }
        }
        Ok(Self::Row(requested.clone()))
    }

    fn contains(&self, row: &Row) -> bool {
        match self {
            Self::All => true,
            Self::Row(requested) => is_row_location(requested, &row.id),
            Self::Trajectories(ids) => {
                let id = row.id.rsplit_once('/');
                id.is_some_and(|(id, _)| ids.contains(id))
            }
        }
    }
}

/// The files to show: the training files, or the evaluation file that the row id names.
fn files_of(row: Option<&str>, config: &Config) -> RowFiles {
    let train = RowFiles::training(config);
    let Some((file, _)) = row.and_then(|row| row.rsplit_once(':')) else {
        return train;
    };
    let is_named = |one: &&PathBuf| is_same_path(Path::new(file), one);
    if train.paths().any(|one| is_named(&one)) {
        return train;
    }
    let evaluation_file = config.data.eval.iter().find(is_named);
    evaluation_file.map_or(train, |file| RowFiles::all_rows(std::slice::from_ref(file)))
}

/// Whether `location` matches the request by id, by line, or by file and line.
fn is_row_location(requested: &str, location: &str) -> bool {
    if location == requested || location.rsplit(':').next() == Some(requested) {
        return true;
    }
    let parts = requested.rsplit_once(':').zip(location.rsplit_once(':'));
    parts.is_some_and(|((requested, asked_line), (file, line))| {
        line == asked_line && is_same_path(Path::new(requested), Path::new(file))
    })
}

/// Whether two paths name the same file.
fn is_same_path(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().ok();
    one == other || canonical(one).is_some_and(|one| canonical(other) == Some(one))
}

fn print(row: &InspectedRow, base: &BaseModel) -> Result<(), Error> {
    let supervised = row.tokens.iter().filter(|token| token.weight > 0.0).count();
    let straddling = row.tokens.iter().filter(|token| token.straddles).count();
    print_line(&format!(
        "{}: {} tokens, {supervised} supervised, {straddling} partly supervised, {} beyond \
         data.max_length; template {}",
        row.id,
        row.tokens.len(),
        row.n_overflowing,
        &base.template.sha256()[..12]
    ))?;
    print_line(&system_line(row.system.as_ref()))?;
    for (messages, reason) in [
        (&row.switched_off, "switched off by train, weight or loss"),
        (
            &row.without_reasoning,
            "the chat template removes the reasoning",
        ),
    ] {
        if !messages.is_empty() {
            let numbers: Vec<String> = messages.iter().map(usize::to_string).collect();
            print_line(&format!(
                "{} not supervised ({reason}): messages {}",
                count_noun(messages.len(), "turn"),
                numbers.join(", ")
            ))?;
        }
    }
    if let Some(tokens) = &row.without_bos {
        print_line(&format!(
            "the chat template does not start with {tokens}, which the tokenizer adds to plain text"
        ))?;
    }
    let paint = paint(std::io::stdout().is_terminal());
    let text: String = row
        .tokens
        .iter()
        .zip(row.pieces())
        .map(|(token, text)| paint(token, text))
        .collect();
    print_exactly(&format!("{text}\n"))?;
    for note in row.turns.iter().filter_map(|turn| note(row, turn)) {
        print_line(&note)?;
    }
    if let Some(stop) = &row.appended {
        print_line(&format!(
            "{stop} is appended to the last turn, because the template writes it only before \
             another message\n"
        ))?;
    }
    if row.argument_values.is_empty() {
        return Ok(());
    }
    let masked = row.argument_values.iter().filter(|value| value.is_masked);
    let masked: Vec<&str> = masked.map(|value| value.text.as_str()).collect();
    print_line(&values_line(row.argument_values.len(), &masked))
}

/// Counts the argument values of calls and lists the masked ones.
fn values_line(n: usize, masked: &[&str]) -> String {
    match masked {
        [] => format!("argument values of calls: {n}, supervised as shown above\n"),
        masked => format!(
            "argument values of calls: {n}, {} of them masked: {}\n",
            masked.len(),
            masked.join(", ")
        ),
    }
}

/// Shows the source and beginning of the system message.
fn system_line(system: Option<&InspectedSystem>) -> String {
    let Some(system) = system else {
        return "no system message".to_owned();
    };
    let from = match system.from {
        SystemSource::Row => "the row",
        SystemSource::Setting => "data.system",
        SystemSource::Template => "the chat template (neither the row nor data.system sets one)",
    };
    let text = match system.text.char_indices().nth(N_SHOWN) {
        None => format!("{:?}", system.text),
        Some((end, _)) => format!("{:?}…", &system.text[..end]),
    };
    format!("system message from {from}: {text}")
}

/// Describes an unusual start of a turn.
fn note(row: &InspectedRow, turn: &InspectedTurn) -> Option<String> {
    let message = turn.message;
    let note = match turn.begins {
        TurnBegin::EmptyThought => {
            "the template adds an empty thinking block before the answer, which is part of the prompt"
        }
        TurnBegin::DroppedThought => {
            "the generation prompt opens a thinking block, which the template does not write here"
        }
        TurnBegin::GenerationTag => {
            "the turn starts at the template's generation tag, not after its generation prompt"
        }
        TurnBegin::GenerationPrompt if !turn.is_prompt => {
            "the template renders earlier messages differently when it adds the generation prompt \
             here"
        }
        TurnBegin::GenerationPrompt => return None,
    };
    let n_before = 40;
    let before = row.text.get(..turn.start).unwrap_or_default();
    let from = before.char_indices().rev().nth(n_before - 1);
    let end = &before[from.map_or(0, |(idx, _)| idx)..];
    Some(format!(
        "message {message}: {note}; its prompt ends with {end:?}"
    ))
}

/// Uses colors on a terminal, and otherwise brackets around supervised tokens.
fn paint(is_terminal: bool) -> fn(&InspectedToken, &str) -> String {
    fn color_by_weight(token: &InspectedToken, text: &str) -> String {
        let code = match (token.weight, token.straddles) {
            (_, true) => "33",
            (0.0, _) => "90",
            (weight, _) if weight < 1.0 => "36",
            _ => "1;32",
        };
        format!("\x1b[{code}m{}\x1b[0m", printable::lines(text))
    }
    fn plain(token: &InspectedToken, text: &str) -> String {
        match token.weight {
            0.0 => text.to_owned(),
            1.0 => format!("[{text}]"),
            weight => format!("[{text}|{weight}]"),
        }
    }
    if is_terminal { color_by_weight } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_named_by_its_line_or_by_any_path_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dev.jsonl");
        std::fs::write(&file, "{}\n").unwrap();
        let location = format!("{}:2", file.display());
        let spelled = format!("{}/./dev.jsonl:2", dir.path().display());
        for requested in ["2", &location, &spelled] {
            assert!(is_row_location(requested, &location), "{requested}");
        }
        for requested in ["1", "train.jsonl:2", &spelled.replace(":2", ":1")] {
            assert!(!is_row_location(requested, &location), "{requested}");
        }
        let mut config = Config::default();
        config.data.train = vec![dir.path().join("train.jsonl").into()];
        config.data.eval = vec![file.clone()];
        let paths =
            |row: &str| -> Vec<PathBuf> { files_of(Some(row), &config).paths().cloned().collect() };
        assert_eq!(paths(&spelled), [file]);
        assert_eq!(paths("2"), [dir.path().join("train.jsonl")]);
    }

    #[test]
    fn supervised_values_are_counted_without_a_list() {
        let none = values_line(1, &[]);
        assert!(
            none.starts_with("argument values of calls: 1, supervised"),
            "{none}"
        );
        assert_eq!(
            values_line(4, &["Oslo", "3"]),
            "argument values of calls: 4, 2 of them masked: Oslo, 3\n"
        );
    }
}
