//! Tokenizes rows on several threads and returns results and statistics in row order.

use std::cell::Cell;
use std::io;
use std::iter;
use std::num::NonZeroUsize;

use burn::tensor::Device;
use tooltune_agents::flat::{FlattenReport, flatten_rows};
use tooltune_json::json_schema::FormatRule;
use tooltune_rows::process_in_order;
use tooltune_rows::text::{
    DataError, ReportBuilder, Row, RowNotes, RowRecord, RowRecords, TokenizedExample, TokenizedRow,
};

use super::{Account, PrepareError};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::rows::{
    ReadingReport, RowFiles, RowSource, row_parser, rows_format, with_examples, with_system,
};
use crate::settings;
use tooltune_terminal::RowsProgress;

/// Maximum number of rows and bytes per chunk.
const MAX_CHUNK_ROWS: usize = 64;
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Inputs of the preparation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) config: &'a Config,
    pub(super) base: &'a BaseModel,
    pub(super) device: &'a Device,
    pub(super) files: &'a RowFiles,
}

/// A callback that receives the examples.
pub(super) type Push<'p> = &'p mut dyn FnMut(&TokenizedExample) -> io::Result<()>;

/// The results for some rows of one file.
struct Chunk {
    file: usize,
    rows: Vec<TokenizedRow>,
    notes: RowNotes,
    flattened: FlattenReport,
}

impl From<Error> for PrepareError {
    fn from(error: Error) -> Self {
        Self::Work(error)
    }
}

impl From<DataError> for PrepareError {
    fn from(error: DataError) -> Self {
        Self::Work(error.into())
    }
}

impl Work<'_> {
    /// Prepares all rows and passes their examples to `push` in order.
    #[expect(clippy::result_large_err, reason = "an error ends the work")]
    pub(super) fn prepare(self, push: Push<'_>) -> Result<Account, PrepareError> {
        let Self { config, base, .. } = self;
        let options = settings::prepare_options(config, &base.stop_ids);
        let mut report = ReportBuilder::new(&base.tokenizer, &options)?;
        let mut account = Account {
            n_of_file: vec![0; self.files.paths().count()],
            ..Account::default()
        };
        let mut take = |chunk: Chunk| -> Result<(), PrepareError> {
            account.notes.add(&chunk.notes);
            account.flattened.add(chunk.flattened);
            for row in chunk.rows {
                if let Some(example) = report.add(row) {
                    account.n_of_file[chunk.file] += 1;
                    push(&example).map_err(PrepareError::Write)?;
                }
            }
            Ok(())
        };
        let tokenized = |row: Result<Row, DataError>| {
            TokenizedRow::tokenize(row, &base.template, &base.tokenizer, &options)
        };
        let current = Cell::new(0);
        match rows_format(config, self.files)? {
            Some(format) => {
                // Check the settings here, so that an error is reported once and not by every
                // thread.
                row_parser(config, format)?;
                let flattening = settings::flattening(&config.data)?;
                let worker = || {
                    let mut parser = row_parser(config, format);
                    let flattening = flattening.as_ref();
                    move |(file, records): (usize, Vec<RowRecord>)| {
                        let mut flattened = FlattenReport::default();
                        let Ok(parser) = &mut parser else {
                            return Chunk::empty(file);
                        };
                        let rows = records.into_iter().map(|record| parser.parse(record));
                        let system = |row: Result<Row, DataError>| {
                            tokenized(row.map(|row| with_system(config, row)))
                        };
                        let rows = match flattening {
                            None => rows.map(system).collect(),
                            Some(flattening) => {
                                let rows = flatten_rows(rows, flattening, &mut flattened);
                                rows.map(system).collect()
                            }
                        };
                        Chunk {
                            file,
                            rows,
                            notes: parser.take_notes(),
                            flattened,
                        }
                    }
                };
                let mut progress = RowsProgress::begin(self.files.paths());
                let readers = self.files.open()?.into_iter().enumerate();
                let records = readers.flat_map(|(file, records)| {
                    let current = &current;
                    RowRecords::new(records).inspect(move |_| current.set(file))
                });
                let records = records.inspect(|_| progress.row());
                let size = |record: &RowRecord| record.as_ref().map_or(0, |(_, text)| text.len());
                let chunks = chunks(records, &current, size);
                process_in_order(chunks, n_threads(), worker, &mut take)?;
            }
            None => {
                let worker = || {
                    |(file, rows): (usize, Vec<Result<Row, DataError>>)| Chunk {
                        rows: rows.into_iter().map(tokenized).collect(),
                        ..Chunk::empty(file)
                    }
                };
                let source = RowSource {
                    config,
                    files: self.files,
                    device: self.device,
                    has_golds: true,
                    formats: FormatRule::Asserted,
                    current: &current,
                };
                let mut reading = ReadingReport::default();
                let mut failed = None;
                with_examples(source, &mut reading, |rows| {
                    let chunks = chunks(rows, &current, |_| 0);
                    failed = process_in_order(chunks, n_threads(), worker, &mut take).err();
                    Ok(())
                })?;
                if let Some(failed) = failed {
                    return Err(failed);
                }
                account.flattened.add(reading.flattened);
                account.notes.add(&reading.notes);
            }
        }
        account.split = self.files.split();
        // Without this check, the error would be that the rows contain no example.
        if let Some(split) = &account.split
            && split.n_training == 0
            && split.n_validation > 0
        {
            return Err(PrepareError::Work(Error::Usage(format!(
                "data.validation_split = {} holds out all {} rows, so none is left to train on; lower it, \
                 add rows, or set data.eval",
                config.data.validation_split.unwrap_or_default(),
                split.n_validation
            ))));
        }
        account.report = report.finish()?;
        Ok(account)
    }
}

impl Chunk {
    fn empty(file: usize) -> Self {
        Self {
            file,
            rows: Vec::new(),
            notes: RowNotes::default(),
            flattened: FlattenReport::default(),
        }
    }
}

/// Number of compute threads.
fn n_threads() -> NonZeroUsize {
    NonZeroUsize::new(rayon::current_num_threads()).unwrap_or(NonZeroUsize::MIN)
}

/// Splits items into chunks. A chunk contains consecutive items of one file, and ends as soon as it
/// has [`MAX_CHUNK_ROWS`] items or [`MAX_CHUNK_BYTES`]. `current` is the file index of the last
/// requested item.
fn chunks<'i, T: 'i>(
    items: impl Iterator<Item = T> + 'i,
    current: &'i Cell<usize>,
    size: impl Fn(&T) -> usize + 'i,
) -> impl Iterator<Item = (usize, Vec<T>)> + 'i {
    let mut items = items.map(|item| (current.get(), item)).peekable();
    iter::from_fn(move || {
        let (file, first) = items.next()?;
        let mut n_bytes = size(&first);
        let mut chunk = vec![first];
        while chunk.len() < MAX_CHUNK_ROWS && n_bytes < MAX_CHUNK_BYTES {
            let Some((_, item)) = items.next_if(|(idx, _)| *idx == file) else {
                break;
            };
            n_bytes += size(&item);
            chunk.push(item);
        }
        Some((file, chunk))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_of_one_file_and_bounded() {
        let current = Cell::new(0);
        let items = (0..200).inspect(|item| current.set(usize::from(*item >= 70)));
        let size = |item: &i32| if *item == 150 { 2 * MAX_CHUNK_BYTES } else { 1 };
        let pieces: Vec<(usize, Vec<i32>)> = chunks(items, &current, size).collect();
        let lengths: Vec<(usize, usize)> = pieces.iter().map(|(f, c)| (*f, c.len())).collect();
        assert_eq!(lengths, [(0, 64), (0, 6), (1, 64), (1, 17), (1, 49)]);
        let all: Vec<i32> = pieces.into_iter().flat_map(|(_, chunk)| chunk).collect();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
    }
}
