//! Groups the samples of an evaluation by the keys of `--by`.

use serde_json::{Map, Value};
use tooltune_suites::{SuiteInfo, groups_as_json, groups_table};

use super::report_files::{METRICS_FILE, PREDICTIONS_FILE, with_fields};
use super::suites::SuiteResult;
use crate::error::Error;

/// Field of `metrics.json` with the groups, by key.
const GROUPS: &str = "groups";

/// Checks keys of `--by`.
///
/// # Errors
///
/// The suite does not have a key.
pub fn check_keys(suite: &SuiteInfo, by: &[String]) -> Result<(), Error> {
    for key in by {
        let found = suite.group_key(key);
        found.map_err(|error| Error::Usage(error.to_string()))?;
    }
    Ok(())
}

/// Adds the metrics of groups to `metrics.json`, and their tables to the notes.
///
/// # Errors
///
/// The lines do not have a key.
pub fn add_groups(result: &mut SuiteResult, suite: &SuiteInfo, by: &[String]) -> Result<(), Error> {
    if by.is_empty() {
        return Ok(());
    }
    let predictions = result
        .files
        .get(PREDICTIONS_FILE)
        .map_or(&[][..], Vec::as_slice);
    let lines = predictions.split(|byte| *byte == b'\n');
    let lines: Vec<Value> = lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let mut fields = Map::new();
    for key in by {
        let (table, groups) = groups(suite, key, &lines)?;
        result.notes.push(table);
        fields.insert(key.clone(), groups);
    }
    // The tables come before notes on single metrics.
    result.notes.rotate_right(by.len());
    if let Some(metrics) = result.files.get_mut(METRICS_FILE) {
        let groups = Map::from_iter([(GROUPS.to_owned(), Value::Object(fields))]);
        *metrics = with_fields(metrics, groups)?;
    }
    Ok(())
}

/// Keys of `--by` for the results of several suites.
#[derive(Debug)]
pub struct SharedKeys<'k> {
    by: &'k [String],
    /// The first error for a key that no suite had until now.
    unknown: Vec<Option<Error>>,
}

impl<'k> SharedKeys<'k> {
    /// The keys, all of them unknown.
    pub fn new(by: &'k [String]) -> Self {
        let missing = |key: &String| {
            Some(Error::Usage(format!(
                "--by {key}: there are no predictions to group; evaluate with --output first"
            )))
        };
        Self {
            by,
            unknown: by.iter().map(missing).collect(),
        }
    }

    /// Whether there are keys.
    pub fn is_any(&self) -> bool {
        !self.by.is_empty()
    }

    /// Adds the groups that the suite has to the metrics of a result.
    pub fn add_groups(
        &mut self,
        metrics: &mut Map<String, Value>,
        suite: &SuiteInfo,
        lines: &[Value],
    ) {
        let mut fields = Map::new();
        for (key, unknown) in self
            .by
            .iter()
            .zip(&mut self.unknown)
            .filter(|_| !lines.is_empty())
        {
            match groups(suite, key, lines) {
                Ok((_, groups)) => {
                    fields.insert(key.clone(), groups);
                    *unknown = None;
                }
                Err(error) if unknown.is_some() => *unknown = Some(error),
                Err(_) => {}
            }
        }
        if !fields.is_empty() {
            metrics.insert(GROUPS.to_owned(), Value::Object(fields));
        }
    }

    /// Checks that each key was known to a suite.
    ///
    /// # Errors
    ///
    /// No suite had a key.
    pub fn check(self) -> Result<(), Error> {
        match self.unknown.into_iter().flatten().next() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// The groups of lines, as a table and as JSON.
fn groups(suite: &SuiteInfo, key: &str, lines: &[Value]) -> Result<(String, Value), Error> {
    let key = suite.group_key(key);
    let key = key.map_err(|error| Error::Usage(error.to_string()))?;
    let form = lines.first().and_then(|line| suite.form_of(line));
    let groups = form.map_or_else(Vec::new, |form| form.group_means(key, lines));
    Ok((
        format!("\n{}", groups_table(key, &groups)),
        groups_as_json(key, &groups),
    ))
}
