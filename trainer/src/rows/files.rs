//! Selects the files and rows for training and evaluation.

use std::path::PathBuf;

use tooltune_files::{Selection, Side, Split, SplitRecord, select};
use tooltune_json::lines::Records;

use crate::config::Config;
use crate::error::Error;

/// Data files and a selection of their rows.
#[derive(Debug)]
pub struct RowFiles {
    files: Vec<PathBuf>,
    selection: Selection,
}

impl RowFiles {
    /// Training rows.
    pub fn training(config: &Config) -> Self {
        Self {
            files: config.data.train_paths().cloned().collect(),
            selection: selection(config, Side::Training),
        }
    }

    /// Evaluation rows: the files of `data.eval`, or the rows held out from `data.train`.
    pub fn evaluation(config: &Config) -> Self {
        if config.data.validation_split.is_none() {
            return Self::all_rows(&config.data.eval);
        }
        Self {
            files: config.data.train_paths().cloned().collect(),
            selection: selection(config, Side::Validation),
        }
    }

    /// All rows of these files.
    pub fn all_rows(files: &[PathBuf]) -> Self {
        Self {
            files: files.to_vec(),
            selection: Selection::default(),
        }
    }

    /// Paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter()
    }

    /// Whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Opens all files.
    ///
    /// # Errors
    ///
    /// A file cannot be opened.
    pub fn open(&self) -> Result<Vec<Box<dyn Records>>, Error> {
        let files = self.files.iter();
        let open = files.map(|path| {
            let records = tooltune_files::open(path);
            let records = records.map_err(tooltune_rows::text::DataError::from)?;
            Ok(select(records, &self.selection))
        });
        open.collect()
    }

    /// How the rows that were read so far were split, if some are held out.
    pub fn split(&self) -> Option<SplitRecord> {
        let is_split = self.selection.side.is_some();
        is_split.then(|| self.selection.counts.record())
    }
}

fn selection(config: &Config, side: Side) -> Selection {
    let data = &config.data;
    let split = data.validation_split.map(|share| Split {
        share,
        seed: config.train.seed,
        group_by: data.validation_group_by.clone(),
    });
    Selection {
        max_samples: data.max_samples,
        side: split.map(|split| (split, side)),
        ..Selection::default()
    }
}
