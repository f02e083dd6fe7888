//! One constant seed in, all tables of the invented world out.
//!
//! The world does not depend on the seed of a data set: an executor then serves every data set,
//! and rows of two seeds can be compared. Every id is used in one table only, every name is unique
//! in its table, and numbers that a choice such as "the cheapest" compares seldom tie.

mod culture;
pub(super) mod names;
mod places;
mod things;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_rows::batches::SeededRandom;

use self::names::NAMES;
use crate::slot::{pick, sample};

/// Seed of the tables; another one would be another world.
const WORLD_SEED: u64 = 20_417;
/// Stream of the tables.
const WORLD_STREAM: u64 = 0x676F_6174_776F_726C;

/// One row of a table.
pub(super) type Row = Map<String, Value>;

/// All tables by name.
#[derive(Debug, Clone)]
pub(super) struct World {
    tables: BTreeMap<&'static str, Vec<Row>>,
}

impl World {
    /// Builds the tables.
    pub(super) fn new() -> Self {
        let mut builder = Builder {
            tables: BTreeMap::new(),
            random: SeededRandom::new(WORLD_SEED, WORLD_STREAM),
        };
        builder.add_places();
        builder.add_culture();
        builder.add_things();
        Self {
            tables: builder.tables,
        }
    }

    /// The rows of `table`; none if there is no such table.
    pub(super) fn rows(&self, table: &str) -> &[Row] {
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }
}

/// Tables in the making.
#[derive(Debug)]
struct Builder {
    tables: BTreeMap<&'static str, Vec<Row>>,
    random: SeededRandom,
}

impl Builder {
    fn add(&mut self, table: &'static str, rows: Vec<Value>) {
        let rows = rows.into_iter().filter_map(|row| match row {
            Value::Object(row) => Some(row),
            _ => None,
        });
        self.tables.insert(table, rows.collect());
    }

    /// `n` different pairs of a start and an end, joined by `between`.
    fn names(
        &mut self,
        starts: &[String],
        ends: &[String],
        between: &str,
        n: usize,
    ) -> Vec<String> {
        let pairs: Vec<(&String, &String)> = starts
            .iter()
            .flat_map(|start| ends.iter().map(move |end| (start, end)))
            .collect();
        sample(&pairs, n, &mut self.random)
            .into_iter()
            .map(|(start, end)| format!("{start}{between}{end}"))
            .collect()
    }

    fn people(&mut self, n: usize) -> Vec<String> {
        self.names(&NAMES.first_names, &NAMES.last_names, " ", n)
    }

    fn person(&mut self) -> String {
        let first = self.one_of(&NAMES.first_names);
        format!("{first} {}", self.one_of(&NAMES.last_names))
    }

    fn one_of<'a>(&mut self, items: &'a [String]) -> &'a str {
        pick(items, &mut self.random).as_str()
    }

    /// A number from `low` to `high`.
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.random.below(high - low + 1)
    }

    /// `n` of these texts, each about equally often, in random order.
    fn dealt_of(&mut self, texts: &[String], n: usize) -> Vec<Value> {
        let texts: Vec<Value> = texts.iter().map(|text| json!(text)).collect();
        self.dealt(&texts, n)
    }

    /// A column of a table that was added before, as texts or numbers.
    fn column(&self, table: &str, column: &str) -> Vec<Value> {
        let rows = self.tables.get(table).map_or(&[][..], Vec::as_slice);
        rows.iter().map(|row| row[column].clone()).collect()
    }

    /// `n` values that each occur about equally often, in random order.
    fn dealt(&mut self, values: &[Value], n: usize) -> Vec<Value> {
        let mut dealt: Vec<Value> = (0..n).map(|i| values[i % values.len()].clone()).collect();
        self.random.shuffle(&mut dealt);
        dealt
    }
}
