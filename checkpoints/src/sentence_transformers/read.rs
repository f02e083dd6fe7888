//! The files of a folder of sentence-transformers to what they say of texts and vectors.
//!
//! `modules.json` names the modules and the folders of their settings; settings are read in the
//! spellings of all versions. What would change an embedding and is not computed here is refused
//! with its file and field.
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

/// How the vectors of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's.
    Cls,
    /// The largest value of each dimension.
    Max,
    /// The mean.
    Mean,
    /// The sum over the square root of their number.
    MeanSqrtLen,
    /// The last token's.
    LastToken,
}

impl Pooling {
    /// Names: of the one key of version 6, of the flag of earlier versions.
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

    /// The flag of this kind and of those that are not read, each with whether it is set.
    pub(super) fn flags(self) -> impl Iterator<Item = (&'static str, bool)> {
        let known = Self::ALL
            .into_iter()
            .map(move |(_, flag, each)| (flag, each == self));
        known.chain([(WEIGHTED.1, false)])
    }
}

/// The kind of pooling that is refused: its name and its flag.
const WEIGHTED: (&str, &str) = ("weightedmean", "pooling_mode_weightedmean_tokens");

/// What says how near two embeddings are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Similarity {
    /// The cosine of their angle.
    #[default]
    Cosine,
    /// Their dot product.
    Dot,
}

impl Similarity {
    /// As `similarity_fn_name` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
        }
    }
}

/// Texts that are put before texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// By name, as `config_sentence_transformers.json` has them.
    pub by_name: BTreeMap<String, String>,
    /// The name of the one for texts that are neither query nor document.
    pub default_prompt_name: Option<String>,
}

/// What `tokenizer_config.json` says, which transformers reads beside `tokenizer.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenizerRules {
    /// `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`, where the tokenizer is BERT's.
    pub bert: Option<(bool, Option<bool>, bool)>,
    /// Whether long texts lose their beginning.
    pub truncates_left: bool,
    /// Most tokens of a text; `None` where no limit is written.
    pub model_max_length: Option<usize>,
}

/// A folder of sentence-transformers, without tokenizer and weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceTransformer {
    /// Where it lies.
    pub dir: PathBuf,
    /// Of tokens.
    pub pooling: Pooling,
    /// Whether the tokens of a prompt are pooled, too.
    pub include_prompt: bool,
    /// Whether embeddings have length 1.
    pub normalize: bool,
    /// Of the folder, or the caller's.
    pub prompts: Prompts,
    /// Of queries and documents.
    pub similarity: Similarity,
    /// Most tokens of a text; `None` leaves it to [`TokenizerRules`].
    pub max_seq_length: Option<usize>,
    /// Whether texts are lower-cased before the tokenizer reads them.
    pub do_lower_case: bool,
    /// Of `tokenizer_config.json`.
    pub tokenizer: TokenizerRules,
}

/// Names of the transformer's settings; the first that is there counts.
const TRANSFORMER_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];
const WHOLE_FILE: &str = "config_sentence_transformers.json";

/// Names under which folders have a document's prompt though nothing reads it from there.
const NAMES_OF_DOCUMENTS: [&str; 2] = ["passage", "corpus"];

/// A JSON object with its file, for errors.
struct Settings {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Settings {
    /// `None` if there is no such file.
    fn open(path: PathBuf) -> Result<Option<Self>, CheckpointError> {
        if regular_file::is_there(&path)? {
            Self::of(path).map(Some)
        } else {
            Ok(None)
        }
    }

    fn of(path: PathBuf) -> Result<Self, CheckpointError> {
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

    fn wrong(&self, key: &str, problem: impl Into<String>) -> CheckpointError {
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
            flag.ok_or_else(|| self.wrong(key, format!("is {value}, and must be true or false")))
        };
        self.get(key).map(flag).transpose()
    }

    fn text(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        let text = |value| {
            let text = Value::as_str(value);
            text.ok_or_else(|| self.wrong(key, format!("is {value}, and must be a text")))
        };
        self.get(key).map(text).transpose()
    }

    /// A number of tokens; one beyond 32 bits says that there is no limit.
    fn length(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match (value.as_u64(), value.as_f64()) {
            (Some(length), _) if length < 1 << 32 => Ok(Some(length as usize)),
            (_, Some(length)) if length >= f64::from(u32::MAX) => Ok(None),
            _ => Err(self.wrong(key, format!("is {value}, and must be a number of tokens"))),
        }
    }
}

fn json(path: &Path) -> Result<Value, CheckpointError> {
    let bytes = regular_file::read(path, JSON_BYTES)?;
    serde_json::from_slice(&bytes).map_err(CheckpointError::json(path))
}

impl SentenceTransformer {
    /// Reads the folder `dir` of an encoder whose tokens have `hidden_size` values.
    ///
    /// A folder without `modules.json` is a plain encoder: its tokens are averaged, and its
    /// embeddings have any length.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or a field is none of those that sentence-transformers knows
    /// - a module, pooling, similarity or other setting that is not computed here
    pub fn read(dir: &Path, hidden_size: usize) -> Result<Self, CheckpointError> {
        let mut found = Self {
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
        found.read_modules(dir, hidden_size)?;
        for name in TRANSFORMER_FILES {
            if let Some(settings) = Settings::open(dir.join(name))? {
                check_transformer(&settings)?;
                found.max_seq_length = settings.length("max_seq_length")?;
                found.do_lower_case = settings.flag("do_lower_case")?.unwrap_or(false);
                break;
            }
        }
        if let Some(settings) = Settings::open(dir.join(WHOLE_FILE))? {
            found.read_whole(&settings)?;
        }
        Ok(found)
    }

    /// The same with other prompts for queries and documents, where they are given.
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

    /// What is put before a query.
    ///
    /// # Source
    ///
    /// `SentenceTransformer.encode_query`: the prompt called query, or none; never the default one.
    pub fn query_prompt(&self) -> &str {
        self.prompt("query")
    }

    /// What is put before a document.
    ///
    /// # Errors
    ///
    /// - the folder has one under a name that is not read, and none called document
    ///
    /// # Source
    ///
    /// `SentenceTransformer.encode_document`: it looks for document, passage and corpus, and always
    /// finds the first, which is empty where the folder has none.
    pub fn document_prompt(&self) -> Result<&str, CheckpointError> {
        let by_name = &self.prompts.by_name;
        let other = NAMES_OF_DOCUMENTS
            .into_iter()
            .find(|name| !self.prompt(name).is_empty());
        match other.filter(|_| !by_name.contains_key("document")) {
            Some(name) => Err(CheckpointError::field(
                &self.dir.join(WHOLE_FILE),
                format!("prompts.{name}"),
                format!(
                    "is no prompt that sentence-transformers puts before documents: it reads the one \
                     called document; write retriever.document_prompt = {:?}, or \"\" for none",
                    self.prompt(name)
                ),
            )),
            None => Ok(self.prompt("document")),
        }
    }

    /// Most tokens of a text of an encoder with so many positions.
    ///
    /// Versions up to 5 write the length into a file of their own, later ones as the tokenizer's;
    /// without one there are the positions.
    pub fn length(&self, positions: usize) -> usize {
        let written = self.max_seq_length.or(self.tokenizer.model_max_length);
        written.unwrap_or(positions).min(positions)
    }

    /// What is put before a text that is neither query nor document.
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
            let at = format!("[{i}].type");
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
                            "is {folder:?}: the encoder's files must lie beside modules.json; move \
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
                        feature: format!("{at} = {class:?}"),
                        fix: "an encoder here is a Transformer, a Pooling and perhaps a Normalize, \
                               in this order; take another model",
                    });
                }
            }
        }
        match modules.len() {
            0 | 1 => Err(CheckpointError::field(
                &path,
                "the file",
                "must name a Transformer and a Pooling",
            )),
            _ => Ok(()),
        }
    }

    fn read_pooling(&mut self, path: &Path, hidden_size: usize) -> Result<(), CheckpointError> {
        let settings = Settings::of(path.to_owned())?;
        let mut flags = Vec::new();
        for key in settings.fields.keys() {
            match key.as_str() {
                "word_embedding_dimension" | "embedding_dimension" => {
                    if settings
                        .length(key)?
                        .is_some_and(|size| size != hidden_size)
                    {
                        let problem = format!("is not {hidden_size}, the encoder's hidden_size");
                        return Err(settings.wrong(key, problem));
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
        let named = match settings.get("pooling_mode") {
            Some(Value::Array(several)) if several.len() == 1 => several.first(),
            other => other,
        };
        let mode = |name: &str| Pooling::ALL.into_iter().find(|(mode, ..)| *mode == name);
        let (key, known) = match (named, flags.as_slice()) {
            (Some(named), _) => ("pooling_mode", named.as_str().and_then(mode)),
            (None, []) => ("", mode("mean")),
            (None, [flag]) => (*flag, Pooling::ALL.into_iter().find(|(_, f, _)| f == flag)),
            (None, [_, second, ..]) => (*second, None),
        };
        let Some((_, its_flag, pooling)) = known else {
            return Err(settings.unsupported(
                key,
                "one of cls, max, mean, mean_sqrt_len_tokens and lasttoken is; take another model",
            ));
        };
        if let Some(other) = flags.iter().find(|flag| **flag != its_flag) {
            let problem = format!("is true, and pooling_mode says otherwise; remove {other}");
            return Err(settings.wrong(other, problem));
        }
        self.pooling = pooling;
        Ok(())
    }

    fn read_whole(&mut self, settings: &Settings) -> Result<(), CheckpointError> {
        if let Some(kind) = settings.text("model_type")?
            && kind != "SentenceTransformer"
        {
            return Err(settings.unsupported("model_type", "take a SentenceTransformer"));
        }
        if settings.get("truncate_dim").is_some() {
            return Err(
                settings.unsupported("truncate_dim", "write null: embeddings are whole here")
            );
        }
        self.similarity = match settings.text("similarity_fn_name")? {
            None | Some("cosine") => Similarity::Cosine,
            Some("dot") => Similarity::Dot,
            Some(_) => {
                let fix = "write \"cosine\" or \"dot\"";
                return Err(settings.unsupported("similarity_fn_name", fix));
            }
        };
        let prompts = settings.get("prompts");
        let prompts = prompts
            .map(|prompts| {
                let by_name = prompts.as_object();
                by_name.ok_or_else(|| settings.wrong("prompts", "must be an object of texts"))
            })
            .transpose()?;
        for (name, prompt) in prompts.into_iter().flatten() {
            let prompt = match prompt {
                Value::Null => "",
                Value::String(prompt) => prompt,
                _ => return Err(settings.wrong(&format!("prompts.{name}"), "must be a text")),
            };
            let by_name = &mut self.prompts.by_name;
            by_name.insert(name.clone(), prompt.to_owned());
        }
        let default = settings.text("default_prompt_name")?;
        if let Some(name) = default
            && !["query", "document"].contains(&name)
            && !self.prompts.by_name.contains_key(name)
        {
            let problem = format!("is {name:?}, and prompts has none of that name");
            return Err(settings.wrong("default_prompt_name", problem));
        }
        self.prompts.default_prompt_name = default.map(str::to_owned);
        Ok(())
    }
}

/// What to do about a key that sentence-transformers would not take either.
const REMOVE: &str = "sentence-transformers has no such setting; remove it";

/// Refuses settings of the transformer that are not computed here.
fn check_transformer(settings: &Settings) -> Result<(), CheckpointError> {
    let is_empty = |value: &Value| match value {
        // Who trusted code says nothing of embeddings.
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
            let fix = "embeddings would differ from sentence-transformers'; take another model";
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
/// `tokenize_chinese_chars` are those of this file or the class's own, whatever `tokenizer.json` says.
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
            Some(_) => return Err(settings.unsupported("truncation_side", "write \"right\"")),
        },
        model_max_length: settings.length("model_max_length")?,
    })
}

#[cfg(test)]
mod tests;
