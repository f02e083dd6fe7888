//! A file to learn from, as `data.train` lists it: its path, or a table with its weight.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file to learn from, and how often its rows come in an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Written", into = "Written")]
pub struct TrainFile {
    /// The file.
    pub path: PathBuf,
    /// How often.
    pub weight: f64,
}

/// As a config has it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Written {
    Path(PathBuf),
    Weighted(WeightedFile),
}

/// A file with a weight.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WeightedFile {
    /// Required. The file.
    #[schemars(extend("x-kind" = "path"))]
    path: PathBuf,
    /// Required. How often its rows occur per epoch: 2 is twice, and 0.5 is one half, drawn again
    /// in each epoch. Fractions of a row carry over to the next epoch.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1000))]
    weight: f64,
}

impl From<Written> for TrainFile {
    fn from(written: Written) -> Self {
        match written {
            Written::Path(path) => path.into(),
            Written::Weighted(WeightedFile { path, weight }) => Self { path, weight },
        }
    }
}

impl From<TrainFile> for Written {
    fn from(file: TrainFile) -> Self {
        let TrainFile { path, weight } = file;
        if weight == 1.0 {
            Self::Path(path)
        } else {
            Self::Weighted(WeightedFile { path, weight })
        }
    }
}

impl From<PathBuf> for TrainFile {
    fn from(path: PathBuf) -> Self {
        Self { path, weight: 1.0 }
    }
}
