//! `inspect`: which tokens of a row are learned, with colours or as JSON.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_rows::text::{
    Faults, InspectedRow, InspectedSystem, InspectedToken, InspectedTurn, Row, SystemSource,
    TurnBegin, inspect_row,
};
use tooltune_rows::tools::TrajectoryReader;

use super::{DeviceOption, counted, eprint_line, load_config, print_line};
use crate::base_model::BaseModel;
use crate::cli::{InspectArgs, OutputFormat};
use crate::config::{Config, DataFormat};
use crate::error::Error;
use crate::recipes::preparation::prepare_run;
use crate::recipes::run_files;
use crate::rows::{ReadingReport, RowFiles, note_lines, with_rows};
use crate::settings;

/// Rows that are shown where nobody says how many.
const N_ROWS: usize = 3;

/// Characters of a system message that are shown.
const N_SHOWN: usize = 100;

pub(super) fn run(args: &InspectArgs, place: &DeviceOption) -> Result<(), Error> {
    let whole = load_config(&args.config)?;
    let mut config = whole.clone();
    // Given to the rows below, where it is seen which of them have one of their own.
    let system = config.data.system.take();
    let device = place.open(config.device)?;
    let base = BaseModel::of(&config)?;
    let options = settings::prepare_options(&config, &base.stop_ids);
    let files = files_of(args.row.as_deref(), &config);
    let wanted = Wanted::of(args, &files, &config)?;
    let most = match (args.rows, &args.row) {
        (Some(most), _) => most,
        (None, Some(_)) => usize::MAX,
        (None, None) => N_ROWS,
    };
    let mut report = ReadingReport::default();
    let shown = with_rows(&config, &files, &device, &mut report, |rows| {
        let (mut shown, mut faults) = (0, Faults::default());
        for row in rows {
            let Some(row) = faults.take(row) else {
                continue;
            };
            if shown == most || !wanted.is(&row) {
                continue;
            }
            shown += 1;
            let given = system
                .as_ref()
                .filter(|_| row.conversation.system().is_none());
            let row = match given {
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
            if let (Some(_), Some(system)) = (given, &mut inspected.system) {
                system.from = SystemSource::Setting;
            }
            match args.format {
                OutputFormat::Text => print(&inspected, &base)?,
                OutputFormat::Json => {
                    let line = serde_json::to_string(&inspected);
                    print_line(&line.map_err(|error| Error::Usage(error.to_string()))?)?;
                }
            }
        }
        faults.none()?;
        Ok(shown)
    })?;
    for line in note_lines("data.train", &report.notes) {
        eprint_line(&line)?;
    }
    match (&args.row, shown) {
        (Some(row), 0) => Err(Error::Usage(format!(
            "--row {row}: no such row in data.train; give a line number, or file:line, which may be a \
             row of data.eval, too"
        ))),
        _ => refuse_as_plan(whole, &device),
    }
}

/// What `plan` and `train` refuse is refused here, too, after the rows that were asked for: another row,
/// an evaluation that cannot be, a folder with another run.
fn refuse_as_plan(mut config: Config, device: &Device) -> Result<(), Error> {
    run_files::pin_run_settings(&mut config)?;
    prepare_run(&config, device).map(drop)
}

/// Which rows are shown.
enum Wanted {
    All,
    /// The row of this id, or of this line in any file.
    Row(String),
    /// The examples of the trajectories of these ids, which stand in the line that is asked for.
    Trajectories(BTreeSet<String>),
}

impl Wanted {
    /// What is asked for; where trajectories are, the files say which ones stand there, for their
    /// examples have their ids, and ids of their own.
    fn of(args: &InspectArgs, files: &RowFiles, config: &Config) -> Result<Self, Error> {
        let Some(asked) = &args.row else {
            return Ok(Self::All);
        };
        if config.data.format == DataFormat::Goat {
            let mut found = BTreeSet::new();
            for records in files.open()? {
                // Rows at fault are told where all are read.
                let placed = TrajectoryReader::new(records).placed();
                let placed = placed.filter_map(Result::ok);
                let there = placed.filter(|(place, _)| is_place(asked, place));
                found.extend(there.map(|(_, row)| row.id));
            }
            if !found.is_empty() {
                return Ok(Self::Trajectories(found));
            }
        }
        Ok(Self::Row(asked.clone()))
    }

    fn is(&self, row: &Row) -> bool {
        match self {
            Self::All => true,
            Self::Row(asked) => is_place(asked, &row.id),
            Self::Trajectories(ids) => {
                let id = row.id.rsplit_once('/');
                id.is_some_and(|(id, _)| ids.contains(id))
            }
        }
    }
}

/// The files whose rows are shown: those of training, or the evaluation file that a row is named by.
fn files_of(row: Option<&str>, config: &Config) -> RowFiles {
    let train = RowFiles::training(config);
    let Some((file, _)) = row.and_then(|row| row.rsplit_once(':')) else {
        return train;
    };
    let is_named = |one: &&PathBuf| is_same_path(Path::new(file), one);
    if train.paths().any(|one| is_named(&one)) {
        return train;
    }
    let named = config.data.eval.iter().find(is_named);
    named.map_or(train, |file| RowFiles::whole(std::slice::from_ref(file)))
}

/// Whether a place is the one that is asked for, by its line or by file and line.
fn is_place(asked: &str, place: &str) -> bool {
    if place == asked || place.rsplit(':').next() == Some(asked) {
        return true;
    }
    let parts = asked.rsplit_once(':').zip(place.rsplit_once(':'));
    parts.is_some_and(|((asked, asked_line), (file, line))| {
        line == asked_line && is_same_path(Path::new(asked), Path::new(file))
    })
}

/// Whether two paths are one, however they are spelled.
fn is_same_path(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| path.canonicalize().ok();
    one == other || whole(one).is_some_and(|one| whole(other) == Some(one))
}

fn print(row: &InspectedRow, base: &BaseModel) -> Result<(), Error> {
    let learned = row.tokens.iter().filter(|token| token.weight > 0.0).count();
    let straddling = row.tokens.iter().filter(|token| token.straddles).count();
    print_line(&format!(
        "{}: {} tokens, {learned} learned, {straddling} straddling, {} beyond max_length; \
         template {}",
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
            "the chat template leaves out their reasoning",
        ),
    ] {
        if !messages.is_empty() {
            let numbers: Vec<String> = messages.iter().map(usize::to_string).collect();
            print_line(&format!(
                "{} not learned, {reason}: messages {}",
                counted(messages.len(), "turn"),
                numbers.join(", ")
            ))?;
        }
    }
    if let Some(tokens) = &row.without_bos {
        print_line(&format!(
            "begins without {tokens}, which the tokenizer puts before plain texts: the chat template \
             writes none"
        ))?;
    }
    let paint = paint(std::io::stdout().is_terminal());
    let text: String = row
        .tokens
        .iter()
        .zip(row.pieces())
        .map(|(token, text)| paint(token, text))
        .collect();
    print_line(&format!("{text}\n"))?;
    for note in row.turns.iter().filter_map(|turn| note(row, turn)) {
        print_line(&note)?;
    }
    if let Some(stop) = &row.appended {
        print_line(&format!(
            "{stop} ends the last turn: the template writes it before the next message only, and \
             training appends it\n"
        ))?;
    }
    if row.argument_values.is_empty() {
        return Ok(());
    }
    let masked = row.argument_values.iter().filter(|value| value.is_masked);
    let masked: Vec<&str> = masked.map(|value| value.text.as_str()).collect();
    print_line(&values_line(row.argument_values.len(), &masked))
}

/// How many values the arguments of calls have, and which of them are not learned.
fn values_line(n: usize, masked: &[&str]) -> String {
    let values = counted(n, "value");
    match masked {
        [] => format!("{values} in arguments, all of them learned as the tokens above show\n"),
        masked => format!(
            "{values} in arguments, {} of them not learned: {}\n",
            masked.len(),
            masked.join(", ")
        ),
    }
}

/// Who gives the system message, and how it begins.
fn system_line(system: Option<&InspectedSystem>) -> String {
    let Some(system) = system else {
        return "no system message".to_owned();
    };
    let from = match system.from {
        SystemSource::Row => "the row",
        SystemSource::Setting => "data.system",
        SystemSource::Template => "the chat template, as neither the row nor data.system gives one",
    };
    let text = match system.text.char_indices().nth(N_SHOWN) {
        None => format!("{:?}", system.text),
        Some((end, _)) => format!("{:?}…", &system.text[..end]),
    };
    format!("system message of {from}: {text}")
}

/// What is not plain about the beginning of a turn.
fn note(row: &InspectedRow, turn: &InspectedTurn) -> Option<String> {
    let message = turn.message;
    let note = match turn.begins {
        TurnBegin::EmptyThought => {
            "the empty thought before the answer is the template's and part of the prompt"
        }
        TurnBegin::DroppedThought => {
            "the generation prompt opens a thought, and the template writes none here"
        }
        TurnBegin::GenerationTag => "the template's generation tag begins the turn, not its prompt",
        TurnBegin::GenerationPrompt if !turn.is_prompt => {
            "the template shows the messages before it otherwise when it asks for this turn"
        }
        TurnBegin::GenerationPrompt => return None,
    };
    let n_before = 40;
    let before = row.text.get(..turn.start).unwrap_or_default();
    let from = before.char_indices().rev().nth(n_before - 1);
    let end = &before[from.map_or(0, |(at, _)| at)..];
    Some(format!(
        "message {message}: {note}; its prompt ends with {end:?}"
    ))
}

/// Colours on a terminal; brackets around what is learned elsewhere.
fn paint(is_terminal: bool) -> fn(&InspectedToken, &str) -> String {
    fn coloured(token: &InspectedToken, text: &str) -> String {
        let code = match (token.weight, token.straddles) {
            (_, true) => "33",
            (0.0, _) => "90",
            (weight, _) if weight < 1.0 => "36",
            _ => "1;32",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
    fn plain(token: &InspectedToken, text: &str) -> String {
        match token.weight {
            0.0 => text.to_owned(),
            1.0 => format!("[{text}]"),
            weight => format!("[{text}|{weight}]"),
        }
    }
    if is_terminal { coloured } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_named_by_its_line_or_by_any_spelling_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dev.jsonl");
        std::fs::write(&file, "{}\n").unwrap();
        let place = format!("{}:2", file.display());
        let spelled = format!("{}/./dev.jsonl:2", dir.path().display());
        for asked in ["2", &place, &spelled] {
            assert!(is_place(asked, &place), "{asked}");
        }
        for asked in ["1", "train.jsonl:2", &spelled.replace(":2", ":1")] {
            assert!(!is_place(asked, &place), "{asked}");
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
    fn values_that_are_all_learned_are_counted_without_a_list() {
        let none = values_line(1, &[]);
        assert!(none.starts_with("1 value in arguments, all"), "{none}");
        assert_eq!(
            values_line(4, &["Oslo", "3"]),
            "4 values in arguments, 2 of them not learned: Oslo, 3\n"
        );
    }
}
