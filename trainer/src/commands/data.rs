//! `data synth`, `data import` and `data stats`.

use std::cell::RefCell;
use std::io::{BufWriter, Write};
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use tooltune_data::statistics::{SlotStatistics, StatisticsTable};
use tooltune_data::synth::goat::{self, GoatSplit, GoatSynthOptions};
use tooltune_data::synth::slot::{SlotSynthOptions, Split, generate};
use tooltune_data::text::{DataFormat, Faults, read_rows};
use tooltune_data::tools::{
    ApiBankSet, ApiCatalogue, RequestBodies, import_apibank, import_openapi_file,
    import_stabletoolbench,
};

use super::data_shapes::import_rows;
use super::say;
use crate::base_model::BaseModel;
use crate::cli::{
    GoatSplitName, ImportArgs, ImportFormat, SplitName, StatsArgs, SynthGoatArgs, SynthSlotArgs,
};
use crate::error::Error;

pub(super) fn synth_slot(args: &SynthSlotArgs) -> Result<(), Error> {
    let options = SlotSynthOptions {
        rows: args.rows,
        seed: args.seed,
        split: match args.split {
            SplitName::Train => Split::Train,
            SplitName::Dev => Split::Dev,
            SplitName::Test => Split::Test,
        },
    };
    write_lines("rows", generate(&options), args.output.as_deref())
}

pub(super) fn synth_goat(args: &SynthGoatArgs) -> Result<(), Error> {
    let split = match args.split {
        GoatSplitName::Train => GoatSplit::Train,
        GoatSplitName::Dev => GoatSplit::Dev,
        GoatSplitName::TestSeen => GoatSplit::TestSeen,
        GoatSplitName::TestUnseen => GoatSplit::TestUnseen,
    };
    let trajectories = goat::generate(&GoatSynthOptions {
        rows: args.rows.unwrap_or(split.default_rows()),
        seed: args.seed,
        split,
        max_calls: args.max_calls,
    })?;
    write_lines("trajectories", &trajectories, args.output.as_deref())?;
    match &args.documents {
        Some(path) => write_lines("API documents", goat::documents(), Some(path)),
        None => Ok(()),
    }
}

pub(super) fn import(args: &ImportArgs) -> Result<(), Error> {
    if args.no_bodies && args.format != ImportFormat::Openapi {
        return Err(Error::Usage(
            "--no-bodies is for the layout openapi; no other one has request bodies".to_string(),
        ));
    }
    if import_rows(args)?.is_some() {
        return Ok(());
    }
    let [file] = args.files.as_slice() else {
        return Err(Error::Usage(format!(
            "{} files are named; this layout takes one",
            args.files.len()
        )));
    };
    let bodies = match args.no_bodies {
        true => RequestBodies::LeftOut,
        false => RequestBodies::AsParameters,
    };
    let documents = match args.format {
        ImportFormat::Apibank => import_apibank(file, ApiBankSet::All),
        ImportFormat::ApibankLevel3 => import_apibank(file, ApiBankSet::Level3),
        ImportFormat::ApibankLevel12 => import_apibank(file, ApiBankSet::Levels1And2),
        ImportFormat::Stabletoolbench => import_stabletoolbench(file),
        _ => import_openapi_file(file, bodies),
    }?;
    let (catalogue, repeated) = ApiCatalogue::without_repeats(documents);
    if !repeated.is_empty() {
        say(&format!(
            "{} documents repeat the name of an earlier one and are left out: {}",
            repeated.len(),
            repeated.join(", ")
        ))?;
    }
    write_lines("API documents", catalogue.documents(), Some(&args.output))
}

/// One JSON line each, to a file with its folder, or to the terminal.
pub(super) fn write_lines<T: Serialize>(
    what: &str,
    items: impl IntoIterator<Item = T>,
    path: Option<&Path>,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let mut n = 0;
    for item in items {
        serde_json::to_writer(&mut bytes, &item).map_err(|e| Error::Usage(e.to_string()))?;
        bytes.push(b'\n');
        n += 1;
    }
    let Some(path) = path else {
        let mut output = BufWriter::new(std::io::stdout());
        return output
            .write_all(&bytes)
            .map_err(Error::io(Path::new("standard output"), "write"));
    };
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        std::fs::create_dir_all(parent).map_err(Error::io(parent, "create"))?;
    }
    tooltune_checkpoints::atomic::write_atomic(path, &bytes)?;
    say(&format!("{n} {what} in {}", path.display()))
}

/// One table of lengths and complexity; tokens are counted where a model is named.
pub(super) fn stats(args: &StatsArgs) -> Result<(), Error> {
    let tokenizer = args
        .model
        .as_deref()
        .map(BaseModel::open_tokenizer)
        .transpose()?;
    let failure = RefCell::new(None);
    let count_tokens = |text: &str| match tokenizer.as_ref().map(|t| t.encode(text)) {
        Some(Ok(encoded)) => encoded.ids.len(),
        Some(Err(error)) => {
            failure.borrow_mut().get_or_insert(error);
            0
        }
        None => 0,
    };
    let mut statistics = SlotStatistics::new(count_tokens);
    let mut faults = Faults::default();
    for row in read_rows(&args.file, DataFormat::Slot)? {
        let Some(row) = faults.take(row) else {
            continue;
        };
        let Some(slot) = &row.slot else { continue };
        statistics.add(&slot.input_text, &slot.json_schema, &slot.gold);
        if let Some(error) = failure.take() {
            return Err(Error::Usage(format!("{}: {error}", row.id)));
        }
    }
    faults.none()?;
    let table = statistics.table();
    say(&format!("{} rows in {}", table.n_rows, args.file.display()))?;
    say(&statistics_table(&table, tokenizer.is_some()))
}

fn statistics_table(statistics: &StatisticsTable, has_tokens: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["measure", "mean", "min", "p50", "p90", "p95", "p99", "max"]);
    let shown = statistics
        .measures
        .iter()
        .filter(|m| has_tokens || !m.name.ends_with("_tokens"));
    for measure in shown {
        let m = measure;
        let values = [m.mean, m.min, m.p50, m.p90, m.p95, m.p99, m.max];
        let cells = values.map(|value| format!("{value:.1}"));
        table.add_row(std::iter::once(m.name.to_string()).chain(cells));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
