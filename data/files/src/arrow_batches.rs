//! Decodes the batches of an Arrow IPC file or stream, after checking their declared sizes.
//!
//! A message declares the length of each buffer before and after compression. The decoder crate
//! allocates the declared size, so one flipped bit can request petabytes. Each length is therefore
//! limited by the maximum expansion of its compressed bytes and by [`COLUMN_BYTES`].

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use crate::budgets::COLUMN_BYTES;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::{read_dictionary, read_footer_length, read_record_batch};
use arrow_ipc::{
    CompressionType, Message, MessageHeader, convert, root_as_footer, root_as_message,
};
use arrow_schema::SchemaRef;
use tooltune_json::budgets::FILE_ROWS;

use crate::columns::{ColumnFault, catch_panics};

/// The marker before the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The end of a file: footer length and magic bytes.
const TRAILER_BYTES: u64 = 10;

/// Maximum LZ4 expansion: each length byte adds at most 255 bytes.
const LZ4_GROWTH: usize = 255;

/// A message of a file or a stream.
struct Part {
    metadata: Vec<u8>,
    body: Buffer,
}

enum Source {
    File {
        file: File,
        blocks: std::vec::IntoIter<MessageBlock>,
    },
    Stream(BufReader<File>),
}

/// The position of a message in a file.
#[derive(Clone, Copy)]
struct MessageBlock {
    offset: u64,
    metadata: u64,
    body: u64,
}

/// The batches of a file or a stream.
pub(crate) struct ArrowBatches {
    source: Source,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
    dictionary_bytes: HashMap<i64, usize>,
    n_rows: usize,
}

impl ArrowBatches {
    pub(crate) fn from_file(mut file: File) -> Result<Self, ColumnFault> {
        let length = file.metadata()?.len();
        let footer = footer(&mut file, length)?;
        let footer = root_as_footer(&footer)
            .map_err(|error| damaged_file(format!("its footer cannot be read: {error}")))?;
        let dictionaries =
            MessageBlock::read_all(footer.dictionaries().into_iter().flatten(), length)?;
        let blocks = MessageBlock::read_all(footer.recordBatches().into_iter().flatten(), length)?;
        let schema = footer
            .schema()
            .ok_or_else(|| damaged_file("it has no schema"))?;
        check_little_endian(schema)?;
        let mut batches = Self {
            schema: Arc::new(convert::try_fb_to_schema(schema)?),
            source: Source::File {
                file,
                blocks: blocks.into_iter(),
            },
            dictionaries: HashMap::new(),
            dictionary_bytes: HashMap::new(),
            n_rows: 0,
        };
        for block in dictionaries {
            let Source::File { file, .. } = &mut batches.source else {
                break;
            };
            let part = block.read(file)?;
            batches.decode(&part)?;
        }
        Ok(batches)
    }

    pub(crate) fn from_stream(file: File) -> Result<Self, ColumnFault> {
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let first = next_part(&mut reader)?.ok_or_else(|| damaged_file("it is empty"))?;
        let message = message(&first.metadata)?;
        let schema = message.header_as_schema();
        let schema = schema.ok_or_else(|| damaged_file("it does not begin with a schema"))?;
        check_little_endian(schema)?;
        Ok(Self {
            schema: Arc::new(convert::try_fb_to_schema(schema)?),
            source: Source::Stream(reader),
            dictionaries: HashMap::new(),
            dictionary_bytes: HashMap::new(),
            n_rows: 0,
        })
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ColumnFault> {
        loop {
            let part = match &mut self.source {
                Source::File { file, blocks } => match blocks.next() {
                    Some(block) => block.read(file)?,
                    None => return Ok(None),
                },
                Source::Stream(reader) => match next_part(reader)? {
                    Some(part) => part,
                    None => return Ok(None),
                },
            };
            if let Some(batch) = self.decode(&part)? {
                return Ok(Some(batch));
            }
        }
    }

    /// Decodes the batch of a message. A dictionary is stored and returns `None`.
    fn decode(&mut self, part: &Part) -> Result<Option<RecordBatch>, ColumnFault> {
        let message = message(&part.metadata)?;
        let version = message.version();
        match message.header_type() {
            MessageHeader::RecordBatch => {
                let batch = message
                    .header_as_record_batch()
                    .ok_or_else(|| damaged_file("a batch has no header"))?;
                let dictionary_bytes: usize = self.dictionary_bytes.values().sum();
                check_size(dictionary_bytes.saturating_add(decoded_bytes(batch, &part.body)?))?;
                let n_rows = usize::try_from(batch.length()).unwrap_or(usize::MAX);
                self.n_rows = self.n_rows.saturating_add(n_rows);
                if self.n_rows > FILE_ROWS {
                    return Err(ColumnFault::Rows);
                }
                let schema = Arc::clone(&self.schema);
                let dictionaries = &self.dictionaries;
                let read =
                    read_record_batch(&part.body, batch, schema, dictionaries, None, &version);
                Ok(Some(read?))
            }
            MessageHeader::DictionaryBatch => {
                let batch = message
                    .header_as_dictionary_batch()
                    .ok_or_else(|| damaged_file("a dictionary has no header"))?;
                let values = batch
                    .data()
                    .ok_or_else(|| damaged_file("a dictionary has no values"))?;
                let bytes = decoded_bytes(values, &part.body)?;
                let dictionary_total = self.dictionary_bytes.entry(batch.id()).or_default();
                *dictionary_total = if batch.isDelta() {
                    dictionary_total.saturating_add(bytes)
                } else {
                    bytes
                };
                check_size(self.dictionary_bytes.values().sum())?;
                let (schema, dictionaries) = (&self.schema, &mut self.dictionaries);
                read_dictionary(&part.body, batch, schema, dictionaries, &version)?;
                Ok(None)
            }
            MessageHeader::NONE => Ok(None),
            other => Err(damaged_file(format!("a message is {other:?}, not a batch"))),
        }
    }
}

impl Iterator for ArrowBatches {
    type Item = Result<RecordBatch, ColumnFault>;

    fn next(&mut self) -> Option<Self::Item> {
        catch_panics(|| self.next_batch()).transpose()
    }
}

impl MessageBlock {
    fn read_all<'b>(
        blocks: impl Iterator<Item = &'b arrow_ipc::Block>,
        length: u64,
    ) -> Result<Vec<Self>, ColumnFault> {
        blocks
            .map(|block| Self::from_block(block, length))
            .collect()
    }

    /// Reads the location of a message from a block of the footer; `length` is the length of the
    /// file.
    fn from_block(block: &arrow_ipc::Block, length: u64) -> Result<Self, ColumnFault> {
        let outside = || damaged_file("a batch is outside the file");
        let number = |n: i64| u64::try_from(n).map_err(|_| outside());
        let block_range = Self {
            offset: number(block.offset())?,
            metadata: number(i64::from(block.metaDataLength()))?,
            body: number(block.bodyLength())?,
        };
        let end = block_range.offset.saturating_add(block_range.metadata);
        match end.saturating_add(block_range.body) <= length {
            true => Ok(block_range),
            false => Err(outside()),
        }
    }

    fn read(self, file: &mut File) -> Result<Part, ColumnFault> {
        check_size(usize::try_from(self.body).unwrap_or(usize::MAX))?;
        file.seek(SeekFrom::Start(self.offset))?;
        let metadata = exactly(file, self.metadata)?;
        // The message length, preceded by the continuation marker except in files of old writers.
        let begin = if metadata.starts_with(&CONTINUATION) {
            8
        } else {
            4
        };
        let metadata = metadata.get(begin..).map(<[u8]>::to_vec);
        Ok(Part {
            metadata: metadata.ok_or_else(|| damaged_file("a message has no header"))?,
            body: Buffer::from_vec(exactly(file, self.body)?),
        })
    }
}

fn footer(file: &mut File, length: u64) -> Result<Vec<u8>, ColumnFault> {
    let cut_off = || damaged_file("the file is cut off");
    let end = length.checked_sub(TRAILER_BYTES).ok_or_else(cut_off)?;
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.seek(SeekFrom::Start(end))?;
    file.read_exact(&mut trailer)?;
    let footer_bytes = read_footer_length(trailer)? as u64;
    file.seek(SeekFrom::Start(
        end.checked_sub(footer_bytes).ok_or_else(cut_off)?,
    ))?;
    exactly(file, footer_bytes)
}

/// The next message of a stream; `None` at its end.
fn next_part(reader: &mut BufReader<File>) -> Result<Option<Part>, ColumnFault> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    if length == CONTINUATION {
        reader.read_exact(&mut length)?;
    }
    let length = match i32::from_le_bytes(length) {
        0 => return Ok(None),
        length => u64::try_from(length).map_err(|_| damaged_file("a message has no length"))?,
    };
    let metadata = exactly(reader, length)?;
    let body = u64::try_from(message(&metadata)?.bodyLength());
    let body = body.map_err(|_| damaged_file("a batch has no length"))?;
    check_size(usize::try_from(body).unwrap_or(usize::MAX))?;
    let body = Buffer::from_vec(exactly(reader, body)?);
    Ok(Some(Part { metadata, body }))
}

/// Reads exactly `n` bytes. Memory grows with the bytes that exist, not with the declared number.
fn exactly(reader: &mut impl Read, n: u64) -> Result<Vec<u8>, ColumnFault> {
    let mut bytes = Vec::new();
    reader.take(n).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == n {
        true => Ok(bytes),
        false => Err(damaged_file("the file is cut off")),
    }
}

fn message(metadata: &[u8]) -> Result<Message<'_>, ColumnFault> {
    root_as_message(metadata)
        .map_err(|error| damaged_file(format!("the header of a message cannot be read: {error}")))
}

fn check_little_endian(schema: arrow_ipc::Schema<'_>) -> Result<(), ColumnFault> {
    match schema.endianness().equals_to_target_endianness() {
        true => Ok(()),
        false => Err(damaged_file(
            "its numbers are big-endian, which is not supported",
        )),
    }
}

/// The declared size of a batch after decompression.
fn decoded_bytes(batch: arrow_ipc::RecordBatch<'_>, body: &[u8]) -> Result<usize, ColumnFault> {
    let codec = batch.compression().map(|compression| compression.codec());
    let mut sum = 0_usize;
    for buffer in batch.buffers().into_iter().flatten() {
        let outside = || damaged_file("a column is outside its batch");
        let offset = usize::try_from(buffer.offset()).map_err(|_| outside())?;
        let length = usize::try_from(buffer.length()).map_err(|_| outside())?;
        let bytes = body.get(offset..).and_then(|rest| rest.get(..length));
        let bytes = bytes.ok_or_else(outside)?;
        let decoded = match codec {
            Some(codec) if !bytes.is_empty() => declared_bytes(codec, bytes)?,
            _ => bytes.len(),
        };
        sum = sum.saturating_add(decoded);
    }
    Ok(sum)
}

/// The declared length of a compressed buffer, checked against the maximum expansion.
fn declared_bytes(codec: CompressionType, buffer: &[u8]) -> Result<usize, ColumnFault> {
    let (declared, bytes) = buffer
        .split_first_chunk::<8>()
        .ok_or_else(|| damaged_file("a compressed column has no length"))?;
    let declared = match i64::from_le_bytes(*declared) {
        // Not compressed.
        -1 => return Ok(bytes.len()),
        length => usize::try_from(length)
            .map_err(|_| damaged_file(format!("a compressed column declares {length} bytes")))?,
    };
    let can_be = match codec {
        CompressionType::LZ4_FRAME => declared <= bytes.len().saturating_mul(LZ4_GROWTH),
        CompressionType::ZSTD => match zstd::zstd_safe::get_frame_content_size(bytes) {
            Ok(Some(content)) => content == declared as u64,
            Ok(None) => true,
            Err(_) => declared == 0,
        },
        _ => true,
    };
    match can_be {
        true => Ok(declared),
        false => Err(damaged_file(format!(
            "a compressed column declares {declared} bytes, more than its {} bytes can \
             expand to",
            bytes.len()
        ))),
    }
}

fn check_size(bytes: usize) -> Result<(), ColumnFault> {
    match bytes > COLUMN_BYTES {
        true => Err(ColumnFault::TooLarge { bytes }),
        false => Ok(()),
    }
}

fn damaged_file(problem: impl Into<String>) -> ColumnFault {
    ColumnFault::Damaged(problem.into())
}
