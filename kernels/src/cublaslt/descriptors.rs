//! A product as cuBLASLt describes it.
//!
//! The library counts by columns: a matrix of rows side by side is its transpose there. So
//! `d = a b` is asked for as `dᵀ = bᵀ aᵀ`, and the first factor of the library is `b`.

use std::cell::{OnceCell, RefCell};
use std::ffi::c_void;
use std::mem::MaybeUninit;

use burn::backend::DType;
use cudarc::cublaslt::result::{self as lt, CublasError};
use cudarc::cublaslt::sys::{
    cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue, cublasLtGetVersion,
    cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulAlgoCheck, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Of, cublasLtMatmulPreferenceAttributes_t as Prefer,
    cublasLtMatrixLayout_t, cublasStatus_t as Status, cudaDataType_t as Type, cudaStream_t,
};

use crate::gpu;
use crate::kept::{self, Lines};

/// Bytes of an algorithm, opaque to all but the library.
const ALGORITHM_BYTES: usize = size_of::<cublasLtMatmulAlgo_t>();

thread_local! {
    /// One for each server's thread, hence for each device, for as long as the thread.
    static HANDLE: OnceCell<cublasLtHandle_t> = const { OnceCell::new() };
    /// What was chosen for the kind of this thread's GPU, also by earlier processes; `None` where
    /// nothing is kept.
    static KEPT: RefCell<Option<Option<Lines<ALGORITHM_BYTES>>>> = const { RefCell::new(None) };
}

/// What an algorithm is chosen by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// m, n, k.
    pub(super) sizes: [usize; 3],
    /// Bits of the scale.
    pub(super) scale: u32,
    pub(super) factors: DType,
    pub(super) sums: DType,
    /// Whether a and b are read transposed.
    pub(super) transposed: [bool; 2],
    /// Of a, b, c and d, in elements.
    pub(super) pitches: [usize; 4],
    /// Of a, b, c and d, in bytes.
    pub(super) alignments: [u32; 4],
    /// Whether c is added.
    pub(super) is_added: bool,
    pub(super) has_bias: bool,
    /// Bytes.
    pub(super) workspace: usize,
}

/// Addresses on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) bias: Option<u64>,
    pub(super) d: u64,
    pub(super) workspace: u64,
}

/// How the library computes products of one form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Algorithm(cublasLtMatmulAlgo_t);

impl Algorithm {
    fn bytes(self) -> [u8; ALGORITHM_BYTES] {
        let mut bytes = [0; ALGORITHM_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.0.data) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn of(bytes: [u8; ALGORITHM_BYTES]) -> Self {
        let mut data = [0; ALGORITHM_BYTES / 8];
        for (word, from) in data.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        Self(cublasLtMatmulAlgo_t { data })
    }
}

/// A descriptor and what destroys it.
struct Owned<T: Copy>(T, unsafe fn(T) -> Result<(), CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// The descriptors of a product.
struct Described {
    product: Owned<cublasLtMatmulDesc_t>,
    /// Of b, a, c and d, as the library names them.
    layouts: [Owned<cublasLtMatrixLayout_t>; 4],
}

fn handle() -> Result<cublasLtHandle_t, CublasError> {
    HANDLE.with(|cell| match cell.get() {
        Some(&handle) => Ok(handle),
        None => lt::create_handle().map(|handle| *cell.get_or_init(|| handle)),
    })
}

fn type_of(dtype: DType) -> Type {
    match dtype {
        DType::BF16 => Type::CUDA_R_16BF,
        DType::F32 => Type::CUDA_R_32F,
        other => unreachable!("products of {other:?}"),
    }
}

impl Form {
    /// All that the choice follows from, as a line.
    fn line(&self) -> String {
        let Self {
            sizes: [m, n, k],
            scale,
            factors,
            sums,
            transposed,
            pitches,
            alignments,
            is_added,
            has_bias,
            workspace,
        } = self;
        format!(
            "{m}x{n}x{k} {scale:x} {factors:?} {sums:?} {transposed:?} {pitches:?} {alignments:?} \
             {is_added} {has_bias} {workspace}"
        )
    }

    fn described(&self) -> Result<Described, CublasError> {
        let [m, n, k] = self.sizes.map(|size| size as u64);
        // As they are stored, a row of ours is a column there.
        let layout = |dtype, [rows, columns]: [u64; 2], pitch: usize| {
            lt::create_matrix_layout(type_of(dtype), columns, rows, pitch as i64)
                .map(|layout| Owned(layout, lt::destroy_matrix_layout))
        };
        let stored = |[rows, columns]: [u64; 2], transposed| match transposed {
            true => [columns, rows],
            false => [rows, columns],
        };
        let [a_transposed, b_transposed] = self.transposed;
        let [a, b, c, d] = self.pitches;
        let layouts = [
            layout(self.factors, stored([k, n], b_transposed), b)?,
            layout(self.factors, stored([m, k], a_transposed), a)?,
            layout(self.sums, [m, n], c)?,
            layout(self.sums, [m, n], d)?,
        ];
        let product = lt::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F)?;
        let product = Owned(product, lt::destroy_matmul_desc);
        for (of, transposed) in [
            (Of::CUBLASLT_MATMUL_DESC_TRANSA, b_transposed),
            (Of::CUBLASLT_MATMUL_DESC_TRANSB, a_transposed),
        ] {
            set(&product, of, i32::from(transposed))?;
        }
        if self.has_bias {
            let epilogue = Epilogue::CUBLASLT_EPILOGUE_BIAS as u32;
            set(&product, Of::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
        }
        Ok(Described { product, layouts })
    }
}

fn set<T>(product: &Owned<cublasLtMatmulDesc_t>, of: Of, value: T) -> Result<(), CublasError> {
    let place = (&raw const value).cast();
    // SAFETY: the descriptor lives, and the attribute is read before the call returns.
    unsafe { lt::set_matmul_desc_attribute(product.0, of, place, size_of::<T>()) }
}

/// An algorithm for a form, on the thread of the device with this index: the one that was kept, if the
/// library still takes it, else the one that it advises.
///
/// # Errors
///
/// The library has none for this form.
pub(super) fn choose(form: &Form, index: usize) -> Result<Algorithm, CublasError> {
    KEPT.with_borrow_mut(|kept| {
        let Some(kept) = kept.get_or_insert_with(|| kept_of(index)) else {
            return find(form);
        };
        let line = form.line();
        if let Some(bytes) = kept.get(&line)
            && let Ok(algorithm) = taken(form, *bytes)
        {
            return Ok(algorithm);
        }
        let found = find(form)?;
        kept.add(line, found.bytes());
        Ok(found)
    })
}

/// What is kept for the kind of a device.
fn kept_of(index: usize) -> Option<Lines<ALGORITHM_BYTES>> {
    let kind = gpu::kind(i32::try_from(index).ok()?).ok()?;
    // SAFETY: the library is open.
    let version = unsafe { cublasLtGetVersion() };
    let folder = kept::folder("cublaslt", version, &kind)?;
    Some(Lines::open(folder.join("algorithms")))
}

/// A kept algorithm, if the library computes the form with it in the workspace that there is.
fn taken(form: &Form, bytes: [u8; ALGORITHM_BYTES]) -> Result<Algorithm, CublasError> {
    let Described { product, layouts } = form.described()?;
    let [b, a, c, d] = &layouts;
    let algorithm = Algorithm::of(bytes);
    let mut result = MaybeUninit::zeroed();
    // SAFETY: descriptors live until they are dropped; the result is numbers, for which zeros are values,
    // and outlives the call.
    let result = unsafe {
        cublasLtMatmulAlgoCheck(
            handle()?,
            product.0,
            b.0,
            a.0,
            c.0,
            d.0,
            &raw const algorithm.0,
            result.as_mut_ptr(),
        )
        .result()?;
        result.assume_init()
    };
    if result.workspaceSize > form.workspace {
        return Err(CublasError(Status::CUBLAS_STATUS_NOT_SUPPORTED));
    }
    Ok(algorithm)
}

/// Asks the library for an algorithm.
fn find(form: &Form) -> Result<Algorithm, CublasError> {
    let Described { product, layouts } = form.described()?;
    let [b, a, c, d] = &layouts;
    let prefer = Owned(lt::create_matmul_pref()?, lt::destroy_matmul_pref);
    let [a_aligned, b_aligned, c_aligned, d_aligned] = form.alignments;
    // SAFETY: descriptors live until they are dropped; attributes have the bytes that are said.
    unsafe {
        let most = Prefer::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let room = (&raw const form.workspace).cast();
        lt::set_matmul_pref_attribute(prefer.0, most, room, size_of::<usize>())?;
        // Unless it is told, the library takes addresses for multiples of 256.
        for (of, alignment) in [
            (
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                b_aligned,
            ),
            (
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                a_aligned,
            ),
            (
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                c_aligned,
            ),
            (
                Prefer::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                d_aligned,
            ),
        ] {
            let place = (&raw const alignment).cast();
            lt::set_matmul_pref_attribute(prefer.0, of, place, size_of::<u32>())?;
        }
        let found =
            lt::get_matmul_algo_heuristic(handle()?, product.0, b.0, a.0, c.0, d.0, prefer.0)?;
        Ok(Algorithm(found.algo))
    }
}

/// Queues a product on a stream.
///
/// # Safety
///
/// The addresses are those of matrices of the form, and of a workspace of its bytes, on the device of
/// the current context, to which the stream belongs; they stay until the product is done.
///
/// # Errors
///
/// The library or the driver refuses.
pub(super) unsafe fn enqueue(
    form: &Form,
    algorithm: &Algorithm,
    places: Places,
    stream: cudaStream_t,
) -> Result<(), CublasError> {
    let Described { product, layouts } = form.described()?;
    let [b, a, c, d] = &layouts;
    if let Some(bias) = places.bias {
        set(&product, Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
    }
    let alpha = f32::from_bits(form.scale);
    let beta: f32 = if form.is_added { 1.0 } else { 0.0 };
    // SAFETY: the caller's contract; descriptors and scalars live until the call returns.
    unsafe {
        lt::matmul(
            handle()?,
            product.0,
            (&raw const alpha).cast(),
            (&raw const beta).cast(),
            places.b as *const c_void,
            b.0,
            places.a as *const c_void,
            a.0,
            places.c as *const c_void,
            c.0,
            places.d as *mut c_void,
            d.0,
            &raw const algorithm.0,
            places.workspace as *mut c_void,
            form.workspace,
            stream,
        )
    }
}
