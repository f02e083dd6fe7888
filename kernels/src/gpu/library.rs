//! NVIDIA's libraries, loaded at run time.
//!
//! The dynamic loader is asked first, as Burn's CUDA backend does. If it does not find a library, the
//! files of [`Search`] are loaded by their path. The backend then gets the same library: the loader
//! recognizes its name.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;

use cudarc::cublaslt::sys::cublasLtGetVersion;
use cudarc::cudnn::sys::cudnnGetVersion;
use cudarc::nvrtc::sys::nvrtcVersion;

use crate::nvidia::{Headers, Search};
use crate::open_library::{OpenLibrary, Symbols};

/// A library that is loaded at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// libcuda, part of the NVIDIA driver.
    Driver,
    /// libnvrtc, which compiles the kernels.
    Nvrtc,
    /// libcublasLt, NVIDIA's matmul library. Without it, Burn's NVRTC kernels compute matmuls,
    /// several times slower.
    CublasLt,
    /// libcudnn, which computes attention. Without version 9.10 or newer, NVRTC kernels compute it,
    /// several times slower on Hopper.
    Cudnn,
    /// libnccl, which adds values of several GPUs.
    Nccl,
}

/// Opens the first of these files or, for a name without a folder, the first that the dynamic loader
/// finds.
///
/// # Errors
///
/// The loader's message about the last one.
pub(crate) fn open_first<P: AsRef<Path>>(files: &[P]) -> Result<OpenLibrary, String> {
    let mut problem = "no file has this name".to_owned();
    for file in files {
        match OpenLibrary::open(file.as_ref(), Symbols::Local) {
            Ok(library) => return Ok(library),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

/// The file of the library that contains an address.
fn file_with(address: NonNull<c_void>) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `dladdr` only writes `info`; on success its file name is a string that lives as long as
    // the library, which is never closed.
    unsafe {
        if libc::dladdr(address.as_ptr(), &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name: *const c_char = info.dli_fname;
        Some(PathBuf::from(OsStr::from_bytes(
            CStr::from_ptr(name).to_bytes(),
        )))
    }
}

impl Library {
    /// File names in packages and toolkits, the newest version first. The driver is only where the
    /// dynamic loader finds it.
    const fn file_names(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &[],
            Self::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Self::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Cudnn => &["libcudnn.so.9"],
            Self::Nccl => &["libnccl.so.2"],
        }
    }

    /// The files to load if the dynamic loader does not find the library, best first.
    pub(crate) fn candidates(self) -> Vec<PathBuf> {
        Search::for_process().library_files(self.file_names())
    }

    /// Path of the library, if it can be loaded. It then stays loaded.
    pub fn find(self) -> Option<PathBuf> {
        static FOUND: [OnceLock<Option<PathBuf>>; 5] = [const { OnceLock::new() }; 5];
        FOUND[self as usize].get_or_init(|| self.load()).clone()
    }

    fn load(self) -> Option<PathBuf> {
        if let Some(address) = self.open_by_name() {
            return file_with(address);
        }
        for file in self.candidates() {
            if self == Self::Nvrtc {
                open_builtins(&file);
            }
            match OpenLibrary::open(&file, Symbols::Local) {
                Ok(_) => {
                    if let Some(address) = self.open_by_name() {
                        return file_with(address);
                    }
                }
                Err(problem) => tracing::warn!("cannot load a CUDA library: {problem}"),
            }
        }
        None
    }

    /// Opens the library by its name, as its users do, and returns the address of a symbol.
    fn open_by_name(self) -> Option<NonNull<c_void>> {
        macro_rules! of_cudarc {
            ($module:ident, $symbol:literal) => {{
                use cudarc::$module::sys::{culib, is_culib_present};
                // SAFETY: loading a library runs its initialisers. These are NVIDIA's and meant to
                // be loaded at run time; `culib` panics only for a library that is not present. A
                // pointer may hold the address of any symbol.
                unsafe {
                    is_culib_present().then(|| {
                        culib()
                            .get::<*mut c_void>($symbol)
                            .ok()
                            .map(|symbol| *symbol)
                    })
                }
                .flatten()
                .and_then(NonNull::new)
            }};
        }
        match self {
            Self::Driver => of_cudarc!(driver, b"cuInit\0"),
            Self::Nvrtc => of_cudarc!(nvrtc, b"nvrtcVersion\0"),
            Self::CublasLt => of_cudarc!(cublaslt, b"cublasLtGetVersion\0"),
            Self::Cudnn => of_cudarc!(cudnn, b"cudnnGetVersion\0"),
            Self::Nccl => {
                let library = open_first(&["libnccl.so.2", "libnccl.so"]).ok()?;
                library.symbol(c"ncclGetVersion")
            }
        }
    }

    /// The version that the library reports, such as "9.28.1"; `None` if it cannot be loaded, and for
    /// the driver, which [`driver`](super::driver) describes.
    pub fn version(self) -> Option<String> {
        let number = match self {
            Self::Driver => return None,
            Self::Nvrtc => {
                let (major, minor) = compiler_version()?;
                return Some(format!("{major}.{minor}"));
            }
            Self::CublasLt => {
                self.find()?;
                // SAFETY: the library is loaded; the function only returns a number.
                unsafe { cublasLtGetVersion() }
            }
            Self::Cudnn => {
                self.find()?;
                // SAFETY: as above.
                unsafe { cudnnGetVersion() }
            }
            Self::Nccl => nccl_version(self)?,
        };
        Some(describe_version(number))
    }

    /// Whether the library is available and the environment variable `switch` is not `0`.
    pub(crate) fn is_enabled(self, switch: &str) -> bool {
        std::env::var(switch).as_deref() != Ok("0") && self.find().is_some()
    }
}

/// NVRTC opens its built-in functions by their name, from the folders of the dynamic loader.
fn open_builtins(nvrtc: &Path) {
    let folder = nvrtc.parent().map(std::fs::read_dir);
    for entry in folder.into_iter().flatten().flatten().flatten() {
        let is_builtins = |name: &str| name.starts_with("libnvrtc-builtins.so");
        if entry.file_name().to_str().is_some_and(is_builtins)
            && let Err(problem) = OpenLibrary::open(&entry.path(), Symbols::Local)
        {
            tracing::warn!("cannot load a CUDA library: {problem}");
        }
    }
}

/// NVRTC's version, major and minor; `None` if it cannot be loaded.
pub fn compiler_version() -> Option<(u32, u32)> {
    Library::Nvrtc.find()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is loaded, and the function only writes two integers.
    unsafe { nvrtcVersion(&mut major, &mut minor) }
        .result()
        .ok()?;
    Some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
}

fn nccl_version(nccl: Library) -> Option<usize> {
    let library = OpenLibrary::open(&nccl.find()?, Symbols::Local).ok()?;
    let address = library.symbol(c"ncclGetVersion")?;
    let mut version: c_int = 0;
    // SAFETY: in all versions of NCCL 2, this is `ncclResult_t ncclGetVersion(int*)`; it writes one
    // integer and returns an enum, 0 if it succeeded.
    let result = unsafe {
        let get: unsafe extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(address.as_ptr());
        get(&mut version)
    };
    (result == 0).then(|| usize::try_from(version).ok())?
}

/// Decodes a version number: 92801 is 9.28.1. Versions before cuDNN 9 and NCCL 2.9 have four digits.
fn describe_version(number: usize) -> String {
    let major = if number < 10_000 { 1000 } else { 10_000 };
    format!(
        "{}.{}.{}",
        number / major,
        number % major / 100,
        number % 100
    )
}

/// The CUDA headers that fit the found NVRTC.
pub fn headers() -> Option<Headers> {
    static FOUND: OnceLock<Option<Headers>> = OnceLock::new();
    let find = || {
        let nvrtc = Library::Nvrtc.find();
        let compiler = nvrtc.as_deref().zip(compiler_version());
        Search::for_process().headers(compiler)
    };
    FOUND.get_or_init(find).clone()
}

/// Sets the environment variable `CUDA_PATH`, from which CubeCL takes the CUDA headers, if the headers
/// that fit NVRTC are elsewhere. Call it before the program has other threads that run.
pub fn set_cuda_path() {
    let Some(headers) = headers() else { return };
    if cubecl::cuda::install::cuda_path().as_deref() != Some(&headers.toolkit) {
        // SAFETY: no other thread reads the environment: the caller is the only thread that runs.
        unsafe { std::env::set_var("CUDA_PATH", &headers.toolkit) };
    }
}

#[cfg(test)]
mod tests {
    use super::describe_version;

    #[test]
    fn version_numbers_are_decoded() {
        for (number, expected) in [
            (131_000, "13.10.0"),
            (120_903, "12.9.3"),
            (92_801, "9.28.1"),
            (8902, "8.9.2"),
            (23_203, "2.32.3"),
        ] {
            assert_eq!(describe_version(number), expected);
        }
    }
}
