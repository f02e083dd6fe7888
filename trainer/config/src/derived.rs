//! Sets defaults that depend on other settings.

use std::path::PathBuf;

use tooltune_rows::text;
use tooltune_rows::text::{
    Columns, DataError, RecognisedFile, RecognisedFormat, SlotPrompt, TrainOn, recognise_records,
};

use super::enums::{DataFormat, EvalStrategy};
use super::findings::Findings;
use super::metric::MetricExpression;
use super::suite::Suite;
use super::tables::{BaseModelSettings, Config, EvalConfig, GoatConfig};

/// Sets missing settings and removes meaningless ones. Returns the row format if it was detected
/// from the rows. `is_of_a_run` marks a config written by a run, which contains every setting of
/// its version.
pub(crate) fn complete(
    config: &mut Config,
    findings: &mut Findings,
    is_of_a_run: bool,
) -> Option<RecognisedFile> {
    // If only a retriever is trained, the tables of the language model may be missing.
    let has_model = findings.is_in_source("model") || !findings.is_in_source("retriever.train");
    if has_model {
        config.model.get_or_insert_with(BaseModelSettings::default);
    }
    let recognised = format(config, has_model, findings);
    if !findings.has_source_value("mask.train_on") {
        config.mask.train_on = match config.data.format {
            DataFormat::Messages | DataFormat::ShareGpt | DataFormat::Alpaca | DataFormat::Chat => {
                TrainOn::Assistant
            }
            DataFormat::Slot
            | DataFormat::PromptCompletion
            | DataFormat::Xlam
            | DataFormat::Goat
            | DataFormat::Auto => TrainOn::Completion,
        };
    }
    if config.data.format == DataFormat::Slot && !findings.is_in_source("data.slot_prompt") {
        let [typed, paper] = SlotPrompt::NAMES;
        // Runs without this setting used the paper's prompt.
        let name = if is_of_a_run { paper } else { typed };
        config.data.slot_prompt = Some(name.into());
    }
    if config.data.format == DataFormat::Goat {
        config.goat.get_or_insert_with(GoatConfig::default);
    }
    if config.train.max_steps.is_some() {
        config.train.num_train_epochs = None;
    }
    if config.train.warmup_steps.is_some() {
        config.train.warmup_ratio = None;
    }
    if let Some(retriever) = &mut config.retriever
        && retriever.max_steps.is_some()
    {
        retriever.num_train_epochs = None;
    }
    evaluation(&mut config.eval, config.data.format, has_model, findings);
    if !findings.has_source_value("checkpoint.save_steps")
        && config.eval.eval_strategy == EvalStrategy::Steps
    {
        config.checkpoint.save_steps = config.eval.eval_steps;
    }
    recognised
}

fn evaluation(eval: &mut EvalConfig, format: DataFormat, has_model: bool, findings: &Findings) {
    // An unreadable strategy is reported elsewhere.
    if findings.is_in_source("eval") && !findings.is_in_source("eval.eval_strategy") {
        eval.eval_strategy = EvalStrategy::Steps;
    }
    if !findings.has_source_value("eval.suites") {
        let is_default = |suite: &Suite| {
            let needs = suite.needs();
            if !has_model {
                return needs.is_ranking_only();
            }
            let rows = needs.rows.filter(|rows| rows.by_default);
            rows.is_some_and(|rows| rows.formats.contains(&format.as_str()))
        };
        eval.suites = Suite::all().filter(is_default).collect();
    }
    if !findings.has_source_value("eval.metric_for_best_model") {
        let suite = eval.suites.first();
        let metric = suite.map_or("loss", |suite| suite.info().default_metric);
        metric.clone_into(&mut eval.metric_for_best_model);
    }
    if !findings.has_source_value("eval.greater_is_better") {
        // An invalid metric is reported by the check of the metric.
        let metric = MetricExpression::parse(&eval.metric_for_best_model);
        eval.greater_is_better = metric.is_ok_and(|metric| metric.greater_is_better());
    }
    for table in eval.suite_tables_mut() {
        table.clear_unused();
    }
}

/// Replaces `data.format = "auto"` with the format of the first row of each file, so that a checked
/// config contains the format and the settings derived from it. If no file exists, the format stays
/// "auto"; the code that reads rows reports missing files by name.
fn format(config: &mut Config, has_model: bool, findings: &mut Findings) -> Option<RecognisedFile> {
    let data = &mut config.data;
    if !has_model && !findings.is_in_source("data") {
        data.format = DataFormat::Messages;
    }
    // An unreadable format is reported elsewhere.
    let is_unreadable =
        findings.is_in_source("data.format") && !findings.has_source_value("data.format");
    if data.format != DataFormat::Auto || is_unreadable {
        return None;
    }
    let train: Vec<PathBuf> = data.train_paths().cloned().collect();
    let train = train.iter().map(|file| ("data.train", file));
    let files = train.chain(data.eval.iter().map(|file| ("data.eval", file)));
    let columns = Columns::new(data.columns.clone());
    let mut first: Option<RecognisedFile> = None;
    let mut is_mixed = false;
    for (setting, file) in files.filter(|(_, file)| file.exists()) {
        let recognised = tooltune_files::open(file).map_err(DataError::from);
        let recognised = recognised.and_then(|records| recognise_records(records, &columns));
        match (recognised, &first) {
            (Ok(recognised), None) => first = Some(recognised),
            (Ok(recognised), Some(first)) if first.format == recognised.format => {}
            (Ok(recognised), Some(first)) if mixes(first.format, recognised.format) => {
                is_mixed = true
            }
            (Ok(recognised), Some(first)) => {
                let message = format!(
                    "`data.format` is \"auto\", and the files have two formats: {} is {}, and \
                     {} is {}",
                    first.place,
                    first.format.as_str(),
                    recognised.place,
                    recognised.format.as_str()
                );
                let are_chats = [first.format, recognised.format].iter().all(|format| {
                    !matches!(format, RecognisedFormat::Rows(text::DataFormat::Slot))
                        && matches!(format, RecognisedFormat::Rows(_))
                });
                let help = if are_chats {
                    "set `data.format = \"chat\"`, which reads both, and `mask.train_on`, which has \
                     different defaults for the two: \"completion\" is the last turn, \"assistant\" all \
                     assistant turns"
                } else {
                    "a run reads one of these formats: convert the files of the other format, or train \
                     on them in a separate run"
                };
                findings.report(setting, message, help);
            }
            (Err(error), _) => {
                let message = format!("`data.format` is \"auto\": {error}");
                let words = DataFormat::WORDS[1..].join("\", \"");
                let help = format!("set the format if it is one of \"{words}\"");
                findings.report(setting, message, help);
            }
        }
    }
    let mut first = first?;
    if is_mixed {
        first.format = RecognisedFormat::Rows(text::DataFormat::Chat);
    }
    data.format = data_format(first.format);
    Some(first)
}

/// Whether rows of both formats can be read together and have the same default for training.
fn mixes(first: RecognisedFormat, second: RecognisedFormat) -> bool {
    match (first, second) {
        (RecognisedFormat::Rows(first), RecognisedFormat::Rows(second)) => first.mixes_with(second),
        _ => false,
    }
}

fn data_format(format: RecognisedFormat) -> DataFormat {
    match format {
        RecognisedFormat::Trajectories => DataFormat::Goat,
        RecognisedFormat::Rows(rows) => match rows {
            text::DataFormat::Slot => DataFormat::Slot,
            text::DataFormat::PromptCompletion => DataFormat::PromptCompletion,
            text::DataFormat::Messages => DataFormat::Messages,
            text::DataFormat::ShareGpt => DataFormat::ShareGpt,
            text::DataFormat::Alpaca => DataFormat::Alpaca,
            text::DataFormat::Xlam => DataFormat::Xlam,
            text::DataFormat::Chat => DataFormat::Chat,
        },
    }
}
