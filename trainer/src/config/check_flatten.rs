//! The keys of `[data]` that flatten nested schemas.

use super::choices::{DataFormat, Flatten};
use super::defaults;
use super::raw::RawData;
use super::rules::Checker;
use super::settings::FlattenConfig;

impl Checker<'_> {
    pub(super) fn flatten(&mut self, raw: &RawData, format: DataFormat) -> FlattenConfig {
        let config = flattening(raw);
        if config.which != Flatten::None && format == DataFormat::Goat {
            self.report(
                "data.flatten",
                "trajectories have no JSON Schemas that could be flattened",
                "take `data.flatten` out; it is for slot rows and for rows with tools",
            );
        }
        config
    }
}

/// The keys as they were typed, or their defaults.
pub(super) fn flattening(raw: &RawData) -> FlattenConfig {
    let separator = raw.flatten_separator.as_deref();
    FlattenConfig {
        which: raw.flatten.unwrap_or(defaults::FLATTEN),
        slots: raw.flatten_slots.unwrap_or(defaults::FLATTEN_SLOTS),
        separator: separator.unwrap_or(defaults::FLATTEN_SEPARATOR).to_owned(),
        collisions: raw
            .flatten_collisions
            .unwrap_or(defaults::FLATTEN_COLLISIONS),
    }
}
