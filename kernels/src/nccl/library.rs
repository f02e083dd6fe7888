//! The functions of NCCL, loaded at run time.
//!
//! These declarations are the same in every version since 2.13. The layout of `ncclConfig_t`
//! depends on the version, so no function with a configuration is used. `ncclCommAbort` is not used
//! either, because it can hang: a process with a broken communicator ends instead.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;

use super::{NcclError, SWITCH};
use crate::gpu;
use crate::open_library::OpenLibrary;

/// File names, best first. PyPI's packages have only the first one.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;

/// `ncclResult_t`; 0 is success.
pub(super) type Status = c_int;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawId(pub(super) [c_char; 128]);

/// `ncclDataType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Element {
    /// 32-bit integers.
    I32 = 2,
    /// 64-bit integers.
    I64 = 4,
    /// 32-bit floats.
    F32 = 7,
}

impl Element {
    /// Bytes of an element.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }
}

/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// `ncclReduceScatter` and `ncclBroadcast`. The second integer is the operation or the root.
type Collective =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> Status;

/// NCCL's functions.
pub(super) struct Functions {
    /// Version, such as 22703 for 2.27.3.
    pub(super) version: i32,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut RawId) -> Status,
    pub(super) comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, RawId, c_int) -> Status,
    pub(super) comm_destroy: unsafe extern "C" fn(Comm) -> Status,
    pub(super) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> Status,
    pub(super) reduce_scatter: Collective,
    pub(super) broadcast: Collective,
    pub(super) group_start: unsafe extern "C" fn() -> Status,
    pub(super) group_end: unsafe extern "C" fn() -> Status,
    get_error_string: unsafe extern "C" fn(Status) -> *const c_char,
    get_last_error: unsafe extern "C" fn(Comm) -> *const c_char,
}

/// NCCL's functions, which are loaded at the first call.
///
/// # Errors
///
/// The library or one of its functions is missing.
pub(super) fn functions() -> Result<&'static Functions, NcclError> {
    static FUNCTIONS: OnceLock<Result<Functions, NcclError>> = OnceLock::new();
    FUNCTIONS.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Whether the environment variable [`SWITCH`] turns NCCL off.
pub(super) fn is_disabled() -> bool {
    std::env::var(SWITCH).as_deref() == Ok("0")
}

fn load() -> Result<Functions, NcclError> {
    let mut files: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    files.extend(gpu::Library::Nccl.candidates());
    let library = gpu::open_first(&files).map_err(NcclError::Missing)?;
    // SAFETY: the declarations are those of nccl.h.
    unsafe {
        let get_version: unsafe extern "C" fn(*mut c_int) -> Status =
            symbol(library, c"ncclGetVersion")?;
        let mut version = 0;
        get_version(&mut version);
        Ok(Functions {
            version,
            get_unique_id: symbol(library, c"ncclGetUniqueId")?,
            comm_init_rank: symbol(library, c"ncclCommInitRank")?,
            comm_destroy: symbol(library, c"ncclCommDestroy")?,
            all_gather: symbol(library, c"ncclAllGather")?,
            reduce_scatter: symbol(library, c"ncclReduceScatter")?,
            broadcast: symbol(library, c"ncclBroadcast")?,
            group_start: symbol(library, c"ncclGroupStart")?,
            group_end: symbol(library, c"ncclGroupEnd")?,
            get_error_string: symbol(library, c"ncclGetErrorString")?,
            get_last_error: symbol(library, c"ncclGetLastError")?,
        })
    }
}

/// Looks up a function. The library is never closed.
///
/// # Safety
///
/// `F` must be the type of the function: a function pointer.
unsafe fn symbol<F: Copy>(library: OpenLibrary, name: &'static CStr) -> Result<F, NcclError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = library.symbol(name).ok_or(NcclError::OldLibrary(name))?;
    // SAFETY: the caller passes the type of the function, and function pointers have the size of
    // other pointers.
    Ok(unsafe { std::mem::transmute_copy(&found.as_ptr()) })
}

impl Functions {
    /// # Errors
    ///
    /// The call failed; the error has NCCL's description.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), NcclError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: both functions return static strings, or null. NCCL ignores the communicator of
        // the last error.
        let [text, detail] = unsafe {
            let last = (self.get_last_error)(std::ptr::null_mut());
            [(self.get_error_string)(status), last].map(|text| {
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().trim().to_owned())
            })
        };
        let detail = detail.filter(|detail| !detail.is_empty());
        let separator = if detail.is_some() { ": " } else { "" };
        Err(NcclError::Call {
            call,
            problem: text.unwrap_or_else(|| format!("error {status}"))
                + separator
                + &detail.unwrap_or_default(),
        })
    }
}
