//! Metric for selecting checkpoints: one metric, or a weighted sum.
//!
//! Examples: `goat.sa`, `0.5 * goat.sa + 0.5 * retrieval.recall_at_5`. A sum has a value only if
//! all its metrics have one.

use std::collections::BTreeMap;

use tooltune_suites::lower_is_better;

/// A weighted sum of metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricExpression {
    terms: Vec<(f64, String)>,
}

impl MetricExpression {
    /// Parses `name`, or terms `factor * name` joined by `+` and `-`, with an optional leading `-`.
    ///
    /// # Errors
    ///
    /// A description of the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        let mut rest = text.trim();
        let mut sign = 1.0;
        loop {
            if let Some(unsigned) = rest.strip_prefix('-') {
                sign = -sign;
                rest = unsigned.trim_start();
            }
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            // A factor may have an exponent, as in 1e-3.
            let end = if is_exponent(rest, end) {
                rest[end + 1..]
                    .find(['+', '-'])
                    .map_or(rest.len(), |more| end + 1 + more)
            } else {
                end
            };
            let (factor, name) = term(rest[..end].trim())?;
            terms.push((sign * factor, name.to_owned()));
            if end == rest.len() {
                return Ok(Self { terms });
            }
            sign = if rest[end..].starts_with('-') {
                -1.0
            } else {
                1.0
            };
            rest = rest[end + 1..].trim_start();
        }
    }

    /// Names of its metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|(_, name)| name.as_str())
    }

    /// The value, if every metric has one.
    pub fn value(&self, metrics: &BTreeMap<String, f64>) -> Option<f64> {
        let terms = self.terms.iter();
        terms
            .map(|(factor, name)| Some(factor * metrics.get(name)?))
            .sum()
    }

    /// False if every term decreases as the model improves, as a loss does.
    pub fn greater_is_better(&self) -> bool {
        let falls = |(factor, name): &(f64, String)| lower_is_better(name) == (*factor > 0.0);
        !self.terms.iter().all(falls)
    }
}

/// Whether the sign at `end` belongs to the exponent of a number.
fn is_exponent(text: &str, end: usize) -> bool {
    let before = &text[..end];
    before.ends_with(['e', 'E'])
        && before[..before.len() - 1].ends_with(|c: char| c.is_ascii_digit())
        && before
            .trim_start()
            .starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

fn term(text: &str) -> Result<(f64, &str), String> {
    let (factor, name) = match text.split_once('*') {
        None => (1.0, text),
        Some((factor, name)) => {
            let factor = factor.trim();
            let number: f64 = factor
                .parse()
                .map_err(|_| format!("{factor:?} is not a number; write 0.5 * {}", name.trim()))?;
            (number, name.trim())
        }
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(format!(
            "{name:?} is not the name of a metric; write a name, or 0.5 * name + 0.5 * name"
        ));
    }
    if !factor.is_finite() {
        return Err(format!("the factor of {name} is not finite"));
    }
    Ok((factor, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sums_have_their_values() {
        let metrics = BTreeMap::from([("goat.sa".to_owned(), 0.5), ("loss".to_owned(), 2.0)]);
        for (text, value) in [
            ("goat.sa", Some(0.5)),
            (" 0.5*goat.sa + 0.25 * loss ", Some(0.75)),
            ("goat.sa - 1e-1*loss", Some(0.3)),
            ("2*goat.sa-loss", Some(-1.0)),
            ("-loss + 4*goat.sa", Some(0.0)),
            ("goat.sa + -0.5*loss", Some(-0.5)),
            ("goat.sa + goat.ia", None),
        ] {
            let parsed = MetricExpression::parse(text).expect(text);
            match (parsed.value(&metrics), value) {
                (Some(ours), Some(value)) => assert!((ours - value).abs() < 1e-12, "{text}"),
                (ours, value) => assert_eq!(ours, value, "{text}"),
            }
        }
        let sum = MetricExpression::parse("0.5*a.b - c").expect("a sum");
        assert_eq!(sum.names().collect::<Vec<_>>(), ["a.b", "c"]);
    }

    #[test]
    fn lower_is_better_if_every_term_decreases() {
        for (text, greater) in [
            ("loss", false),
            ("goat.delta_len", false),
            ("2*nestful.steps + loss", false),
            ("loss - goat.sa", false),
            ("-1*slot.malformed_rate", true),
            ("goat.sa", true),
            ("goat.sa - 0.1*loss", true),
        ] {
            let parsed = MetricExpression::parse(text).expect(text);
            assert_eq!(parsed.greater_is_better(), greater, "{text}");
        }
    }

    #[test]
    fn invalid_sums_are_refused() {
        for (text, expected) in [
            ("", "is not the name of a metric"),
            ("goat.sa +", "is not the name of a metric"),
            ("half * goat.sa", "\"half\" is not a number"),
            ("goat sa", "is not the name of a metric"),
            ("1e999 * goat.sa", "not finite"),
        ] {
            let error = MetricExpression::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
