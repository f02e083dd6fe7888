//! Host tensors of a checkpoint to a decoder on a device, one tensor in flight.

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::error::CheckpointError;
use tooltune_checkpoints::weights::Weights;

use super::config::ModelConfig;
use super::decoder::{Block, Decoder, PROJECTIONS};
use super::projection::Projection;

/// Name and shape of every tensor that a checkpoint of this shape must hold.
pub fn expected_tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
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
pub fn projection_features(config: &ModelConfig, index: usize) -> (usize, usize) {
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

fn has_bias(config: &ModelConfig, index: usize) -> bool {
    match index {
        0..=2 => config.qkv_bias,
        3 => config.o_bias,
        _ => false,
    }
}

/// Reads every weight of a decoder, checked as a whole before the first one is read.
///
/// # Errors
///
/// Missing, extra or misshapen tensors (all in one error), or a file that cannot be read.
pub fn load_decoder(
    config: &ModelConfig,
    weights: &Weights,
    device: &Device,
) -> Result<Decoder, CheckpointError> {
    weights.check(&expected_tensors(config))?;
    let embed_tokens = tensor::<2>(weights, "model.embed_tokens.weight", device)?;
    let lm_head = match config.tie_word_embeddings {
        true => embed_tokens.clone(),
        false => tensor::<2>(weights, "lm_head.weight", device)?,
    };
    let blocks = (0..config.num_hidden_layers)
        .map(|layer| block(config, weights, layer, device))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Decoder {
        config: config.clone(),
        embed_tokens,
        blocks,
        norm: tensor::<1>(weights, "model.norm.weight", device)?,
        lm_head,
    })
}

fn block(
    config: &ModelConfig,
    weights: &Weights,
    layer: usize,
    device: &Device,
) -> Result<Block, CheckpointError> {
    let prefix = format!("model.layers.{layer}");
    let mut projections = Vec::with_capacity(PROJECTIONS.len());
    for (index, path) in PROJECTIONS.iter().enumerate() {
        let weight = tensor::<2>(weights, &format!("{prefix}.{path}.weight"), device)?;
        let bias = match has_bias(config, index) {
            true => Some(tensor::<1>(
                weights,
                &format!("{prefix}.{path}.bias"),
                device,
            )?),
            false => None,
        };
        projections.push(Projection::new(weight, bias));
    }
    let norm = |name: &str| tensor::<1>(weights, &format!("{prefix}.{name}.weight"), device);
    Ok(Block {
        input_layernorm: norm("input_layernorm")?,
        post_attention_layernorm: norm("post_attention_layernorm")?,
        projections: projections
            .try_into()
            .expect("one projection for each path"),
    })
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
