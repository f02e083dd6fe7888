//! Computes the distributions of measures over the rows of a file.

use serde::Serialize;

/// Distribution of one measure over all rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasureStatistics {
    /// Name of the measure, such as `depth`, `size` (bytes) or `completion_tokens`.
    pub name: &'static str,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (n - 1 degrees of freedom); 0 for a single value.
    pub stdev: f64,
    /// Smallest value.
    pub min: f64,
    /// Median. Percentiles are interpolated linearly, as NumPy does by default.
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

/// Statistics of a file of rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileStatistics {
    /// Counts, starting with the number of rows.
    pub counts: Vec<Count>,
    /// Groups of rows, each with its counts and one measure.
    pub groups: Vec<GroupStatistics>,
    /// Distributions over all rows.
    pub measures: Vec<MeasureStatistics>,
}

/// A named count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Name of the counted thing.
    pub name: String,
    /// Number.
    pub n: usize,
}

/// A group of rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupStatistics {
    /// Name of the group.
    pub name: String,
    /// Counts of the group, starting with the number of rows; each group has the same names.
    pub counts: Vec<Count>,
    /// Distribution of a measure over the group.
    pub measure: MeasureStatistics,
}

impl Count {
    /// Creates a count.
    pub fn new(name: impl Into<String>, n: usize) -> Self {
        Self {
            name: name.into(),
            n,
        }
    }
}

/// Counts the tokens of strings, if there is a tokenizer.
pub type TokenCount<'a> = Option<&'a dyn Fn(&str) -> usize>;

/// Values of measures, in the order of first use.
#[derive(Debug, Default)]
pub struct Measures {
    columns: Vec<(&'static str, Vec<f64>)>,
}

impl Measures {
    /// Adds a value of the named measure.
    pub fn add(&mut self, name: &'static str, value: usize) {
        let column = self.columns.iter_mut().find(|(column, _)| *column == name);
        match column {
            Some((_, values)) => values.push(value as f64),
            None => self.columns.push((name, vec![value as f64])),
        }
    }

    /// Adds the character count and the token count of a string under these two names.
    pub fn add_text(&mut self, names: [&'static str; 2], text: &str, count_tokens: TokenCount<'_>) {
        let [characters, tokens] = names;
        self.add(characters, text.chars().count());
        if let Some(count_tokens) = count_tokens {
            self.add(tokens, count_tokens(text));
        }
    }

    /// Distributions of all measures.
    pub fn statistics(self) -> Vec<MeasureStatistics> {
        let columns = self.columns.into_iter();
        columns
            .filter_map(|(name, values)| summarise(name, values))
            .collect()
    }
}

/// Distribution of the values; `None` if there are none.
pub fn summarise(name: &'static str, mut values: Vec<f64>) -> Option<MeasureStatistics> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let percentile = |percent: f64| {
        let position = percent / 100.0 * (values.len() - 1) as f64;
        let (below, above) = (
            values[position.floor() as usize],
            values[position.ceil() as usize],
        );
        below + (above - below) * position.fract()
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
