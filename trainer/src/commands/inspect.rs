//! `inspect`: which tokens of a row are learned, with colours or as JSON.

use std::io::IsTerminal;

use tooltune_rows::text::{
    Faults, InspectedRow, InspectedToken, InspectedTurn, Row, TurnBegin, inspect_row,
};

use super::{DeviceOption, load_config, print_line};
use crate::base_model::BaseModel;
use crate::cli::{InspectArgs, OutputFormat};
use crate::error::Error;
use crate::rows::{ReadingReport, with_rows};
use crate::settings;

pub(super) fn run(args: &InspectArgs, place: &DeviceOption) -> Result<(), Error> {
    let config = load_config(&args.config)?;
    let device = place.open(config.device)?;
    let base = BaseModel::of(&config)?;
    let options = settings::prepare_options(&config, &base.stop_ids);
    let files = config.data.train.as_slice();
    let shown = with_rows(
        &config,
        files,
        &device,
        &mut ReadingReport::default(),
        |rows| {
            let (mut shown, mut faults) = (0, Faults::default());
            for row in rows {
                let Some(row) = faults.take(row) else {
                    continue;
                };
                if !is_wanted(args, &row) || shown == args.rows {
                    continue;
                }
                shown += 1;
                let inspected = inspect_row(&row, &base.template, &base.tokenizer, &options);
                let Some(inspected) = faults.take(inspected) else {
                    continue;
                };
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
        },
    )?;
    match (&args.row, shown) {
        (Some(row), 0) => Err(Error::Usage(format!(
            "--row {row}: no such row; give a line number, or file:line"
        ))),
        _ => Ok(()),
    }
}

fn is_wanted(args: &InspectArgs, row: &Row) -> bool {
    let Some(wanted) = &args.row else { return true };
    row.id == *wanted || row.id.rsplit(':').next() == Some(wanted)
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
                "{} turns not learned, {reason}: messages {}",
                messages.len(),
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
    print_line(&format!(
        "{} values in arguments, {} of them not learned: {}\n",
        row.argument_values.len(),
        masked.clone().count(),
        masked
            .map(|value| value.text.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    ))
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
