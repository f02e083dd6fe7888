//! Counts what flattening did to the rows of a data set, and what came back of predictions.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::advice::Reason;
use super::error::FlatError;

/// Rows of one reason that are named in a line about it.
const N_NAMED: usize = 3;

/// Why a schema and its targets stay nested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// [`advise`](super::advise) is against it, or there is nothing to take apart.
    Advised(Reason),
    /// The schema or a target has no flat form.
    Refused(FlatError),
    /// A target would come back changed: it holds an empty object, an empty list of objects, or a
    /// null where the schema allows none.
    Lossy,
    /// Several tools of a conversation have the name, so a call does not say whose it is.
    SharedName,
}

impl Kept {
    /// Stable name of the reason.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Advised(Reason::Recursive) => "recursive",
            Self::Advised(Reason::UserFacing) => "user_facing",
            Self::Advised(Reason::AlreadyFlat) => "already_flat",
            Self::Advised(Reason::Simple) => "simple",
            // Never a reason to keep a schema nested, but still what was advised.
            Self::Advised(Reason::Nested) => "nested",
            Self::Refused(error) => error.kind(),
            Self::Lossy => "lossy",
            Self::SharedName => "shared_name",
        }
    }
}

/// A schema that stays nested, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSchema {
    /// The row.
    pub id: String,
    /// The tool, where the row has tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// [`Kept::name`].
    pub reason: Cow<'static, str>,
    /// Where the fault is and how to fix it, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How many schemas of rows were flattened, and why the others were not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlattenReport {
    /// Schemas with their targets: one for a SLOT row, one for each tool of a tool row.
    pub n_schemas: usize,
    /// Those that were flattened.
    pub n_flattened: usize,
    /// The flattened ones whose lists got more slots than the options say, because a target has
    /// more items: their schema tells how long the longest list is.
    pub n_widened: usize,
    /// Those that stayed nested, by [`Kept::name`].
    pub kept: BTreeMap<Cow<'static, str>, usize>,
    /// Each of those, in the order of the rows.
    #[serde(skip)]
    pub kept_schemas: Vec<KeptSchema>,
}

impl FlattenReport {
    /// Counts a schema of the row `id`; `outcome` says of a flattened one whether it was widened.
    pub(super) fn record(&mut self, id: &str, tool: Option<&str>, outcome: Result<bool, &Kept>) {
        self.n_schemas += 1;
        match outcome {
            Ok(is_widened) => {
                self.n_flattened += 1;
                self.n_widened += usize::from(is_widened);
            }
            Err(kept) => {
                *self.kept.entry(kept.name().into()).or_default() += 1;
                self.kept_schemas.push(KeptSchema {
                    id: id.to_owned(),
                    tool: tool.map(str::to_owned),
                    reason: kept.name().into(),
                    message: match kept {
                        Kept::Refused(error) => Some(error.to_string()),
                        _ => None,
                    },
                });
            }
        }
    }

    /// Adds the report of further rows.
    pub fn add(&mut self, later: Self) {
        self.n_schemas += later.n_schemas;
        self.n_flattened += later.n_flattened;
        self.n_widened += later.n_widened;
        for (reason, n) in later.kept {
            *self.kept.entry(reason).or_default() += n;
        }
        self.kept_schemas.extend(later.kept_schemas);
    }

    /// The report in sentences: how many schemas are flat, then a line for each reason against
    /// it, with the first rows that it holds for.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "{} of {} schemas are flat now",
            self.n_flattened, self.n_schemas
        )];
        if self.n_widened > 0 {
            lines.push(format!(
                "{} of them have more slots, as many as the longest list in their row needs",
                self.n_widened
            ));
        }
        for (reason, n) in &self.kept {
            let schemas = self.kept_schemas.iter();
            let of_reason = schemas.filter(|kept| kept.reason == *reason);
            let named: Vec<String> = of_reason.take(N_NAMED).map(KeptSchema::named).collect();
            let such_as = if *n > named.len() { ", such as" } else { ":" };
            lines.push(format!(
                "{n} stayed as they were, {reason}{such_as} {}",
                named.join("; ")
            ));
        }
        lines
    }
}

impl KeptSchema {
    fn named(&self) -> String {
        let mut named = self.id.clone();
        if let Some(tool) = &self.tool {
            named.push_str(&format!(", tool {tool}"));
        }
        if let Some(message) = &self.message {
            named.push_str(&format!(" ({message})"));
        }
        named
    }
}

/// How many predictions were brought back to the nested form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UnflattenReport {
    /// All predictions, those of rows that stayed nested included.
    pub n_predictions: usize,
    /// Those that are no JSON object, or have a key that the flat schema does not have.
    pub n_malformed: usize,
    /// The malformed ones, by `not_json` or [`FlatError::kind`].
    pub malformed: BTreeMap<String, usize>,
}

impl UnflattenReport {
    /// Share of malformed predictions, 0 to 1; none without predictions.
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
