//! Says what the network of each model family computes: one value for each family, in a file of its own.
//!
//! What the files of a family say stands in [`tooltune_checkpoints::families`]. To add a family: write
//! a file here and one there, and name it in [`FAMILIES`]. A [`Family`] has a field for each thing in
//! which the families differ; what all share is written once, in the decoder.

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

use std::ops::Range;

use tooltune_checkpoints::families as files;

/// Every family of decoders.
pub const FAMILIES: [&Family; 12] = [
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &granite::GRANITE,
    &smollm3::SMOLLM3,
    &phi3::PHI3,
    &seed_oss::SEED_OSS,
    &olmo3::OLMO3,
    &gemma3_text::GEMMA3_TEXT,
    &ministral3::MINISTRAL3,
    &qwen3_5_text::QWEN3_5_TEXT,
];

/// What the network of one family computes.
#[derive(Debug)]
pub struct Family {
    /// What its files say.
    pub files: &'static files::Family,
    /// The linear layers of a block of attention.
    pub projections: &'static Projections,
    /// Which projections of a block have a bias.
    pub biases: Biases,
    /// The norms of a block.
    pub norms: BlockNorms,
    /// How queries and keys are normed before they are turned.
    pub head_norms: HeadNorms,
    /// What the feed-forward block gates with.
    pub gate: Gate,
    /// Whether queries come each with a gate, by which attention's output is multiplied.
    pub query_gate: bool,
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.files.model_type == other.files.model_type
    }
}

/// The linear layers of a block, in the order of their adapters' parameters.
#[derive(Debug, PartialEq)]
pub struct Projections {
    /// Their module paths.
    pub paths: &'static [&'static str],
    /// Which of them share an input: queries, keys and values, and what else attention reads; the output
    /// of attention; gate and up; down.
    pub stacks: [Range<usize>; 4],
}

/// One layer for each thing.
pub const SEPARATE: Projections = Projections {
    paths: &[
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ],
    stacks: [0..3, 3..4, 4..6, 6..7],
};

/// One layer for queries, keys and values, and one for gate and up.
pub const FUSED: Projections = Projections {
    paths: &[
        "self_attn.qkv_proj",
        "self_attn.o_proj",
        "mlp.gate_up_proj",
        "mlp.down_proj",
    ],
    stacks: [0..1, 1..2, 2..3, 3..4],
};

/// The layers of a block of linear attention.
pub const LINEAR: Projections = Projections {
    paths: &[
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a",
        "linear_attn.out_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ],
    stacks: [0..4, 4..5, 5..7, 7..8],
};

/// The norms of a block, each by its module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockNorms {
    /// Before and behind attention.
    pub attention: BranchNorms,
    /// Before and behind the feed-forward block.
    pub feed_forward: BranchNorms,
    /// Added to the weights of every norm of the family, those of heads and the last one too.
    pub offset: f32,
}

/// The norms of one branch of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchNorms {
    /// Of what the branch reads.
    pub before: Option<&'static str>,
    /// Of what it adds.
    pub after: Option<&'static str>,
}

/// Norms of what attention and the feed-forward block read, as Llama has them.
pub(super) const BEFORE: BlockNorms = BlockNorms {
    attention: BranchNorms {
        before: Some("input_layernorm"),
        after: None,
    },
    feed_forward: BranchNorms {
        before: Some("post_attention_layernorm"),
        after: None,
    },
    offset: 0.0,
};

impl BlockNorms {
    /// The modules of all norms of the hidden size.
    pub fn modules(&self) -> impl Iterator<Item = &'static str> {
        let [a, b] = [self.attention, self.feed_forward];
        [a.before, a.after, b.before, b.after].into_iter().flatten()
    }
}

/// How queries and keys are normed before they are turned: by `self_attn.q_norm` and
/// `self_attn.k_norm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorms {
    /// Not at all.
    None,
    /// Each head by itself.
    Each,
    /// All queries of a token together, and all its keys.
    Together,
}

/// The modules of the norms of queries and keys.
pub const HEAD_NORMS: [&str; 2] = ["self_attn.q_norm", "self_attn.k_norm"];

/// What the feed-forward block gates with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `silu`.
    Silu,
    /// `gelu`, by a hyperbolic tangent.
    GeluTanh,
}

/// Which projections of a block have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// Of q, k and v.
    pub qkv: Bias,
    /// Of o.
    pub output: Bias,
}

/// Whether a projection has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// In every model of the family.
    Always,
    /// In none.
    Never,
    /// Where the config says so under this key.
    Flag(&'static str),
}

/// Biases where the config says `attention_bias`.
pub(super) const ATTENTION_BIAS: Bias = Bias::Flag("attention_bias");

/// The family of a `model_type`.
pub fn of_model_type(model_type: &str) -> Option<&'static Family> {
    FAMILIES
        .into_iter()
        .find(|family| family.files.model_type == model_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_files_has_a_network() {
        let networks = FAMILIES.map(|family| family.files);
        assert_eq!(networks, files::FAMILIES);
    }
}
