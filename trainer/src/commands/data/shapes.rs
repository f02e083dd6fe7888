//! `data flatten`, `data unflatten`, `data reduce`, and imports of data sets as SLOT rows.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::{
    FlattenOptions, FlattenReport, FlattenWhen, RowFlattening, UnflattenReport, flatten_slot_row,
};
use tooltune_agents::truncation::{
    PruneOptions, ShapeOptions, TruncationOptions, filter, truncate_output,
};
use tooltune_apis::JsonLines;
use tooltune_json::faults::collect_rows;
use tooltune_rows::text::{DataFormat, SlotRow, read_rows};
use tooltune_suites::{Shortening, reduce};
use tooltune_synth::import::{
    E2eRows, Imported, import_e2e, import_issues, import_totto, import_webnlg, import_wikibio,
};

use crate::cli::{
    E2eRowsName, FlatFormArgs, FlattenArgs, FlattenWhenName, ImportArgs, ImportFormat, ReduceArgs,
    UnflattenArgs,
};
use crate::commands::data::write_lines;
use crate::commands::new_file::must_be_new;
use crate::commands::{eprint_line, print_line};
use crate::config::Suite;
use crate::error::Error;
use crate::eval::prediction::Prediction;
use crate::eval::saved::{JoinedRows, Saved, join_saved, read_saved};
use crate::settings;

/// A line of the output file: one row.
#[derive(Serialize)]
struct SlotLine<'a> {
    input_text: &'a str,
    json_schema: &'a Value,
    gold: &'a Value,
}

impl<'a> From<&'a SlotRow> for SlotLine<'a> {
    fn from(row: &'a SlotRow) -> Self {
        Self {
            input_text: &row.input_text,
            json_schema: &row.json_schema,
            gold: &row.gold,
        }
    }
}

/// Imports a data set as SLOT rows; `None` for formats of API documentation.
pub(in crate::commands) fn import_rows(args: &ImportArgs) -> Result<Option<()>, Error> {
    let files = args.files.as_slice();
    let imported = match (args.format, files) {
        (ImportFormat::Webnlg, files) => import_webnlg(files)?,
        (ImportFormat::E2e, [file]) => import_e2e(file, e2e_rows(args.e2e_rows))?,
        (ImportFormat::Wikibio, [boxes, texts]) => import_wikibio(boxes, texts)?,
        (ImportFormat::Totto, [file]) => import_totto(file)?,
        (ImportFormat::GithubIssues, [form, issues]) => import_issues(form, issues)?,
        (ImportFormat::Wikibio, _) => return Err(missing_files("the .box file and the text file")),
        (ImportFormat::GithubIssues, _) => {
            return Err(missing_files(
                "the YAML of the form and the JSON of the issues",
            ));
        }
        (ImportFormat::E2e | ImportFormat::Totto, _) => return Err(missing_files("one file")),
        _ => return Ok(None),
    };
    let Imported { rows, counts } = imported;
    write_lines("rows", rows.iter().map(SlotLine::from), Some(&args.output))?;
    for (what, reasons) in [
        ("dropped", counts.dropped),
        ("not in a reference", counts.left_out),
    ] {
        for (reason, n) in reasons {
            print_line(&format!("{n} {what}: {reason}"))?;
        }
    }
    Ok(Some(()))
}

fn missing_files(files: &str) -> Error {
    Error::Usage(format!("this layout needs exactly {files}"))
}

fn e2e_rows(name: E2eRowsName) -> E2eRows {
    match name {
        E2eRowsName::Every => E2eRows::Every,
        E2eRowsName::OnePerMeaning => E2eRows::OnePerMeaning,
        E2eRowsName::Mentioned => E2eRows::Mentioned,
    }
}

fn slot_rows(path: &Path) -> Result<Vec<SlotRow>, Error> {
    let rows = read_rows(path, DataFormat::Slot)?;
    Ok(collect_rows(rows)?
        .into_iter()
        .filter_map(|row| row.slot)
        .collect())
}

fn flattening(form: &FlatFormArgs) -> RowFlattening {
    RowFlattening {
        when: match form.when {
            FlattenWhenName::Advised => FlattenWhen::Advised,
            FlattenWhenName::Always => FlattenWhen::Always,
        },
        options: FlattenOptions {
            slots: form.slots,
            separator: form.separator.clone(),
            on_collision: settings::collision_rule(form.collisions),
        },
        ..RowFlattening::default()
    }
}

pub(in crate::commands) fn flatten(args: &FlattenArgs) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let (flattening, mut report) = (flattening(&args.form), FlattenReport::default());
    let rows = slot_rows(&args.file)?;
    let flat: Vec<SlotRow> = rows
        .iter()
        .map(|row| flatten_slot_row(row, &flattening, &mut report).row)
        .collect();
    write_lines(
        "rows",
        flat.iter().map(SlotLine::from),
        args.output.as_deref(),
    )?;
    for line in report.lines() {
        eprint_line(&line)?;
    }
    Ok(())
}

pub(in crate::commands) fn unflatten(args: &UnflattenArgs) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let flattening = flattening(&args.form);
    let rows = slot_rows(&args.rows)?;
    let predictions = match_predictions(&args.predictions, &rows)?;
    let (mut flattened, mut report) = (FlattenReport::default(), UnflattenReport::default());
    let nested: Vec<Prediction> = rows
        .iter()
        .zip(predictions)
        .map(|(row, prediction)| {
            let flat = flatten_slot_row(row, &flattening, &mut flattened);
            let nested = flat.nested_completion(&prediction.prediction, &mut report);
            Prediction {
                // Give the prediction the ID of the nested row, which it will be scored against.
                id: row.id.clone(),
                prediction: nested.text,
                ..prediction
            }
        })
        .collect();
    write_lines("predictions", nested, args.output.as_deref())?;
    for (reason, n) in &report.malformed {
        eprint_line(&format!("{n} predictions are malformed: {reason}"))?;
    }
    Ok(())
}

/// Matches predictions on flat rows to nested rows. A prediction has either the ID of its nested
/// row, or the ID of its line in the flat file. `data flatten` writes row 3 to line 3.
fn match_predictions(path: &Path, rows: &[SlotRow]) -> Result<Vec<Prediction>, Error> {
    let suite = Suite::first().info();
    let saved = read_saved(path, suite, None, Prediction::parse_line)?;
    let flat_file = saved.first().and_then(|line| line.id.rsplit_once(':'));
    let flat_file = flat_file.map_or("", |(file, _)| file).to_owned();
    let is_nested = |line: &Saved<Prediction>| rows.iter().any(|row| row.id == line.id);
    let flat_ids: Vec<String> = match saved.first() {
        Some(first) if !is_nested(first) => {
            let lines = 1..=rows.len();
            lines.map(|line| format!("{flat_file}:{line}")).collect()
        }
        _ => rows.iter().map(|row| row.id.clone()).collect(),
    };
    let rows = JoinedRows {
        what: "rows",
        ids: flat_ids.iter().map(String::as_str).collect(),
        are_places: true,
        are_limited: false,
    };
    Ok(join_saved(path, saved, &rows)?.values)
}

pub(in crate::commands) fn reduce_outputs(args: &ReduceArgs) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let shortening = args.rule.shortening(TruncationOptions {
        shape: ShapeOptions {
            filter: args.jmespath.clone(),
            prune: PruneOptions {
                max_items: args.max_items,
                max_depth: args.max_depth,
                ..PruneOptions::default()
            },
        },
        max_chars: args.max_chars,
    });
    let mut short = Vec::new();
    for line in JsonLines::open(&args.file)? {
        let (location, value) = line?;
        let refused = |error| Error::Usage(format!("{location}: --jmespath: {error}"));
        short.push(match &shortening {
            Shortening::Truncate(options) => {
                Value::String(truncate_output(&value, options).map_err(refused)?)
            }
            Shortening::Reduce(reduction) => match &args.jmespath {
                Some(expression) => {
                    reduce(&filter(expression, &value).map_err(refused)?, *reduction)
                }
                None => reduce(&value, *reduction),
            },
        });
    }
    write_lines("outputs", short, args.output.as_deref())
}
