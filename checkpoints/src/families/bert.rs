//! Describes the files of BERT encoders, such as all-MiniLM-L6-v2.

/// What the files of a family of encoders say.
#[derive(Debug, PartialEq)]
pub struct EncoderFamily {
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// The only activation that is computed, as `hidden_act` names it.
    pub hidden_act: &'static str,
    /// `layer_norm_eps` where the file has none.
    pub layer_norm_eps: f64,
    /// Classes whose normalizer follows `tokenizer_config.json`, whatever `tokenizer.json` says.
    pub tokenizer_classes: &'static [&'static str],
    /// Tensors that a checkpoint may hold and sentence embeddings do not use.
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
