//! Measures the lengths and complexity of a data set's rows.
//!
//! Complexity is measured on the gold value, as in SLOT, appendix D.3. Lengths are of the input
//! text, the schema and the completion as written in training, before the chat template adds its
//! markers. Rows are added one at a time, and only their measures are stored (eight bytes each), so
//! a data set need not fit into memory.

mod conversations;
mod file_kind;
mod pairs;
mod trajectories;

use serde::Serialize;
use serde_json::Value;

pub use conversations::conversation_statistics;
pub use file_kind::FileKind;
pub use pairs::pair_statistics;
pub use trajectories::trajectory_statistics;

use tooltune_json::{Style, dumps, json_complexity};
use tooltune_rows::statistics::{MeasureStatistics, summarise};
use tooltune_rows::text::{DataError, SlotPrompt, slot_completion};

/// Number of complexity measures, which come first in the table.
pub const N_COMPLEXITY: usize = 7;

/// Names of the measures in table order: D.3's seven, then lengths.
const NAMES: [&str; 14] = [
    "depth",
    "keys",
    "size",
    "elements",
    "cyclomatic",
    "schema_complexity",
    "content_complexity",
    "input_text_characters",
    "json_schema_characters",
    "gold_characters",
    "input_text_tokens",
    "json_schema_tokens",
    "prompt_tokens",
    "completion_tokens",
];

/// One line per measure; empty without rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatisticsTable {
    /// Number of measured rows.
    pub n_rows: usize,
    /// SLOT's seven measures, then characters, then tokens.
    pub measures: Vec<MeasureStatistics>,
}

/// Accumulates the measures of SLOT rows.
#[derive(Debug)]
pub struct SlotStatistics<F> {
    count_tokens: F,
    prompt: SlotPrompt,
    /// One list per name, with one value per row.
    values: [Vec<f64>; NAMES.len()],
}

impl<F: Fn(&str) -> usize> SlotStatistics<F> {
    /// Creates statistics without rows. Rows are rendered with `prompt`, and `count_tokens` is the
    /// tokenizer of the model to train.
    pub fn new(count_tokens: F, prompt: SlotPrompt) -> Self {
        Self {
            count_tokens,
            prompt,
            values: Default::default(),
        }
    }

    /// Measures a row.
    ///
    /// # Errors
    ///
    /// As for [`SlotPrompt::render`].
    pub fn add(
        &mut self,
        input_text: &str,
        json_schema: &Value,
        gold: &Value,
    ) -> Result<(), DataError> {
        let prompt = self.prompt.render(input_text, json_schema)?;
        let complexity = json_complexity(gold);
        let schema = dumps(json_schema, Style::Compact);
        let completion = slot_completion(gold, json_schema);
        let characters = |text: &str| text.chars().count() as f64;
        let tokens = |text: &str| (self.count_tokens)(text) as f64;
        let measured = [
            complexity.depth as f64,
            complexity.keys as f64,
            complexity.size as f64,
            complexity.elements as f64,
            complexity.cyclomatic as f64,
            complexity.schema_complexity,
            complexity.content_complexity,
            characters(input_text),
            characters(&schema),
            characters(&completion),
            tokens(input_text),
            tokens(&schema),
            tokens(&prompt),
            tokens(&completion),
        ];
        for (values, value) in self.values.iter_mut().zip(measured) {
            values.push(value);
        }
        Ok(())
    }

    /// The table of all rows added.
    pub fn table(self) -> StatisticsTable {
        let n_rows = self.values[0].len();
        let columns = NAMES.into_iter().zip(self.values);
        let measures = columns
            .filter_map(|(name, values)| summarise(name, values))
            .collect();
        StatisticsTable { n_rows, measures }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::slot::{SlotSynthOptions, Split, generate};

    fn count_words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn measure_named<'a>(table: &'a StatisticsTable, name: &str) -> &'a MeasureStatistics {
        table
            .measures
            .iter()
            .find(|measure| measure.name == name)
            .expect("a known measure")
    }

    #[test]
    fn a_single_row_is_its_own_mean_and_extremes() {
        let mut statistics = SlotStatistics::new(count_words, SlotPrompt::default());
        let gold = json!({"a": "é", "b": [1, 2]});
        let schema = json!({"type": "object"});
        statistics.add("zwei Wörter", &schema, &gold).unwrap();
        let table = statistics.table();
        assert_eq!(table.n_rows, 1);
        for (name, expected) in [
            ("depth", 2.0),
            ("keys", 2.0),
            ("elements", 5.0),
            ("cyclomatic", 3.0),
            ("input_text_characters", 11.0),
            ("input_text_tokens", 2.0),
            ("json_schema_characters", 17.0),
            ("gold_characters", 23.0),
            ("completion_tokens", 5.0),
        ] {
            let measured = measure_named(&table, name);
            assert_eq!(
                (measured.mean, measured.min, measured.p50, measured.max),
                (expected, expected, expected, expected),
                "{name}"
            );
        }
    }

    #[test]
    fn percentiles_lie_between_the_nearest_values() {
        let mut statistics = SlotStatistics::new(count_words, SlotPrompt::default());
        for n_characters in [40, 10, 30, 20] {
            let text = "x".repeat(n_characters);
            statistics.add(&text, &json!({}), &json!({})).unwrap();
        }
        let table = statistics.table();
        let measured = measure_named(&table, "input_text_characters");
        assert_eq!(
            (measured.min, measured.p50, measured.p90, measured.max),
            (10.0, 25.0, 37.0, 40.0)
        );
        assert_eq!(measured.mean, 25.0);
    }

    #[test]
    fn no_rows_give_an_empty_table() {
        let table = SlotStatistics::new(count_words, SlotPrompt::default()).table();
        assert_eq!((table.n_rows, table.measures.len()), (0, 0));
    }

    #[test]
    fn generated_rows_are_short_and_of_all_depths() {
        let mut statistics = SlotStatistics::new(count_words, SlotPrompt::default());
        for row in generate(&SlotSynthOptions {
            rows: 500,
            seed: 1,
            split: Split::Test,
        }) {
            let added = statistics.add(&row.input_text, &row.json_schema, &row.gold);
            added.unwrap();
        }
        let table = statistics.table();
        assert_eq!(table.n_rows, 500);
        let depth = measure_named(&table, "depth");
        assert_eq!((depth.min, depth.p50, depth.max), (1.0, 1.0, 4.0));
        assert!(measure_named(&table, "gold_characters").p95 < 300.0);
        let line = serde_json::to_string(&table).unwrap();
        assert!(
            line.starts_with(r#"{"n_rows":500,"measures":[{"name":"depth","mean":"#),
            "{line}"
        );
    }
}
