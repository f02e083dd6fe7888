//! `eval`: a suite over the base model, a checkpoint, or predictions that exist already.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::{Map, Value};
use tooltune_checkpoints::atomic::{FolderLock, write_atomic};
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_endpoint::EndpointOptions;
use tooltune_rows::text::Row;
use tooltune_rows::tools::{JsonLines, read_text};
use tooltune_suites::retrieval::retrieval_table;
use tooltune_suites::slot::{DatasetScore, SentenceEncoder, before_after_rows, markdown_table};

use super::reading::reading_lines;
use super::{Place, agent_suites, nestful_suite, say, say_aside, toolqa_suite, watched};
use crate::base_model::BaseModel;
use crate::cli::EvalArgs;
use crate::config::{Config, DataFormat, Suite};
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::untrained;
use crate::error::Error;
use crate::eval::agents::eval_files;
use crate::eval::by_file::ByFile;
use crate::eval::endings::Endings;
use crate::eval::endpoint_generator::EndpointGenerator;
use crate::eval::flat_forms::FlatForms;
use crate::eval::generate::{GenerationOptions, GenerationProgress};
use crate::eval::generator::{Completion, GenerationRequest, Generator, LocalGenerator};
use crate::eval::in_loop::encoder;
use crate::eval::journal::{self, JOURNAL_FILE, Journal};
use crate::eval::retrieval::RetrievalSuite;
use crate::eval::saved::{check_ids, excerpt, in_file};
use crate::eval::slot::{self, Constraints, Prediction, SlotEvaluation};
use crate::interrupt::Interrupt;
use crate::recipes::retriever::files;
use crate::recipes::run_lock::{BASE_MODEL, ENCODER, RETRIEVER};
use crate::rows::{ReadingReport, eval_rows};

pub(super) fn run(args: &EvalArgs, place: &Place) -> Result<(), Error> {
    if args.compare.is_some() && args.suite != Suite::Slot {
        return Err(Error::Usage(
            "--compare is for the suite slot; evaluate each time with --output, and run `tooltune \
             compare BEFORE AFTER`, which compares two evaluations of any suite"
                .to_string(),
        ));
    }
    let mut config = target_config(args)?;
    config.device = place.name(config.device)?;
    if let Some(output) = &args.output
        && output.join("metrics.json").exists()
        && !output.join(JOURNAL_FILE).exists()
    {
        return Err(Error::Usage(format!(
            "{} holds an evaluation; name another --output",
            output.display()
        )));
    }
    // Held to the end: two evaluations would write into each other's files.
    let _folder = match &args.output {
        Some(output) => {
            std::fs::create_dir_all(output).map_err(Error::io(output, "create"))?;
            Some(FolderLock::take(output)?)
        }
        None => None,
    };
    match (suite(args, &config, place), &args.output) {
        // Nobody needs the texts of an evaluation that is complete and shown. As long as their file
        // is there, the same command goes on to the end.
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

fn suite(args: &EvalArgs, config: &Config, place: &Place) -> Result<(), Error> {
    let device = place.open(config.device)?;
    if keeps_no_texts(args) {
        journal(args, config, &[])?;
    }
    match args.suite {
        Suite::Slot => slot_suite(args, config, &device),
        Suite::Goat | Suite::Restbench | Suite::Apibank => agent_suites::run(args, config, &device),
        Suite::Retrieval => retrieval_suite(args, config, &device),
        Suite::Nestful => nestful_suite::run(args, config, &device),
        Suite::Toolqa => toolqa_suite::run(args, config, &device),
    }
}

fn slot_suite(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    refuse_other_rows(config)?;
    let mut report = ReadingReport::default();
    let rows = eval_rows(config, device, &mut report)?;
    for line in reading_lines(config, &report) {
        say_aside(&line)?;
    }
    for file in &config.data.eval {
        let prefix = format!("{}:", file.display());
        if let (false, Some(most)) = (
            rows.iter().any(|row| row.id.starts_with(&prefix)),
            config.eval.max_samples,
        ) {
            let file = file.display();
            say_aside(&format!(
                "eval.max_samples = {most} leaves no row of {file}"
            ))?;
        }
    }
    let forms = FlatForms::of(&rows, &config.data)?;
    for line in forms.lines() {
        say_aside(&line)?;
    }
    let rows = (rows.as_slice(), &forms);
    args.target.check_used(config, &[ENCODER])?;
    let encoder = encoder(config, device)?;
    let evaluation = match &args.predictions {
        Some(path) => slot::score(rows, saved(path, rows.0)?, encoder.as_ref())?,
        None => slot_generated(args, config, rows, encoder.as_ref(), device)?,
    };
    write_files(args, &evaluation.files()?)?;
    print(args, &evaluation)
}

/// The suite slot is the default, and scores rows of one format alone.
fn refuse_other_rows(config: &Config) -> Result<(), Error> {
    let format = config.data.format;
    let refused = |message: String| Err(Error::Usage(message));
    match format {
        // Where no file told the format, reading the rows says so.
        DataFormat::Slot | DataFormat::Auto => Ok(()),
        _ if config.model.is_none() => refused(
            "the suite slot is for language models, and the config has none; add --suite retrieval"
                .to_string(),
        ),
        DataFormat::Goat => refused(
            "the suite slot scores rows of data.format = \"slot\", and data.eval has trajectories; \
             add --suite goat"
                .to_string(),
        ),
        _ => refused(format!(
            "rows of data.format = \"{format}\" have no suite: their loss at each evaluation is \
             eval/loss in {}, and `tooltune generate` shows what the model writes after them; the \
             suites are {}, and each reads files of its own benchmark (docs/metrics.md)",
            config.train.output_dir.join("metrics.jsonl").display(),
            Suite::WORDS.join(", ")
        )),
    }
}

fn slot_generated(
    args: &EvalArgs,
    config: &Config,
    (rows, forms): (&[Row], &FlatForms),
    encoder: &dyn SentenceEncoder,
    device: &Device,
) -> Result<SlotEvaluation, Error> {
    let max_new_tokens = config.eval.max_new_tokens;
    let freely = Constraints::default();
    let free = slot::prompts(rows, &freely, max_new_tokens);
    let mut texts = journal(args, config, &free)?;
    generated(args, config, rows.len(), device, |generator, watch| {
        let constraints = match config.eval.constrained {
            true => Constraints::compile((rows, forms), &generator)?,
            false => Constraints::default(),
        };
        constraints.warn(rows.len());
        let rows = (rows, forms, &constraints);
        slot::evaluate(
            &generator,
            rows,
            max_new_tokens,
            texts.as_mut(),
            encoder,
            watch,
        )
    })
}

/// Whether an evaluation has no texts that could be kept as they come.
fn keeps_no_texts(args: &EvalArgs) -> bool {
    args.predictions.is_some() || args.suite == Suite::Retrieval
}

/// The texts after prompts, kept in the folder of the output as they come.
pub(super) fn texts(
    args: &EvalArgs,
    config: &Config,
    prompts: &[GenerationRequest<'_>],
    device: &Device,
) -> Result<Vec<Completion>, Error> {
    let mut texts = journal(args, config, prompts)?;
    generated(args, config, prompts.len(), device, |generator, watch| {
        generator.write(prompts, texts.as_mut(), watch)
    })
}

/// The texts of an evaluation with `--output` that was interrupted, or a new file for them.
pub(super) fn journal(
    args: &EvalArgs,
    config: &Config,
    prompts: &[GenerationRequest<'_>],
) -> Result<Option<Journal>, Error> {
    let Some(output) = &args.output else {
        return Ok(None);
    };
    Journal::open(output, &digest(args, config, prompts)?).map(Some)
}

/// A digest of everything that the texts of an evaluation follow from.
fn digest(
    args: &EvalArgs,
    config: &Config,
    prompts: &[GenerationRequest<'_>],
) -> Result<String, Error> {
    let server = (&args.endpoint, &args.endpoint_model, &args.extra_body);
    let weights = match (args.target.checkpoint.as_str(), &args.endpoint) {
        // Nothing is generated: the file says that the evaluation has begun, and holds no text.
        (checkpoint, _) if keeps_no_texts(args) => checkpoint.to_string(),
        ("base", _) => "base".to_string(),
        (_, Some(_)) => String::new(),
        _ => {
            let dir = args.target.checkpoint_dir(config)?;
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

/// The files of a suite that has a table of its own: those of `--data`, else the table's, else
/// `data.eval`.
pub(super) fn suite_files<'a>(
    args: &EvalArgs,
    config: &'a Config,
    own: &'a [PathBuf],
) -> Result<&'a [PathBuf], Error> {
    match args.target.data.is_empty() && !own.is_empty() {
        true => Ok(own),
        false => eval_files(config),
    }
}

/// The retriever of the chosen checkpoint, if one was trained; else that of the config.
pub(super) fn retriever(
    args: &EvalArgs,
    config: &Config,
    device: &Device,
) -> Result<MiniLmEncoder, Error> {
    args.target.check_used(config, &[RETRIEVER])?;
    if args.target.checkpoint != "base" {
        let dir = args.target.checkpoint_dir(config)?;
        if let Some(trained) = files::encoder(config, &dir, device)? {
            // Where a model is evaluated too, it is of the same checkpoint and says so.
            if args.suite == Suite::Retrieval || args.endpoint.is_some() {
                args.target.say_checkpoint("evaluating", &dir)?;
            }
            return Ok(trained);
        }
    }
    untrained(config, device)
}

fn retrieval_suite(args: &EvalArgs, config: &Config, device: &Device) -> Result<(), Error> {
    if args.predictions.is_some() {
        return Err(Error::Usage(
            "--predictions is not for the suite retrieval; take it out".to_string(),
        ));
    }
    let suite = RetrievalSuite::open(config)?;
    let evaluation = suite.evaluate(&retriever(args, config, device)?)?;
    write_files(args, &evaluation.files()?)?;
    say(&retrieval_table(&[(
        args.target.checkpoint.as_str(),
        &evaluation.report,
    )]))
}

pub(super) fn write_files(args: &EvalArgs, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Error> {
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

/// The numbers of each file, where there are several.
pub(super) fn say_by_file(by_file: Option<&ByFile>) -> Result<(), Error> {
    match by_file {
        Some(by_file) => say(&format!("\n{}", by_file.table())),
        None => Ok(()),
    }
}

/// The config of the target, with the paths of the command line.
fn target_config(args: &EvalArgs) -> Result<Config, Error> {
    let mut config = args.target.config()?;
    let retriever = config.retriever.as_mut();
    let retriever = retriever.filter(|_| args.suite == Suite::Retrieval);
    // A retriever with pairs of its own is evaluated on pairs.
    if let Some(retriever) = retriever.filter(|retriever| !retriever.eval.is_empty())
        && !args.target.data.is_empty()
    {
        retriever.eval.clone_from(&args.target.data);
    }
    config.eval.sandbox = args.sandbox.over(&config.eval.sandbox);
    Ok(config)
}

/// Lets `work` write texts with the model and checkpoint, which are loaded for it, or with the
/// server of `--endpoint`; with a progress bar over `n` rows.
pub(super) fn generated<R>(
    args: &EvalArgs,
    config: &Config,
    n: usize,
    device: &Device,
    work: impl FnOnce(
        Generator<'_>,
        &mut dyn FnMut(GenerationProgress) -> bool,
    ) -> Result<Option<R>, Error>,
) -> Result<R, Error> {
    let endings = Endings::default();
    let mut lines = Vec::new();
    let found = watched(n, |watch| match &args.endpoint {
        Some(url) => {
            let server = endpoint(args, config, url)?;
            // No model is loaded: from the first request on, it is said what was waited for.
            let _interrupt = Interrupt::begin();
            let found = work(Generator::Endpoint(&server), watch);
            lines = server.lines();
            found
        }
        None => {
            let base = BaseModel::of(config)?;
            base.warn_of_choices();
            args.target.check_used(config, &[BASE_MODEL])?;
            let decoder = args.target.decoder((config, &base), "evaluating", device)?;
            let generator = LocalGenerator {
                decoder: &decoder,
                base: &base,
                options: &GenerationOptions::of(config, &base.stop_ids),
                endings: &endings,
            };
            let found = work(Generator::Local(generator), watch);
            lines = endings.lines();
            found
        }
    });
    for line in lines {
        say_aside(&line)?;
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
        say_aside(&format!(
            "eval.top_k = {top_k} is sent as the field \"top_k\", which OpenAI's protocol does not \
             have: vLLM, SGLang and llama.cpp take it; for a server that refuses it or passes over \
             it, take eval.top_k out of the config"
        ))?;
    }
    let options = EndpointOptions {
        api_key_env: args.api_key_env.clone(),
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

/// The lines of a `predictions.jsonl`, whatever rows they belong to.
///
/// # Errors
///
/// A file that cannot be read, or a line that is no prediction.
pub(super) fn read_predictions(path: &Path) -> Result<Vec<Prediction>, Error> {
    let mut predictions = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, line) = line?;
        predictions.push(serde_json::from_value(line).map_err(|error| {
            Error::Usage(format!(
                "{place}: {error}; each line is {{\"id\": ..., \"prediction\": ...}}"
            ))
        })?);
    }
    Ok(predictions)
}

/// The predictions of `rows` from a file, in the order of the rows, with a word on those that are
/// named for another row.
fn saved(path: &Path, rows: &[Row]) -> Result<Vec<Prediction>, Error> {
    let predictions = read_predictions(path)?;
    let ids = predictions.iter().map(|prediction| prediction.id.as_str());
    check_ids(path, ids, rows.iter().map(|row| row.id.as_str()))?;
    if predictions.len() != rows.len() {
        return Err(Error::Usage(format!(
            "{}: {} predictions for {} rows; give one line for each row, in their order",
            path.display(),
            predictions.len(),
            rows.len()
        )));
    }
    let pairs = predictions.iter().zip(rows);
    let others = pairs.filter(|(prediction, row)| in_file(&prediction.id) != in_file(&row.id));
    let others: Vec<_> = others.collect();
    if let Some((prediction, row)) = others.first() {
        say_aside(&format!(
            "{} of {} predictions are named for other rows, such as {:?}, which is scored against \
             {}; are they of these rows, in their order?",
            others.len(),
            rows.len(),
            excerpt(&prediction.id),
            row.id
        ))?;
    }
    Ok(predictions)
}

fn print(args: &EvalArgs, evaluation: &SlotEvaluation) -> Result<(), Error> {
    let Some(earlier) = &args.compare else {
        for (name, value) in evaluation.metrics() {
            say(&format!("{name:<32} {value:.4}"))?;
        }
        say(&format!("{:<32} {}", "n", evaluation.score.n))?;
        return say_by_file(evaluation.by_file.as_ref());
    };
    let before: DatasetScore = serde_json::from_str(&read_text(earlier)?).map_err(|error| {
        let earlier = earlier.display();
        Error::Usage(format!(
            "{earlier}: {error}; --compare takes the metrics.json of an evaluation"
        ))
    })?;
    say(&markdown_table(&before_after_rows(
        &before,
        &evaluation.score,
    )))
}
