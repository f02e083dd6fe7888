//! The benchmark's 40 functions of arithmetic and geometry, as Python computes them.
//!
//! Golds are printed with 15 to 17 digits, so the order of operations and the types are part of
//! each function: `(4/3) * pi * r**3` is not `4 * pi * r**3 / 3`, and `2 * (l + w)` of integers is an
//! integer. Booleans are 0 and 1; a text, a list or none where a number belongs raises.

use std::f64::consts::PI;
use std::hint::black_box;

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use tooltune_rows::python::{MAX_INTEGER_BITS, Number, NumberError, PyValue};

/// A function of the benchmark's basic ones.
#[derive(Debug)]
pub struct MathTool {
    /// Its name.
    pub name: &'static str,
    /// The names that its parameters have in Python; specifications say `arg_0`, `arg_1`.
    pub parameters: &'static [&'static str],
    /// How many of them have no default.
    pub n_required: usize,
    function: Function,
}

#[derive(Debug, Clone, Copy)]
enum Function {
    One(fn(&Number) -> Computed),
    Two(fn(&Number, &Number) -> Computed),
    /// The second number has a default.
    OneOrTwo(fn(&Number, &Number) -> Computed, fn() -> Number),
    /// The first number of a list beyond which, in one direction, there is none.
    Extreme(std::cmp::Ordering),
}

type Computed = Result<Number, NumberError>;

/// Why a function has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MathToolError {
    /// Python raises an arithmetic error.
    #[error("{tool}: {error}")]
    Arithmetic {
        /// The function.
        tool: &'static str,
        /// What Python raises.
        error: NumberError,
    },
    /// An argument is of a type that the function cannot take.
    #[error("{tool}: a {found} is no {expected}")]
    WrongType {
        /// The function.
        tool: &'static str,
        /// Python's name of the argument's type.
        found: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// There are too many arguments, or too few.
    #[error("{tool} takes {} arguments, not {found}", range(*least, *most))]
    Arity {
        /// The function.
        tool: &'static str,
        /// How many it needs.
        least: usize,
        /// How many it takes.
        most: usize,
        /// How many there are.
        found: usize,
    },
    /// The list of which an extreme is asked is empty.
    #[error("{tool}: the list is empty")]
    EmptyList {
        /// The function.
        tool: &'static str,
    },
}

fn range(least: usize, most: usize) -> String {
    if least == most {
        least.to_string()
    } else {
        format!("{least} to {most}")
    }
}

/// The function of that name, if it is one of the 40.
pub fn math_tool(name: &str) -> Option<&'static MathTool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

/// All 40 functions.
pub fn math_tools() -> &'static [MathTool] {
    TOOLS
}

impl MathTool {
    /// Computes the result of the arguments, given by position.
    ///
    /// # Errors
    ///
    /// - Python would raise: a wrong number or type of arguments, or no result for them
    /// - an integer would have more than [`MAX_INTEGER_BITS`]
    ///
    /// # Source
    ///
    /// The behaviour of the functions of NESTFUL's `basic_functions.py`, compared with Python 3.11.
    pub fn run(&self, arguments: &[PyValue]) -> Result<PyValue, MathToolError> {
        if !(self.n_required..=self.parameters.len()).contains(&arguments.len()) {
            return Err(MathToolError::Arity {
                tool: self.name,
                least: self.n_required,
                most: self.parameters.len(),
                found: arguments.len(),
            });
        }
        let computed = match (self.function, arguments) {
            (Function::One(function), [only, ..]) => function(&self.number(only)?),
            (Function::Two(function), [first, second, ..])
            | (Function::OneOrTwo(function, _), [first, second, ..]) => {
                function(&self.number(first)?, &self.number(second)?)
            }
            (Function::OneOrTwo(function, default), [only]) => {
                function(&self.number(only)?, &default())
            }
            (Function::Extreme(direction), [only, ..]) => return self.extreme(only, direction),
            _ => Err(NumberError::Domain),
        };
        let named = |error| MathToolError::Arithmetic {
            tool: self.name,
            error,
        };
        computed.map(PyValue::from).map_err(named)
    }

    fn number(&self, argument: &PyValue) -> Result<Number, MathToolError> {
        argument.number().ok_or_else(|| MathToolError::WrongType {
            tool: self.name,
            found: argument.type_name(),
            expected: "number",
        })
    }

    /// As `max` and `min`: of equal items the first, with its own type.
    fn extreme(
        &self,
        list: &PyValue,
        direction: std::cmp::Ordering,
    ) -> Result<PyValue, MathToolError> {
        let (PyValue::List(items) | PyValue::Tuple(items)) = list else {
            return Err(MathToolError::WrongType {
                tool: self.name,
                found: list.type_name(),
                expected: "list of numbers",
            });
        };
        let mut best: Option<(&PyValue, Number)> = None;
        for item in items {
            let number = self.number(item)?;
            let is_beyond = |(_, best): &(_, Number)| number.compare(best) == Some(direction);
            if best.as_ref().is_none_or(is_beyond) {
                best = Some((item, number));
            }
        }
        let empty = MathToolError::EmptyList { tool: self.name };
        best.map(|(item, _)| item.clone()).ok_or(empty)
    }
}

const fn one(
    name: &'static str,
    parameters: &'static [&'static str; 1],
    function: fn(&Number) -> Computed,
) -> MathTool {
    MathTool {
        name,
        parameters,
        n_required: 1,
        function: Function::One(function),
    }
}

const fn two(
    name: &'static str,
    parameters: &'static [&'static str; 2],
    function: fn(&Number, &Number) -> Computed,
) -> MathTool {
    MathTool {
        name,
        parameters,
        n_required: 2,
        function: Function::Two(function),
    }
}

const fn extreme(name: &'static str, direction: std::cmp::Ordering) -> MathTool {
    MathTool {
        name,
        parameters: &["numbers"],
        n_required: 1,
        function: Function::Extreme(direction),
    }
}

static TOOLS: &[MathTool] = &[
    two("add", &["arg_0", "arg_1"], Number::plus),
    two("subtract", &["arg_0", "arg_1"], Number::minus),
    two("multiply", &["arg_0", "arg_1"], Number::times),
    two("divide", &["arg_0", "arg_1"], Number::over),
    two("power", &["base", "exponent"], Number::to_the),
    two("remainder", &["a", "b"], Number::modulo),
    two("reminder", &["a", "b"], Number::modulo),
    one("inverse", &["number"], |x| int(1).over(x)),
    one("negate", &["number"], |x| Ok(x.negated())),
    one("negate_prob", &["prob"], |p| int(1).minus(p)),
    one("floor", &["x"], |x| x.floor().map(Number::Int)),
    one("sqrt", &["num"], integer_sqrt),
    one("square_edge_by_area", &["area"], float_sqrt),
    MathTool {
        name: "log",
        parameters: &["x", "base"],
        n_required: 1,
        function: Function::OneOrTwo(logarithm, || Number::Float(std::f64::consts::E)),
    },
    one("factorial", &["n"], |n| factorial(n).map(Number::Int)),
    two("permutation", &["n", "r"], permutation),
    two("choose", &["n", "r"], choose),
    two("gcd", &["arg_0", "arg_1"], |a, b| {
        gcd(a, b).map(Number::Int)
    }),
    two("lcm", &["a", "b"], |a, b| {
        a.times(b)?.absolute().floor_over(&Number::Int(gcd(a, b)?))
    }),
    extreme("max_number", std::cmp::Ordering::Greater),
    extreme("min_number", std::cmp::Ordering::Less),
    two("speed", &["distance", "time"], Number::over),
    two("rectangle_area", &["length", "width"], Number::times),
    two("rectangle_perimeter", &["length", "width"], |l, w| {
        int(2).times(&l.plus(w)?)
    }),
    one("square_area", &["side"], |s| s.times(s)),
    one("square_perimeter", &["side_length"], |s| int(4).times(s)),
    one("square_edge_by_perimeter", &["perimeter"], |p| {
        p.over(&int(4))
    }),
    two("triangle_area", &["base", "height"], |b, h| {
        float(0.5).times(b)?.times(h)
    }),
    two("rhombus_area", &["diagonal1", "diagonal2"], |a, b| {
        float(0.5).times(a)?.times(b)
    }),
    one("circle_area", &["radius"], |r| {
        float(PI).times(&r.to_the(&int(2))?)
    }),
    one("circumface", &["radius"], |r| float(2.0 * PI).times(r)),
    two("diagonal", &["length", "width"], |l, w| {
        float_sqrt(&l.to_the(&int(2))?.plus(&w.to_the(&int(2))?)?)
    }),
    one("volume_cube", &["side_length"], |s| s.to_the(&int(3))),
    one("surface_cube", &["side_length"], |s| {
        int(6).times(&s.to_the(&int(2))?)
    }),
    one("cube_edge_by_volume", &["volume"], cube_root),
    one("volume_sphere", &["radius"], |r| {
        float(4.0 / 3.0 * PI).times(&r.to_the(&int(3))?)
    }),
    one("surface_sphere", &["radius"], |r| {
        float(4.0 * PI).times(&r.to_the(&int(2))?)
    }),
    two("volume_cylinder", &["radius", "height"], |r, h| {
        float(PI).times(&r.to_the(&int(2))?)?.times(h)
    }),
    two("surface_cylinder", &["radius", "height"], |r, h| {
        float(2.0 * PI).times(r)?.times(&r.plus(h)?)
    }),
    two("volume_cone", &["radius", "height"], |r, h| {
        float(1.0 / 3.0 * PI).times(&r.to_the(&int(2))?)?.times(h)
    }),
];

fn int(integer: i64) -> Number {
    Number::from(integer)
}

fn float(float: f64) -> Number {
    Number::Float(float)
}

/// `math.isqrt`.
fn integer_sqrt(number: &Number) -> Computed {
    match number.integer()? {
        negative if negative.sign() == Sign::Minus => Err(NumberError::Domain),
        integer => Ok(Number::Int(integer.sqrt())),
    }
}

/// `math.sqrt`.
fn float_sqrt(number: &Number) -> Computed {
    match number.to_float()? {
        negative if negative < 0.0 => Err(NumberError::Domain),
        float => Ok(Number::Float(float.sqrt())),
    }
}

/// `math.pow(v, 1/3)`.
fn cube_root(volume: &Number) -> Computed {
    match volume.to_float()? {
        negative if negative < 0.0 && negative.is_finite() => Err(NumberError::Domain),
        float => Ok(Number::Float(float.powf(black_box(1.0 / 3.0)))),
    }
}

/// `int(math.log(x, base))`: cut, not rounded, so that 1000 has the logarithm 2 by 10.
fn logarithm(number: &Number, base: &Number) -> Computed {
    let quotient = Number::Float(natural(number)?).over(&Number::Float(natural(base)?))?;
    quotient.truncated().map(Number::Int)
}

/// `math.log` of one argument, which takes integers that no float holds.
fn natural(number: &Number) -> Result<f64, NumberError> {
    match number {
        Number::Int(integer) if integer.sign() != Sign::Plus => Err(NumberError::Domain),
        Number::Float(float) if *float <= 0.0 => Err(NumberError::Domain),
        Number::Float(float) => Ok(float.ln()),
        Number::Int(integer) => match number.to_float() {
            Ok(float) => Ok(float.ln()),
            Err(_) => {
                let n_bits = integer.bits();
                let scale = Number::Int(BigInt::from(1) << n_bits);
                let mantissa = number.over(&scale)?.to_float()?;
                Ok(mantissa.ln() + 2.0_f64.ln() * n_bits as f64)
            }
        },
    }
}

/// A loop over `range`, which takes no float; only zero is answered before it.
fn factorial(number: &Number) -> Result<BigInt, NumberError> {
    if number.is_zero() {
        return Ok(1.into());
    }
    match number.integer()? {
        negative if negative.sign() == Sign::Minus => Err(NumberError::Domain),
        n => falling_product(n, n),
    }
}

fn permutation(n: &Number, r: &Number) -> Computed {
    let (all, rest) = (factorial(n)?, factorial(&n.minus(r)?)?);
    Ok(Number::Int(all / rest))
}

/// `math.comb`.
fn choose(n: &Number, r: &Number) -> Computed {
    let (n, r) = (n.integer()?, r.integer()?);
    if n.sign() == Sign::Minus || r.sign() == Sign::Minus {
        return Err(NumberError::Domain);
    }
    if r > n {
        return Ok(int(0));
    }
    let r = r.min(&(n - r)).clone();
    Ok(Number::Int(
        falling_product(n, &r)? / falling_product(&r, &r)?,
    ))
}

/// `n * (n - 1) * ..`, `n_factors` of them, which must not be more than `n`.
fn falling_product(n: &BigInt, n_factors: &BigInt) -> Result<BigInt, NumberError> {
    let n_factors = u64::try_from(n_factors).map_err(|_| NumberError::TooLarge)?;
    if n_factors.saturating_mul(n.bits()) > MAX_INTEGER_BITS {
        return Err(NumberError::TooLarge);
    }
    Ok(product(n, 0, n_factors))
}

/// The product of `n - from` down to `n - until + 1`, by halves: multiplying one factor at a time
/// takes a time that grows with the square of their number.
fn product(n: &BigInt, from: u64, until: u64) -> BigInt {
    match until - from {
        0 => 1.into(),
        1 => n - from,
        n_factors => {
            let middle = from + n_factors / 2;
            product(n, from, middle) * product(n, middle, until)
        }
    }
}

/// `math.gcd(int(a), int(b))`.
fn gcd(a: &Number, b: &Number) -> Result<BigInt, NumberError> {
    // The time grows with the square of the bits.
    const MAX_BITS: u64 = 1 << 17;
    let (a, b) = (a.truncated()?, b.truncated()?);
    if a.bits().max(b.bits()) > MAX_BITS {
        Err(NumberError::TooLarge)
    } else {
        Ok(a.gcd(&b))
    }
}
