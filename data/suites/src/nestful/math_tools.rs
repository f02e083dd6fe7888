//! The benchmark's 40 arithmetic and geometry functions, computed as in Python.
//!
//! Gold values are printed with 15 to 17 digits, so each function must keep the order of operations
//! and the types: `(4/3) * pi * r**3` differs from `4 * pi * r**3 / 3`, and `2 * (l + w)` of
//! integers is an integer. Booleans are 0 and 1; a string, list or None instead of a number raises
//! an error.

use std::f64::consts::PI;
use std::hint::black_box;

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use tooltune_json::python::{MAX_INTEGER_BITS, Number, NumberError, PyValue};

/// One of the benchmark's basic functions.
#[derive(Debug)]
pub struct MathTool {
    /// Name of the function.
    pub name: &'static str,
    /// The parameter names in Python; specifications use `arg_0`, `arg_1`.
    pub parameters: &'static [&'static str],
    /// Number of parameters without a default.
    pub n_required: usize,
    function: Function,
}

#[derive(Debug, Clone, Copy)]
enum Function {
    One(fn(&Number) -> NumberResult),
    Two(fn(&Number, &Number) -> NumberResult),
    /// The second number has a default.
    OneOrTwo(fn(&Number, &Number) -> NumberResult, fn() -> Number),
    /// The first maximum or minimum of a list.
    Extreme(std::cmp::Ordering),
}

type NumberResult = Result<Number, NumberError>;

/// Why a function has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MathToolError {
    /// Python raises an arithmetic error.
    #[error("{tool}: {error}")]
    Arithmetic {
        /// The function.
        tool: &'static str,
        /// Python's error.
        error: NumberError,
    },
    /// An argument has an unsupported type.
    #[error("{tool}: a {found} is no {expected}")]
    WrongType {
        /// The function.
        tool: &'static str,
        /// Python's name of the argument's type.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// There are too many or too few arguments.
    #[error("{tool} takes {} arguments, not {found}", range(*least, *most))]
    Arity {
        /// The function.
        tool: &'static str,
        /// Minimum number of arguments.
        least: usize,
        /// Maximum number of arguments.
        most: usize,
        /// Actual number of arguments.
        found: usize,
    },
    /// The list for a maximum or minimum is empty.
    #[error("{tool}: the list is empty")]
    EmptyList {
        /// The function.
        tool: &'static str,
    },
}

fn range(min: usize, max: usize) -> String {
    if min == max {
        min.to_string()
    } else {
        format!("{min} to {max}")
    }
}

/// Looks up one of the 40 functions by name.
pub fn math_tool(name: &str) -> Option<&'static MathTool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

/// All 40 functions.
pub fn math_tools() -> &'static [MathTool] {
    TOOLS
}

impl MathTool {
    /// Computes the result for positional arguments.
    ///
    /// # Errors
    ///
    /// - Python would raise an error: wrong number or types of arguments, or no result for them
    /// - an integer would have more than [`MAX_INTEGER_BITS`]
    ///
    /// # Source
    ///
    /// The behaviour of NESTFUL's `basic_functions.py`, compared with Python 3.11.
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
            (Function::One(function), [argument, ..]) => function(&self.number(argument)?),
            (Function::Two(function), [first, second, ..])
            | (Function::OneOrTwo(function, _), [first, second, ..]) => {
                function(&self.number(first)?, &self.number(second)?)
            }
            (Function::OneOrTwo(function, default), [argument]) => {
                function(&self.number(argument)?, &default())
            }
            (Function::Extreme(direction), [argument, ..]) => {
                return self.extreme_tool(argument, direction);
            }
            _ => Err(NumberError::Domain),
        };
        let arithmetic_error = |error| MathToolError::Arithmetic {
            tool: self.name,
            error,
        };
        computed.map(PyValue::from).map_err(arithmetic_error)
    }

    fn number(&self, argument: &PyValue) -> Result<Number, MathToolError> {
        argument.number().ok_or_else(|| MathToolError::WrongType {
            tool: self.name,
            found: argument.type_name(),
            expected: "number",
        })
    }

    /// Like Python's `max` and `min`: returns the first of equal items, with its own type.
    fn extreme_tool(
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

const fn unary(
    name: &'static str,
    parameters: &'static [&'static str; 1],
    function: fn(&Number) -> NumberResult,
) -> MathTool {
    MathTool {
        name,
        parameters,
        n_required: 1,
        function: Function::One(function),
    }
}

const fn binary(
    name: &'static str,
    parameters: &'static [&'static str; 2],
    function: fn(&Number, &Number) -> NumberResult,
) -> MathTool {
    MathTool {
        name,
        parameters,
        n_required: 2,
        function: Function::Two(function),
    }
}

const fn extreme_tool(name: &'static str, direction: std::cmp::Ordering) -> MathTool {
    MathTool {
        name,
        parameters: &["numbers"],
        n_required: 1,
        function: Function::Extreme(direction),
    }
}

static TOOLS: &[MathTool] = &[
    binary("add", &["arg_0", "arg_1"], Number::plus),
    binary("subtract", &["arg_0", "arg_1"], Number::minus),
    binary("multiply", &["arg_0", "arg_1"], Number::times),
    binary("divide", &["arg_0", "arg_1"], Number::true_divide),
    binary("power", &["base", "exponent"], Number::to_the),
    binary("remainder", &["a", "b"], Number::modulo),
    binary("reminder", &["a", "b"], Number::modulo),
    unary("inverse", &["number"], |x| from_integer(1).true_divide(x)),
    unary("negate", &["number"], |x| Ok(x.negated())),
    unary("negate_prob", &["prob"], |p| from_integer(1).minus(p)),
    unary("floor", &["x"], |x| x.floor().map(Number::Int)),
    unary("sqrt", &["num"], integer_sqrt),
    unary("square_edge_by_area", &["area"], float_sqrt),
    MathTool {
        name: "log",
        parameters: &["x", "base"],
        n_required: 1,
        function: Function::OneOrTwo(logarithm, || Number::Float(std::f64::consts::E)),
    },
    unary("factorial", &["n"], |n| factorial(n).map(Number::Int)),
    binary("permutation", &["n", "r"], permutation),
    binary("choose", &["n", "r"], choose),
    binary("gcd", &["arg_0", "arg_1"], |a, b| {
        gcd(a, b).map(Number::Int)
    }),
    binary("lcm", &["a", "b"], |a, b| {
        a.times(b)?.absolute().floor_over(&Number::Int(gcd(a, b)?))
    }),
    extreme_tool("max_number", std::cmp::Ordering::Greater),
    extreme_tool("min_number", std::cmp::Ordering::Less),
    binary("speed", &["distance", "time"], Number::true_divide),
    binary("rectangle_area", &["length", "width"], Number::times),
    binary("rectangle_perimeter", &["length", "width"], |l, w| {
        from_integer(2).times(&l.plus(w)?)
    }),
    unary("square_area", &["side"], |s| s.times(s)),
    unary("square_perimeter", &["side_length"], |s| {
        from_integer(4).times(s)
    }),
    unary("square_edge_by_perimeter", &["perimeter"], |p| {
        p.true_divide(&from_integer(4))
    }),
    binary("triangle_area", &["base", "height"], |b, h| {
        from_float(0.5).times(b)?.times(h)
    }),
    binary("rhombus_area", &["diagonal1", "diagonal2"], |a, b| {
        from_float(0.5).times(a)?.times(b)
    }),
    unary("circle_area", &["radius"], |r| {
        from_float(PI).times(&r.to_the(&from_integer(2))?)
    }),
    unary("circumface", &["radius"], |r| from_float(2.0 * PI).times(r)),
    binary("diagonal", &["length", "width"], |l, w| {
        float_sqrt(
            &l.to_the(&from_integer(2))?
                .plus(&w.to_the(&from_integer(2))?)?,
        )
    }),
    unary("volume_cube", &["side_length"], |s| {
        s.to_the(&from_integer(3))
    }),
    unary("surface_cube", &["side_length"], |s| {
        from_integer(6).times(&s.to_the(&from_integer(2))?)
    }),
    unary("cube_edge_by_volume", &["volume"], cube_root),
    unary("volume_sphere", &["radius"], |r| {
        from_float(4.0 / 3.0 * PI).times(&r.to_the(&from_integer(3))?)
    }),
    unary("surface_sphere", &["radius"], |r| {
        from_float(4.0 * PI).times(&r.to_the(&from_integer(2))?)
    }),
    binary("volume_cylinder", &["radius", "height"], |r, h| {
        from_float(PI).times(&r.to_the(&from_integer(2))?)?.times(h)
    }),
    binary("surface_cylinder", &["radius", "height"], |r, h| {
        from_float(2.0 * PI).times(r)?.times(&r.plus(h)?)
    }),
    binary("volume_cone", &["radius", "height"], |r, h| {
        from_float(1.0 / 3.0 * PI)
            .times(&r.to_the(&from_integer(2))?)?
            .times(h)
    }),
];

fn from_integer(integer: i64) -> Number {
    Number::from(integer)
}

fn from_float(float: f64) -> Number {
    Number::Float(float)
}

/// `math.isqrt`.
fn integer_sqrt(number: &Number) -> NumberResult {
    match number.integer()? {
        negative if negative.sign() == Sign::Minus => Err(NumberError::Domain),
        integer => Ok(Number::Int(integer.sqrt())),
    }
}

/// `math.sqrt`.
fn float_sqrt(number: &Number) -> NumberResult {
    match number.to_float()? {
        negative if negative < 0.0 => Err(NumberError::Domain),
        float => Ok(Number::Float(float.sqrt())),
    }
}

/// `math.pow(v, 1/3)`.
fn cube_root(volume: &Number) -> NumberResult {
    match volume.to_float()? {
        negative if negative < 0.0 && negative.is_finite() => Err(NumberError::Domain),
        float => Ok(Number::Float(float.powf(black_box(1.0 / 3.0)))),
    }
}

/// `int(math.log(x, base))`, which truncates instead of rounding. The base-10 logarithm of 1000 is
/// therefore 2.
fn logarithm(number: &Number, base: &Number) -> NumberResult {
    let quotient =
        Number::Float(natural_log(number)?).true_divide(&Number::Float(natural_log(base)?))?;
    quotient.truncated().map(Number::Int)
}

/// `math.log` with one argument, which also accepts integers outside the range of floats.
fn natural_log(number: &Number) -> Result<f64, NumberError> {
    match number {
        Number::Int(integer) if integer.sign() != Sign::Plus => Err(NumberError::Domain),
        Number::Float(float) if *float <= 0.0 => Err(NumberError::Domain),
        Number::Float(float) => Ok(float.ln()),
        Number::Int(integer) => match number.to_float() {
            Ok(float) => Ok(float.ln()),
            Err(_) => {
                let n_bits = integer.bits();
                let scale = Number::Int(BigInt::from(1) << n_bits);
                let mantissa = number.true_divide(&scale)?.to_float()?;
                Ok(mantissa.ln() + 2.0_f64.ln() * n_bits as f64)
            }
        },
    }
}

/// Computed by a loop over `range`, which rejects floats. Only zero is handled before the loop.
fn factorial(number: &Number) -> Result<BigInt, NumberError> {
    if number.is_zero() {
        return Ok(1.into());
    }
    match number.integer()? {
        negative if negative.sign() == Sign::Minus => Err(NumberError::Domain),
        n => falling_product(n, n),
    }
}

fn permutation(n: &Number, r: &Number) -> NumberResult {
    let (all, rest) = (factorial(n)?, factorial(&n.minus(r)?)?);
    Ok(Number::Int(all / rest))
}

/// `math.comb`.
fn choose(n: &Number, r: &Number) -> NumberResult {
    let (n, r) = (n.integer()?, r.integer()?);
    if n.sign() == Sign::Minus || r.sign() == Sign::Minus {
        return Err(NumberError::Domain);
    }
    if r > n {
        return Ok(from_integer(0));
    }
    let r = r.min(&(n - r)).clone();
    Ok(Number::Int(
        falling_product(n, &r)? / falling_product(&r, &r)?,
    ))
}

/// `n * (n - 1) * ..` with `n_factors` factors, at most `n`.
fn falling_product(n: &BigInt, n_factors: &BigInt) -> Result<BigInt, NumberError> {
    let n_factors = u64::try_from(n_factors).map_err(|_| NumberError::TooLarge)?;
    if n_factors.saturating_mul(n.bits()) > MAX_INTEGER_BITS {
        return Err(NumberError::TooLarge);
    }
    Ok(product(n, 0, n_factors))
}

/// The product of `n - from` down to `n - until + 1`, computed by halving the range, because
/// multiplying one factor at a time takes quadratic time.
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
    // The time is quadratic in the number of bits.
    const MAX_BITS: u64 = 1 << 17;
    let (a, b) = (a.truncated()?, b.truncated()?);
    if a.bits().max(b.bits()) > MAX_BITS {
        Err(NumberError::TooLarge)
    } else {
        Ok(a.gcd(&b))
    }
}
