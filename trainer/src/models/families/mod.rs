//! Says what the network of each model family computes: one value for each family, in a file of its own.
//!
//! What the files of a family say stands in [`tooltune_checkpoints::families`]. To add a family: write
//! a file here and one there, and name it in [`FAMILIES`]. A [`Family`] has a field for each thing in
//! which the families differ; what all share is written once, in the decoder.

mod llama;
mod mistral;
mod qwen2;

use burn::tensor::Tensor;
use tooltune_checkpoints::families as files;
use tooltune_kernels::rope::rope;

use super::decoder::{BatchContext, Block};

/// Every family of decoders.
pub const FAMILIES: [&Family; 3] = [&llama::LLAMA, &mistral::MISTRAL, &qwen2::QWEN2];

/// What the network of one family computes.
#[derive(Debug)]
pub struct Family {
    /// What its files say.
    pub files: &'static files::Family,
    /// Which projections of a block have a bias.
    pub biases: Biases,
    /// Weights of a block's norms over single heads, `[c]` each, by their modules in a block.
    pub head_norms: &'static [&'static str],
    /// What attention reads of the stacked outputs of q, k and v, `[n, h + 2 g, c]`.
    pub attention_input: fn(&Block, Tensor<3>, &BatchContext) -> Tensor<3>,
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.files.model_type == other.files.model_type
    }
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
    /// Where the config says `attention_bias`.
    AttentionBias,
}

impl Bias {
    /// Whether there is one, given the config's `attention_bias`.
    pub fn is_there(self, attention_bias: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::AttentionBias => attention_bias,
        }
    }
}

/// The family of a `model_type`.
pub fn of_model_type(model_type: &str) -> Option<&'static Family> {
    FAMILIES
        .into_iter()
        .find(|family| family.files.model_type == model_type)
}

/// Queries and keys turned by their positions, values as they are.
fn rotated(_: &Block, heads: Tensor<3>, context: &BatchContext) -> Tensor<3> {
    let shape = context.shape;
    rope(heads, &context.rope, shape.n_heads + shape.n_kv_heads)
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
