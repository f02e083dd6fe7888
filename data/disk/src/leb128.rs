//! Unsigned integers of variable length (LEB128), as Parquet and the cache of examples store them.

/// Appends a number: seven bits per byte, the lowest first. The eighth bit is set if more bytes
/// follow.
pub fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number as u8) | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Removes a number from the start of `bytes`; `None` if the bytes end within it or it is too long.
pub fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
