//! The table `[model]`.

use std::path::PathBuf;

use super::settings::settings;
use crate::enums::{ComputeDtype, FrozenWeights, Quantization};

settings! {
    /// The base model.
    pub struct BaseModelSettings {
        /// Required. A folder with config.json, tokenizer.json and safetensors, a GGUF file, or a
        /// name on the Hugging Face Hub such as "Qwen/Qwen3-0.6B"; see [models.md](models.md).
        #[schemars(extend("x-kind" = "path"))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": ["base_model", "model_name_or_path"], "LLaMA-Factory": "model_name_or_path",
            "ms-swift": "model", "TRL": "model_name_or_path"
        }))]
        #[schemars(extend("x-also" = ["model_id", "model_name"]))]
        pub model_name_or_path: PathBuf,
        /// Branch, tag or commit on the hub; "main" by default. A run keeps the commit that it
        /// started with.
        pub revision: Option<String>,
        /// The model's name on the hub, such as "HuggingFaceTB/SmolLM2-135M-Instruct". An exported
        /// adapter stores it as `base_model_name_or_path` instead of a local path. Defaults to the
        /// hub name if `model_name_or_path` is one.
        #[schemars(extend("x-on-resume" = "safe"))]
        #[schemars(extend("x-example" = "owner/model"))]
        pub hub_id: Option<String>,
        /// Dtype of matrix-multiplication inputs: "f32", "bf16" or "auto". "auto" is bf16 if the
        /// hardware multiplies bf16 natively (GPUs with compute capability 8.0 or newer, CPUs with
        /// AVX-512 BF16), otherwise f32. On CPUs with AVX2, "bf16" trains about as fast as f32 in
        /// little more than half the memory, and generates up to twice as fast. Sums, adapters, the
        /// residual stream and the loss are always f32.
        #[schemars(extend("x-also" = [
            "dtype; write \"bf16\" or \"f32\"", "torch_dtype; write \"bf16\" or \"f32\"",
            "bf16; write compute_dtype = \"bf16\""
        ]))]
        pub compute_dtype: ComputeDtype = ComputeDtype::Auto,
        /// How the frozen linear layers are stored: "nf4" for QLoRA, with 4.13 bits per weight as
        /// bitsandbytes stores them with double quantisation, or "none" for `compute_dtype`. The
        /// embedding and the head are never quantised. By default "nf4" if bitsandbytes quantised
        /// the folder, whose codes are used unchanged; otherwise "none". See
        /// [models.md](models.md#4-bit-weights).
        #[schemars(extend("x-also" = [
            "load_in_4bit; write quantization = \"nf4\"", "quantization_bit; write quantization = \"nf4\"",
            "quant_bits; write quantization = \"nf4\""
        ]))]
        pub quantization: Option<Quantization>,
        /// Where a GPU has the frozen linear layers: "resident" in its memory, "host" in pinned host
        /// memory, or "node" [divided](cluster.md#divided-weights) among a node's GPUs. With
        /// "host" and "node", each block is copied while the one before it is computed. Results have
        /// the same bits. Generated tokens wait for the copies. Without effect on a CPU.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub frozen_weights: FrozenWeights = FrozenWeights::Resident,
    }
}
