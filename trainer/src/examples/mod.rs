//! Prepares training examples on disk from rows, once.
//!
//! Rows are tokenized on all threads and written to files in order, so memory use does not grow
//! with their number. The files are cached under a key of everything that they depend on; the next
//! start reads them from the cache.

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
    /// Remarks on the rows.
    pub notes: RowNotes,
    /// Statistics on their schemas, if the config flattens them.
    pub flattened: FlattenReport,
    /// Schemas that are still nested, which are not part of the serialized report.
    nested: Vec<NestedSchema>,
    /// How the rows were split, if some are held out.
    pub split: Option<SplitRecord>,
}

impl Account {
    /// Restores the account after reading it.
    fn read_again(mut self) -> Self {
        self.flattened.kept_schemas = std::mem::take(&mut self.nested);
        self
    }

    /// The account prepared for writing.
    fn to_write(&self) -> Self {
        Self {
            nested: self.flattened.kept_schemas.clone(),
            ..self.clone()
        }
    }
}

/// Examples of the training rows of a config, from the cache or prepared now.
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
    let cache = ExampleCache::of_process();
    let Some(key) = key::of(config, base, &files)? else {
        return prepare_uncached(work);
    };
    match cache {
        Some(cache) => cache.examples(&key, work),
        None => prepare_uncached(work),
    }
}

/// Prepares examples in unnamed files, which are removed with the process.
fn prepare_uncached(work: prepare::Work<'_>) -> Result<TrainingExamples, Error> {
    let folder = std::env::temp_dir();
    let new = || tempfile::tempfile().map_err(Error::io(&folder, "write to"));
    let (examples, index) = (new()?, new()?);
    let account = write_into(work, &examples, &index).map_err(|error| match error {
        Failed::Work(error) => error,
        Failed::Write(error) => Error::io(&folder, "write prepared examples to")(error),
    })?;
    let examples = Examples::open(&folder, examples, index)?;
    Ok(TrainingExamples { examples, account })
}

/// Reason why examples were not written.
enum Failed {
    Work(Error),
    Write(io::Error),
}

#[expect(clippy::result_large_err, reason = "an error ends the work")]
fn write_into(work: prepare::Work<'_>, examples: &File, index: &File) -> Result<Account, Failed> {
    use std::io::Seek;

    let mut writer = ExampleWriter::new(examples, index);
    let account = work.prepare(&mut |example| writer.push(example))?;
    writer.finish().map_err(Failed::Write)?;
    for mut file in [examples, index] {
        file.rewind().map_err(Failed::Write)?;
    }
    Ok(account)
}

/// Reports that all examples were in the cache.
fn report_cached(account: &Account) {
    let n = account.report.n_rows;
    progress::print(&format!("{n} prepared rows are loaded from the cache"));
}
