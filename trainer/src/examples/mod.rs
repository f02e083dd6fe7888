//! Rows to learn from -> examples on disk, prepared once.
//!
//! Rows are tokenized in all threads and spilled to files in their order, so that memory does not grow
//! with them. The files are kept in a cache under a key made of everything that they depend on: a
//! second start reads them as they are.

mod cache;
mod key;
mod prepare;

use std::fs::File;
use std::io;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use tooltune_agents::flat::{FlattenReport, KeptSchema};
use tooltune_files::SplitRecord;
use tooltune_rows::examples::{ExampleWriter, Examples};
use tooltune_rows::text::{PrepareReport, RowNotes};

use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::progress;
use crate::rows::RowFiles;

pub use self::cache::{CacheUse, ExampleCache};

/// What a run learns from.
#[derive(Debug)]
pub struct TrainingExamples {
    /// The examples, in the order of their rows.
    pub examples: Examples,
    /// What became of the rows.
    pub account: Account,
}

/// What became of rows on their way to examples.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Account {
    /// Examples of each file.
    pub n_of_file: Vec<usize>,
    /// What became of the rows.
    pub report: PrepareReport,
    /// What to know of them.
    pub notes: RowNotes,
    /// What became of their schemas, where the config flattens them.
    pub flattened: FlattenReport,
    /// Schemas that stayed nested, which the report does not write.
    nested: Vec<KeptSchema>,
    /// How they were split, where some are kept back.
    pub split: Option<SplitRecord>,
}

impl Account {
    /// As it was before it was written.
    fn read_again(mut self) -> Self {
        self.flattened.kept_schemas = std::mem::take(&mut self.nested);
        self
    }

    /// As it can be written.
    fn to_write(&self) -> Self {
        Self {
            nested: self.flattened.kept_schemas.clone(),
            ..self.clone()
        }
    }
}

/// The examples of the training rows of a config, from the cache or prepared now.
///
/// # Errors
///
/// A file that cannot be read, rows at fault, or examples that cannot be written.
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
        return unnamed(work);
    };
    match cache {
        Some(cache) => cache.examples(&key, work),
        None => unnamed(work),
    }
}

/// Prepares examples into files without a name, which end with the process.
fn unnamed(work: prepare::Work<'_>) -> Result<TrainingExamples, Error> {
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

/// Why examples were not written.
enum Failed {
    Work(Error),
    Write(io::Error),
}

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

/// That nothing had to be prepared.
fn say_found(account: &Account) {
    let n = account.report.n_rows;
    progress::print(&format!(
        "{n} rows were prepared before, and are read from the cache"
    ));
}
