//! Defines the network of each model family, one value per family in its own file.
//!
//! [`tooltune_checkpoints::families`] describes the files of a family. To add a family, write a
//! file here and one there, and add the family to `for_families!` here and to `families!` there. A
//! [`Family`] has one field for each difference between families; the decoder has the common parts.

use std::ops::Range;

use tooltune_checkpoints::families as files;

/// Calls a macro with the modules of all families. The integration tests generate a test per
/// family from it.
#[doc(hidden)]
#[macro_export]
macro_rules! for_families {
    ($callback:ident) => {
        $callback! {
            llama,
            mistral,
            qwen2,
            qwen3,
            granite,
            smollm3,
            phi3,
            seed_oss,
            olmo3,
            gemma3_text,
            ministral3,
            qwen3_5_text,
        }
    };
}

/// Declares the modules of the families, and lists their values.
macro_rules! families {
    ($($module:ident),+ $(,)?) => {
        $(mod $module;)+

        /// All decoder families.
        pub const FAMILIES: &[&Family] = &[$(&$module::FAMILY),+];
    };
}

for_families!(families);

/// Network of one family.
#[derive(Debug)]
pub struct Family {
    /// File formats of the family.
    pub files: &'static files::Family,
    /// Linear layers of an attention block.
    pub projections: &'static Projections,
    /// Biases of the projections.
    pub biases: Biases,
    /// The norms of a block.
    pub norms: BlockNorms,
    /// Norms of queries and keys before rotation.
    pub head_norms: HeadNorms,
    /// Activation of the feed-forward gate.
    pub gate: Gate,
    /// Whether each query head has a gate on the attention output.
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
    /// Module paths.
    pub paths: &'static [&'static str],
    /// Ranges of layers that share an input: queries, keys, values and other inputs of attention;
    /// attention output; gate and up; down.
    pub stacks: [Range<usize>; 4],
}

/// Separate layers for queries, keys, values, gate and up.
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

/// Layers of a linear-attention block.
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

/// Norms of a block, by module name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockNorms {
    /// Before and after attention.
    pub attention: BranchNorms,
    /// Before and after the feed-forward block.
    pub feed_forward: BranchNorms,
    /// Offset added to the weights of all norms in the family, including head norms and the final
    /// norm.
    pub offset: f32,
}

/// The norms of one branch of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchNorms {
    /// Norm of the branch input.
    pub before: Option<&'static str>,
    /// Norm of the branch output.
    pub after: Option<&'static str>,
}

/// Norms of the branch inputs only, as in Llama.
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
    /// Modules of all norms whose width is the hidden size.
    pub fn modules(&self) -> impl Iterator<Item = &'static str> {
        let [a, b] = [self.attention, self.feed_forward];
        [a.before, a.after, b.before, b.after].into_iter().flatten()
    }
}

/// How `self_attn.q_norm` and `self_attn.k_norm` normalize queries and keys before rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorms {
    /// No norms.
    None,
    /// Each head separately.
    Each,
    /// All queries of a token together, and all its keys together.
    Together,
}

/// Modules of the norms of queries and keys.
pub const HEAD_NORMS: [&str; 2] = ["self_attn.q_norm", "self_attn.k_norm"];

/// Activation of the feed-forward gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `silu`.
    Silu,
    /// `gelu` with the tanh approximation.
    GeluTanh,
}

/// Which projections of a block have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// Bias of q, k and v.
    pub qkv: Bias,
    /// Bias of o.
    pub output: Bias,
}

/// Whether a projection has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// In every model of the family.
    Always,
    /// No model of the family has it.
    Never,
    /// If the config sets this key.
    Flag(&'static str),
}

/// Biases if the config sets `attention_bias`.
pub(super) const ATTENTION_BIAS: Bias = Bias::Flag("attention_bias");

/// Finds the family of a `model_type`.
pub fn of_model_type(model_type: &str) -> Option<&'static Family> {
    FAMILIES
        .iter()
        .copied()
        .find(|family| family.files.model_type == model_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_files_has_a_network() {
        let networks: Vec<&str> = FAMILIES.iter().map(|one| one.files.model_type).collect();
        let expected: Vec<&str> = files::FAMILIES.iter().map(|one| one.model_type).collect();
        assert_eq!(
            networks, expected,
            "for_families! of trainer/src/models/families/mod.rs and families! of \
             checkpoints/src/families/mod.rs differ: see step 2 of \"Add a model family\" in \
             CONTRIBUTING.md"
        );
    }
}
