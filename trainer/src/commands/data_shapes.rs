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
use tooltune_rows::text::{DataFormat, SlotRow, all_rows, read_rows};
use tooltune_rows::tools::JsonLines;
use tooltune_suites::{Shortening, reduce};
use tooltune_synth::import::{
    E2eRows, Imported, import_e2e, import_issues, import_totto, import_webnlg, import_wikibio,
};

use super::data::write_lines;
use super::{eprint_line, print_line};
use crate::cli::{
    E2eRowsName, FlatFormArgs, FlattenArgs, FlattenWhenName, ImportArgs, ImportFormat, ReduceArgs,
    UnflattenArgs,
};
use crate::error::Error;
use crate::eval::prediction::{Prediction, read_predictions};
use crate::settings;

/// A row as a line of a file.
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

/// Imports a data set of texts and facts; `None` for layouts of API documentation.
pub(super) fn import_rows(args: &ImportArgs) -> Result<Option<()>, Error> {
    let files = args.files.as_slice();
    let imported = match (args.format, files) {
        (ImportFormat::Webnlg, files) => import_webnlg(files)?,
        (ImportFormat::E2e, [file]) => import_e2e(file, e2e_rows(args.e2e_rows))?,
        (ImportFormat::Wikibio, [boxes, texts]) => import_wikibio(boxes, texts)?,
        (ImportFormat::Totto, [file]) => import_totto(file)?,
        (ImportFormat::GithubIssues, [form, issues]) => import_issues(form, issues)?,
        (ImportFormat::Wikibio, _) => return Err(wants("the .box file and the file of texts")),
        (ImportFormat::GithubIssues, _) => {
            return Err(wants("the form's YAML and the issues' JSON"));
        }
        (ImportFormat::E2e | ImportFormat::Totto, _) => return Err(wants("one file")),
        _ => return Ok(None),
    };
    let Imported { rows, counts } = imported;
    write_lines("rows", rows.iter().map(SlotLine::from), Some(&args.output))?;
    for (what, reasons) in [
        ("left out", counts.dropped),
        ("not in a gold", counts.left_out),
    ] {
        for (reason, n) in reasons {
            print_line(&format!("{n} {what}: {reason}"))?;
        }
    }
    Ok(Some(()))
}

fn wants(files: &str) -> Error {
    Error::Usage(format!(
        "this layout takes {files}; name nothing more and nothing less"
    ))
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
    Ok(all_rows(rows)?
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
            on_collision: settings::on_collision(form.collisions),
        },
        ..RowFlattening::default()
    }
}

pub(super) fn flatten(args: &FlattenArgs) -> Result<(), Error> {
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

pub(super) fn unflatten(args: &UnflattenArgs) -> Result<(), Error> {
    let flattening = flattening(&args.form);
    let rows = slot_rows(&args.rows)?;
    let predictions = read_predictions(&args.predictions)?;
    if rows.len() != predictions.len() {
        return Err(Error::Usage(format!(
            "{} predictions for {} rows; give the nested rows that the flat ones were made of, all \
             of them and in their order",
            predictions.len(),
            rows.len()
        )));
    }
    let (mut flattened, mut report) = (FlattenReport::default(), UnflattenReport::default());
    let nested: Vec<Prediction> = rows
        .iter()
        .zip(predictions)
        .map(|(row, prediction)| {
            let flat = flatten_slot_row(row, &flattening, &mut flattened);
            let nested = flat.nested_completion(&prediction.prediction, &mut report);
            Prediction {
                // The prediction is of the nested row now, against which it will be scored.
                id: row.id.clone(),
                prediction: nested.text,
                ..prediction
            }
        })
        .collect();
    write_lines("predictions", nested, args.output.as_deref())?;
    for (reason, n) in &report.malformed {
        eprint_line(&format!("{n} are malformed: {reason}"))?;
    }
    Ok(())
}

pub(super) fn reduce_outputs(args: &ReduceArgs) -> Result<(), Error> {
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
        let (place, value) = line?;
        let refused = |error| Error::Usage(format!("{place}: --jmespath: {error}"));
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
