//! Reads rows from the data files of a config, whatever their format.
//!
//! Trajectories are no rows: each is expanded to several, with API documents beside the right ones
//! that chance or a retriever chooses. All other formats are rows as they are, or with flat schemas
//! where the config flattens.

mod files;

use std::cell::Cell;
use std::collections::HashMap;

use burn::tensor::Device;
use tooltune_agents::flat::{FlatDocuments, FlattenReport, flatten_rows};
use tooltune_agents::{Distractors, Expansion, GoatOptions, Ranking, goat_rows};
use tooltune_rows::text::{
    self, Columns, DataError, Row, RowNotes, RowParser, RowReader, all_rows,
};
use tooltune_rows::tools::{
    ApiCatalogue, CheckedTrajectories, Trajectory, read_distinct_trajectories,
};

pub use self::files::RowFiles;

use crate::config::{Config, DataFormat, GoatConfig};
use crate::encoder::documents::{DocumentIndex, texts_of, untrained, warn_of_cut_documents};
use crate::error::Error;
use crate::progress::RowsProgress;
use crate::settings;

/// Rows, one at a time.
pub type Rows<'r> = dyn Iterator<Item = Result<Row, DataError>> + 'r;

/// What reading rows finds beside them.
#[derive(Debug, Default)]
pub struct ReadingReport {
    /// What became of schemas, where the config flattens them.
    pub flattened: FlattenReport,
    /// What the rows have that their format does not read, and calls without results.
    pub notes: RowNotes,
    /// Whether there are rows beyond the first `eval.max_samples`.
    pub has_more: bool,
}

impl ReadingReport {
    /// What became of the rows of an evaluation, in sentences.
    pub fn lines(&self, config: &Config) -> Vec<String> {
        let mut lines = note_lines("data.eval", &self.notes);
        lines.extend(self.has_more.then(|| more_rows(config)));
        lines
    }
}

/// What to know of the rows of some files, in sentences.
pub fn note_lines(files: &str, notes: &RowNotes) -> Vec<String> {
    let lines = notes.lines().into_iter();
    lines.map(|line| format!("{files}: {line}")).collect()
}

/// That there are rows beyond `eval.max_samples`.
pub fn more_rows(config: &Config) -> String {
    format!(
        "data.eval: the first {} rows are read, and there are more (eval.max_samples)",
        config.eval.max_samples.unwrap_or_default()
    )
}

/// Calls `work` with the rows of `files`, which have the format of the config.
///
/// `device` computes the retriever where it chooses documents, and `report` says what reading found
/// in the rows that `work` has read.
///
/// # Errors
///
/// A file that cannot be opened, documents or a retriever that cannot be read, or what `work` says.
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
        current: &Cell::new(0),
    };
    with_rows_of(source, report, work)
}

/// Where rows come from.
#[derive(Debug, Clone, Copy)]
pub struct RowSource<'a> {
    /// The settings.
    pub config: &'a Config,
    /// The files.
    pub files: &'a RowFiles,
    /// What computes the retriever where it chooses documents.
    pub device: &'a Device,
    /// Whether SLOT rows must have one.
    pub has_golds: bool,
    /// Is set to the number of the file that a row is of, while it is read.
    pub current: &'a Cell<usize>,
}

/// The format of the rows of a config; none where they are trajectories.
///
/// # Errors
///
/// It is left to files that are not here.
pub fn rows_format(config: &Config, files: &RowFiles) -> Result<Option<text::DataFormat>, Error> {
    if config.data.format == DataFormat::Auto && !files.is_empty() {
        return Err(unrecognised());
    }
    Ok(config.data.format.of_rows())
}

/// What makes rows of records as the config says.
///
/// # Errors
///
/// A prompt of slot rows that cannot be read.
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

/// A row with the system message of `data.system`, where it begins with none.
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
        ..
    } = source;
    let Some(format) = rows_format(config, files)? else {
        return with_examples(source, report, work);
    };
    let mut readers = Vec::new();
    for records in files.open()? {
        let parser = row_parser(config, format)?;
        let parser = if has_golds {
            parser
        } else {
            parser.without_golds()
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

/// The first `eval.max_samples` rows of the evaluation files; `report` says what reading found in
/// them.
///
/// # Errors
///
/// A file that cannot be read, or rows; the error tells of all of them.
pub fn eval_rows(
    config: &Config,
    device: &Device,
    report: &mut ReadingReport,
) -> Result<Vec<Row>, Error> {
    first_rows(config, device, true, report)
}

/// The same for rows that are asked and not compared, so that SLOT rows need no gold.
///
/// # Errors
///
/// As [`eval_rows`].
pub fn asked_rows(
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
        current: &Cell::new(0),
    };
    let mut has_more = false;
    let rows = with_rows_of(source, report, |rows| {
        let first = all_rows((&mut *rows).take(limit))?;
        has_more = rows.next().is_some();
        Ok(first)
    });
    report.has_more = has_more;
    rows
}

/// Rows of a format that no file told, because none was here when the config was read.
fn unrecognised() -> Error {
    Error::Usage(
        "data.format is \"auto\", and none of the files that [data] names is here to tell the format; \
         name it, as with --set data.format=messages"
            .to_string(),
    )
}

/// The documents of a catalogue as a model sees them, where the config flattens.
///
/// # Errors
///
/// A prompt of slot rows that cannot be read.
pub fn flat_documents(
    config: &Config,
    catalogue: &ApiCatalogue,
) -> Result<Option<FlatDocuments>, Error> {
    let flattening = settings::flattening(&config.data)?;
    Ok(flattening.map(|flattening| FlatDocuments::new(catalogue, &flattening)))
}

/// Calls `work` with the rows that trajectories are expanded to, as [`with_rows`] does.
///
/// # Errors
///
/// As [`with_rows`].
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
    // Texts are embedded together, which is many times faster than one by one.
    let mut of_file = Vec::new();
    let trajectories = all_rows(trajectories.inspect(|trajectory| {
        if trajectory.is_ok() {
            of_file.push(current.get());
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
    let trajectories = trajectories.into_iter().zip(of_file);
    let trajectories = trajectories.map(|(trajectory, file)| {
        current.set(file);
        Ok::<_, DataError>(trajectory)
    });
    work(&mut goat_rows(trajectories, expansion, ranking))
}

/// The positions of the documents nearest to each text that the expansion will ask for.
fn ranked_documents(
    config: &Config,
    trajectories: &[Trajectory],
    expansion: Expansion<'_>,
    device: &Device,
) -> Result<HashMap<String, Vec<usize>>, Error> {
    let retriever = untrained(config, device)?;
    warn_of_cut_documents(expansion.catalogue, &retriever.files)?;
    let index = DocumentIndex::new(retriever, &texts_of(expansion.catalogue))?;
    let mut texts: Vec<String> = trajectories
        .iter()
        .flat_map(|trajectory| expansion.retrieval_texts(trajectory))
        .collect();
    texts.sort();
    texts.dedup();
    // As many as a prompt can hold beside gold ones that the retriever misses.
    let k = 2 * expansion.options.n_documents;
    let ranked = index.nearest(&texts, k)?;
    Ok(texts.into_iter().zip(ranked).collect())
}

/// The trajectories of the evaluation files, at most `eval.max_samples`, checked.
///
/// # Errors
///
/// A file that cannot be read, trajectories that cannot be or do not fit the documents, or two of
/// one id; the error tells of all trajectories at fault.
pub fn eval_trajectories(
    config: &Config,
    catalogue: &ApiCatalogue,
) -> Result<Vec<Trajectory>, Error> {
    let limit = config.eval.max_samples.unwrap_or(usize::MAX);
    let files = RowFiles::evaluation(config).open()?;
    Ok(read_distinct_trajectories(files, catalogue, limit)?)
}

/// The table `[goat]`.
///
/// # Errors
///
/// The config has no such table.
pub fn goat_config(config: &Config) -> Result<&GoatConfig, Error> {
    config.goat.as_ref().ok_or_else(|| {
        Error::Usage(
            "the table [goat], which says how trajectories become prompts and where the documents \
             of their APIs are, is missing; add [goat] with documents"
                .to_string(),
        )
    })
}

/// The options of the `[goat]` table.
///
/// # Errors
///
/// The config has no such table.
pub fn goat_options(config: &Config) -> Result<GoatOptions, Error> {
    Ok(settings::goat(goat_config(config)?))
}
