//! Reads a base model from one GGUF file: config, vocabulary and chat template from its metadata.

use std::path::Path;

use serde_json::Map;

use super::hugging_face::omitted_tensors_remark;
use super::tokenizer_files::TokenizerFiles;
use super::{
    GgufVocabulary, ModelFiles, SpecialTokenIds, SpecialTokens, TokenizerSource, gguf_config,
};
use crate::error::CheckpointError;
use crate::regular_file;
use crate::weights::Weights;
use crate::weights::gguf::{GgufFile, GgufMetadata};

pub(super) fn open(path: &Path) -> Result<ModelFiles, CheckpointError> {
    let gguf = GgufFile::open(path)?;
    let config = gguf_config::config_of(&gguf)?;
    let vocabulary = vocabulary(&gguf.metadata)?;
    let special_tokens = special_tokens(&vocabulary);
    let special_token_ids = SpecialTokenIds {
        bos: vocabulary.bos_token_id,
        pad: vocabulary.pad_token_id,
    };
    let eos_token_ids = stop_ids(&gguf.metadata, &vocabulary)?;
    let template =
        |key: &str| Ok::<_, CheckpointError>(gguf.metadata.text(key)?.map(str::to_owned));
    let chat_template = template("tokenizer.chat_template")?;
    let tool_use_template = template("tokenizer.chat_template.tool_use")?;
    let tokenizer = tokenizer(path, vocabulary)?;
    let added_tokens = match (&tokenizer, path.parent()) {
        (TokenizerSource::Json(json), Some(dir)) => {
            TokenizerFiles::read(dir, json, &Map::new())?.added_tokens()?
        }
        _ => Vec::new(),
    };
    let weights = Weights::from_gguf(gguf)?;
    Ok(ModelFiles {
        config,
        tokenizer,
        chat_template,
        tool_use_template,
        special_tokens,
        special_token_ids,
        added_tokens,
        eos_token_ids,
        choices: Vec::new(),
        remarks: omitted_tensors_remark(path, &weights).into_iter().collect(),
        weights,
    })
}

/// A `tokenizer.json` in the same folder replaces a SentencePiece vocabulary, because GGUF does not
/// store the normaliser.
fn tokenizer(path: &Path, vocabulary: GgufVocabulary) -> Result<TokenizerSource, CheckpointError> {
    let json = path.with_file_name("tokenizer.json");
    if vocabulary.model != "gpt2" && regular_file::is_there(&json)? {
        return Ok(TokenizerSource::Json(json));
    }
    Ok(TokenizerSource::Gguf(Box::new(vocabulary)))
}

fn vocabulary(metadata: &GgufMetadata) -> Result<GgufVocabulary, CheckpointError> {
    let tokens_key = "tokenizer.ggml.tokens";
    let tokens = metadata.require(tokens_key, metadata.texts(tokens_key)?)?;
    let model_key = "tokenizer.ggml.model";
    let model = metadata
        .require(model_key, metadata.text(model_key)?)?
        .to_owned();
    let token_types = match metadata.i32s("tokenizer.ggml.token_type")? {
        Some(types) => types,
        None => vec![1; tokens.len()],
    };
    let scores = metadata.f32s("tokenizer.ggml.scores")?.unwrap_or_default();
    for (key, n) in [("token_type", token_types.len()), ("scores", scores.len())] {
        if n != tokens.len() && !(key == "scores" && n == 0) {
            let problem = format!("has {n} entries for {} tokens", tokens.len());
            let field = format!("tokenizer.ggml.{key}");
            return Err(CheckpointError::field(metadata.path(), field, problem));
        }
    }
    let id = |role: &str| {
        let key = format!("tokenizer.ggml.{role}_token_id");
        match metadata.token_id(&key)? {
            Some(id) if id as usize >= tokens.len() => {
                let problem = format!("{id} is outside the {} tokens", tokens.len());
                Err(CheckpointError::field(metadata.path(), key, problem))
            }
            id => Ok(id),
        }
    };
    Ok(GgufVocabulary {
        bos_token_id: id("bos")?,
        eos_token_id: id("eos")?,
        pad_token_id: id("padding")?,
        unk_token_id: id("unknown")?,
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
        adds_space: metadata.bool("tokenizer.ggml.add_space_prefix")?,
        merges: metadata.texts("tokenizer.ggml.merges")?.unwrap_or_default(),
        pre: metadata
            .text("tokenizer.ggml.pre")?
            .unwrap_or("default")
            .to_owned(),
        tokens,
        token_types,
        scores,
        model,
    })
}

fn special_tokens(vocabulary: &GgufVocabulary) -> SpecialTokens {
    let text = |id: Option<u32>| vocabulary.tokens.get(id? as usize).cloned();
    SpecialTokens {
        bos_token: text(vocabulary.bos_token_id),
        eos_token: text(vocabulary.eos_token_id),
        pad_token: text(vocabulary.pad_token_id),
        unk_token: text(vocabulary.unk_token_id),
    }
}

/// `token_type` of control tokens.
const CONTROL: i32 = 3;
/// Control tokens that llama.cpp uses as end-of-turn tokens if the file names none.
///
/// # Source
///
/// ggml-org/llama.cpp, `src/llama-vocab.cpp`, `llama_vocab::impl::load`.
const ENDS_OF_TURNS: [&str; 8] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<_EOT>",
];

/// The end-of-text token, and the end-of-turn and end-of-message tokens named in the file. If the
/// file names no end-of-turn token, the token that llama.cpp finds by its string is added, unless
/// the end-of-text token has one of these strings.
fn stop_ids(
    metadata: &GgufMetadata,
    vocabulary: &GgufVocabulary,
) -> Result<Vec<u32>, CheckpointError> {
    let mut ids = Vec::from_iter(vocabulary.eos_token_id);
    for role in ["eot", "eom"] {
        let id = metadata.token_id(&format!("tokenizer.ggml.{role}_token_id"))?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    let text = |id: &u32| vocabulary.tokens.get(*id as usize).map(String::as_str);
    let is_end = |text: &str| ENDS_OF_TURNS.contains(&text);
    let has_eot = metadata.token_id("tokenizer.ggml.eot_token_id")?.is_some();
    if !has_eot && !ids.iter().filter_map(text).any(is_end) {
        let tokens = (0..).zip(vocabulary.tokens.iter().zip(&vocabulary.token_types));
        let mut ends = tokens.filter(|(_, (text, kind))| **kind == CONTROL && is_end(text));
        ids.extend(ends.next().map(|(id, _)| id));
    }
    Ok(ids)
}
