//! Refuses keys of other architectures in a `config.json`, unless their values have no effect.
//!
//! Each of these keys requires an unsupported computation. transformers ignores most of them for
//! the supported model types. If someone changed the `model_type` of an unsupported model so that
//! it loads, the result must be an error, not a worse loss.

use serde_json::Value;

use super::config::DecoderConfigError;

/// Keys with the value that has no effect; flags are numbers here. `null` also has no effect.
///
/// # Source
///
/// `configuration_*.py` of transformers 5.23 for Gemma 2 and 3, Granite, Cohere, MiniCPM, Mixtral,
/// DeepSeek, Qwen3 and 3.5, OLMo, Phi, Falcon, GPT-NeoX, SmolLM3 and Llama 4.
const NEUTRAL: [(&str, f64); 31] = [
    ("attn_output_gate", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logits_soft_cap", 0.0),
    ("logits_scaling", 1.0),
    ("logit_scale", 1.0),
    ("lm_head_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("residual_scale", 1.0),
    ("embedding_multiplier", 1.0),
    ("embedding_scale", 1.0),
    ("scale_emb", 1.0),
    ("key_multiplier", 1.0),
    ("clip_qkv", 0.0),
    ("num_local_experts", 0.0),
    ("num_experts", 0.0),
    ("n_routed_experts", 0.0),
    ("alibi", 0.0),
    ("use_alibi", 0.0),
    ("parallel_attn", 0.0),
    ("use_parallel_residual", 0.0),
    ("use_qk_norm", 0.0),
    ("qk_norm", 0.0),
    ("qk_layernorm", 0.0),
    ("rotary_pct", 1.0),
    ("rope_interleave", 0.0),
    ("rope_interleaved", 0.0),
    ("attention_chunk_size", 0.0),
    ("is_causal", 1.0),
    ("is_encoder_decoder", 0.0),
    ("add_cross_attention", 0.0),
];

/// Keys that must be absent or null.
const NEVER: [&str; 6] = [
    "output_gate_type",
    "scale_depth",
    "dim_model_base",
    "kv_lora_rank",
    "q_lora_rank",
    "no_rope_layer_interval",
];

/// Refuses keys that require an unsupported computation, except for the family's own keys.
///
/// # Errors
///
/// A key requires an unsupported computation; the error has the first such key with its value.
pub(super) fn refuse(
    json: &Value,
    head_dim: usize,
    own: &[&str],
) -> Result<(), DecoderConfigError> {
    let head_dim = head_dim as f64;
    // These values have no effect, because scores are always divided by the square root of the head
    // size, and the whole head is always rotated.
    let head_keys = [
        ("query_pre_attn_scalar", head_dim),
        ("attention_multiplier", head_dim.powf(-0.5)),
        ("attention_scale", head_dim.powf(-0.5)),
        ("rotary_dim", head_dim),
    ];
    let others = NEUTRAL.into_iter().chain(head_keys);
    for (field, neutral) in others.filter(|(field, _)| !own.contains(field)) {
        let is_near = |value: f64| (value - neutral).abs() <= 1e-6 * neutral.abs();
        match json.get(field) {
            None | Some(Value::Null) => {}
            Some(value) if number(value).is_some_and(is_near) => {}
            Some(value) => return unsupported(field, value),
        }
    }
    for field in NEVER.into_iter().filter(|field| !own.contains(field)) {
        if let Some(value) = json.get(field).filter(|value| !value.is_null()) {
            return unsupported(field, value);
        }
    }
    // One flag per layer: whether it uses rotation.
    if own.contains(&"no_rope_layers") {
        return Ok(());
    }
    let layers = json.get("no_rope_layers").and_then(Value::as_array);
    if layers.is_some_and(|layers| layers.iter().any(|layer| number(layer) != Some(1.0))) {
        return unsupported("no_rope_layers", &json["no_rope_layers"]);
    }
    Ok(())
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(flag) => Some(f64::from(*flag)),
        value => value.as_f64(),
    }
}

fn unsupported(field: &'static str, value: &Value) -> Result<(), DecoderConfigError> {
    let value = value.to_string();
    let value = match value.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value,
    };
    Err(DecoderConfigError::unsupported(
        field,
        value,
        "it changes the computation, and models of this type do not support it; use the model's \
         own config.json, and a supported model type",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_other_architectures_are_refused_unless_neutral() {
        for (field, neutral) in NEUTRAL {
            assert!(refuse(&json!({field: neutral}), 64, &[]).is_ok(), "{field}");
            assert!(refuse(&json!({field: null}), 64, &[]).is_ok(), "{field}");
            let error = refuse(&json!({field: neutral + 0.5}), 64, &[]).unwrap_err();
            assert!(error.to_string().contains(field), "{error}");
        }
        for field in NEVER {
            assert!(refuse(&json!({field: null}), 64, &[]).is_ok(), "{field}");
            assert!(refuse(&json!({field: 2}), 64, &[]).is_err(), "{field}");
        }
        for (field, neutral, other) in [
            ("query_pre_attn_scalar", json!(64), json!(256)),
            ("attention_multiplier", json!(0.125), json!(0.015625)),
            ("attention_scale", json!(0.125), json!(1)),
            ("rotary_dim", json!(64), json!(32)),
            ("no_rope_layers", json!([1, 1]), json!([1, 0])),
            ("use_qk_norm", json!(false), json!(true)),
            ("is_causal", json!(true), json!(false)),
            ("num_experts", json!(0), json!("eight")),
        ] {
            assert!(refuse(&json!({field: neutral}), 64, &[]).is_ok(), "{field}");
            let error = refuse(&json!({field: other}), 64, &[])
                .unwrap_err()
                .to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
