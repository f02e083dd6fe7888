//! Integration tests across crates: comparisons with PyTorch and PEFT (`parity`), the program and
//! its files, and the project's rules (`layering`, `guide`, `configs`).

#[macro_use]
mod shapes;

mod agents;
mod bad_evaluations;
mod bad_input;
mod bad_models;
mod calls;
mod commands;
mod comparisons;
mod exit_codes;
mod exports;
mod fault_sweep;
mod faults;
mod first_hour;
mod flat;
mod formats;
mod from_elsewhere;
mod generate;
mod generation;
mod goat_executors;
mod goat_pipeline;
mod graphs;
mod hub;
mod interrupted;
mod kills;
mod model_families;
mod mutations;
mod not_files;
mod parity;
mod pipelines;
mod planned_memory;
mod planning;
mod presets;
mod profiles;
mod prompts;
mod recipes;
mod recordings;
mod repeated_settings;
mod retriever;
mod retriever_texts;
mod row_files;
mod runs;
mod saved_predictions;
mod servers;
mod several_files;
mod signals;
mod stages;
mod starting_points;
mod structure;
mod suites;
mod template_inputs;
mod terminal;
mod tokenizer_files;
mod tool_suites;
mod tutorial;

mod configs;
mod guide;
mod layering;

mod support;
mod workplace;
