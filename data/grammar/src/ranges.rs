//! Writes ranges of numbers as regular expressions of their texts.
//!
//! A bound is a 64-bit float, as validators compare it, and an exclusive one is the inclusive one
//! of the neighbouring float: whatever is written with more digits than a float has is read as a
//! float on the right side. A text is compared digit by digit, in two spellings: with its point
//! where it is (`0.05`), or with one digit before the point and an exponent (`5e-02`), as Python
//! writes numbers below 0.0001 and from 1e16 on.

use llguidance::derivre::RegexAst;
use tooltune_rows::budgets::STEP_REMAINDERS;

/// Decimals that a step of `multipleOf` may have.
const STEP_DECIMALS: i32 = 4;
const STEP_SCALE: i128 = 10_000;
/// A common step of 40000, in units of 0.0001.
const MAX_STEP: u64 = 400_000_000;

/// How many zeros may follow the last decimal where only zeros may: at a constant and at a bound.
/// Without an end a model writes them until its limit of tokens.
const MAX_ZEROS: usize = 3;

/// Any number of RFC 8259.
const ANY: &str = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?";
/// A number of one sign, in the spellings that are compared.
const MANTISSA: &str = r"[1-9](?:\.[0-9]+)?";
/// Whole numbers of one sign: digits, or a float as Python writes it. One of 1e16 or more has at
/// most 17 digits, so that its exponent reaches beyond its decimals.
const WHOLE: &str =
    r"(?:0|[1-9][0-9]*)(?:\.0)?|[1-9](?:\.[0-9]{1,16})?[eE]\+?(?:1[6-9]|[2-9][0-9]|[1-9][0-9]{2,})";
/// Whole numbers of draft 4, where 2.0 is none.
const DIGITS: &str = r"0|[1-9][0-9]*";

/// Which numbers are whole ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wholeness {
    /// Any number.
    Any,
    /// Those without a fraction, 2.0 among them.
    Whole,
    /// Those that are written without a point.
    Digits,
}

/// A set of numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Numbers {
    low: f64,
    high: f64,
    wholeness: Wholeness,
    /// Steps of `multipleOf`, in units of 0.0001.
    steps: Vec<u64>,
}

/// The digits of a finite magnitude, `d0.d1d2.. * 10^exponent`, without zeros at the end.
struct Digits {
    digits: String,
    exponent: i32,
}

impl Numbers {
    pub(super) fn any(wholeness: Wholeness) -> Self {
        Self {
            low: f64::NEG_INFINITY,
            high: f64::INFINITY,
            wholeness,
            steps: Vec::new(),
        }
    }

    /// Exactly one number, in any of its spellings.
    pub(super) fn one(value: f64) -> Self {
        // Without the sign of -0.
        let value = value + 0.0;
        Self {
            low: value,
            high: value,
            ..Self::any(Wholeness::Any)
        }
    }

    pub(super) fn at_least(&mut self, bound: f64, is_exclusive: bool) {
        let bound = if is_exclusive { bound.next_up() } else { bound };
        self.low = self.low.max(bound + 0.0);
    }

    pub(super) fn at_most(&mut self, bound: f64, is_exclusive: bool) {
        let bound = if is_exclusive {
            bound.next_down()
        } else {
            bound
        };
        self.high = self.high.min(bound + 0.0);
    }

    /// Multiples of a step of up to 4 decimals.
    pub(super) fn multiples_of(&mut self, step: f64) {
        let units = (step * STEP_SCALE as f64).round() as u64;
        if units > 0 && !self.steps.contains(&units) {
            self.steps.push(units);
        }
    }

    /// The numbers of both sets.
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

    /// Why there is no such number, if there visibly is none.
    pub(super) fn emptiness(&self) -> Option<String> {
        let nothing = format!("no number is from {} to {}", self.low, self.high);
        if self.low > self.high {
            return Some(nothing);
        }
        let step = i128::from(self.common_step()?);
        let (low, high) = (in_units(self.low)?, in_units(self.high)?);
        // The least multiple from `low` on, which is rounded up.
        let low = low.floor + i128::from(!low.is_exact);
        let first = -((-low).div_euclid(step)) * step;
        let is_empty = first > high.floor;
        is_empty.then(|| format!("{nothing} and a multiple of {}", step as f64 / 1e4))
    }

    /// The common step in units of 0.0001, if there are steps and 64 bits hold it.
    fn common_step(&self) -> Option<u64> {
        let whole = (self.wholeness > Wholeness::Any).then_some(STEP_SCALE as u64);
        let mut steps = self.steps.iter().copied().chain(whole);
        let first = steps.next()?;
        steps.try_fold(first, least_common)
    }

    /// The texts of the numbers.
    ///
    /// # Errors
    ///
    /// - the steps have a common multiple that is too large for the parser
    pub(super) fn texts(&self) -> Result<RegexAst, String> {
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

    /// Texts without a sign of what lies from `low`, 0 or more, to `high`.
    fn magnitudes(&self, low: f64, high: f64) -> Result<RegexAst, String> {
        let mut parts = Vec::new();
        let digits = |bound: f64| Digits::of(bound);
        if low == high {
            parts.push(digits(low).texts());
        }
        match low > 0.0 {
            _ if low == high => {}
            true => parts.push(digits(low).texts_from()),
            false if high.is_infinite() => parts.push(Digits::all_texts()),
            false => {}
        }
        if high.is_finite() && low < high {
            parts.push(digits(high).texts_to());
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
            // Remainders times ten are held in 32 bits.
            let step = step
                .filter(|step| *step <= MAX_STEP)
                .and_then(|step| u32::try_from(step).ok());
            let step = step.ok_or("its steps of multipleOf have too large a common multiple")?;
            let n_remainders = without_twos_and_fives(step);
            if n_remainders > STEP_REMAINDERS {
                return Err(format!(
                    "multiples of {} are told apart by {n_remainders} remainders; at most \
                     {STEP_REMAINDERS} are followed, which is the step in units of 0.0001 without its \
                     factors 2 and 5 (STEP_REMAINDERS in docs/limits.md)",
                    f64::from(step) / 1e4
                ));
            }
            parts.push(multiples(step));
        }
        Ok(RegexAst::And(parts))
    }
}

/// Texts of multiples with up to four decimals.
///
/// Those with so many decimals are told apart, since `MultipleOf` takes all decimals of its scale
/// or none.
fn multiples(units: u32) -> RegexAst {
    let options = (0..=STEP_DECIMALS as u32).map(|n_decimals| {
        // Without its point, such a text is a multiple of this.
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

/// The digits of a decimal tell at once whether it has a factor of 2 or 5; for the rest of a step, an
/// automaton follows the remainder.
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

/// A finite number whose size the exact integers of units hold.
fn in_units(value: f64) -> Option<Units> {
    if !value.is_finite() || value.abs() > 1e30 {
        return None;
    }
    let Digits { digits, exponent } = Digits::of(value.abs());
    // value = digits * 10^scale, in units.
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
    // Beyond the digits of any float, the quotient is 0 or -1.
    let divisor = 10_i128.pow(scale.unsigned_abs().min(30));
    Some(Units {
        floor: digits.div_euclid(divisor),
        is_exact: digits.rem_euclid(divisor) == 0,
    })
}

impl Digits {
    /// The fewest digits that are read as this float, 0 or more.
    fn of(magnitude: f64) -> Self {
        let text = format!("{:e}", magnitude.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
        let kept = digits.trim_end_matches('0');
        Self {
            digits: if kept.is_empty() { "0" } else { kept }.to_owned(),
            exponent: exponent.parse().unwrap_or(0),
        }
    }

    /// The digits before the point, and those after it without zeros at the end.
    fn around_the_point(&self) -> (String, String) {
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

    fn all_texts() -> String {
        format!(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|{MANTISSA}[eE][+-]?[0-9]+")
    }

    /// Texts of this magnitude alone.
    fn texts(&self) -> String {
        let zeros = |decimals: &str| match decimals {
            "" => no_fraction(),
            decimals => format!(r"\.{decimals}0{{0,{MAX_ZEROS}}}"),
        };
        let (whole, fraction) = self.around_the_point();
        let mut options = vec![format!("{whole}{}", zeros(&fraction))];
        if self.digits != "0" {
            let (first, rest) = self.digits.split_at(1);
            options.push(format!(
                "{first}{}{}",
                zeros(rest),
                exponent_of(self.exponent)
            ));
        }
        either(&options)
    }

    /// Texts of this magnitude, which is above 0, and of larger ones.
    fn texts_from(&self) -> String {
        let (whole, fraction) = self.around_the_point();
        let (first, rest) = self.digits.split_at(1);
        let exponent = self.exponent;
        let mut options = vec![
            format!(r"{}(?:\.[0-9]+)?", either(&more(&whole))),
            format!("{whole}{}", fraction_from(&fraction)),
            format!("{first}{}{}", fraction_from(rest), exponent_of(exponent)),
            format!("{MANTISSA}{}", exponents_from(exponent + 1)),
        ];
        let digit = digit_at(first, 0);
        if digit < 9 {
            let larger = format!(r"[{}-9](?:\.[0-9]+)?", digit + 1);
            options.push(format!("{larger}{}", exponent_of(exponent)));
        }
        either(&options)
    }

    /// Texts of this magnitude and of smaller ones, of 0 too.
    fn texts_to(&self) -> String {
        let (whole, fraction) = self.around_the_point();
        let mut options = vec![format!("{whole}{}", fraction_to(&fraction))];
        if whole != "0" {
            options.push(format!(r"{}(?:\.[0-9]+)?", either(&less(&whole))));
        }
        if self.digits != "0" {
            let (first, rest) = self.digits.split_at(1);
            let exponent = self.exponent;
            options.push(format!(
                "{first}{}{}",
                fraction_to(rest),
                exponent_of(exponent)
            ));
            let digit = digit_at(first, 0);
            if digit > 1 {
                let smaller = format!(r"[1-{}](?:\.[0-9]+)?", digit - 1);
                options.push(format!("{smaller}{}", exponent_of(exponent)));
            }
            options.push(format!("{MANTISSA}{}", exponents_to(exponent - 1)));
        }
        either(&options)
    }
}

/// One of some expressions, of which there is at least one.
fn either(options: &[String]) -> String {
    format!("(?:{})", options.join("|"))
}

fn digit_at(digits: &str, idx: usize) -> u8 {
    digits.as_bytes().get(idx).map_or(0, |digit| digit - b'0')
}

/// Digits before a point that are a larger integer than these.
fn more(digits: &str) -> Vec<String> {
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

/// Digits before a point that are a smaller integer than these.
fn less(digits: &str) -> Vec<String> {
    let n = digits.len();
    let mut options = Vec::new();
    if n > 1 {
        options.push(format!("0|[1-9][0-9]{{0,{}}}", n - 2));
    }
    for idx in 0..n {
        let (digit, least) = (digit_at(digits, idx), u8::from(idx == 0 && n > 1));
        if digit > least {
            let (before, n_left) = (&digits[..idx], n - 1 - idx);
            options.push(format!("{before}[{least}-{}][0-9]{{{n_left}}}", digit - 1));
        }
    }
    options
}

/// A point and decimals that are at least these, or nothing if there are none.
fn fraction_from(decimals: &str) -> String {
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
    format!(r"\.{}", either(&options))
}

/// Nothing, or a point and zeros: `.0`, as floats have it, and a few more.
fn no_fraction() -> String {
    format!(r"(?:\.0{{1,{}}})?", MAX_ZEROS + 1)
}

/// Nothing, or a point and decimals that are at most these.
fn fraction_to(decimals: &str) -> String {
    if decimals.is_empty() {
        return no_fraction();
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
    format!(r"(?:\.{})?", either(&options))
}

fn without_zeros(decimals: &str) -> (usize, &str) {
    let rest = decimals.trim_start_matches('0');
    (decimals.len() - rest.len(), rest)
}

fn exponent_of(exponent: i32) -> String {
    match exponent {
        0.. => format!(r"[eE]\+?0?{exponent}"),
        _ => format!("[eE]-0?{}", exponent.unsigned_abs()),
    }
}

fn exponents_from(least: i32) -> String {
    let size = least.unsigned_abs().to_string();
    match least {
        1.. => {
            let mut larger = more(&size);
            larger.push(size);
            format!(r"[eE]\+?0?{}", either(&larger))
        }
        0 => r"[eE]\+?[0-9]+".to_owned(),
        _ => {
            let mut smaller = less(&size);
            smaller.push(size);
            format!(r"[eE](?:\+?[0-9]+|-0?{})", either(&smaller))
        }
    }
}

fn exponents_to(most: i32) -> String {
    let size = most.unsigned_abs().to_string();
    match most {
        0.. => {
            let mut smaller = less(&size);
            smaller.push(size);
            format!(r"[eE](?:\+?0?{}|-[0-9]+)", either(&smaller))
        }
        _ => {
            let mut larger = more(&size);
            larger.push(size);
            format!("[eE]-0?{}", either(&larger))
        }
    }
}
