//! RMSNorm for tensors in CPU memory, and its backward pass for any backend.

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;

use super::{RmsNormGradients, RmsNormOps, cpu};
use crate::cpu::buffer::{contiguous, dims, floats, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

impl RmsNormOps for Flex {
    fn frozen_rms_norm(x: FlexTensor, weight: FlexTensor, eps: f32, output: DType) -> FlexTensor {
        let (x, weight) = (contiguous(x), contiguous(weight));
        let (x_floats, weight) = (floats(&x), floats(&weight));
        with_element_type!(output, T => {
            tensor(cpu::rms_norm::<T>(x_floats, weight, eps), dims::<2>(&x))
        })
    }
}

impl RmsNormGradients for Flex {
    fn rms_norm_gradient(
        x: FlexTensor,
        weight: FlexTensor,
        eps: f32,
        dy: FlexTensor,
    ) -> FlexTensor {
        let [x, weight, dy] = [x, weight, dy].map(contiguous);
        let (x_floats, weight) = (floats(&x), floats(&weight));
        let dx = with_element_type!(dy.dtype(), T => {
            cpu::rms_norm_gradient::<T>(x_floats, weight, numbers(&dy), eps)
        });
        tensor(dx, dims::<2>(&x))
    }
}

impl<B: RmsNormGradients, C: CheckpointStrategy> RmsNormOps for Autodiff<B, C> {
    fn frozen_rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        eps: f32,
        output: DType,
    ) -> FloatTensor<Self> {
        let inputs = [x.node()];
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let y = B::frozen_rms_norm(x.clone(), weight.clone(), eps, output);
        with_backward::<B, C, _, _>(inputs, y, move |dy, _| {
            crate::operation!("rms_norm backward");
            [Some(B::rms_norm_gradient(x, weight, eps, dy))]
        })
    }
}
