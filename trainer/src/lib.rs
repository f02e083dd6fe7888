//! The trainer: models, steps, recipes, evaluation and export over the three leaf crates.
