//! Data types of stored tensors: names, block sizes and decoders.
//!
//! Every type except NF4 is a sequence of blocks with a fixed number of values and bytes. Plain
//! floats are blocks of one value.

use super::bitsandbytes::StoredNf4;
use super::blocks;

/// The supported data types of safetensors files, for messages.
pub(super) const SAFETENSORS_TYPES: &str = "F32, F16 and BF16";

/// The supported data types of GGUF files, for messages.
pub(super) const GGUF_TYPES: &str =
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K";

/// How a tensor is stored.
#[derive(Debug, PartialEq)]
pub(super) enum Encoding {
    /// A decodable data type.
    Decodable(Format),
    /// 4-bit codes of bitsandbytes, with their other parts in other tensors.
    Nf4(Box<StoredNf4>),
    /// An unsupported data type, known only by its name and the bytes of the tensor.
    Unsupported { dtype: String, n_bytes: u64 },
}

impl Encoding {
    pub(super) fn name(&self) -> &str {
        match self {
            Encoding::Decodable(format) => format.row().name,
            Encoding::Nf4(_) => "NF4",
            Encoding::Unsupported { dtype, .. } => dtype,
        }
    }
}

/// A data type that can be decoded to f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

struct Row {
    format: Format,
    name: &'static str,
    /// Type number in GGUF tensor infos.
    gguf_type: u32,
    block_values: usize,
    block_bytes: usize,
    /// Decodes one block, or any number of plain floats.
    decode: fn(&[u8], &mut Vec<f32>),
}

const fn row(
    format: Format,
    name: &'static str,
    gguf_type: u32,
    [block_values, block_bytes]: [usize; 2],
    decode: fn(&[u8], &mut Vec<f32>),
) -> Row {
    Row {
        format,
        name,
        gguf_type,
        block_values,
        block_bytes,
        decode,
    }
}

/// In the order of [`Format`]. Source: ggml-org/llama.cpp, `ggml/src/ggml-common.h`.
const ROWS: [Row; 11] = [
    row(Format::F32, "F32", 0, [1, 4], blocks::f32_run),
    row(Format::F16, "F16", 1, [1, 2], blocks::f16_run),
    row(Format::BF16, "BF16", 30, [1, 2], blocks::bf16_run),
    row(Format::Q4_0, "Q4_0", 2, [32, 18], blocks::q4_0),
    row(Format::Q4_1, "Q4_1", 3, [32, 20], blocks::q4_1),
    row(Format::Q5_0, "Q5_0", 6, [32, 22], blocks::q5_0),
    row(Format::Q5_1, "Q5_1", 7, [32, 24], blocks::q5_1),
    row(Format::Q8_0, "Q8_0", 8, [32, 34], blocks::q8_0),
    row(Format::Q4K, "Q4_K", 12, [256, 144], blocks::q4_k),
    row(Format::Q5K, "Q5_K", 13, [256, 176], blocks::q5_k),
    row(Format::Q6K, "Q6_K", 14, [256, 210], blocks::q6_k),
];

/// GGUF types that exist but are not decoded, for messages.
const UNSUPPORTED_GGUF: [(u32, &str); 24] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

impl Format {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The data type of a GGUF type number. The error is the name of the unsupported type.
    pub(super) fn from_gguf(gguf_type: u32) -> Result<Format, String> {
        match ROWS.iter().find(|row| row.gguf_type == gguf_type) {
            Some(row) => Ok(row.format),
            None => Err(UNSUPPORTED_GGUF
                .iter()
                .find(|(number, _)| *number == gguf_type)
                .map_or(format!("GGUF type {gguf_type}"), |(_, name)| {
                    (*name).to_owned()
                })),
        }
    }

    /// The data type of a safetensors dtype name, if it can be decoded.
    pub(super) fn from_safetensors(dtype: &str) -> Option<Format> {
        ROWS[..3]
            .iter()
            .find(|row| row.name == dtype)
            .map(|row| row.format)
    }

    /// Type number in GGUF tensor infos.
    pub(super) fn gguf_type(self) -> u32 {
        self.row().gguf_type
    }

    pub(super) fn block_values(self) -> usize {
        self.row().block_values
    }

    pub(super) fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Appends the values of whole blocks; bytes after the last whole block are ignored.
    pub(super) fn decode(self, bytes: &[u8], values: &mut Vec<f32>) {
        let row = self.row();
        if row.block_values == 1 {
            return (row.decode)(bytes, values);
        }
        for block in bytes.chunks_exact(row.block_bytes) {
            (row.decode)(block, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_table_is_in_enum_order() {
        for row in &ROWS {
            assert_eq!(row.format.row().name, row.name);
        }
    }

    #[test]
    fn a_block_decodes_to_its_number_of_values() {
        for row in &ROWS {
            let mut values = Vec::new();
            row.format.decode(&vec![0; row.block_bytes], &mut values);
            assert_eq!(values.len(), row.block_values, "{}", row.name);
        }
    }
}
