//! Reads the settings in a sentence-transformers folder.
//!
//! `modules.json` lists the modules and the folders of their settings. The config formats of all
//! versions are supported. An unsupported setting that would change embeddings is an error that
//! names the file and the field.
//!
//! Source: sentence-transformers 6.2, `base/model.py`, `base/modules/transformer.py`,
//! `sentence_transformer/model.py`, `sentence_transformer/modules/pooling.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::families::BERT;
use crate::regular_file;

/// How token vectors are pooled into one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's vector.
    Cls,
    /// The maximum of each dimension.
    Max,
    /// The mean of the vectors.
    Mean,
    /// The sum divided by the square root of the number of tokens.
    MeanSqrtLen,
    /// The last token's vector.
    LastToken,
}

impl Pooling {
    /// Each mode with its name in version 6 and its flag in earlier versions.
    const ALL: [(&'static str, &'static str, Self); 5] = [
        ("cls", "pooling_mode_cls_token", Self::Cls),
        ("max", "pooling_mode_max_tokens", Self::Max),
        ("mean", "pooling_mode_mean_tokens", Self::Mean),
        (
            "mean_sqrt_len_tokens",
            "pooling_mode_mean_sqrt_len_tokens",
            Self::MeanSqrtLen,
        ),
        ("lasttoken", "pooling_mode_lasttoken", Self::LastToken),
    ];

    /// The flags of all pooling modes. Only the flag of this mode is set.
    pub(super) fn flags(self) -> impl Iterator<Item = (&'static str, bool)> {
        let supported = Self::ALL
            .into_iter()
            .map(move |(_, flag, each)| (flag, each == self));
        supported.chain([(WEIGHTED.1, false)])
    }
}

/// The unsupported pooling mode: its name and its flag.
const WEIGHTED: (&str, &str) = ("weightedmean", "pooling_mode_weightedmean_tokens");

/// The similarity function of two embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Similarity {
    /// Cosine similarity.
    #[default]
    Cosine,
    /// The dot product.
    Dot,
}

impl Similarity {
    /// The name in `similarity_fn_name`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
        }
    }
}

/// Prompts prepended to inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts by name, as in `config_sentence_transformers.json`.
    pub by_name: BTreeMap<String, String>,
    /// Name of the prompt for inputs that are neither query nor document.
    pub default_prompt_name: Option<String>,
}

/// Settings of `tokenizer_config.json`, which transformers reads in addition to `tokenizer.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenizerRules {
    /// `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`, if the tokenizer is BERT's.
    pub bert: Option<(bool, Option<bool>, bool)>,
    /// Whether long inputs are truncated at the start.
    pub truncates_left: bool,
    /// Maximum tokens per input; `None` if the file sets no limit.
    pub model_max_length: Option<usize>,
}

/// The settings of a sentence-transformers folder, without tokenizer and weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceTransformer {
    /// The folder of the model.
    pub dir: PathBuf,
    /// How token vectors are pooled.
    pub pooling: Pooling,
    /// Whether pooling includes the tokens of a prompt.
    pub include_prompt: bool,
    /// Whether embeddings are normalised to length 1.
    pub normalize: bool,
    /// The prompts of the folder, or their replacements.
    pub prompts: Prompts,
    /// Similarity of queries and documents.
    pub similarity: Similarity,
    /// Maximum tokens per input; `None` uses [`TokenizerRules`].
    pub max_seq_length: Option<usize>,
    /// Whether inputs are lower-cased before tokenization.
    pub do_lower_case: bool,
    /// Settings of `tokenizer_config.json`.
    pub tokenizer: TokenizerRules,
}

/// File names of the transformer's settings; the first existing one is used.
const TRANSFORMER_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
const MODEL_CONFIG: &str = "config_sentence_transformers.json";

/// Names under which some folders store the document prompt, although sentence-transformers does
/// not read it there.
const UNUSED_DOCUMENT_PROMPTS: [&str; 2] = ["passage", "corpus"];

/// A JSON object with its path, for errors.
struct Settings {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Settings {
    /// `None` if there is no such file.
    fn open(path: PathBuf) -> Result<Option<Self>, CheckpointError> {
        if regular_file::is_there(&path)? {
            Self::require(path).map(Some)
        } else {
            Ok(None)
        }
    }

    fn require(path: PathBuf) -> Result<Self, CheckpointError> {
        match json(&path)? {
            Value::Object(fields) => Ok(Self { path, fields }),
            _ => Err(CheckpointError::field(
                &path,
                "the file",
                "must be a JSON object",
            )),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    fn field_error(&self, key: &str, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::field(&self.path, key, problem)
    }

    fn unsupported(&self, key: &str, fix: &'static str) -> CheckpointError {
        let value = self.fields.get(key).unwrap_or(&Value::Null);
        CheckpointError::Unsupported {
            path: self.path.clone(),
            feature: format!("{key} = {value}"),
            fix,
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        let flag = |value: &Value| {
            let flag = value.as_bool();
            flag.ok_or_else(|| {
                self.field_error(key, format!("is {value} but must be true or false"))
            })
        };
        self.get(key).map(flag).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        let text = |value| {
            let text = Value::as_str(value);
            text.ok_or_else(|| self.field_error(key, format!("is {value} but must be a string")))
        };
        self.get(key).map(text).transpose()
    }

    /// Reads a number of tokens. Values beyond 32 bits mean no limit.
    fn length(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match (value.as_u64(), value.as_f64()) {
            (Some(length), _) if length < 1 << 32 => Ok(Some(length as usize)),
            (_, Some(length)) if length >= f64::from(u32::MAX) => Ok(None),
            _ => Err(self.field_error(key, format!("is {value} but must be a number of tokens"))),
        }
    }
}

fn json(path: &Path) -> Result<Value, CheckpointError> {
    let bytes = regular_file::read(path, JSON_BYTES)?;
    serde_json::from_slice(&bytes).map_err(CheckpointError::json(path))
}

impl SentenceTransformer {
    /// Reads the folder `dir` of an encoder with the given `hidden_size`.
    ///
    /// A folder without `modules.json` is a plain encoder with mean pooling and without
    /// normalisation.
    ///
    /// # Errors
    ///
    /// - A file cannot be read, or has a field that sentence-transformers does not know.
    /// - A module, pooling mode, similarity or other setting is not supported.
    pub fn read(dir: &Path, hidden_size: usize) -> Result<Self, CheckpointError> {
        let mut encoder = Self {
            dir: dir.to_owned(),
            pooling: Pooling::Mean,
            include_prompt: true,
            normalize: false,
            prompts: Prompts::default(),
            similarity: Similarity::default(),
            max_seq_length: None,
            do_lower_case: false,
            tokenizer: tokenizer_rules(dir)?,
        };
        encoder.read_modules(dir, hidden_size)?;
        for name in TRANSFORMER_FILES {
            if let Some(settings) = Settings::open(dir.join(name))? {
                check_transformer(&settings)?;
                encoder.max_seq_length = settings.length("max_seq_length")?;
                encoder.do_lower_case = settings.flag("do_lower_case")?.unwrap_or(false);
                break;
            }
        }
        if let Some(settings) = Settings::open(dir.join(MODEL_CONFIG))? {
            encoder.read_model_config(&settings)?;
        }
        Ok(encoder)
    }

    /// Replaces the prompts of queries and documents. `None` keeps the prompt of the folder.
    pub fn with_prompts(mut self, query: Option<&str>, document: Option<&str>) -> Self {
        for (name, prompt) in [("query", query), ("document", document)] {
            if let Some(prompt) = prompt {
                let by_name = &mut self.prompts.by_name;
                by_name.insert(name.to_owned(), prompt.to_owned());
            }
        }
        self
    }

    fn prompt(&self, name: &str) -> &str {
        self.prompts.by_name.get(name).map_or("", String::as_str)
    }

    /// The prompt prepended to a query.
    ///
    /// # Source
    ///
    /// `SentenceTransformer.encode_query` uses the prompt named query, or no prompt, but never the
    /// default prompt.
    pub fn query_prompt(&self) -> &str {
        self.prompt("query")
    }

    /// The prompt prepended to a document.
    ///
    /// # Errors
    ///
    /// The folder has a document prompt only under an unused name.
    ///
    /// # Source
    ///
    /// `SentenceTransformer.encode_document` looks for document, passage and corpus in this order.
    /// It always finds document, which is empty if the folder has none.
    pub fn document_prompt(&self) -> Result<&str, CheckpointError> {
        let by_name = &self.prompts.by_name;
        let unused_name = UNUSED_DOCUMENT_PROMPTS
            .into_iter()
            .find(|name| !self.prompt(name).is_empty());
        match unused_name.filter(|_| !by_name.contains_key("document")) {
            Some(name) => Err(CheckpointError::field(
                &self.dir.join(MODEL_CONFIG),
                format!("prompts.{name}"),
                format!(
                    "is not used: sentence-transformers prepends only the prompt named document to \
                     documents; set retriever.document_prompt = {:?}, or \"\" for none",
                    self.prompt(name)
                ),
            )),
            None => Ok(self.prompt("document")),
        }
    }

    /// Maximum tokens per input of an encoder with `positions` positions.
    ///
    /// Versions up to 5 write this limit to a separate file, and later versions to the tokenizer
    /// settings. The default is `positions`.
    pub fn length(&self, positions: usize) -> usize {
        let limit = self.max_seq_length.or(self.tokenizer.model_max_length);
        limit.unwrap_or(positions).min(positions)
    }

    /// The prompt prepended to inputs that are neither query nor document.
    pub fn default_prompt(&self) -> &str {
        let name = self.prompts.default_prompt_name.as_deref();
        name.map_or("", |name| self.prompt(name))
    }

    fn read_modules(&mut self, dir: &Path, hidden_size: usize) -> Result<(), CheckpointError> {
        let path = dir.join("modules.json");
        if !regular_file::is_there(&path)? {
            return Ok(());
        }
        let modules = json(&path)?;
        let modules = modules.as_array().ok_or_else(|| {
            CheckpointError::field(&path, "the file", "must be a list of modules")
        })?;
        for (i, module) in modules.iter().enumerate() {
            let field = format!("[{i}].type");
            let class = module["type"].as_str().unwrap_or_default();
            let folder = module["path"].as_str().unwrap_or_default();
            let name = class.rsplit('.').next().unwrap_or_default();
            let is_known = class.starts_with("sentence_transformers.");
            match (i, name) {
                (0, "Transformer") if is_known && folder.is_empty() => {}
                (0, "Transformer") if is_known => {
                    return Err(CheckpointError::field(
                        &path,
                        "[0].path",
                        format!(
                            "is {folder:?}: the encoder's files must be next to modules.json; move \
                             them there, and write \"\""
                        ),
                    ));
                }
                (1, "Pooling") if is_known => {
                    self.read_pooling(&dir.join(folder).join("config.json"), hidden_size)?;
                }
                (2.., "Normalize") if is_known => {
                    check_normalize(dir.join(folder).join("config.json"))?;
                    self.normalize = true;
                }
                _ => {
                    return Err(CheckpointError::Unsupported {
                        path,
                        feature: format!("{field} = {class:?}"),
                        fix: "an encoder must be a Transformer, a Pooling and optionally a Normalize, \
                              in this order; use another model",
                    });
                }
            }
        }
        match modules.len() {
            0 | 1 => Err(CheckpointError::field(
                &path,
                "the file",
                "must list a Transformer and a Pooling",
            )),
            _ => Ok(()),
        }
    }

    fn read_pooling(&mut self, path: &Path, hidden_size: usize) -> Result<(), CheckpointError> {
        let settings = Settings::require(path.to_owned())?;
        let mut flags = Vec::new();
        for key in settings.fields.keys() {
            match key.as_str() {
                "word_embedding_dimension" | "embedding_dimension" => {
                    if settings
                        .length(key)?
                        .is_some_and(|size| size != hidden_size)
                    {
                        let problem = format!("is not {hidden_size}, the encoder's hidden_size");
                        return Err(settings.field_error(key, problem));
                    }
                }
                "pooling_mode" | "include_prompt" => {}
                flag if flag == WEIGHTED.1 || Pooling::ALL.iter().any(|(_, f, _)| *f == flag) => {
                    if settings.flag(flag)? == Some(true) {
                        flags.push(flag);
                    }
                }
                _ => return Err(settings.unsupported(key, REMOVE)),
            }
        }
        self.include_prompt = settings.flag("include_prompt")?.unwrap_or(true);
        let pooling_mode = match settings.get("pooling_mode") {
            Some(Value::Array(several)) if several.len() == 1 => several.first(),
            other => other,
        };
        let mode = |name: &str| Pooling::ALL.into_iter().find(|(mode, ..)| *mode == name);
        let (key, selected) = match (pooling_mode, flags.as_slice()) {
            (Some(pooling_mode), _) => ("pooling_mode", pooling_mode.as_str().and_then(mode)),
            (None, []) => ("", mode("mean")),
            (None, [flag]) => (*flag, Pooling::ALL.into_iter().find(|(_, f, _)| f == flag)),
            (None, [_, second, ..]) => (*second, None),
        };
        let Some((_, its_flag, pooling)) = selected else {
            return Err(settings.unsupported(
                key,
                "use a model with cls, max, mean, mean_sqrt_len_tokens or lasttoken",
            ));
        };
        if let Some(other) = flags.iter().find(|flag| **flag != its_flag) {
            let problem = format!("is true but contradicts pooling_mode; remove {other}");
            return Err(settings.field_error(other, problem));
        }
        self.pooling = pooling;
        Ok(())
    }

    fn read_model_config(&mut self, settings: &Settings) -> Result<(), CheckpointError> {
        if let Some(kind) = settings.text("model_type")?
            && kind != "SentenceTransformer"
        {
            return Err(settings.unsupported("model_type", "use a SentenceTransformer"));
        }
        if settings.get("truncate_dim").is_some() {
            return Err(
                settings.unsupported("truncate_dim", "set it to null to keep whole embeddings")
            );
        }
        self.similarity = match settings.text("similarity_fn_name")? {
            None | Some("cosine") => Similarity::Cosine,
            Some("dot") => Similarity::Dot,
            Some(_) => {
                let fix = "set it to \"cosine\" or \"dot\"";
                return Err(settings.unsupported("similarity_fn_name", fix));
            }
        };
        let prompts = settings.get("prompts");
        let prompts = prompts
            .map(|prompts| {
                let by_name = prompts.as_object();
                by_name
                    .ok_or_else(|| settings.field_error("prompts", "must be an object of strings"))
            })
            .transpose()?;
        for (name, prompt) in prompts.into_iter().flatten() {
            let prompt = match prompt {
                Value::Null => "",
                Value::String(prompt) => prompt,
                _ => {
                    return Err(
                        settings.field_error(&format!("prompts.{name}"), "must be a string")
                    );
                }
            };
            let by_name = &mut self.prompts.by_name;
            by_name.insert(name.clone(), prompt.to_owned());
        }
        let default = settings.text("default_prompt_name")?;
        if let Some(name) = default
            && !["query", "document"].contains(&name)
            && !self.prompts.by_name.contains_key(name)
        {
            let problem = format!("is {name:?}, but prompts has no prompt of that name");
            return Err(settings.field_error("default_prompt_name", problem));
        }
        self.prompts.default_prompt_name = default.map(str::to_owned);
        Ok(())
    }
}

/// The remedy for a key that sentence-transformers does not have.
const REMOVE: &str = "sentence-transformers has no such setting; remove it";

/// Refuses unsupported settings of the transformer.
fn check_transformer(settings: &Settings) -> Result<(), CheckpointError> {
    let is_empty = |value: &Value| match value {
        // trust_remote_code does not affect embeddings.
        Value::Object(fields) => fields.keys().all(|key| key == "trust_remote_code"),
        _ => false,
    };
    for (key, value) in &settings.fields {
        let is_served = match key.as_str() {
            "max_seq_length" | "do_lower_case" | "unpad_inputs" => true,
            _ if value.is_null() => true,
            "transformer_task" => value == "feature-extraction",
            "module_output_name" => value == "token_embeddings",
            "modality_config" => {
                let text = &value["text"];
                text["method"] == "forward" && text["method_output_name"] == "last_hidden_state"
            }
            "processing_kwargs" | "model_args" | "model_kwargs" | "tokenizer_args"
            | "processor_kwargs" | "config_args" | "config_kwargs" => is_empty(value),
            "query_length" | "document_length" | "query_expansion" | "tokenizer_name_or_path" => {
                false
            }
            _ => return Err(settings.unsupported(key, REMOVE)),
        };
        if !is_served {
            let fix = "embeddings would differ from sentence-transformers'; use another model";
            return Err(settings.unsupported(key, fix));
        }
    }
    Ok(())
}

fn check_normalize(path: PathBuf) -> Result<(), CheckpointError> {
    let Some(settings) = Settings::open(path)? else {
        return Ok(());
    };
    for key in ["module_input_name", "module_output_name"] {
        if settings
            .text(key)?
            .is_some_and(|name| name != "sentence_embedding")
        {
            return Err(settings.unsupported(key, "it must be \"sentence_embedding\""));
        }
    }
    Ok(())
}

/// Reads `tokenizer_config.json` of an encoder of the BERT family.
///
/// # Source
///
/// transformers 5.23, `BertTokenizer`: `do_lower_case`, `strip_accents` and
/// `tokenize_chinese_chars` come from this file or from the class defaults, regardless of
/// `tokenizer.json`.
fn tokenizer_rules(dir: &Path) -> Result<TokenizerRules, CheckpointError> {
    let Some(settings) = Settings::open(dir.join("tokenizer_config.json"))? else {
        return Ok(TokenizerRules::default());
    };
    let class = settings.text("tokenizer_class")?;
    let is_bert = class.is_none_or(|class| BERT.tokenizer_classes.contains(&class));
    let flag = |key: &str, default| -> Result<bool, CheckpointError> {
        Ok(settings.flag(key)?.unwrap_or(default))
    };
    let bert = if is_bert {
        Some((
            flag("do_lower_case", true)?,
            settings.flag("strip_accents")?,
            flag("tokenize_chinese_chars", true)?,
        ))
    } else {
        None
    };
    Ok(TokenizerRules {
        bert,
        truncates_left: match settings.text("truncation_side")? {
            None | Some("right") => false,
            Some("left") => true,
            Some(_) => return Err(settings.unsupported("truncation_side", "set it to \"right\"")),
        },
        model_max_length: settings.length("model_max_length")?,
    })
}

#[cfg(test)]
mod tests;
