//! Values of measures in, their distributions out: what is said of the rows of a file.

use serde::Serialize;

/// The distribution of one measure over all rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasureStatistics {
    /// Such as `depth`, `size` (bytes), `completion_tokens`.
    pub name: &'static str,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of a sample, with one degree of freedom less; 0 for a single value.
    pub stdev: f64,
    /// Smallest value.
    pub min: f64,
    /// Median; percentiles lie linearly between the two nearest values, as NumPy's default.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest value.
    pub max: f64,
}

/// What a file of rows holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileStatistics {
    /// What there is how often, the rows first.
    pub counts: Vec<Count>,
    /// Parts of the rows, each with its counts and a measure of its own.
    pub groups: Vec<GroupStatistics>,
    /// Measures over all rows.
    pub measures: Vec<MeasureStatistics>,
}

/// How many there are of something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Of what.
    pub name: String,
    /// How many.
    pub n: usize,
}

/// A part of the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupStatistics {
    /// What its rows have in common.
    pub name: String,
    /// What there is how often in it, the rows first; the same names in each group.
    pub counts: Vec<Count>,
    /// A measure over its rows.
    pub measure: MeasureStatistics,
}

impl Count {
    /// So many of that name.
    pub fn new(name: impl Into<String>, n: usize) -> Self {
        Self {
            name: name.into(),
            n,
        }
    }
}

/// Counts the tokens of texts, where there is a tokenizer.
pub type TokenCount<'a> = Option<&'a dyn Fn(&str) -> usize>;

/// Values of measures, in the order in which the measures first came.
#[derive(Debug, Default)]
pub struct Measures {
    columns: Vec<(&'static str, Vec<f64>)>,
}

impl Measures {
    /// Adds a value of the measure of that name.
    pub fn add(&mut self, name: &'static str, value: usize) {
        let known = self.columns.iter_mut().find(|(known, _)| *known == name);
        match known {
            Some((_, values)) => values.push(value as f64),
            None => self.columns.push((name, vec![value as f64])),
        }
    }

    /// Adds the characters of a text, and its tokens, under these two names.
    pub fn add_text(&mut self, names: [&'static str; 2], text: &str, count_tokens: TokenCount<'_>) {
        let [characters, tokens] = names;
        self.add(characters, text.chars().count());
        if let Some(count_tokens) = count_tokens {
            self.add(tokens, count_tokens(text));
        }
    }

    /// The distributions of all measures.
    pub fn statistics(self) -> Vec<MeasureStatistics> {
        let columns = self.columns.into_iter();
        columns
            .filter_map(|(name, values)| summarise(name, values))
            .collect()
    }
}

/// The distribution of values; none if there is none.
pub fn summarise(name: &'static str, mut values: Vec<f64>) -> Option<MeasureStatistics> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let percentile = |percent: f64| {
        let place = percent / 100.0 * (values.len() - 1) as f64;
        let (below, above) = (
            values[place.floor() as usize],
            values[place.ceil() as usize],
        );
        below + (above - below) * place.fract()
    };
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    let n_free = (values.len() - 1).max(1) as f64;
    Some(MeasureStatistics {
        name,
        mean,
        stdev: (squares.sum::<f64>() / n_free).sqrt(),
        min,
        p50: percentile(50.0),
        p90: percentile(90.0),
        p95: percentile(95.0),
        p99: percentile(99.0),
        max,
    })
}
