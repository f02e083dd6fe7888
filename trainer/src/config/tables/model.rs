//! The table `[model]`.

use std::path::PathBuf;

use super::settings::settings;
use crate::config::enums::ComputeDtype;

settings! {
    /// The base model.
    pub struct BaseModelSettings {
        /// Required. A folder with config.json, tokenizer.json and safetensors, a GGUF file, or the
        /// name of a model on the Hugging Face hub, such as "Qwen/Qwen3-0.6B", which is fetched;
        /// [models.md](models.md) says what is read of them.
        #[schemars(extend("x-kind" = "path"))]
        pub model_name_or_path: PathBuf,
        /// For a name on the hub: the branch, tag or commit; "main" by default. A run keeps the
        /// commit that it began with.
        pub revision: Option<String>,
        /// The model's name on the hub, such as "HuggingFaceTB/SmolLM2-135M-Instruct": an exported
        /// adapter carries it as its `base_model_name_or_path`, in place of a path above, which
        /// means nothing on another machine. A model that is named as on the hub has that name.
        #[schemars(extend("x-on-resume" = "safe"))]
        pub hub_id: Option<String>,
        /// Precision of what matrix products read: "bf16", "f32", or "auto": bf16 on GPUs and CPUs
        /// that multiply it (compute capability 8.0 or more; AVX-512 BF16), else f32. A GPU that
        /// does not multiply bf16 refuses "bf16". On other CPUs "bf16" is worth a try: with AVX2 it
        /// trains about as fast, takes little more than half the memory, and writes up to twice as
        /// fast. Sums, adapters, the residual stream and the loss are f32 in any case.
        pub compute_dtype: ComputeDtype = ComputeDtype::Auto,
    }
}
