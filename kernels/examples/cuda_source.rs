//! Writes the CUDA C++ source of every kernel to a directory: `cuda_source DIRECTORY`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: cuda_source DIRECTORY");
        return ExitCode::from(2);
    };
    match write(&directory) {
        Ok(n) => {
            println!("{n} kernels in {}", directory.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cuda_source: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes one file per kernel; a comment in its first line holds the launch data that the source
/// lacks.
fn write(directory: &std::path::Path) -> Result<usize, String> {
    let sources = tooltune_kernels::cube::source::sources()?;
    std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    for (i, source) in sources.iter().enumerate() {
        let file = directory.join(format!("{i:03}.cu"));
        let text = format!(
            "// {}; {} bytes of shared memory; {} threads\n{}",
            source.name, source.shared_bytes, source.units, source.text
        );
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(sources.len())
}
