//! The errors of this crate, one variant per problem with a file.
//!
//! Each message names the file, the location in it, and what to do. The variants have fields, so
//! that a caller can distinguish a full disk from a damaged file.

use std::fmt;
use std::path::{Path, PathBuf};

use tooltune_disk::DiskError;

/// What is wrong with a file that this crate reads or writes.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file or folder cannot be read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),

    /// The model path contains no supported weights.
    #[error(
        "{path} contains no weights: expected {looked_for}{hint}",
        path = path.display()
    )]
    NoWeights {
        /// The directory or file that was searched.
        path: PathBuf,
        /// File names searched for.
        looked_for: &'static str,
        /// Advice about files that were found instead; empty or starting with "; ".
        hint: String,
    },

    /// A file is shorter than its header requires.
    #[error(
        "{path} is truncated: {part} needs {needs} bytes, but the file has {has}; fetch or copy it again",
        path = path.display()
    )]
    Truncated {
        /// Truncated file.
        path: PathBuf,
        /// The part of the file that is cut off.
        part: String,
        /// Minimum length of the file, in bytes.
        needs: u64,
        /// Actual length, in bytes.
        has: u64,
    },

    /// The file does not begin with the magic bytes of its format.
    #[error(
        "{path} is not a {format} file: it begins with {first_bytes}; check that you downloaded the file itself, not an error page or a Git LFS pointer",
        path = path.display()
    )]
    WrongMagic {
        /// File with the wrong first bytes.
        path: PathBuf,
        /// The expected format.
        format: &'static str,
        /// The first bytes, in printable form.
        first_bytes: String,
    },

    /// An unsupported version of the format.
    #[error("{path} has {format} version {version}; supported versions: {supported}{hint}", path = path.display())]
    UnsupportedVersion {
        /// Path of the file.
        path: PathBuf,
        /// Format of the file.
        format: &'static str,
        /// Version in the file.
        version: u32,
        /// Supported versions.
        supported: &'static str,
        /// Advice; empty or starting with "; ".
        hint: &'static str,
    },

    /// The header violates the rules of its format.
    #[error(
        "{path} is damaged at {location}: {problem}; fetch or convert it again",
        path = path.display()
    )]
    Malformed {
        /// Damaged file.
        path: PathBuf,
        /// Location: a byte offset, a key, or a tensor name.
        location: String,
        /// The violated rule.
        problem: String,
    },

    /// A tensor ends beyond the end of the file.
    #[error(
        "{path}: tensor {tensor} ends at byte {end}, but the file has {has}; the file is truncated or its header is damaged: fetch it again",
        path = path.display()
    )]
    TensorOutsideFile {
        /// Path of the file.
        path: PathBuf,
        /// Tensor as named in the file.
        tensor: String,
        /// Offset one past the tensor's last byte.
        end: u64,
        /// Length of the file in bytes.
        has: u64,
    },

    /// The product of a tensor's dimensions, or its size in bytes, does not fit 64 bits.
    #[error(
        "{path}: the size of tensor {tensor} with shape {shape:?} overflows; the header is damaged: fetch the file again",
        path = path.display()
    )]
    SizeOverflow {
        /// Path of the file.
        path: PathBuf,
        /// Tensor as named in the file.
        tensor: String,
        /// Dimensions in the header.
        shape: Vec<u64>,
    },

    /// A tensor has an unsupported data type.
    #[error(
        "{path}: tensor {tensor} is stored as {dtype}, which is not supported; convert the model to one of {supported}",
        path = path.display()
    )]
    UnsupportedDtype {
        /// Path of the file.
        path: PathBuf,
        /// Tensor as named in the file.
        tensor: String,
        /// Data type, with the name in its specification.
        dtype: String,
        /// Supported data types.
        supported: &'static str,
    },

    /// The index of a sharded model lists a file that is absent.
    #[error(
        "{index} lists {n_missing} missing shard(s): {shards}, which contain tensors such as {tensor}; fetch them into the same directory",
        index = index.display()
    )]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// Number of absent shards.
        n_missing: usize,
        /// Absent file names, comma-separated.
        shards: String,
        /// A tensor in the first absent shard.
        tensor: String,
    },

    /// A requested tensor is not in the files.
    #[error("{path} has no tensor {tensor}{hint}", path = path.display())]
    UnknownTensor {
        /// The weights that were searched.
        path: PathBuf,
        /// Requested Hugging Face name.
        tensor: String,
        /// The most likely cause; empty or starting with "; ".
        hint: String,
    },

    /// Two shards contain a tensor of the same name.
    #[error(
        "tensor {tensor} is both in {first} and in {second}; fetch the model again, or remove the shard \
         that does not belong to it",
        first = shards[0].display(), second = shards[1].display()
    )]
    TensorInTwoShards {
        /// Tensor name.
        tensor: String,
        /// The two files, in reading order.
        shards: [PathBuf; 2],
    },

    /// The tensors in the files do not match the model.
    #[error(
        "{path} does not fit the model: {differences}; weights and config belong to different \
         models: fetch both from the same repository",
        path = path.display()
    )]
    TensorsDiffer {
        /// Path of the weights or the adapter.
        path: PathBuf,
        /// All missing, extra and misshapen tensors.
        differences: TensorDifferences,
    },

    /// A JSON file does not parse or has the wrong outer structure.
    #[error(
        "{path}:{line}:{column}: {problem}; restore or fetch the file again",
        path = path.display()
    )]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 for the whole line.
        column: usize,
        /// The parser's message.
        problem: String,
    },

    /// A field of a JSON file or of GGUF metadata is absent or has a wrong value.
    #[error("{path}: {field}: {problem}", path = path.display())]
    Field {
        /// Path of the file.
        path: PathBuf,
        /// Field, with its parents.
        field: String,
        /// The problem and the expected value.
        problem: String,
    },

    /// The file is valid but uses an unsupported feature.
    #[error("{path}: {feature} is not supported; {fix}", path = path.display())]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// The feature and the field that enables it.
        feature: String,
        /// What to do instead.
        fix: &'static str,
    },

    /// A tensor to be saved or loaded as an adapter contains NaN or infinity.
    #[error(
        "tensor {tensor} has the value {value} at element {element_idx}, so {path} is not written; the training diverged: lower the learning rate or resume from an earlier checkpoint",
        path = path.display()
    )]
    NonFinite {
        /// File that would have been written.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Row-major index of the first such element.
        element_idx: usize,
        /// NaN, inf or -inf.
        value: f32,
    },

    /// A value exceeds the range of the data type chosen for writing.
    #[error(
        "{path} is not written: element {element_idx} of tensor {tensor} is {value}, beyond the range of {dtype}; write it as bf16 or f32",
        path = path.display()
    )]
    OutOfRange {
        /// File that would have been written.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Row-major index of the first element out of range.
        element_idx: usize,
        /// The value of that element.
        value: f32,
        /// Chosen data type.
        dtype: &'static str,
    },

    /// Adapter modules that the model or the output format does not have.
    #[error(
        "{path} does not have {n} module(s) of the adapter: {listed}; {fix}",
        path = path.display(), n = modules.len(), listed = Listed(modules)
    )]
    UnmatchedModules {
        /// Base model, or file to be written.
        path: PathBuf,
        /// The modules, by their path in the model.
        modules: Vec<String>,
        /// What to do.
        fix: &'static str,
    },

    /// A program does not load this adapter.
    #[error("{consumer} does not load this adapter: {problem}; {fix}")]
    RefusedBy {
        /// The program, such as "vLLM".
        consumer: &'static str,
        /// Why the program refuses it.
        problem: String,
        /// What to do.
        fix: String,
    },

    /// A tensor's number of values does not match its shape. Only a bug in the caller causes this.
    #[error("tensor {tensor} has shape {shape:?} but {n_values} value(s)")]
    ShapeMismatch {
        /// Name of the tensor.
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Number of values.
        n_values: usize,
    },

    /// A checkpoint does not match its manifest.
    #[error(
        "{path} is not a complete checkpoint: {problem}; choose another one with --checkpoint or --resume",
        path = path.display()
    )]
    DamagedCheckpoint {
        /// Checkpoint directory.
        path: PathBuf,
        /// The first difference from the manifest.
        problem: String,
    },

    /// The run directory was removed or replaced while a run was writing to it.
    #[error(
        "{path}: the run directory was removed or replaced while the run was writing to it; \
         checkpoints saved there are lost: restore it from a copy and resume, or start \
         again",
        path = path.display()
    )]
    RunDirGone {
        /// The run directory.
        path: PathBuf,
    },

    /// The lock file of a run was removed or replaced while the run was writing to its directory.
    #[error(
        "{path}: the lock file of the run was removed or replaced while the run was writing, so \
         another run could write to the same folder; the saved checkpoints are complete: run the \
         same command again to resume",
        path = path.display()
    )]
    LockGone {
        /// The lock file.
        path: PathBuf,
    },

    /// A checkpoint file exists but cannot be read. The checkpoint may be complete.
    #[error(
        "cannot read {path}: {source}; the checkpoint may be complete: look for the cause in the \
             system log (dmesg) and run the same command again, or name an earlier checkpoint",
        path = path.display()
    )]
    UnreadableCheckpoint {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },

    /// A pointer file of a run (`BEST` or `LATEST`) does not parse.
    #[error(
        "{path}: {problem}; run the same `tooltune train` command to restore it from the \
         checkpoints, or name a checkpoint with --checkpoint",
        path = path.display()
    )]
    DamagedPointer {
        /// `BEST` or `LATEST`.
        path: PathBuf,
        /// The parser's message.
        problem: String,
    },

    /// `BEST` names a removed checkpoint.
    #[error(
        "{path} names {checkpoint}, which does not exist; {}; choose another one with \
         `tooltune select RUN --metric METRIC`, or name one with --checkpoint, such as --checkpoint last",
        existing_checkpoints(steps),
        path = path.display()
    )]
    MissingBest {
        /// `BEST`.
        path: PathBuf,
        /// The checkpoint's name.
        checkpoint: String,
        /// The steps of the existing checkpoints.
        steps: Vec<u64>,
    },

    /// Another process writes to the same run directory.
    #[error(
        "{path} is in use by another process; wait for it, stop it, or choose another run name",
        path = path.display()
    )]
    RunInUse {
        /// The run directory.
        path: PathBuf,
    },
}

impl CheckpointError {
    /// Returns a closure for `map_err` that creates a [`DiskError::Io`] with the failed operation.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
        let error = DiskError::io(doing, path);
        move |source| error(source).into()
    }

    /// Returns a closure for `map_err` that creates a [`Json`](Self::Json) error with the parser's
    /// position.
    pub fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> CheckpointError {
        let path = path.to_owned();
        move |e| {
            let (line, column) = (e.line(), e.column());
            let problem = e.to_string();
            // The message already contains the position.
            let position = format!(" at line {line} column {column}");
            CheckpointError::Json {
                path,
                line,
                column,
                problem: problem.trim_end_matches(&position).to_owned(),
            }
        }
    }

    pub(crate) fn field(
        path: &Path,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> CheckpointError {
        CheckpointError::Field {
            path: path.to_owned(),
            field: field.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn malformed(
        path: &Path,
        location: impl Into<String>,
        problem: impl Into<String>,
    ) -> CheckpointError {
        CheckpointError::Malformed {
            path: path.to_owned(),
            location: location.into(),
            problem: problem.into(),
        }
    }
}

/// Describes the existing checkpoints.
fn existing_checkpoints(steps: &[u64]) -> String {
    let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
    match steps.as_slice() {
        [] => "the run has no checkpoints".to_owned(),
        steps => format!("the run has checkpoints at steps {}", steps.join(", ")),
    }
}

/// All differences between expected and actual tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorDifferences {
    /// Expected tensors that are absent.
    pub missing: Vec<String>,
    /// Tensors that are present but not expected.
    pub extra: Vec<String>,
    /// Name, expected shape, found shape.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl TensorDifferences {
    /// Whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.misshapen.is_empty()
    }
}

/// Maximum number of names listed per kind, because a wrong config can affect every tensor of a
/// model.
const MAX_LISTED: usize = 8;

/// Formats at most [`MAX_LISTED`] names, separated by commas.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        f.write_str(&self.0[..n.min(MAX_LISTED)].join(", "))?;
        if n > MAX_LISTED {
            write!(f, " and {} more", n - MAX_LISTED)?;
        }
        Ok(())
    }
}

impl fmt::Display for TensorDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self
            .misshapen
            .iter()
            .map(|(name, expected, found)| format!("{name} is {found:?} instead of {expected:?}"));
        let kinds = [
            ("missing", self.missing.clone()),
            ("extra", self.extra.clone()),
            ("misshapen", shapes.collect()),
        ];
        let mut separator = "";
        for (kind, tensors) in kinds.iter().filter(|(_, tensors)| !tensors.is_empty()) {
            let (n, listed) = (tensors.len(), Listed(tensors));
            write!(f, "{separator}{n} {kind} tensor(s): {listed}")?;
            separator = "; ";
        }
        Ok(())
    }
}
