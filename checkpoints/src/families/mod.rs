//! Says what the files of each model family hold: one value for each family, in a file of its own.
//!
//! What the network of a family computes stands in the trainer, in a value that refers to the one here.
//! To add a family: write its file, and name it in [`FAMILIES`].

mod bert;
mod gemma3_text;
mod granite;
mod llama;
mod ministral3;
mod mistral;
mod olmo3;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5_text;
mod seed_oss;
mod smollm3;

use serde_json::Value;

pub use bert::{BERT, EncoderFamily};
pub use gemma3_text::GEMMA3_TEXT;
pub use granite::GRANITE;
pub use llama::LLAMA;
pub use ministral3::MINISTRAL3;
pub use mistral::MISTRAL;
pub use olmo3::OLMO3;
pub use phi3::PHI3;
pub use qwen2::QWEN2;
pub use qwen3::QWEN3;
pub use qwen3_5_text::QWEN3_5_TEXT;
pub(crate) use qwen3_5_text::{CONVOLUTION, LOG_RATES};
pub use seed_oss::SEED_OSS;
pub use smollm3::SMOLLM3;

/// Every family of decoders; of two that share an architecture in GGUF, the first names it.
pub const FAMILIES: [&Family; 12] = [
    &LLAMA,
    &MISTRAL,
    &QWEN2,
    &QWEN3,
    &GRANITE,
    &SMOLLM3,
    &PHI3,
    &SEED_OSS,
    &OLMO3,
    &GEMMA3_TEXT,
    &MINISTRAL3,
    &QWEN3_5_TEXT,
];

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
    /// Other numbers that an absent key means.
    pub absent: &'static [(&'static str, Absent)],
    /// Size of a head where `head_dim` is absent; `None` means `hidden_size / num_attention_heads`.
    pub absent_head_dim: Option<usize>,
    /// Whether the head is the embedding where `tie_word_embeddings` is absent.
    pub absent_tie: bool,
    /// `attention_bias` where it is absent.
    pub absent_attention_bias: bool,
    /// Which blocks attend within a window, and which turn queries and keys.
    pub layers: LayerRules,
    /// How queries and keys are turned.
    pub rotary: RotaryRules,
    /// What the family multiplies numbers with.
    pub multipliers: Multipliers,
    /// Fields of what transformers drops in training, with what an absent one means.
    pub dropouts: &'static [(&'static str, f64)],
    /// Keys of the family that change what other families compute, and are refused there.
    pub own_keys: &'static [&'static str],
}

/// What an absent key means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Absent {
    /// A count.
    Count(usize),
    /// Another number.
    Number(f64),
}

impl Absent {
    /// The same as JSON.
    pub(crate) fn value(self) -> Value {
        match self {
            Self::Count(count) => count.into(),
            Self::Number(number) => number.into(),
        }
    }
}

/// What `config.json` means for Llama; other families say in what they differ.
const LIKE_LLAMA: ConfigRules = ConfigRules {
    hidden_act: "silu",
    absent_key_value_heads: None,
    absent: &[],
    absent_head_dim: None,
    absent_tie: false,
    absent_attention_bias: false,
    layers: LayerRules::Full,
    rotary: RotaryRules {
        theta: DEFAULT_ROPE_THETA,
        local_theta: None,
        partial: None,
        must_be_said: false,
        original_context: None,
    },
    multipliers: Multipliers::None,
    dropouts: &[("attention_dropout", 0.0)],
    own_keys: &[],
};

/// The window where a family has one and the file names none.
pub const DEFAULT_WINDOW: usize = 4096;

/// Which blocks of a family attend within a window, and which turn queries and keys by their positions.
///
/// Where a window is meant and `sliding_window` is absent, it is [`DEFAULT_WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRules {
    /// No block has a window.
    Full,
    /// All, unless `sliding_window` is null.
    UnlessNull,
    /// All, where `sliding_window` is given.
    IfGiven,
    /// Where `use_sliding_window` is true and `sliding_window` not null: those that `layer_types` says,
    /// or the ones from `max_window_layers` on, which is 28 where it is absent.
    FromLayer,
    /// Those that `layer_types` says, or all but each so-manieth; `sliding_window_pattern` may name
    /// another number.
    AllButEach(usize),
    /// Each so-manieth does not turn queries and keys, or those with 0 in `no_rope_layers`;
    /// `no_rope_layer_interval` may name another number. With `use_sliding_window` these have the
    /// window, or those that `layer_types` says.
    UnturnedEach(usize),
    /// No block has a window. All but each so-manieth have linear attention, or those that `layer_types`
    /// says; `full_attention_interval` may name another number.
    LinearButEach(usize),
}

impl LayerRules {
    /// Whether `layer_types` counts.
    pub fn read_types(self) -> bool {
        !matches!(self, Self::Full | Self::UnlessNull | Self::IfGiven)
    }
}

/// How a family turns queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryRules {
    /// `rope_theta` where no file says one.
    pub theta: f64,
    /// Where blocks with a window turn by another theta and without a scaling: `rope_local_base_freq`
    /// where it is absent.
    pub local_theta: Option<f64>,
    /// Where `partial_rotary_factor` counts: what it is where it is absent.
    pub partial: Option<f64>,
    /// Whether the file must say how: an absent `rope_parameters` means a scaling that no file writes.
    pub must_be_said: bool,
    /// Where `original_max_position_embeddings` at the top of the file counts: what it is where it is
    /// absent.
    pub original_context: Option<usize>,
}

/// What a family multiplies numbers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multipliers {
    /// Nothing but scores, with the inverse root of the size of a head.
    None,
    /// Embeddings, scores, what blocks add, and logits, by keys of the file.
    Granite,
    /// Embeddings with the root of the hidden size, scores with the inverse root of
    /// `query_pre_attn_scalar`.
    Gemma,
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
    /// Whether llama.cpp adds biases of projections other than queries, keys and values.
    pub biases: bool,
    /// Modules outside the blocks.
    pub outer: &'static [ModuleName],
    /// Modules of block `N`: after `blk.N.` in GGUF, after `model.layers.N.` in Hugging Face.
    pub in_block: &'static [ModuleName],
    /// Parameters of block `N` whose whole names differ, not their modules' alone.
    pub parameters: &'static [ModuleName],
    /// What llama.cpp's weights of norms are more than Hugging Face's.
    pub norm_offset: f32,
    /// Norms of a block, in Hugging Face, that are the same in both.
    pub norms_without_offset: &'static [&'static str],
    /// Numbers of the architecture's group that other families lack, with the field of `config.json` that
    /// says the same, also one of its `rope_scaling`; an absent one leaves the field out.
    pub numbers: &'static [(&'static str, &'static str)],
}

/// What GGUF files of most families say, but for the architecture.
const GGUF_LIKE_LLAMA: GgufRules = GgufRules {
    architecture: "llama",
    head_rows: HeadRows::HalvesInterleaved,
    biases: true,
    outer: &llama::OUTER,
    in_block: &llama::IN_BLOCK,
    parameters: &[],
    norm_offset: 0.0,
    norms_without_offset: &[],
    numbers: &[],
};

impl GgufRules {
    /// Whether llama.cpp adds a bias to what this module computes.
    pub(crate) fn has_bias(&self, module: &str) -> bool {
        let of_attention = ["q_proj", "k_proj", "v_proj", "qkv_proj"];
        self.biases || of_attention.iter().any(|name| module.ends_with(name))
    }

    /// What llama.cpp's weights of the tensor with this Hugging Face name are more than Hugging Face's.
    pub(crate) fn excess(&self, tensor: &str) -> f32 {
        let is_equal = |norm: &&str| tensor.ends_with(&format!("{norm}.weight"));
        match tensor.ends_with("norm.weight") && !self.norms_without_offset.iter().any(is_equal) {
            true => self.norm_offset,
            false => 0.0,
        }
    }
}

/// How llama.cpp orders what belongs to heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// As Hugging Face does.
    AsIs,
    /// Rows of the two halves of each head of queries and keys alternate, because the architecture's
    /// rotation turns neighbours.
    HalvesInterleaved,
    /// Value heads of linear attention that share a key head do not stand side by side: the first of
    /// each key head come first, then the second ones.
    ValuesByTurns,
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
        let lookup = |names: &[ModuleName], module: &str| {
            let name = names.iter().find(|name| name.gguf == module);
            name.map(|name| name.hugging_face)
        };
        if let Some((layer, name)) = tensor.strip_prefix("blk.").and_then(numbered)
            && let Some(name) = lookup(self.gguf.parameters, name)
        {
            return Some(format!("model.layers.{layer}.{name}"));
        }
        let (module, kind) = tensor.rsplit_once('.')?;
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

    /// The GGUF name of a Hugging Face tensor, such as `blk.0.attn_q.weight`; `None` if it has none.
    pub(crate) fn gguf_tensor(&self, tensor: &str) -> Option<String> {
        if let Some((layer, name)) = tensor.strip_prefix("model.layers.").and_then(numbered) {
            let mut names = self.gguf.parameters.iter();
            if let Some(name) = names.find(|known| known.hugging_face == name) {
                return Some(format!("blk.{layer}.{}", name.gguf));
            }
        }
        let (module, kind) = tensor.rsplit_once('.')?;
        Some(format!("{}.{kind}", self.gguf_module(module)?))
    }
}

/// Whether a module that an adapter is of has a name in GGUF in any family; a convolution is no linear
/// layer there.
pub(crate) fn is_in_gguf(module: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let gguf = family.gguf_module(module);
        gguf.is_some_and(|gguf| !gguf.ends_with(CONVOLUTION))
    })
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
            for name in family.gguf.parameters {
                let tensor = format!("model.layers.17.{}", name.hugging_face);
                let gguf = family.gguf_tensor(&tensor).unwrap();
                assert_eq!(gguf, format!("blk.17.{}", name.gguf));
                assert_eq!(family.hugging_face_tensor(&gguf), tensor);
            }
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
