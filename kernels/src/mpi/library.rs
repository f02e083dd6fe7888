//! The functions of an MPI library, and its values of the standard ABI.
//!
//! Values of handles: MPI 5.0, chapter 20, as in the header `mpi_abi.h` of MPICH 5.0.2.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use super::{Absent, CallFailed};
use crate::open_library::{OpenLibrary, Symbols};

/// A handle of the ABI: an integer of the size of a pointer.
type Handle = usize;

const COMM_WORLD: Handle = 0x101;
const COMM_SELF: Handle = 0x102;
const ERRORS_RETURN: Handle = 0x143;
const INT64: Handle = 0x258;
const SUM: Handle = 0x21;
/// Send buffer of a call that replaces its receive buffer.
const IN_PLACE: *const c_void = std::ptr::without_provenance(1);
const SUCCESS: c_int = 0;
const THREAD_FUNNELED: c_int = 1024;
/// Bytes of the longest error text, with its end.
const ERROR_BYTES: usize = 512;
/// Bytes of the longest description of a library, with its end.
const VERSION_BYTES: usize = 8192;
/// Major version of the ABI.
const ABI: c_int = 1;

type AbiVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type LibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type InitThread =
    unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type SetErrorHandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
type OfWorld = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// The functions of an opened library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Functions {
    library_version: LibraryVersion,
    init_thread: InitThread,
    set_error_handler: SetErrorHandler,
    rank: OfWorld,
    size: OfWorld,
    all_reduce: AllReduce,
    error_string: ErrorString,
    finalize: Finalize,
}

/// Opens a library by its path, or by its name in the dynamic loader's folders, and checks that it
/// has the standard ABI.
///
/// # Errors
///
/// It cannot be opened, has another ABI, or lacks a function.
pub(super) fn open(path: &Path) -> Result<Functions, Absent> {
    // Plug-ins of the library need its symbols.
    let library = OpenLibrary::open(path, Symbols::Global).map_err(|reason| Absent::Unopened {
        path: path.to_owned(),
        reason,
    })?;
    let address = |name: &'static CStr| {
        let address = library.symbol(name).ok_or_else(|| Absent::Function {
            path: path.to_owned(),
            name: name.to_string_lossy().into_owned(),
        })?;
        Ok(address.as_ptr())
    };
    let abi_version = address(c"MPI_Abi_get_version")?;
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the standard defines this signature for this name, and allows the call at any time;
    // both integers outlive it.
    let code = unsafe {
        let abi_version = std::mem::transmute::<*mut c_void, AbiVersion>(abi_version);
        abi_version(&raw mut major, &raw mut minor)
    };
    if code != SUCCESS || major != ABI {
        return Err(Absent::OtherAbi {
            path: path.to_owned(),
            found: format!("{major}.{minor}"),
        });
    }
    // SAFETY: the library has the standard ABI, which defines these signatures for these names.
    unsafe {
        use std::mem::transmute;
        Ok(Functions {
            library_version: transmute::<*mut c_void, LibraryVersion>(address(
                c"MPI_Get_library_version",
            )?),
            init_thread: transmute::<*mut c_void, InitThread>(address(c"MPI_Init_thread")?),
            set_error_handler: transmute::<*mut c_void, SetErrorHandler>(address(
                c"MPI_Comm_set_errhandler",
            )?),
            rank: transmute::<*mut c_void, OfWorld>(address(c"MPI_Comm_rank")?),
            size: transmute::<*mut c_void, OfWorld>(address(c"MPI_Comm_size")?),
            all_reduce: transmute::<*mut c_void, AllReduce>(address(c"MPI_Allreduce")?),
            error_string: transmute::<*mut c_void, ErrorString>(address(c"MPI_Error_string")?),
            finalize: transmute::<*mut c_void, Finalize>(address(c"MPI_Finalize")?),
        })
    }
}

/// Path of the mapped file of this process with the name of `path`; `path` if the system does not
/// report it.
pub(super) fn mapped(path: &Path) -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files = maps
        .lines()
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let found = files.find(|file| file.file_name() == path.file_name());
    found.unwrap_or(path).to_owned()
}

impl Functions {
    /// The first line of the library's description, such as `MPICH Version: 5.0.2`.
    pub(super) fn description(&self) -> String {
        let mut text = [0; VERSION_BYTES];
        let mut n_bytes = 0;
        // SAFETY: the buffer has the size that the ABI requires, and the standard allows the call at
        // any time.
        let code = unsafe { (self.library_version)(text.as_mut_ptr(), &raw mut n_bytes) };
        let text = (code == SUCCESS).then(|| in_buffer(&text));
        let first = text.as_deref().and_then(|text| text.lines().next());
        let words: Vec<&str> = first.unwrap_or_default().split_whitespace().collect();
        match words.is_empty() {
            true => "unknown MPI".to_owned(),
            false => words.join(" "),
        }
    }

    /// Initialises MPI for calls of this thread only, and returns this process's rank and the
    /// number of ranks. Errors of later calls are returned; an error of the first call may end the
    /// process.
    pub(super) fn init(&self) -> Result<(usize, usize), CallFailed> {
        let mut level = -1;
        // SAFETY: the standard allows null in place of the arguments; `level` outlives the call. The
        // caller makes this call once in the life of the process.
        let code =
            unsafe { (self.init_thread)(null_mut(), null_mut(), THREAD_FUNNELED, &raw mut level) };
        self.check("MPI_Init_thread", code)?;
        if level < THREAD_FUNNELED {
            return Err(CallFailed {
                call: "MPI_Init_thread",
                reason: "the library does not support programs with threads".to_owned(),
            });
        }
        for communicator in [COMM_SELF, COMM_WORLD] {
            // SAFETY: MPI is initialised; both handles are predefined ones of the ABI.
            let code = unsafe { (self.set_error_handler)(communicator, ERRORS_RETURN) };
            self.check("MPI_Comm_set_errhandler", code)?;
        }
        let rank = self.of_world("MPI_Comm_rank", self.rank)?;
        let size = self.of_world("MPI_Comm_size", self.size)?;
        Ok((rank, size))
    }

    fn of_world(&self, call: &'static str, function: OfWorld) -> Result<usize, CallFailed> {
        let mut number = -1;
        // SAFETY: MPI is initialised, the handle is a predefined one, and `number` outlives the call.
        let code = unsafe { function(COMM_WORLD, &raw mut number) };
        self.check(call, code)?;
        usize::try_from(number).map_err(|_| CallFailed {
            call,
            reason: format!("it returned {number}"),
        })
    }

    /// Replaces `values` by their sums over all ranks. All ranks call it with as many values, in the
    /// thread that called [`init`](Self::init).
    pub(super) fn add_all(&self, values: &mut [i64]) -> Result<(), CallFailed> {
        let call = "MPI_Allreduce";
        let n_values = c_int::try_from(values.len()).map_err(|_| CallFailed {
            call,
            reason: format!("{} values are too many for one call", values.len()),
        })?;
        // SAFETY: MPI is initialised, all handles are predefined ones, and `values` is a buffer of
        // this many integers of 64 bits, which lives until the call returns.
        let code = unsafe {
            let values = values.as_mut_ptr().cast();
            (self.all_reduce)(IN_PLACE, values, n_values, INT64, SUM, COMM_WORLD)
        };
        self.check(call, code)
    }

    /// Ends MPI. All ranks call it, in the thread that called [`init`](Self::init).
    pub(super) fn finalize(&self) -> Result<(), CallFailed> {
        // SAFETY: MPI is initialised and has not been finalised, and no other call is in progress.
        let code = unsafe { (self.finalize)() };
        self.check("MPI_Finalize", code)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CallFailed> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text = [0; ERROR_BYTES];
        let mut n_bytes = 0;
        // SAFETY: the buffer has the size that the ABI requires; since MPI 4.0, the standard allows
        // the call at any time.
        let described = unsafe { (self.error_string)(code, text.as_mut_ptr(), &raw mut n_bytes) };
        Err(CallFailed {
            call,
            reason: match described {
                SUCCESS => in_buffer(&text),
                _ => format!("error {code}"),
            },
        })
    }
}

/// The text in a buffer up to its first zero byte.
fn in_buffer(buffer: &[c_char]) -> String {
    let bytes = buffer.iter().take_while(|byte| **byte != 0);
    let bytes: Vec<u8> = bytes.map(|byte| byte.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
