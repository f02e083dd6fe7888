//! Stores tokenized examples on disk: written sequentially, read in any order.
//!
//! There are two files: the concatenated examples, and an index with one fixed-length entry per
//! example. Memory contains one example at a time and the token counts of all examples, which
//! determine the order of a run. Token ids are variable-length integers and weights are run-length
//! encoded, about two bytes per token. Each example has a checksum, so corrupt data is an error.
//! Each file also has a checksum ([`Examples::checksums`]), which is verified before the first
//! step.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_disk::leb128::{put_number, take_number};

use crate::text::TokenizedExample;

/// Bytes of an index entry: offset, bytes, tokens, supervised tokens and checksum of an example.
const ENTRY_BYTES: usize = 24;

/// Errors of examples on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExamplesError {
    /// A file cannot be read.
    #[error("{}: cannot read prepared examples: {error}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// System error.
        error: io::Error,
    },
    /// A file is corrupt.
    #[error(
        "{}: prepared example {number} (from 0) is damaged; run the same command again \
         to prepare the rows again",
        path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Number of the example.
        number: usize,
    },
}

/// Writes examples sequentially.
#[derive(Debug)]
pub struct ExampleWriter<E: Write, I: Write> {
    examples: BufWriter<E>,
    index: BufWriter<I>,
    offset: u64,
    buffer: Vec<u8>,
}

impl<E: Write, I: Write> ExampleWriter<E, I> {
    /// Creates a writer from two empty files.
    pub fn new(examples: E, index: I) -> Self {
        Self {
            examples: BufWriter::with_capacity(1 << 18, examples),
            index: BufWriter::with_capacity(1 << 16, index),
            offset: 0,
            buffer: Vec::new(),
        }
    }

    /// Appends an example.
    ///
    /// # Errors
    ///
    /// - a file cannot be written
    pub fn push(&mut self, example: &TokenizedExample) -> io::Result<()> {
        self.buffer.clear();
        encode(example, &mut self.buffer);
        self.examples.write_all(&self.buffer)?;
        let number = |n: usize| u32::try_from(n).map_err(io::Error::other);
        self.index.write_all(&self.offset.to_le_bytes())?;
        for n in [
            number(self.buffer.len())?,
            number(example.input_ids.len())?,
            number(example.n_trained_tokens())?,
            crc32c::crc32c(&self.buffer),
        ] {
            self.index.write_all(&n.to_le_bytes())?;
        }
        self.offset += self.buffer.len() as u64;
        Ok(())
    }

    /// Flushes the files.
    ///
    /// # Errors
    ///
    /// - a file cannot be written
    pub fn finish(mut self) -> io::Result<()> {
        self.examples.flush()?;
        self.index.flush()
    }
}

/// CRC-32C checksums of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksums {
    /// Checksum of the example file.
    pub examples: u32,
    /// Checksum of the index.
    pub index: u32,
}

/// Lengths of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleLength {
    /// Number of tokens.
    pub n_tokens: u32,
    /// Number of supervised tokens.
    pub n_trained_tokens: u32,
}

impl ExampleLength {
    fn from_example(example: &TokenizedExample) -> Option<Self> {
        Some(Self {
            n_tokens: u32::try_from(example.input_ids.len()).ok()?,
            n_trained_tokens: u32::try_from(example.n_trained_tokens()).ok()?,
        })
    }
}

/// Examples on disk.
#[derive(Debug)]
pub struct Examples {
    path: PathBuf,
    examples: File,
    index: File,
    lengths: Vec<ExampleLength>,
}

impl Examples {
    /// Opens the two files that an [`ExampleWriter`] wrote; `path` names them in errors.
    ///
    /// # Errors
    ///
    /// - a file cannot be read or is incomplete
    pub fn open(path: &Path, examples: File, index: File) -> Result<Self, ExamplesError> {
        let unreadable = |error| ExamplesError::Unreadable {
            path: path.to_owned(),
            error,
        };
        let n_bytes = examples.metadata().map_err(unreadable)?.len();
        let index_bytes = index.metadata().map_err(unreadable)?.len();
        let n_examples = usize::try_from(index_bytes).unwrap_or_default() / ENTRY_BYTES;
        let mut lengths = Vec::with_capacity(n_examples);
        let mut reader = BufReader::with_capacity(1 << 16, index);
        let mut bytes = [0; ENTRY_BYTES];
        let mut end = 0;
        for number in 0..n_examples {
            reader.read_exact(&mut bytes).map_err(unreadable)?;
            let entry = Entry::from_bytes(&bytes);
            if entry.offset != end {
                let path = path.to_owned();
                return Err(ExamplesError::Damaged { path, number });
            }
            end += u64::from(entry.n_bytes);
            lengths.push(entry.length);
        }
        if end != n_bytes || !index_bytes.is_multiple_of(ENTRY_BYTES as u64) {
            let (path, number) = (path.to_owned(), n_examples);
            return Err(ExamplesError::Damaged { path, number });
        }
        Ok(Self {
            path: path.to_owned(),
            examples,
            index: reader.into_inner(),
            lengths,
        })
    }

    /// Computes the checksums of both files; reads them completely.
    ///
    /// # Errors
    ///
    /// - a file cannot be read
    pub fn checksums(&self) -> Result<Checksums, ExamplesError> {
        let checksum_of = |file: &File| {
            checksum(file).map_err(|error| ExamplesError::Unreadable {
                path: self.path.clone(),
                error,
            })
        };
        Ok(Checksums {
            examples: checksum_of(&self.examples)?,
            index: checksum_of(&self.index)?,
        })
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there are no examples.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Lengths of all examples, in order.
    pub fn lengths(&self) -> &[ExampleLength] {
        &self.lengths
    }

    /// Tokens of the longest example; 0 if there are none.
    pub fn longest(&self) -> usize {
        let lengths = self.lengths.iter().map(|length| length.n_tokens as usize);
        lengths.max().unwrap_or_default()
    }

    /// Reads one example.
    ///
    /// # Errors
    ///
    /// - it cannot be read or is corrupt
    pub fn get(&self, number: usize) -> Result<TokenizedExample, ExamplesError> {
        let unreadable = |error| ExamplesError::Unreadable {
            path: self.path.clone(),
            error,
        };
        let damaged = || ExamplesError::Damaged {
            path: self.path.clone(),
            number,
        };
        let mut bytes = [0; ENTRY_BYTES];
        let position = number as u64 * ENTRY_BYTES as u64;
        read_exact_at(&self.index, position, &mut bytes).map_err(unreadable)?;
        let entry = Entry::from_bytes(&bytes);
        if self.lengths.get(number) != Some(&entry.length) {
            return Err(damaged());
        }
        // Do not allocate more than the file size, even if the entry is corrupt.
        let end = entry.offset.saturating_add(u64::from(entry.n_bytes));
        if end > self.examples.metadata().map_err(unreadable)?.len() {
            return Err(damaged());
        }
        let mut bytes = vec![0; entry.n_bytes as usize];
        read_exact_at(&self.examples, entry.offset, &mut bytes).map_err(unreadable)?;
        if crc32c::crc32c(&bytes) != entry.checksum {
            return Err(damaged());
        }
        decode(&bytes)
            .filter(|example| ExampleLength::from_example(example) == Some(entry.length))
            .ok_or_else(damaged)
    }

    /// Id of an example, for errors.
    pub fn id(&self, number: usize) -> String {
        let example = self.get(number);
        example.map_or_else(
            |_| format!("number {number} (from 0)"),
            |example| example.id,
        )
    }
}

fn checksum(file: &File) -> io::Result<u32> {
    let length = file.metadata()?.len();
    let mut part = vec![0; 1 << 20];
    let (mut at, mut sum) = (0, 0);
    while at < length {
        let n = usize::try_from(length - at).unwrap_or(usize::MAX);
        let part = &mut part[..n.min(1 << 20)];
        read_exact_at(file, at, part)?;
        sum = crc32c::crc32c_append(sum, part);
        at += part.len() as u64;
    }
    Ok(sum)
}

struct Entry {
    offset: u64,
    n_bytes: u32,
    length: ExampleLength,
    checksum: u32,
}

impl Entry {
    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let number = |at: usize| {
            let mut part = [0; 4];
            part.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(part)
        };
        Self {
            offset: u64::from(number(0)) | (u64::from(number(4)) << 32),
            n_bytes: number(8),
            length: ExampleLength {
                n_tokens: number(12),
                n_trained_tokens: number(16),
            },
            checksum: number(20),
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

fn encode(example: &TokenizedExample, bytes: &mut Vec<u8>) {
    put_number(bytes, example.id.len() as u64);
    bytes.extend_from_slice(example.id.as_bytes());
    put_number(bytes, example.input_ids.len() as u64);
    for &id in &example.input_ids {
        put_number(bytes, u64::from(id));
    }
    // Compare bits, so that every weight is restored exactly.
    for run in example
        .loss_weights
        .chunk_by(|a, b| a.to_bits() == b.to_bits())
    {
        put_number(bytes, run.len() as u64);
        bytes.extend_from_slice(&run[0].to_le_bytes());
    }
}

fn decode(mut bytes: &[u8]) -> Option<TokenizedExample> {
    let bytes = &mut bytes;
    let n_id = usize::try_from(take_number(bytes)?).ok()?;
    let id = String::from_utf8(bytes.split_off(..n_id)?.to_vec()).ok()?;
    let n_tokens = usize::try_from(take_number(bytes)?).ok()?;
    let mut input_ids = Vec::with_capacity(n_tokens.min(bytes.len()));
    for _ in 0..n_tokens {
        input_ids.push(u32::try_from(take_number(bytes)?).ok()?);
    }
    let mut loss_weights = Vec::with_capacity(input_ids.len());
    while !bytes.is_empty() {
        let n = usize::try_from(take_number(bytes)?).ok()?;
        let weight = f32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?);
        if n > n_tokens - loss_weights.len() {
            return None;
        }
        loss_weights.resize(loss_weights.len() + n, weight);
    }
    (loss_weights.len() == n_tokens).then_some(TokenizedExample {
        id,
        input_ids,
        loss_weights,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn example(number: usize) -> TokenizedExample {
        TokenizedExample {
            id: format!("rows.jsonl:{number}"),
            input_ids: (0..number as u32 * 3).map(|id| id * 977).collect(),
            loss_weights: (0..number * 3).map(|t| (t / 4) as f32 * 0.5).collect(),
        }
    }

    fn write_examples(dir: &Path, examples: &[TokenizedExample]) {
        let file = |name: &str| File::create(dir.join(name)).expect("a file");
        let mut writer = ExampleWriter::new(file("examples"), file("index"));
        for example in examples {
            writer.push(example).expect("written");
        }
        writer.finish().expect("written");
    }

    fn open(dir: &Path) -> Result<Examples, ExamplesError> {
        let file = |name: &str| File::open(dir.join(name)).expect("a file");
        Examples::open(dir, file("examples"), file("index"))
    }

    #[test]
    fn examples_are_read_back_unchanged_in_any_order() {
        let dir = tempfile::tempdir().expect("a folder");
        let all: Vec<_> = (1..40).map(example).collect();
        write_examples(dir.path(), &all);
        let examples = open(dir.path()).expect("opens");
        assert_eq!((examples.len(), examples.longest()), (39, 117));
        for number in (0..39).rev() {
            let length = examples.lengths()[number];
            assert_eq!(length.n_tokens as usize, all[number].input_ids.len());
            let n_trained = all[number].n_trained_tokens();
            assert_eq!(length.n_trained_tokens as usize, n_trained);
            assert_eq!(examples.get(number).expect("reads"), all[number]);
        }
        assert_eq!(examples.id(2), "rows.jsonl:3");
    }

    /// Invariant: A cached example set is complete and serves only the rows, settings and program
    /// that made it.
    #[test]
    fn damaged_example_files_never_give_a_different_example() {
        let dir = tempfile::tempdir().expect("a folder");
        let all: Vec<_> = (1..4).map(example).collect();
        write_examples(dir.path(), &all);
        let sums = open(dir.path()).expect("opens").checksums().expect("reads");
        for name in ["examples", "index"] {
            let path = dir.path().join(name);
            let intact = fs::read(&path).expect("read");
            for at in 0..intact.len() {
                let mut damaged = intact.clone();
                damaged[at] ^= 0x41;
                fs::write(&path, &damaged).expect("written");
                let Ok(examples) = open(dir.path()) else {
                    continue;
                };
                assert_ne!(
                    examples.checksums().expect("reads"),
                    sums,
                    "{name}, byte {at}"
                );
                let results = (0..3).map(|number| examples.get(number));
                let results: Vec<_> = results.collect();
                let is_told = results.iter().any(Result::is_err);
                assert!(is_told, "{name}, byte {at}: {results:?}");
                let good = results.iter().zip(&all);
                assert!(good.into_iter().all(|(result, right)| {
                    result.as_ref().map_or(true, |result| result == right)
                }));
            }
            for length in 0..intact.len() {
                fs::write(&path, &intact[..length]).expect("written");
                let error = open(dir.path()).expect_err("cut").to_string();
                assert!(
                    error.contains("is damaged; run the same command again"),
                    "{error}"
                );
            }
            fs::write(&path, &intact).expect("written");
        }
    }

    proptest! {
        #[test]
        fn every_example_is_read_back_unchanged(
            id in ".*",
            tokens in prop::collection::vec((any::<u32>(), any::<u32>()), 0..50),
        ) {
            let (input_ids, bits): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
            let loss_weights = bits.into_iter().map(f32::from_bits).collect();
            let example = TokenizedExample { id, input_ids, loss_weights };
            let mut bytes = Vec::new();
            encode(&example, &mut bytes);
            let back = decode(&bytes).expect("an example");
            let bits = |example: &TokenizedExample| -> Vec<u32> {
                example.loss_weights.iter().map(|weight| weight.to_bits()).collect()
            };
            prop_assert_eq!(bits(&back), bits(&example));
            prop_assert_eq!((back.id, back.input_ids), (example.id, example.input_ids));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
