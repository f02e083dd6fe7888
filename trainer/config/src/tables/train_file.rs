//! An entry of `data.train`: a path, or a table with path and weight.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A training file, and how often its rows occur per epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Written", into = "Written")]
pub struct TrainFile {
    /// The file.
    pub path: PathBuf,
    /// How often each row occurs per epoch.
    pub weight: f64,
}

/// The two ways to write the entry in a config.
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
    /// Required. How often its rows occur per epoch: 2 repeats every row; 0.5 draws a new half of
    /// the rows in each epoch. Fractions of a row carry over to the next epoch.
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
