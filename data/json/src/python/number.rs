//! Python's arithmetic on integers of any size and floats.
//!
//! The result is an integer if both operands are integers and the operation always gives integers
//! for integers. `/` and negative powers always give a float. Operations that raise an exception in
//! Python return an error.

use std::cmp::Ordering;
use std::hint::black_box;

use num_bigint::{BigInt, Sign};

use super::division::nearest_quotient;

/// Maximum bits of a computed integer, about 315,000 digits. Python is limited only by memory and
/// time.
pub const MAX_INTEGER_BITS: u64 = 1 << 20;

/// A number for arithmetic.
#[derive(Debug, Clone)]
pub enum Number {
    /// An integer of any size.
    Int(BigInt),
    /// A 64-bit float.
    Float(f64),
}

/// The exceptions of Python's arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// `ZeroDivisionError`.
    #[error("division by zero")]
    ZeroDivision,
    /// `OverflowError`: the result exceeds the float range.
    #[error("the result is beyond the range of a float")]
    Overflow,
    /// The result is an integer beyond [`MAX_INTEGER_BITS`].
    #[error("the result has more than {MAX_INTEGER_BITS} bits")]
    TooLarge,
    /// `ValueError`: the function is undefined for this argument, or its value is complex.
    #[error("the function has no real value there")]
    Domain,
    /// `TypeError`: an integer was expected.
    #[error("an integer was expected")]
    NotInteger,
}

impl From<i64> for Number {
    fn from(integer: i64) -> Self {
        Self::Int(integer.into())
    }
}

impl Number {
    /// The nearest float, ties to even.
    ///
    /// # Errors
    ///
    /// - the integer is beyond the range of a float
    pub fn to_float(&self) -> Result<f64, NumberError> {
        match self {
            Self::Int(integer) => {
                nearest_quotient(integer, &BigInt::from(1)).ok_or(NumberError::Overflow)
            }
            Self::Float(float) => Ok(*float),
        }
    }

    /// The value, if the number is an integer.
    ///
    /// # Errors
    ///
    /// - the number is a float, even a whole one
    pub fn integer(&self) -> Result<&BigInt, NumberError> {
        match self {
            Self::Int(integer) => Ok(integer),
            Self::Float(_) => Err(NumberError::NotInteger),
        }
    }

    /// The number truncated towards zero, as `int()` does.
    ///
    /// # Errors
    ///
    /// - the number is not finite
    pub fn truncated(&self) -> Result<BigInt, NumberError> {
        match self {
            Self::Int(integer) => Ok(integer.clone()),
            Self::Float(float) => to_bigint(float.trunc()),
        }
    }

    /// The largest integer not above the number, as `math.floor` does.
    ///
    /// # Errors
    ///
    /// - the number is not finite
    pub fn floor(&self) -> Result<BigInt, NumberError> {
        match self {
            Self::Int(integer) => Ok(integer.clone()),
            Self::Float(float) => to_bigint(float.floor()),
        }
    }

    /// Whether the number is zero.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::Int(integer) => integer.sign() == Sign::NoSign,
            Self::Float(float) => *float == 0.0,
        }
    }

    /// Compares two numbers by exact value; `None` if either is NaN.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => Some(left.cmp(right)),
            (Self::Float(left), Self::Float(right)) => left.partial_cmp(right),
            (Self::Int(left), Self::Float(right)) => compare_with_float(left, *right),
            (Self::Float(left), Self::Int(right)) => {
                compare_with_float(right, *left).map(Ordering::reverse)
            }
        }
    }

    /// Whether both are the same number, regardless of type.
    pub fn equals(&self, other: &Self) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }

    /// `-a`.
    #[must_use]
    pub fn negated(&self) -> Self {
        match self {
            Self::Int(integer) => Self::Int(-integer),
            Self::Float(float) => Self::Float(-float),
        }
    }

    /// `abs(a)`.
    #[must_use]
    pub fn absolute(&self) -> Self {
        match self {
            Self::Int(integer) => Self::Int(BigInt::from(integer.magnitude().clone())),
            Self::Float(float) => Self::Float(float.abs()),
        }
    }

    /// `a + b`.
    ///
    /// # Errors
    ///
    /// - one operand is a float and the other an integer beyond its range, or the sum is too large
    pub fn plus(&self, other: &Self) -> Result<Self, NumberError> {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => check_size(left + right),
            _ => Ok(Self::Float(self.to_float()? + other.to_float()?)),
        }
    }

    /// `a - b`.
    ///
    /// # Errors
    ///
    /// - as [`Number::plus`]
    pub fn minus(&self, other: &Self) -> Result<Self, NumberError> {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => check_size(left - right),
            _ => Ok(Self::Float(self.to_float()? - other.to_float()?)),
        }
    }

    /// `a * b`.
    ///
    /// # Errors
    ///
    /// - as [`Number::plus`]
    pub fn times(&self, other: &Self) -> Result<Self, NumberError> {
        match (self, other) {
            (Self::Int(left), Self::Int(right))
                if left.bits() + right.bits() > MAX_INTEGER_BITS =>
            {
                Err(NumberError::TooLarge)
            }
            (Self::Int(left), Self::Int(right)) => Ok(Self::Int(left * right)),
            _ => Ok(Self::Float(self.to_float()? * other.to_float()?)),
        }
    }

    /// `a / b`: always the nearest float, even for integers beyond the float range.
    ///
    /// # Errors
    ///
    /// - the divisor is zero, or the quotient of integers is beyond the range of a float
    pub fn true_divide(&self, other: &Self) -> Result<Self, NumberError> {
        if other.is_zero() {
            return Err(NumberError::ZeroDivision);
        }
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => nearest_quotient(left, right)
                .map(Self::Float)
                .ok_or(NumberError::Overflow),
            _ => Ok(Self::Float(self.to_float()? / other.to_float()?)),
        }
    }

    /// `a // b`: rounded down; an integer if both operands are integers.
    ///
    /// # Errors
    ///
    /// - the divisor is zero, or one operand is a float and the other an integer beyond its range
    pub fn floor_over(&self, other: &Self) -> Result<Self, NumberError> {
        if other.is_zero() {
            return Err(NumberError::ZeroDivision);
        }
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => Ok(Self::Int(divide_floor(left, right).0)),
            _ => {
                let (left, right) = (self.to_float()?, other.to_float()?);
                Ok(Self::Float(divide_floor_floats(left, right).0))
            }
        }
    }

    /// `a % b`, with the sign of the divisor.
    ///
    /// # Errors
    ///
    /// - as [`Number::floor_over`]
    pub fn modulo(&self, other: &Self) -> Result<Self, NumberError> {
        if other.is_zero() {
            return Err(NumberError::ZeroDivision);
        }
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => Ok(Self::Int(divide_floor(left, right).1)),
            _ => {
                let (left, right) = (self.to_float()?, other.to_float()?);
                Ok(Self::Float(divide_floor_floats(left, right).1))
            }
        }
    }

    /// `a ** b`: an integer if both operands are integers and the exponent is not negative.
    ///
    /// # Errors
    ///
    /// - zero to a negative power, or a negative number to a fractional power (complex in Python)
    /// - the result is too large, or one operand is a float and the other an integer beyond its
    ///   range
    pub fn to_the(&self, exponent: &Self) -> Result<Self, NumberError> {
        match (self, exponent) {
            (Self::Int(base), Self::Int(exponent)) if exponent.sign() != Sign::Minus => {
                integer_power(base, exponent)
            }
            _ => float_power(self.to_float()?, exponent.to_float()?).map(Self::Float),
        }
    }
}

fn to_bigint(float: f64) -> Result<BigInt, NumberError> {
    use num_traits::FromPrimitive;
    BigInt::from_f64(float).ok_or(NumberError::Overflow)
}

fn check_size(integer: BigInt) -> Result<Number, NumberError> {
    if integer.bits() > MAX_INTEGER_BITS {
        Err(NumberError::TooLarge)
    } else {
        Ok(Number::Int(integer))
    }
}

fn compare_with_float(integer: &BigInt, float: f64) -> Option<Ordering> {
    match float {
        _ if float.is_nan() => None,
        f64::INFINITY => Some(Ordering::Less),
        f64::NEG_INFINITY => Some(Ordering::Greater),
        _ => {
            let floor = to_bigint(float.floor()).ok()?;
            let is_integer = float.floor() == float;
            Some(match integer.cmp(&floor) {
                Ordering::Equal if !is_integer => Ordering::Less,
                order => order,
            })
        }
    }
}

/// Returns the quotient, rounded down, and the remainder.
fn divide_floor(dividend: &BigInt, divisor: &BigInt) -> (BigInt, BigInt) {
    let (quotient, remainder) = (dividend / divisor, dividend % divisor);
    let is_rounded_up = remainder.sign() != Sign::NoSign && (remainder.sign() != divisor.sign());
    if is_rounded_up {
        (quotient - 1, remainder + divisor)
    } else {
        (quotient, remainder)
    }
}

/// # Source
///
/// CPython `_float_div_mod`: a zero remainder has the sign of the divisor, and a zero result of
/// the floor division has the sign of the true quotient.
fn divide_floor_floats(dividend: f64, divisor: f64) -> (f64, f64) {
    let mut remainder = dividend % divisor;
    let mut quotient = (dividend - remainder) / divisor;
    if remainder == 0.0 {
        remainder = 0.0_f64.copysign(divisor);
    } else if (divisor < 0.0) != (remainder < 0.0) {
        remainder += divisor;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(dividend / divisor), remainder);
    }
    let floor = quotient.floor();
    (
        floor + f64::from(u8::from(quotient - floor > 0.5)),
        remainder,
    )
}

fn integer_power(base: &BigInt, exponent: &BigInt) -> Result<Number, NumberError> {
    if base.bits() <= 1 {
        let is_odd = exponent.bit(0);
        let is_one = exponent.sign() == Sign::NoSign || base.sign() == Sign::Minus && !is_odd;
        return Ok(Number::Int(if is_one { 1.into() } else { base.clone() }));
    }
    let exponent = u32::try_from(exponent).map_err(|_| NumberError::TooLarge)?;
    if (base.bits() - 1).saturating_mul(exponent.into()) > MAX_INTEGER_BITS {
        Err(NumberError::TooLarge)
    } else {
        Ok(Number::Int(base.pow(exponent)))
    }
}

/// # Source
///
/// CPython `float_pow`: C's `pow`, with errors for zero to a negative power, a complex result and
/// an overflow.
fn float_power(base: f64, exponent: f64) -> Result<f64, NumberError> {
    if base == 0.0 && exponent < 0.0 {
        return Err(NumberError::ZeroDivision);
    }
    if base < 0.0 && base.is_finite() && exponent.is_finite() && exponent.fract() != 0.0 {
        return Err(NumberError::Domain);
    }
    // If the compiler sees a constant exponent, it may multiply instead, which rounds differently.
    let power = base.powf(black_box(exponent));
    if power.is_infinite() && base.is_finite() && exponent.is_finite() {
        Err(NumberError::Overflow)
    } else {
        Ok(power)
    }
}
