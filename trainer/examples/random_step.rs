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

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor, bf16};
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
use tooltune::models::load::{
    FrozenWeights, Quantization, has_bias, head_norm_spans, projection_features,
};
use tooltune::models::{Decoder, DecoderConfig};
use tooltune::optim::{BackwardOptions, Optimizer, StepOutcome, backward};
use tooltune::process::cpu_seconds;
use tooltune::recipes::kept_blocks::{DoraActivations, KeptBlocks, RunShape};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_kernels::frozen_weight::quantised::{BLOCK, NESTED_BLOCK, Nf4};
use tooltune_kernels::gradient_sum::GradientSum;
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
    /// How the frozen linear layers are stored: none, or nf4 with random codes.
    #[arg(long, default_value = "none")]
    quantization: String,
    /// Where the frozen linear layers are: resident, or host.
    #[arg(long, default_value = "resident")]
    frozen_weights: String,
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
    /// Number of last blocks that keep their activations instead of recomputing them, auto for the
    /// number that a run would choose, or offload for none, with block inputs in host memory.
    #[arg(long, default_value = "auto")]
    kept_blocks: String,
    /// Micro-batches per step, all of the same documents.
    #[arg(long, default_value = "1", conflicts_with = "new_tokens")]
    micro_batches: NonZeroUsize,
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
    let frozen_weights = match arguments.frozen_weights.as_str() {
        "resident" => FrozenWeights::Resident,
        "host" => FrozenWeights::Host,
        other => return Err(format!("--frozen-weights {other}: expected resident or host").into()),
    };
    let batch = random_batch(&arguments, shape.vocab_size)?;
    let slots = every_linear_layer(&arguments).slots(&shape)?;
    let run = RunShape {
        setting: setting(&arguments.kept_blocks)?,
        model: &shape,
        n_adapter: slots.iter().map(|slot| slot.len()).sum(),
        compute_dtype: dtype,
        quantization,
        frozen_weights,
        n_node_ranks: 1,
        dora_activations: DoraActivations::None,
    };
    let n_kept_blocks = KeptBlocks::new(run, &device).count(batch.n_tokens());
    let weights = RandomWeights::new(&arguments, dtype, (quantization, frozen_weights), &device);
    let mut decoder = weights.decoder(&shape)?;
    drop(weights);
    let stacks = decoder.blocks.iter().flat_map(|block| &block.stacks);
    let stack_bytes: usize = stacks.map(|stack| stack.weight.bytes()).sum();
    let mut adapters = Adapters::new(slots, arguments.seed, &device);
    let job = Job {
        arguments: &arguments,
        batch: &batch,
        n_kept_blocks,
    };
    let (
        Times {
            seconds,
            cpu_seconds,
        },
        losses,
    ) = match arguments.new_tokens {
        0 => job.train(&mut decoder, &mut adapters)?,
        n_new => {
            adapters.attach(&mut decoder);
            (job.generate(&decoder, n_new)?, Vec::new())
        }
    };
    let n_tokens = arguments.micro_batches.get() * batch.n_tokens();
    let mut sorted = seconds.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(json!({
        "side": "tooltune",
        "shape": arguments.shape.file_stem().map(|stem| stem.to_string_lossy()),
        "device": name.to_string(),
        "dtype": format!("{dtype:?}").to_lowercase(),
        "quantization": quantization.as_str(),
        "stack_bytes": stack_bytes,
        "tokens": n_tokens,
        "documents": arguments.documents,
        "micro_batches": arguments.micro_batches,
        "parameters": shape.n_parameters(),
        "trainable": adapters.n_parameters(),
        "dropout": arguments.dropout,
        "frozen_weights": arguments.frozen_weights,
        "new_tokens": arguments.new_tokens,
        "kept_blocks": n_kept_blocks,
        "blocks": shape.num_hidden_layers,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "tokens_per_second": n_tokens as f64 / sorted[sorted.len() / 2],
        "losses": losses,
        "peak_rss_bytes": tooltune::process::peak_rss_bytes(),
    }))
}

/// Weights with the initial standard deviation of a model, 0.02; norms of one, biases of zero.
struct RandomWeights {
    table: Vec<bf16>,
    /// Random bytes, if the linear layers are quantised.
    codes: Option<Vec<u8>>,
    are_in_host_memory: bool,
    dtype: ComputeDtype,
    device: Device,
}

impl RandomWeights {
    /// Values are repeated from one table, because billions of draws would take minutes. The table
    /// length is a prime, so no two rows of a weight are equal.
    fn new(
        arguments: &Arguments,
        dtype: ComputeDtype,
        (quantization, frozen_weights): (Quantization, FrozenWeights),
        device: &Device,
    ) -> Self {
        const LENGTH: usize = 1_048_573;
        let mut random = SeededRandom::new(arguments.seed, 2);
        let random_byte = |_| (random.uniform_f64() * 256.0) as u8;
        let codes = (quantization == Quantization::Nf4).then(|| (0..LENGTH).map(random_byte));
        let codes = codes.map(Iterator::collect);
        let half_width = 0.02 * 3f64.sqrt();
        let value = |_| bf16::from_f64((random.uniform_f64() * 2.0 - 1.0) * half_width);
        let table = (0..LENGTH).map(value);
        Self {
            table: table.collect(),
            codes,
            are_in_host_memory: frozen_weights == FrozenWeights::Host,
            dtype,
            device: device.clone(),
        }
    }

    /// The weight of layers `[out, in]` that share an input.
    fn stack(&self, out_features: &[usize], in_features: usize) -> Result<FrozenWeight, Failure> {
        let shape = [out_features.iter().sum(), in_features];
        let weight = match &self.codes {
            Some(bytes) => {
                let parts = out_features.iter();
                let parts = parts.map(|&outputs| random_nf4(bytes, [outputs, in_features]));
                FrozenWeight::from_nf4(parts.collect(), shape, self.dtype, &self.device)?
            }
            None => self.weight(shape),
        };
        if !self.are_in_host_memory {
            return Ok(weight);
        }
        Ok(weight.into_host_memory()?)
    }

    fn weight(&self, shape: [usize; 2]) -> FrozenWeight {
        match self.dtype {
            ComputeDtype::F32 => {
                let n = shape[0] * shape[1];
                let values = self.table.iter().cycle().take(n).map(|x| x.to_f32());
                FrozenWeight::new(values.collect(), shape, self.dtype, &self.device)
            }
            ComputeDtype::Bf16 => {
                let Ok(weight) = FrozenWeight::from_fill(shape, &self.device, |start, to| {
                    self.fill(start, to);
                    Ok::<(), Infallible>(())
                });
                weight
            }
        }
    }

    /// Writes the values that follow each other from index `start` of the repeated table.
    fn fill(&self, start: usize, mut to: &mut [bf16]) {
        let mut from = &self.table[start % self.table.len()..];
        while !to.is_empty() {
            let n = from.len().min(to.len());
            let (first, rest) = std::mem::take(&mut to).split_at_mut(n);
            first.copy_from_slice(&from[..n]);
            (from, to) = (&self.table, rest);
        }
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

    fn decoder(&self, shape: &DecoderConfig) -> Result<Decoder, Failure> {
        let norm = || Tensor::<1>::ones([shape.hidden_size], &self.device);
        let norms = |branch: BranchNorms| BranchNormWeights {
            before: branch.before.map(|_| norm()),
            after: branch.after.map(|_| norm()),
        };
        let spans: Vec<usize> = head_norm_spans(shape);
        let is_linear = |layer: usize| shape.layers[layer].mixer == Mixer::Linear;
        let family = shape.family;
        let stack = |layer: usize, number: usize| -> Result<StackedLinear, Failure> {
            let stack = shape.projections(layer).stacks[number].clone();
            let features = |i: usize| projection_features(shape, layer, i);
            let (in_features, _) = features(stack.start);
            let out_features: Vec<usize> = stack.map(|i| features(i).1).collect();
            let outputs = out_features.iter().sum::<usize>();
            Ok(StackedLinear {
                weight: self.stack(&out_features, in_features)?,
                bias: has_bias(shape, layer, number)
                    .then(|| Tensor::zeros([outputs], &self.device)),
                out_features: out_features.into(),
                adapter: None,
            })
        };
        let block = |layer: usize| -> Result<Block, Failure> {
            Ok(Block {
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
                stacks: [
                    stack(layer, 0)?,
                    stack(layer, 1)?,
                    stack(layer, 2)?,
                    stack(layer, 3)?,
                ],
                unread: false,
            })
        };
        let embed_tokens = self.weight([shape.vocab_size, shape.hidden_size]);
        let lm_head = if shape.tie_word_embeddings {
            embed_tokens.clone()
        } else {
            self.weight([shape.vocab_size, shape.hidden_size])
        };
        let blocks = (0..shape.num_hidden_layers).map(block);
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        if self.are_in_host_memory {
            let stacks = blocks.iter().map(|block| block.stacks.iter());
            let weights = stacks.map(|stacks| stacks.map(|stack| &stack.weight).collect());
            tooltune_kernels::host_memory::stream_blocks(weights);
        }
        Ok(Decoder {
            config: shape.clone(),
            embed_tokens,
            blocks,
            norm: norm(),
            lm_head,
            trained: TrainedMatrices::default(),
            node: None,
        })
    }
}

/// A matrix in NF4 with random codes, and values of about the same size as without quantisation.
/// The bytes are repeated.
fn random_nf4(bytes: &[u8], shape: [usize; 2]) -> Nf4 {
    let repeated = |n: usize| {
        let mut all = Vec::with_capacity(n);
        while all.len() < n {
            all.extend_from_slice(&bytes[..bytes.len().min(n - all.len())]);
        }
        all
    };
    let n_values = shape[0] * shape[1];
    let n_blocks = n_values.div_ceil(BLOCK);
    Nf4 {
        shape,
        codes: repeated(n_values.div_ceil(2)),
        absmax8: repeated(n_blocks),
        // Absmax values from 0.03 to 0.06.
        absmax32: vec![0.03; n_blocks.div_ceil(NESTED_BLOCK)],
        offset: 0.03,
        map: Box::new(std::array::from_fn(|i| i as f32 / 255.0)),
        dtype: DType::BF16,
    }
}

/// `train.gradient_checkpointing` for a number of kept blocks, or for "auto".
fn setting(kept_blocks: &str) -> Result<GradientCheckpointing, Failure> {
    match (kept_blocks, kept_blocks.parse()) {
        ("auto", _) => Ok(GradientCheckpointing::Mode(CheckpointingMode::Auto)),
        ("offload", _) => Ok(GradientCheckpointing::Mode(CheckpointingMode::Offload)),
        (_, Ok(n)) => Ok(GradientCheckpointing::KeepBlocks(n)),
        (text, Err(_)) => {
            Err(format!("--kept-blocks {text}: expected auto, offload or a number").into())
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

/// Seconds of the timed steps, and CPU seconds of all threads, which hardly depend on other programs.
#[derive(Default)]
struct Times {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
}

impl Times {
    /// Adds the times since `started`, when the process had used `cpu_started` CPU seconds.
    fn push(&mut self, started: Instant, cpu_started: f64) {
        self.seconds.push(started.elapsed().as_secs_f64());
        self.cpu_seconds.push(cpu_seconds() - cpu_started);
    }
}

/// Inputs that are the same in each step.
struct Job<'a> {
    arguments: &'a Arguments,
    batch: &'a MicroBatch,
    n_kept_blocks: usize,
}

impl Job<'_> {
    /// Times of the timed steps. Each step generates the new tokens of all documents.
    fn generate(&self, decoder: &Decoder, n_new: usize) -> Result<Times, Failure> {
        let prompts: Vec<Vec<u32>> = self
            .batch
            .input_ids
            .chunks(self.arguments.length)
            .map(<[u32]>::to_vec)
            .collect();
        // No token ends a text.
        let options = GenerationOptions::greedy(n_new, prompts.len(), Vec::new());
        let mut times = Times::default();
        for step in 0..self.arguments.warmup + self.arguments.steps {
            let (started, cpu_started) = (Instant::now(), cpu_seconds());
            let texts = generate(decoder, &prompts, &options, &mut |_| true)?;
            let lengths = texts.iter().flatten().map(|text| text.ids.len());
            let n_written: usize = lengths.sum();
            if n_new * prompts.len() != n_written {
                return Err(format!("step {step}: {n_written} new tokens").into());
            }
            if step >= self.arguments.warmup {
                times.push(started, cpu_started);
            }
        }
        Ok(times)
    }

    /// Times of the timed steps and losses of all steps, with the settings of a run.
    fn train(
        &self,
        decoder: &mut Decoder,
        adapters: &mut Adapters,
    ) -> Result<(Times, Vec<f64>), Failure> {
        let adamw = AdamW {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        };
        let mut optimizer = Optimizer::new(adamw, 1.0, &adapters.flat);
        let device = decoder.device();
        let rate = DropoutRate::new(self.arguments.dropout);
        let n_parts = self.arguments.micro_batches.get();
        let gradient_scale = 1.0 / (n_parts as f64 * self.batch.sum_loss_weights());
        let (mut times, mut losses) = (Times::default(), Vec::new());
        for step in 0..self.arguments.warmup + self.arguments.steps {
            let key = |part: usize| {
                let (seed, step) = (self.arguments.seed, step as u64 + 1);
                rate.map(|rate| DropoutKey::new(rate, seed, step, part))
            };
            let options = |part: usize| BackwardOptions {
                gradient_scale,
                dropout: key(part),
                noise: None,
                n_kept_blocks: self.n_kept_blocks,
                offloads_inputs: self.arguments.kept_blocks == "offload",
                chunk_rows: loss_rows(&device),
                distillation: None,
            };
            device.sync()?;
            let (started, cpu_started) = (Instant::now(), cpu_seconds());
            adapters.attach(decoder);
            let mut sum = GradientSum::new(adapters.n_parameters(), n_parts);
            let mut loss = 0.0;
            for i in 0..n_parts {
                let slots = &adapters.slots;
                let part = backward::backward(decoder, slots, self.batch, options(i))?;
                loss += part.loss_sum * gradient_scale;
                sum.add(part.gradient);
            }
            let gradient = sum.finish::<Failure>(&adapters.flat, None)?;
            let outcome = optimizer.step(&mut adapters.flat, gradient, loss, 1e-4);
            device.sync()?;
            if let StepOutcome::NonFinite { grad_norm } = outcome {
                return Err(format!("step {step}: loss {loss}, gradient norm {grad_norm}").into());
            }
            losses.push(loss);
            if step >= self.arguments.warmup {
                times.push(started, cpu_started);
            }
        }
        if times.seconds.is_empty() {
            Err("--steps must be at least 1".into())
        } else {
            Ok((times, losses))
        }
    }
}
