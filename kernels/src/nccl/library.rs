//! The functions of NCCL, loaded at run time.
//!
//! These declarations are the same in every version since 2.13. The layout of `ncclConfig_t`
//! depends on the version, so no function with a configuration is used. `ncclCommAbort` is not used
//! either, because it can hang: a process with a broken communicator ends instead.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::{NcclError, SWITCH};

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

/// NCCL's functions.
pub(super) struct Functions {
    /// Version, such as 22703 for 2.27.3.
    pub(super) version: i32,
    pub(super) get_unique_id: unsafe extern "C" fn(*mut RawId) -> Status,
    pub(super) comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, RawId, c_int) -> Status,
    pub(super) comm_destroy: unsafe extern "C" fn(Comm) -> Status,
    pub(super) all_gather:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> Status,
    pub(super) reduce_scatter: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        CUstream,
    ) -> Status,
    pub(super) broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        CUstream,
    ) -> Status,
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
    let mut problem = String::new();
    let opened = NAMES.iter().find_map(|name| {
        // SAFETY: loading a library runs its initialisers. These are NVIDIA's and meant to be
        // loaded at run time.
        unsafe { Library::new(*name) }
            .map_err(|error| {
                if problem.is_empty() {
                    problem = error.to_string();
                }
            })
            .ok()
    });
    let library = opened.ok_or(NcclError::Missing(problem))?;
    // SAFETY: the declarations are those of nccl.h. The functions stay valid, because the library
    // is never unloaded.
    let functions = unsafe {
        let get_version: unsafe extern "C" fn(*mut c_int) -> Status =
            symbol(&library, "ncclGetVersion")?;
        let mut version = 0;
        get_version(&mut version);
        Functions {
            version,
            get_unique_id: symbol(&library, "ncclGetUniqueId")?,
            comm_init_rank: symbol(&library, "ncclCommInitRank")?,
            comm_destroy: symbol(&library, "ncclCommDestroy")?,
            all_gather: symbol(&library, "ncclAllGather")?,
            reduce_scatter: symbol(&library, "ncclReduceScatter")?,
            broadcast: symbol(&library, "ncclBroadcast")?,
            group_start: symbol(&library, "ncclGroupStart")?,
            group_end: symbol(&library, "ncclGroupEnd")?,
            get_error_string: symbol(&library, "ncclGetErrorString")?,
            get_last_error: symbol(&library, "ncclGetLastError")?,
        }
    };
    std::mem::forget(library);
    Ok(functions)
}

/// Looks up a function.
///
/// # Safety
///
/// `F` must be the type of the function.
unsafe fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, NcclError> {
    // SAFETY: the caller passes the type.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found
        .map(|symbol| *symbol)
        .map_err(|_| NcclError::OldLibrary(name))
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
