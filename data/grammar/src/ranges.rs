//! Converts ranges of numbers to regular expressions.
//!
//! Bounds are 64-bit floats, because validators compare floats. An exclusive bound is the inclusive
//! bound of the adjacent float, because a number with more digits than a float is parsed to a float
//! on the correct side. Numbers are compared digit by digit in two spellings. One is positional
//! notation (`0.05`). The other has one digit before the point and an exponent (`5e-02`), as Python
//! writes numbers below 0.0001 and from 1e16 on.

use crate::budgets::STEP_REMAINDERS;
use llguidance::derivre::RegexAst;

/// Maximum decimals of a `multipleOf` step.
const STEP_DECIMALS: i32 = 4;
const STEP_SCALE: i128 = 10_000;
/// Maximum common step of several `multipleOf`: 40000, in units of 0.0001.
const MAX_STEP: u64 = 400_000_000;

/// Maximum zeros after the last decimal of a constant or a bound, where only zeros are valid.
/// Without this limit, a model may repeat zeros up to its token limit.
const MAX_ZEROS: usize = 3;

/// Any number of RFC 8259.
const ANY: &str = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?";
/// An unsigned mantissa in the spellings that are compared.
const MANTISSA: &str = r"[1-9](?:\.[0-9]+)?";
/// Unsigned whole numbers: digits, or a float as Python writes it. Numbers from 1e16 on have at
/// most 17 significant digits, so the exponent exceeds the number of decimals.
const WHOLE: &str =
    r"(?:0|[1-9][0-9]*)(?:\.0)?|[1-9](?:\.[0-9]{1,16})?[eE]\+?(?:1[6-9]|[2-9][0-9]|[1-9][0-9]{2,})";
/// Integers of draft 4, which does not allow 2.0 as an integer.
const DIGITS: &str = r"0|[1-9][0-9]*";

/// Whether numbers must be whole, and how they may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wholeness {
    /// Any number.
    Any,
    /// Numbers without a fraction, including 2.0.
    Whole,
    /// Numbers written without a point.
    Digits,
}

/// A set of numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NumberSchema {
    low: f64,
    high: f64,
    wholeness: Wholeness,
    /// Steps of `multipleOf`, in units of 0.0001.
    steps: Vec<u64>,
}

/// The digits of a finite magnitude, `d0.d1d2.. * 10^exponent`, without trailing zeros.
struct Digits {
    digits: String,
    exponent: i32,
}

impl NumberSchema {
    pub(super) fn any(wholeness: Wholeness) -> Self {
        Self {
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
            wholeness,
            steps: Vec::new(),
        }
    }

    /// Exactly one number, in any of its spellings.
    pub(super) fn single(value: f64) -> Self {
        // Remove the sign of -0.
        let value = value + 0.0;
        Self {
            low: value,
            high: value,
            ..Self::any(Wholeness::Any)
        }
    }

    pub(super) fn raise_minimum(&mut self, bound: f64, is_exclusive: bool) {
        let bound = if is_exclusive { bound.next_up() } else { bound };
        self.low = self.low.max(bound + 0.0);
    }

    pub(super) fn lower_maximum(&mut self, bound: f64, is_exclusive: bool) {
        let bound = if is_exclusive {
            bound.next_down()
        } else {
            bound
        };
        self.high = self.high.min(bound + 0.0);
    }

    /// Restricts the set to multiples of a step with up to 4 decimals.
    pub(super) fn restrict_to_multiples(&mut self, step: f64) {
        let units = (step * STEP_SCALE as f64).round() as u64;
        if units > 0 && !self.steps.contains(&units) {
            self.steps.push(units);
        }
    }

    /// The intersection of both sets.
    pub(super) fn meet(mut self, other: Self) -> Self {
        self.low = self.low.max(other.low);
        self.high = self.high.min(other.high);
        self.wholeness = self.wholeness.max(other.wholeness);
        for step in other.steps {
            if !self.steps.contains(&step) {
                self.steps.push(step);
            }
        }
        self
    }

    /// Returns why the set is empty, if this is easy to determine.
    pub(super) fn emptiness(&self) -> Option<String> {
        let nothing = format!("no number is from {} to {}", self.low, self.high);
        if self.low > self.high {
            return Some(nothing);
        }
        let step = i128::from(self.common_step()?);
        let (low, high) = (to_units(self.low)?, to_units(self.high)?);
        // The least multiple that is at least `low`, rounded up.
        let low = low.floor + i128::from(!low.is_exact);
        let first = -((-low).div_euclid(step)) * step;
        let is_empty = first > high.floor;
        is_empty.then(|| format!("{nothing} and a multiple of {}", step as f64 / 1e4))
    }

    /// The common step in units of 0.0001; `None` if there are no steps or it does not fit into 64
    /// bits.
    fn common_step(&self) -> Option<u64> {
        let integer_step = (self.wholeness > Wholeness::Any).then_some(STEP_SCALE as u64);
        let mut steps = self.steps.iter().copied().chain(integer_step);
        let first = steps.next()?;
        steps.try_fold(first, least_common)
    }

    /// The regular expression of the numbers.
    ///
    /// # Errors
    ///
    /// The common multiple of the steps is too large for the parser.
    pub(super) fn spellings(&self) -> Result<RegexAst, String> {
        let is_free = self.low == f64::NEG_INFINITY && self.high == f64::INFINITY;
        if is_free && self.wholeness == Wholeness::Any && self.steps.is_empty() {
            return Ok(RegexAst::Regex(ANY.to_owned()));
        }
        let mut options = Vec::new();
        if self.high >= 0.0 {
            options.push(self.magnitudes(self.low.max(0.0), self.high)?);
        }
        if self.low <= 0.0 {
            let magnitudes = self.magnitudes((-self.high).max(0.0), -self.low)?;
            let minus = RegexAst::Literal("-".to_owned());
            options.push(RegexAst::Concat(vec![minus, magnitudes]));
        }
        Ok(RegexAst::Or(options))
    }

    /// Unsigned numbers from `low` (at least 0) to `high`.
    fn magnitudes(&self, low: f64, high: f64) -> Result<RegexAst, String> {
        let mut parts = Vec::new();
        let digits = |bound: f64| Digits::from_magnitude(bound);
        if low == high {
            parts.push(digits(low).spellings());
        }
        match low > 0.0 {
            _ if low == high => {}
            true => parts.push(digits(low).spellings_from()),
            false if high.is_infinite() => parts.push(Digits::all_spellings()),
            false => {}
        }
        if high.is_finite() && low < high {
            parts.push(digits(high).spellings_up_to());
        }
        match self.wholeness {
            Wholeness::Any => {}
            Wholeness::Whole => parts.push(WHOLE.to_owned()),
            Wholeness::Digits => parts.push(DIGITS.to_owned()),
        }
        let mut parts: Vec<RegexAst> = parts.into_iter().map(RegexAst::Regex).collect();
        if let Some((first, others)) = self.steps.split_first() {
            let step = others
                .iter()
                .try_fold(*first, |common, step| least_common(common, *step));
            // Ten times a remainder must fit into 32 bits.
            let step = step
                .filter(|step| *step <= MAX_STEP)
                .and_then(|step| u32::try_from(step).ok());
            let step = step.ok_or("the common multiple of its multipleOf steps is too large")?;
            let n_remainders = without_twos_and_fives(step);
            if n_remainders > STEP_REMAINDERS {
                return Err(format!(
                    "multiples of {} need {n_remainders} remainders; the limit is {STEP_REMAINDERS}. The \
                     count is the step in units of 0.0001 without its factors 2 and 5 (STEP_REMAINDERS \
                     in docs/limits.md)",
                    f64::from(step) / 1e4
                ));
            }
            parts.push(multiples(step));
        }
        Ok(RegexAst::And(parts))
    }
}

/// Multiples with up to four decimals.
///
/// Each number of decimals has its own expression, because `MultipleOf` accepts either all decimals
/// of its scale or no decimals.
fn multiples(units: u32) -> RegexAst {
    let options = (0..=STEP_DECIMALS as u32).map(|n_decimals| {
        // The digits of such a number, without the point, are a multiple of `step`.
        let scale = 10_u32.pow(STEP_DECIMALS as u32 - n_decimals);
        let step = units / greatest_common(units.into(), scale.into()) as u32;
        let shape = match n_decimals {
            0 => "[0-9]+".to_owned(),
            n => format!(r"[0-9]+\.[0-9]{{{n}}}"),
        };
        RegexAst::And(vec![
            RegexAst::MultipleOf(step, n_decimals),
            RegexAst::Regex(shape),
        ])
    });
    RegexAst::Or(options.collect())
}

/// Removes the factors 2 and 5 of a step. The last digits of a decimal determine whether it is
/// divisible by these factors. An automaton tracks the remainder only for the rest of the step.
fn without_twos_and_fives(mut step: u32) -> u32 {
    for factor in [2, 5] {
        while step > 0 && step.is_multiple_of(factor) {
            step /= factor;
        }
    }
    step
}

fn greatest_common(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

fn least_common(a: u64, b: u64) -> Option<u64> {
    (a / greatest_common(a, b)).checked_mul(b)
}

/// A number in units of 0.0001.
struct Units {
    floor: i128,
    is_exact: bool,
}

/// Converts a finite number; `None` if its magnitude does not fit into the integers of `Units`.
fn to_units(value: f64) -> Option<Units> {
    if !value.is_finite() || value.abs() > 1e30 {
        return None;
    }
    let Digits { digits, exponent } = Digits::from_magnitude(value.abs());
    // In units of 0.0001, the value is digits * 10^scale.
    let scale = exponent + STEP_DECIMALS + 1 - digits.len() as i32;
    let digits: i128 = digits.parse().ok()?;
    let digits = if value < 0.0 { -digits } else { digits };
    if scale >= 0 {
        let factor = 10_i128.checked_pow(scale as u32)?;
        let floor = digits.checked_mul(factor)?;
        return Some(Units {
            floor,
            is_exact: true,
        });
    }
    // With more digits than any float has, the quotient is 0 or -1.
    let divisor = 10_i128.pow(scale.unsigned_abs().min(30));
    Some(Units {
        floor: digits.div_euclid(divisor),
        is_exact: digits.rem_euclid(divisor) == 0,
    })
}

impl Digits {
    /// The shortest digits that parse to this non-negative float.
    fn from_magnitude(magnitude: f64) -> Self {
        let text = format!("{:e}", magnitude.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
        let significant = digits.trim_end_matches('0');
        Self {
            digits: if significant.is_empty() {
                "0"
            } else {
                significant
            }
            .to_owned(),
            exponent: exponent.parse().unwrap_or(0),
        }
    }

    /// The digits before the point, and the digits after it without trailing zeros.
    fn split_at_point(&self) -> (String, String) {
        match usize::try_from(self.exponent) {
            Ok(exponent) if exponent + 1 >= self.digits.len() => {
                let zeros = "0".repeat(exponent + 1 - self.digits.len());
                (format!("{}{zeros}", self.digits), String::new())
            }
            Ok(exponent) => {
                let (before, after) = self.digits.split_at(exponent + 1);
                (before.to_owned(), after.to_owned())
            }
            Err(_) => {
                let n_zeros = self.exponent.unsigned_abs() as usize - 1;
                let after = format!("{}{}", "0".repeat(n_zeros), self.digits);
                ("0".to_owned(), after.trim_end_matches('0').to_owned())
            }
        }
    }

    fn all_spellings() -> String {
        format!(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|{MANTISSA}[eE][+-]?[0-9]+")
    }

    /// The spellings of exactly this magnitude.
    fn spellings(&self) -> String {
        let zeros = |decimals: &str| match decimals {
            "" => zero_fraction(),
            decimals => format!(r"\.{decimals}0{{0,{MAX_ZEROS}}}"),
        };
        let (whole, fraction) = self.split_at_point();
        let mut options = vec![format!("{whole}{}", zeros(&fraction))];
        if self.digits != "0" {
            let (first, rest) = self.digits.split_at(1);
            options.push(format!(
                "{first}{}{}",
                zeros(rest),
                exponent_spelling(self.exponent)
            ));
        }
        alternation(&options)
    }

    /// The spellings of this positive magnitude and of larger ones.
    fn spellings_from(&self) -> String {
        let (whole, fraction) = self.split_at_point();
        let (first, rest) = self.digits.split_at(1);
        let exponent = self.exponent;
        let mut options = vec![
            format!(r"{}(?:\.[0-9]+)?", alternation(&larger_integers(&whole))),
            format!("{whole}{}", fraction_at_least(&fraction)),
            format!(
                "{first}{}{}",
                fraction_at_least(rest),
                exponent_spelling(exponent)
            ),
            format!("{MANTISSA}{}", exponents_at_least(exponent + 1)),
        ];
        let digit = digit_at(first, 0);
        if digit < 9 {
            let larger = format!(r"[{}-9](?:\.[0-9]+)?", digit + 1);
            options.push(format!("{larger}{}", exponent_spelling(exponent)));
        }
        alternation(&options)
    }

    /// The spellings of this magnitude and of smaller ones, including 0.
    fn spellings_up_to(&self) -> String {
        let (whole, fraction) = self.split_at_point();
        let mut options = vec![format!("{whole}{}", fraction_at_most(&fraction))];
        if whole != "0" {
            options.push(format!(
                r"{}(?:\.[0-9]+)?",
                alternation(&smaller_integers(&whole))
            ));
        }
        if self.digits != "0" {
            let (first, rest) = self.digits.split_at(1);
            let exponent = self.exponent;
            options.push(format!(
                "{first}{}{}",
                fraction_at_most(rest),
                exponent_spelling(exponent)
            ));
            let digit = digit_at(first, 0);
            if digit > 1 {
                let smaller = format!(r"[1-{}](?:\.[0-9]+)?", digit - 1);
                options.push(format!("{smaller}{}", exponent_spelling(exponent)));
            }
            options.push(format!("{MANTISSA}{}", exponents_at_most(exponent - 1)));
        }
        alternation(&options)
    }
}

/// The alternation of at least one expression.
fn alternation(options: &[String]) -> String {
    format!("(?:{})", options.join("|"))
}

fn digit_at(digits: &str, idx: usize) -> u8 {
    digits.as_bytes().get(idx).map_or(0, |digit| digit - b'0')
}

/// Integer parts that are larger than these digits.
fn larger_integers(digits: &str) -> Vec<String> {
    let n = digits.len();
    let mut options = vec![format!("[1-9][0-9]{{{n},}}")];
    for idx in 0..n {
        let digit = digit_at(digits, idx);
        if digit < 9 {
            let (before, n_left) = (&digits[..idx], n - 1 - idx);
            options.push(format!("{before}[{}-9][0-9]{{{n_left}}}", digit + 1));
        }
    }
    options
}

/// Integer parts that are smaller than these digits.
fn smaller_integers(digits: &str) -> Vec<String> {
    let n = digits.len();
    let mut options = Vec::new();
    if n > 1 {
        options.push(format!("0|[1-9][0-9]{{0,{}}}", n - 2));
    }
    for idx in 0..n {
        let (digit, min) = (digit_at(digits, idx), u8::from(idx == 0 && n > 1));
        if digit > min {
            let (before, n_left) = (&digits[..idx], n - 1 - idx);
            options.push(format!("{before}[{min}-{}][0-9]{{{n_left}}}", digit - 1));
        }
    }
    options
}

/// A point and decimals of at least this value; optional if there are no decimals.
fn fraction_at_least(decimals: &str) -> String {
    if decimals.is_empty() {
        return r"(?:\.[0-9]+)?".to_owned();
    }
    let (n_zeros, rest) = without_zeros(decimals);
    let zeros = format!("0{{{n_zeros}}}");
    let mut options = Vec::new();
    if n_zeros > 0 {
        options.push(format!("0{{0,{}}}[1-9][0-9]*", n_zeros - 1));
    }
    for idx in 0..rest.len() {
        let (digit, before) = (digit_at(rest, idx), &rest[..idx]);
        if digit < 9 {
            options.push(format!("{zeros}{before}[{}-9][0-9]*", digit + 1));
        }
    }
    options.push(format!("{zeros}{rest}[0-9]*"));
    format!(r"\.{}", alternation(&options))
}

/// Nothing, or a point and zeros: `.0` as in Python's floats, or a few more zeros.
fn zero_fraction() -> String {
    format!(r"(?:\.0{{1,{}}})?", MAX_ZEROS + 1)
}

/// Nothing, or a point and decimals of at most this value.
fn fraction_at_most(decimals: &str) -> String {
    if decimals.is_empty() {
        return zero_fraction();
    }
    let (n_zeros, rest) = without_zeros(decimals);
    let zeros = format!("0{{{n_zeros}}}");
    let mut options = Vec::new();
    if n_zeros > 0 {
        options.push(format!("0{{1,{n_zeros}}}"));
    }
    for idx in 0..rest.len() {
        let (digit, before) = (digit_at(rest, idx), &rest[..idx]);
        if idx > 0 {
            options.push(format!("{zeros}{before}"));
        }
        if digit > 0 {
            options.push(format!("{zeros}{before}[0-{}][0-9]*", digit - 1));
        }
    }
    options.push(format!("{zeros}{rest}0{{0,{MAX_ZEROS}}}"));
    format!(r"(?:\.{})?", alternation(&options))
}

fn without_zeros(decimals: &str) -> (usize, &str) {
    let rest = decimals.trim_start_matches('0');
    (decimals.len() - rest.len(), rest)
}

fn exponent_spelling(exponent: i32) -> String {
    match exponent {
        0.. => format!(r"[eE]\+?0?{exponent}"),
        _ => format!("[eE]-0?{}", exponent.unsigned_abs()),
    }
}

fn exponents_at_least(min: i32) -> String {
    let size = min.unsigned_abs().to_string();
    match min {
        1.. => {
            let mut larger = larger_integers(&size);
            larger.push(size);
            format!(r"[eE]\+?0?{}", alternation(&larger))
        }
        0 => r"[eE]\+?[0-9]+".to_owned(),
        _ => {
            let mut smaller = smaller_integers(&size);
            smaller.push(size);
            format!(r"[eE](?:\+?[0-9]+|-0?{})", alternation(&smaller))
        }
    }
}

fn exponents_at_most(max: i32) -> String {
    let size = max.unsigned_abs().to_string();
    match max {
        0.. => {
            let mut smaller = smaller_integers(&size);
            smaller.push(size);
            format!(r"[eE](?:\+?0?{}|-[0-9]+)", alternation(&smaller))
        }
        _ => {
            let mut larger = larger_integers(&size);
            larger.push(size);
            format!("[eE]-0?{}", alternation(&larger))
        }
    }
}
