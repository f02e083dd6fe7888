//! Measures the speed of a model's training step from its shape: random weights, random tokens,
//! LoRA on every linear layer. Prints one line of JSON with seconds, losses and memory.
//!
//! With `--new-tokens` it generates instead: each step prefills the documents as prompts, all at
//! once, and completes them greedily, as an evaluation within a run does.
//!
//! `random_step --shape scripts/gpu/shapes/llama-3.2-1b.json --device cuda` is the tooltune side of
//! `scripts/gpu/run`; `scripts/gpu/peft_step.py` prints the same line for PEFT. Real weights are
//! not needed, because random weights take the same time. The first loss must be near the logarithm
//! of the vocabulary size.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the line is the result"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use clap::Parser;
use serde_json::{Value, json};
use tooltune::config::LoraConfig;
use tooltune::config::{self, CheckpointingMode, GradientCheckpointing};
use tooltune::device::loss_rows;
use tooltune::eval::generate::{GenerationOptions, generate};
use tooltune::lora::Adapters;
use tooltune::lora::LoraLayout as _;
use tooltune::models::decoder::{Block, BranchNormWeights, TrainedMatrices};
use tooltune::models::families::BranchNorms;
use tooltune::models::layers::Mixer;
use tooltune::models::linear_attention::LinearShape;
use tooltune::models::load::{Quantization, has_bias, head_norm_spans, projection_features};
use tooltune::models::nf4::nf4_matrix;
use tooltune::models::{Decoder, DecoderConfig};
use tooltune::optim::{BackwardOptions, Optimizer, StepOutcome, backward};
use tooltune::recipes::kept_blocks::{DoraActivations, KeptBlocks, RunShape};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{FloatDtype, HostTensor, Nf4Tensor};
use tooltune_kernels::{
    AdamW, ComputeDtype, FrozenWeight, GatedDeltaNet, GatedNorm, SpanNorm, StackedLinear,
};
use tooltune_kernels::{DropoutKey, DropoutRate};
use tooltune_rows::batches::{Example, MicroBatch, Padding, SeededRandom, collate};

type Failure = Box<dyn std::error::Error>;

#[derive(Debug, Parser)]
struct Arguments {
    /// A config.json, of which only the shape is used.
    #[arg(long)]
    shape: PathBuf,
    /// cpu, cuda or cuda:INDEX.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Dtype of frozen weights and activations: auto, f32 or bf16.
    #[arg(long, default_value = "auto")]
    dtype: String,
    /// How linear layers are stored: none or nf4.
    #[arg(long, default_value = "none")]
    quantization: String,
    /// Documents per step, packed without cross-attention.
    #[arg(long, default_value_t = 2)]
    documents: usize,
    /// Tokens per document, all of them supervised.
    #[arg(long, default_value_t = 4096)]
    length: usize,
    /// Rank of the adapters; alpha is twice as much.
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// Dropout of the adapters, like lora.lora_dropout in a config.
    #[arg(long, default_value_t = 0.05)]
    dropout: f64,
    /// Number of last blocks that keep their activations instead of recomputing them, or auto for
    /// the number that a run would choose.
    #[arg(long, default_value = "auto")]
    kept_blocks: String,
    /// Warm-up steps before the timed ones.
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// Timed steps.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// New tokens per document; 0 trains instead.
    #[arg(long, default_value_t = 0)]
    new_tokens: usize,
    /// Seed of weights, adapters and tokens.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("random_step: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Value, Failure> {
    let arguments = Arguments::parse();
    let path = arguments.shape.display();
    let json =
        ModelFiles::read_config(&arguments.shape).map_err(|error| format!("--shape: {error}"))?;
    let shape = DecoderConfig::from_json(&json).map_err(|error| format!("{path}: {error}"))?;
    let name = config::Device::parse(&arguments.device).ok_or_else(|| {
        let text = &arguments.device;
        format!("--device {text}: expected cpu, cuda or cuda:INDEX")
    })?;
    let device = tooltune::device::open(name)?;
    let dtype = match arguments.dtype.as_str() {
        "auto" => ComputeDtype::fastest_on(&device),
        "f32" => ComputeDtype::F32,
        "bf16" => ComputeDtype::Bf16,
        other => return Err(format!("--dtype {other}: expected auto, f32 or bf16").into()),
    };

    let quantization = match arguments.quantization.as_str() {
        "none" => Quantization::None,
        "nf4" => Quantization::Nf4,
        other => return Err(format!("--quantization {other}: expected none or nf4").into()),
    };
    let batch = random_batch(&arguments, shape.vocab_size)?;
    let slots = every_linear_layer(&arguments).slots(&shape)?;
    let run = RunShape {
        setting: setting(&arguments.kept_blocks)?,
        model: &shape,
        n_adapter: slots.iter().map(|slot| slot.len()).sum(),
        compute_dtype: dtype,
        quantization,
        dora_activations: DoraActivations::None,
    };
    let n_kept_blocks = KeptBlocks::new(run, &device).count(batch.n_tokens());
    let weights = RandomWeights::new(arguments.seed, dtype, quantization, &device);
    let mut decoder = weights.decoder(&shape);
    let stacks = decoder.blocks.iter().flat_map(|block| &block.stacks);
    let stack_bytes: usize = stacks.map(|stack| stack.weight.bytes()).sum();
    let mut adapters = Adapters::new(slots, arguments.seed, &device);
    let job = Job {
        arguments: &arguments,
        batch: &batch,
        n_kept_blocks,
    };
    let (seconds, losses) = match arguments.new_tokens {
        0 => job.train(&mut decoder, &mut adapters)?,
        n_new => {
            adapters.attach(&mut decoder);
            (job.generate(&decoder, n_new)?, Vec::new())
        }
    };
    let mut sorted = seconds.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(json!({
        "side": "tooltune",
        "shape": arguments.shape.file_stem().map(|stem| stem.to_string_lossy()),
        "device": name.to_string(),
        "dtype": format!("{dtype:?}").to_lowercase(),
        "quantization": quantization.as_str(),
        "stack_bytes": stack_bytes,
        "tokens": batch.n_tokens(),
        "documents": arguments.documents,
        "parameters": shape.n_parameters(),
        "trainable": adapters.n_parameters(),
        "dropout": arguments.dropout,
        "new_tokens": arguments.new_tokens,
        "kept_blocks": n_kept_blocks,
        "blocks": shape.num_hidden_layers,
        "seconds": seconds,
        "tokens_per_second": batch.n_tokens() as f64 / sorted[sorted.len() / 2],
        "losses": losses,
        "peak_rss_bytes": tooltune::process::peak_rss_bytes(),
    }))
}

/// Weights with the initial standard deviation of a model, 0.02; norms of one, biases of zero.
struct RandomWeights {
    table: Vec<f32>,
    dtype: ComputeDtype,
    quantization: Quantization,
    device: Device,
}

impl RandomWeights {
    /// Values are repeated from one table, because billions of draws would take minutes. The table
    /// length is a prime, so no two rows of a weight are equal.
    fn new(seed: u64, dtype: ComputeDtype, quantization: Quantization, device: &Device) -> Self {
        const LENGTH: usize = 1_048_573;
        let mut random = SeededRandom::new(seed, 2);
        let half_width = 0.02 * 3f64.sqrt();
        let table = (0..LENGTH).map(|_| ((random.uniform_f64() * 2.0 - 1.0) * half_width) as f32);
        Self {
            table: table.collect(),
            dtype,
            quantization,
            device: device.clone(),
        }
    }

    fn weight(&self, shape: [usize; 2]) -> FrozenWeight {
        FrozenWeight::new(self.values(shape), shape, self.dtype, &self.device)
    }

    /// The weight of a stack of linear layers.
    fn stack(&self, shape: [usize; 2]) -> FrozenWeight {
        if self.quantization == Quantization::None {
            return self.weight(shape);
        }
        let weight = HostTensor {
            shape: shape.into(),
            values: self.values(shape),
        };
        let dtype = match self.dtype {
            ComputeDtype::F32 => FloatDtype::F32,
            ComputeDtype::Bf16 => FloatDtype::BF16,
        };
        let codes = Nf4Tensor::quantise(&weight, dtype, true).expect("finite values");
        let codes = vec![nf4_matrix(codes)];
        FrozenWeight::from_nf4(codes, shape, self.dtype, &self.device).expect("whole codes")
    }

    fn values(&self, shape: [usize; 2]) -> Vec<f32> {
        let n = shape[0] * shape[1];
        let mut values = Vec::with_capacity(n);
        while values.len() < n {
            let remaining = n - values.len();
            values.extend_from_slice(&self.table[..remaining.min(self.table.len())]);
        }
        values
    }

    /// Linear attention whose state decays over some hundred tokens.
    fn linear(&self, LinearShape { heads, kernel }: LinearShape, eps: f64) -> GatedDeltaNet {
        let head_shape = [1, heads.value_heads];
        let conv = self.weight([heads.width(), kernel]).to_tensor();
        GatedDeltaNet {
            heads,
            conv: conv.cast(DType::F32),
            rate: Tensor::full(head_shape, -0.01, &self.device),
            step_bias: Tensor::zeros(head_shape, &self.device),
            norm: GatedNorm {
                weight: Tensor::ones([heads.value_dim], &self.device),
                eps,
            },
        }
    }

    fn decoder(&self, shape: &DecoderConfig) -> Decoder {
        let norm = || Tensor::<1>::ones([shape.hidden_size], &self.device);
        let norms = |branch: BranchNorms| BranchNormWeights {
            before: branch.before.map(|_| norm()),
            after: branch.after.map(|_| norm()),
        };
        let spans: Vec<usize> = head_norm_spans(shape);
        let is_linear = |layer: usize| shape.layers[layer].mixer == Mixer::Linear;
        let family = shape.family;
        let block = |layer: usize| Block {
            attention_norms: norms(family.norms.attention),
            feed_forward_norms: norms(family.norms.feed_forward),
            linear: shape
                .linear
                .filter(|_| is_linear(layer))
                .map(|linear| self.linear(linear, shape.rms_norm_eps)),
            head_norm: (!spans.is_empty() && !is_linear(layer)).then(|| SpanNorm {
                weight: Tensor::ones([spans.iter().sum::<usize>()], &self.device),
                spans: spans.clone().into(),
                eps: shape.rms_norm_eps,
            }),
            kind: shape.layers[layer],
            projections: shape.projections(layer),
            stacks: [0, 1, 2, 3].map(|number| {
                let stack = shape.projections(layer).stacks[number].clone();
                let features = |i: usize| projection_features(shape, layer, i);
                let (in_features, _) = features(stack.start);
                let biased = has_bias(shape, layer, number);
                let out_features: Vec<usize> = stack.map(|i| features(i).1).collect();
                let outputs = out_features.iter().sum();
                StackedLinear {
                    weight: self.stack([outputs, in_features]),
                    bias: biased.then(|| Tensor::zeros([outputs], &self.device)),
                    out_features: out_features.into(),
                    adapter: None,
                }
            }),
            unread: false,
        };
        let embed_tokens = self.weight([shape.vocab_size, shape.hidden_size]);
        let lm_head = if shape.tie_word_embeddings {
            embed_tokens.clone()
        } else {
            self.weight([shape.vocab_size, shape.hidden_size])
        };
        Decoder {
            config: shape.clone(),
            embed_tokens,
            blocks: (0..shape.num_hidden_layers).map(block).collect(),
            norm: norm(),
            lm_head,
            trained: TrainedMatrices::default(),
        }
    }
}

/// `train.gradient_checkpointing` for a number of kept blocks, or for "auto".
fn setting(kept_blocks: &str) -> Result<GradientCheckpointing, Failure> {
    match (kept_blocks, kept_blocks.parse()) {
        ("auto", _) => Ok(GradientCheckpointing::Mode(CheckpointingMode::Auto)),
        (_, Ok(n)) => Ok(GradientCheckpointing::KeepBlocks(n)),
        (text, Err(_)) => {
            Err(format!("--kept-blocks {text}: expected auto or a number of blocks").into())
        }
    }
}

fn every_linear_layer(arguments: &Arguments) -> LoraConfig {
    let r = arguments.rank;
    LoraConfig {
        r,
        lora_alpha: 2.0 * r as f64,
        lora_dropout: arguments.dropout,
        ..LoraConfig::default()
    }
}

fn random_batch(arguments: &Arguments, vocab_size: usize) -> Result<MicroBatch, Failure> {
    let mut random = SeededRandom::new(arguments.seed, 1);
    let mut token = || (random.uniform_f64() * vocab_size as f64) as u32;
    let documents: Vec<Vec<u32>> = (0..arguments.documents)
        .map(|_| (0..arguments.length).map(|_| token()).collect())
        .collect();
    let weights = vec![1.0; arguments.length];
    let examples: Vec<Example> = documents
        .iter()
        .map(|input_ids| Example {
            id: "random",
            input_ids,
            loss_weights: &weights,
        })
        .collect();
    Ok(collate(&examples, Padding::None)?)
}

/// Inputs that are the same in each step.
struct Job<'a> {
    arguments: &'a Arguments,
    batch: &'a MicroBatch,
    n_kept_blocks: usize,
}

impl Job<'_> {
    /// Seconds of the timed steps. Each step generates the new tokens of all documents.
    fn generate(&self, decoder: &Decoder, n_new: usize) -> Result<Vec<f64>, Failure> {
        let prompts: Vec<Vec<u32>> = self
            .batch
            .input_ids
            .chunks(self.arguments.length)
            .map(<[u32]>::to_vec)
            .collect();
        // No token ends a text.
        let options = GenerationOptions::greedy(n_new, prompts.len(), Vec::new());
        let mut seconds = Vec::new();
        for step in 0..self.arguments.warmup + self.arguments.steps {
            let started = Instant::now();
            let texts = generate(decoder, &prompts, &options, &mut |_| true)?;
            let lengths = texts.iter().flatten().map(|text| text.ids.len());
            let n_written: usize = lengths.sum();
            if n_new * prompts.len() != n_written {
                return Err(format!("step {step}: {n_written} new tokens").into());
            }
            if step >= self.arguments.warmup {
                seconds.push(started.elapsed().as_secs_f64());
            }
        }
        Ok(seconds)
    }

    /// Seconds of the timed steps and losses of all steps, with the settings of a run.
    fn train(
        &self,
        decoder: &mut Decoder,
        adapters: &mut Adapters,
    ) -> Result<(Vec<f64>, Vec<f64>), Failure> {
        let adamw = AdamW {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        };
        let mut optimizer = Optimizer::new(adamw, 1.0, &adapters.flat);
        let device = decoder.device();
        let rate = DropoutRate::new(self.arguments.dropout);
        let gradient_scale = 1.0 / self.batch.sum_loss_weights();
        let (mut seconds, mut losses) = (Vec::new(), Vec::new());
        for step in 0..self.arguments.warmup + self.arguments.steps {
            let options = BackwardOptions {
                gradient_scale,
                dropout: rate
                    .map(|rate| DropoutKey::new(rate, self.arguments.seed, step as u64 + 1, 0)),
                noise: None,
                n_kept_blocks: self.n_kept_blocks,
                chunk_rows: loss_rows(&device),
                distillation: None,
            };
            device.sync()?;
            let started = Instant::now();
            adapters.attach(decoder);
            let part = backward::backward(decoder, &adapters.slots, self.batch, options)?;
            let loss = part.loss_sum * gradient_scale;
            let outcome = optimizer.step(&mut adapters.flat, part.gradient, loss, 1e-4);
            device.sync()?;
            if let StepOutcome::NonFinite { grad_norm } = outcome {
                return Err(format!("step {step}: loss {loss}, gradient norm {grad_norm}").into());
            }
            losses.push(loss);
            if step >= self.arguments.warmup {
                seconds.push(started.elapsed().as_secs_f64());
            }
        }
        if seconds.is_empty() {
            Err("--steps must be at least 1".into())
        } else {
            Ok((seconds, losses))
        }
    }
}
