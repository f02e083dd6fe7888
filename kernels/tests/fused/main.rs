//! Every fused operation against its reference: values, all gradients, special values, threads.

mod adamw;
mod attention;
#[path = "../backend/mod.rs"]
mod backend;
#[path = "../../../tests/support/bounds.rs"]
mod bounds;
mod decode;
mod distilled;
mod elementwise;
mod embedding;
mod finite_differences;
mod frozen_weight;
mod gated_delta;
mod gemm;
mod gradient_sum;
mod linear_cross_entropy;
mod lora_linear;
mod magnitudes;
mod not_finite;
#[path = "../support/numbers.rs"]
mod numbers;
mod quantised;
mod random_shapes;
mod second_order;
mod shapes;
mod support;
#[path = "../../../tests/support/test_device.rs"]
mod test_device;
mod trained;
