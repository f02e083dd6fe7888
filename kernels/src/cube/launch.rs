//! Converts tensors to launch arguments, and element counts to cube counts.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::{BufferArg, CubeCount, CubeDim};
use cubecl::server::CubeCountSelection;

/// Default units per cube.
pub(crate) const UNITS: u32 = 256;

/// The contiguous tensor and its dimensions.
pub(crate) fn contiguous<const D: usize>(x: CubeTensor) -> (CubeTensor, [usize; D]) {
    let x = into_contiguous(x);
    let dims = x.meta.shape().iter().copied().collect::<Vec<_>>();
    let dims = dims
        .try_into()
        .expect("the caller passes a tensor of this rank");
    (x, dims)
}

/// Uninitialised memory for a result on the device of `like`.
pub(crate) fn output<const D: usize>(
    like: &CubeTensor,
    shape: [usize; D],
    dtype: DType,
) -> CubeTensor {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, Shape::new(shape), dtype)
}

/// Uploads values to the device of `like`.
pub(crate) fn upload(like: &CubeTensor, numbers: &[u32]) -> CubeTensor {
    let handle = like.client.create_from_slice(bytes_of(numbers));
    let shape = Shape::new([numbers.len()]);
    let (client, device) = (like.client.clone(), like.device.clone());
    CubeTensor::new_contiguous(client, device, shape, handle, DType::U32)
}

/// The tensor as a launch argument; the caller keeps it.
pub(crate) fn argument(x: &CubeTensor) -> BufferArg {
    x.clone().into_buffer_arg()
}

/// Whether tensor cores multiply 16 × 16 tiles of this type with f32 accumulation.
pub(crate) fn has_cores_for(client: &Client, element: ElemType) -> bool {
    let products = MmaConfig {
        a_type: element,
        b_type: element,
        cd_type: ElemType::Float(FloatKind::F32),
        m: 16,
        n: 16,
        k: 16,
    };
    client.properties().features.matmul.cmma.contains(&products)
}

/// Element type of a tensor.
pub(crate) fn element(x: &CubeTensor) -> ElemType {
    dtype_to_elem_type(x.dtype)
}

/// Vector size: the largest number of elements that divides all `widths`, at most `limit`.
pub(crate) fn vector_size(limit: usize, widths: &[usize]) -> usize {
    [8, 4, 2]
        .into_iter()
        .find(|&size| size <= limit && widths.iter().all(|width| width % size == 0))
        .unwrap_or(1)
}

/// At least `n` cubes, within the device's limits per dimension.
pub(crate) fn cubes(client: &Client, n: usize) -> CubeCount {
    let n = u32::try_from(n).expect("fewer than 2^32 cubes per launch");
    CubeCountSelection::new(client, n).cube_count()
}

/// Cubes of [`UNITS`] units for `n` units of work.
pub(crate) fn units(client: &Client, n: usize) -> (CubeCount, CubeDim) {
    let count = cubes(client, n.div_ceil(UNITS as usize));
    (count, CubeDim::new_1d(UNITS))
}

fn bytes_of(numbers: &[u32]) -> &[u8] {
    // SAFETY: every byte of a `u32` is initialised, and `u8` has no alignment requirement.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
