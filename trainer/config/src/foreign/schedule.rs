//! Translates the evaluation and saving schedule of another trainer to optimizer steps.

use serde_json::{Value, json};

use super::results::truncated_json;
use super::translation::Translation;

/// Keys of a file that specify when to evaluate and save.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    keys: Vec<(String, Value)>,
}

/// When an event happens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Timing {
    Steps(u64),
    /// A share of the run, up to 1.
    Share(f64),
    PerEpoch(f64),
    Never,
    /// After an unspecified number of steps.
    SomeSteps,
}

/// Optimizer steps of a run, computed from the number of rows.
struct Lengths {
    per_epoch: u64,
    total: u64,
    note: String,
}

/// An event, and its settings.
#[derive(Clone, Copy)]
struct Event {
    /// The trainer's keys for the times per epoch, the steps and the strategy.
    per_epoch: &'static str,
    steps: &'static str,
    strategy: &'static str,
    /// The setting here.
    to: &'static str,
}

const EVALUATION: Event = Event {
    per_epoch: "evals_per_epoch",
    steps: "eval_steps",
    strategy: "eval_strategy",
    to: "eval.eval_steps",
};

const SAVING: Event = Event {
    per_epoch: "saves_per_epoch",
    steps: "save_steps",
    strategy: "save_strategy",
    to: "checkpoint.save_steps",
};

impl Schedule {
    pub(super) fn take(&mut self, key: &str, value: &Value) {
        // Older name in transformers.
        let key = key.replace("evaluation_strategy", "eval_strategy");
        self.keys.push((key, value.clone()));
    }

    /// Whether the file specifies when checkpoints are saved.
    pub(super) fn sets_saving(&self) -> bool {
        [SAVING.per_epoch, SAVING.steps, SAVING.strategy]
            .iter()
            .any(|key| self.get(key).is_some())
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.keys
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value)
    }

    /// When an event happens, and the key that specifies it.
    fn timing_of(&self, event: Event) -> Option<(String, Timing)> {
        let entry = |key: &str| {
            let value = self.get(key)?;
            Some((format!("{key} = {}", truncated_json(value)), value))
        };
        let strategy = entry(event.strategy);
        let steps = entry(event.steps).and_then(|(line, value)| {
            let number = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
            match number {
                number if number >= 1.0 => Some((line, Timing::Steps(number as u64))),
                number if number > 0.0 => Some((line, Timing::Share(number))),
                _ => None,
            }
        });
        let per_epoch = entry(event.per_epoch).and_then(|(line, value)| {
            let number = value.as_f64().filter(|number| *number > 0.0)?;
            Some((line, Timing::PerEpoch(number)))
        });
        match strategy.as_ref().and_then(|(_, value)| value.as_str()) {
            Some("no") => strategy.map(|(line, _)| (line, Timing::Never)),
            Some("epoch") => strategy.map(|(line, _)| (line, Timing::PerEpoch(1.0))),
            Some("steps") => steps.or(strategy.map(|(line, _)| (line, Timing::SomeSteps))),
            _ => per_epoch.or(steps),
        }
    }
}

impl Translation<'_> {
    /// Translates the schedule of evaluations and checkpoints, and marks its keys as handled.
    pub(super) fn translate_schedule(&mut self) {
        let has_rows = self.has_setting("data.eval") || self.has_setting("data.validation_split");
        let default = format!("(default of {})", self.origin.name);
        let evaluation = self.schedule.timing_of(EVALUATION).or_else(|| {
            match self.origin.evaluates.as_deref().filter(|_| has_rows)? {
                "epoch" => Some((format!("{default} eval_strategy"), Timing::PerEpoch(1.0))),
                "steps" => Some((format!("{default} eval_strategy"), Timing::SomeSteps)),
                _ => None,
            }
        });
        let needs_strategy =
            self.origin.evaluates.is_none() && self.schedule.get(EVALUATION.strategy).is_none();
        match evaluation {
            Some((line, Timing::Never)) => {
                self.results.left_out.push(format!(
                    "{line}: without a table [eval] nothing is evaluated"
                ));
                self.drop_evaluation("the file enables no evaluation");
            }
            Some((line, _)) if !has_rows => {
                let why = "there are no rows to evaluate on; list files in data.eval, or set \
                           data.validation_split";
                self.results.left_out.push(format!("{line}: {why}"));
                self.drop_evaluation(why);
            }
            // transformers only uses the steps if the strategy enables evaluation.
            Some((line, _)) if needs_strategy => {
                let why = format!(
                    "without eval_strategy {} evaluates nothing",
                    self.origin.name
                );
                self.results.left_out.push(format!("{line}: {why}"));
                self.drop_evaluation(&why);
            }
            Some((line, when)) => {
                self.settings.entry("eval").or_insert_with(|| json!({}));
                self.set_interval(EVALUATION, &line, when);
            }
            None if has_rows => {
                let why = format!(
                    "without eval_strategy {} evaluates nothing",
                    self.origin.name
                );
                self.results
                    .left_out
                    .push(format!("eval_strategy is not set: {why}"));
                self.drop_evaluation(&why);
            }
            None => {
                let why = "there are no rows to evaluate on; list files in data.eval, or set \
                           data.validation_split";
                self.drop_evaluation(why);
            }
        }
        match self.schedule.timing_of(SAVING) {
            Some((line, Timing::Never)) => {
                let why = "checkpoints are written every checkpoint.save_steps optimizer steps";
                self.results.left_out.push(format!("{line}: {why}"));
            }
            Some((line, when)) => self.set_interval(SAVING, &line, when),
            None => {}
        }
        let keys: Vec<(String, Value)> = std::mem::take(&mut self.schedule.keys);
        let lines = self.results.carried.iter().map(|carried| &carried.from);
        let lines: Vec<String> = lines
            .chain(&self.results.left_out)
            .chain(&self.results.to_do)
            .cloned()
            .collect();
        for (key, value) in keys {
            self.results.mark(&key);
            let line = format!("{key} = {}", truncated_json(&value));
            if !lines.iter().any(|known| known.starts_with(&line)) {
                self.results
                    .left_out
                    .push(format!("{line}: set by another key"));
            }
        }
        self.results.mark("evaluation_strategy");
    }

    /// Removes the table of evaluations, with the reason for each setting.
    fn drop_evaluation(&mut self, why: &str) {
        let eval = self.settings.get("eval").and_then(Value::as_object);
        let keys: Vec<String> = eval
            .into_iter()
            .flat_map(|eval| eval.keys().cloned())
            .collect();
        for key in keys {
            self.remove("eval", &key, why);
        }
        self.settings.shift_remove("eval");
    }

    /// Sets the step interval of an event.
    fn set_interval(&mut self, event: Event, line: &str, when: Timing) {
        let lengths = self.lengths();
        let (steps, note) = match (when, &lengths) {
            (Timing::Steps(steps), _) => (steps, String::new()),
            (Timing::PerEpoch(n), Some(lengths)) => {
                let steps = (lengths.per_epoch as f64 / n).ceil() as u64;
                (
                    steps.max(1),
                    format!("{} steps in an epoch: {}", lengths.per_epoch, lengths.note),
                )
            }
            (Timing::Share(share), Some(lengths)) => {
                let steps = (lengths.total as f64 * share).ceil() as u64;
                (
                    steps.max(1),
                    format!("of {} steps: {}", lengths.total, lengths.note),
                )
            }
            (Timing::SomeSteps, _) => (500, "default of the other trainer".to_owned()),
            (Timing::PerEpoch(_) | Timing::Share(_), None) => {
                let what = match when {
                    Timing::Share(share) => format!("{share} of the steps of the run"),
                    Timing::PerEpoch(n) => format!("the steps of an epoch divided by {n}"),
                    _ => String::new(),
                };
                let line = format!(
                    "{line}: set {} to {what}, which `tooltune plan` prints; until then its default is used",
                    event.to
                );
                return self.results.to_do.push(line);
            }
            (Timing::Never, _) => return,
        };
        self.set_noted(line, event.to, json!(steps), &note);
    }

    /// Optimizer steps, if the number of rows is known and each row is a separate sequence.
    fn lengths(&self) -> Option<Lengths> {
        let number = |to: &str, default: u64| match self.value(to) {
            None => Some(default),
            Some(value) => value.as_u64().filter(|number| *number > 0),
        };
        let is_packed = self
            .value("data.packing")
            .is_some_and(|value| value == "block-diagonal");
        let n_rows = self.facts.n_in_epoch.filter(|_| !is_packed)?;
        let held_out = self.number("data.validation_split").unwrap_or(0.0);
        let n_rows = (n_rows * (1.0 - held_out)).ceil() as u64;
        let batch = number("train.per_device_train_batch_size", 8)?;
        let accumulation = number("train.gradient_accumulation_steps", 1)?;
        let per_epoch = n_rows.div_ceil(batch).div_ceil(accumulation).max(1);
        let epochs = self.number("train.num_train_epochs").unwrap_or(3.0);
        let epoch_steps = (per_epoch as f64 * epochs).ceil() as u64;
        let steps = self.value("train.max_steps").and_then(Value::as_u64);
        Some(Lengths {
            per_epoch,
            total: steps.unwrap_or(epoch_steps),
            note: format!("{n_rows} rows, {batch} x {accumulation} in a step"),
        })
    }
}
