//! The values of the answer options.
//!
//! `options` is `a ) 3 / 2 , b ) $ 1,200 , c ) 33 1 / 3 % , d ) 5 : 9 , e ) none of these`, or the
//! text of a Python list of such options.

use super::reason::{Dropped, Reason};

/// Maximum difference of a result from an option with decimal places, as a share of the option.
const MAX_DIFFERENCE: f64 = 0.01;
/// Maximum difference from fractions, ratios, powers and roots, whose digits are not rounded. It
/// covers constants such as 0.2778 for 5/18.
const MAX_EXACT_DIFFERENCE: f64 = 0.001;

/// The value of an option.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OptionValue {
    /// The value; for percentages also the share, and for `2 million` also 2.
    values: Vec<f64>,
    /// One unit of the last printed digit of the first value; `None` for exact expressions.
    last_digit: Option<f64>,
}

impl OptionValue {
    /// Whether a result is the option's value: it differs by less than one unit of the last printed
    /// digit and by at most 1 %, or from an exact expression by at most 0.1 %.
    fn accepts(&self, result: f64) -> bool {
        let first = self.values.first().copied().unwrap_or_default();
        self.values.iter().any(|&value| {
            let difference = (result - value).abs();
            let scale = if first == 0.0 {
                1.0
            } else {
                (value / first).abs()
            };
            match self.last_digit {
                _ if difference <= 1e-9 => true,
                Some(digit) => {
                    difference < digit * scale * (1.0 - 1e-9)
                        && difference <= MAX_DIFFERENCE * value.abs()
                }
                None => difference <= MAX_EXACT_DIFFERENCE * value.abs(),
            }
        })
    }

    fn distance(&self, result: f64) -> f64 {
        let distances = self.values.iter().map(|value| (result - value).abs());
        distances.fold(f64::INFINITY, f64::min)
    }
}

/// Checks that the correct option has the value `result`, and that no other option is closer.
pub(super) fn check_answer(options: &str, correct: &str, result: f64) -> Result<(), Dropped> {
    let texts = split_options(options);
    let letter = correct.trim();
    let no_option = |what: String| Dropped::new(Reason::NoOption, what);
    let text = texts.iter().find(|(known, _)| *known == letter);
    let (_, text) = text.ok_or_else(|| no_option(format!("no option {letter:?}")))?;
    let value = option_value(text).ok_or_else(|| no_option(format!("{letter} ) {text}")))?;
    let wrong = |what: &str, text: &str| {
        let detail = format!("the formula computes {result}, and {what} is {text:?}");
        Dropped::new(Reason::WrongResult, detail)
    };
    if !value.accepts(result) {
        return Err(wrong("the correct option", text));
    }
    let distance = value.distance(result);
    let others = texts.iter().filter(|(known, _)| *known != letter);
    for (_, other) in others {
        let is_closer =
            |other: OptionValue| other.distance(result) < distance - 1e-9 * distance.abs();
        if option_value(other).is_some_and(is_closer) {
            return Err(wrong("a closer option", other));
        }
    }
    Ok(())
}

const LETTERS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The letters and texts of the options. A letter counts only after the previous one.
fn split_options(options: &str) -> Vec<(&'static str, String)> {
    let mut starts = Vec::new();
    let mut from = 0;
    for letter in LETTERS {
        let Some((start, end)) = find_letter(options, from, letter) else {
            continue;
        };
        starts.push((letter, start, end));
        from = end;
    }
    let ends = starts.iter().skip(1).map(|(_, start, _)| *start);
    let ends: Vec<usize> = ends.chain([options.len()]).collect();
    let texts = starts.iter().zip(ends).map(|(&(letter, _, from), until)| {
        let text = options.get(from..until).unwrap_or_default();
        // Some options repeat their letter: `a ) a ) 16`.
        let text = match find_letter(text, 0, letter) {
            Some((at, end)) if text[..at].trim().is_empty() => &text[end..],
            _ => text,
        };
        let is_mark = |c: char| c.is_whitespace() || matches!(c, ',' | '\'' | '"' | '[' | ']');
        (letter, text.trim_matches(is_mark).to_owned())
    });
    texts.collect()
}

/// The next `letter )` that is not part of a word, as start and end.
fn find_letter(text: &str, from: usize, letter: &str) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + text.get(at..)?.find(letter)?;
        let end = start + letter.len();
        let before = text[..start].chars().next_back();
        let after = text[end..].trim_start();
        if before.is_none_or(|c| !c.is_alphanumeric()) && after.starts_with(')') {
            return Some((start, text.len() - after.len() + 1));
        }
        at = end;
    }
}

/// A token of an option.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'t> {
    /// A number and its count of decimal places.
    Number(f64, usize),
    Word(&'t str),
    Mark(char),
}

/// The value of an option with exactly one number, or `None`.
pub(super) fn option_value(text: &str) -> Option<OptionValue> {
    let text: String = text
        .chars()
        .filter(|c| !matches!(c, '[' | ']' | '(' | ')'))
        .map(|c| match c {
            '–' | '−' | '—' => '-',
            '⁄' => '/',
            other => other,
        })
        .collect();
    let text = text.replace('½', " 1 / 2").replace('¼', " 1 / 4");
    let text = text.replace('¾', " 3 / 4");
    let tokens = tokens(&text)?;
    let start = tokens.iter().position(is_start)?;
    let sign = sign(&tokens[..start])?;
    let (value, decimals, n_tokens) = expression(&tokens[start..])?;
    let rest = &tokens[start + n_tokens..];
    let (value, value_scale) = match rest.first() {
        Some(Token::Word("pi")) | Some(Token::Mark('π')) => (value * std::f64::consts::PI, None),
        Some(Token::Mark('%')) | Some(Token::Word("percent")) => (value, Some(0.01)),
        Some(Token::Word(word)) => (value, scale_of(word)),
        _ => (value, None),
    };
    let has_factor = matches!(rest.first(), Some(Token::Word("pi") | Token::Mark('π')));
    if !is_unit(rest) || !value.is_finite() {
        return None;
    }
    let value = sign * value;
    let mut values = vec![value];
    values.extend(value_scale.map(|scale| value * scale));
    let last_digit = decimals
        .filter(|_| !has_factor)
        .map(|decimals| 10_f64.powi(-i32::try_from(decimals).unwrap_or(i32::MAX)));
    Some(OptionValue { values, last_digit })
}

fn is_start(token: &Token<'_>) -> bool {
    matches!(token, Token::Number(..) | Token::Mark('√' | 'π'))
}

/// The sign before a value: currencies, `x =` and a minus without a term before it are allowed.
fn sign(before: &[Token<'_>]) -> Option<f64> {
    let mut sign = 1.0;
    for (at, token) in before.iter().enumerate() {
        match token {
            Token::Mark('-') | Token::Mark('+') => {
                let after_term = at > 0 && matches!(before[at - 1], Token::Word(_));
                if after_term {
                    return None;
                }
                if *token == Token::Mark('-') {
                    sign = -sign;
                }
            }
            Token::Word(_) | Token::Mark('.' | ':' | '=' | '$' | '€' | '£' | '~' | ',') => {}
            _ => return None,
        }
    }
    Some(sign)
}

/// The value at the start of `tokens`, its decimal places unless it is exact, and the number of
/// tokens.
fn expression(tokens: &[Token<'_>]) -> Option<(f64, Option<usize>, usize)> {
    use Token::{Mark, Number};
    Some(match tokens {
        [
            Number(whole, 0),
            Number(above, 0),
            Mark('/'),
            Number(below, 0),
            ..,
        ] => (whole + above / below, None, 4),
        [
            Number(above, _),
            Mark('/' | ':'),
            Mark('√'),
            Number(root, _),
            ..,
        ] => (above / root.sqrt(), None, 4),
        [Number(above, _), Mark('/' | ':'), Number(below, _), ..] => (above / below, None, 3),
        [Number(base, _), Mark('^'), Number(exponent, _), ..] => (base.powf(*exponent), None, 3),
        [Number(factor, _), Mark('√'), Number(root, _), ..] => (factor * root.sqrt(), None, 3),
        [Mark('√'), Number(root, _), ..] => (root.sqrt(), None, 2),
        [Number(value, decimals), ..] => (*value, Some(*decimals), 1),
        [Mark('π'), ..] => (std::f64::consts::PI, None, 1),
        _ => return None,
    })
}

/// The factor of a word such as `million`.
fn scale_of(word: &str) -> Option<f64> {
    Some(match word {
        "percent" => 0.01,
        "hundred" => 1e2,
        "thousand" => 1e3,
        "lakh" | "lakhs" | "lac" | "lacs" => 1e5,
        "million" => 1e6,
        "crore" | "crores" => 1e7,
        "billion" => 1e9,
        _ => return None,
    })
}

/// Whether the tokens after a value have no second value. The exponents of `cm ^ 2` and `cm 2` are
/// units.
fn is_unit(rest: &[Token<'_>]) -> bool {
    const LENGTHS: [&str; 19] = [
        "m", "cm", "mm", "km", "dm", "ft", "in", "yd", "metre", "metres", "meter", "meters",
        "feet", "foot", "inch", "inches", "unit", "units", "yards",
    ];
    let mut length_before = false;
    for (at, token) in rest.iter().enumerate() {
        let is_first = at == 0;
        length_before = match token {
            Token::Number(exponent, 0) if length_before => {
                if !matches!(*exponent, 2.0 | 3.0) {
                    return false;
                }
                false
            }
            Token::Word(word) => LENGTHS.contains(word),
            Token::Mark('^') => length_before,
            Token::Mark('²' | '³') if length_before => false,
            Token::Mark('π' | '%') if is_first => false,
            Token::Mark('.' | '/' | '-' | '°' | ',' | '$' | '€' | '£' | '?' | '\'' | '"') => {
                false
            }
            _ => return false,
        };
    }
    true
}

fn tokens(text: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let taken = if first.is_ascii_digit() {
            let end = length(|c| c.is_ascii_digit() || matches!(c, ',' | '.'));
            let number = rest[..end].trim_end_matches([',', '.']);
            tokens.push(plain_number(number)?);
            number.len()
        } else if first.is_alphabetic() && first != 'π' {
            let end = length(|c| c.is_alphabetic() && c != 'π');
            tokens.push(Token::Word(&rest[..end]));
            end
        } else if let Some((decimal, length)) = leading_point(rest, tokens.last()) {
            tokens.push(decimal);
            length
        } else {
            tokens.push(Token::Mark(first));
            first.len_utf8()
        };
        rest = rest[taken..].trim_start();
    }
    Some(tokens)
}

/// A number of the form `.5` or `. 5`, unless the point ends an abbreviation such as `rs . 5`.
fn leading_point<'t>(text: &str, before: Option<&Token<'t>>) -> Option<(Token<'t>, usize)> {
    let after = text.strip_prefix('.')?;
    if matches!(before, Some(Token::Word(_) | Token::Number(..))) {
        return None;
    }
    let digits = after.trim_start();
    let n_digits = digits.bytes().take_while(u8::is_ascii_digit).count();
    let value: f64 = format!("0.{}", digits.get(..n_digits)?).parse().ok()?;
    let length = text.len() - digits.len() + n_digits;
    (n_digits > 0).then_some((Token::Number(value, n_digits), length))
}

/// A number whose commas separate groups: `1,200` and the Indian `1,00,000`, but not `19,7`.
fn plain_number(text: &str) -> Option<Token<'static>> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let groups: Vec<&str> = whole.split(',').collect();
    let is_grouped = match groups.as_slice() {
        [_] => true,
        [first, middle @ .., last] => {
            let is_middle = |group: &&str| matches!(group.len(), 2 | 3);
            (1..=3).contains(&first.len()) && middle.iter().all(is_middle) && last.len() == 3
        }
        [] => false,
    };
    let is_decimal = decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !is_grouped || !is_decimal {
        return None;
    }
    let value = format!("{}.{decimals}0", whole.replace(',', ""))
        .parse()
        .ok()?;
    Some(Token::Number(value, decimals.len()))
}
