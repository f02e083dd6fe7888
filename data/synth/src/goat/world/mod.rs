//! Builds all tables of the synthetic world from a constant seed.
//!
//! The world does not depend on the seed of a data set, so one executor is valid for every data
//! set, and rows of two seeds are comparable. Every id is used in only one table, every name is
//! unique in its table, and numbers that are compared for a selection such as "the cheapest" rarely
//! tie.

mod culture;
pub(super) mod names;
mod places;
mod things;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tooltune_rows::batches::SeededRandom;

use self::names::NAMES;
use crate::slot::{pick, sample};

/// Seed of the tables; a different seed would give a different world.
const WORLD_SEED: u64 = 20_417;
/// Random stream of the tables.
const WORLD_STREAM: u64 = 0x676F_6174_776F_726C;

/// A row of a table.
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

    /// The rows of `table`; empty if there is no such table.
    pub(super) fn rows(&self, table: &str) -> &[Row] {
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }
}

/// Tables under construction.
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

    /// `n` distinct names, each a start and an end joined by `separator`.
    fn names(
        &mut self,
        starts: &[String],
        last_names: &[String],
        separator: &str,
        n: usize,
    ) -> Vec<String> {
        let pairs: Vec<(&String, &String)> = starts
            .iter()
            .flat_map(|start| last_names.iter().map(move |end| (start, end)))
            .collect();
        sample(&pairs, n, &mut self.random)
            .into_iter()
            .map(|(start, end)| format!("{start}{separator}{end}"))
            .collect()
    }

    fn people(&mut self, n: usize) -> Vec<String> {
        self.names(&NAMES.first_names, &NAMES.last_names, " ", n)
    }

    fn person_name(&mut self) -> String {
        let first_name = self.pick_one(&NAMES.first_names);
        format!("{first_name} {}", self.pick_one(&NAMES.last_names))
    }

    fn pick_one<'a>(&mut self, items: &'a [String]) -> &'a str {
        pick(items, &mut self.random).as_str()
    }

    /// A number from `low` to `high`.
    fn random_between(&mut self, low: usize, high: usize) -> usize {
        low + self.random.below(high - low + 1)
    }

    /// `n` of these strings in random order, each about equally often.
    fn draw_texts(&mut self, texts: &[String], n: usize) -> Vec<Value> {
        let texts: Vec<Value> = texts.iter().map(|text| json!(text)).collect();
        self.draw_values(&texts, n)
    }

    /// A column of an existing table, as strings or numbers.
    fn column(&self, table: &str, column: &str) -> Vec<Value> {
        let rows = self.tables.get(table).map_or(&[][..], Vec::as_slice);
        rows.iter().map(|row| row[column].clone()).collect()
    }

    /// `n` of these values in random order, each about equally often.
    fn draw_values(&mut self, values: &[Value], n: usize) -> Vec<Value> {
        let mut drawn: Vec<Value> = (0..n).map(|i| values[i % values.len()].clone()).collect();
        self.random.shuffle(&mut drawn);
        drawn
    }
}
