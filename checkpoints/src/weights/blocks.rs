//! Decoders for stored numbers: one block of a quantised format, or any number of plain floats.
//!
//! The arithmetic keeps ggml's order of operations in f32, so the values equal the output of the
//! `gguf` Python package bit for bit. Callers pass exactly one block or whole floats. Layouts:
//! ggml-org/llama.cpp `ggml/src/ggml-common.h`; formulas: `ggml/src/ggml-quants.c`
//! (`dequantize_row_*`). The reference values are in `tests/fixtures/gguf_blocks.json`.

/// Two little-endian bytes at `offset`.
fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([block[offset], block[offset + 1]])
}

fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from(u16_at(block, offset)) | u32::from(u16_at(block, offset + 2)) << 16
}

fn f16_at(block: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16_at(block, offset))
}

/// Converts IEEE 754 half precision to single, exactly.
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits) & 0x3ff;
    match exponent {
        // A subnormal is its fraction times 2^-24, and both are exact in f32.
        0 => f32::from_bits(sign | (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Decodes any number of f32 values, because plain formats have no blocks.
pub(super) fn f32_run(bytes: &[u8], values: &mut Vec<f32>) {
    values.extend(
        bytes
            .chunks_exact(4)
            .map(|value| f32::from_bits(u32_at(value, 0))),
    );
}

pub(super) fn f16_run(bytes: &[u8], values: &mut Vec<f32>) {
    values.extend(bytes.chunks_exact(2).map(|value| f16_at(value, 0)));
}

pub(super) fn bf16_run(bytes: &[u8], values: &mut Vec<f32>) {
    let widened = bytes
        .chunks_exact(2)
        .map(|value| u32::from(u16_at(value, 0)) << 16);
    values.extend(widened.map(f32::from_bits));
}

/// `d: f16 | 16 bytes of nibbles`: low nibbles are values 0..16, high ones 16..32.
pub(super) fn q4_0(block: &[u8], values: &mut Vec<f32>) {
    let d = f16_at(block, 0);
    let nibbles = &block[2..18];
    values.extend(nibbles.iter().map(|byte| (f32::from(byte & 15) - 8.0) * d));
    values.extend(nibbles.iter().map(|byte| (f32::from(byte >> 4) - 8.0) * d));
}

/// `d: f16 | m: f16 | 16 bytes of nibbles`.
pub(super) fn q4_1(block: &[u8], values: &mut Vec<f32>) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let nibbles = &block[4..20];
    values.extend(nibbles.iter().map(|byte| f32::from(byte & 15) * d + m));
    values.extend(nibbles.iter().map(|byte| f32::from(byte >> 4) * d + m));
}

/// Five-bit numbers: nibbles, and one high bit per value in `high_bits`.
fn five_bits(nibbles: &[u8], high_bits: u32) -> impl Iterator<Item = u8> {
    let low = nibbles.iter().map(|byte| byte & 15);
    let high = nibbles.iter().map(|byte| byte >> 4);
    let bit = move |i: usize| ((high_bits >> i & 1) as u8) << 4;
    low.chain(high)
        .enumerate()
        .map(move |(i, nibble)| nibble | bit(i))
}

/// `d: f16 | 32 high bits | 16 bytes of nibbles`.
pub(super) fn q5_0(block: &[u8], values: &mut Vec<f32>) {
    let d = f16_at(block, 0);
    let quants = five_bits(&block[6..22], u32_at(block, 2));
    values.extend(quants.map(|q| (f32::from(q) - 16.0) * d));
}

/// `d: f16 | m: f16 | 32 high bits | 16 bytes of nibbles`.
pub(super) fn q5_1(block: &[u8], values: &mut Vec<f32>) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    let quants = five_bits(&block[8..24], u32_at(block, 4));
    values.extend(quants.map(|q| f32::from(q) * d + m));
}

/// `d: f16 | 32 signed bytes`.
pub(super) fn q8_0(block: &[u8], values: &mut Vec<f32>) {
    let d = f16_at(block, 0);
    values.extend(block[2..34].iter().map(|&byte| f32::from(byte as i8) * d));
}

/// Six-bit scale and minimum of sub-block `j` in `0..8` from the 12 packed bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        let min = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
        (scale, min)
    };
    (f32::from(scale), f32::from(min))
}

/// `d: f16 | dmin: f16 | 12 bytes of scales and minima | 128 bytes of nibbles`.
///
/// Each 32 bytes of nibbles contain two sub-blocks of 32: the low nibbles, then the high ones.
pub(super) fn q4_k(block: &[u8], values: &mut Vec<f32>) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let packed = &block[4..16];
    for (pair, nibbles) in block[16..144].chunks_exact(32).enumerate() {
        for (half, shift) in [0, 4].into_iter().enumerate() {
            let (scale, min) = scale_and_min(packed, 2 * pair + half);
            let (scale, min) = (d * scale, dmin * min);
            values.extend(
                nibbles
                    .iter()
                    .map(|byte| scale * f32::from(byte >> shift & 15) - min),
            );
        }
    }
}

/// Like [`q4_k`], with 32 bytes of fifth bits between scales and nibbles: bit `j` of byte `i`
/// belongs to value `i` of sub-block `j`.
pub(super) fn q5_k(block: &[u8], values: &mut Vec<f32>) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let packed = &block[4..16];
    let fifth_bits = &block[16..48];
    for (pair, nibbles) in block[48..176].chunks_exact(32).enumerate() {
        for (half, shift) in [0, 4].into_iter().enumerate() {
            let sub_block = 2 * pair + half;
            let (scale, min) = scale_and_min(packed, sub_block);
            let (scale, min) = (d * scale, dmin * min);
            values.extend(nibbles.iter().zip(fifth_bits).map(|(byte, bits)| {
                let q = (byte >> shift & 15) | (bits >> sub_block & 1) << 4;
                scale * f32::from(q) - min
            }));
        }
    }
}

/// `128 bytes of low nibbles | 64 bytes of high bit pairs | 16 signed scales | d: f16`.
///
/// Each half of the block uses 64 bytes of nibbles and 32 of bit pairs: quarter `k` of its 128
/// values has nibbles from bytes `32 * (k % 2)..` (low ones for `k < 2`) and bit pair `k`. A scale
/// covers 16 values.
pub(super) fn q6_k(block: &[u8], values: &mut Vec<f32>) {
    let d = f16_at(block, 208);
    for half in 0..2 {
        let low = &block[half * 64..half * 64 + 64];
        let high = &block[128 + half * 32..160 + half * 32];
        let scales = &block[192 + half * 8..200 + half * 8];
        for quarter in 0..4 {
            let nibbles = &low[32 * (quarter % 2)..][..32];
            for i in 0..32 {
                let nibble = nibbles[i] >> (4 * (quarter / 2)) & 15;
                let q = nibble | (high[i] >> (2 * quarter) & 3) << 4;
                let scale = d * f32::from(scales[2 * quarter + i / 16] as i8);
                values.push(scale * (f32::from(q) - 32.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::f16_to_f32;

    #[test]
    fn every_half_precision_number_has_its_defined_value() {
        for bits in 0..=u16::MAX {
            let sign = if bits >> 15 == 1 { -1.0_f64 } else { 1.0 };
            let exponent = i32::from(bits >> 10 & 0x1f);
            let fraction = f64::from(bits & 0x3ff) / 1024.0;
            let got = f64::from(f16_to_f32(bits));
            match exponent {
                31 if fraction == 0.0 => assert_eq!(got, sign * f64::INFINITY),
                31 => assert!(got.is_nan()),
                0 => assert_eq!(got, sign * fraction * 2_f64.powi(-14)),
                _ => assert_eq!(got, sign * (1.0 + fraction) * 2_f64.powi(exponent - 15)),
            }
        }
    }
}
