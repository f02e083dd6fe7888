//! Says what the files of each model family hold: one value for each family, in a file of its own.
//!
//! What the network of a family computes stands in the trainer, in a value that refers to the one here.
//! To add a family: write its file, and name it in [`FAMILIES`].

mod bert;
mod llama;
mod mistral;
mod qwen2;

use serde_json::Value;

pub use bert::{BERT, EncoderFamily};
pub use llama::LLAMA;
pub use mistral::MISTRAL;
pub use qwen2::QWEN2;

/// Every family of decoders; of two that share an architecture in GGUF, the first names it.
pub const FAMILIES: [&Family; 3] = [&LLAMA, &MISTRAL, &QWEN2];

/// `rope_theta` of every family where no file says one.
pub const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// What the files of one family of decoders say.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// Its class in transformers: `architectures` of a `config.json`.
    pub class: &'static str,
    /// What a `config.json` means where it says nothing.
    pub config: ConfigRules,
    /// Which tokenizer `AutoTokenizer` of transformers 5 builds.
    pub auto_tokenizer: AutoTokenizer,
    /// What its GGUF files say.
    pub gguf: GgufRules,
}

/// Rules of a `config.json` in which families differ.
#[derive(Debug, PartialEq)]
pub struct ConfigRules {
    /// The only activation that the family has, as `hidden_act` names it.
    pub hidden_act: &'static str,
    /// Key and value heads where `num_key_value_heads` is absent; `None` means one for each query
    /// head, as `null` does in every family.
    pub absent_key_value_heads: Option<usize>,
    /// Whether attention looks at a window.
    pub sliding_window: SlidingWindow,
}

/// When a model attends within a window, which is 4096 tokens where the file names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlidingWindow {
    /// Unless `sliding_window` is null; the family has this name in messages.
    UnlessNull(&'static str),
    /// Where `use_sliding_window` is true and `sliding_window` not null.
    IfUsed,
}

/// The class of tokenizer that transformers 5 takes for a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoTokenizer {
    /// The class that the files name.
    Named,
    /// The tokenizer that `tokenizer.json` describes.
    OfFile,
    /// This class, whatever the files name.
    Always(&'static str),
}

/// What GGUF files of a family say.
#[derive(Debug, PartialEq)]
pub struct GgufRules {
    /// `general.architecture`, also the prefix of the family's own keys.
    pub architecture: &'static str,
    /// How llama.cpp orders rows of query and key projections.
    pub head_rows: HeadRows,
    /// Whether a folder of the family becomes a file by other names and another order of rows alone, so
    /// that one can be written from it.
    pub written_from_config: bool,
    /// Modules outside the blocks.
    pub outer: &'static [ModuleName],
    /// Modules of block `N`: after `blk.N.` in GGUF, after `model.layers.N.` in Hugging Face.
    pub in_block: &'static [ModuleName],
}

/// How llama.cpp orders the rows of each head in query and key projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// As Hugging Face does.
    AsIs,
    /// Rows of a head's two halves alternate, because the architecture's rotation turns neighbours.
    HalvesInterleaved,
}

/// One module under both names, without the last part of its tensors (`weight` or `bias`).
#[derive(Debug, PartialEq, Eq)]
pub struct ModuleName {
    /// In GGUF.
    pub gguf: &'static str,
    /// In safetensors and PEFT.
    pub hugging_face: &'static str,
}

impl ModuleName {
    const fn new(gguf: &'static str, hugging_face: &'static str) -> Self {
        Self { gguf, hugging_face }
    }
}

impl Family {
    /// The family with this `model_type`.
    pub fn of_model_type(model_type: &str) -> Option<&'static Family> {
        FAMILIES
            .into_iter()
            .find(|family| family.model_type == model_type)
    }

    /// The family of a `config.json`.
    pub fn of_config(config: &Value) -> Option<&'static Family> {
        Self::of_model_type(config.get("model_type")?.as_str()?)
    }

    /// The first family with this `general.architecture`.
    pub fn of_architecture(architecture: &str) -> Option<&'static Family> {
        FAMILIES
            .into_iter()
            .find(|family| family.gguf.architecture == architecture)
    }

    /// The Hugging Face name of a GGUF tensor, or the name itself if it has none, so that the
    /// comparison with the model lists it.
    pub(crate) fn hugging_face_tensor(&self, tensor: &str) -> String {
        self.renamed(tensor).unwrap_or_else(|| tensor.to_owned())
    }

    fn renamed(&self, tensor: &str) -> Option<String> {
        let (module, kind) = tensor.rsplit_once('.')?;
        let lookup = |names: &[ModuleName], module: &str| {
            let name = names.iter().find(|name| name.gguf == module);
            name.map(|name| name.hugging_face)
        };
        let Some(in_block) = module.strip_prefix("blk.") else {
            return Some(format!("{}.{kind}", lookup(self.gguf.outer, module)?));
        };
        let (layer, module) = numbered(in_block)?;
        let module = lookup(self.gguf.in_block, module)?;
        Some(format!("model.layers.{layer}.{module}.{kind}"))
    }

    /// The GGUF name of a Hugging Face module, such as `blk.0.attn_q`; `None` if it has none.
    pub(crate) fn gguf_module(&self, module: &str) -> Option<String> {
        let lookup = |names: &[ModuleName], module: &str| {
            let name = names.iter().find(|name| name.hugging_face == module);
            name.map(|name| name.gguf)
        };
        let Some(in_block) = module.strip_prefix("model.layers.") else {
            return lookup(self.gguf.outer, module).map(str::to_owned);
        };
        let (layer, module) = numbered(in_block)?;
        Some(format!(
            "blk.{layer}.{}",
            lookup(self.gguf.in_block, module)?
        ))
    }
}

/// Whether a module has a name in GGUF in any family.
pub(crate) fn is_in_gguf(module: &str) -> bool {
    FAMILIES
        .iter()
        .any(|family| family.gguf_module(module).is_some())
}

/// The number of a block, and the module in it.
fn numbered(in_block: &str) -> Option<(usize, &str)> {
    let (layer, module) = in_block.split_once('.')?;
    Some((layer.parse().ok()?, module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for family in FAMILIES {
            let in_block = family.gguf.in_block.iter();
            let modules = in_block.map(|name| format!("model.layers.17.{}", name.hugging_face));
            let outer = family.gguf.outer.iter();
            for module in modules.chain(outer.map(|name| name.hugging_face.to_owned())) {
                let gguf = family.gguf_module(&module).unwrap();
                assert_eq!(
                    family.hugging_face_tensor(&format!("{gguf}.weight")),
                    format!("{module}.weight")
                );
            }
            assert_eq!(
                family
                    .gguf_module("model.layers.3.mlp.down_proj")
                    .as_deref(),
                Some("blk.3.ffn_down")
            );
            for unknown in [
                "model.layers.x.mlp.up_proj",
                "model.layers.3.mlp",
                "score",
                "",
            ] {
                assert_eq!(family.gguf_module(unknown), None);
            }
        }
    }

    #[test]
    fn families_are_found_by_either_name() {
        for family in FAMILIES {
            assert_eq!(Family::of_model_type(family.model_type), Some(family));
        }
        assert_eq!(Family::of_architecture("llama"), Some(&LLAMA));
        assert_eq!(Family::of_architecture("qwen2"), Some(&QWEN2));
        assert_eq!(Family::of_architecture("mistral"), None);
        assert_eq!(Family::of_config(&Value::Null), None);
    }
}
