//! Loads the tensors of a checkpoint into a decoder on a device, one tensor in flight.

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::error::CheckpointError;
use tooltune_checkpoints::weights::Weights;
use tooltune_kernels::{ComputeDtype, FrozenWeight, StackedLinear};

use super::config::DecoderConfig;
use super::decoder::{Block, Decoder, PROJECTIONS, STACKS};
use crate::progress::Counted;

/// Name and shape of every tensor that a checkpoint of this shape must hold.
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
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push((format!("model.layers.{layer}.{norm}.weight"), vec![d]));
        }
        for norm in config.family.head_norms {
            let name = format!("model.layers.{layer}.{norm}.weight");
            tensors.push((name, vec![config.head_dim]));
        }
        for (index, path) in PROJECTIONS.iter().enumerate() {
            let (in_features, out_features) = projection_features(config, index);
            let module = format!("model.layers.{layer}.{path}");
            tensors.push((format!("{module}.weight"), vec![out_features, in_features]));
            if has_bias(config, index) {
                tensors.push((format!("{module}.bias"), vec![out_features]));
            }
        }
    }
    tensors
}

/// Input and output features of projection `index` of [`PROJECTIONS`].
pub fn projection_features(config: &DecoderConfig, index: usize) -> (usize, usize) {
    let d = config.hidden_size;
    let q = config.num_attention_heads * config.head_dim;
    let kv = config.num_key_value_heads * config.head_dim;
    match index {
        0 => (d, q),
        1 | 2 => (d, kv),
        3 => (q, d),
        4 | 5 => (d, config.intermediate_size),
        _ => (config.intermediate_size, d),
    }
}

fn has_bias(config: &DecoderConfig, index: usize) -> bool {
    match index {
        0..=2 => config.qkv_bias,
        3 => config.o_bias,
        _ => false,
    }
}

/// Reads every weight of a decoder, checked as a whole before the first one is read, and stores
/// it for products in `compute_dtype`.
///
/// # Errors
///
/// Missing, extra or misshapen tensors (all in one error), or a file that cannot be read.
pub fn load_decoder(
    config: &DecoderConfig,
    weights: &Weights,
    compute_dtype: ComputeDtype,
    device: &Device,
) -> Result<Decoder, CheckpointError> {
    weights.check(&expected_tensors(config))?;
    let reader = Reader {
        config,
        weights,
        compute_dtype,
        device,
    };
    let mut progress = Counted::begin("loading weights", config.num_hidden_layers);
    let embed_tokens = reader.table("model.embed_tokens.weight")?;
    let lm_head = if config.tie_word_embeddings {
        embed_tokens.clone()
    } else {
        reader.table("lm_head.weight")?
    };
    let blocks = (0..config.num_hidden_layers)
        .map(|layer| {
            progress.done(layer);
            reader.block(layer)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Decoder {
        config: config.clone(),
        embed_tokens,
        blocks,
        norm: tensor::<1>(weights, "model.norm.weight", device)?,
        lm_head,
    })
}

struct Reader<'a> {
    config: &'a DecoderConfig,
    weights: &'a Weights,
    compute_dtype: ComputeDtype,
    device: &'a Device,
}

impl Reader<'_> {
    fn block(&self, layer: usize) -> Result<Block, CheckpointError> {
        let prefix = format!("model.layers.{layer}");
        let norm = |name: &str| {
            tensor::<1>(
                self.weights,
                &format!("{prefix}.{name}.weight"),
                self.device,
            )
        };
        let [qkv, output, gate_up, down] = STACKS.map(|stack| self.stack(&prefix, stack));
        Ok(Block {
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            head_norms: (self.config.family.head_norms.iter())
                .map(|name| norm(name))
                .collect::<Result<_, _>>()?,
            stacks: [qkv?, output?, gate_up?, down?],
        })
    }

    /// Projections that share an input, one below the other.
    fn stack(&self, prefix: &str, stack: Range<usize>) -> Result<StackedLinear, CheckpointError> {
        let (in_features, _) = projection_features(self.config, stack.start);
        let widths = stack.clone().map(|i| projection_features(self.config, i).1);
        let out_features: Vec<usize> = widths.collect();
        let outputs = out_features.iter().sum();
        let (mut values, mut bias) = (Vec::with_capacity(outputs * in_features), Vec::new());
        for (index, &width) in stack.clone().zip(&out_features) {
            let module = format!("{prefix}.{}", PROJECTIONS[index]);
            values.extend(self.weights.read_f32(&format!("{module}.weight"))?.values);
            if has_bias(self.config, index) {
                bias.extend(self.weights.read_f32(&format!("{module}.bias"))?.values)
            } else {
                bias.resize(bias.len() + width, 0.0)
            }
        }
        let biased = stack.into_iter().any(|index| has_bias(self.config, index));
        let bias = TensorData::new(bias, [outputs]);
        Ok(StackedLinear {
            weight: self.frozen(values, [outputs, in_features]),
            bias: biased.then(|| Tensor::from_data(bias, self.device)),
            out_features: out_features.into(),
            adapter: None,
        })
    }

    /// `[v, d]`: an embedding or a head.
    fn table(&self, name: &str) -> Result<FrozenWeight, CheckpointError> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        Ok(self.frozen(self.weights.read_f32(name)?.values, shape))
    }

    fn frozen(&self, values: Vec<f32>, shape: [usize; 2]) -> FrozenWeight {
        FrozenWeight::new(values, shape, self.compute_dtype, self.device)
    }
}

/// One tensor of the checkpoint on the device.
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
