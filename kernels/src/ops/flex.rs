//! The fused operations for tensors in the memory of the CPU: unwraps tensors to slices.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;

use super::{Adapted, KernelGradients, KernelOps};
use crate::cpu::buffer::{contiguous, dims, floats, tensor};
use crate::cpu::matrix::Matrix;
use crate::lora_linear::cpu::{self as lora, Factors};

fn matrix(x: &FlexTensor) -> Matrix<'_> {
    let [rows, columns] = dims(x);
    Matrix::strided(floats(x), [rows, columns], columns)
}

impl KernelOps for Flex {
    fn frozen_linear(x: FlexTensor, weight: FlexTensor) -> FlexTensor {
        let (x, weight) = (contiguous(x), contiguous(weight));
        let shape = [dims::<2>(&x)[0], dims::<2>(&weight)[0]];
        tensor(lora::linear(matrix(&x), matrix(&weight)), shape)
    }

    fn lora_linear(
        x: FlexTensor,
        weight: FlexTensor,
        a: FlexTensor,
        b: FlexTensor,
        scaling: f32,
    ) -> FlexTensor {
        let low = Self::low_rank(x.clone(), a, scaling);
        Self::adapted(x, weight, low, b)
    }

    fn lora_linear_dropped(
        x: FlexTensor,
        input: FlexTensor,
        weight: FlexTensor,
        a: FlexTensor,
        b: FlexTensor,
        scaling: f32,
    ) -> FlexTensor {
        Self::adapted(x, weight, Self::low_rank(input, a, scaling), b)
    }
}

impl KernelGradients for Flex {
    fn low_rank(x: FlexTensor, a: FlexTensor, scaling: f32) -> FlexTensor {
        let (x, a) = (contiguous(x), contiguous(a));
        let shape = [dims::<2>(&x)[0], dims::<2>(&a)[0]];
        tensor(lora::low_rank(matrix(&x), matrix(&a), scaling), shape)
    }

    fn adapted(x: FlexTensor, weight: FlexTensor, low: FlexTensor, b: FlexTensor) -> FlexTensor {
        let [x, weight, low, b] = [x, weight, low, b].map(contiguous);
        let shape = [dims::<2>(&x)[0], dims::<2>(&weight)[0]];
        tensor(
            lora::adapted(matrix(&x), matrix(&weight), matrix(&low), matrix(&b)),
            shape,
        )
    }

    fn factor_gradients(saved: Adapted<Self>, dy: FlexTensor) -> [FlexTensor; 3] {
        let Adapted {
            input,
            low,
            a,
            b,
            scaling,
        } = saved;
        let [input, low, a, b, dy] = [input, low, a, b, dy].map(contiguous);
        let shapes = [dims::<2>(&low), dims(&a), dims(&b)];
        let factors = Factors {
            b: matrix(&b),
            scaling,
        };
        let gradients = lora::factor_gradients(matrix(&input), matrix(&low), factors, matrix(&dy));
        [
            tensor(gradients.d_low, shapes[0]),
            tensor(gradients.d_a, shapes[1]),
            tensor(gradients.d_b, shapes[2]),
        ]
    }

    fn linear_dx(
        dy: FlexTensor,
        weight: FlexTensor,
        low: Option<(FlexTensor, FlexTensor)>,
    ) -> FlexTensor {
        let (dy, weight) = (contiguous(dy), contiguous(weight));
        let low = low.map(|(d_low, a)| (contiguous(d_low), contiguous(a)));
        let shape = [dims::<2>(&dy)[0], dims::<2>(&weight)[1]];
        let mut products = vec![(matrix(&dy), matrix(&weight))];
        products.extend(low.iter().map(|(d_low, a)| (matrix(d_low), matrix(a))));
        tensor(lora::input_gradient(&products), shape)
    }
}
