//! Loads the tensors of a checkpoint into a decoder on a device.
//!
//! For bf16 matmuls, plain floats and NF4 tensors are copied to the device as bf16, one matrix per
//! stack. Other quantised tensors, and all tensors for f32 matmuls, are converted to f32 one at a
//! time. With [`Projections::Nf4`], the projections are stored in 4 bits; see `nf4`.

use std::collections::BTreeSet;
use std::fmt;

use burn::tensor::{Device, Tensor, TensorData, bf16};
use thiserror::Error;
use tooltune_checkpoints::error::CheckpointError;
use tooltune_checkpoints::weights::{HostTensor, Weights};
use tooltune_kernels::host_memory::{HostMemoryError, stream_blocks};
use tooltune_kernels::node_memory::{NodeError, NodeGroup, ShareLoader};
use tooltune_kernels::{
    ComputeDtype, FrozenWeight, GatedDeltaNet, GatedNorm, SpanNorm, StackedLinear, WeightSource,
};

use super::config::DecoderConfig;
use super::decoder::{Block, BranchNormWeights, Decoder, TrainedMatrices};
use super::families::{BranchNorms, HEAD_NORMS, HeadNorms};
use super::layers::Mixer;
use super::linear_attention::LinearShape;
use super::nf4::Nf4Loader;
use super::node_blocks::NodeBlocks;
use tooltune_terminal::Counted;

/// Name and shape of every tensor that a checkpoint with this config must have.
pub fn expected_tensors(config: &DecoderConfig) -> Vec<(String, Vec<usize>)> {
    let d = config.hidden_size;
    let mut tensors = vec![
        (
            "model.embed_tokens.weight".to_string(),
            vec![config.vocab_size, d],
        ),
        ("model.norm.weight".to_string(), vec![d]),
    ];
    if !config.tie_word_embeddings {
        tensors.push(("lm_head.weight".to_string(), vec![config.vocab_size, d]));
    }
    for layer in 0..config.num_hidden_layers {
        for norm in config.family.norms.modules() {
            tensors.push((format!("model.layers.{layer}.{norm}.weight"), vec![d]));
        }
        let extra_tensors = match linear_shape(config, layer) {
            Some(linear) => linear_tensors(linear),
            None => {
                let norms = HEAD_NORMS.into_iter().zip(head_norm_widths(config));
                let norms = norms.map(|(norm, width)| (format!("{norm}.weight"), vec![width]));
                norms.collect()
            }
        };
        for (name, shape) in extra_tensors {
            tensors.push((format!("model.layers.{layer}.{name}"), shape));
        }
        let projections = config.projections(layer);
        for (index, path) in projections.paths.iter().enumerate() {
            let (in_features, out_features) = projection_features(config, layer, index);
            let module = format!("model.layers.{layer}.{path}");
            tensors.push((format!("{module}.weight"), vec![out_features, in_features]));
            let stacks = &projections.stacks;
            let stack = stacks.iter().position(|stack| stack.contains(&index));
            if stack.is_some_and(|stack| has_bias(config, layer, stack)) {
                tensors.push((format!("{module}.bias"), vec![out_features]));
            }
        }
    }
    tensors
}

/// Names of the weights that [`Quantization::Nf4`] stores in 4 bits: all projections of all blocks.
pub fn projection_weights(config: &DecoderConfig) -> BTreeSet<String> {
    let of_layer = |layer: usize| {
        let paths = config.projections(layer).paths.iter();
        paths.map(move |path| format!("model.layers.{layer}.{path}.weight"))
    };
    (0..config.num_hidden_layers).flat_map(of_layer).collect()
}

/// Sizes of linear attention, if the block has it.
fn linear_shape(config: &DecoderConfig, layer: usize) -> Option<LinearShape> {
    match config.layers[layer].mixer {
        Mixer::Attention => None,
        Mixer::Linear => config.linear,
    }
}

/// Tensors of a linear-attention block other than its projections.
fn linear_tensors(LinearShape { heads, kernel }: LinearShape) -> Vec<(String, Vec<usize>)> {
    let tensors = [
        ("conv1d.weight", vec![heads.width(), 1, kernel]),
        ("A_log", vec![heads.value_heads]),
        ("dt_bias", vec![heads.value_heads]),
        ("norm.weight", vec![heads.value_dim]),
    ];
    let full_names = tensors.map(|(name, shape)| (format!("linear_attn.{name}"), shape));
    full_names.into()
}

/// Sizes of the spans of a token's queries and keys that are normalized separately; empty if the
/// family has no such norms.
pub fn head_norm_spans(config: &DecoderConfig) -> Vec<usize> {
    let heads = config.num_attention_heads + config.num_key_value_heads;
    match config.family.head_norms {
        HeadNorms::None => Vec::new(),
        HeadNorms::Each => vec![config.head_dim; heads],
        HeadNorms::Together => head_norm_widths(config),
    }
}

/// Sizes of the norm weights of queries and keys; empty if the family has no such norms.
fn head_norm_widths(config: &DecoderConfig) -> Vec<usize> {
    let heads = [config.num_attention_heads, config.num_key_value_heads];
    match config.family.head_norms {
        HeadNorms::None => Vec::new(),
        HeadNorms::Each => vec![config.head_dim; 2],
        HeadNorms::Together => heads.map(|n| n * config.head_dim).to_vec(),
    }
}

/// Input and output features of a projection, by block and index in the block.
pub fn projection_features(config: &DecoderConfig, layer: usize, index: usize) -> (usize, usize) {
    let d = config.hidden_size;
    let projections = config.projections(layer);
    let stack = projections.stacks.iter().position(|s| s.contains(&index));
    match (linear_shape(config, layer), stack) {
        (Some(linear), Some(0)) => return (d, linear.heads.columns()[index]),
        (Some(linear), Some(1)) => return (linear.heads.values(), d),
        _ => {}
    }
    let q = config.num_attention_heads * config.head_dim;
    let kv = config.num_key_value_heads * config.head_dim;
    let with_gate = if config.family.query_gate { 2 * q } else { q };
    let is_fused = |stack: &std::ops::Range<usize>| stack.len() == 1;
    match stack {
        Some(0) if is_fused(&projections.stacks[0]) => (d, q + 2 * kv),
        Some(0) => (d, if index == 0 { with_gate } else { kv }),
        Some(1) => (q, d),
        Some(2) if is_fused(&projections.stacks[2]) => (d, 2 * config.intermediate_size),
        Some(2) => (d, config.intermediate_size),
        _ => (config.intermediate_size, d),
    }
}

/// Whether the projections of a block's stack have biases.
pub fn has_bias(config: &DecoderConfig, layer: usize, stack: usize) -> bool {
    match stack {
        _ if config.layers[layer].mixer == Mixer::Linear => false,
        0 => config.qkv_bias,
        1 => config.o_bias,
        _ => false,
    }
}

/// Why a model is not loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A file cannot be read, or does not fit the config.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The linear layers do not fit in host memory.
    #[error(
        "model.frozen_weights = \"host\": {0}; free host memory, raise the limit of locked memory \
         (ulimit -l), or set it to \"resident\""
    )]
    HostMemory(#[from] HostMemoryError),
    /// The GPUs of the node cannot gather the linear layers.
    #[error("model.frozen_weights = \"node\": {0}")]
    Node(#[from] NodeError),
}

/// Where frozen projections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrozenWeights {
    /// In the memory of the device.
    Resident,
    /// In pinned host memory, which a CUDA GPU copies block by block.
    Host,
    /// Divided among the GPUs of a node, which gather them block by block.
    Node,
}

impl FrozenWeights {
    /// The word for config files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Host => "host",
            Self::Node => "node",
        }
    }
}

/// Where a decoder's frozen projections are stored.
#[derive(Debug, Clone, Copy)]
pub enum Placement<'a> {
    /// In the memory of the device.
    Resident,
    /// In pinned host memory.
    Host,
    /// Divided among these GPUs.
    Node(&'a NodeGroup),
}

/// How frozen projections are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// In the compute dtype.
    None,
    /// In 4 bits, except for projections that a folder of bitsandbytes does not quantise.
    Nf4,
}

impl Quantization {
    /// The word for config files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nf4 => "nf4",
        }
    }
}

/// What happens to the projections of a decoder when they are loaded.
#[derive(Clone, Copy)]
pub enum Projections<'a> {
    /// They are stored in the compute dtype.
    AsIs,
    /// A function changes each weight, which is then stored in the compute dtype.
    Changed(&'a Change<'a>),
    /// They are stored in 4 bits, as in [`Quantization::Nf4`].
    Nf4,
}

impl fmt::Debug for Projections<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsIs => "AsIs",
            Self::Changed(_) => "Changed",
            Self::Nf4 => "Nf4",
        })
    }
}

/// A function that changes the weight of a projection before the weight is stored. Its first
/// argument is the name of the weight.
pub type Change<'a> = dyn Fn(&str, &mut HostTensor) + 'a;

/// How a decoder is loaded.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Dtype of matmul inputs.
    pub compute_dtype: ComputeDtype,
    /// How projections are stored. Embedding, head and norms do not depend on it.
    pub projections: Projections<'a>,
    /// Where frozen projections are.
    pub placement: Placement<'a>,
}

/// Checks all tensors of a decoder, then loads them onto `device`.
///
/// # Errors
///
/// Tensors are missing, extra or of the wrong shape (all listed in one error), or a file cannot be
/// read. With [`Projections::Nf4`], also if a projection has a value that is NaN or infinite. With
/// [`Placement::Host`], also if the projections do not fit in host memory; with
/// [`Placement::Node`], also if the GPUs cannot gather them.
pub fn load_decoder(
    config: &DecoderConfig,
    weights: &Weights,
    options: LoadOptions<'_>,
    device: &Device,
) -> Result<Decoder, LoadError> {
    let LoadOptions {
        compute_dtype,
        projections,
        placement,
    } = options;
    weights.check(&expected_tensors(config))?;
    let reader = Reader {
        config,
        weights,
        compute_dtype,
        device,
        change: match projections {
            Projections::Changed(change) => Some(change),
            Projections::AsIs | Projections::Nf4 => None,
        },
        nf4: match projections {
            Projections::Nf4 => Some(Nf4Loader::new(weights, compute_dtype)),
            Projections::AsIs | Projections::Changed(_) => None,
        },
    };
    let mut progress = Counted::begin("loading weights", config.num_hidden_layers);
    let embed_tokens = reader.table("model.embed_tokens.weight")?;
    let lm_head = if config.tie_word_embeddings {
        embed_tokens.clone()
    } else {
        reader.table("lm_head.weight")?
    };
    let mut shares = match placement {
        Placement::Node(group) => Some(ShareLoader::new(group)),
        Placement::Resident | Placement::Host => None,
    };
    let blocks = (0..config.num_hidden_layers)
        .map(|layer| {
            progress.advance(layer);
            let sources = (0..N_STACKS).map(|stack| reader.source(layer, stack));
            let weights = match &mut shares {
                Some(shares) => shares.add_block(sources.collect::<Result<_, _>>()?)?,
                None => sources
                    .map(|source| {
                        let weight = source?.load(device)?;
                        Ok(match placement {
                            Placement::Host => weight.into_host_memory()?,
                            Placement::Resident | Placement::Node(_) => weight,
                        })
                    })
                    .collect::<Result<_, LoadError>>()?,
            };
            Ok(reader.block(layer, weights)?)
        })
        .collect::<Result<Vec<_>, LoadError>>()?;
    if matches!(placement, Placement::Host) {
        let stacks = blocks.iter().map(|block: &Block| block.stacks.iter());
        stream_blocks(stacks.map(|stacks| stacks.map(|stack| &stack.weight).collect()));
    }
    let node = shares.map(|shares| NodeBlocks::new(shares.finish()));
    if let Some(node) = &node {
        node.warm_up()?;
    }
    if let Some(nf4) = &reader.nf4 {
        nf4.warn_of_mixed_stacks();
    }
    Ok(Decoder {
        config: config.clone(),
        embed_tokens,
        blocks,
        // Dividing the norm's weight by `logits_scaling` divides all logits by it.
        norm: reader.norm("model.norm")?.div_scalar(config.logits_scaling),
        lm_head,
        trained: TrainedMatrices::default(),
        node,
    })
}

/// Stacks of a block.
const N_STACKS: usize = 4;

/// A weight of the checkpoint.
type Source<'a> = WeightSource<'a, CheckpointError>;

struct Reader<'a> {
    config: &'a DecoderConfig,
    weights: &'a Weights,
    compute_dtype: ComputeDtype,
    device: &'a Device,
    change: Option<&'a Change<'a>>,
    /// Set if projections are stored in 4 bits.
    nf4: Option<Nf4Loader<'a>>,
}

impl Reader<'_> {
    /// A block with the weights of its stacks.
    fn block(&self, layer: usize, weights: Vec<FrozenWeight>) -> Result<Block, CheckpointError> {
        let prefix = format!("model.layers.{layer}");
        let family = self.config.family;
        let norm = |module: Option<&str>| {
            let module = module.map(|module| format!("{prefix}.{module}"));
            module.map(|module| self.norm(&module)).transpose()
        };
        let norms = |branch: BranchNorms| {
            Ok::<_, CheckpointError>(BranchNormWeights {
                before: norm(branch.before)?,
                after: norm(branch.after)?,
            })
        };
        let linear = linear_shape(self.config, layer);
        let linear = linear
            .map(|shape| self.linear(&prefix, shape))
            .transpose()?;
        let head_norm = match &linear {
            Some(_) => None,
            None => self.head_norm(&prefix)?,
        };
        let stacks = weights.into_iter().enumerate();
        let stacks = stacks.map(|(stack, weight)| self.stack(layer, stack, weight));
        let stacks = stacks.collect::<Result<Vec<_>, CheckpointError>>()?;
        Ok(Block {
            attention_norms: norms(family.norms.attention)?,
            feed_forward_norms: norms(family.norms.feed_forward)?,
            head_norm,
            linear,
            projections: self.config.projections(layer),
            kind: self.config.layers[layer],
            stacks: stacks.try_into().expect("one weight for each stack"),
            unread: false,
        })
    }

    /// The weight of a norm, plus the family's offset.
    fn norm(&self, module: &str) -> Result<Tensor<1>, CheckpointError> {
        let weight = tensor::<1>(self.weights, &format!("{module}.weight"), self.device)?;
        Ok(match self.config.family.norms.offset {
            0.0 => weight,
            offset => weight.add_scalar(offset),
        })
    }

    /// Parameters of a linear-attention block other than its projections.
    fn linear(
        &self,
        prefix: &str,
        LinearShape { heads, kernel }: LinearShape,
    ) -> Result<GatedDeltaNet, CheckpointError> {
        let name = |name: &str| format!("{prefix}.linear_attn.{name}");
        let numbers = |suffix: &str| tensor::<1>(self.weights, &name(suffix), self.device);
        let per_head = |suffix: &str| Ok::<_, CheckpointError>(numbers(suffix)?.unsqueeze::<2>());
        let conv = tensor::<3>(self.weights, &name("conv1d.weight"), self.device)?;
        Ok(GatedDeltaNet {
            heads,
            conv: conv.reshape([heads.width(), kernel]),
            rate: per_head("A_log")?.exp().neg(),
            step_bias: per_head("dt_bias")?,
            // The family's offset does not apply to this norm.
            norm: GatedNorm {
                weight: numbers("norm.weight")?,
                eps: self.config.rms_norm_eps,
            },
        })
    }

    /// Concatenated norm weights of queries and keys.
    fn head_norm(&self, prefix: &str) -> Result<Option<SpanNorm>, CheckpointError> {
        let config = self.config;
        let heads = [config.num_attention_heads, config.num_key_value_heads];
        let norms = || {
            let [q, k] = HEAD_NORMS.map(|norm| self.norm(&format!("{prefix}.{norm}")));
            Ok::<_, CheckpointError>([q?, k?])
        };
        let weights = match config.family.head_norms {
            HeadNorms::None => return Ok(None),
            HeadNorms::Each => {
                let repeated = norms()?.into_iter().zip(heads);
                repeated.map(|(norm, n)| norm.repeat_dim(0, n)).collect()
            }
            HeadNorms::Together => norms()?.to_vec(),
        };
        Ok(Some(SpanNorm {
            weight: Tensor::cat(weights, 0),
            spans: head_norm_spans(config).into(),
            eps: config.rms_norm_eps,
        }))
    }

    /// Modules of a stack, and their numbers of input and output features.
    fn modules(&self, layer: usize, stack: usize) -> (Vec<String>, usize, Vec<usize>) {
        let projections = self.config.projections(layer);
        let range = projections.stacks[stack].clone();
        let features = |i: usize| projection_features(self.config, layer, i);
        let module = |i: usize| format!("model.layers.{layer}.{}", projections.paths[i]);
        let outputs = range.clone().map(|i| features(i).1).collect();
        let (inputs, _) = features(range.start);
        (range.map(module).collect(), inputs, outputs)
    }

    /// The weight of projections that share an input, stacked by rows.
    fn source(&self, layer: usize, stack: usize) -> Result<Source<'_>, CheckpointError> {
        let (modules, inputs, outputs) = self.modules(layer, stack);
        let names = modules.iter().map(|module| format!("{module}.weight"));
        let names: Vec<String> = names.collect();
        let shape = [outputs.iter().sum(), inputs];
        let quantised = match &self.nf4 {
            Some(nf4) => nf4.read(&names, shape)?,
            None => None,
        };
        match quantised {
            Some(source) => Ok(source),
            None => self.matrix(&names, shape, self.change),
        }
    }

    /// Projections that share an input, with their weight.
    fn stack(
        &self,
        layer: usize,
        stack: usize,
        weight: FrozenWeight,
    ) -> Result<StackedLinear, CheckpointError> {
        let (modules, _, outputs) = self.modules(layer, stack);
        let bias = match has_bias(self.config, layer, stack) {
            true => Some(self.bias(modules.into_iter())?),
            false => None,
        };
        Ok(StackedLinear {
            weight,
            bias,
            out_features: outputs.into(),
            adapter: None,
        })
    }

    /// Loads the biases of these modules, concatenated.
    fn bias(&self, modules: impl Iterator<Item = String>) -> Result<Tensor<1>, CheckpointError> {
        let mut values = Vec::new();
        for module in modules {
            values.extend(self.weights.read_f32(&format!("{module}.bias"))?.values);
        }
        let shape = [values.len()];
        Ok(Tensor::from_data(
            TensorData::new(values, shape),
            self.device,
        ))
    }

    /// Loads an embedding or a head, `[v, d]`.
    fn table(&self, name: &str) -> Result<FrozenWeight, CheckpointError> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        self.matrix(&[name.to_owned()], shape, None)?
            .load(self.device)
    }

    /// Weights that share an input, stacked by rows. Plain files are read when they are loaded.
    fn matrix(
        &self,
        names: &[String],
        shape: [usize; 2],
        change: Option<&Change<'_>>,
    ) -> Result<Source<'_>, CheckpointError> {
        if self.compute_dtype == ComputeDtype::Bf16
            && change.is_none()
            && let Some(plain) = self.weights.plain(names)?
        {
            let fill = move |start: usize, values: &mut [bf16]| plain.read_bf16(start, values);
            return Ok(WeightSource::filled(shape, fill));
        }
        let mut values = Vec::new();
        for name in names {
            let mut weight = self.weights.read_f32(name)?;
            if let Some(change) = change {
                change(name, &mut weight);
            }
            if values.is_empty() {
                values = weight.values;
                values.reserve_exact(shape[0] * shape[1] - values.len());
            } else {
                values.extend(weight.values);
            }
        }
        Ok(WeightSource::values(values, shape, self.compute_dtype))
    }
}

/// Loads one tensor of the checkpoint to the device.
pub(crate) fn tensor<const D: usize>(
    weights: &Weights,
    name: &str,
    device: &Device,
) -> Result<Tensor<D>, CheckpointError> {
    let host = weights.read_f32(name)?;
    Ok(Tensor::from_data(
        TensorData::new(host.values, host.shape),
        device,
    ))
}

#[cfg(test)]
mod tests;
