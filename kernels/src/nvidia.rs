//! Finds files of NVIDIA: libraries and headers in Python packages and CUDA toolkits.
//!
//! `pip install tooltune-cuda` installs the packages next to the program, in folders that the dynamic
//! loader does not search. The folders are listed here, once for all libraries.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Folders of libraries below the folder `nvidia` of Python packages. The packages for CUDA 13 share
/// `cu13`; those for CUDA 12 have a folder each.
const PACKAGE_LIBRARIES: [&str; 5] = [
    "cu13/lib",
    "cudnn/lib",
    "nccl/lib",
    "cuda_nvrtc/lib",
    "cublas/lib",
];

/// Folders below `nvidia` whose `include` has all headers. The packages for CUDA 12 have none: each
/// of them has a part of the headers.
const PACKAGE_TOOLKITS: [&str; 1] = ["cu13"];

/// Folders of a Python environment that contain the folders `python3.X`.
const PYTHON_FOLDERS: [&str; 2] = ["lib", "lib64"];

/// Folders of installed packages below `python3.X`.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// Folders of libraries in a CUDA toolkit.
const TOOLKIT_LIBRARIES: [&str; 4] = [
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
];

/// Usual folders of a CUDA toolkit. Linux distributions install it below `/usr`.
const TOOLKITS: [&str; 3] = ["/usr/local/cuda", "/opt/cuda", "/usr"];

/// The headers that kernels include, below `include`.
const HEADERS: [&str; 4] = ["cuda_fp16.h", "cuda_bf16.h", "mma.h", "crt/mma.h"];

/// The version is in the first bytes of `cuda.h`.
const VERSION_BYTES: u64 = 64 << 10;

/// A folder with the CUDA headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The folder above `include`.
    pub toolkit: PathBuf,
    /// CUDA version, major and minor; `None` if `cuda.h` has none.
    pub version: Option<(u32, u32)>,
}

/// The folders to search, best first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// `CUDA_PATH`, the user's choice.
    cuda_path: Option<PathBuf>,
    /// Python environments: the program's own, then the active one.
    environments: Vec<PathBuf>,
    /// Toolkits in usual folders.
    toolkits: Vec<PathBuf>,
}

impl Search {
    /// The folders for this process: `CUDA_PATH`, the environment in which the program is installed,
    /// the active virtual or conda environment, and the usual toolkits.
    pub fn for_process() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let program = std::env::current_exe().and_then(fs::canonicalize).ok();
        // ENVIRONMENT/bin/tooltune
        let own = program.and_then(|path| Some(path.parent()?.parent()?.to_path_buf()));
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(variable);
        let active = active.into_iter().flatten().map(PathBuf::from);
        Self {
            cuda_path: variable("CUDA_PATH").map(PathBuf::from),
            environments: own.into_iter().chain(active).collect(),
            toolkits: TOOLKITS.map(PathBuf::from).to_vec(),
        }
    }

    /// All existing files with one of these names, best first. Within a folder, the first name is
    /// the best.
    pub fn library_files(&self, names: &[&str]) -> Vec<PathBuf> {
        let folders = self.library_folders().into_iter();
        folders
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
            .filter(|path| path.is_file())
            .collect()
    }

    fn library_folders(&self) -> Vec<PathBuf> {
        let below = |folder: &Path, names: &[&str]| -> Vec<PathBuf> {
            names.iter().map(|name| folder.join(name)).collect()
        };
        let chosen = self.cuda_path.iter();
        let packages = self.package_folders().into_iter();
        chosen
            .flat_map(|toolkit| below(toolkit, &TOOLKIT_LIBRARIES))
            .chain(packages.flat_map(|folder| below(&folder, &PACKAGE_LIBRARIES)))
            .chain(
                self.toolkits
                    .iter()
                    .flat_map(|toolkit| below(toolkit, &TOOLKIT_LIBRARIES)),
            )
            .collect()
    }

    /// The folders `nvidia` of the environments' packages, the newest Python's first.
    fn package_folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for environment in &self.environments {
            for name in PYTHON_FOLDERS {
                let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(environment.join(name))
                    .into_iter()
                    .flatten()
                    .filter_map(|entry| {
                        let path = entry.ok()?.path();
                        let minor = path.file_name()?.to_str()?.strip_prefix("python3.")?;
                        Some((minor.parse().ok()?, path))
                    })
                    .collect();
                versions.sort_by_key(|(minor, _)| std::cmp::Reverse(*minor));
                let packages = versions
                    .into_iter()
                    .flat_map(|(_, python)| PACKAGES.map(|name| python.join(name).join("nvidia")));
                folders.extend(packages);
            }
            // pip install --target ENVIRONMENT
            folders.push(environment.join("nvidia"));
        }
        // `lib64` is often a link to `lib`.
        let mut known = HashSet::new();
        folders.retain(|folder| {
            fs::canonicalize(folder).is_ok_and(|real| real.is_dir() && known.insert(real))
        });
        folders
    }

    /// The headers for a compiler: the best ones with its version, otherwise the best ones.
    ///
    /// - `compiler`: path and version of NVRTC; its own toolkit is also searched
    pub fn headers(&self, compiler: Option<(&Path, (u32, u32))>) -> Option<Headers> {
        // TOOLKIT/lib64/libnvrtc.so, TOOLKIT/targets/x86_64-linux/lib/libnvrtc.so
        let own = compiler.and_then(|(path, _)| fs::canonicalize(path).ok());
        let own = own.iter().flat_map(|path| path.ancestors().skip(2).take(3));
        let packages = self.package_folders();
        let packages = packages
            .iter()
            .flat_map(|folder| PACKAGE_TOOLKITS.map(|name| folder.join(name)));
        let found: Vec<Headers> = self
            .cuda_path
            .iter()
            .cloned()
            .chain(own.map(Path::to_path_buf))
            .chain(packages)
            .chain(self.toolkits.iter().cloned())
            .filter(|toolkit| has_headers(toolkit))
            .map(|toolkit| Headers {
                version: headers_version(&toolkit),
                toolkit,
            })
            .collect();
        let version = compiler.map(|(_, version)| version);
        let matching = found
            .iter()
            .find(|headers| version.is_some() && headers.version == version);
        matching.or(found.first()).cloned()
    }
}

fn has_headers(toolkit: &Path) -> bool {
    let include = toolkit.join("include");
    HEADERS.iter().all(|header| include.join(header).is_file())
}

/// The CUDA version of the headers: `#define CUDA_VERSION 13000` in `cuda.h` is 13.0.
fn headers_version(toolkit: &Path) -> Option<(u32, u32)> {
    let mut start = Vec::new();
    let file = File::open(toolkit.join("include/cuda.h")).ok()?;
    file.take(VERSION_BYTES).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start);
    let mut lines = start.lines();
    let number = lines.find_map(|line| line.strip_prefix("#define CUDA_VERSION "))?;
    let number: u32 = number.trim().parse().ok()?;
    Some((number / 1000, number % 1000 / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, content).expect("written");
    }

    fn add_headers(toolkit: &Path, version: u32) {
        for header in HEADERS {
            touch(&toolkit.join("include").join(header), "");
        }
        let text = format!("#ifndef x\n#define CUDA_VERSION {version}\n");
        touch(&toolkit.join("include/cuda.h"), &text);
    }

    #[test]
    fn libraries_are_found_in_packages_and_toolkits_in_this_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        let search = Search {
            cuda_path: Some(at("chosen")),
            environments: vec![at("venv"), at("target")],
            toolkits: vec![at("cuda")],
        };
        let names = ["libnvrtc.so.13", "libnvrtc.so.12"];
        assert!(search.library_files(&names).is_empty());
        let files = [
            "chosen/targets/x86_64-linux/lib/libnvrtc.so.12",
            "venv/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "venv/lib/python3.13/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "venv/lib/python3.9/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "target/nvidia/cu13/lib/libnvrtc.so.13",
            "cuda/lib64/libnvrtc.so.13",
            "cuda/lib64/libnvrtc.so.12",
        ];
        files.iter().for_each(|file| touch(&at(file), ""));
        // Other libraries, and folders that are not Python's.
        touch(
            &at("venv/lib/python3.13/site-packages/nvidia/cudnn/lib/libcudnn.so.9"),
            "",
        );
        touch(
            &at("venv/lib/perl5/site-packages/nvidia/cu13/lib/libnvrtc.so.13"),
            "",
        );
        #[cfg(unix)]
        std::os::unix::fs::symlink(at("venv/lib"), at("venv/lib64")).expect("linked");
        let expected: Vec<PathBuf> = files.iter().map(|file| at(file)).collect();
        assert_eq!(search.library_files(&names), expected);
    }

    #[test]
    fn headers_have_the_version_of_the_compiler_if_any_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = fs::canonicalize(folder.path()).expect("a path");
        let at = |path: &str| folder.join(path);
        let mut search = Search {
            cuda_path: None,
            environments: vec![at("venv")],
            toolkits: vec![at("cuda")],
        };
        let packaged = at("venv/lib/python3.12/site-packages/nvidia/cu13");
        let nvrtc = packaged.join("lib/libnvrtc.so.13");
        touch(&nvrtc, "");
        let compiler = Some((&*nvrtc, (13, 0)));
        assert_eq!(search.headers(compiler), None);
        add_headers(&at("cuda"), 12_080);
        let headers = |path: PathBuf, version| {
            Some(Headers {
                toolkit: path,
                version: Some(version),
            })
        };
        assert_eq!(search.headers(compiler), headers(at("cuda"), (12, 8)));
        add_headers(&packaged, 13_000);
        assert_eq!(search.headers(compiler), headers(packaged.clone(), (13, 0)));
        // The compiler of a toolkit gets its own headers, although packages come first.
        let nvrtc = at("cuda/lib64/libnvrtc.so.12");
        touch(&nvrtc, "");
        let compiler = Some((&*nvrtc, (12, 8)));
        assert_eq!(search.headers(compiler), headers(at("cuda"), (12, 8)));
        // The user's choice wins among equal versions, and if no version matches.
        add_headers(&at("chosen"), 12_080);
        search.cuda_path = Some(at("chosen"));
        assert_eq!(search.headers(compiler), headers(at("chosen"), (12, 8)));
        assert_eq!(search.headers(None), headers(at("chosen"), (12, 8)));
        let unknown = Some((&*nvrtc, (12, 4)));
        assert_eq!(search.headers(unknown), headers(at("chosen"), (12, 8)));
        // A header is missing: the folder does not count.
        fs::remove_file(at("chosen/include/crt/mma.h")).expect("removed");
        assert_eq!(search.headers(unknown), headers(at("cuda"), (12, 8)));
    }
}
