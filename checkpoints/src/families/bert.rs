//! Files of BERT encoders, such as all-MiniLM-L6-v2.

/// The file conventions of an encoder family.
#[derive(Debug, PartialEq)]
pub struct EncoderFamily {
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// The only supported activation, as `hidden_act` names it.
    pub hidden_act: &'static str,
    /// Default of `layer_norm_eps`.
    pub layer_norm_eps: f64,
    /// Tokenizer classes whose normalizer follows `tokenizer_config.json`, regardless of
    /// `tokenizer.json`.
    pub tokenizer_classes: &'static [&'static str],
    /// Tensors that a checkpoint may contain but sentence embeddings do not use.
    pub unused_tensors: &'static [&'static str],
}

/// BERT, `BertModel`.
///
/// # Source
///
/// `configuration_bert.py` of transformers 5.23.
pub const BERT: EncoderFamily = EncoderFamily {
    model_type: "bert",
    hidden_act: "gelu",
    layer_norm_eps: 1e-12,
    tokenizer_classes: &["BertTokenizer", "BertTokenizerFast"],
    unused_tensors: &[
        "embeddings.position_ids",
        "pooler.dense.weight",
        "pooler.dense.bias",
    ],
};
