//! `eval`: a suite over the base model, a checkpoint, or predictions that exist already.

use std::path::Path;

use burn::tensor::Device;
use serde_json::{Map, Value};
use tooltune_checkpoints::atomic::{FolderLock, write_atomic};
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_endpoint::EndpointOptions;
use tooltune_rows::tools::read_text;

use super::measured_loss::{loss_beside, measured_loss};
use super::{DeviceOption, eprint_line, say, watched, watching};
use crate::base_model::BaseModel;
use crate::cli::EvalArgs;
use crate::config::{Config, DataFormat, EvalConfig, Suite, things_beside};
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::untrained;
use crate::error::Error;
use crate::eval::endings::Endings;
use crate::eval::endpoint_generator::{EndpointGenerator, OPTION_NAMES};
use crate::eval::generate::GenerationOptions;
use crate::eval::generator::{GenerationRequest, Generator, LocalGenerator};
use crate::eval::in_loop::prepared_rows;
use crate::eval::journal::{self, JOURNAL_FILE, Journal};
use crate::eval::report_files::{
    EVALUATION_FILES, LOSSES_FILE, METRICS_FILE, PREDICTIONS_FILE, json_lines, with_fields,
};
use crate::eval::suites::{
    self, EvalContext, Files, Opening, Purpose, Retriever, SavedMetrics, SuiteResult, THIS_RUN,
};
use crate::interrupt::Interrupt;
use crate::progress::GenerationProgress;
use crate::recipes::retriever::files;
use crate::recipes::run_lock::{BASE_MODEL, ENCODER, RETRIEVER};
use crate::rows::{ReadingReport, eval_rows};

pub(super) fn run(args: &EvalArgs, place: &DeviceOption) -> Result<(), Error> {
    let mut config = args.target.config()?;
    config.device = place.name(config.device)?;
    let suite = chosen_suite(args, &config);
    if args.compare.is_some() {
        suites::change_of(suite.unwrap_or(Suite::first()))?;
    }
    if args.predictions.is_some() && args.target.model.checkpoint.is_some() {
        eprint_line("--checkpoint counts for nothing beside --predictions: no model is read")?;
    }
    if args.suite.is_none() {
        args.target.must_have_rows(&config)?;
    }
    if let Some(output) = &args.output {
        must_be_a_place(output)?;
    }
    // Held to the end: two evaluations would write into each other's files.
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
            match evaluate(&job, &config, place) {
                // Who names no suite asks for what there is.
                Err(Error::NothingToAsk(why)) if args.suite.is_none() && has_model => {
                    eprint_line(&format!("{why}; the loss alone is measured"))?;
                    loss_alone(args, &config, place)
                }
                done => done,
            }
        }
        None if has_model => loss_alone(args, &config, place),
        None => Err(without_a_suite(args, &config)),
    };
    match (work, &args.output) {
        // Nobody needs the texts of an evaluation that is complete and shown. As long as their file
        // is there, the same command continues to the end.
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

/// Refuses a folder that holds an evaluation, or anything else that is not of one. An evaluation that
/// was interrupted says so by its journal and is continued.
fn must_be_a_place(output: &Path) -> Result<(), Error> {
    if output.join(JOURNAL_FILE).exists() {
        return Ok(());
    }
    if output.join(METRICS_FILE).exists() {
        return Err(Error::Usage(format!(
            "{} holds an evaluation; name another --output",
            output.display()
        )));
    }
    match things_beside(output, &EVALUATION_FILES).map_err(Error::io(output, "list"))? {
        None => Ok(()),
        Some(others) => Err(Error::Usage(format!(
            "--output names {}, and that folder holds {others}, which is of no evaluation; name a \
             folder of its own, one that is not there or is empty",
            output.display()
        ))),
    }
}

/// A suite with the command line that asks for it.
struct Job<'a> {
    args: &'a EvalArgs,
    suite: Suite,
}

/// The suite of the command line, else that of the rows; none where the loss alone is measured.
fn chosen_suite(args: &EvalArgs, config: &Config) -> Option<Suite> {
    if args.suite.is_some() || args.loss_only {
        return args.suite;
    }
    if config.model.is_none() {
        return Suite::all().find(|suite| suite.needs().ranks_alone());
    }
    let format = config.data.format;
    let reads = |suite: &Suite| {
        let rows = suite.needs().rows;
        rows.is_some_and(|rows| rows.formats.contains(&format.as_str()))
    };
    match format {
        // What cannot be read without a format says so by itself.
        DataFormat::Auto => Some(Suite::first()),
        _ => Suite::all().find(reads),
    }
}

/// Texts of elsewhere, for rows of which the loss alone is measured.
fn without_a_suite(args: &EvalArgs, config: &Config) -> Error {
    let given = match args.predictions {
        Some(_) => "--predictions gives texts",
        None => "--endpoint asks a server for texts",
    };
    Error::Usage(format!(
        "{given}, and no suite scores texts of rows of the format {}: of these the loss alone is \
         measured, by the model here; leave the option out, or name a suite with --suite",
        config.data.format.as_str()
    ))
}

/// Measures the loss of the rows, and writes and shows it.
fn loss_alone(args: &EvalArgs, config: &Config, place: &DeviceOption) -> Result<(), Error> {
    let device = place.open(config.device)?;
    let rows = eval_rows(config, &device, &mut ReadingReport::default())?;
    if rows.is_empty() {
        return Err(Error::Usage(
            "there is nothing to evaluate on: name a file with --data, or in data.eval".to_owned(),
        ));
    }
    let base = BaseModel::of(config)?;
    base.warn_of_choices();
    args.target.model.check_used(config, &[BASE_MODEL])?;
    let prepared = prepared_rows(config, &base, &rows)?;
    let decoder = args
        .target
        .model
        .decoder(config, &base, "evaluating", &device)?;
    let found = watched(|watch| measured_loss(&decoder, &prepared, watch))?;
    let mut files = Files::from([(LOSSES_FILE.to_owned(), json_lines(&found.lines)?)]);
    files.insert(METRICS_FILE.to_owned(), with_fields(b"{}", found.fields())?);
    write_files(args, &files)?;
    let dropped = rows.len() - prepared.examples.len();
    if dropped > 0 {
        eprint_line(&format!(
            "{dropped} of {} rows are dropped and not measured, as in training",
            rows.len()
        ))?;
    }
    say(&found.line())
}

/// Opens the suite, evaluates it or scores what there is, and writes and shows what came of it.
fn evaluate(job: &Job<'_>, config: &Config, place: &DeviceOption) -> Result<(), Error> {
    let args = job.args;
    let device = place.open(config.device)?;
    let needs = job.suite.needs();
    if keeps_no_texts(job) {
        journal(job, config, &[])?;
    }
    let opening = Opening {
        config,
        device: &device,
        purpose: match args.predictions {
            Some(_) => Purpose::SavedPredictions,
            None => Purpose::Evaluation,
        },
        data: &args.target.data,
        rows: None,
    };
    let suite = suites::open(job.suite, opening)?;
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
    let found = if keeps_no_texts(job) {
        let found = watching(|watch| {
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
        found.and_then(|found| found.ok_or(Error::Stopped))
    } else {
        let mut journal = journal(job, config, &suite.prompts()?)?;
        generated(job, config, &device, |generator, watch| {
            if let Generator::Local(model) = generator {
                loss = loss_beside(job.suite, config, model, &device, watch)?;
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
    let mut result = found.map_err(|error| with_kept_outcomes(args, error))?;
    if let Some(loss) = &loss {
        if let Some(metrics) = result.files.get_mut(METRICS_FILE) {
            *metrics = with_fields(metrics, loss.fields())?;
        }
        result
            .files
            .insert(LOSSES_FILE.to_owned(), json_lines(&loss.lines)?);
        result.notes.insert(0, loss.line());
    }
    write_files(args, &result.files)?;
    print(job, result)
}

/// Where predictions were written before a judge failed, they need not be generated again.
fn with_kept_outcomes(args: &EvalArgs, error: Error) -> Error {
    let kept = args
        .output
        .as_ref()
        .map(|output| output.join(PREDICTIONS_FILE));
    match (error, kept.filter(|kept| kept.exists())) {
        (Error::Judge { table, message }, Some(kept)) => Error::Judge {
            table,
            message: format!(
                "{message}; the outcomes are kept: continue with --predictions {}",
                kept.display()
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
        return say(&suites::change_of(job.suite)?(&before, &after)?);
    }
    let name = match &args.predictions {
        Some(_) => "predictions".to_owned(),
        None => args.target.model.checkpoint()?,
    };
    say(&result.table.replace(THIS_RUN, &format!("| {name} |")))?;
    if let Some(by_file) = &result.by_file {
        say(&format!("\n{}", by_file.table()))?;
    }
    result.notes.iter().try_for_each(|note| say(note))
}

/// Whether an evaluation has no texts that could be kept as they come.
fn keeps_no_texts(job: &Job<'_>) -> bool {
    job.args.predictions.is_some() || !job.suite.needs().generator
}

/// The texts of an evaluation with `--output` that was interrupted, or a new file for them.
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

/// A digest of everything that the texts of an evaluation follow from.
fn digest(
    job: &Job<'_>,
    config: &Config,
    prompts: &[GenerationRequest<'_>],
) -> Result<String, Error> {
    let args = job.args;
    let server = (&args.endpoint, &args.endpoint_model, &args.extra_body);
    let weights = match (args.target.model.checkpoint()?.as_str(), &args.endpoint) {
        // Nothing is generated: the file says that the evaluation has begun, and holds no text.
        (checkpoint, _) if keeps_no_texts(job) => checkpoint.to_string(),
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
    let mut followed = format!("{weights}\n{server:?}\n{settings}\n");
    if let Some(path) = &args.predictions {
        followed.push_str(&format!("{}\n", sha256_file(path)?));
    }
    for prompt in prompts {
        let (id, n, text) = (prompt.id, prompt.max_new_tokens, prompt.text.digest());
        followed.push_str(&format!("{id} {n} {text}\n"));
    }
    Ok(sha256_bytes(followed.as_bytes()))
}

/// The retriever of the chosen checkpoint, if one was trained; else that of the config.
fn retriever(job: &Job<'_>, config: &Config, device: &Device) -> Result<MiniLmEncoder, Error> {
    let args = job.args;
    args.target.model.check_used(config, &[RETRIEVER])?;
    if args.target.model.checkpoint()? != "base" {
        let dir = args.target.model.checkpoint_dir(config)?;
        if let Some(trained) = files::encoder(config, &dir, device)? {
            // Where a model is evaluated too, it is of the same checkpoint and says so.
            if !job.suite.needs().generator || args.endpoint.is_some() {
                args.target.model.say_checkpoint("evaluating", &dir)?;
            }
            return Ok(trained);
        }
    }
    untrained(config, device)
}

fn write_files(args: &EvalArgs, files: &Files) -> Result<(), Error> {
    let Some(output) = &args.output else {
        return Ok(());
    };
    std::fs::create_dir_all(output).map_err(Error::io(output, "create"))?;
    // The metrics come last: their presence says that the evaluation is complete.
    for (name, bytes) in files.iter().rev() {
        write_atomic(&output.join(name), bytes)?;
    }
    Ok(())
}

/// The config of the target, with the pairs of the command line for a retriever that has some.
fn with_pairs(job: &Job<'_>, mut config: Config) -> Config {
    let data = &job.args.target.data;
    let retriever = config.retriever.as_mut();
    let retriever = retriever.filter(|_| job.suite.needs().ranks_alone());
    // A retriever with pairs of its own is evaluated on pairs.
    if let Some(retriever) = retriever.filter(|retriever| !retriever.eval.is_empty())
        && !data.is_empty()
    {
        retriever.eval.clone_from(data);
    }
    config
}

/// Lets `work` write texts with the model and checkpoint, which are loaded for it, or with the
/// server of `--endpoint`; with a progress bar.
fn generated<R>(
    job: &Job<'_>,
    config: &Config,
    device: &Device,
    work: impl FnOnce(
        Generator<'_>,
        &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<R>, Error>,
) -> Result<R, Error> {
    let (args, limits) = (job.args, EvalConfig::limits_of_answers(&[job.suite]));
    let endings = Endings::default();
    let mut lines = Vec::new();
    let found = watched(|watch| match &args.endpoint {
        Some(url) => {
            args.target.model.check_used(config, &[])?;
            let server = endpoint(args, config, url)?;
            // No model is loaded: from the first request on, it is said what was waited for.
            let _interrupt = Interrupt::begin();
            let found = work(Generator::Endpoint(&server), watch);
            lines = server.lines(&limits);
            found
        }
        None => {
            let base = BaseModel::of(config)?;
            base.warn_of_choices();
            args.target.model.check_used(config, &[BASE_MODEL])?;
            let decoder = args
                .target
                .model
                .decoder(config, &base, "evaluating", device)?;
            let generator = LocalGenerator {
                decoder: &decoder,
                base: &base,
                options: &GenerationOptions::of(config, &base.stop_ids),
                endings: &endings,
            };
            let found = work(Generator::Local(generator), watch);
            lines = endings.lines(&limits);
            found
        }
    });
    for line in lines {
        eprint_line(&line)?;
    }
    found
}

fn endpoint(args: &EvalArgs, config: &Config, url: &str) -> Result<EndpointGenerator, Error> {
    let model = args.endpoint_model.clone().ok_or_else(|| {
        Error::Usage(
            "--endpoint needs --endpoint-model, the server's name for the model".to_string(),
        )
    })?;
    let sampling = config.eval.sampling();
    if let Some(top_k) = sampling.top_k.filter(|_| sampling.temperature > 0.0) {
        eprint_line(&format!(
            "eval.top_k = {top_k} is sent as the field \"top_k\", which OpenAI's protocol does not \
             have: vLLM, SGLang and llama.cpp take it; for a server that refuses it or passes over \
             it, take eval.top_k out of the config"
        ))?;
    }
    let options = EndpointOptions {
        api_key_env: args.api_key_env.clone(),
        names: OPTION_NAMES,
        ..EndpointOptions::new(url, model)
    };
    EndpointGenerator::open(
        &options,
        args.concurrency,
        GenerationOptions::of(config, &[]),
        extra_body(args, config)?,
    )
}

/// What is added to every request: that of the command line, and the variables of the chat template,
/// by the name that vLLM and SGLang take them by.
fn extra_body(args: &EvalArgs, config: &Config) -> Result<Map<String, Value>, Error> {
    const FIELD: &str = "chat_template_kwargs";
    let mut body = args.extra_body.clone().unwrap_or_default();
    if config.data.chat_template_kwargs.0.is_empty() {
        return Ok(body);
    }
    let mut kwargs = config.data.chat_template_kwargs.0.clone();
    match body.remove(FIELD) {
        None => {}
        Some(Value::Object(typed)) => {
            for (name, value) in typed {
                if kwargs.get(&name).is_some_and(|known| *known != value) {
                    return Err(Error::Usage(format!(
                        "--extra-body says {value} for {FIELD}.{name}, and data.{FIELD} {}; keep one \
                         of the two",
                        kwargs[&name]
                    )));
                }
                kwargs.insert(name, value);
            }
        }
        Some(other) => {
            return Err(Error::Usage(format!(
                "--extra-body says {other} for {FIELD}; give a JSON object"
            )));
        }
    }
    body.insert(FIELD.to_owned(), Value::Object(kwargs));
    Ok(body)
}
