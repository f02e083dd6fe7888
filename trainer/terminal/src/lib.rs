//! Terminal output: warnings, tables, and progress as a bar or as occasional lines.

mod bar;
mod colored_text;
mod generation;
mod log;
mod rows;
mod terminal_table;
mod text;
mod transfer;

use std::time::Duration;

pub use self::bar::{Bar, BetweenBars, Counted, hide_progress, print, write_between_bars};
pub use self::colored_text::with_colors_only;
pub use self::generation::{GenerationProgress, Progress, Waiting, Work};
pub use self::log::log_layer;
pub use self::rows::RowsProgress;
pub use self::text::{columns, count_noun, duration_text, fitting_text};
pub use self::transfer::Fetching;

/// Time between two progress lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(20);

/// Time after which the progress of work is shown; most work finishes sooner.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
