//! Matmuls by NVIDIA's cuBLASLt, queued on CubeCL's CUDA stream between its launches.
//!
//! Burn's matmuls are NVRTC kernels with one pipeline stage and no asynchronous copies; cuBLASLt's
//! kernels are tuned by NVIDIA for each GPU. The library is loaded at run time and selects an
//! algorithm once per shape, and again if it rejects the one cached on disk. If it is missing or
//! has no algorithm, callers use Burn's matmuls.

mod descriptors;
mod matrix;

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use burn::backend::{DType, StreamId};
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_common::device::ServiceId;
use cubecl_server::driver::DriverError;

use crate::cube::launch::output;
use crate::gpu::Library;
use crate::on_stream::{Asked, is_cuda, on_stream};
use descriptors::{Algorithm, ProductShape};
pub(crate) use matrix::Matrix;

/// Workspace size available to algorithms: NVIDIA's recommendation for its newest GPUs.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Environment variable; `0` disables cuBLASLt, so that NVRTC kernels compute all products.
pub(crate) const SWITCH: &str = "TOOLTUNE_CUBLASLT";

/// Whether cuBLASLt products are available for tensors of this client.
pub(crate) fn is_served(client: &Client) -> bool {
    static IS_FOUND: LazyLock<bool> = LazyLock::new(|| Library::CublasLt.is_enabled(SWITCH));
    is_cuda(client) && *IS_FOUND
}

/// `d = alpha * a b + c + bias`, accumulated in f32 and rounded once.
#[derive(Clone)]
pub(crate) struct Product {
    /// Scale of the product.
    pub(crate) alpha: f32,
    /// `[m, k]`.
    pub(crate) a: Matrix,
    /// `[k, n]`, with the dtype of `a`.
    pub(crate) b: Matrix,
    /// `[m, n]`, with the dtype of `d`; may be `d` itself.
    pub(crate) c: Option<Matrix>,
    /// `[n]`, with the dtype of `d`.
    pub(crate) bias: Option<CubeTensor>,
    /// `[m, n]`: f32 or the dtype of `a`, on the stream of the calling thread.
    pub(crate) d: Matrix,
}

impl Product {
    /// `d = a b`.
    pub(crate) fn new(a: Matrix, b: Matrix, d: Matrix) -> Self {
        Self {
            alpha: 1.0,
            a,
            b,
            c: None,
            bias: None,
            d,
        }
    }

    /// Sets the scale.
    pub(crate) fn scaled(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Adds the product to the contents of `d`.
    pub(crate) fn accumulate(self) -> Self {
        Self {
            c: Some(self.d.clone()),
            ..self
        }
    }

    /// Queues the product after all earlier work of this thread. Returns `None` and does nothing if
    /// cuBLASLt has no algorithm for it.
    ///
    /// # Panics
    ///
    /// If the sizes, dtypes or the stream of `d` are invalid: a bug of the caller.
    pub(crate) fn enqueue(self) -> Option<()> {
        struct CublasLt;
        let algorithm = self.algorithm()?;
        let shape = self.shape();
        let client = self.d.tensor().client.clone();
        let scratch = workspace(&client);
        let handle = |tensor: &CubeTensor| tensor.handle.clone();
        let mut reads = vec![handle(self.a.tensor()), handle(self.b.tensor())];
        reads.extend(self.c.as_ref().map(|c| handle(c.tensor())));
        reads.extend(self.bias.as_ref().map(handle));
        let (has_c, has_bias) = (self.c.is_some(), self.bias.is_some());
        let offset = |matrix: &Matrix| matrix.offset_bytes();
        let d_offset = offset(&self.d);
        let [a_offset, b_offset] = [&self.a, &self.b].map(offset);
        let c_offset = self.c.as_ref().map_or(d_offset, offset);
        let buffers = [reads, vec![handle(self.d.tensor())], vec![scratch]];
        on_stream::<CublasLt>(&client, buffers, move |stream, addresses| {
            let mut addresses = addresses.iter().copied();
            let mut next = || addresses.next().expect("one address per buffer");
            let (a, b) = (next() + a_offset, next() + b_offset);
            let c = has_c.then(|| next() + c_offset);
            let bias = has_bias.then(&mut next);
            let d = next() + d_offset;
            let places = descriptors::Places {
                a,
                b,
                c: c.unwrap_or(d),
                bias,
                d,
                workspace: next(),
            };
            // SAFETY: the server resolved the addresses, `on_stream` keeps their buffers alive
            // until the product is queued, and matrices are within their buffers.
            unsafe { descriptors::enqueue(&shape, &algorithm, places, stream.cast()) }
                .map_err(|error| DriverError::new("cublasLtMatmul", error.0 as u32).into())
        });
        Some(())
    }

    fn shape(&self) -> ProductShape {
        let [m, k] = self.a.dims();
        let [b_k, n] = self.b.dims();
        assert_eq!(
            (b_k, self.d.dims()),
            (k, [m, n]),
            "the dimensions of a product must match"
        );
        assert!(m * n * k > 0, "the dimensions of a product must not be 0");
        let dtypes = [self.a.dtype(), self.b.dtype()];
        assert_eq!(dtypes[0], dtypes[1], "the factors must have the same dtype");
        let d = self.d.dtype();
        assert!(
            d == DType::F32 || d == dtypes[0],
            "the result must be f32 or have the dtype of the factors"
        );
        if let Some(c) = &self.c {
            assert_eq!(
                (c.dims(), c.dtype()),
                ([m, n], d),
                "the summand must have the shape and dtype of the result"
            );
        }
        if let Some(bias) = &self.bias {
            let shape = bias.meta.shape().iter().product::<usize>();
            assert_eq!(
                (shape, bias.dtype),
                (n, d),
                "the bias must have the columns and dtype of the result"
            );
        }
        assert!(!self.d.is_transposed() && !self.c.as_ref().is_some_and(Matrix::is_transposed));
        ProductShape {
            sizes: [m, n, k],
            scale: self.alpha.to_bits(),
            factors: dtypes[0],
            sums: d,
            transposed: [self.a.is_transposed(), self.b.is_transposed()],
            pitches: [
                &self.a,
                &self.b,
                self.c.as_ref().unwrap_or(&self.d),
                &self.d,
            ]
            .map(Matrix::pitch),
            alignments: [
                &self.a,
                &self.b,
                self.c.as_ref().unwrap_or(&self.d),
                &self.d,
            ]
            .map(Matrix::alignment),
            is_added: self.c.is_some(),
            has_bias: self.bias.is_some(),
            workspace: WORKSPACE_BYTES,
        }
    }

    /// The algorithm for products of this shape, selected once; `None` if there is none.
    fn algorithm(&self) -> Option<Algorithm> {
        static FOUND: Asked<ProductShape, Algorithm> = Asked::none();
        // The scale does not affect the choice.
        let shape = ProductShape {
            scale: 1.0f32.to_bits(),
            ..self.shape()
        };
        let chosen_shape = shape.clone();
        let client = &self.d.tensor().client;
        let index = client.service_id().device.index_id;
        FOUND.get(client, shape, move || {
            descriptors::choose(&chosen_shape, index.into()).ok()
        })
    }
}

/// `x w` or `x wᵀ`, in the dtype of `x`; `None` if cuBLASLt cannot compute it.
pub(crate) fn product(x: &CubeTensor, w: &CubeTensor, transposed: bool) -> Option<CubeTensor> {
    if !is_served(&x.client) || x.dtype != w.dtype {
        return None;
    }
    let (x, mut w) = (Matrix::new(x), Matrix::new(w));
    if transposed {
        w = w.transposed();
    }
    let ([m, k], [_, n]) = (x.dims(), w.dims());
    if m * n * k == 0 {
        return None;
    }
    let y = output(x.tensor(), [m, n], x.dtype());
    Product::new(x, w, Matrix::new(&y)).enqueue()?;
    Some(y)
}

/// The workspace of the calling thread's stream, which is kept for the life of the process; the
/// stream runs one product at a time.
fn workspace(client: &Client) -> Handle {
    static HELD: LazyLock<Mutex<HashMap<(ServiceId, StreamId), Handle>>> =
        LazyLock::new(Mutex::default);
    let key = (client.service_id(), StreamId::current());
    let mut workspaces = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let workspace = workspaces
        .entry(key)
        .or_insert_with(|| client.empty(WORKSPACE_BYTES));
    workspace.clone()
}
