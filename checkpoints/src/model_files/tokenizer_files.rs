//! Reads the files that change the tokens of `tokenizer.json`, by the rules of `AutoTokenizer`.
//!
//! `tokenizer_config.json` can add tokens (`added_tokens_decoder`, `extra_special_tokens`, a role
//! whose token the vocabulary lacks) or redefine some. If it has no `added_tokens_decoder`,
//! `special_tokens_map.json` overrides every role and `added_tokens.json` also adds tokens. Source:
//! huggingface/transformers 5.23, `tokenization_utils_base.py`, `_from_pretrained`, and
//! `tokenization_utils_tokenizers.py`, `TokenizersBackend.__init__`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_disk::budgets::TOKENIZER_BYTES;

use super::few_values::fields_except_model;
use super::hugging_face::object_if_present;
use super::{AddedToken, SpecialTokens, tokenizer_class};
use crate::error::CheckpointError;
use crate::regular_file;

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";
const DECODER: &str = "added_tokens_decoder";
const EXTRA: &str = "extra_special_tokens";
/// The name of [`EXTRA`] before transformers 5.
const ADDITIONAL: &str = "additional_special_tokens";
/// The roles of every tokenizer, in the order in which their tokens are added.
const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The contents of a tokenizer's files.
#[derive(Debug)]
pub(super) struct TokenizerFiles {
    /// `tokenizer_config.json` with the overrides of `special_tokens_map.json`.
    settings: Map<String, Value>,
    config_path: PathBuf,
    map_path: PathBuf,
    /// Keys of [`Self::settings`] that come from `special_tokens_map.json`.
    from_map: Vec<String>,
    /// Tokens that a file assigns to an ID.
    by_id: BTreeMap<u32, AddedToken>,
    /// `tokenizer.json`, without its model.
    tokenizer: Map<String, Value>,
    /// The added tokens of `tokenizer.json`.
    added_strings: Vec<String>,
}

impl TokenizerFiles {
    /// Reads the files in `dir`. `tokenizer` is its `tokenizer.json`, `config` the model's config.
    ///
    /// # Errors
    ///
    /// A file does not parse, a field has the wrong type, or a setting requires unsupported text
    /// processing.
    pub(super) fn read(
        dir: &Path,
        tokenizer: &Path,
        config: &Map<String, Value>,
    ) -> Result<Self, CheckpointError> {
        let [config_path, map_path, added_path] = [CONFIG, MAP, ADDED].map(|name| dir.join(name));
        let settings = object_if_present(&config_path)?.unwrap_or_default();
        refuse_unsupported(dir, &config_path, &settings)?;
        let tokenizer = without_model(tokenizer)?;
        let mut files = Self {
            added_strings: added_token_strings(&tokenizer),
            tokenizer,
            settings,
            config_path,
            map_path,
            from_map: Vec::new(),
            by_id: BTreeMap::new(),
        };
        files.add_defaults(config);
        if is_empty(files.settings.get(EXTRA))
            && let Some(old) = files.settings.remove(ADDITIONAL)
        {
            files.settings.insert(EXTRA.to_owned(), old);
        }
        match files.settings.remove(DECODER) {
            Some(decoder) => files.read_decoder(&decoder)?,
            None => {
                files.merge_map()?;
                files.read_added(&added_path)?;
            }
        }
        Ok(files)
    }

    /// Adds the class defaults of roles absent from tokenizer_config.json, if the tokenizer has
    /// such a token.
    fn add_defaults(&mut self, config: &Map<String, Value>) {
        for (role, token) in tokenizer_class::defaults(&self.tokenizer, &self.settings, config) {
            if self
                .added_strings
                .iter()
                .any(|vocabulary_token| vocabulary_token == token)
                && !self.settings.contains_key(role)
            {
                self.settings.insert(role.to_owned(), token.into());
            }
        }
    }

    fn read_decoder(&mut self, decoder: &Value) -> Result<(), CheckpointError> {
        let wrong = |problem: String| CheckpointError::field(&self.config_path, DECODER, problem);
        let entries = decoder
            .as_object()
            .ok_or_else(|| wrong("must be an object from id to token".to_owned()))?;
        for (id, fields) in entries {
            let token = id.parse().ok().zip(fields.as_object());
            let token =
                token.and_then(|(id, fields)| Some((id, parse_added_token(fields, false)?)));
            let Some((id, token)) = token else {
                return Err(wrong(format!(
                    "{id:?} must be a token id with an object that has a string `content`"
                )));
            };
            self.by_id.insert(
                id,
                AddedToken {
                    id: Some(id),
                    defined_in: format!("{CONFIG}: {DECODER}"),
                    ..token
                },
            );
        }
        Ok(())
    }

    /// Overrides settings with the values of special_tokens_map.json, including `null`.
    fn merge_map(&mut self) -> Result<(), CheckpointError> {
        for (key, value) in object_if_present(&self.map_path)?.unwrap_or_default() {
            // The older name is used only if no file has the current one.
            let key = match key.as_str() {
                ADDITIONAL if self.settings.contains_key(EXTRA) => continue,
                ADDITIONAL => EXTRA.to_owned(),
                _ => key,
            };
            let value = match (self.settings.get(&key), value) {
                (Some(Value::Array(old)), Value::Array(new)) if key == EXTRA => {
                    let more = new.into_iter().filter(|token| !old.contains(token));
                    Value::Array(old.iter().cloned().chain(more).collect())
                }
                (_, value) => value,
            };
            self.settings.insert(key.clone(), value);
            self.from_map.push(key);
        }
        Ok(())
    }

    /// Reads added_tokens.json, an object that maps tokens to IDs.
    fn read_added(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let entries = object_if_present(path)?.unwrap_or_default();
        if entries.is_empty() {
            return Ok(());
        }
        let special_tokens: Vec<AddedToken> = self
            .tokens_by_role()?
            .into_values()
            .chain(self.extra()?)
            .collect();
        for (content, id) in entries {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                return Err(CheckpointError::field(path, content, "must be a token id"));
            };
            let special = special_tokens.iter().any(|token| token.content == content);
            // Skip tokens of tokenizer.json, which describes them in more detail.
            if self.added_strings.contains(&content) {
                continue;
            }
            let token = AddedToken {
                id: Some(id),
                defined_in: ADDED.to_owned(),
                normalized: !special,
                ..special_token(&content, special)
            };
            self.by_id.insert(id, token);
        }
        Ok(())
    }

    /// The tokens by role, including roles specific to this model.
    fn tokens_by_role(&self) -> Result<BTreeMap<String, AddedToken>, CheckpointError> {
        let mut tokens = BTreeMap::new();
        for (key, value) in &self.settings {
            if !key.ends_with("_token") {
                continue;
            }
            // Flags such as add_bos_token are not tokens, so `role` returns `None` for them.
            let is_role = ROLES.contains(&key.as_str());
            if let Some(token) = self.role(key, value, is_role)? {
                tokens.insert(key.clone(), token);
            }
        }
        if let Some(Value::Object(table)) = self.settings.get(EXTRA) {
            for (key, value) in table {
                if let Some(token) = self.role(key, value, true)? {
                    tokens.insert(key.clone(), token);
                }
            }
        }
        Ok(tokens)
    }

    fn role(
        &self,
        key: &str,
        value: &Value,
        must_be_token: bool,
    ) -> Result<Option<AddedToken>, CheckpointError> {
        let parsed = match value {
            Value::Null => return Ok(None),
            Value::String(text) => Some(special_token(text, true)),
            Value::Object(fields) => parse_added_token(fields, true),
            _ => None,
        };
        match parsed {
            Some(token) => Ok(Some(AddedToken {
                defined_in: format!("{}: {key}", self.source(key)),
                ..token
            })),
            None if !must_be_token => Ok(None),
            None => {
                let problem = "must be a string or an object with a string `content`";
                Err(CheckpointError::field(self.path_of(key), key, problem))
            }
        }
    }

    /// Special tokens without a role.
    fn extra(&self) -> Result<Vec<AddedToken>, CheckpointError> {
        let wrong = || {
            let problem = "must be a list of tokens, or an object from name to token";
            CheckpointError::field(self.path_of(EXTRA), EXTRA, problem)
        };
        let items = match self.settings.get(EXTRA) {
            None | Some(Value::Null | Value::Object(_)) => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(wrong()),
        };
        let defined_in = format!("{}: {EXTRA}", self.source(EXTRA));
        let parse_token = |item: &Value| {
            let token = match item {
                Value::String(text) => special_token(text, true),
                Value::Object(fields) => parse_added_token(fields, true)?,
                _ => return None,
            };
            Some(AddedToken {
                defined_in: defined_in.clone(),
                ..token
            })
        };
        items
            .iter()
            .map(|item| parse_token(item).ok_or_else(wrong))
            .collect()
    }

    /// The tokens that are added to `tokenizer.json`, in this order: tokens with an ID, tokens with
    /// a role, others.
    pub(super) fn added_tokens(&self) -> Result<Vec<AddedToken>, CheckpointError> {
        let mut by_role = self.tokens_by_role()?;
        let mut added: Vec<AddedToken> = self.by_id.values().cloned().collect();
        for token in &mut added {
            token.special |= by_role
                .values()
                .any(|by_role| by_role.content == token.content);
        }
        let mut unnumbered: Vec<AddedToken> = ROLES
            .iter()
            .filter_map(|role| by_role.remove(*role))
            .collect();
        unnumbered.extend(by_role.into_values());
        unnumbered.extend(self.extra()?);
        for token in unnumbered {
            let exists = self.added_strings.contains(&token.content)
                || added.iter().any(|earlier| earlier.content == token.content);
            if !exists {
                added.push(token);
            }
        }
        Ok(added)
    }

    /// The roles that chat templates can use.
    pub(super) fn special_tokens(&self) -> Result<SpecialTokens, CheckpointError> {
        let mut by_role = self.tokens_by_role()?;
        let mut token = |role: &str| by_role.remove(role).map(|token| token.content);
        Ok(SpecialTokens {
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
            pad_token: token("pad_token"),
            unk_token: token("unk_token"),
        })
    }

    /// A setting, with the file that defines it.
    pub(super) fn setting(&self, key: &str) -> (&Path, Option<&Value>) {
        (self.path_of(key), self.settings.get(key))
    }

    /// A remark if transformers 5 builds a different tokenizer from these files for a model with
    /// this `config`.
    pub(super) fn remark(&self, config: &Map<String, Value>) -> Option<String> {
        tokenizer_class::remark(&self.tokenizer, &self.settings, config)
    }

    /// Whether `key` comes from special_tokens_map.json.
    pub(super) fn is_from_map(&self, key: &str) -> bool {
        self.from_map.iter().any(|from_map| from_map == key)
    }

    fn path_of(&self, key: &str) -> &Path {
        if self.is_from_map(key) {
            &self.map_path
        } else {
            &self.config_path
        }
    }

    fn source(&self, key: &str) -> &'static str {
        if self.is_from_map(key) { MAP } else { CONFIG }
    }
}

/// The strings of `added_tokens` in a `tokenizer.json`.
fn added_token_strings(tokenizer: &Map<String, Value>) -> Vec<String> {
    let tokens = tokenizer.get("added_tokens").and_then(Value::as_array);
    let contents = tokens.into_iter().flatten();
    let contents = contents.filter_map(|token| token["content"].as_str());
    contents.map(str::to_owned).collect()
}

/// The fields of a `tokenizer.json` except its model; empty if there is no such file.
fn without_model(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    if !regular_file::is_there(path)? {
        return Ok(Map::new());
    }
    let text = regular_file::read(path, TOKENIZER_BYTES)?;
    fields_except_model(&text).map_err(CheckpointError::json(path))
}

/// Refuses settings with which transformers encodes or decodes text differently.
fn refuse_unsupported(
    dir: &Path,
    path: &Path,
    settings: &Map<String, Value>,
) -> Result<(), CheckpointError> {
    let is_true = |key: &str| settings.get(key) == Some(&Value::Bool(true));
    let refuse = |feature: String, fix| {
        Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature,
            fix,
        })
    };
    let key = "split_special_tokens";
    if is_true(key) {
        let fix = "set it to false: special tokens of the chat template would be split into pieces";
        return refuse(format!("{key} = true"), fix);
    }
    let key = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
    if is_true(key) && is_true("clean_up_tokenization_spaces") {
        return refuse(format!("{key} = true"), "set it to false");
    }
    let key = "fast_tokenizer_files";
    let versions = settings.get(key).and_then(Value::as_array);
    let mut versions = versions.into_iter().flatten().filter_map(Value::as_str);
    let is_other_version = |name: &&str| *name != "tokenizer.json" && dir.join(name).exists();
    match versions.find(is_other_version) {
        None => Ok(()),
        Some(name) => refuse(
            format!("{key} with {name} in addition to tokenizer.json"),
            "keep the right file as tokenizer.json, and remove the key",
        ),
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(_) => false,
    }
}

/// A token from a string.
fn special_token(content: &str, special: bool) -> AddedToken {
    AddedToken {
        content: content.to_owned(),
        id: None,
        defined_in: String::new(),
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special,
    }
}

/// A token from an object with `content`. Absent fields have the defaults of
/// `tokenizers.AddedToken`.
fn parse_added_token(fields: &Map<String, Value>, special: bool) -> Option<AddedToken> {
    let flag = |key: &str, default: bool| match fields.get(key) {
        None | Some(Value::Null) => Some(default),
        Some(value) => value.as_bool(),
    };
    let special = special || flag("special", false)?;
    Some(AddedToken {
        single_word: flag("single_word", false)?,
        lstrip: flag("lstrip", false)?,
        rstrip: flag("rstrip", false)?,
        normalized: flag("normalized", !special)?,
        ..special_token(fields.get("content")?.as_str()?, special)
    })
}
