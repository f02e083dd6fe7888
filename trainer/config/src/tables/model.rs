//! The table `[model]`.

use std::path::PathBuf;

use super::settings::settings;
use crate::enums::ComputeDtype;

settings! {
    /// The base model.
    pub struct BaseModelSettings {
        /// Required. A folder with config.json, tokenizer.json and safetensors, a GGUF file, or a
        /// name on the Hugging Face Hub such as "Qwen/Qwen3-0.6B"; see [models.md](models.md).
        #[schemars(extend("x-kind" = "path"))]
        pub model_name_or_path: PathBuf,
        /// Branch, tag or commit of a hub name; "main" by default. A run keeps the commit that it
        /// started with.
        pub revision: Option<String>,
        /// The model's name on the hub, such as "HuggingFaceTB/SmolLM2-135M-Instruct". An exported
        /// adapter stores it as `base_model_name_or_path` instead of a local path. Models loaded by
        /// a hub name have that name.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub hub_id: Option<String>,
        /// Dtype of matrix-multiplication inputs: "f32", "bf16", or "auto", which is bf16 on GPUs
        /// (compute capability 8.0 or newer) and CPUs (AVX-512 BF16) that multiply it, otherwise
        /// f32. On other CPUs "bf16" can be worth trying: with AVX2 it trains about as fast in
        /// little more than half the memory, and generates up to twice as fast. Sums, adapters, the
        /// residual stream and the loss are always f32.
        pub compute_dtype: ComputeDtype = ComputeDtype::Auto,
    }
}
