//! Tokenizes rows in several threads, with what becomes of them in their order.

use std::cell::Cell;
use std::io;
use std::iter;
use std::num::NonZeroUsize;

use burn::tensor::Device;
use tooltune_agents::flat::{FlattenReport, flatten_rows};
use tooltune_rows::in_order;
use tooltune_rows::text::{
    DataError, Gathering, Row, RowNotes, RowRecord, RowRecords, TokenizedExample, TokenizedRow,
};

use super::{Account, Failed};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::progress::RowsProgress;
use crate::rows::{
    ReadingReport, RowFiles, RowSource, row_parser, rows_format, with_examples, with_system,
};
use crate::settings;

/// Rows and bytes that a thread takes at once.
const ROWS: usize = 64;
const BYTES: usize = 1 << 20;

/// What is prepared, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) config: &'a Config,
    pub(super) base: &'a BaseModel,
    pub(super) device: &'a Device,
    pub(super) files: &'a RowFiles,
}

/// Takes an example.
pub(super) type Push<'p> = &'p mut dyn FnMut(&TokenizedExample) -> io::Result<()>;

/// What a thread made of some rows of one file.
struct Chunk {
    file: usize,
    rows: Vec<TokenizedRow>,
    notes: RowNotes,
    flattened: FlattenReport,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Work(error)
    }
}

impl From<DataError> for Failed {
    fn from(error: DataError) -> Self {
        Self::Work(error.into())
    }
}

impl Work<'_> {
    /// Prepares all rows; `push` takes their examples in order.
    pub(super) fn prepare(self, push: Push<'_>) -> Result<Account, Failed> {
        let Self { config, base, .. } = self;
        let options = settings::prepare_options(config, &base.stop_ids);
        let mut gathering = Gathering::new(&base.tokenizer, &options)?;
        let mut account = Account {
            n_of_file: vec![0; self.files.paths().count()],
            ..Account::default()
        };
        let mut take = |chunk: Chunk| -> Result<(), Failed> {
            account.notes.add(&chunk.notes);
            account.flattened.add(chunk.flattened);
            for row in chunk.rows {
                if let Some(example) = gathering.add(row) {
                    account.n_of_file[chunk.file] += 1;
                    push(&example).map_err(Failed::Write)?;
                }
            }
            Ok(())
        };
        let tokenized = |row: Result<Row, DataError>| {
            TokenizedRow::of(row, &base.template, &base.tokenizer, &options)
        };
        let current = Cell::new(0);
        match rows_format(config, self.files)? {
            Some(format) => {
                // Faults of the settings are found here, and not in every thread.
                row_parser(config, format)?;
                let flattening = settings::flattening(&config.data)?;
                let worker = || {
                    let mut parser = row_parser(config, format);
                    let flattening = flattening.as_ref();
                    move |(file, records): (usize, Vec<RowRecord>)| {
                        let mut flattened = FlattenReport::default();
                        let Ok(parser) = &mut parser else {
                            return Chunk::of_nothing(file);
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
                in_order(chunks, n_threads(), worker, &mut take)?;
            }
            None => {
                let worker = || {
                    |(file, rows): (usize, Vec<Result<Row, DataError>>)| Chunk {
                        rows: rows.into_iter().map(tokenized).collect(),
                        ..Chunk::of_nothing(file)
                    }
                };
                let source = RowSource {
                    config,
                    files: self.files,
                    device: self.device,
                    has_golds: true,
                    current: &current,
                };
                let mut report = ReadingReport::default();
                let mut failed = None;
                with_examples(source, &mut report, |rows| {
                    let chunks = chunks(rows, &current, |_| 0);
                    failed = in_order(chunks, n_threads(), worker, &mut take).err();
                    Ok(())
                })?;
                if let Some(failed) = failed {
                    return Err(failed);
                }
                account.flattened.add(report.flattened);
                account.notes.add(&report.notes);
            }
        }
        account.report = gathering.finish()?;
        account.split = self.files.split();
        Ok(account)
    }
}

impl Chunk {
    fn of_nothing(file: usize) -> Self {
        Self {
            file,
            rows: Vec::new(),
            notes: RowNotes::default(),
            flattened: FlattenReport::default(),
        }
    }
}

/// As many as compute.
fn n_threads() -> NonZeroUsize {
    NonZeroUsize::new(rayon::current_num_threads()).unwrap_or(NonZeroUsize::MIN)
}

/// Items that follow each other and are of one file, whose number stands in `current` when an item was
/// asked for, in parts of [`ROWS`] items or [`BYTES`].
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
        while chunk.len() < ROWS && n_bytes < BYTES {
            let Some((_, item)) = items.next_if(|(of, _)| *of == file) else {
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
        let size = |item: &i32| if *item == 150 { 2 * BYTES } else { 1 };
        let found: Vec<(usize, Vec<i32>)> = chunks(items, &current, size).collect();
        let lengths: Vec<(usize, usize)> = found.iter().map(|(f, c)| (*f, c.len())).collect();
        assert_eq!(lengths, [(0, 64), (0, 6), (1, 64), (1, 17), (1, 49)]);
        let all: Vec<i32> = found.into_iter().flat_map(|(_, chunk)| chunk).collect();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
    }
}
