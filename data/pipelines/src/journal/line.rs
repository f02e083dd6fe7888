//! The lines of a journal, each with a checksum.
//!
//! The first line contains the settings that the replies depend on. Every other line contains a
//! digest of these settings, so that a damaged first line does not invalidate the replies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_json::line_check::check_of_value;

use super::Entry;

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JournalHeader {
    pub(super) settings: Map<String, Value>,
    /// Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
}

impl JournalHeader {
    pub(super) fn new(settings: &Map<String, Value>) -> Self {
        Self {
            settings: settings.clone(),
            check: Some(settings_digest(settings)),
        }
    }

    /// Parses the first line, if it is undamaged.
    ///
    /// # Errors
    ///
    /// The reason, for a message.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let head: Self = tooltune_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let is_complete =
            (head.check.as_ref()).is_none_or(|check| *check == settings_digest(&head.settings));
        match is_complete {
            true => Ok(head),
            false => Err("its checksum does not match its settings".to_owned()),
        }
    }
}

/// Digest of the settings; the order of the settings does not matter.
pub(super) fn settings_digest(settings: &Map<String, Value>) -> String {
    let sorted: BTreeMap<&String, &Value> = settings.iter().collect();
    check_of_value(&sorted)
}

/// A line with the result of a request.
#[derive(Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) key: String,
    #[serde(flatten)]
    pub(super) entry: Entry,
    /// Digest of the settings; missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<String>,
    check: String,
}

impl Line {
    pub(super) fn new(key: &str, entry: &Entry, settings: &str) -> Self {
        let mut line = Self {
            key: key.to_owned(),
            entry: entry.clone(),
            settings: Some(settings.to_owned()),
            check: String::new(),
        };
        line.check = line.digest();
        line
    }

    fn digest(&self) -> String {
        match &self.settings {
            Some(settings) => check_of_value(&(&self.key, &self.entry, settings)),
            None => check_of_value(&(&self.key, &self.entry)),
        }
    }

    /// Parses a line, if it is complete and undamaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let line: Self = tooltune_json::from_slice(bytes).ok()?;
        (line.check == line.digest()).then_some(line)
    }
}
