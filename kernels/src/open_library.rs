//! Shared libraries, opened by the dynamic loader for the life of the process.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;

/// Who sees the symbols of a library.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Symbols {
    /// Only callers of [`OpenLibrary::symbol`]. Functions are bound at their first call.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only CUDA's libraries are opened this way")
    )]
    Local,
    /// Also libraries that are opened later, such as plug-ins. All functions are bound now.
    Global,
}

/// An open library, which is never closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenLibrary(NonNull<c_void>);

// SAFETY: the handle of `dlopen` belongs to the process, and `dlsym` may be called by any thread.
unsafe impl Send for OpenLibrary {}
// SAFETY: as above.
unsafe impl Sync for OpenLibrary {}

impl OpenLibrary {
    /// Opens a file or, for a name without a folder, the file that the dynamic loader finds.
    ///
    /// # Errors
    ///
    /// The message of the loader.
    pub(crate) fn open(file: &Path, symbols: Symbols) -> Result<Self, String> {
        let name = CString::new(file.as_os_str().as_bytes())
            .map_err(|_| "the path contains a zero byte".to_owned())?;
        let flags: c_int = match symbols {
            Symbols::Local => libc::RTLD_LAZY | libc::RTLD_LOCAL,
            Symbols::Global => libc::RTLD_NOW | libc::RTLD_GLOBAL,
        };
        // SAFETY: loading a library runs its initialisers. Callers open only NVIDIA's libraries and
        // MPI libraries with the standard ABI, which are meant to be loaded at run time. `name` ends
        // with a zero byte and outlives the call.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        NonNull::new(handle).map(Self).ok_or_else(loader_error)
    }

    /// The address of a symbol; `None` if the library does not have it.
    pub(crate) fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open for the life of the process, and `name` outlives the call.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// The text of the dynamic loader's last error.
fn loader_error() -> String {
    // SAFETY: `dlerror` returns null or a string that is valid until this thread calls the loader
    // again; it is copied before.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "unknown error of the dynamic loader".to_owned(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}
