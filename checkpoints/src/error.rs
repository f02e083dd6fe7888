//! Everything that can be wrong with a file of this crate, one documented variant each.
//!
//! Each message names the file, the place in it, and what to do. The variants carry their parts
//! as fields, so that a caller can decide by kind (a full disk is not a damaged file).

use std::fmt;
use std::path::{Path, PathBuf};

/// What is wrong with a file that this crate reads or writes.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused to read, list, rename or remove something.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// File or directory concerned.
        path: PathBuf,
        /// Verb for the message, as in "read".
        doing: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A file could not be written completely, most often because the disk is full.
    #[error(
        "cannot write {path} ({bytes} bytes needed): {source}; {advice}",
        path = path.display(), advice = write_advice(source)
    )]
    Write {
        /// File being written.
        path: PathBuf,
        /// Size that the whole file would have had.
        bytes: u64,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// The place given as a model holds no weights that this crate reads.
    #[error(
        "{path} holds no weights: looked for {looked_for}{hint}",
        path = path.display()
    )]
    NoWeights {
        /// Directory or file searched.
        path: PathBuf,
        /// File names searched for.
        looked_for: &'static str,
        /// Advice that fits what was found instead; empty or beginning with "; ".
        hint: String,
    },

    /// A file ends before its header says it does.
    #[error(
        "{path} is truncated: {what} needs {needs} bytes and the file has {has}; fetch or copy it again",
        path = path.display()
    )]
    Truncated {
        /// Truncated file.
        path: PathBuf,
        /// Part of the file that does not fit.
        what: String,
        /// Length the file should at least have, in bytes.
        needs: u64,
        /// Length the file has, in bytes.
        has: u64,
    },

    /// The file's first bytes are not those of its format.
    #[error(
        "{path} is not a {format} file: it begins with {found}; check that the download is the file itself and not an error page or a Git LFS pointer",
        path = path.display()
    )]
    WrongMagic {
        /// File with the wrong first bytes.
        path: PathBuf,
        /// Format that was expected.
        format: &'static str,
        /// The first bytes, printable.
        found: String,
    },

    /// A version of the format that is not read.
    #[error("{path} has {format} version {found}; read are {supported}{hint}", path = path.display())]
    UnsupportedVersion {
        /// File concerned.
        path: PathBuf,
        /// Format of the file.
        format: &'static str,
        /// Version in the file.
        found: u32,
        /// Versions that are read.
        supported: &'static str,
        /// Advice; empty or beginning with "; ".
        hint: &'static str,
    },

    /// The header breaks the rules of its format.
    #[error(
        "{path} is damaged at {at}: {problem}; fetch or convert it again",
        path = path.display()
    )]
    Malformed {
        /// Damaged file.
        path: PathBuf,
        /// Where: a byte offset, a key, or a tensor's name.
        at: String,
        /// Which rule is broken.
        problem: String,
    },

    /// A tensor's bytes would end behind the end of the file.
    #[error(
        "{path}: tensor {tensor} ends at byte {end} but the file has {has}; the file is truncated or its header damaged, fetch it again",
        path = path.display()
    )]
    TensorOutsideFile {
        /// File concerned.
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
        "{path}: the size of tensor {tensor} with shape {shape:?} overflows; the header is damaged, fetch the file again",
        path = path.display()
    )]
    SizeOverflow {
        /// File concerned.
        path: PathBuf,
        /// Tensor as named in the file.
        tensor: String,
        /// Dimensions in the header.
        shape: Vec<u64>,
    },

    /// A tensor is stored in a number format that is not read.
    #[error(
        "{path}: tensor {tensor} is stored as {dtype}; read are {supported}; convert the model to one of these",
        path = path.display()
    )]
    UnsupportedDtype {
        /// File concerned.
        path: PathBuf,
        /// Tensor as named in the file.
        tensor: String,
        /// Number format as its specification names it.
        dtype: String,
        /// Formats that are read.
        supported: &'static str,
    },

    /// The index of a sharded model names a file that is absent.
    #[error(
        "{index} names {n_missing} missing shard(s): {shards}; tensors such as {tensor} are in there; fetch them into the same directory",
        index = index.display()
    )]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// How many shards are absent.
        n_missing: usize,
        /// Absent file names, comma-separated.
        shards: String,
        /// One tensor of the first absent shard.
        tensor: String,
    },

    /// A tensor was asked for that the files do not hold.
    #[error("{path} has no tensor {tensor}{hint}", path = path.display())]
    UnknownTensor {
        /// Weights searched.
        path: PathBuf,
        /// Hugging Face name asked for.
        tensor: String,
        /// The nearest cause that could be found; empty or beginning with "; ".
        hint: String,
    },

    /// The tensors in the files are not those of the model.
    #[error(
        "{path} does not fit the model: {differences}; weights and config are of different models, \
         fetch both from one place",
        path = path.display()
    )]
    TensorsDiffer {
        /// Weights or adapter concerned.
        path: PathBuf,
        /// All that is missing, extra or misshapen.
        differences: TensorDifferences,
    },

    /// A JSON file does not parse or lacks its outer form.
    #[error(
        "{path}:{line}:{column}: {problem}; bring back a whole copy of the file",
        path = path.display()
    )]
    Json {
        /// File concerned.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 where the whole line is meant.
        column: usize,
        /// What the parser expected.
        problem: String,
    },

    /// A field of a JSON file or of GGUF metadata is absent or has a wrong value.
    #[error("{path}: {field}: {problem}", path = path.display())]
    Field {
        /// File concerned.
        path: PathBuf,
        /// Field, with its parents.
        field: String,
        /// What is wrong and what would be right.
        problem: String,
    },

    /// The file is in order but asks for something that cannot be honoured here.
    #[error("{path}: {feature} is not supported; {fix}", path = path.display())]
    Unsupported {
        /// File concerned.
        path: PathBuf,
        /// The feature, with the field that asks for it.
        feature: String,
        /// What to do instead.
        fix: &'static str,
    },

    /// A tensor to be saved or loaded as an adapter contains NaN or infinity.
    #[error(
        "tensor {tensor} holds {value} at element {element_idx}, so {path} is not written; the training diverged: lower the learning rate or resume from an earlier checkpoint",
        path = path.display()
    )]
    NonFinite {
        /// File that would have been written.
        path: PathBuf,
        /// Tensor concerned.
        tensor: String,
        /// Row-major index of the first such element.
        element_idx: usize,
        /// NaN, inf or -inf.
        value: f32,
    },

    /// A value to be written lies beyond the range of the format chosen for it.
    #[error(
        "{path} is not written: element {element_idx} of tensor {tensor} is {value}, beyond the range of {dtype}; write it as bf16 or f32",
        path = path.display()
    )]
    OutOfRange {
        /// File that would have been written.
        path: PathBuf,
        /// Tensor concerned.
        tensor: String,
        /// Row-major index of the first such element.
        element_idx: usize,
        /// The value.
        value: f32,
        /// Format chosen.
        dtype: &'static str,
    },

    /// Modules of an adapter that the model, or the format to be written, does not have.
    #[error(
        "{path} has no place for {n} module(s) of the adapter: {listed}; {fix}",
        path = path.display(), n = modules.len(), listed = Listed(modules)
    )]
    UnmatchedModules {
        /// Base model, or file to be written.
        path: PathBuf,
        /// The modules, by their place in the model.
        modules: Vec<String>,
        /// What to do.
        fix: &'static str,
    },

    /// A program that loads adapters does not load this one.
    #[error("{consumer} does not load this adapter: {problem}; {fix}")]
    RefusedBy {
        /// The program, such as "vLLM".
        consumer: &'static str,
        /// What it does not take.
        problem: String,
        /// What to do.
        fix: String,
    },

    /// A tensor's values do not fill its shape. Only a bug in the caller causes this.
    #[error("tensor {tensor} has shape {shape:?} but {n_values} values")]
    ShapeMismatch {
        /// Tensor concerned.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Values it carries.
        n_values: usize,
    },

    /// The output exists already and is not overwritten.
    #[error("{path} exists already; remove it or choose another name", path = path.display())]
    AlreadyExists {
        /// The existing file or directory.
        path: PathBuf,
    },

    /// A checkpoint fails its manifest.
    #[error(
        "{path} is not a complete checkpoint: {problem}; resume from another one",
        path = path.display()
    )]
    DamagedCheckpoint {
        /// Checkpoint directory.
        path: PathBuf,
        /// First disagreement found.
        problem: String,
    },

    /// The run directory was removed, or another one stands in its place, while a run was writing
    /// to it.
    #[error(
        "{path}: the folder of the run was removed or replaced while the run was writing to it; what \
         it had saved there is gone: bring the folder back from a copy and go on, or begin again",
        path = path.display()
    )]
    RunDirGone {
        /// The run directory.
        path: PathBuf,
    },

    /// A file of a checkpoint is there and cannot be read; the checkpoint may be whole.
    #[error(
        "cannot read {path}: {source}; the checkpoint may be whole: look for the cause in the \
         system's log (dmesg) and run the same command again, or name an earlier checkpoint",
        path = path.display()
    )]
    UnreadableCheckpoint {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A pointer file of a run does not parse.
    #[error(
        "{path}: {problem}; the same `tooltune train` command finds it again from the checkpoints, \
         and --checkpoint names one without it",
        path = path.display()
    )]
    DamagedPointer {
        /// `BEST` or `LATEST`.
        path: PathBuf,
        /// What the parser says.
        problem: String,
    },

    /// Another process works in the same folder.
    #[error(
        "{path} is in use by another process; wait for it, stop it, or name another folder",
        path = path.display()
    )]
    FolderInUse {
        /// The folder.
        path: PathBuf,
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

/// What to do about a write that failed, and what did not.
fn write_advice(source: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let advice = match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space on that file system, lower save_total_limit, or choose another output directory"
        }
        ErrorKind::FileTooLarge => {
            "the file system, or a limit of the process, allows no larger file: choose another file \
             system, or raise the limit"
        }
        ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty => {
            "a folder has that name: move it away, or choose another name"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "that file system is read-only: mount it for writing, or choose another output directory"
        }
        ErrorKind::PermissionDenied => {
            "write to a folder that you may write to, or change its permissions"
        }
        // Where a folder is not there, nothing was saved in it.
        ErrorKind::NotFound => {
            return "its folder is not there: make it, or choose another one".to_owned();
        }
        _ => "look for the cause in the system's log (dmesg), then run the same command again",
    };
    format!("{advice}; what was saved before is untouched")
}

impl CheckpointError {
    /// For `map_err`: an [`Io`](Self::Io) error with the verb that failed.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
        let path = path.to_owned();
        move |source| CheckpointError::Io {
            path,
            doing,
            source,
        }
    }

    /// For `map_err`: a [`Json`](Self::Json) error with the parser's position.
    pub fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> CheckpointError {
        let path = path.to_owned();
        move |e| {
            let (line, column) = (e.line(), e.column());
            let problem = e.to_string();
            // The place is said before.
            let own_place = format!(" at line {line} column {column}");
            CheckpointError::Json {
                path,
                line,
                column,
                problem: problem.trim_end_matches(&own_place).to_owned(),
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
        at: impl Into<String>,
        problem: impl Into<String>,
    ) -> CheckpointError {
        CheckpointError::Malformed {
            path: path.to_owned(),
            at: at.into(),
            problem: problem.into(),
        }
    }
}

/// All differences between the tensors expected and those found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorDifferences {
    /// Expected and absent.
    pub missing: Vec<String>,
    /// Present and not expected.
    pub extra: Vec<String>,
    /// Name, expected shape, found shape.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl TensorDifferences {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.misshapen.is_empty()
    }
}

/// Names listed of each kind; a wrong config can concern every tensor of a model.
const N_LISTED: usize = 8;

/// Names separated by commas, no more than [`N_LISTED`] of them.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        f.write_str(&self.0[..n.min(N_LISTED)].join(", "))?;
        if n > N_LISTED {
            write!(f, " and {} more", n - N_LISTED)?;
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
