//! Compiles a small kernel with NVRTC, as CubeCL does, to check the compiler and its headers.

use std::ffi::CStr;

use cudarc::nvrtc::result::{
    compile_program, create_program, destroy_program, get_program_log, get_ptx,
};

use super::{compiler_version, headers};

/// Includes the headers that kernels include, and uses each of them.
const SOURCE: &CStr = c"
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
extern \"C\" __global__ void probe(float *out, const __half *a, const __nv_bfloat16 *b) {
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum;
    nvcuda::wmma::fill_fragment(sum, __half2float(a[0]) + __bfloat162float(b[0]));
    nvcuda::wmma::store_matrix_sync(out, sum, 16, nvcuda::wmma::mem_row_major);
}
";

/// Compiles a kernel that includes the headers for Ampere, the oldest GPU that computes in bf16. Takes
/// about half a second and needs no GPU.
///
/// # Errors
///
/// The compiler's message, or that the compiler or its headers are missing.
pub fn check_compiler() -> Result<(), String> {
    compiler_version().ok_or("NVRTC cannot be loaded")?;
    let include = headers()
        .ok_or("the CUDA headers are missing")?
        .toolkit
        .join("include");
    let folders = [include.join("cccl"), include];
    let mut options = vec!["--gpu-architecture=sm_80".to_owned()];
    options.extend(
        folders
            .iter()
            .filter(|folder| folder.is_dir())
            .map(|folder| format!("--include-path={}", folder.display())),
    );
    let program = create_program(SOURCE, None).map_err(|error| error.to_string())?;
    // SAFETY: `program` is valid until it is destroyed, at the end.
    unsafe {
        let compiled = compile_program(program, &options)
            .and_then(|()| get_ptx(program))
            .map(|_| ())
            .map_err(|error| {
                let log = get_program_log(program).unwrap_or_default();
                let log: Vec<u8> = log.iter().map(|c| c.to_ne_bytes()[0]).collect();
                let log = String::from_utf8_lossy(&log);
                let log = log.trim_matches(|c: char| c == '\0' || c.is_whitespace());
                format!("{error}: {log}")
            });
        // The result is known; the program is not used again even if this fails.
        let _ = destroy_program(program);
        compiled
    }
}
