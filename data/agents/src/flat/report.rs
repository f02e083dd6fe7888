//! Counts flattened rows of a data set, and unflattened predictions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::advice::Reason;
use super::error::FlatError;

/// Number of rows listed per reason.
const N_NAMED: usize = 3;

/// Why a schema and its targets stay nested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NestedReason {
    /// [`advise`](super::advise) recommends keeping it nested, or there is nothing to flatten.
    Advised(Reason),
    /// The schema or a target has no flat form.
    Refused(FlatError),
    /// Flattening would not preserve a target: it contains an empty object, an empty list of
    /// objects, or a null that the schema does not allow.
    Lossy,
    /// Several tools of a conversation have the same name, so their calls are ambiguous.
    SharedName,
}

impl NestedReason {
    /// Stable name of the reason.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Advised(Reason::Recursive) => "recursive",
            Self::Advised(Reason::UserFacing) => "user_facing",
            Self::Advised(Reason::AlreadyFlat) => "already_flat",
            Self::Advised(Reason::Simple) => "simple",
            // This is never a reason to keep a schema nested, but the type allows it.
            Self::Advised(Reason::Nested) => "nested",
            Self::Refused(error) => error.kind(),
            Self::Lossy => "lossy",
            Self::SharedName => "shared_name",
        }
    }
}

/// A schema that stays nested, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedSchema {
    /// Id of the row.
    pub id: String,
    /// Name of the tool, for rows with tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// [`NestedReason::name`].
    pub reason: Cow<'static, str>,
    /// The location and fix of the error, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Number of flattened schemas, and why the others were not flattened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlattenReport {
    /// Number of schemas, each with its targets: one per SLOT row, one per tool of a tool row.
    pub n_schemas: usize,
    /// Number of flattened schemas.
    pub n_flattened: usize,
    /// Number of flattened schemas with more slots than configured, because a target has more
    /// items. Their number of slots reveals the length of the longest list to the model.
    pub n_widened: usize,
    /// Number of schemas that stay nested, by [`NestedReason::name`].
    pub kept: BTreeMap<Cow<'static, str>, usize>,
    /// The schemas that stay nested, in row order.
    #[serde(skip)]
    pub kept_schemas: Vec<NestedSchema>,
}

impl FlattenReport {
    /// Counts a schema of the row `id`; `Ok(true)` means that it was widened.
    pub(super) fn record(
        &mut self,
        id: &str,
        tool: Option<&str>,
        outcome: Result<bool, &NestedReason>,
    ) {
        self.n_schemas += 1;
        match outcome {
            Ok(is_widened) => {
                self.n_flattened += 1;
                self.n_widened += usize::from(is_widened);
            }
            Err(reason) => {
                *self.kept.entry(reason.name().into()).or_default() += 1;
                self.kept_schemas.push(NestedSchema {
                    id: id.to_owned(),
                    tool: tool.map(str::to_owned),
                    reason: reason.name().into(),
                    message: match reason {
                        NestedReason::Refused(error) => Some(error.to_string()),
                        _ => None,
                    },
                });
            }
        }
    }

    /// Adds the report of later rows.
    pub fn add(&mut self, later: Self) {
        self.n_schemas += later.n_schemas;
        self.n_flattened += later.n_flattened;
        self.n_widened += later.n_widened;
        for (reason, n) in later.kept {
            *self.kept.entry(reason).or_default() += n;
        }
        self.kept_schemas.extend(later.kept_schemas);
    }

    /// The report as lines of text: the number of flat schemas, then one line per reason for
    /// staying nested, with the first affected rows.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} of {} schemas were flattened",
            self.n_flattened, self.n_schemas
        )];
        if self.n_widened > 0 {
            lines.push(format!(
                "{} of them have additional slots for the longest list in their row",
                self.n_widened
            ));
        }
        for (reason, n) in &self.kept {
            let schemas = self.kept_schemas.iter();
            let matching = schemas.filter(|schemas_of_reason| schemas_of_reason.reason == *reason);
            let labels: Vec<String> = matching.take(N_NAMED).map(NestedSchema::label).collect();
            let such_as = if *n > labels.len() { ", such as" } else { ":" };
            lines.push(format!(
                "{n} stay nested, {reason}{such_as} {}",
                labels.join("; ")
            ));
        }
        lines
    }
}

impl NestedSchema {
    fn label(&self) -> String {
        let mut label = self.id.clone();
        if let Some(tool) = &self.tool {
            label.push_str(&format!(", tool {tool}"));
        }
        if let Some(message) = &self.message {
            label.push_str(&format!(" ({message})"));
        }
        label
    }
}

/// Number of unflattened predictions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UnflattenReport {
    /// Number of predictions, including rows that stay nested.
    pub n_predictions: usize,
    /// Number of predictions that are not JSON objects, or have a key missing from the flat schema.
    pub n_malformed: usize,
    /// Malformed predictions by `not_json` or [`FlatError::kind`].
    pub malformed: BTreeMap<String, usize>,
}

impl UnflattenReport {
    /// Fraction of malformed predictions, 0 to 1; `None` without predictions.
    pub fn malformed_rate(&self) -> Option<f64> {
        (self.n_predictions > 0).then(|| self.n_malformed as f64 / self.n_predictions as f64)
    }

    pub(super) fn record(&mut self, fault: Option<&str>) {
        self.n_predictions += 1;
        if let Some(kind) = fault {
            self.n_malformed += 1;
            *self.malformed.entry(kind.to_owned()).or_default() += 1;
        }
    }
}
