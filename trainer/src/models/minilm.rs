//! A BERT sentence encoder: token ids of many sentences to unit vectors, as all-MiniLM-L6-v2.
//!
//! Sentences lie end to end like the documents of the decoder, so that no padding is computed and
//! mean pooling is over real tokens by construction.

use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use serde_json::Value;
use tooltune_checkpoints::error::CheckpointError;
use tooltune_checkpoints::weights::Weights;
use tooltune_kernels::attention::{Causality, Documents, attention};

use super::load::tensor;

/// Shape of the encoder, named as in its `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct MiniLmConfig {
    /// Width of the hidden states and of the embedding.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Rows of the position embedding.
    pub max_position_embeddings: usize,
    /// Rows of the token type embedding.
    pub type_vocab_size: usize,
    /// Added to the variance.
    pub layer_norm_eps: f64,
}

impl MiniLmConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    ///
    /// A message that names the field that is missing or not supported.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let count = |field: &str| {
            json[field]
                .as_u64()
                .filter(|n| (1..1 << 32).contains(n))
                .map(|n| n as usize)
                .ok_or(format!(
                    "config.json: {field} must be a whole number above 0"
                ))
        };
        if json["model_type"] != "bert" || json["hidden_act"] != "gelu" {
            return Err("config.json: the encoder must be a BERT model with gelu".to_string());
        }
        Ok(Self {
            hidden_size: count("hidden_size")?,
            num_hidden_layers: count("num_hidden_layers")?,
            num_attention_heads: count("num_attention_heads")?,
            intermediate_size: count("intermediate_size")?,
            vocab_size: count("vocab_size")?,
            max_position_embeddings: count("max_position_embeddings")?,
            type_vocab_size: count("type_vocab_size")?,
            layer_norm_eps: json["layer_norm_eps"].as_f64().unwrap_or(1e-12),
        })
    }
}

/// Weight and bias of a linear layer.
#[derive(Debug, Clone)]
struct Linear {
    weight: Tensor<2>,
    bias: Tensor<1>,
}

impl Linear {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.clone().transpose())
            .add(self.bias.clone().unsqueeze())
    }
}

/// Scale and shift of a layer norm.
#[derive(Debug, Clone)]
struct LayerNorm {
    weight: Tensor<1>,
    bias: Tensor<1>,
    eps: f64,
}

impl LayerNorm {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let centred = x.clone().sub(x.mean_dim(1));
        let variance = centred.clone().square().mean_dim(1);
        centred
            .div(variance.add_scalar(self.eps).sqrt())
            .mul(self.weight.clone().unsqueeze())
            .add(self.bias.clone().unsqueeze())
    }
}

#[derive(Debug, Clone)]
struct EncoderBlock {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// The encoder with its weights.
#[derive(Debug, Clone)]
pub struct MiniLm {
    /// Shape.
    pub config: MiniLmConfig,
    word_embeddings: Tensor<2>,
    position_embeddings: Tensor<2>,
    token_type_embedding: Tensor<2>,
    embedding_norm: LayerNorm,
    blocks: Vec<EncoderBlock>,
}

impl MiniLm {
    /// Reads every weight; the pooler, which sentence embeddings do not use, is left out.
    ///
    /// # Errors
    ///
    /// Missing, extra or misshapen tensors (all in one error), or a file that cannot be read.
    pub fn load(
        config: MiniLmConfig,
        weights: &Weights,
        device: &Device,
    ) -> Result<Self, CheckpointError> {
        weights.check(&expected_tensors(&config, weights))?;
        let reader = Reader {
            weights,
            device,
            eps: config.layer_norm_eps,
        };
        let token_types: Tensor<2> = reader.tensor("embeddings.token_type_embeddings.weight")?;
        Ok(Self {
            word_embeddings: reader.tensor("embeddings.word_embeddings.weight")?,
            position_embeddings: reader.tensor("embeddings.position_embeddings.weight")?,
            token_type_embedding: token_types.narrow(0, 0, 1),
            embedding_norm: reader.norm("embeddings.LayerNorm")?,
            blocks: (0..config.num_hidden_layers)
                .map(|layer| reader.block(layer))
                .collect::<Result<_, _>>()?,
            config,
        })
    }

    /// Unit vectors of sentences given as token ids, `[sentences, d]`.
    ///
    /// # Panics
    ///
    /// If a sentence has no token or more than `max_position_embeddings`: the tokenizer adds
    /// `[CLS]` and `[SEP]` and truncates, so no text can cause it.
    pub fn embed(&self, sentences: &[Vec<u32>], device: &Device) -> Tensor<2> {
        let ids: Vec<u32> = sentences.concat();
        let positions: Vec<u32> = sentences
            .iter()
            .flat_map(|sentence| 0..sentence.len() as u32)
            .collect();
        let mut borders = vec![0];
        for sentence in sentences {
            assert!(
                !sentence.is_empty(),
                "a sentence has at least [CLS] and [SEP]"
            );
            borders.push(borders[borders.len() - 1] + sentence.len());
        }
        let documents = Documents::new(&borders, ids.len());
        let x = rows_of(&self.word_embeddings, &ids, device)
            .add(self.token_type_embedding.clone())
            .add(rows_of(&self.position_embeddings, &positions, device));
        let mut x = self.embedding_norm.forward(x);
        let head_dim = self.config.hidden_size / self.config.num_attention_heads;
        for block in &self.blocks {
            x = block.forward(x, &documents, head_dim);
        }
        let means = documents
            .spans()
            .map(|(start, length)| x.clone().narrow(0, start, length).mean_dim(0))
            .collect();
        normalize(Tensor::cat(means, 0))
    }
}

/// Rows divided by their length; `torch.nn.functional.normalize` with its floor of 1e-12.
fn normalize(x: Tensor<2>) -> Tensor<2> {
    let norms = x.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
    x.div(norms)
}

fn rows_of(table: &Tensor<2>, ids: &[u32], device: &Device) -> Tensor<2> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let n = ids.len();
    table.clone().select(
        0,
        Tensor::<1, Int>::from_data(TensorData::new(ids, [n]), device),
    )
}

impl EncoderBlock {
    fn forward(&self, x: Tensor<2>, documents: &Documents, head_dim: usize) -> Tensor<2> {
        let [n, d] = x.dims();
        let n_heads = d / head_dim;
        let qkv = [&self.query, &self.key, &self.value].map(|map| map.forward(x.clone()));
        let qkv = Tensor::cat(qkv.to_vec(), 1).reshape([n, 3 * n_heads, head_dim]);
        let attended = attention(qkv, n_heads, documents, Causality::Bidirectional);
        let attended = self.attention_output.forward(attended.reshape(x.dims()));
        let x = self.attention_norm.forward(x.add(attended));
        let inner = activation::gelu(self.intermediate.forward(x.clone()));
        self.output_norm.forward(x.add(self.output.forward(inner)))
    }
}

struct Reader<'a> {
    weights: &'a Weights,
    device: &'a Device,
    eps: f64,
}

impl Reader<'_> {
    fn tensor<const D: usize>(&self, name: &str) -> Result<Tensor<D>, CheckpointError> {
        tensor(self.weights, name, self.device)
    }

    fn linear(&self, module: &str) -> Result<Linear, CheckpointError> {
        Ok(Linear {
            weight: self.tensor(&format!("{module}.weight"))?,
            bias: self.tensor(&format!("{module}.bias"))?,
        })
    }

    fn norm(&self, module: &str) -> Result<LayerNorm, CheckpointError> {
        Ok(LayerNorm {
            weight: self.tensor(&format!("{module}.weight"))?,
            bias: self.tensor(&format!("{module}.bias"))?,
            eps: self.eps,
        })
    }

    fn block(&self, layer: usize) -> Result<EncoderBlock, CheckpointError> {
        let at = |module: &str| format!("encoder.layer.{layer}.{module}");
        Ok(EncoderBlock {
            query: self.linear(&at("attention.self.query"))?,
            key: self.linear(&at("attention.self.key"))?,
            value: self.linear(&at("attention.self.value"))?,
            attention_output: self.linear(&at("attention.output.dense"))?,
            attention_norm: self.norm(&at("attention.output.LayerNorm"))?,
            intermediate: self.linear(&at("intermediate.dense"))?,
            output: self.linear(&at("output.dense"))?,
            output_norm: self.norm(&at("output.LayerNorm"))?,
        })
    }
}

/// Name and shape of every tensor; what the encoder does not use may be there or not.
fn expected_tensors(config: &MiniLmConfig, weights: &Weights) -> Vec<(String, Vec<usize>)> {
    let (d, inner) = (config.hidden_size, config.intermediate_size);
    let mut tensors = vec![
        (
            "embeddings.word_embeddings.weight".to_string(),
            vec![config.vocab_size, d],
        ),
        (
            "embeddings.position_embeddings.weight".to_string(),
            vec![config.max_position_embeddings, d],
        ),
        (
            "embeddings.token_type_embeddings.weight".to_string(),
            vec![config.type_vocab_size, d],
        ),
    ];
    let mut pair = |module: String, weight: Vec<usize>, bias: usize| {
        tensors.push((format!("{module}.weight"), weight));
        tensors.push((format!("{module}.bias"), vec![bias]));
    };
    pair("embeddings.LayerNorm".to_string(), vec![d], d);
    for layer in 0..config.num_hidden_layers {
        let at = |module: &str| format!("encoder.layer.{layer}.{module}");
        for part in ["self.query", "self.key", "self.value", "output.dense"] {
            pair(at(&format!("attention.{part}")), vec![d, d], d);
        }
        pair(at("attention.output.LayerNorm"), vec![d], d);
        pair(at("intermediate.dense"), vec![inner, d], inner);
        pair(at("output.dense"), vec![d, inner], d);
        pair(at("output.LayerNorm"), vec![d], d);
    }
    let unused = [
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
    ];
    for name in unused {
        if let Some(shape) = weights.shape(name) {
            tensors.push((name.to_string(), shape.to_vec()));
        }
    }
    tensors
}
