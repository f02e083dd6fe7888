//! Rotary embedding in plain tensor operations.

use burn::tensor::Tensor;

use super::RopeTable;

/// The contract is [`super::rope`]'s.
pub fn rope(x: Tensor<3>, table: &RopeTable) -> Tensor<3> {
    let half = x.dims()[2] / 2;
    let first = x.clone().narrow(2, 0, half);
    let second = x.narrow(2, half, half);
    let (cos, sin) = (table.cos.clone(), table.sin.clone());
    let turned_first = first
        .clone()
        .mul(cos.clone())
        .sub(second.clone().mul(sin.clone()));
    let turned_second = second.mul(cos).add(first.mul(sin));
    Tensor::cat(vec![turned_first, turned_second], 2)
}
