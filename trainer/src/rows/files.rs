//! Which files rows come from, and which of their rows.

use std::path::PathBuf;

use tooltune_files::{Selection, Side, Split, SplitRecord, select};
use tooltune_rows::lines::Records;

use crate::config::Config;
use crate::error::Error;

/// Files of rows, and which of their rows are read.
#[derive(Debug)]
pub struct RowFiles {
    files: Vec<PathBuf>,
    selection: Selection,
}

impl RowFiles {
    /// What a run learns from.
    pub fn training(config: &Config) -> Self {
        Self {
            files: config.data.train_paths().cloned().collect(),
            selection: selection(config, Side::Training),
        }
    }

    /// What is evaluated: the files of `data.eval`, or the rows of `data.train` that are kept back.
    pub fn evaluation(config: &Config) -> Self {
        if config.data.validation_split.is_none() {
            return Self::whole(&config.data.eval);
        }
        Self {
            files: config.data.train_paths().cloned().collect(),
            selection: selection(config, Side::Validation),
        }
    }

    /// Files, all of whose rows are read.
    pub fn whole(files: &[PathBuf]) -> Self {
        Self {
            files: files.to_vec(),
            selection: Selection::default(),
        }
    }

    /// Their paths.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Opens all of them.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened.
    pub fn open(&self) -> Result<Vec<Box<dyn Records>>, Error> {
        let files = self.files.iter();
        let open = files.map(|path| {
            let records = tooltune_files::open(path);
            let records = records.map_err(tooltune_rows::text::DataError::from)?;
            Ok(select(records, &self.selection))
        });
        open.collect()
    }

    /// How the rows that were read were split, where some are kept back.
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
