//! Matrix products by NVIDIA's cuBLASLt, on CubeCL's own CUDA stream, between its own launches.
//!
//! Burn's products are kernels that NVRTC compiles, with one stage and no asynchronous copies; these
//! are what NVIDIA tunes for each of its GPUs. The library is opened at run time and asked for an
//! algorithm once for each kind of product, or once more where it refuses the one that is kept on disk.
//! Where it is missing, or has none, whoever asks computes with Burn's products.

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
use descriptors::{Algorithm, Form};
pub(crate) use matrix::Matrix;

/// What algorithms may take beside the matrices; what NVIDIA advises for its newest GPUs.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Turns the products off where it is `0`: all is then computed by kernels that NVRTC compiles.
pub(crate) const SWITCH: &str = "TOOLTUNE_CUBLASLT";

/// Whether products of tensors of this client can be had.
pub(crate) fn is_served(client: &Client) -> bool {
    static IS_FOUND: LazyLock<bool> = LazyLock::new(|| Library::CublasLt.is_wanted(SWITCH));
    is_cuda(client) && *IS_FOUND
}

/// `d = alpha * a b + c + bias`, f32 inside, rounded once.
#[derive(Clone)]
pub(crate) struct Product {
    /// Scale of the product.
    pub(crate) alpha: f32,
    /// `[m, k]`.
    pub(crate) a: Matrix,
    /// `[k, n]`, of the type of `a`.
    pub(crate) b: Matrix,
    /// `[m, n]`, of the type of `d`, which it may be.
    pub(crate) c: Option<Matrix>,
    /// `[n]`, of the type of `d`.
    pub(crate) bias: Option<CubeTensor>,
    /// `[m, n]`: f32, or the type of `a`; of the stream of the calling thread.
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

    /// With another scale.
    pub(crate) fn scaled(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Added to what `d` holds.
    pub(crate) fn added(self) -> Self {
        Self {
            c: Some(self.d.clone()),
            ..self
        }
    }

    /// Queues the product behind all that this thread has queued; `None`, and nothing is done, where
    /// cuBLASLt has no algorithm for it.
    ///
    /// # Panics
    ///
    /// If sizes, types or the stream of `d` are not as they must be: a bug of the caller.
    pub(crate) fn enqueue(self) -> Option<()> {
        struct CublasLt;
        let algorithm = self.algorithm()?;
        let form = self.form();
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
            let mut next = || addresses.next().expect("an address for each buffer");
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
            // SAFETY: the server has resolved the addresses, `on_stream` holds their buffers until the
            // product is queued, and matrices lie within their buffers.
            unsafe { descriptors::enqueue(&form, &algorithm, places, stream.cast()) }
                .map_err(|error| DriverError::new("cublasLtMatmul", error.0 as u32).into())
        });
        Some(())
    }

    fn form(&self) -> Form {
        let [m, k] = self.a.dims();
        let [b_k, n] = self.b.dims();
        assert_eq!((b_k, self.d.dims()), (k, [m, n]), "sizes of a product");
        assert!(m * n * k > 0, "a product of nothing");
        let dtypes = [self.a.dtype(), self.b.dtype()];
        assert_eq!(dtypes[0], dtypes[1], "factors of one type");
        let d = self.d.dtype();
        assert!(
            d == DType::F32 || d == dtypes[0],
            "sums of a type that is wide enough"
        );
        if let Some(c) = &self.c {
            assert_eq!(
                (c.dims(), c.dtype()),
                ([m, n], d),
                "what a product is added to"
            );
        }
        if let Some(bias) = &self.bias {
            let shape = bias.meta.shape().iter().product::<usize>();
            assert_eq!((shape, bias.dtype), (n, d), "the bias of a product");
        }
        assert!(!self.d.is_transposed() && !self.c.as_ref().is_some_and(Matrix::is_transposed));
        Form {
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

    /// The algorithm of such products, asked for once; `None` where there is none.
    fn algorithm(&self) -> Option<Algorithm> {
        static FOUND: Asked<Form, Algorithm> = Asked::none();
        // The scale does not change the choice.
        let form = Form {
            scale: 1.0f32.to_bits(),
            ..self.form()
        };
        let wanted = form.clone();
        let client = &self.d.tensor().client;
        let index = client.service_id().device.index_id;
        FOUND.get(client, form, move || {
            descriptors::choose(&wanted, index.into()).ok()
        })
    }
}

/// `x w`, or `x wᵀ`, in the type of `x`; `None` where cuBLASLt does not compute it.
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

/// The workspace of the calling thread's stream, held for the life of the process: one product at a
/// time runs there.
fn workspace(client: &Client) -> Handle {
    static HELD: LazyLock<Mutex<HashMap<(ServiceId, StreamId), Handle>>> =
        LazyLock::new(Mutex::default);
    let key = (client.service_id(), StreamId::current());
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let made = held
        .entry(key)
        .or_insert_with(|| client.empty(WORKSPACE_BYTES));
    made.clone()
}
