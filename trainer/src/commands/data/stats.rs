//! `data stats`: counts the rows of a file and measures their length and complexity.

use std::cell::RefCell;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use tooltune_agents::pairs::read_pairs_of;
use tooltune_apis::{ApiCatalogue, ToolsError, TrajectoryReader};
use tooltune_hub::RepoKind;
use tooltune_json::faults::Faults;
use tooltune_json::lines::Records;
use tooltune_rows::statistics::{FileStatistics, GroupStatistics, MeasureStatistics, TokenCount};
use tooltune_rows::text::{Columns, DataFormat, Row, RowReader, SlotPrompt, recognise_records};
use tooltune_suites::{SuiteFile, SuiteFileInput};
use tooltune_synth::statistics::{
    FileKind, SlotStatistics, conversation_statistics, pair_statistics, trajectory_statistics,
};

use crate::base_model::BaseModel;
use crate::cli::StatsArgs;
use crate::commands::target::refuse_hub_name;
use crate::commands::{count_noun, print_line};
use crate::error::Error;

pub(in crate::commands) fn run(args: &StatsArgs) -> Result<(), Error> {
    refuse_hub_name(RepoKind::Dataset, &args.file)?;
    if let Some(model) = &args.model {
        refuse_hub_name(RepoKind::Model, model)?;
    }
    let tokenizer = args
        .model
        .as_deref()
        .map(BaseModel::open_tokenizer)
        .transpose()?;
    let failure = RefCell::new(None);
    let count = |text: &str| match tokenizer.as_ref().map(|t| t.encode(text)) {
        Some(Ok(encoded)) => encoded.ids.len(),
        Some(Err(error)) => {
            failure.borrow_mut().get_or_insert(error);
            0
        }
        None => 0,
    };
    let count: &dyn Fn(&str) -> usize = &count;
    let tokens = tokenizer.is_some().then_some(count);
    let kind = match FileKind::detect(open(&args.file)?)? {
        Some(kind) => kind,
        // The row reader reports the known formats and the missing fields.
        None => {
            recognise_records(open(&args.file)?, &Columns::default()).map(|_| FileKind::Slot)?
        }
    };
    refuse_other_options(args, kind)?;
    let tables = match kind {
        FileKind::Slot => slot(args, tokens)?,
        _ => tables(&args.file, &file_statistics(args, kind, tokens)?),
    };
    if let Some(error) = failure.take() {
        return Err(Error::Usage(format!("{}: {error}", args.file.display())));
    }
    print_line(&tables.join("\n"))
}

fn refuse_other_options(args: &StatsArgs, kind: FileKind) -> Result<(), Error> {
    let applies = |kind: FileKind| match kind {
        FileKind::SuiteRows(file) => file.refers.is_some(),
        _ => false,
    };
    let applicable = SuiteFile::all().filter(|file| file.refers.is_some());
    let applicable: Vec<&str> = applicable.map(|file| file.rows).collect();
    let takes_documents = kind == FileKind::Trajectories;
    for (option, value, is_taken, what) in [
        (
            "--documents",
            &args.documents,
            takes_documents,
            "trajectories",
        ),
        (
            "--responses",
            &args.responses,
            applies(kind),
            &*applicable.join(" and "),
        ),
    ] {
        if value.is_some() && !is_taken {
            return Err(Error::Usage(format!(
                "{option} only applies to {what}, but {} has other rows; omit it",
                args.file.display()
            )));
        }
    }
    Ok(())
}

fn slot(args: &StatsArgs, tokens: TokenCount<'_>) -> Result<Vec<String>, Error> {
    let count = |text: &str| tokens.map_or(0, |count| count(text));
    let mut statistics = SlotStatistics::new(count, SlotPrompt::default());
    for row in rows(args, DataFormat::Slot)? {
        if let Some(slot) = &row.slot {
            statistics.add(&slot.input_text, &slot.json_schema, &slot.gold)?;
        }
    }
    let table = statistics.table();
    let measures: Vec<MeasureStatistics> = table
        .measures
        .into_iter()
        .filter(|measure| tokens.is_some() || !measure.name.ends_with("_tokens"))
        .collect();
    Ok(vec![
        format!(
            "{} in {}",
            count_noun(table.n_rows, "row"),
            args.file.display()
        ),
        measure_table(&measures),
    ])
}

/// Opens a file of rows in any file format.
fn open(file: &Path) -> Result<Box<dyn Records>, Error> {
    Ok(tooltune_files::open(file).map_err(ToolsError::from)?)
}

fn rows(args: &StatsArgs, format: DataFormat) -> Result<Vec<Row>, Error> {
    let mut faults = Faults::default();
    let rows = RowReader::new(open(&args.file)?, format);
    let rows: Vec<Row> = rows.filter_map(|row| faults.take(row)).collect();
    faults.into_result()?;
    Ok(rows)
}

fn file_statistics(
    args: &StatsArgs,
    kind: FileKind,
    tokens: TokenCount<'_>,
) -> Result<FileStatistics, Error> {
    let file = &args.file;
    Ok(match kind {
        FileKind::Slot => conversation_statistics(&rows(args, DataFormat::Slot)?, tokens),
        FileKind::Rows(format) => conversation_statistics(&rows(args, format)?, tokens),
        FileKind::Trajectories => {
            let catalogue = args.documents.as_deref().map(ApiCatalogue::read);
            let rows = TrajectoryReader::new(open(file)?).collect::<Result<Vec<_>, _>>()?;
            trajectory_statistics(&rows, catalogue.transpose()?.as_ref(), tokens)
        }
        FileKind::Pairs => pair_statistics(&read_pairs_of(vec![open(file)?])?, tokens),
        FileKind::SuiteRows(of_suite) => {
            let referred = args.responses.as_deref();
            if let (None, Some(what)) = (referred, of_suite.refers) {
                let file = file.display();
                return Err(Error::Usage(format!("{file} has {what} with --responses")));
            }
            let input = SuiteFileInput {
                file,
                referred,
                count_tokens: tokens,
                open: tooltune_files::open,
            };
            (of_suite.statistics)(input).map_err(Error::Suite)?
        }
    })
}

/// Formats the statistics of a file as tables.
pub(in crate::commands) fn tables(file: &Path, statistics: &FileStatistics) -> Vec<String> {
    let mut counts = statistics.counts.iter();
    let mut tables = Vec::new();
    if let Some(first) = counts.next() {
        tables.push(format!("{} {} in {}", first.n, first.name, file.display()));
    }
    let counts: Vec<String> = counts
        .map(|count| format!("{} {}", count.n, count.name))
        .collect();
    tables.extend(counts);
    if !statistics.groups.is_empty() {
        tables.push(group_table(&statistics.groups));
    }
    tables.push(measure_table(&statistics.measures));
    tables
}

fn group_table(groups: &[GroupStatistics]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let counts = groups.first().map_or(&[][..], |group| &group.counts);
    let mut header = vec!["endpoint".to_owned()];
    header.extend(counts.iter().map(|count| count.name.clone()));
    let measure = groups.first().map_or("", |group| group.measure.name);
    header.push(format!("{measure}, mean"));
    header.extend(["stdev", "min", "median", "max"].map(str::to_owned));
    table.set_header(header);
    for group in groups {
        let m = &group.measure;
        let mut cells = vec![group.name.clone()];
        cells.extend(group.counts.iter().map(|count| count.n.to_string()));
        cells.extend([m.mean, m.stdev, m.min, m.p50, m.max].map(|value| format!("{value:.1}")));
        table.add_row(cells);
    }
    align_columns(table)
}

fn measure_table(measures: &[MeasureStatistics]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "measure", "mean", "stdev", "min", "p50", "p90", "p95", "p99", "max",
    ]);
    for m in measures {
        let values = [m.mean, m.stdev, m.min, m.p50, m.p90, m.p95, m.p99, m.max];
        let cells = values.map(|value| format!("{value:.1}"));
        table.add_row(std::iter::once(m.name.to_string()).chain(cells));
    }
    align_columns(table)
}

fn align_columns(mut table: Table) -> String {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
