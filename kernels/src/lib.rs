//! Functions from tensors to tensors: the operations of a decoder, its loss and its optimizer.
//!
//! Each operation has a folder: `mod.rs` has the public function and its contract, `reference.rs`
//! the same function in plain tensor operations, against which every faster path is tested. Every
//! weight keeps the layout of its checkpoint, `[out_features, in_features]`, so that loading,
//! training and saving never transpose.
//!
//! Gradients are first-order only: the results of a backward pass are not part of an autodiff
//! graph. Calling `backward` on a value computed only from gradients, such as a gradient penalty,
//! fails in Burn with "Tensor::backward requires a tracked autodiff tensor". There is no option for
//! second-order gradients, and they are never silently zero.
//!
//! Shape letters: `n` tokens of all documents of a micro-batch, `d` hidden size, `h` query heads,
//! `g` key/value heads, `c` head size, `r` LoRA rank, `v` vocabulary.
//!
//! ```
//! use burn::tensor::{DType, Device, Tensor};
//! use tooltune_kernels::rms_norm::rms_norm;
//!
//! let device = Device::flex();
//! let x = Tensor::<2>::from_data([[3.0, 4.0]], &device);
//! let weight = Tensor::<1>::from_data([1.0, 2.0], &device);
//! // The root mean square of 3 and 4 is the root of 12.5.
//! let y = rms_norm(x, &weight, 0.0, DType::F32).into_data().to_vec::<f32>().expect("floats");
//! let rms = 12.5_f32.sqrt();
//! assert!((y[0] - 3.0 / rms).abs() < 1e-6 && (y[1] - 8.0 / rms).abs() < 1e-6);
//! ```

pub mod adamw;
pub mod attention;
pub mod backward_with_gradient;
pub mod causal_conv;
#[cfg(feature = "cuda")]
mod choice_cache;
pub mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
#[cfg(feature = "cuda")]
mod cublaslt;
#[cfg(feature = "cuda")]
mod cudnn;
pub mod dense;
mod device_integers;
pub mod dropout;
mod dropout_key;
pub mod embedding;
pub mod frozen_weight;
pub mod gated_delta;
pub mod gated_delta_net;
pub mod gated_norm;
pub mod geglu;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod gradient_sum;
pub mod head_norm;
pub mod host_memory;
pub mod layer_norm;
pub mod linear_cross_entropy;
pub mod lora_linear;
pub mod masked_argmax;
mod maybe;
pub mod mpi;
#[cfg(feature = "cuda")]
pub mod nccl;
pub mod node_memory;
pub mod nvidia;
#[cfg(feature = "cuda")]
mod on_stream;
#[cfg(unix)]
mod open_library;
pub mod profile;
pub mod query_gate;
pub mod recording;
pub mod rms_norm;
pub mod rope;
mod route;
pub mod select_rows;
pub mod swiglu;
mod with_backward;

pub use adamw::{AdamW, AdamWState};
pub use attention::{Causality, Columns, DeviceColumns, Documents, PromptPositions, Queries};
pub use cpu::isa::instruction_set;
pub use dense::Dense;
pub use device_integers::DeviceIntegers;
pub use dropout::Dropout;
pub use dropout_key::{DropoutKey, DropoutRate};
pub use frozen_weight::{ComputeDtype, FrozenWeight, WeightSource};
pub use gated_delta::{DeltaHeads, DeltaInputs};
pub use gated_delta_net::{DeltaParts, GatedDeltaNet};
pub use gated_norm::GatedNorm;
pub use head_norm::SpanNorm;
pub use linear_cross_entropy::distilled::Distillation;
pub use linear_cross_entropy::{LossAndGradient, Supervision};
pub use lora_linear::{AdapterLayout, AdapterPart, Magnitudes, StackedAdapter, StackedLinear};
pub use query_gate::GatedHeads;
pub use rope::RopeTable;
pub use route::{is_cpu, multiplies_bf16};
pub use select_rows::RowIndices;
