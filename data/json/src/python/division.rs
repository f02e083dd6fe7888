//! Divides two integers of any size to the nearest 64-bit float, ties to even.
//!
//! Converting both integers to floats first would round three times. It would also fail for
//! integers beyond the float range, even if their quotient is small.

use num_bigint::{BigInt, BigUint, Sign};

/// Exponent of the last bit of the smallest subnormal float.
const MIN_EXPONENT: i64 = -1074;

/// Bits of a float's mantissa, including the hidden one.
const MANTISSA_BITS: i64 = 53;

/// Returns the quotient, or `None` if it exceeds the float range. `divisor` must not be zero.
pub(super) fn nearest_quotient(dividend: &BigInt, divisor: &BigInt) -> Option<f64> {
    let is_negative = (dividend.sign() == Sign::Minus) != (divisor.sign() == Sign::Minus);
    let size = divide_unsigned(dividend.magnitude(), divisor.magnitude())?;
    Some(if is_negative { -size } else { size })
}

fn divide_unsigned(dividend: &BigUint, divisor: &BigUint) -> Option<f64> {
    if dividend.bits() == 0 {
        return Some(0.0);
    }
    // The quotient is within 2^(magnitude - 1) .. 2^(magnitude + 1). Two bits beyond the mantissa
    // are enough for rounding; the last of them is set if any later bit is set.
    let magnitude = dividend.bits() as i64 - divisor.bits() as i64;
    if magnitude > 1025 {
        return None;
    }
    let unit = (magnitude - MANTISSA_BITS - 2).max(MIN_EXPONENT - 2);
    let (above, below) = match u64::try_from(unit) {
        Ok(unit) => (dividend.clone(), divisor << unit),
        Err(_) => (dividend << unit.unsigned_abs(), divisor.clone()),
    };
    let quotient = &above / &below;
    let is_exact = &quotient * &below == above;
    let bits = u64::try_from(&quotient).ok()? | u64::from(!is_exact);
    let n_bits = i64::from(u64::BITS - bits.leading_zeros());
    let last = (n_bits + unit - MANTISSA_BITS).max(MIN_EXPONENT);
    let n_dropped = last - unit;
    let half = 1_u64 << (n_dropped - 1);
    let (quotient_bits, dropped) = (bits >> n_dropped, bits & (2 * half - 1));
    let rounds_up = dropped > half || dropped == half && quotient_bits & 1 == 1;
    let rounded = (quotient_bits + u64::from(rounds_up)) as f64 * power_of_two(last);
    rounded.is_finite().then_some(rounded)
}

/// Returns two to a power within the float range.
fn power_of_two(exponent: i64) -> f64 {
    match u64::try_from(exponent + 1022) {
        Ok(above_subnormal) => f64::from_bits((above_subnormal + 1) << 52),
        Err(_) => f64::from_bits(1 << (exponent - MIN_EXPONENT)),
    }
}
