//! Prepares training examples from rows and stores them on disk.
//!
//! Rows are tokenized on all threads and written to files in order, so memory use does not grow
//! with their number. The files are cached under a key that covers everything they depend on. The
//! next start reads them from the cache.

mod cache;
mod key;
mod prepare;

use std::fs::File;
use std::io;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tooltune_agents::flat::{FlattenReport, NestedSchema};
use tooltune_files::SplitRecord;
use tooltune_rows::examples::{ExampleWriter, Examples};
use tooltune_rows::text::{PrepareReport, RowNotes};

use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::rows::RowFiles;
use tooltune_terminal as progress;

pub use self::cache::{CacheUse, ExampleCache};

/// Training examples of a run.
#[derive(Debug)]
pub struct TrainingExamples {
    /// Examples in the order of their rows.
    pub examples: Examples,
    /// Statistics on the rows.
    pub account: Account,
}

/// Statistics on the preparation of rows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Account {
    /// Number of examples of each file.
    pub n_of_file: Vec<usize>,
    /// Statistics on the rows.
    pub report: PrepareReport,
    /// Notes on the rows.
    pub notes: RowNotes,
    /// Statistics on the schemas, if the config flattens them.
    pub flattened: FlattenReport,
    /// Schemas that are still nested, which are not part of the serialized report.
    nested: Vec<NestedSchema>,
    /// How the rows were split, if some are held out.
    pub split: Option<SplitRecord>,
}

impl Account {
    /// Moves the nested schemas back into the report, after reading.
    fn after_reading(mut self) -> Self {
        self.flattened.kept_schemas = std::mem::take(&mut self.nested);
        self
    }

    /// A copy for writing, with the nested schemas outside the report.
    fn for_writing(&self) -> Self {
        Self {
            nested: self.flattened.kept_schemas.clone(),
            ..self.clone()
        }
    }
}

/// Returns the examples of a config's training rows, from the cache or newly prepared.
///
/// # Errors
///
/// A file cannot be read, rows are invalid, or examples cannot be written.
pub fn training_examples(
    config: &Config,
    base: &BaseModel,
    device: &Device,
) -> Result<TrainingExamples, Error> {
    let files = RowFiles::training(config);
    let work = prepare::Work {
        config,
        base,
        device,
        files: &files,
    };
    let cache = ExampleCache::from_env();
    let Some(key) = key::compute(config, base, &files)? else {
        return prepare_uncached(work);
    };
    match cache {
        Some(cache) => cache.examples(&key, work),
        None => prepare_uncached(work),
    }
}

/// Prepares examples in unnamed files, which disappear when the process ends.
fn prepare_uncached(work: prepare::Work<'_>) -> Result<TrainingExamples, Error> {
    let folder = std::env::temp_dir();
    let new = || tempfile::tempfile().map_err(Error::io(&folder, "write to"));
    let (examples, index) = (new()?, new()?);
    let account = write_into(work, &examples, &index).map_err(|error| match error {
        PrepareError::Work(error) => error,
        PrepareError::Write(error) => Error::io(&folder, "write prepared examples to")(error),
    })?;
    let examples = Examples::open(&folder, examples, index)?;
    Ok(TrainingExamples { examples, account })
}

/// Why examples were not written.
enum PrepareError {
    Work(Error),
    Write(io::Error),
}

#[expect(clippy::result_large_err, reason = "an error ends the work")]
fn write_into(
    work: prepare::Work<'_>,
    examples: &File,
    index: &File,
) -> Result<Account, PrepareError> {
    use std::io::Seek;

    let mut writer = ExampleWriter::new(examples, index);
    let account = work.prepare(&mut |example| writer.push(example))?;
    writer.finish().map_err(PrepareError::Write)?;
    for mut file in [examples, index] {
        file.rewind().map_err(PrepareError::Write)?;
    }
    Ok(account)
}

/// Reports that all examples were in the cache.
fn report_cached(account: &Account) {
    let n = account.report.n_rows;
    progress::print(&format!("{n} prepared rows are loaded from the cache"));
}
