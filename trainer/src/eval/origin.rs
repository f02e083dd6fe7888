//! Records the origin of an evaluation: the field `origin` of `metrics.json`.
//!
//! It contains the model, checkpoint or server, the files with digests, and the settings that
//! affect answers. It contains no secrets, and no times, so the same command writes the same bytes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_apis::TextLines;
use tooltune_checkpoints::digest::sha256_file;
use tooltune_disk::regular_file;
use tooltune_endpoint::http::without_secrets;

use crate::config::{Config, Suite, flat, named_files};
use crate::error::Error;

/// Field of `metrics.json`.
pub const ORIGIN: &str = "origin";

/// Settings that affect answers and scores in any suite, without keys and headers.
const SETTINGS: [&str; 19] = [
    "data.chat_template",
    "data.chat_template_kwargs",
    "data.columns",
    "data.flatten",
    "data.flatten_slots",
    "data.format",
    "data.slot_prompt",
    "data.system",
    "eval.constrained",
    "eval.encoder",
    "eval.max_new_tokens",
    "eval.max_samples",
    "eval.max_time",
    "eval.stop_strings",
    "eval.temperature",
    "eval.top_k",
    "eval.top_p",
    "model.compute_dtype",
    "model.revision",
];

/// Settings that only affect agent suites.
const AGENT_SETTINGS: [&str; 4] = [
    "goat.limits",
    "goat.method",
    "goat.n_documents",
    "goat.output_limit",
];

/// The origin of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvaluationOrigin {
    /// Version of the program.
    pub tooltune: String,
    /// The suite; `None` if only the loss was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// The local model by hub name or path; `None` for a server or saved predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The untrained retriever, if the suite uses one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retriever: Option<String>,
    /// The adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointOrigin>,
    /// The server that generated the completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointOrigin>,
    /// The file of saved predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predictions: Option<FileOrigin>,
    /// The evaluated files, and the files that they need.
    pub data: Vec<FileOrigin>,
    /// Settings that affect the result, by path.
    pub settings: Map<String, Value>,
}

/// An adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOrigin {
    /// The adapter folder, or `base` for the model without an adapter.
    pub path: String,
    /// Digest of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointOrigin {
    /// URL without passwords and keys.
    pub url: String,
    /// Name of the model on the server.
    pub model: String,
    /// Names of the extra request fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_body: Vec<String>,
}

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOrigin {
    /// Path, or hub name.
    pub file: String,
    /// Number of rows, if it contains rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    /// Digest of the bytes; `None` for a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl FileOrigin {
    /// Reads the current content of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(config: &Config, path: &Path, has_rows: bool) -> Result<Self, Error> {
        let is_file = regular_file::is_there(path).unwrap_or(false);
        Ok(Self {
            file: hub_name_or_path(config, path),
            rows: (is_file && has_rows).then(|| n_rows(path)).flatten(),
            sha256: is_file.then(|| sha256_file(path)).transpose()?,
        })
    }
}

/// The hub name of a downloaded file, otherwise its path.
fn hub_name_or_path(config: &Config, path: &Path) -> String {
    let hub = config.hub.origin_of(path);
    hub.map_or_else(|| path.display().to_string(), |origin| origin.at_commit())
}

fn n_rows(path: &Path) -> Option<usize> {
    let records = tooltune_files::open(path).ok()?;
    let lines = TextLines::from_records(records).map(|line| line.is_ok());
    let (mut n, mut is_complete) = (0, true);
    for is_read in lines {
        n += 1;
        is_complete &= is_read;
    }
    is_complete.then_some(n)
}

impl EvaluationOrigin {
    /// Records the files and settings of an evaluation. `data` has the row files of the command
    /// line, if any. The caller adds the evaluated model.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn record(config: &Config, suite: Option<Suite>, data: &[PathBuf]) -> Result<Self, Error> {
        let mut files = Vec::new();
        for path in data {
            files.push(FileOrigin::read(config, path, true)?);
        }
        for (setting, path) in named_files(config) {
            let is_rows = names_eval_rows(&setting);
            let is_replaced = is_rows && !data.is_empty();
            if !is_replaced && is_used(&setting, config, suite) {
                files.push(FileOrigin::read(config, &path, is_rows)?);
            }
        }
        Ok(Self {
            tooltune: env!("CARGO_PKG_VERSION").to_owned(),
            suite: suite.map(|suite| suite.to_string()),
            data: files,
            settings: settings(config, suite),
            ..Self::default()
        })
    }

    /// Adds the model and, if the suite uses one, the retriever of the config.
    pub fn with_models(mut self, config: &Config, suite: Option<Suite>) -> Self {
        let needs = suite.map(|suite| suite.needs());
        if needs.is_none_or(|needs| needs.generator) {
            let model = config.model.as_ref();
            self.model = model.map(|model| hub_name_or_path(config, &model.model_name_or_path));
        }
        if needs.is_some_and(|needs| needs.retriever) {
            let retriever = config.retriever.as_ref();
            self.retriever = retriever.map(|one| hub_name_or_path(config, &one.model_name_or_path));
        }
        self
    }

    /// Adds the server.
    pub fn with_endpoint(
        mut self,
        url: &str,
        model: &str,
        extra_body: &Map<String, Value>,
    ) -> Self {
        self.model = None;
        self.endpoint = Some(EndpointOrigin {
            url: without_secrets(url),
            model: model.to_owned(),
            extra_body: extra_body.keys().cloned().collect(),
        });
        self
    }

    /// Reads the origin from `metrics.json`; `None` if an earlier version wrote it.
    pub fn read(metrics: &Value) -> Option<Self> {
        let origin = metrics.get(ORIGIN)?.clone();
        serde_json::from_value(origin).ok()
    }

    /// Short description of the evaluated model.
    pub fn model_name(&self) -> String {
        let model = self.model.as_ref().or(self.retriever.as_ref());
        match (&self.endpoint, &self.predictions, &self.checkpoint, model) {
            (Some(endpoint), ..) => format!("{} at {}", endpoint.model, endpoint.url),
            (_, Some(file), ..) => format!("the completions in {}", file.file),
            (.., Some(checkpoint), Some(model)) => format!("{} of {model}", checkpoint.path),
            (.., Some(checkpoint), None) => checkpoint.path.clone(),
            (.., None, Some(model)) => model.clone(),
            (.., None, None) => "an unknown system".to_owned(),
        }
    }

    /// Describes the evaluated model and rows.
    pub fn line(&self) -> String {
        let rows = self.data.iter().filter(|file| file.rows.is_some());
        let rows = rows.map(|file| {
            let n = file.rows.unwrap_or_default();
            format!(
                "{} ({n} {})",
                file.file,
                if n == 1 { "row" } else { "rows" }
            )
        });
        let rows: Vec<String> = rows.collect();
        match rows.as_slice() {
            [] => self.model_name(),
            rows => format!("{}, on {}", self.model_name(), rows.join(", ")),
        }
    }

    /// Whether the digests show that the rows differ; `false` if digests are missing.
    pub fn has_other_rows(&self, other: &Self) -> bool {
        let digests = |origin: &Self| -> Vec<String> {
            let rows = origin.data.iter().filter(|file| file.rows.is_some());
            rows.filter_map(|file| file.sha256.clone()).collect()
        };
        let (own, others) = (digests(self), digests(other));
        !own.is_empty() && !others.is_empty() && own != others
    }
}

/// Whether a setting names the evaluation rows that `--data` replaces.
fn names_eval_rows(setting: &str) -> bool {
    let is_data = |table: &str| setting.starts_with(&format!("eval.{table}.data"));
    ["data.eval", "retriever.eval"]
        .iter()
        .any(|list| setting.starts_with(list))
        || Suite::words().into_iter().any(is_data)
        || setting.starts_with("data.train")
}

/// Whether the suite's evaluation uses the file of this setting.
fn is_used(setting: &str, config: &Config, suite: Option<Suite>) -> bool {
    let Some(suite) = suite else {
        return setting.starts_with("data.eval") || is_split(setting, config);
    };
    let needs = suite.needs();
    let table = setting.split('.').next().unwrap_or_default();
    match table {
        _ if setting.ends_with("model_name_or_path") || setting == "eval.encoder" => false,
        "data" if needs.rows.is_some() => {
            setting.starts_with("data.eval") || is_split(setting, config)
        }
        "eval" => setting.starts_with(&format!("eval.{suite}.")),
        "goat" => needs.agents || needs.is_ranking_only(),
        "retriever" => needs.is_ranking_only() && !setting.starts_with("retriever.train"),
        _ => false,
    }
}

/// Whether evaluation rows are split off from this training file.
fn is_split(setting: &str, config: &Config) -> bool {
    let is_held_out = config.data.eval.is_empty() && config.data.validation_split.is_some();
    is_held_out && setting.starts_with("data.train")
}

fn settings(config: &Config, suite: Option<Suite>) -> Map<String, Value> {
    let needs = suite.map(|suite| suite.needs());
    let is_agent = needs.is_some_and(|needs| needs.agents);
    let own = suite.map(|suite| format!("eval.{suite}"));
    let mut settings = Map::new();
    for (path, text) in flat(config) {
        let is_own = own.as_deref() == Some(path.as_str());
        let matters = SETTINGS.contains(&path.as_str())
            || is_agent && AGENT_SETTINGS.contains(&path.as_str())
            || is_own;
        let value = serde_json::from_str::<Value>(&text).ok();
        let Some(mut value) = value.filter(|_| matters) else {
            continue;
        };
        if let Some(table) = value.as_object_mut().filter(|_| is_own) {
            // Skip URLs and headers of services. Also skip files, which are listed with digests.
            table.retain(|key, value| {
                !["executor", "judge", "data", "documents"].contains(&key.as_str())
                    && !value.is_object()
            });
        }
        settings.insert(path, value);
    }
    settings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::LoadedConfig;

    fn config(folder: &Path, text: &str) -> Config {
        let path = folder.join("config.toml");
        std::fs::write(&path, text).expect("a file");
        LoadedConfig::load(&path, &[]).expect("a config").config
    }

    #[test]
    fn an_origin_names_files_by_digest_and_no_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = folder.path().join("rows.jsonl");
        std::fs::write(&rows, "{\"a\": 1}\n{\"a\": 2}\n").expect("a file");
        let rows_text = rows.display().to_string();
        let config = config(
            folder.path(),
            &format!(
                "[model]\nmodel_name_or_path = \"base\"\n[lora]\n[train]\noutput_dir = \"run\"\n\
                 [data]\ntrain = [\"train.jsonl\"]\neval = [{rows_text:?}]\n\
                 format = \"slot\"\n[eval]\neval_strategy = \"no\"\nmax_new_tokens = 7\n"
            ),
        );
        let suite = Some(Suite::first());
        let origin = EvaluationOrigin::record(&config, suite, &[]).expect("files");
        let [file] = origin.data.as_slice() else {
            panic!("{origin:?}")
        };
        assert_eq!(
            (file.file.as_str(), file.rows),
            (rows_text.as_str(), Some(2))
        );
        assert_eq!(file.sha256.as_deref().map(str::len), Some(64));
        assert_eq!(origin.settings["eval.max_new_tokens"], json!(7));
        let body = json!({"key": "hidden"});
        let body = body.as_object().expect("an object");
        let with_endpoint = origin.clone().with_models(&config, suite).with_endpoint(
            "http://me:hidden@localhost:1/v1?key=hidden",
            "big",
            body,
        );
        let text = serde_json::to_string(&with_endpoint).expect("JSON");
        assert!(!text.contains("hidden"), "{text}");
        assert!(text.contains("localhost:1/v1"), "{text}");
        assert!(
            with_endpoint.line().starts_with("big at "),
            "{}",
            with_endpoint.line()
        );
        assert!(
            with_endpoint.line().ends_with("rows.jsonl (2 rows)"),
            "{}",
            with_endpoint.line()
        );
        let read = EvaluationOrigin::read(&json!({ORIGIN: with_endpoint})).expect("an origin");
        assert!(!read.has_other_rows(&origin));
        std::fs::write(&rows, "{\"a\": 1}\n{\"a\": 3}\n").expect("a file");
        let changed = EvaluationOrigin::record(&config, suite, &[]).expect("files");
        assert!(changed.has_other_rows(&origin));
        let here = changed.with_models(&config, suite);
        assert_eq!(here.model.as_deref(), Some("base"));
        assert_eq!(EvaluationOrigin::read(&json!({"n": 3})), None);
    }

    #[test]
    fn rows_of_the_command_line_replace_those_of_the_config() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let (own, other) = (
            file("own.jsonl", "{}\n"),
            file("other.jsonl", "{}\n{}\n{}\n"),
        );
        let config = config(
            folder.path(),
            &format!(
                "[model]\n\
                 model_name_or_path = \"base\"\n\
                 [lora]\n\
                 [train]\n\
                 output_dir = \"run\"\n\
                 [data]\n\
                 train = [\"train.jsonl\"]\n\
                 eval = [{own:?}]\n\
                 format = \"slot\"\n\
                 [eval]\n\
                 eval_strategy = \"no\"\n"
            ),
        );
        let origin =
            EvaluationOrigin::record(&config, Some(Suite::first()), &[other]).expect("files");
        let rows: Vec<Option<usize>> = origin.data.iter().map(|file| file.rows).collect();
        assert_eq!(rows, [Some(3)]);
    }
}
