//! `data.format`: as it was typed, or as the files show it.
//!
//! Under "auto" the first row of each file is looked at before anything else is checked, so that a
//! checked config names the format and all that follows from it. Files that are not here leave the
//! format open; whoever reads rows refuses them by their names.

use std::path::PathBuf;

use tooltune_rows::text::{self, Recognised, RecognisedFormat, recognise_file};

use super::choices::DataFormat;
use super::defaults;
use super::raw::RawData;
use super::rules::Checker;
use super::settings::DataConfig;

impl Checker<'_> {
    /// The format that is typed, or the one that all files have.
    pub(super) fn format(&mut self, raw: &RawData) -> DataFormat {
        let typed = raw.format.unwrap_or(defaults::DATA_FORMAT);
        // A format that is there and unreadable is reported already.
        let is_unreadable = raw.format.is_none() && self.is_typed("data.format");
        if typed != DataFormat::Auto || is_unreadable {
            return typed;
        }
        let listed = |setting: &'static str, files: &Option<Vec<PathBuf>>| -> Vec<_> {
            let files = files.iter().flatten();
            files.map(|file| (setting, file.clone())).collect()
        };
        let files = [
            listed("data.train", &raw.train),
            listed("data.eval", &raw.eval),
        ];
        let mut first: Option<Recognised> = None;
        for (setting, file) in files
            .into_iter()
            .flatten()
            .filter(|(_, file)| file.exists())
        {
            match (recognise_file(&file), &first) {
                (Ok(found), None) => first = Some(found),
                (Ok(found), Some(first)) if first.format == found.format => {}
                (Ok(found), Some(first)) => {
                    let message = format!(
                        "`data.format` is \"auto\", and the files have two formats: {} is {}, and \
                         {} is {}",
                        first.place,
                        first.format.as_str(),
                        found.place,
                        found.format.as_str()
                    );
                    let help = "a run reads one format: convert the files of the other, or train \
                                on them in a run of their own";
                    self.report(setting, message, help);
                }
                (Err(error), _) => {
                    let message = format!("`data.format` is \"auto\": {error}");
                    let words = DataFormat::WORDS[1..].join("\", \"");
                    let help = format!("name the format if it is one of \"{words}\"");
                    self.report(setting, message, help);
                }
            }
        }
        let Some(first) = first else {
            return DataFormat::Auto;
        };
        let format = of(first.format);
        self.findings.recognised = Some(first);
        format
    }
}

impl DataConfig {
    /// Whether the rows may be of `format`, as far as they are known.
    pub(super) fn may_be(&self, format: DataFormat) -> bool {
        self.format == format || self.format == DataFormat::Auto
    }
}

fn of(format: RecognisedFormat) -> DataFormat {
    match format {
        RecognisedFormat::Trajectories => DataFormat::Goat,
        RecognisedFormat::Rows(rows) => match rows {
            text::DataFormat::Slot => DataFormat::Slot,
            text::DataFormat::PromptCompletion => DataFormat::PromptCompletion,
            text::DataFormat::Messages => DataFormat::Messages,
            text::DataFormat::ShareGpt => DataFormat::ShareGpt,
            text::DataFormat::Alpaca => DataFormat::Alpaca,
            text::DataFormat::Xlam => DataFormat::Xlam,
        },
    }
}
