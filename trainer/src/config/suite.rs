//! A suite as configs and command lines name it: a line of the registry by its word.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use tooltune_suites::{Needs, SUITES, SuiteInfo};

/// A benchmark that the run can evaluate on.
#[derive(Debug, Clone, Copy)]
pub struct Suite(&'static SuiteInfo);

static ALL: LazyLock<Vec<Suite>> = LazyLock::new(|| SUITES.into_iter().map(Suite).collect());

impl Suite {
    /// The suite of an evaluation whose command names none.
    pub fn first() -> Self {
        Self(SUITES[0])
    }

    /// The suite of a line of the registry.
    pub const fn of(info: &'static SuiteInfo) -> Self {
        Self(info)
    }

    /// Every suite, in the order of the registry.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().copied()
    }

    /// The words of all suites.
    pub fn words() -> Vec<&'static str> {
        Self::all().map(Self::as_str).collect()
    }

    /// The word in the config file.
    pub fn as_str(self) -> &'static str {
        self.0.name
    }

    /// Its line in the registry of suites.
    pub fn info(self) -> &'static SuiteInfo {
        self.0
    }

    /// What the suite needs of a config.
    pub fn needs(self) -> Needs {
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
        let info = SuiteInfo::named(&word);
        let unknown = || serde::de::Error::custom(format!("{word:?} is no suite"));
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
