//! `eval`: runs a suite on the base model, a checkpoint, or existing predictions.

mod measured_loss;

use std::path::Path;

use burn::tensor::Device;
use serde_json::Value;
use tooltune_apis::read_text;
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_disk::atomic::{FolderLock, write_atomic};
use tooltune_suites::few_samples;

mod origin;
mod server;

use super::{DeviceOption, eprint_line, say, with_interruptible_progress, with_progress};
use crate::base_model::BaseModel;
use crate::cli::EvalArgs;
use crate::commands::evaluate::measured_loss::{measured_loss, suite_loss};
use crate::config::{Config, DataFormat, EvalConfig, Suite, things_beside};
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::load_untrained_retriever;
use crate::error::Error;
use crate::eval::endings::Endings;
use crate::eval::generate::GenerationOptions;
use crate::eval::generator::{GenerationRequest, Generator, LocalGenerator};
use crate::eval::groups;
use crate::eval::in_loop::prepared_rows;
use crate::eval::journal::{self, JOURNAL_FILE, Journal};
use crate::eval::report_files::{
    EVALUATION_FILES, LOSSES_FILE, METRICS_FILE, PREDICTIONS_FILE, json_lines, with_fields,
};
use crate::eval::suites::{
    self, EvalContext, Files, Purpose, Retriever, SavedMetrics, SuiteContext, SuiteResult, THIS_RUN,
};
use crate::interrupt::Interrupt;
use crate::recipes::retriever::files;
use crate::recipes::run_lock::{BASE_MODEL, ENCODER, RETRIEVER};
use crate::rows::{ReadingReport, eval_rows};
use tooltune_terminal::GenerationProgress;

pub(super) fn run(args: &EvalArgs, device_option: &DeviceOption) -> Result<(), Error> {
    let mut config = args.target.config_for(args.suite)?;
    config.device = device_option.name(config.device)?;
    let suite = selected_suite(args, &config);
    match (suite, args.by.first()) {
        (Some(suite), _) => groups::check_keys(suite.info(), &args.by)?,
        (None, Some(key)) => {
            return Err(Error::Usage(format!(
                "--by {key} groups the samples of a suite: name it with --suite"
            )));
        }
        (None, None) => {}
    }
    if args.compare.is_some() {
        suites::change_of(suite.unwrap_or(Suite::first()))?;
    }
    if args.predictions.is_some() && args.target.model.checkpoint.is_some() {
        eprint_line("--checkpoint is ignored with --predictions: no model is loaded")?;
    }
    if args.suite.is_none() {
        args.target.require_rows(&config)?;
    }
    if let Some(output) = &args.output {
        check_output_folder(output)?;
    }
    // Keep the lock until the end: two evaluations would overwrite each other's files.
    let _folder = match &args.output {
        Some(output) => {
            std::fs::create_dir_all(output).map_err(Error::io(output, "create"))?;
            Some(FolderLock::take(output)?)
        }
        None => None,
    };
    let has_model = args.predictions.is_none() && args.endpoint.is_none();
    let work = match suite {
        Some(suite) => {
            let job = Job { args, suite };
            let config = with_pairs(&job, config);
            match evaluate(&job, &config, device_option) {
                // Without --suite, measure at least the loss.
                Err(Error::NothingToEvaluate(why)) if args.suite.is_none() && has_model => {
                    eprint_line(&format!("{why}; measuring only the loss"))?;
                    measure_loss(args, &config, device_option)
                }
                done => done,
            }
        }
        None if has_model => measure_loss(args, &config, device_option),
        None => Err(no_suite_error(args, &config)),
    };
    match (work, &args.output) {
        // Remove the journal last: until then, the same command resumes.
        (Ok(()), Some(output)) => journal::remove(output),
        (Err(Error::Stopped), Some(output)) => Err(match journal::n_texts(output)? {
            Some(n_texts) => Error::StoppedWithTexts {
                n_texts,
                dir: output.display().to_string(),
            },
            None => Error::Stopped,
        }),
        (done, _) => done,
    }
}

/// Rejects a folder that contains a complete evaluation or unrelated files. An interrupted
/// evaluation, which has a journal, is accepted.
fn check_output_folder(output: &Path) -> Result<(), Error> {
    if output.join(JOURNAL_FILE).exists() {
        return Ok(());
    }
    if output.join(METRICS_FILE).exists() {
        return Err(Error::Usage(format!(
            "{} already contains an evaluation; name another --output",
            output.display()
        )));
    }
    match things_beside(output, &EVALUATION_FILES).map_err(Error::io(output, "list"))? {
        None => Ok(()),
        Some(others) => Err(Error::Usage(format!(
            "--output {}: the folder contains {others}, which does not belong to an evaluation; \
             name a new or empty folder",
            output.display()
        ))),
    }
}

/// An evaluation of a suite, with its command line.
struct Job<'a> {
    args: &'a EvalArgs,
    suite: Suite,
}

/// The suite set by --suite, or the default for the row format; `None` to measure only the loss.
fn selected_suite(args: &EvalArgs, config: &Config) -> Option<Suite> {
    if args.suite.is_some() || args.loss_only {
        return args.suite;
    }
    if config.model.is_none() {
        return Suite::all().find(|suite| suite.needs().is_ranking_only());
    }
    let format = config.data.format;
    let reads = |suite: &Suite| {
        let rows = suite.needs().rows;
        rows.is_some_and(|rows| rows.formats.contains(&format.as_str()))
    };
    match format {
        // Opening the suite reports rows whose format cannot be detected.
        DataFormat::Auto => Some(Suite::first()),
        _ => Suite::all().find(reads),
    }
}

/// The error for completions from a server or a file, if no suite can score them. Only the loss of
/// the rows can then be measured.
fn no_suite_error(args: &EvalArgs, config: &Config) -> Error {
    let option = match args.predictions {
        Some(_) => "--predictions",
        None => "--endpoint",
    };
    Error::Usage(format!(
        "{option} cannot be used: no suite scores completions for rows of the format {}, and \
         their loss is measured with the local model; omit the option, or name a suite with \
         --suite",
        config.data.format.as_str()
    ))
}

/// Measures the loss of the rows, then writes and prints it.
fn measure_loss(
    args: &EvalArgs,
    config: &Config,
    device_option: &DeviceOption,
) -> Result<(), Error> {
    let device = device_option.open(config.device)?;
    let rows = eval_rows(config, &device, &mut ReadingReport::default())?;
    if rows.is_empty() {
        return Err(Error::Usage(
            "no rows to evaluate: name a file with --data or in data.eval".to_owned(),
        ));
    }
    let base = BaseModel::from_config(config)?;
    base.warn_of_ignored_sampling();
    args.target.model.check_used(config, &[BASE_MODEL])?;
    let prepared = prepared_rows(config, &base, &rows)?;
    let decoder = args
        .target
        .model
        .decoder(config, &base, "evaluating", &device)?;
    let loss = with_interruptible_progress(|watch| measured_loss(&decoder, &prepared, watch))?;
    let mut files = Files::from([(LOSSES_FILE.to_owned(), json_lines(&loss.lines)?)]);
    let mut fields = loss.fields();
    fields.extend(origin::fields(args, None, config)?);
    files.insert(METRICS_FILE.to_owned(), with_fields(b"{}", fields)?);
    write_files(args, &files)?;
    let dropped = rows.len() - prepared.examples.len();
    if dropped > 0 {
        eprint_line(&format!(
            "{dropped} of {} rows are dropped and not measured, as in training",
            rows.len()
        ))?;
    }
    say(&loss.line())
}

/// Opens the suite, generates or reads completions, scores them, then writes and prints the result.
fn evaluate(job: &Job<'_>, config: &Config, device_option: &DeviceOption) -> Result<(), Error> {
    let args = job.args;
    let needs = job.suite.needs();
    if args.endpoint.is_some() && !needs.generator {
        return Err(Error::Usage(format!(
            "--endpoint does not apply to the suite {}, which generates no text: the local \
             retriever ranks its documents; omit --endpoint",
            job.suite
        )));
    }
    if args.verdicts.is_some() {
        suites::verdicts::check_suite(job.suite)?;
    }
    let device = device_option.open(config.device)?;
    if has_no_completions(job) {
        journal(job, config, &[])?;
    }
    let suite_context = SuiteContext {
        config,
        device: &device,
        purpose: match args.predictions {
            Some(_) => Purpose::SavedPredictions,
            None => Purpose::Evaluation,
        },
        data: &args.target.data,
        rows: None,
        verdicts: args.verdicts.as_deref(),
    };
    let suite = suites::open(job.suite, suite_context)?;
    let shows = if suite.remarks_are_results() {
        say
    } else {
        eprint_line
    };
    for remark in suite.remarks() {
        shows(&remark)?;
    }
    if needs.encoder {
        args.target.model.check_used(config, &[ENCODER])?;
    }
    let retriever = (needs.retriever && args.predictions.is_none())
        .then(|| retriever(job, config, &device))
        .transpose()?;
    let retriever = retriever.as_ref().map(|encoder| Retriever {
        encoder,
        is_trained: false,
    });
    let mut loss = None;
    let outcome = if has_no_completions(job) {
        let outcome = with_progress(|watch| {
            let keep = &mut |files: &Files| write_files(args, files);
            let context = EvalContext {
                generator: None,
                retriever,
                journal: None,
                keep,
                watch,
            };
            match &args.predictions {
                Some(path) => suite.score_saved(path, context),
                None => suite.evaluate(context),
            }
        })?;
        outcome.and_then(|outcome| outcome.ok_or(Error::Stopped))
    } else {
        let mut journal = journal(job, config, &suite.prompts()?)?;
        with_completions(job, config, &device, |generator, watch| {
            if let Generator::Local(model) = generator {
                loss = suite_loss(job.suite, config, model, &device, watch)?;
            }
            suite.evaluate(EvalContext {
                generator: Some(generator),
                retriever,
                journal: journal.as_mut(),
                keep: &mut |files| write_files(args, files),
                watch,
            })
        })
    };
    let mut result = outcome.map_err(|error| with_saved_outcomes(args, error))?;
    if let Some(loss) = &loss {
        if let Some(metrics) = result.files.get_mut(METRICS_FILE) {
            *metrics = with_fields(metrics, loss.fields())?;
        }
        result
            .files
            .insert(LOSSES_FILE.to_owned(), json_lines(&loss.lines)?);
        result.notes.insert(0, loss.line());
    }
    groups::add_groups(&mut result, job.suite.info(), &args.by)?;
    if args.output.is_some()
        && let Some(metrics) = result.files.get_mut(METRICS_FILE)
    {
        *metrics = with_fields(metrics, origin::fields(args, Some(job.suite), config)?)?;
    }
    write_files(args, &result.files)?;
    print(job, result)
}

/// If predictions were saved before the judge failed, adds how to continue from them.
fn with_saved_outcomes(args: &EvalArgs, error: Error) -> Error {
    let saved = args
        .output
        .as_ref()
        .map(|output| output.join(PREDICTIONS_FILE));
    match (error, saved.filter(|saved| saved.exists())) {
        (Error::Judge { table, message }, Some(saved)) => Error::Judge {
            table,
            message: format!(
                "{message}; the outcomes are saved: continue with --predictions {}",
                saved.display()
            ),
        },
        (error, _) => error,
    }
}

fn print(job: &Job<'_>, result: SuiteResult) -> Result<(), Error> {
    let args = job.args;
    for warning in &result.warnings {
        eprint_line(warning)?;
    }
    if let Some(earlier) = &args.compare {
        let now = result.files.get(METRICS_FILE);
        let now = String::from_utf8_lossy(now.map_or(&[], Vec::as_slice));
        let before = SavedMetrics {
            name: earlier.display().to_string(),
            text: &read_text(earlier)?,
        };
        let after = SavedMetrics {
            name: METRICS_FILE.to_owned(),
            text: &now,
        };
        say(&suites::change_of(job.suite)?(&before, &after)?)?;
        return note_small_sample(job.suite, &result);
    }
    let name = match (&args.predictions, &args.endpoint_model) {
        (Some(_), _) => "predictions".to_owned(),
        (None, Some(model)) => format!("{model} (server)"),
        (None, None) => args.target.model.checkpoint()?,
    };
    say(&result.table.replace(THIS_RUN, &format!("| {name} |")))?;
    if let Some(by_file) = &result.by_file {
        say(&format!("\n{}", by_file.table()))?;
    }
    result.notes.iter().try_for_each(|note| say(note))?;
    note_small_sample(job.suite, &result)
}

/// Prints a note if there are few samples.
fn note_small_sample(suite: Suite, result: &SuiteResult) -> Result<(), Error> {
    let metrics = result.files.get(METRICS_FILE);
    let metrics = metrics.and_then(|text| serde_json::from_slice::<Value>(text).ok());
    let n = metrics.and_then(|metrics| {
        let own = metrics.get(suite.as_str()).and_then(|own| own.get("n"));
        metrics.get("n").or(own)?.as_u64()
    });
    match n.and_then(|n| few_samples(n as usize)) {
        Some(note) => say(&note),
        None => Ok(()),
    }
}

/// Whether an evaluation has no completions that a journal could store.
fn has_no_completions(job: &Job<'_>) -> bool {
    job.args.predictions.is_some() || !job.suite.needs().generator
}

/// Opens the journal of an interrupted evaluation in `--output`, or starts one.
fn journal(
    job: &Job<'_>,
    config: &Config,
    prompts: &[GenerationRequest<'_>],
) -> Result<Option<Journal>, Error> {
    let Some(output) = &job.args.output else {
        return Ok(None);
    };
    Journal::open(output, &digest(job, config, prompts)?).map(Some)
}

/// Digest of everything that the completions depend on.
fn digest(
    job: &Job<'_>,
    config: &Config,
    prompts: &[GenerationRequest<'_>],
) -> Result<String, Error> {
    let args = job.args;
    let server = (&args.endpoint, &args.endpoint_model, &args.extra_body);
    let weights = match (args.target.model.checkpoint()?.as_str(), &args.endpoint) {
        // Nothing is generated; the journal only marks the evaluation as started.
        (checkpoint, _) if has_no_completions(job) => checkpoint.to_string(),
        ("base", _) => "base".to_string(),
        (_, Some(_)) => String::new(),
        _ => {
            let dir = args.target.model.checkpoint_dir(config)?;
            let adapter = dir.join("adapter_model.safetensors");
            sha256_file(&adapter)?
        }
    };
    let settings = config.to_toml();
    let settings = settings.map_err(|error| Error::Usage(format!("the settings: {error}")))?;
    let mut inputs = format!("{weights}\n{server:?}\n{settings}\n");
    if let Some(path) = &args.predictions {
        inputs.push_str(&format!("{}\n", sha256_file(path)?));
    }
    for prompt in prompts {
        let (id, n, text) = (prompt.id, prompt.max_new_tokens, prompt.text.digest());
        inputs.push_str(&format!("{id} {n} {text}\n"));
    }
    Ok(sha256_bytes(inputs.as_bytes()))
}

/// The trained retriever of the chosen checkpoint, or the untrained retriever of the config.
fn retriever(job: &Job<'_>, config: &Config, device: &Device) -> Result<MiniLmEncoder, Error> {
    let args = job.args;
    args.target.model.check_used(config, &[RETRIEVER])?;
    // The server provides the model, so a missing run of the retriever is not an error.
    let is_untrained = args.endpoint.is_some() && args.target.model.checkpoint.is_none();
    if is_untrained && let Some(run) = args.target.model.missing_run(config)? {
        eprint_line(&format!(
            "the run {} does not exist; using the untrained retriever",
            run.display()
        ))?;
        return load_untrained_retriever(config, device);
    }
    if args.target.model.checkpoint()? != "base" {
        let dir = args.target.model.checkpoint_dir(config)?;
        if let Some(trained) = files::encoder(config, &dir, device)? {
            // A local model has the same checkpoint, and loading the model prints it.
            if !job.suite.needs().generator || args.endpoint.is_some() {
                args.target.model.say_checkpoint("evaluating", &dir)?;
            }
            return Ok(trained);
        }
    }
    load_untrained_retriever(config, device)
}

fn write_files(args: &EvalArgs, files: &Files) -> Result<(), Error> {
    let Some(output) = &args.output else {
        return Ok(());
    };
    std::fs::create_dir_all(output).map_err(Error::io(output, "create"))?;
    // Write metrics.json last: it marks a complete evaluation.
    for (name, bytes) in files.iter().rev() {
        write_atomic(&output.join(name), bytes)?;
    }
    Ok(())
}

/// The config of the target; --data replaces the evaluation pairs of a retriever that uses pairs.
fn with_pairs(job: &Job<'_>, mut config: Config) -> Config {
    let data = &job.args.target.data;
    let retriever = config.retriever.as_mut();
    let retriever = retriever.filter(|_| job.suite.needs().is_ranking_only());
    let has_trajectories = config.goat.is_some();
    // A retriever is evaluated on pairs if it has evaluation pairs, or if there are no
    // trajectories.
    if let Some(retriever) =
        retriever.filter(|retriever| !retriever.eval.is_empty() || !has_trajectories)
        && !data.is_empty()
    {
        retriever.eval.clone_from(data);
    }
    config
}

/// Runs `work` with a generator and a progress bar. The generator is the local model, loaded here,
/// or the server of `--endpoint`.
fn with_completions<R>(
    job: &Job<'_>,
    config: &Config,
    device: &Device,
    work: impl FnOnce(
        Generator<'_>,
        &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<R>, Error>,
) -> Result<R, Error> {
    let (args, limits) = (job.args, EvalConfig::answer_limit_keys(&[job.suite]));
    let endings = Endings::default();
    let mut lines = Vec::new();
    let outcome = with_interruptible_progress(|watch| match &args.endpoint {
        Some(url) => {
            args.target.model.check_used(config, &[])?;
            let server = server::endpoint(args, config, url)?;
            // With a server, no model is loaded, so signals are handled from the first request on.
            let _interrupt = Interrupt::begin();
            let outcome = work(Generator::Endpoint(&server), watch);
            lines = server.lines(&limits);
            outcome
        }
        None => {
            let base = BaseModel::from_config(config)?;
            base.warn_of_ignored_sampling();
            args.target.model.check_used(config, &[BASE_MODEL])?;
            let decoder = args
                .target
                .model
                .decoder(config, &base, "evaluating", device)?;
            let generator = LocalGenerator {
                decoder: &decoder,
                base: &base,
                options: &GenerationOptions::from_config(config, &base.stop_ids),
                endings: &endings,
                served: None,
            };
            let outcome = work(Generator::Local(generator), watch);
            lines = endings.lines(&limits);
            outcome
        }
    });
    for line in lines {
        eprint_line(&line)?;
    }
    outcome
}
