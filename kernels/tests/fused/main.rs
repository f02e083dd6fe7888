//! Every fused operation against its reference: values, all gradients, special values, threads.

mod attention;
mod decode;
mod elementwise;
mod finite_differences;
mod gemm;
mod linear_cross_entropy;
mod lora_linear;
mod second_order;
mod support;
