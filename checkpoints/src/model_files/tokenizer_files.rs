//! What the files beside a `tokenizer.json` say of its tokens, as `AutoTokenizer` reads them.
//!
//! `tokenizer_config.json` may add tokens (`added_tokens_decoder`, `extra_special_tokens`, a role
//! whose token the vocabulary lacks) or describe some otherwise; where it has no
//! `added_tokens_decoder`, `special_tokens_map.json` has the last word on every role, and
//! `added_tokens.json` adds tokens, too. Source: huggingface/transformers 5.23,
//! `tokenization_utils_base.py`, `_from_pretrained`, and `tokenization_utils_tokenizers.py`,
//! `TokenizersBackend.__init__`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::few_values::fields_beside_the_model;
use super::hugging_face::object_if_present;
use super::{AddedToken, SpecialTokens, tokenizer_class};
use crate::budgets::TOKENIZER_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";
const DECODER: &str = "added_tokens_decoder";
const EXTRA: &str = "extra_special_tokens";
/// The name of [`EXTRA`] before transformers 5.
const ADDITIONAL: &str = "additional_special_tokens";
/// The roles that every tokenizer has, in the order in which their tokens are added.
const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The files of a tokenizer, read together.
#[derive(Debug)]
pub(super) struct TokenizerFiles {
    /// `tokenizer_config.json` with what `special_tokens_map.json` says instead.
    settings: Map<String, Value>,
    config_path: PathBuf,
    map_path: PathBuf,
    /// Keys of [`Self::settings`] that come from `special_tokens_map.json`.
    from_map: Vec<String>,
    /// Tokens by the id that a file gives them.
    by_id: BTreeMap<u32, AddedToken>,
    /// `tokenizer.json`, without its model.
    tokenizer: Map<String, Value>,
    /// The tokens that it adds to its vocabulary.
    known: Vec<String>,
}

impl TokenizerFiles {
    /// Reads the files in `dir`, `tokenizer` being its `tokenizer.json` and `config` the model's.
    ///
    /// # Errors
    ///
    /// A file does not parse, a field has a wrong type, or a setting asks for a reading of text that
    /// is not done here.
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
            known: known(&tokenizer),
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

    /// What roles mean where tokenizer_config.json says nothing of them, by the class that transformers
    /// takes, provided that the tokenizer has such a token.
    fn add_defaults(&mut self, config: &Map<String, Value>) {
        for (role, token) in tokenizer_class::defaults(&self.tokenizer, &self.settings, config) {
            if self.known.iter().any(|known| known == token) && !self.settings.contains_key(role) {
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
            let token = token.and_then(|(id, fields)| Some((id, described(fields, false)?)));
            let Some((id, token)) = token else {
                return Err(wrong(format!(
                    "{id:?} must be a token id with an object that has a string `content`"
                )));
            };
            self.by_id.insert(
                id,
                AddedToken {
                    id: Some(id),
                    said_in: format!("{CONFIG}: {DECODER}"),
                    ..token
                },
            );
        }
        Ok(())
    }

    /// What special_tokens_map.json says counts, `null` too.
    fn merge_map(&mut self) -> Result<(), CheckpointError> {
        for (key, value) in object_if_present(&self.map_path)?.unwrap_or_default() {
            // Its older name counts only where nothing has the present one.
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

    /// added_tokens.json, from token to id.
    fn read_added(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let entries = object_if_present(path)?.unwrap_or_default();
        if entries.is_empty() {
            return Ok(());
        }
        let named: Vec<AddedToken> = self.named()?.into_values().chain(self.extra()?).collect();
        for (content, id) in entries {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                return Err(CheckpointError::field(path, content, "must be a token id"));
            };
            let special = named.iter().any(|token| token.content == content);
            // tokenizer.json describes its own tokens better.
            if self.known.contains(&content) {
                continue;
            }
            let token = AddedToken {
                id: Some(id),
                said_in: ADDED.to_owned(),
                normalized: !special,
                ..special_token(&content, special)
            };
            self.by_id.insert(id, token);
        }
        Ok(())
    }

    /// The tokens by role, roles of this model alone included.
    fn named(&self) -> Result<BTreeMap<String, AddedToken>, CheckpointError> {
        let mut named = BTreeMap::new();
        for (key, value) in &self.settings {
            if !key.ends_with("_token") {
                continue;
            }
            // Flags such as add_bos_token are no tokens.
            let is_role = ROLES.contains(&key.as_str());
            if let Some(token) = self.role(key, value, is_role)? {
                named.insert(key.clone(), token);
            }
        }
        if let Some(Value::Object(table)) = self.settings.get(EXTRA) {
            for (key, value) in table {
                if let Some(token) = self.role(key, value, true)? {
                    named.insert(key.clone(), token);
                }
            }
        }
        Ok(named)
    }

    fn role(
        &self,
        key: &str,
        value: &Value,
        must_be_token: bool,
    ) -> Result<Option<AddedToken>, CheckpointError> {
        let read = match value {
            Value::Null => return Ok(None),
            Value::String(text) => Some(special_token(text, true)),
            Value::Object(fields) => described(fields, true),
            _ => None,
        };
        match read {
            Some(token) => Ok(Some(AddedToken {
                said_in: format!("{}: {key}", self.source(key)),
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
        let said_in = format!("{}: {EXTRA}", self.source(EXTRA));
        let read = |item: &Value| {
            let token = match item {
                Value::String(text) => special_token(text, true),
                Value::Object(fields) => described(fields, true)?,
                _ => return None,
            };
            Some(AddedToken {
                said_in: said_in.clone(),
                ..token
            })
        };
        items
            .iter()
            .map(|item| read(item).ok_or_else(wrong))
            .collect()
    }

    /// What is added to the tokens of `tokenizer.json`, in this order: those with an id, roles, others.
    pub(super) fn added_tokens(&self) -> Result<Vec<AddedToken>, CheckpointError> {
        let mut named = self.named()?;
        let mut added: Vec<AddedToken> = self.by_id.values().cloned().collect();
        for token in &mut added {
            token.special |= named.values().any(|named| named.content == token.content);
        }
        let mut in_order: Vec<AddedToken> = ROLES
            .iter()
            .filter_map(|role| named.remove(*role))
            .collect();
        in_order.extend(named.into_values());
        in_order.extend(self.extra()?);
        for token in in_order {
            let is_there = self.known.contains(&token.content)
                || added.iter().any(|other| other.content == token.content);
            if !is_there {
                added.push(token);
            }
        }
        Ok(added)
    }

    /// The roles that templates know.
    pub(super) fn special_tokens(&self) -> Result<SpecialTokens, CheckpointError> {
        let mut named = self.named()?;
        let mut token = |role: &str| named.remove(role).map(|token| token.content);
        Ok(SpecialTokens {
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
            pad_token: token("pad_token"),
            unk_token: token("unk_token"),
        })
    }

    /// A setting, whichever file says it, with that file.
    pub(super) fn setting(&self, key: &str) -> (&Path, Option<&Value>) {
        (self.path_of(key), self.settings.get(key))
    }

    /// Where transformers 5 builds another tokenizer of these files for a model of this `config`.
    pub(super) fn remark(&self, config: &Map<String, Value>) -> Option<String> {
        tokenizer_class::remark(&self.tokenizer, &self.settings, config)
    }

    /// Whether special_tokens_map.json says `key`.
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

/// Contents of the `added_tokens` of a `tokenizer.json`.
fn known(tokenizer: &Map<String, Value>) -> Vec<String> {
    let tokens = tokenizer.get("added_tokens").and_then(Value::as_array);
    let contents = tokens.into_iter().flatten();
    let contents = contents.filter_map(|token| token["content"].as_str());
    contents.map(str::to_owned).collect()
}

/// The fields of a `tokenizer.json` beside its model; none where there is no such file.
fn without_model(path: &Path) -> Result<Map<String, Value>, CheckpointError> {
    if !regular_file::is_there(path)? {
        return Ok(Map::new());
    }
    let text = regular_file::read(path, TOKENIZER_BYTES)?;
    fields_beside_the_model(&text).map_err(CheckpointError::json(path))
}

/// Settings under which transformers reads or writes text in another way.
fn refuse_unsupported(
    dir: &Path,
    path: &Path,
    settings: &Map<String, Value>,
) -> Result<(), CheckpointError> {
    let on = |key: &str| settings.get(key) == Some(&Value::Bool(true));
    let refused = |feature: String, fix| {
        Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature,
            fix,
        })
    };
    let key = "split_special_tokens";
    if on(key) {
        let fix = "set it to false: special tokens of the chat template would be read as pieces";
        return refused(format!("{key} = true"), fix);
    }
    let key = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
    if on(key) && on("clean_up_tokenization_spaces") {
        return refused(format!("{key} = true"), "set it to false");
    }
    let key = "fast_tokenizer_files";
    let versions = settings.get(key).and_then(Value::as_array);
    let mut versions = versions.into_iter().flatten().filter_map(Value::as_str);
    let other = |name: &&str| *name != "tokenizer.json" && dir.join(name).exists();
    match versions.find(other) {
        None => Ok(()),
        Some(name) => refused(
            format!("{key} with {name} beside tokenizer.json"),
            "keep the one file that is right as tokenizer.json, and remove the key",
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

/// A token that a file writes as a string.
fn special_token(content: &str, special: bool) -> AddedToken {
    AddedToken {
        content: content.to_owned(),
        id: None,
        said_in: String::new(),
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special,
    }
}

/// A token that a file writes as an object with `content`; what it leaves out is as in
/// `tokenizers.AddedToken`.
fn described(fields: &Map<String, Value>, special: bool) -> Option<AddedToken> {
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
