//! An evaluation suite in configs and on command lines, as an entry of the suite registry.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use tooltune_suites::{SUITES, SuiteInfo, SuiteNeeds};

/// A benchmark for the evaluations of a run.
#[derive(Debug, Clone, Copy)]
pub struct Suite(&'static SuiteInfo);

static ALL: LazyLock<Vec<Suite>> = LazyLock::new(|| SUITES.iter().copied().map(Suite).collect());

impl Suite {
    /// Default suite of a command.
    pub fn first() -> Self {
        Self(SUITES[0])
    }

    /// The suite of a registry entry.
    pub const fn from_info(info: &'static SuiteInfo) -> Self {
        Self(info)
    }

    /// All suites, in the order of the registry.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().copied()
    }

    /// Words of all suites.
    pub fn words() -> Vec<&'static str> {
        Self::all().map(Self::as_str).collect()
    }

    /// The word for config files.
    pub fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Registry entry of the suite.
    pub fn info(self) -> &'static SuiteInfo {
        self.0
    }

    /// Requirements of the suite.
    pub fn needs(self) -> SuiteNeeds {
        self.0.needs
    }
}

impl PartialEq for Suite {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Suite {}

impl fmt::Display for Suite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl Serialize for Suite {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Suite {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let info = SuiteInfo::from_name(&word);
        let unknown = || serde::de::Error::custom(format!("{word:?} is not a suite"));
        info.map(Self).ok_or_else(unknown)
    }
}

impl JsonSchema for Suite {
    fn schema_name() -> Cow<'static, str> {
        "Suite".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<Value> = Self::all()
            .map(|suite| {
                let (word, about) = (suite.as_str(), suite.info().about);
                json!({ "type": "string", "const": word, "description": about })
            })
            .collect();
        let of_rows = Self::all().filter(|suite| suite.needs().rows.is_some());
        let of_rows: Vec<&str> = of_rows.map(Self::as_str).collect();
        let description = format!(
            "A benchmark that the run can evaluate on: {} on `data.eval`, the others on files\nof \
             their own tables.",
            of_rows.join(" and ")
        );
        json_schema!({
            "oneOf": words,
            "description": description,
        })
    }
}

impl ValueEnum for Suite {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let about = self.info().about.trim_end_matches('.');
        Some(PossibleValue::new(self.as_str()).help(about))
    }
}
