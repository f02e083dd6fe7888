//! Records the model and the rows of an evaluation.

use std::path::PathBuf;

use serde_json::{Map, Value};
use tooltune_checkpoints::digest::sha256_file;

use super::server::extra_body;
use crate::cli::EvalArgs;
use crate::config::{Config, Suite};
use crate::error::Error;
use crate::eval::origin::{CheckpointOrigin, EvaluationOrigin, FileOrigin, ORIGIN};
use crate::eval::report_files::json_value;

/// The field of `metrics.json` that describes the evaluated model and rows.
pub(super) fn fields(
    args: &EvalArgs,
    suite: Option<Suite>,
    config: &Config,
) -> Result<Map<String, Value>, Error> {
    let data: &[PathBuf] = &args.target.data;
    let mut origin = EvaluationOrigin::record(config, suite, data)?;
    if let Some(path) = &args.predictions {
        origin.predictions = Some(FileOrigin::read(config, path, false)?);
    } else {
        origin = origin.with_models(config, suite);
        let needs_retriever = suite.is_some_and(|suite| suite.needs().retriever);
        if args.endpoint.is_none() || needs_retriever {
            origin.checkpoint = Some(checkpoint_origin(args, config)?);
        }
        if let Some(url) = &args.endpoint {
            let model = args.endpoint_model.as_deref().unwrap_or_default();
            origin = origin.with_endpoint(url, model, &extra_body(args, config)?);
        }
    }
    Ok(Map::from_iter([(ORIGIN.to_owned(), json_value(&origin)?)]))
}

fn checkpoint_origin(args: &EvalArgs, config: &Config) -> Result<CheckpointOrigin, Error> {
    if args.target.model.checkpoint()? == "base" {
        return Ok(CheckpointOrigin {
            path: "base".to_owned(),
            sha256: None,
        });
    }
    let dir = args.target.model.checkpoint_dir(config)?;
    let weights = dir.join("adapter_model.safetensors");
    Ok(CheckpointOrigin {
        path: dir.display().to_string(),
        sha256: weights
            .exists()
            .then(|| sha256_file(&weights))
            .transpose()?,
    })
}
