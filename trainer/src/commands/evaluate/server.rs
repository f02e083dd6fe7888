//! The server of `eval --endpoint`, and the fields of its requests.

use serde_json::{Map, Value};
use tooltune_endpoint::EndpointOptions;

use crate::cli::EvalArgs;
use crate::commands::eprint_line;
use crate::config::Config;
use crate::error::Error;
use crate::eval::endpoint_generator::{EndpointGenerator, OPTION_NAMES};
use crate::eval::generate::GenerationOptions;

/// Opens the server.
///
/// # Errors
///
/// `--endpoint-model` is missing, a field is set twice, or the server cannot be opened.
pub(super) fn endpoint(
    args: &EvalArgs,
    config: &Config,
    url: &str,
) -> Result<EndpointGenerator, Error> {
    let model = args.endpoint_model.clone().ok_or_else(|| {
        Error::Usage("--endpoint needs --endpoint-model, the model name on the server".to_string())
    })?;
    let sampling = config.eval.sampling();
    if let Some(top_k) = sampling.top_k.filter(|_| sampling.temperature > 0.0) {
        eprint_line(&format!(
            "eval.top_k = {top_k} is sent as \"top_k\", which is not part of OpenAI's API: vLLM, \
             SGLang and llama.cpp accept it; remove eval.top_k for a server that rejects or \
             ignores it"
        ))?;
    }
    let options = EndpointOptions {
        api_key_env: args.api_key_env.clone(),
        names: OPTION_NAMES,
        ..EndpointOptions::new(url, model)
    };
    EndpointGenerator::open(
        &options,
        args.concurrency,
        GenerationOptions::from_config(config, &[]),
        extra_body(args, config)?,
    )
}

/// Extra fields of every request: the fields from the command line, and the chat template variables
/// under the field name that vLLM and SGLang use.
pub(super) fn extra_body(args: &EvalArgs, config: &Config) -> Result<Map<String, Value>, Error> {
    const FIELD: &str = "chat_template_kwargs";
    let mut body = args.extra_body.clone().unwrap_or_default();
    if let Some((field, setting)) = sent_by_settings(config)
        .into_iter()
        .find(|(field, _)| body.contains_key(*field))
    {
        return Err(Error::Usage(format!(
            "--extra-body sets {field}, but {setting} also sets it; keep only one of them"
        )));
    }
    if config.data.chat_template_kwargs.0.is_empty() {
        return Ok(body);
    }
    let mut kwargs = config.data.chat_template_kwargs.0.clone();
    match body.remove(FIELD) {
        None => {}
        Some(Value::Object(typed)) => {
            for (name, value) in typed {
                if kwargs.get(&name).is_some_and(|known| *known != value) {
                    return Err(Error::Usage(format!(
                        "--extra-body sets {FIELD}.{name} to {value}, but data.{FIELD} sets it to \
                         {}; keep only one of them",
                        kwargs[&name]
                    )));
                }
                kwargs.insert(name, value);
            }
        }
        Some(other) => {
            return Err(Error::Usage(format!(
                "--extra-body sets {FIELD} to {other}; set it to a JSON object"
            )));
        }
    }
    body.insert(FIELD.to_owned(), Value::Object(kwargs));
    Ok(body)
}

/// Request fields that settings control, each with its setting.
fn sent_by_settings(config: &Config) -> Vec<(&'static str, &'static str)> {
    let eval = &config.eval;
    let is_sampled = eval.temperature > 0.0;
    [
        ("response_format", "eval.constrained", eval.constrained),
        ("seed", "train.seed", is_sampled),
        ("stop", "eval.stop_strings", !eval.stop_strings.is_empty()),
        ("top_k", "eval.top_k", is_sampled && eval.top_k.is_some()),
        ("top_p", "eval.top_p", is_sampled),
    ]
    .into_iter()
    .filter_map(|(field, setting, is_sent)| is_sent.then_some((field, setting)))
    .collect()
}
