//! The options of exports, their verification, and downloads from the hub.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ModelArgs;

/// Formats of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// adapter_config.json and adapter_model.safetensors, for PEFT, vLLM and SGLang [aliases: vllm,
    /// sglang]
    #[value(aliases = ["vllm", "sglang"])]
    Peft,
    /// One adapter file for llama.cpp (--lora), or a merged model with --merged
    Gguf,
    /// A folder for `ollama create`: the merged model as GGUF, with a Modelfile
    Ollama,
    /// A folder of safetensors: the base model merged with the adapter
    Merged,
    /// The retriever, as a sentence-transformers folder
    SentenceTransformers,
}

/// `tooltune export runs/quickstart --to peft --output my-adapter`
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Format of the export.
    #[arg(long, value_enum, default_value = "peft")]
    pub to: ExportFormat,
    /// Folder to create, or file for gguf.
    #[arg(long, required_unless_present = "check")]
    pub output: Option<PathBuf>,
    /// For gguf: write the merged model, as ollama always does. For a model without an adapter, or
    /// with --checkpoint base, the formats gguf, ollama and merged write the base model.
    #[arg(long)]
    pub merged: bool,
    /// For peft: multiply B by the scaling, so that the results are the same in servers that ignore
    /// fields of the config.
    #[arg(long)]
    pub neutral: bool,
    /// Number format. Default: f32 for peft and gguf adapters; f16 for merged gguf models and
    /// ollama, which also accept q8_0; for merged, the format of the base, or bf16 if the base is
    /// GGUF. merged also accepts nf4.
    #[arg(long, value_enum)]
    pub dtype: Option<ExportDtype>,
    /// For merged models of runs with model.quantization = "nf4": the weights that the adapter is
    /// merged onto. Default: dequantised. `verify` measures the loss with both.
    #[arg(long, value_enum)]
    pub base: Option<MergeOnto>,
    /// For merged: maximum gigabytes of tensors per file; 5 by default.
    #[arg(long)]
    pub max_shard_size: Option<f64>,
    /// Print how each server would load this adapter, and write nothing.
    #[arg(long, conflicts_with_all = ["output", "neutral", "dtype", "base", "push_to_hub", "max_shard_size"])]
    pub check: bool,
    /// Upload the export to this model on the Hugging Face Hub, with its README.md as the model card.
    /// Creates the model if needed; HF_TOKEN authenticates. The commit deletes the weights of an
    /// earlier export. If the upload fails, the same command uploads the existing export.
    #[arg(long, value_name = "ORG/NAME")]
    pub push_to_hub: Option<String>,
    /// Replace the model card even if someone else wrote or edited it. By default such a card is
    /// kept.
    #[arg(long, requires = "push_to_hub")]
    pub replace_card: bool,
    /// If the model is created, make it private.
    #[arg(long, requires = "push_to_hub")]
    pub private: bool,
}

/// `tooltune fetch Qwen/Qwen3-0.6B hf://datasets/org/name/train.jsonl`
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// A model as `org/name`, with `@revision` for a branch, tag or commit, or a file of a data set as
    /// `hf://datasets/org/name/train.jsonl`.
    #[arg(required = true)]
    pub names: Vec<String>,
}

/// Number formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportDtype {
    /// 32-bit float
    F32,
    /// 16-bit float with 5 exponent bits
    F16,
    /// 16-bit float with the range of f32
    Bf16,
    /// 8-bit integer with one scale per 32 values
    #[value(name = "q8_0")]
    Q8_0,
    /// 4-bit NormalFloat for linear layers, as bitsandbytes stores it
    Nf4,
}

/// The weights that an adapter trained with NF4 weights is merged onto.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MergeOnto {
    /// The values of the NF4 weights, as in training
    Dequantised,
    /// The weights before quantisation
    Original,
}

/// The rules for loading an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reader {
    /// A PEFT folder, with PEFT's rules
    PeftRules,
    /// A PEFT folder, with the rules of vLLM, which ignores rank and alpha patterns
    VllmRules,
    /// A GGUF adapter, with llama.cpp's rules
    Gguf,
    /// Merged weights: a folder or a GGUF file
    Merged,
}

/// `tooltune verify runs/quickstart --against gguf --export adapter.gguf`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Load an export by the rules of its target, and compare its logits with the checkpoint's on
    /// rows of data.eval.
    #[arg(long, value_enum, requires = "export")]
    pub against: Option<Reader>,
    /// The export: a folder, or a file for gguf.
    #[arg(long, requires = "against")]
    pub export: Option<PathBuf>,
    /// Write promptN.input_ids and promptN.logits for rows of data.eval to this safetensors file.
    #[arg(long, required_unless_present_any = ["embeddings", "against"])]
    pub logits: Option<PathBuf>,
    /// Write each evaluation text of the retriever with its embedding to this JSON Lines file.
    #[arg(long)]
    pub embeddings: Option<PathBuf>,
    /// Number of prompts, or of queries and of documents.
    #[arg(short = 'n', long, default_value_t = 4)]
    pub rows: usize,
}
