//! How a server of a GGUF model handles prompts: the token before prompts, end-of-turn tokens,
//! variables of the chat template and the context size.
//!
//! # Source
//!
//! ggml-org/llama.cpp, `src/llama-vocab.cpp`, `common/chat.cpp`, and `get_rope_factors` of
//! `src/llama-model.cpp`.

use tooltune_checkpoints::merged::{EndTokens, short_context};
use tooltune_checkpoints::model_files::{GgufVocabulary, TokenizerSource};
use tooltune_rows::text::{ByteLevelBpe, Specials};
use tooltune_template::{ChatTemplate, Conversation, Message, Role, SpecialTokens};

use crate::base_model::BaseModel;
use crate::error::Error;
use crate::modelfile::must_write;

/// Settings of a GGUF file and its server, so that prompts are the same as in training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Served {
    /// Whether the server adds the BOS token before each prompt.
    pub(super) adds_bos: bool,
    /// End-of-turn tokens, as text.
    pub(super) stops: Vec<String>,
}

impl Served {
    /// Settings for llama.cpp. It adds BOS if the tokenizer does and every chat begins with BOS; it
    /// then removes the BOS that the chat template writes.
    pub(super) fn for_llama_cpp(base: &BaseModel) -> Self {
        let has_bos = |bos: &str| begins_chats(&base.template, bos);
        Self {
            adds_bos: added_token(base).is_some_and(has_bos),
            stops: stop_tokens(base),
        }
    }

    /// Settings for llama.cpp with the base's own template, because an adapter is served with the
    /// file of its base.
    pub(super) fn for_llama_cpp_base(base: &BaseModel) -> Self {
        let special = base.template.special_tokens().clone();
        let own = base.files.chat_template.as_deref();
        let own = own.and_then(|source| ChatTemplate::new(source, special).ok());
        let has_bos = |bos: &str| own.as_ref().is_none_or(|own| begins_chats(own, bos));
        let served = Self::for_llama_cpp(base);
        Self {
            adds_bos: served.bos(base).is_some_and(has_bos),
            ..served
        }
    }

    /// Settings for Ollama, whose `TEMPLATE` omits BOS if possible.
    pub(super) fn for_ollama(base: &BaseModel) -> Self {
        let bos = added_token(base);
        let leaves_out =
            |bos: &str| begins_chats(&base.template, bos) && !must_write(&base.template, bos);
        Self {
            adds_bos: bos.is_some_and(leaves_out),
            stops: stop_tokens(base),
        }
    }

    /// The token that the server adds before prompts, if any.
    pub(super) fn bos<'b>(&self, base: &'b BaseModel) -> Option<&'b str> {
        added_token(base).filter(|_| self.adds_bos)
    }

    /// The context size that makes llama.cpp compute texts of at most `max_length` tokens as in
    /// training; `None` if every size does.
    ///
    /// # Errors
    ///
    /// A size in the config is invalid.
    pub(super) fn context(
        &self,
        base: &BaseModel,
        max_length: usize,
    ) -> Result<Option<u32>, Error> {
        let context = short_context(&base.path, &base.files.config)?;
        Ok(context.filter(|&context| max_length <= context as usize))
    }
}

/// BOS, if the tokenizer adds it before plain text.
fn added_token(base: &BaseModel) -> Option<&str> {
    let bos = base.files.special_tokens.bos_token.as_deref()?;
    let id = base.tokenizer.token_to_id(bos)?;
    (base.tokenizer.added_tokens().before == [id]).then_some(bos)
}

/// Whether the template writes this text first in every kind of chat.
pub(super) fn begins_chats(template: &ChatTemplate, text: &str) -> bool {
    let turns = [Role::System, Role::User, Role::Assistant, Role::User];
    let chats = [&turns[1..2], &turns[..2], &turns[1..], &turns[..]];
    let prompts = chats.into_iter().filter_map(|roles| {
        let messages = roles.iter().map(|role| Message::new(*role, "a"));
        template
            .render_prompt(&Conversation::new(messages.collect()))
            .ok()
    });
    let prompts: Vec<String> = prompts.collect();
    !prompts.is_empty() && prompts.iter().all(|prompt| prompt.starts_with(text))
}

/// The end-of-turn tokens as text.
fn stop_tokens(base: &BaseModel) -> Vec<String> {
    let text = |id: &u32| base.tokenizer.decode(&[*id], Specials::Keep).ok();
    base.stop_ids
        .iter()
        .filter_map(text)
        .filter(|text| !text.is_empty())
        .collect()
}

/// The template with `bos_token` and `eos_token` set at its top, if it uses them and llama.cpp
/// would set them differently. llama.cpp reads them from the token IDs of the file. There, a token
/// that ends no turn is not stored as the end-of-text token, and a missing token is replaced by
/// another one.
pub(super) fn pinned_variables(source: &str, base: &BaseModel) -> String {
    let SpecialTokens {
        bos_token,
        eos_token,
        ..
    } = base.template.special_tokens();
    let id = |token: &Option<String>| base.tokenizer.token_to_id(token.as_deref()?);
    let eos = id(eos_token);
    let eos_id = EndTokens::assign(eos, &base.stop_ids).eos;
    let mut lines = String::new();
    for (name, token, is_given) in [
        ("bos_token", bos_token, id(bos_token).is_some()),
        ("eos_token", eos_token, eos.is_some() && eos == eos_id),
    ] {
        if !is_given && source.contains(name) {
            let text = serde_json::Value::from(token.as_deref().unwrap_or_default());
            lines.push_str(&format!("{{%- set {name} = {text} %}}"));
        }
    }
    if !lines.is_empty() {
        lines.push('\n');
    }
    lines + source
}

/// Remarks on a merged model: stop tokens for which the file has no key, the pre-tokenizer and the
/// context size. `vocabulary` is the vocabulary that the export adds, if the base is not a GGUF
/// file.
///
/// # Errors
///
/// A size in the config is invalid.
pub(super) fn merged_lines(
    base: &BaseModel,
    vocabulary: Option<&GgufVocabulary>,
    max_length: usize,
) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let is_folder = !base.files.is_gguf();
    let special = &base.files.special_tokens.eos_token;
    let eos = special
        .as_deref()
        .and_then(|token| base.tokenizer.token_to_id(token));
    let lost = EndTokens::assign(eos, &base.stop_ids).without_key;
    if !lost.is_empty() && is_folder {
        let names = lost.iter().map(|id| {
            let token = base.tokenizer.id_to_token(*id).unwrap_or_default();
            format!("{token:?} ({id})")
        });
        let names: Vec<String> = names.collect();
        lines.push(format!(
            "a GGUF file supports three stop tokens, and generation_config.json has more: llama.cpp does \
             not stop at {}; send them as \"stop\" in requests",
            names.join(", ")
        ));
    }
    let vocabulary = match &base.files.tokenizer {
        TokenizerSource::Gguf(own) => Some(own.as_ref()),
        TokenizerSource::Json(_) => vocabulary,
    };
    let pre = vocabulary.map(|vocabulary| vocabulary.pre.as_str());
    lines.extend(pre.and_then(marks_line));
    lines.extend(context_line(base, max_length)?);
    Ok(lines)
}

/// A remark on pre-tokenizers that llama.cpp computes differently for some texts.
fn marks_line(pre: &str) -> Option<String> {
    ByteLevelBpe::differs_with_marks(pre).then(|| {
        format!(
            "llama.cpp with the pre-tokenizer {pre:?} tokenizes some texts with combining marks \
         differently than training; if your texts have such marks, serve the folder of --to merged \
             with another program"
        )
    })
}

/// Remarks on an adapter that llama.cpp loads with `base`: the token before prompts, and the
/// context size.
///
/// # Errors
///
/// A size in the config is invalid.
pub(super) fn adapter_lines(base: &BaseModel, max_length: usize) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let added = added_token(base);
    let unwritten = added.filter(|bos| !begins_chats(&base.template, bos));
    if let (Some(bos), true) = (unwritten, base.files.is_gguf()) {
        lines.push(format!(
            "{}: llama.cpp adds {bos:?} before each prompt (tokenizer.ggml.add_bos_token), but the training \
             chats do not have it; serve with --override-kv tokenizer.ggml.add_bos_token=bool:false",
            base.path.display()
        ));
    }
    lines.extend(context_line(base, max_length)?);
    Ok(lines)
}

/// Advice on the context size of llama.cpp, if results depend on it.
fn context_line(base: &BaseModel, max_length: usize) -> Result<Option<String>, Error> {
    let Some(context) = short_context(&base.path, &base.files.config)? else {
        return Ok(None);
    };
    let advice = match max_length <= context as usize {
        true => format!(
            "all training rows are short (data.max_length = {max_length}), so serve with --ctx-size \
             {context} at most (num_ctx in Ollama)"
        ),
        false => format!(
            "training rows have up to data.max_length = {max_length} tokens, so serve short texts with \
             --ctx-size {context} at most, and longer ones with more"
        ),
    };
    Ok(Some(format!(
        "rope_scaling \"longrope\" has different factors for texts of up to {context} tokens and for longer \
         texts. Training chose the factors by the length of each text, but llama.cpp uses the factors for \
         long texts whenever its context is larger than {context} tokens; {advice}"
    )))
}
