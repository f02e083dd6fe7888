//! The tables of all APIs, in TOML files of a few tools each.
//!
//! # Adding an API
//!
//! ```toml
//! [[tool]]
//! name = "FerryLine"
//! category = "Travel"
//! role = "seen"                                   # or "held_out": only for the unseen test
//!
//! [[tool.api]]
//! name = "Departures"
//! does = "Ferries that leave a town, earliest first."
//! returns = "List of ferry trips with time and fare."
//! parameters = [                                  # required ones first
//!   { name = "town", kind = "town.name", description = "Town of departure." },
//!   { name = "max_fare", kind = "bound.price", description = "Upper bound.", optional = { restriction.at_most = "fare", phrases = [" under {} marks"] } },
//! ]
//! operation.list = { table = "trips", column = "from_town", order.ascending = "leaves" }
//! list = "departures"                             # name of the list in the output
//! shown = ["trip_id", "leaves", "fare"]           # columns of the output
//! picks = [                                       # how a later call may select one row
//!   { by = "first", words = ["first", "earliest"] },
//!   { by.min = "fare", words = ["cheapest"] },
//! ]
//! fields = [                                      # the columns of that row that a later call may use
//!   { column = "trip_id", kind = "trip.id", phrases = ["the {pick} ferry from {town}"] },
//! ]
//! sub_queries = ["List the ferries from {town}.", "Find departures from {town}."]
//!
//! [[tool.api.aspect]]                             # what a user may ask for, one or more
//! nouns = ["the ferries from {town}"]
//! questions = ["Which ferries leave {town}?"]     # may be left out
//! answer = "Ferries leave [at {leaves!} for {fare} marks]."
//! ```
//!
//! Kinds are defined in `kinds.toml`, tables and columns in `world`. The operation is one of the
//! following, on the first parameter:
//!
//! | operation | result |
//! |---|---|
//! | `operation.get = { table, column }` | the row whose column equals the value |
//! | `operation.list = { table, column, order.ascending }`, or `order.descending` | all such rows, sorted by the order's column |
//! | `operation.search = { table, column }` | the rows whose column contains each word of the value |
//! | `operation.similar = { table, key, by }` | the other rows with the same `by` as the row with this `key` |
//! | `operation.compute = "add_tax"` | the result of a function in `functions`; without `list` and `shown` |
//!
//! `picks` choose `"first"`, `"last"`, `by.max` or `by.min` of a column. An optional parameter
//! limits a column by `restriction.at_most` or `restriction.at_least`, or the number of rows by
//! `restriction = "count"`. Phrases contain parameters in braces, answers contain columns:
//! `{fare!}` is a fact of the answer, `{fare}` is only mentioned, and text in brackets is repeated
//! for each row.

use std::sync::LazyLock;

use serde::Deserialize;

use super::api::Tool;
use crate::table::{TableFile, file};

/// The held-out tools come last.
pub(super) const FILES: [TableFile; 11] = [
    file("goat/apis/places.toml", include_str!("places.toml")),
    file("goat/apis/inns.toml", include_str!("inns.toml")),
    file("goat/apis/games.toml", include_str!("games.toml")),
    file("goat/apis/stage.toml", include_str!("stage.toml")),
    file("goat/apis/money.toml", include_str!("money.toml")),
    file("goat/apis/sky.toml", include_str!("sky.toml")),
    file("goat/apis/trails.toml", include_str!("trails.toml")),
    file("goat/apis/work.toml", include_str!("work.toml")),
    file("goat/apis/food.toml", include_str!("food.toml")),
    file("goat/apis/art.toml", include_str!("art.toml")),
    file("goat/apis/animals.toml", include_str!("animals.toml")),
];

/// Content of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tools {
    #[serde(rename = "tool")]
    pub(super) tools: Vec<Tool>,
}

/// All tools, in the order of the files.
pub(super) static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let files = FILES.iter().map(TableFile::read::<Tools>);
    files.flat_map(|file| file.tools).collect()
});
