//! Operations that work row by row or element by element.

use burn::tensor::DType;
use tooltune_kernels::rms_norm;

use crate::support::{Numbers, assert_near, device_values, gradients, leaf, values};

/// Single tokens and elements, widths that no vector divides, and rows longer than a cube.
const ROWS: [[usize; 2]; 7] = [
    [1, 1],
    [3, 7],
    [1, 64],
    [5, 130],
    [33, 576],
    [2, 1028],
    [300, 12],
];

#[test]
fn rms_norm_and_its_gradient_agree_with_the_reference() {
    let mut numbers = Numbers::new(1);
    for shape in ROWS {
        let (x, x_device) = numbers.pair(shape);
        let (weight, weight_device) = numbers.pair([shape[1]]);
        let (dy, dy_device) = numbers.pair(shape);
        let y = rms_norm::cuda::rms_norm(x_device.clone(), weight_device.clone(), 1e-5, DType::F32);
        let dx = rms_norm::cuda::rms_norm_dx(x_device, weight_device, 1e-5, dy_device);

        let x = leaf(&x);
        let weight = burn::tensor::Tensor::from_inner(weight);
        let expected = rms_norm::reference::rms_norm(x.clone(), &weight, 1e-5);
        let found = gradients(expected.clone(), &dy);
        let name = format!("{shape:?}");
        assert_near(&name, &device_values(y), &values(expected.inner()));
        assert_near(&name, &device_values(dx), &values(x.grad(&found).unwrap()));
    }
}
