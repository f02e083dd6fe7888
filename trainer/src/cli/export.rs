//! The options of what leaves a run or comes from the hub: exports, their verification, and fetching.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ModelArgs;

/// Formats of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// adapter_config.json and adapter_model.safetensors, for PEFT and vLLM.
    Peft,
    /// One file for llama.cpp, beside its base model (--lora), or with --merged a whole model.
    Gguf,
    /// The merged model as GGUF with a Modelfile, a folder for `ollama create`.
    Ollama,
    /// The base model with the adapter in its weights, a folder of safetensors.
    Merged,
    /// The retriever, as a folder of sentence-transformers.
    SentenceTransformers,
}

/// `tooltune export runs/quickstart --to peft --output my-adapter`
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Format.
    #[arg(long, value_enum, default_value = "peft")]
    pub to: ExportFormat,
    /// Folder to make, or file for gguf.
    #[arg(long, required_unless_present = "check")]
    pub output: Option<PathBuf>,
    /// Write the base model with the adapter in its weights, for gguf; what ollama does in any case. Of a
    /// model alone, or with --checkpoint base, it is the base, which adapters in gguf are loaded beside.
    #[arg(long)]
    pub merged: bool,
    /// Fold the scaling into B, so that every server computes the same whatever it ignores; for
    /// peft.
    #[arg(long)]
    pub neutral: bool,
    /// Format of the numbers, for peft and adapters in gguf (f32 by default), for whole models in gguf
    /// and for ollama (f16 by default; q8_0 is for these alone), and for merged from a GGUF base (bf16
    /// by default); other bases keep their own.
    #[arg(long, value_enum)]
    pub dtype: Option<ExportDtype>,
    /// Gigabytes of tensors in a file at most, for merged; 5 by default.
    #[arg(long)]
    pub max_shard_size: Option<f64>,
    /// Print what each server would make of this adapter, and write nothing.
    #[arg(long, conflicts_with_all = ["output", "neutral", "dtype", "push_to_hub", "max_shard_size"])]
    pub check: bool,
    /// Upload what was written to this model on the Hugging Face hub, which is made if need be, with
    /// its README.md as the model card; HF_TOKEN says who asks.
    #[arg(long, value_name = "ORG/NAME")]
    pub push_to_hub: Option<String>,
    /// Nobody else sees the model if it is made.
    #[arg(long, requires = "push_to_hub")]
    pub private: bool,
}

/// `tooltune fetch Qwen/Qwen3-0.6B hf://datasets/org/name/train.jsonl`
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// A model, `org/name`, with `@revision` for a branch, tag or commit; or a file of a data set,
    /// `hf://datasets/org/name/train.jsonl`.
    #[arg(required = true)]
    pub names: Vec<String>,
}

/// Formats of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportDtype {
    /// 32 bits.
    F32,
    /// 16 bits with a small range.
    F16,
    /// 16 bits with the range of f32.
    Bf16,
    /// 8 bits, with a scale for each 32 values.
    #[value(name = "q8_0")]
    Q8_0,
}

/// By whose rules an export is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reader {
    /// A PEFT folder, as PEFT multiplies it.
    PeftRules,
    /// A PEFT folder, as vLLM multiplies it, which passes over patterns.
    VllmRules,
    /// A GGUF adapter, as llama.cpp multiplies it.
    Gguf,
    /// Merged weights, a folder or a GGUF file.
    Merged,
}

/// `tooltune verify runs/quickstart --against gguf --export adapter.gguf`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Read an export by the rules of its target, and compare its logits with the checkpoint's on
    /// rows of data.eval.
    #[arg(long, value_enum, requires = "export")]
    pub against: Option<Reader>,
    /// What was exported: a folder, or a file for gguf.
    #[arg(long, requires = "against")]
    pub export: Option<PathBuf>,
    /// safetensors file to write: promptN.input_ids and promptN.logits for rows of data.eval.
    #[arg(long, required_unless_present_any = ["embeddings", "against"])]
    pub logits: Option<PathBuf>,
    /// JSON Lines file to write: each text that the retriever is evaluated on, with its embedding.
    #[arg(long)]
    pub embeddings: Option<PathBuf>,
    /// Prompts, or queries and as many documents.
    #[arg(short = 'n', long, default_value_t = 4)]
    pub rows: usize,
}
