//! Reads rows of any format from the data files of a config.
//!
//! A trajectory is expanded to several rows, whose prompts contain the gold API documents and
//! others that are random or selected by a retriever. Rows of other formats are used unchanged, or
//! with flattened schemas if the config requests it.

mod files;
mod functions;
mod learned;
mod system;

use std::cell::Cell;
use std::collections::HashMap;

use burn::tensor::Device;
use tooltune_agents::flat::{FlatDocuments, FlattenReport, flatten_rows};
use tooltune_agents::{Distractors, Expansion, GoatOptions, Ranking, goat_rows};
use tooltune_apis::{ApiCatalogue, CheckedTrajectories, Trajectory, read_distinct_trajectories};
use tooltune_json::faults::collect_rows;
use tooltune_json::json_schema::FormatRule;
use tooltune_rows::text;
use tooltune_rows::text::{Columns, DataError, Row, RowNotes, RowParser, RowReader};

pub use self::files::RowFiles;
pub use self::functions::SharedFunctions;
pub use self::learned::{SettingFiles, refuse_training_files};
pub use self::system::missing_system;

use crate::config::{Config, DataFormat, GoatConfig};
use crate::encoder::documents::{
    DocumentIndex, load_untrained_retriever, texts_of, warn_of_cut_documents,
};
use crate::error::Error;
use crate::settings;
use tooltune_terminal::RowsProgress;

/// Iterator over rows.
pub type Rows<'r> = dyn Iterator<Item = Result<Row, DataError>> + 'r;

/// Statistics and notes from reading rows.
#[derive(Debug, Default)]
pub struct ReadingReport {
    /// Statistics on flattened schemas, if the config flattens them.
    pub flattened: FlattenReport,
    /// Notes on row fields that the format ignores, and on calls without results.
    pub notes: RowNotes,
    /// Whether there are more rows than `eval.max_samples`.
    pub has_more: bool,
}

impl ReadingReport {
    /// Report lines about the rows of an evaluation.
    pub fn lines(&self, config: &Config) -> Vec<String> {
        let mut lines = note_lines("data.eval", &self.notes);
        lines.extend(self.has_more.then(|| more_rows(config)));
        lines
    }
}

/// Report lines about the rows of some files.
pub fn note_lines(files: &str, notes: &RowNotes) -> Vec<String> {
    let lines = notes.lines().into_iter();
    lines.map(|line| format!("{files}: {line}")).collect()
}

/// The report line if there are more rows than `eval.max_samples`.
pub fn more_rows(config: &Config) -> String {
    format!(
        "data.eval: only the first {} rows are used (eval.max_samples)",
        config.eval.max_samples.unwrap_or_default()
    )
}

/// Calls `work` with the rows of `files`, which have the format of the config.
///
/// `device` runs the retriever if it selects documents. `report` collects notes on the rows that
/// `work` reads.
///
/// # Errors
///
/// A file cannot be opened, documents or a retriever cannot be read, or `work` fails.
pub fn with_rows<R>(
    config: &Config,
    files: &RowFiles,
    device: &Device,
    report: &mut ReadingReport,
    work: impl FnOnce(&mut Rows<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let source = RowSource {
        config,
        files,
        device,
        has_golds: true,
        formats: FormatRule::Asserted,
        current: &Cell::new(0),
    };
    with_rows_of(source, report, work)
}

/// Inputs for reading rows.
#[derive(Debug, Clone, Copy)]
pub struct RowSource<'a> {
    /// Config.
    pub config: &'a Config,
    /// Files to read.
    pub files: &'a RowFiles,
    /// Device for the retriever, if it selects documents.
    pub device: &'a Device,
    /// Whether SLOT rows must have gold JSON.
    pub has_golds: bool,
    /// How `format` in the schemas of rows is handled.
    pub formats: FormatRule,
    /// Receives the file index of each row while it is read.
    pub current: &'a Cell<usize>,
}

/// The row format of a config; `None` for trajectories.
///
/// # Errors
///
/// The format must be detected, but no file exists.
pub fn rows_format(config: &Config, files: &RowFiles) -> Result<Option<text::DataFormat>, Error> {
    if config.data.format == DataFormat::Auto && !files.is_empty() {
        return Err(undetected_format());
    }
    Ok(config.data.format.row_format())
}

/// Creates a row parser with the config's settings.
///
/// # Errors
///
/// The prompt of SLOT rows cannot be read.
pub fn row_parser(config: &Config, format: text::DataFormat) -> Result<RowParser, Error> {
    let parser = RowParser::new(format)
        .with_slot_prompt(settings::slot_prompt(&config.data)?)
        .with_columns(Columns::new(config.data.columns.clone()));
    Ok(if config.data.check_calls {
        parser
    } else {
        parser.with_unchecked_calls()
    })
}

/// Adds the system message `data.system` to a row that has none.
pub fn with_system(config: &Config, row: Row) -> Row {
    match &config.data.system {
        None => row,
        Some(text) => Row {
            conversation: row.conversation.with_system(text),
            ..row
        },
    }
}

fn with_rows_of<R>(
    source: RowSource<'_>,
    report: &mut ReadingReport,
    work: impl FnOnce(&mut Rows<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let RowSource {
        config,
        files,
        has_golds,
        formats,
        ..
    } = source;
    let Some(format) = rows_format(config, files)? else {
        return with_examples(source, report, work);
    };
    let mut readers = Vec::new();
    for records in files.open()? {
        let parser = row_parser(config, format)?.with_formats(formats);
        let parser = if has_golds {
            parser
        } else {
            parser.allow_missing_golds()
        };
        readers.push(RowReader::new(records, format).with(|_| parser));
    }
    let mut progress = RowsProgress::begin(files.paths());
    let rows = readers.iter_mut().flatten();
    let rows = rows.inspect(|_| progress.row());
    let system = |row: Result<Row, DataError>| row.map(|row| with_system(config, row));
    let done = match settings::flattening(&config.data)? {
        None => work(&mut rows.map(system)),
        Some(flattening) => {
            let rows = flatten_rows(rows, &flattening, &mut report.flattened);
            work(&mut rows.map(system))
        }
    };
    for reader in &readers {
        report.notes.add(reader.notes());
    }
    done
}

/// Reads the first `eval.max_samples` evaluation rows; `report` collects notes on them.
///
/// # Errors
///
/// A file cannot be read, or rows are invalid; the error lists all of them.
pub fn eval_rows(
    config: &Config,
    device: &Device,
    report: &mut ReadingReport,
) -> Result<Vec<Row>, Error> {
    first_rows(config, device, true, report)
}

/// Like [`eval_rows`], for rows that are only used as prompts: SLOT rows need no gold JSON.
///
/// # Errors
///
/// As for [`eval_rows`].
pub fn prompt_rows(
    config: &Config,
    device: &Device,
    report: &mut ReadingReport,
) -> Result<Vec<Row>, Error> {
    first_rows(config, device, false, report)
}

fn first_rows(
    config: &Config,
    device: &Device,
    has_golds: bool,
    report: &mut ReadingReport,
) -> Result<Vec<Row>, Error> {
    let limit = config.eval.max_samples.unwrap_or(usize::MAX);
    let source = RowSource {
        config,
        files: &RowFiles::evaluation(config),
        device,
        has_golds,
        // Published data sets contain values that violate `format`, and published scorers accept
        // them.
        formats: FormatRule::Annotated,
        current: &Cell::new(0),
    };
    let mut has_more = false;
    let rows = with_rows_of(source, report, |rows| {
        let first = collect_rows((&mut *rows).take(limit))?;
        has_more = rows.next().is_some();
        Ok(first)
    });
    report.has_more = has_more;
    rows
}

/// The error if the format could not be detected because no file existed when the config was read.
fn undetected_format() -> Error {
    Error::Usage(
        "data.format is \"auto\", but none of the files in [data] exists to detect the format; \
         set the format, for example with --set data.format=messages"
            .to_string(),
    )
}

/// The documents of a catalogue in flattened form, if the config flattens schemas.
///
/// # Errors
///
/// The prompt of SLOT rows cannot be read.
pub fn flat_documents(
    config: &Config,
    catalogue: &ApiCatalogue,
) -> Result<Option<FlatDocuments>, Error> {
    let flattening = settings::flattening(&config.data)?;
    Ok(flattening.map(|flattening| FlatDocuments::new(catalogue, &flattening)))
}

/// Like [`with_rows`], for rows that are expanded from trajectories.
///
/// # Errors
///
/// As for [`with_rows`].
pub fn with_examples<R>(
    source: RowSource<'_>,
    report: &mut ReadingReport,
    work: impl FnOnce(&mut Rows<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let RowSource {
        config,
        files,
        device,
        current,
        ..
    } = source;
    let options = goat_options(config)?;
    options.validate()?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let flat = flat_documents(config, &catalogue)?;
    if let Some(flat) = &flat {
        report.flattened = flat.report().clone();
    }
    let expansion = Expansion {
        catalogue: flat.as_ref().map_or(&catalogue, FlatDocuments::catalogue),
        options: &options,
        seed: config.train.seed,
    };
    let mut progress = RowsProgress::begin([]);
    let readers = files.open()?.into_iter().enumerate();
    let trajectories = readers.flat_map(|(file, records)| {
        CheckedTrajectories::new(records, &catalogue).map(move |trajectory| (file, trajectory))
    });
    let trajectories = trajectories.inspect(|_| progress.row());
    let trajectories = trajectories.map(|(file, trajectory)| {
        current.set(file);
        let trajectory = trajectory.map_err(DataError::from)?;
        match &flat {
            Some(flat) => flat.trajectory(trajectory),
            None => Ok(trajectory),
        }
    });
    if options.distractors == Distractors::Random {
        return work(&mut goat_rows(trajectories, expansion, Ranking::Random));
    }
    // Embed all texts together, which is many times faster than one by one.
    let mut file_indices = Vec::new();
    let trajectories = collect_rows(trajectories.inspect(|trajectory| {
        if trajectory.is_ok() {
            file_indices.push(current.get());
        }
    }))?;
    let ranked = ranked_documents(config, &trajectories, expansion, device)?;
    let mut nearest = |text: &str, k: usize| -> Vec<usize> {
        ranked
            .get(text)
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .copied()
            .take(k)
            .collect()
    };
    let ranking = Ranking::Retriever(&mut nearest);
    let trajectories = trajectories.into_iter().zip(file_indices);
    let trajectories = trajectories.map(|(trajectory, file)| {
        current.set(file);
        Ok::<_, DataError>(trajectory)
    });
    work(&mut goat_rows(trajectories, expansion, ranking))
}

/// Indices of the documents nearest to each text that the expansion needs.
fn ranked_documents(
    config: &Config,
    trajectories: &[Trajectory],
    expansion: Expansion<'_>,
    device: &Device,
) -> Result<HashMap<String, Vec<usize>>, Error> {
    let retriever = load_untrained_retriever(config, device)?;
    warn_of_cut_documents(expansion.catalogue, &retriever.files)?;
    let index = DocumentIndex::new(retriever, &texts_of(expansion.catalogue))?;
    let mut texts: Vec<String> = trajectories
        .iter()
        .flat_map(|trajectory| expansion.retrieval_texts(trajectory))
        .collect();
    texts.sort();
    texts.dedup();
    // Enough documents to fill a prompt, even if the retriever misses the gold documents.
    let k = 2 * expansion.options.n_documents;
    let ranked = index.nearest(&texts, k)?;
    Ok(texts.into_iter().zip(ranked).collect())
}

/// Reads and checks the trajectories of the evaluation files, at most `eval.max_samples`.
///
/// # Errors
///
/// A file cannot be read, or trajectories are invalid, do not match the documents, or share an ID.
/// The error lists all invalid trajectories.
pub fn eval_trajectories(
    config: &Config,
    catalogue: &ApiCatalogue,
) -> Result<Vec<Trajectory>, Error> {
    let limit = config.eval.max_samples.unwrap_or(usize::MAX);
    let files = RowFiles::evaluation(config).open()?;
    Ok(read_distinct_trajectories(files, catalogue, limit)?)
}

/// The `[goat]` table.
///
/// # Errors
///
/// The config has no such table.
pub fn goat_config(config: &Config) -> Result<&GoatConfig, Error> {
    config.goat.as_ref().ok_or_else(|| {
        Error::Usage(
            "the config has no [goat] table, which sets how trajectories become prompts and where the \
             documents of their APIs are; add [goat] with documents"
                .to_string(),
        )
    })
}

/// Options of the `[goat]` table.
///
/// # Errors
///
/// The config has no such table.
pub fn goat_options(config: &Config) -> Result<GoatOptions, Error> {
    Ok(settings::goat(goat_config(config)?))
}
