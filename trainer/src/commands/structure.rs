//! `structure`: converts text to JSON that satisfies a schema.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_disk::regular_file::STANDARD_INPUT;
use tooltune_endpoint::{EndpointOptions, OptionNames};

use super::new_file::must_be_new;
use super::{DeviceOption, eprint_line, with_interruptible_progress};
use crate::base_model::BaseModel;
use crate::cli::StructureArgs;
use crate::commands::prompts::{option_text, read_schema};
use crate::config::{Config, DataFormat};
use crate::error::Error;
use crate::eval::endings::Endings;
use crate::eval::endpoint_generator::EndpointGenerator;
use crate::eval::generate::GenerationOptions;
use crate::eval::generator::{Constrainer, Generator, LocalGenerator};
use crate::interrupt;
use crate::recipes::run_lock::BASE_MODEL;
use crate::structure::{
    Answers, Counts, Earlier, Feed, Preparer, RowOptions, RowSource, Structuring, TextRow, Upstream,
};

/// Option names of the first model's server, for error messages.
const OPTION_NAMES: OptionNames = OptionNames {
    base_url: "--upstream-endpoint",
    model: "--upstream-model",
    api_key_env: "--api-key-env",
    patience: None,
};

pub(super) fn run(args: &StructureArgs, device_option: &DeviceOption) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let mut config = args.model.config(&[])?;
    config.device = device_option.name(config.device)?;
    let source = source(args)?;
    let upstream = args
        .upstream_endpoint
        .as_deref()
        .map(|url| upstream(args, url))
        .transpose()?;
    args.model.check_used(&config, &[BASE_MODEL])?;
    if !config.data.may_be(DataFormat::Slot) {
        eprint_line(&format!(
            "the target was trained on rows of data.format = \"{}\", but is prompted as for \
             \"slot\"",
            config.data.format
        ))?;
    }
    let device = device_option.open(config.device)?;
    let base = Arc::new(BaseModel::from_config(&config)?);
    base.warn_of_ignored_sampling();
    let options = GenerationOptions::from_config(&config, &base.stop_ids);
    let (mut answers, earlier) = answers(args, &config)?;
    let decoder = args
        .model
        .decoder(&config, &base, "structuring with", &device)?;
    let local = LocalGenerator {
        decoder: &decoder,
        base: &base,
        options: &options,
        endings: &Endings::default(),
        served: None,
    };
    let constrainer = constrainer(args, local)?.map(Arc::new);
    let feed = Feed {
        source,
        earlier,
        skips_broken: args.skip_broken,
        upstream,
        preparer: Preparer::new(&config, Arc::clone(&base), constrainer.clone())?,
    };
    let fed = feed.start()?;
    let structuring = Structuring::new(local, args.skip_broken)?;
    let result = with_interruptible_progress(|watch| {
        let result = structuring.run(&fed, &mut answers, watch);
        // Stop without a message if the reader closes the output.
        match result {
            Ok(None) if answers.is_closed() => Ok(Some(None)),
            result => result.map(|counts| counts.map(Some)),
        }
    });
    match result {
        Ok(None) => Ok(()),
        Ok(Some(counts)) => {
            answers.finish()?;
            print_counts(args, &counts)
        }
        Err(Error::Stopped) => Err(match answers.partial_path() {
            Some(partial) => Error::StoppedWithTexts {
                n_texts: answers.n_written(),
                dir: partial.display().to_string(),
            },
            None => Error::Stopped,
        }),
        Err(error) => Err(error),
    }
}

/// The rows or the text that the command line names.
fn source(args: &StructureArgs) -> Result<RowSource, Error> {
    let schema = args.schema.as_deref().map(read_schema).transpose()?;
    if !args.data.is_empty() {
        let options = RowOptions {
            are_prompts: args.upstream_endpoint.is_some(),
            schema,
        };
        return RowSource::open(&args.data, options);
    }
    let is_piped = || args.upstream_endpoint.is_none() && !std::io::stdin().is_terminal();
    let (option, text) = match (&args.text, &args.prompt) {
        (Some(text), _) => ("--text", text.as_str()),
        (None, Some(prompt)) => ("--prompt", prompt.as_str()),
        (None, None) if schema.is_some() && is_piped() => ("--text", STANDARD_INPUT),
        (None, None) => {
            return Err(Error::Usage(
                "no text to structure: name a file of rows with --data, or give a text with \
                 --text or on standard input together with --schema; with --upstream-endpoint give \
                 --data or --prompt"
                    .to_owned(),
            ));
        }
    };
    Ok(RowSource::single_row(TextRow {
        id: Value::from(option),
        place: option.to_owned(),
        text: option_text(option, text)?,
        json_schema: schema.unwrap_or_default(),
    }))
}

fn upstream(args: &StructureArgs, url: &str) -> Result<Upstream, Error> {
    let options = EndpointOptions {
        api_key_env: args.api_key_env.clone(),
        names: OPTION_NAMES,
        ..EndpointOptions::new(url, args.upstream_model.clone().unwrap_or_default())
    };
    let concurrency = usize::from(args.concurrency);
    let generator = EndpointGenerator::open(
        &options,
        concurrency,
        GenerationOptions::greedy(args.upstream_max_tokens, concurrency, Vec::new()),
        args.extra_body.clone().unwrap_or_default(),
    )?;
    Ok(Upstream {
        generator,
        concurrency,
        max_tokens: args.upstream_max_tokens,
        is_stopped: interrupt::flag(),
    })
}

/// Creates the compiler that turns schemas into constraints. Returns `None` with `--free`.
fn constrainer(
    args: &StructureArgs,
    local: LocalGenerator<'_>,
) -> Result<Option<Constrainer>, Error> {
    match args.free {
        true => Ok(None),
        false => Generator::Local(local).constrainer().map(Some),
    }
}

/// Opens the output. Also returns the answers that an interrupted command wrote to it.
fn answers(args: &StructureArgs, config: &Config) -> Result<(Answers, Option<Earlier>), Error> {
    let to_stream = |path: &Path| -> Result<Answers, Error> {
        let writer = Answers::open_stream(path)?;
        Ok(Answers::to_stream(writer, path))
    };
    match args.output.as_deref() {
        None => {
            let stdout = Box::new(std::io::stdout());
            Ok((
                Answers::to_stream(stdout, Path::new("standard output")),
                None,
            ))
        }
        Some(output) if output.exists() => Ok((to_stream(output)?, None)),
        Some(output) => {
            let folder = output.parent();
            if let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty()) {
                std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
            }
            let (answers, earlier) = Answers::to_file(output, &digest(args, config)?)?;
            if let Some(earlier) = &earlier {
                eprint_line(&format!(
                    "keeping {} answers of an interrupted command",
                    earlier.len()
                ))?;
            }
            Ok((answers, earlier))
        }
    }
}

/// Digest of everything that the answers depend on. Standard input cannot be hashed, so only its
/// name is included.
fn digest(args: &StructureArgs, config: &Config) -> Result<String, Error> {
    let settings = config.to_toml();
    let settings = settings.map_err(|error| Error::Usage(format!("the settings: {error}")))?;
    let server = (
        &args.upstream_endpoint,
        &args.upstream_model,
        args.upstream_max_tokens,
        &args.extra_body,
    );
    let texts = (&args.text, &args.prompt, args.free, args.skip_broken);
    let mut inputs = format!(
        "{}\n{server:?}\n{texts:?}\n{settings}\n",
        args.model.adapter_digest(config)?
    );
    let is_file = |path: &&PathBuf| path.as_path() != Path::new(STANDARD_INPUT);
    for path in args.data.iter().filter(is_file).chain(&args.schema) {
        inputs.push_str(&format!("{} {}\n", path.display(), sha256_file(path)?));
    }
    Ok(sha256_bytes(inputs.as_bytes()))
}

fn print_counts(args: &StructureArgs, counts: &Counts) -> Result<(), Error> {
    for line in counts.lines() {
        eprint_line(&line)?;
    }
    let Some(broken) = counts.broken_rows_line() else {
        return Ok(());
    };
    if args.skip_broken {
        return eprint_line(&format!("{broken}; they get no answer (--skip-broken)"));
    }
    eprint_line(&broken)?;
    Err(Error::MalformedLines {
        n_malformed: counts.n_broken,
        n_lines: counts.n_answers(),
    })
}
