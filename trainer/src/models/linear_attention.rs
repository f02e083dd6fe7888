//! Linear attention by the gated delta rule, which replaces attention in some blocks.
//!
//! Queries, keys and values pass a short convolution. A state per head stores keys and values and
//! is read with queries; the result is normalized and gated. Each document starts with an empty
//! state.

use burn::tensor::Tensor;
use serde_json::Value;
use tooltune_checkpoints::families::{ConfigRules, LayerRules};
use tooltune_kernels::causal_conv::{self, causal_conv};
use tooltune_kernels::gated_delta::{self, gated_delta_states};
use tooltune_kernels::gated_delta_net::gated_delta_net;
use tooltune_kernels::gated_norm::gated_norm;
use tooltune_kernels::lora_linear::{LinearExtras, SharedGradient, lora_linear};
use tooltune_kernels::{DeltaHeads, DeltaInputs, GatedDeltaNet};

use super::config::DecoderConfigError;
use super::config_fields::count;
use super::decoder::{BatchContext, Block};
use crate::budgets::MODEL_HEAD_DIM;
use tooltune_kernels::DropoutKey;

/// Sizes of linear attention, equal in all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Numbers and sizes of heads.
    pub heads: DeltaHeads,
    /// Width of the convolution, in tokens: the current token and the ones before it.
    pub kernel: usize,
}

impl LinearShape {
    /// Reads the sizes, if the family has linear attention.
    pub(super) fn from_json(
        json: &Value,
        rules: &ConfigRules,
    ) -> Result<Option<Self>, DecoderConfigError> {
        if !matches!(rules.layers, LayerRules::LinearExceptEvery(_)) {
            return Ok(None);
        }
        refuse_other_gates(json)?;
        let kernel = count(json, "linear_conv_kernel_dim")?;
        if !(2..=MODEL_HEAD_DIM).contains(&kernel) {
            let hint = "supported values are 2 to 65536 (MODEL_HEAD_DIM in docs/limits.md)";
            let field = "linear_conv_kernel_dim";
            return Err(DecoderConfigError::unsupported(field, kernel, hint));
        }
        for field in ["linear_key_head_dim", "linear_value_head_dim"] {
            let dim = count(json, field)?;
            if dim > MODEL_HEAD_DIM {
                let hint = "a head has 65536 numbers at most (MODEL_HEAD_DIM in docs/limits.md); fetch the model again";
                return Err(DecoderConfigError::unsupported(field, dim, hint));
            }
        }
        let heads = DeltaHeads {
            key_heads: count(json, "linear_num_key_heads")?,
            value_heads: count(json, "linear_num_value_heads")?,
            key_dim: count(json, "linear_key_head_dim")?,
            value_dim: count(json, "linear_value_head_dim")?,
        };
        if !heads.value_heads.is_multiple_of(heads.key_heads) {
            let hint = "it must be a multiple of linear_num_key_heads";
            let field = "linear_num_value_heads";
            return Err(DecoderConfigError::unsupported(
                field,
                heads.value_heads,
                hint,
            ));
        }
        Ok(Some(Self { heads, kernel }))
    }
}

/// Refuses gates that transformers does not compute. transformers ignores these keys, but other
/// programs use them.
fn refuse_other_gates(json: &Value) -> Result<(), DecoderConfigError> {
    let gates = [
        ("attn_output_gate", vec![Value::Bool(true)]),
        ("output_gate_type", vec!["swish".into(), "silu".into()]),
    ];
    for (field, known) in gates {
        let value = json.get(field).filter(|value| !value.is_null());
        if let Some(value) = value.filter(|value| !known.contains(value)) {
            let hint = format!("the supported value is {}", known[0]);
            return Err(DecoderConfigError::unsupported(field, value, hint));
        }
    }
    Ok(())
}

/// State of linear attention at the end of each row.
#[derive(Debug, Clone)]
pub struct LinearState {
    /// States of the heads, `[b, value heads, key_dim, value_dim]`, f32.
    pub head_states: Tensor<4>,
    /// Convolution inputs of the last tokens, `[b, kernel - 1, width]`; zeros before the first
    /// token of a text.
    pub tokens: Tensor<3>,
}

impl Block {
    /// Output of the first matmul of linear attention, `[n, columns]`.
    fn linear_columns(
        &self,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
        shared: Option<&SharedGradient>,
    ) -> Tensor<2> {
        let (x, transform) = self.read(x, 0, &self.attention_norms, context.shape);
        let extras = LinearExtras {
            shared_gradient: shared.cloned(),
            ..self.extras(0, transform, dropout)
        };
        lora_linear(x, &self.stacks[0], extras)
    }

    /// Output of linear attention per token, `[n, value heads, value_dim]`.
    pub(super) fn linear_attention(
        &self,
        net: &GatedDeltaNet,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
        shared: Option<&SharedGradient>,
    ) -> Tensor<3> {
        let columns = self.linear_columns(x, context, dropout, shared);
        gated_delta_net(columns, net, &context.documents)
    }

    /// Like [`Block::linear_attention`], but also returns the states at the ends of the documents.
    pub(super) fn linear_attention_with_states(
        &self,
        net: &GatedDeltaNet,
        x: &Tensor<2>,
        context: &BatchContext,
    ) -> (Tensor<3>, LinearState) {
        let parts = net.parts(self.linear_columns(x, context, None, None));
        let (heads, kernel) = (net.heads, net.conv.dims()[1]);
        let device = x.device();
        let options = (&device, parts.qkv.dtype());
        let ends = context.documents.spans().map(|(start, length)| {
            let n = length.min(kernel - 1);
            let last = parts.qkv.clone().narrow(0, start + length - n, n);
            let padding = Tensor::zeros([kernel - 1 - n, heads.width()], options);
            let tokens = if n + 1 < kernel {
                Tensor::cat(vec![padding, last], 0)
            } else {
                last
            };
            tokens.unsqueeze_dim::<3>(0)
        });
        let tokens = Tensor::cat(ends.collect(), 0);
        let qkv = causal_conv(parts.qkv.clone(), &net.conv, &context.documents);
        let inputs = DeltaInputs {
            qkv,
            log_decay: parts.log_decay,
            beta: parts.beta,
        };
        let (read, head_states) = gated_delta_states(inputs, heads, &context.documents);
        let attended = gated_norm(read, parts.gate, &net.norm);
        (
            attended,
            LinearState {
                head_states,
                tokens,
            },
        )
    }

    /// Output of linear attention for one new token per row, and the new state.
    pub(super) fn decode_linear_attention(
        &self,
        net: &GatedDeltaNet,
        x: &Tensor<2>,
        context: &BatchContext,
        state: LinearState,
    ) -> (Tensor<3>, LinearState) {
        let parts = net.parts(self.linear_columns(x, context, None, None));
        let new = parts.qkv.unsqueeze_dim::<3>(1);
        let tokens = Tensor::cat(vec![state.tokens, new], 1);
        let inputs = DeltaInputs {
            qkv: causal_conv::decode(tokens.clone(), &net.conv),
            log_decay: parts.log_decay,
            beta: parts.beta,
        };
        let (read, head_states) = gated_delta::decode(inputs, net.heads, state.head_states);
        let tokens = tokens.narrow(1, 1, net.conv.dims()[1] - 1);
        let attended = gated_norm(read, parts.gate, &net.norm);
        (
            attended,
            LinearState {
                head_states,
                tokens,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::DecoderConfig;
    use super::super::layers::Mixer;
    use super::super::load::expected_tensors;
    use super::*;

    /// Parses the text part of Qwen3.5-0.8B's config.json with these fields.
    fn qwen_with(fields: Value) -> Result<DecoderConfig, String> {
        let mut file = json!({
            "model_type": "qwen3_5_text", "attention_bias": false, "attn_output_gate": true,
            "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
            "hidden_size": 1024, "intermediate_size": 3584, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 16, "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
            "mlp_only_layers": [], "mtp_num_hidden_layers": 1, "num_attention_heads": 8,
            "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "rope_theta": 1e7, "rope_scaling": null, "tie_word_embeddings": true,
            "use_cache": true, "vocab_size": 248320,
        });
        let fields = fields.as_object().unwrap().clone();
        file.as_object_mut().unwrap().extend(fields);
        DecoderConfig::from_json(&file).map_err(|error| error.to_string())
    }

    fn full_attention_layers(fields: Value) -> Vec<usize> {
        let layers = qwen_with(fields).unwrap().layers.into_iter().enumerate();
        let full = layers.filter(|(_, kind)| kind.mixer == Mixer::Attention);
        full.map(|(layer, _)| layer).collect()
    }

    #[test]
    fn linear_attention_blocks_match_transformers() {
        let each = |n: usize| (0..24).filter(|i| (i + 1) % n == 0).collect::<Vec<_>>();
        assert_eq!(full_attention_layers(json!({})), each(4));
        assert_eq!(
            full_attention_layers(json!({"full_attention_interval": null})),
            each(4)
        );
        assert_eq!(
            full_attention_layers(json!({"full_attention_interval": 3})),
            each(3)
        );
        let mut types = vec!["linear_attention"; 24];
        types[5] = "full_attention";
        assert_eq!(full_attention_layers(json!({"layer_types": types})), [5]);
    }

    #[test]
    fn a_quarter_of_each_head_is_rotated_by_default() {
        let rotated_dim = |fields| qwen_with(fields).unwrap().rotary.dim;
        assert_eq!(rotated_dim(json!({})), 64);
        assert_eq!(rotated_dim(json!({"partial_rotary_factor": 0.5})), 128);
    }

    #[test]
    fn a_model_has_the_parameters_that_transformers_counts() {
        // The count of transformers 5.23's `Qwen3_5ForCausalLM` with this config.
        assert_eq!(qwen_with(json!({})).unwrap().n_parameters(), 752_393_024);
        let config = qwen_with(json!({})).unwrap();
        let tensors = expected_tensors(&config);
        let shape = |name: &str| {
            let name = format!("model.layers.{name}");
            let entry = tensors.iter().find(|(tensor, _)| *tensor == name);
            entry.map(|(_, shape)| shape.clone())
        };
        let conv = shape("0.linear_attn.conv1d.weight");
        assert_eq!(conv, Some(vec![6144, 1, 4]));
        assert_eq!(shape("3.self_attn.q_proj.weight"), Some(vec![4096, 1024]));
        assert_eq!(shape("3.linear_attn.A_log"), None);
        assert_eq!(shape("0.self_attn.q_norm.weight"), None);
    }

    #[test]
    fn unsupported_computations_are_refused_by_field() {
        for (fields, expected) in [
            (
                json!({"attn_output_gate": false}),
                "attn_output_gate = false",
            ),
            (
                json!({"output_gate_type": "sigmoid"}),
                "output_gate_type = \"sigmoid\"",
            ),
            (
                json!({"linear_conv_kernel_dim": 1}),
                "linear_conv_kernel_dim = 1",
            ),
            (
                json!({"linear_conv_kernel_dim": 0}),
                "linear_conv_kernel_dim must be",
            ),
            (
                json!({"linear_num_key_heads": 3}),
                "linear_num_value_heads = 16",
            ),
            (
                json!({"linear_key_head_dim": 70_000}),
                "linear_key_head_dim = 70000",
            ),
            (
                json!({"linear_num_value_heads": 4_000_000_000u32, "linear_num_key_heads": 1}),
                "MODEL_PARAMETERS",
            ),
            (
                json!({"full_attention_interval": 0}),
                "full_attention_interval must be",
            ),
            (
                json!({"layer_types": ["full_attention"]}),
                "layer_types must be",
            ),
            (
                json!({"layer_types": vec!["sliding_attention"; 24]}),
                "sliding_attention",
            ),
            (json!({"num_experts": 8}), "num_experts = 8"),
            (
                json!({"model_type": "qwen3_5_moe_text"}),
                "qwen3_5_moe_text",
            ),
            (json!({"model_type": "qwen3"}), "attn_output_gate = true"),
        ] {
            let error = qwen_with(fields).unwrap_err();
            assert!(error.contains(expected), "no {expected:?} in {error}");
        }
        assert!(qwen_with(json!({"output_gate_type": "swish"})).is_ok());
    }
}
