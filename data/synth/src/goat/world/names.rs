//! The parts of names in the world, from `names.toml`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::table::{TableFile, file};

pub(in super::super) const FILE: TableFile =
    file("goat/world/names.toml", include_str!("names.toml"));

pub(super) static NAMES: LazyLock<Names> = LazyLock::new(|| FILE.read());

/// Content of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Names {
    pub(super) town_starts: Vec<String>,
    pub(super) town_ends: Vec<String>,
    pub(super) regions: Vec<String>,
    pub(super) first_names: Vec<String>,
    pub(super) last_names: Vec<String>,
    pub(super) skies: Vec<String>,
    pub(super) ship_starts: Vec<String>,
    pub(super) ship_ends: Vec<String>,
    pub(super) inn_starts: Vec<String>,
    pub(super) inn_ends: Vec<String>,
    pub(super) remarks: Vec<String>,
    pub(super) game_starts: Vec<String>,
    pub(super) game_ends: Vec<String>,
    pub(super) themes: Vec<String>,
    pub(super) play_starts: Vec<String>,
    pub(super) play_ends: Vec<String>,
    pub(super) genres: Vec<String>,
    pub(super) roles: Vec<String>,
    pub(super) days: Vec<String>,
    pub(super) currencies: Vec<Currency>,
    pub(super) star_starts: Vec<String>,
    pub(super) star_ends: Vec<String>,
    pub(super) figures: Vec<String>,
    pub(super) colors: Vec<String>,
    pub(super) planet_starts: Vec<String>,
    pub(super) planet_ends: Vec<String>,
    pub(super) trail_starts: Vec<String>,
    pub(super) trail_ends: Vec<String>,
    pub(super) hut_starts: Vec<String>,
    pub(super) hut_ends: Vec<String>,
    pub(super) conditions: Vec<String>,
    pub(super) firm_starts: Vec<String>,
    pub(super) firm_ends: Vec<String>,
    pub(super) trades: Vec<String>,
    pub(super) jobs: Vec<String>,
    pub(super) dish_starts: Vec<String>,
    pub(super) dish_ends: Vec<String>,
    pub(super) ingredients: Vec<String>,
    pub(super) seasons: Vec<String>,
    pub(super) museum_starts: Vec<String>,
    pub(super) museum_ends: Vec<String>,
    pub(super) work_starts: Vec<String>,
    pub(super) work_ends: Vec<String>,
    pub(super) styles: Vec<String>,
    pub(super) animal_names: Vec<String>,
    pub(super) species: Vec<String>,
    pub(super) diets: Vec<String>,
}

/// A currency, and its exchange rate per mark.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Currency {
    code: String,
    name: String,
    rate: f64,
}
