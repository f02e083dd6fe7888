//! Settings whose default follows from other settings, set where they are not typed.

use std::path::PathBuf;

use tooltune_rows::text::{
    self, Columns, DataError, Recognised, RecognisedFormat, SlotPrompt, TrainOn, recognise_records,
};

use super::enums::{DataFormat, EvalStrategy};
use super::findings::Findings;
use super::metric::MetricExpression;
use super::suite::Suite;
use super::tables::{BaseModelSettings, Config, EvalConfig, GoatConfig};

/// Sets what is not typed, and takes out what means nothing beside the rest; answers what the rows
/// were recognised as, where the config leaves it to them. `is_of_a_run` says that a run has written
/// the config, with every setting that there was.
pub(crate) fn complete(
    config: &mut Config,
    findings: &mut Findings,
    is_of_a_run: bool,
) -> Option<Recognised> {
    // A retriever may be all that is trained; then the tables of the language model may be missing.
    let has_model = findings.is_typed("model") || !findings.is_typed("retriever.train");
    if has_model {
        config.model.get_or_insert_with(BaseModelSettings::default);
    }
    let recognised = format(config, has_model, findings);
    if !findings.is_read("mask.train_on") {
        config.mask.train_on = match config.data.format {
            DataFormat::Messages | DataFormat::ShareGpt | DataFormat::Alpaca => TrainOn::Assistant,
            DataFormat::Slot
            | DataFormat::PromptCompletion
            | DataFormat::Xlam
            | DataFormat::Goat
            | DataFormat::Auto => TrainOn::Completion,
        };
    }
    if config.data.format == DataFormat::Slot && !findings.is_typed("data.slot_prompt") {
        let [typed, paper] = SlotPrompt::NAMES;
        // Before there was a choice, runs asked with the paper's.
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
    if !findings.is_read("checkpoint.save_steps")
        && config.eval.eval_strategy == EvalStrategy::Steps
    {
        config.checkpoint.save_steps = config.eval.eval_steps;
    }
    recognised
}

fn evaluation(eval: &mut EvalConfig, format: DataFormat, has_model: bool, findings: &Findings) {
    // A strategy that is there and unreadable is reported already.
    if findings.is_typed("eval") && !findings.is_typed("eval.eval_strategy") {
        eval.eval_strategy = EvalStrategy::Steps;
    }
    if !findings.is_read("eval.suites") {
        let is_default = |suite: &Suite| {
            let needs = suite.needs();
            if !has_model {
                return needs.ranks_alone();
            }
            let rows = needs.rows.filter(|rows| rows.by_default);
            rows.is_some_and(|rows| rows.formats.contains(&format.as_str()))
        };
        eval.suites = Suite::all().filter(is_default).collect();
    }
    if !findings.is_read("eval.metric_for_best_model") {
        let suite = eval.suites.first();
        let metric = suite.map_or("loss", |suite| suite.info().default_metric);
        metric.clone_into(&mut eval.metric_for_best_model);
    }
    if !findings.is_read("eval.greater_is_better") {
        // What cannot be read is reported by the check of the metric.
        let metric = MetricExpression::parse(&eval.metric_for_best_model);
        eval.greater_is_better = metric.is_ok_and(|metric| metric.greater_is_better());
    }
    for table in eval.suite_tables_mut() {
        table.complete();
    }
}

/// Sets `data.format`: under "auto" as the first row of each file shows it, so that a checked
/// config names the format and all that follows from it. Files that are not here leave the format
/// open; whoever reads rows refuses them by their names.
fn format(config: &mut Config, has_model: bool, findings: &mut Findings) -> Option<Recognised> {
    let data = &mut config.data;
    if !has_model && !findings.is_typed("data") {
        data.format = DataFormat::Messages;
    }
    // A format that is there and unreadable is reported already.
    let is_unreadable = findings.is_typed("data.format") && !findings.is_read("data.format");
    if data.format != DataFormat::Auto || is_unreadable {
        return None;
    }
    let train: Vec<PathBuf> = data.train_paths().cloned().collect();
    let train = train.iter().map(|file| ("data.train", file));
    let files = train.chain(data.eval.iter().map(|file| ("data.eval", file)));
    let columns = Columns::new(data.columns.clone());
    let mut first: Option<Recognised> = None;
    for (setting, file) in files.filter(|(_, file)| file.exists()) {
        let found = tooltune_files::open(file).map_err(DataError::from);
        let found = found.and_then(|records| recognise_records(records, &columns));
        match (found, &first) {
            (Ok(found), None) => first = Some(found),
            (Ok(found), Some(first)) if first.format == found.format => {}
            (Ok(found), Some(first)) => {
                let message = format!(
                    "`data.format` is \"auto\", and the files have two formats: {} is {}, and \
                     {} is {}",
                    first.place,
                    first.format.as_str(),
                    found.place,
                    found.format.as_str()
                );
                let help = "a run reads one format: convert the files of the other, or train \
                            on them in a run of their own";
                findings.report(setting, message, help);
            }
            (Err(error), _) => {
                let message = format!("`data.format` is \"auto\": {error}");
                let words = DataFormat::WORDS[1..].join("\", \"");
                let help = format!("name the format if it is one of \"{words}\"");
                findings.report(setting, message, help);
            }
        }
    }
    let first = first?;
    data.format = of(first.format);
    Some(first)
}

fn of(format: RecognisedFormat) -> DataFormat {
    match format {
        RecognisedFormat::Trajectories => DataFormat::Goat,
        RecognisedFormat::Rows(rows) => match rows {
            text::DataFormat::Slot => DataFormat::Slot,
            text::DataFormat::PromptCompletion => DataFormat::PromptCompletion,
            text::DataFormat::Messages => DataFormat::Messages,
            text::DataFormat::ShareGpt => DataFormat::ShareGpt,
            text::DataFormat::Alpaca => DataFormat::Alpaca,
            text::DataFormat::Xlam => DataFormat::Xlam,
        },
    }
}
