//! Describes a matmul to cuBLASLt.
//!
//! The library is column-major: it sees a row-major matrix as its transpose. `d = a b` is therefore
//! computed as `dᵀ = bᵀ aᵀ`, and the library's first factor is `b`.

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

use crate::choice_cache::{self, Lines};
use crate::gpu;

/// Size in bytes of an algorithm, which is opaque outside the library.
const ALGORITHM_BYTES: usize = size_of::<cublasLtMatmulAlgo_t>();

thread_local! {
    /// One handle per server thread, hence per device, for the life of the thread.
    static HANDLE: OnceCell<cublasLtHandle_t> = const { OnceCell::new() };
    /// Algorithms chosen for this thread's GPU model, by this process and by earlier ones; `None`
    /// if the disk cache is disabled.
    static KEPT: RefCell<Option<Option<Lines<ALGORITHM_BYTES>>>> = const { RefCell::new(None) };
}

/// The key of an algorithm choice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ProductShape {
    /// m, n, k.
    pub(super) sizes: [usize; 3],
    /// Bit pattern of the scale.
    pub(super) scale: u32,
    pub(super) factors: DType,
    pub(super) sums: DType,
    /// Whether a and b are read transposed.
    pub(super) transposed: [bool; 2],
    /// Row strides of a, b, c and d, in elements.
    pub(super) pitches: [usize; 4],
    /// Address alignments of a, b, c and d, in bytes.
    pub(super) alignments: [u32; 4],
    /// Whether c is added.
    pub(super) is_added: bool,
    pub(super) has_bias: bool,
    /// Workspace size in bytes.
    pub(super) workspace: usize,
}

/// Device addresses of the operands and the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) bias: Option<u64>,
    pub(super) d: u64,
    pub(super) workspace: u64,
}

/// Algorithm for products of one shape.
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

    fn from_bytes(bytes: [u8; ALGORITHM_BYTES]) -> Self {
        let mut data = [0; ALGORITHM_BYTES / 8];
        for (word, from) in data.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        Self(cublasLtMatmulAlgo_t { data })
    }
}

/// A descriptor and its destructor.
struct Owned<T: Copy>(T, unsafe fn(T) -> Result<(), CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: created by the library, destroyed once.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// The descriptors of a product.
struct Descriptors {
    product: Owned<cublasLtMatmulDesc_t>,
    /// Layouts of b, a, c and d in the library's order.
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
        other => unreachable!("cuBLASLt products of {other:?} are not used"),
    }
}

impl ProductShape {
    /// The complete key as one line.
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

    fn descriptors(&self) -> Result<Descriptors, CublasError> {
        let [m, n, k] = self.sizes.map(|size| size as u64);
        // Transposed storage: our rows are the library's columns.
        let layout = |dtype, [rows, columns]: [u64; 2], pitch: usize| {
            lt::create_matrix_layout(type_of(dtype), columns, rows, pitch as i64)
                .map(|layout| Owned(layout, lt::destroy_matrix_layout))
        };
        let stored_shape = |[rows, columns]: [u64; 2], transposed| match transposed {
            true => [columns, rows],
            false => [rows, columns],
        };
        let [a_transposed, b_transposed] = self.transposed;
        let [a, b, c, d] = self.pitches;
        let layouts = [
            layout(self.factors, stored_shape([k, n], b_transposed), b)?,
            layout(self.factors, stored_shape([m, k], a_transposed), a)?,
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
        Ok(Descriptors { product, layouts })
    }
}

fn set<T>(product: &Owned<cublasLtMatmulDesc_t>, of: Of, value: T) -> Result<(), CublasError> {
    let buffer = (&raw const value).cast();
    // SAFETY: the descriptor is live, and the attribute is read before the call returns.
    unsafe { lt::set_matmul_desc_attribute(product.0, of, buffer, size_of::<T>()) }
}

/// An algorithm for a shape, on the thread of the device with this index: the cached one if the
/// library still accepts it, otherwise the library's recommendation.
///
/// # Errors
///
/// If the library has no algorithm for this shape.
pub(super) fn choose(shape: &ProductShape, index: usize) -> Result<Algorithm, CublasError> {
    KEPT.with_borrow_mut(|cache| {
        let Some(cache) = cache.get_or_insert_with(|| open_cache(index)) else {
            return find(shape);
        };
        let line = shape.line();
        if let Some(bytes) = cache.get(&line)
            && let Ok(algorithm) = cached_algorithm(shape, *bytes)
        {
            return Ok(algorithm);
        }
        let selected = find(shape)?;
        cache.add(line, selected.bytes());
        Ok(selected)
    })
}

/// The disk cache for a GPU model.
fn open_cache(index: usize) -> Option<Lines<ALGORITHM_BYTES>> {
    let kind = gpu::kind(i32::try_from(index).ok()?).ok()?;
    // SAFETY: the library is loaded.
    let version = unsafe { cublasLtGetVersion() };
    let folder = choice_cache::folder("cublaslt", version, &kind)?;
    Some(Lines::open(folder.join("algorithms")))
}

/// A cached algorithm, if the library supports it for this shape and workspace.
fn cached_algorithm(
    shape: &ProductShape,
    bytes: [u8; ALGORITHM_BYTES],
) -> Result<Algorithm, CublasError> {
    let Descriptors { product, layouts } = shape.descriptors()?;
    let [b, a, c, d] = &layouts;
    let algorithm = Algorithm::from_bytes(bytes);
    let mut result = MaybeUninit::zeroed();
    // SAFETY: descriptors live until they are dropped; the result is plain integers, for which zero
    // is valid, and outlives the call.
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
    if result.workspaceSize > shape.workspace {
        return Err(CublasError(Status::CUBLAS_STATUS_NOT_SUPPORTED));
    }
    Ok(algorithm)
}

/// Requests an algorithm from the library.
fn find(shape: &ProductShape) -> Result<Algorithm, CublasError> {
    let Descriptors { product, layouts } = shape.descriptors()?;
    let [b, a, c, d] = &layouts;
    let prefer = Owned(lt::create_matmul_pref()?, lt::destroy_matmul_pref);
    let [a_aligned, b_aligned, c_aligned, d_aligned] = shape.alignments;
    // SAFETY: descriptors live until they are dropped; attributes have the given sizes.
    unsafe {
        let most = Prefer::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let room = (&raw const shape.workspace).cast();
        lt::set_matmul_pref_attribute(prefer.0, most, room, size_of::<usize>())?;
        // By default, the library assumes addresses that are multiples of 256.
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
            let buffer = (&raw const alignment).cast();
            lt::set_matmul_pref_attribute(prefer.0, of, buffer, size_of::<u32>())?;
        }
        let heuristic =
            lt::get_matmul_algo_heuristic(handle()?, product.0, b.0, a.0, c.0, d.0, prefer.0)?;
        Ok(Algorithm(heuristic.algo))
    }
}

/// Queues a product on a stream.
///
/// # Safety
///
/// The addresses point to matrices of the given shape and a workspace of the given size, on the
/// device of the current context, which the stream belongs to. They stay valid until the product is
/// done.
///
/// # Errors
///
/// If the library or the driver reports an error.
pub(super) unsafe fn enqueue(
    shape: &ProductShape,
    algorithm: &Algorithm,
    places: Places,
    stream: cudaStream_t,
) -> Result<(), CublasError> {
    let Descriptors { product, layouts } = shape.descriptors()?;
    let [b, a, c, d] = &layouts;
    if let Some(bias) = places.bias {
        set(&product, Of::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
    }
    let alpha = f32::from_bits(shape.scale);
    let beta: f32 = if shape.is_added { 1.0 } else { 0.0 };
    // SAFETY: guaranteed by the caller; descriptors and scalars live until the call returns.
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
            shape.workspace,
            stream,
        )
    }
}
