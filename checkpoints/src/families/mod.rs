//! The file conventions of each model family, one module per family.
//!
//! The trainer defines the network of each family in a value that refers to the [`Family`] here. To
//! add a family, write its module and its line in `families!`.

mod bert;

use serde_json::Value;

pub use bert::{BERT, EncoderFamily};
pub(crate) use qwen3_5_text::{CONVOLUTION, LOG_RATES};

/// Declares the family modules, and lists their values in `FAMILIES`.
macro_rules! families {
    ($($module:ident::$family:ident),+ $(,)?) => {
        $(mod $module;)+

        $(pub use $module::$family;)+

        /// Every family of decoders, in the order of docs/models.md.
        pub const FAMILIES: &[&Family] = &[$(&$family),+];
    };
}

families! {
    llama::LLAMA,
    mistral::MISTRAL,
    qwen2::QWEN2,
    qwen3::QWEN3,
    granite::GRANITE,
    smollm3::SMOLLM3,
    phi3::PHI3,
    seed_oss::SEED_OSS,
    olmo3::OLMO3,
    gemma3_text::GEMMA3_TEXT,
    ministral3::MINISTRAL3,
    qwen3_5_text::QWEN3_5_TEXT,
}

/// Default of `rope_theta` in every family.
pub const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// The file conventions of a decoder family.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// Its class in transformers: `architectures` in `config.json`.
    pub class: &'static str,
    /// The published models that the documentation lists, separated by commas.
    pub models: &'static str,
    /// Defaults and rules of `config.json`.
    pub config: ConfigRules,
    /// The JSON types that transformers accepts for each key of `config.json`, written by
    /// `scripts/fixtures/tiny_models.py`.
    pub config_types: &'static str,
    /// The tokenizer class that `AutoTokenizer` of transformers 5 chooses.
    pub auto_tokenizer: AutoTokenizer,
    /// Conventions of its GGUF files.
    pub gguf: GgufRules,
}

/// Rules of `config.json` that differ between families.
#[derive(Debug, PartialEq)]
pub struct ConfigRules {
    /// The family's only activation, as `hidden_act` names it.
    pub hidden_act: &'static str,
    /// Default of `num_key_value_heads`. `None` means one per query head. In every family, a `null`
    /// in the file means the same.
    pub default_key_value_heads: Option<usize>,
    /// Defaults of other numeric fields.
    pub defaults: &'static [(&'static str, DefaultValue)],
    /// Default of `head_dim`; `None` means `hidden_size / num_attention_heads`.
    pub default_head_dim: Option<usize>,
    /// Default of `tie_word_embeddings`.
    pub default_tie: bool,
    /// Default of `attention_bias`.
    pub default_attention_bias: bool,
    /// Which blocks use sliding-window attention, and which apply RoPE.
    pub layers: LayerRules,
    /// RoPE parameters.
    pub rotary: RotaryRules,
    /// Multipliers of embeddings, scores, residuals and logits.
    pub multipliers: Multipliers,
    /// Dropout fields that transformers applies in training, with their defaults.
    pub dropouts: &'static [(&'static str, f64)],
    /// Keys that change the computation in this family; other families refuse them.
    pub own_keys: &'static [&'static str],
}

/// The default of an absent key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DefaultValue {
    /// An integer.
    Count(usize),
    /// Another number.
    Number(f64),
}

impl DefaultValue {
    /// The default as JSON.
    pub(crate) fn value(self) -> Value {
        match self {
            Self::Count(count) => count.into(),
            Self::Number(number) => number.into(),
        }
    }
}

/// Llama's rules; other families override the fields that differ.
const LIKE_LLAMA: ConfigRules = ConfigRules {
    hidden_act: "silu",
    default_key_value_heads: None,
    defaults: &[],
    default_head_dim: None,
    default_tie: false,
    default_attention_bias: false,
    layers: LayerRules::Full,
    rotary: RotaryRules {
        theta: DEFAULT_ROPE_THETA,
        local_theta: None,
        partial: None,
        requires_rope_parameters: false,
        original_context: None,
    },
    multipliers: Multipliers::None,
    dropouts: &[("attention_dropout", 0.0)],
    own_keys: &[],
};

/// Default of `sliding_window` in families with a window.
pub const DEFAULT_WINDOW: usize = 4096;

/// Which blocks of a family use sliding-window attention, and which apply RoPE.
///
/// If a block has a window but `sliding_window` is absent, the window is [`DEFAULT_WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerRules {
    /// No block has a window.
    Full,
    /// All blocks have a window unless `sliding_window` is null.
    UnlessNull,
    /// All blocks have a window if `sliding_window` is set.
    IfGiven,
    /// The blocks listed in `layer_types` have a window; without that list, the blocks from index
    /// `max_window_layers` (default 28) on. No block has a window unless `use_sliding_window` is
    /// true and `sliding_window` is not null.
    FromLayer,
    /// The blocks listed in `layer_types` have a window; otherwise every block except each nth.
    /// `sliding_window_pattern` overrides n.
    WindowExceptEvery(usize),
    /// The blocks with 0 in `no_rope_layers` skip RoPE; without that list, each nth block.
    /// `no_rope_layer_interval` overrides n. With `use_sliding_window`, the blocks listed in
    /// `layer_types` have a window; without that list, the blocks that skip RoPE.
    NoRopeEvery(usize),
    /// No block has a window. The blocks listed in `layer_types` have linear attention; otherwise
    /// every block except each nth. `full_attention_interval` overrides n.
    LinearExceptEvery(usize),
}

impl LayerRules {
    /// Whether the family uses `layer_types`.
    pub fn uses_layer_types(self) -> bool {
        !matches!(self, Self::Full | Self::UnlessNull | Self::IfGiven)
    }
}

/// RoPE parameters of a family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryRules {
    /// Default of `rope_theta`.
    pub theta: f64,
    /// Default of `rope_local_base_freq` in families whose sliding-window blocks use another theta
    /// and no scaling.
    pub local_theta: Option<f64>,
    /// Default of `partial_rotary_factor` in families that use it.
    pub partial: Option<f64>,
    /// Whether `rope_parameters` is required, because its default is a scaling that no file uses.
    pub requires_rope_parameters: bool,
    /// Default of the top-level `original_max_position_embeddings` in families that use it.
    pub original_context: Option<usize>,
}

/// The multipliers of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multipliers {
    /// Only scores are multiplied, by the inverse square root of the head size.
    None,
    /// Embeddings, scores, residuals and logits are multiplied by fields of the file.
    Granite,
    /// Embeddings are multiplied by the square root of the hidden size, scores by the inverse
    /// square root of `query_pre_attn_scalar`.
    Gemma,
}

/// The tokenizer class that transformers 5 chooses for a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoTokenizer {
    /// The class named in the files.
    Named,
    /// The tokenizer that `tokenizer.json` describes.
    OfFile,
    /// This class, regardless of the files.
    Always(&'static str),
}

/// Conventions of a family's GGUF files.
#[derive(Debug, PartialEq)]
pub struct GgufRules {
    /// `general.architecture`, also the prefix of the architecture's own keys.
    pub architecture: &'static str,
    /// Whether GGUF files of the architecture are read as this family. False if another family has
    /// the same architecture and reads them.
    pub reads_architecture: bool,
    /// llama.cpp's row order of query and key projections.
    pub head_rows: HeadRows,
    /// Whether llama.cpp applies biases outside the query, key and value projections.
    pub biases: bool,
    /// Modules outside the blocks.
    pub outer: &'static [ModuleName],
    /// Modules of block `N`: after `blk.N.` in GGUF, after `model.layers.N.` in Hugging Face.
    pub in_block: &'static [ModuleName],
    /// Parameters of block `N` that are listed by full tensor name, because their suffixes differ.
    pub parameters: &'static [ModuleName],
    /// The number that llama.cpp's converter adds to Hugging Face's norm weights.
    pub norm_offset: f32,
    /// Norms of a block to which the converter does not add `norm_offset`, by Hugging Face name.
    pub norms_without_offset: &'static [&'static str],
    /// Numeric keys that only this architecture uses, each with the equivalent field of
    /// `config.json` or of its `rope_scaling`. If the key is absent, the field is left out.
    pub numbers: &'static [(&'static str, &'static str)],
}

/// GGUF conventions of most families, without the architecture.
const GGUF_LIKE_LLAMA: GgufRules = GgufRules {
    architecture: "llama",
    reads_architecture: true,
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
    /// Whether llama.cpp applies a bias to this module's output.
    pub(crate) fn has_bias(&self, module: &str) -> bool {
        let attention_inputs = ["q_proj", "k_proj", "v_proj", "qkv_proj"];
        self.biases || attention_inputs.iter().any(|name| module.ends_with(name))
    }

    /// The number that llama.cpp's converter adds to the values of this Hugging Face tensor.
    pub(crate) fn value_offset(&self, tensor: &str) -> f32 {
        let is_this_norm = |norm: &&str| tensor.ends_with(&format!("{norm}.weight"));
        match tensor.ends_with("norm.weight") && !self.norms_without_offset.iter().any(is_this_norm)
        {
            true => self.norm_offset,
            false => 0.0,
        }
    }
}

/// llama.cpp's order of head dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// Hugging Face's order.
    AsIs,
    /// Rows of the two halves of each query and key head alternate, because the architecture
    /// rotates adjacent pairs.
    HalvesInterleaved,
    /// Value heads of linear attention that share a key head are not adjacent: the first value head
    /// of each key head comes first, then the second of each.
    ValueHeadsInterleaved,
}

/// A module's two names, without the tensor suffix (`weight` or `bias`).
#[derive(Debug, PartialEq, Eq)]
pub struct ModuleName {
    /// The name in GGUF.
    pub gguf: &'static str,
    /// The name in safetensors and PEFT.
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
            .iter()
            .copied()
            .find(|family| family.model_type == model_type)
    }

    /// The family of a `config.json`.
    pub fn of_config(config: &Value) -> Option<&'static Family> {
        Self::of_model_type(config.get("model_type")?.as_str()?)
    }

    /// The family as which GGUF files with this `general.architecture` are read.
    pub fn of_architecture(architecture: &str) -> Option<&'static Family> {
        FAMILIES.iter().copied().find(|family| {
            family.gguf.reads_architecture && family.gguf.architecture == architecture
        })
    }

    /// The Hugging Face name of a GGUF tensor. An unknown tensor keeps its GGUF name, and the
    /// comparison with the model lists it.
    pub(crate) fn hugging_face_tensor(&self, tensor: &str) -> String {
        self.find_hugging_face_name(tensor)
            .unwrap_or_else(|| tensor.to_owned())
    }

    fn find_hugging_face_name(&self, tensor: &str) -> Option<String> {
        let lookup = |names: &[ModuleName], module: &str| {
            let name = names.iter().find(|name| name.gguf == module);
            name.map(|name| name.hugging_face)
        };
        if let Some((layer, name)) = tensor.strip_prefix("blk.").and_then(split_block_index)
            && let Some(name) = lookup(self.gguf.parameters, name)
        {
            return Some(format!("model.layers.{layer}.{name}"));
        }
        let (module, kind) = tensor.rsplit_once('.')?;
        let Some(in_block) = module.strip_prefix("blk.") else {
            return Some(format!("{}.{kind}", lookup(self.gguf.outer, module)?));
        };
        let (layer, module) = split_block_index(in_block)?;
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
        let (layer, module) = split_block_index(in_block)?;
        Some(format!(
            "blk.{layer}.{}",
            lookup(self.gguf.in_block, module)?
        ))
    }

    /// The GGUF name of a Hugging Face tensor, such as `blk.0.attn_q.weight`; `None` if it has
    /// none.
    pub(crate) fn gguf_tensor(&self, tensor: &str) -> Option<String> {
        if let Some((layer, name)) = tensor
            .strip_prefix("model.layers.")
            .and_then(split_block_index)
        {
            let mut names = self.gguf.parameters.iter();
            if let Some(name) = names.find(|entry| entry.hugging_face == name) {
                return Some(format!("blk.{layer}.{}", name.gguf));
            }
        }
        let (module, kind) = tensor.rsplit_once('.')?;
        Some(format!("{}.{kind}", self.gguf_module(module)?))
    }
}

/// Whether any family has a GGUF name for this adapted module. Convolutions are excluded, because
/// GGUF does not treat them as linear layers.
pub(crate) fn is_in_gguf(module: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let gguf = family.gguf_module(module);
        gguf.is_some_and(|gguf| !gguf.ends_with(CONVOLUTION))
    })
}

/// Splits a name into block index and module.
fn split_block_index(in_block: &str) -> Option<(usize, &str)> {
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
    fn families_are_found_by_model_type_and_architecture() {
        for family in FAMILIES {
            assert_eq!(Family::of_model_type(family.model_type), Some(*family));
        }
        assert_eq!(Family::of_architecture("llama"), Some(&LLAMA));
        assert_eq!(Family::of_architecture("qwen2"), Some(&QWEN2));
        assert_eq!(Family::of_architecture("mistral"), None);
        assert_eq!(Family::of_config(&Value::Null), None);
    }

    #[test]
    fn one_family_reads_each_gguf_architecture() {
        for family in FAMILIES {
            let architecture = family.gguf.architecture;
            let same = FAMILIES
                .iter()
                .filter(|other| other.gguf.architecture == architecture);
            let readers: Vec<&str> = same
                .filter(|other| other.gguf.reads_architecture)
                .map(|other| other.model_type)
                .collect();
            assert_eq!(
                readers.len(),
                1,
                "GGUF files of architecture {architecture} are read as {readers:?}: set \
                 reads_architecture to false in the other families with it (step 1 of \"Add a \
                 model family\" in CONTRIBUTING.md)"
            );
        }
    }
}
