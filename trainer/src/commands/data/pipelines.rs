//! Shared code of the data pipelines that use a language model: the model, the budget, the progress
//! view and the final tables.

use std::path::Path;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use tooltune_disk::atomic::FolderLock;
use tooltune_endpoint::{EndpointOptions, OptionNames};
use tooltune_pipelines::{
    EndpointGenerator, Generator, GeneratorOptions, Limits, ModelInfo, PipelineError, Progress,
    Report, StagePlan,
};

use crate::base_model::BaseModel;
use crate::cli::{GeneratorArgs, ModelArgs, PipelineArgs};
use crate::commands::{DeviceOption, eprint_line, print_line};
use crate::error::Error;
use crate::eval::endings::Endings;
use crate::eval::generate::GenerationOptions;
use crate::eval::generator::LocalGenerator;
use crate::eval::pipeline_generator::{LocalPipelineGenerator, UnloadedModel, identity};
use crate::interrupt::Interrupt;
use crate::recipes::run_lock::BASE_MODEL;
use tooltune_terminal::{Bar, print};

/// Option names of the server, for error messages.
const OPTION_NAMES: OptionNames = OptionNames {
    base_url: "--endpoint",
    model: "--endpoint-model",
    api_key_env: "--api-key-env",
    patience: Some("--timeout or --retries"),
};

/// Minimum total time for a request and its retries, in seconds.
const MIN_TOTAL_SECS: f64 = 600.0;

impl PipelineArgs {
    /// Request and token limits.
    pub(in crate::commands) fn limits(&self) -> Limits {
        Limits {
            max_requests: self.max_requests,
            max_tokens: self.max_tokens,
            max_api_calls: None,
        }
    }

    /// Creates the folder and locks it against other processes.
    ///
    /// # Errors
    ///
    /// Another process has the lock, or the folder cannot be created.
    pub(in crate::commands) fn lock(&self) -> Result<FolderLock, Error> {
        let dir = &self.output;
        std::fs::create_dir_all(dir).map_err(Error::io(dir, "create"))?;
        Ok(FolderLock::take(dir)?)
    }

    /// Cost of the tokens, if prices are given.
    fn cost(&self, n_prompt_tokens: usize, n_tokens: usize) -> Option<f64> {
        const MILLION: f64 = 1e6;
        let cost = self.input_price * n_prompt_tokens as f64 + self.output_price * n_tokens as f64;
        (self.input_price > 0.0 || self.output_price > 0.0).then_some(cost / MILLION)
    }
}

/// Runs `work` with a generator: a server or the local model.
///
/// # Errors
///
/// - a server without a model name, or with an invalid address
/// - a model that cannot be loaded
/// - errors of `work`
pub(in crate::commands) fn with_generator<R>(
    args: &GeneratorArgs,
    device_option: &DeviceOption,
    work: impl FnOnce(&dyn Generator) -> Result<R, Error>,
) -> Result<R, Error> {
    let Some(target) = &args.model else {
        return work(&server(args)?);
    };
    let target = local_target(args, target);
    let mut config = target.config(&[])?;
    config.device = device_option.name(config.device)?;
    target.check_used(&config, &[BASE_MODEL])?;
    let device = device_option.open(config.device)?;
    let base = BaseModel::from_config(&config)?;
    base.warn_of_ignored_sampling();
    let decoder = target.decoder(&config, &base, "generating with", &device)?;
    let options = GenerationOptions::from_config(&config, &base.stop_ids);
    let identity = identity(&base, &options, &target.adapter_digest(&config)?)?;
    let local = LocalGenerator {
        decoder: &decoder,
        base: &base,
        options: &options,
        endings: &Endings::default(),
        served: None,
    };
    work(&LocalPipelineGenerator::new(local, identity)?)
}

/// Runs `work` with the properties of the model that need no request and no weights.
///
/// # Errors
///
/// As for [`with_generator`].
pub(in crate::commands) fn with_model_info<R>(
    args: &GeneratorArgs,
    work: impl FnOnce(&dyn ModelInfo) -> Result<R, Error>,
) -> Result<R, Error> {
    let Some(target) = &args.model else {
        return work(&server(args)?);
    };
    let target = local_target(args, target);
    let config = target.config(&[])?;
    let base = BaseModel::from_config(&config)?;
    let options = GenerationOptions::from_config(&config, &base.stop_ids);
    let identity = identity(&base, &options, &target.adapter_digest(&config)?)?;
    work(&UnloadedModel {
        base: &base,
        identity,
    })
}

fn local_target(args: &GeneratorArgs, target: &Path) -> ModelArgs {
    ModelArgs {
        path: target.to_owned(),
        overrides: args.overrides.clone(),
        checkpoint: args.checkpoint.clone(),
    }
}

fn server(args: &GeneratorArgs) -> Result<EndpointGenerator, Error> {
    let url = args.endpoint.clone().unwrap_or_default();
    let model = args.endpoint_model.clone().ok_or_else(|| {
        let reason = "--endpoint needs --endpoint-model, the model name on the server";
        Error::Usage(reason.to_owned())
    })?;
    let all_attempts = args.timeout * (args.retries + 1) as f64;
    let options = EndpointOptions {
        api_key_env: args.api_key_env.clone(),
        timeout_secs: args.timeout,
        total_secs: all_attempts.max(MIN_TOTAL_SECS),
        retries: args.retries,
        names: OPTION_NAMES,
        ..EndpointOptions::new(url, model)
    };
    let extra_body = args.extra_body.clone().unwrap_or_default();
    if extra_body.contains_key("response_format") && !args.no_response_format {
        return Err(Error::Usage(
            "--extra-body sets response_format, but each request sends its schema in this field; \
             remove it, or add --no-response-format"
                .to_owned(),
        ));
    }
    let asking = GeneratorOptions {
        concurrency: usize::from(args.concurrency),
        extra_body,
        is_constrained: !args.no_response_format,
    };
    Ok(EndpointGenerator::open(&options, asking)?)
}

/// Time between two progress lines if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(20);

/// Progress view of a pipeline: one bar per round of requests, with tokens and cost.
pub(in crate::commands) struct View<'a> {
    args: &'a PipelineArgs,
    interrupt: Interrupt,
    round: Option<(&'static str, usize)>,
    bar: Option<Bar>,
    last_line: Instant,
}

impl<'a> View<'a> {
    /// Starts the view. From now on, a signal no longer ends the program. Instead, [`Self::show`]
    /// returns false.
    pub(in crate::commands) fn begin(args: &'a PipelineArgs) -> Self {
        Self {
            args,
            interrupt: Interrupt::begin(),
            round: None,
            bar: None,
            last_line: Instant::now(),
        }
    }

    /// Shows the progress; returns whether to continue.
    pub(in crate::commands) fn show(&mut self, progress: &Progress) -> bool {
        let round = (progress.stage, progress.n_all);
        if self.round != Some(round) {
            self.round = Some(round);
            self.bar = None;
            let template = "{prefix} {bar:16} {pos}/{len}  eta {eta}  {wide_msg}";
            self.bar = Bar::begin(progress.n_all as u64, template);
            if let Some(bar) = &self.bar {
                bar.set_prefix(progress.stage);
            }
        }
        let (n_prompt_tokens, n_tokens) = (progress.n_prompt_tokens, progress.n_tokens);
        let mut words = format!("{n_prompt_tokens} + {n_tokens} tokens");
        if let Some(cost) = self.args.cost(n_prompt_tokens, n_tokens) {
            words.push_str(&format!(", cost {cost:.2}"));
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position(progress.n_done as u64);
                bar.set_message(words);
            }
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                let Progress {
                    stage,
                    n_done,
                    n_all,
                    ..
                } = progress;
                print(&format!("{stage} {n_done}/{n_all}  {words}"));
            }
            None => {}
        }
        !self.interrupt.is_set()
    }
}

/// A table whose columns after the first are right-aligned.
pub(in crate::commands) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints the requests that each stage would send.
///
/// # Errors
///
/// The terminal cannot be written to.
pub(in crate::commands) fn print_plan(
    args: &PipelineArgs,
    plans: &[StagePlan],
) -> Result<(), Error> {
    let calls_apis = plans.iter().any(|plan| plan.n_api_calls > 0);
    let mut header = vec!["stage", "requests", "done", "prompt tokens", "reply tokens"];
    if calls_apis {
        header.push("API calls");
    }
    let mut stages = table(&header);
    for plan in plans {
        let at_most = |n: usize| match plan.is_at_most {
            true => format!("at most {n}"),
            false => n.to_string(),
        };
        let mut row = vec![
            plan.stage.to_owned(),
            at_most(plan.n_requests),
            plan.n_stored.to_string(),
            at_most(plan.n_prompt_tokens),
            format!("at most {}", plan.n_max_tokens),
        ];
        if calls_apis {
            row.push(match plan.n_api_calls {
                0 => "0".to_owned(),
                n => format!("at most {n}"),
            });
        }
        stages.add_row(row);
    }
    print_line(&stages.trim_fmt())?;
    let sum =
        |field: fn(&StagePlan) -> usize| plans.iter().map(field).fold(0, usize::saturating_add);
    let n_left = sum(|plan| plan.n_requests - plan.n_stored);
    let (n_prompt_tokens, n_tokens) = (
        sum(|plan| plan.n_prompt_tokens),
        sum(|plan| plan.n_max_tokens),
    );
    let mut line = format!(
        "up to {n_left} requests remain, with about {n_prompt_tokens} prompt tokens and up to \
         {n_tokens} reply tokens"
    );
    if let Some(cost) = args.cost(n_prompt_tokens, n_tokens) {
        line.push_str(&format!(", and cost at most {cost:.2}"));
    }
    print_line(&format!(
        "{line}; a reply that cannot be parsed is requested once more. Nothing was sent."
    ))
}

/// Prints the result of each stage: kept and dropped items with reasons, requests and tokens.
///
/// # Errors
///
/// The terminal cannot be written to.
pub(in crate::commands) fn print_report(args: &PipelineArgs, report: &Report) -> Result<(), Error> {
    let header = [
        "stage", "in", "kept", "dropped", "replies", "retried", "no reply", "tokens",
    ];
    let mut stages = table(&header);
    for stage in &report.stages {
        let requests = &stage.requests;
        let n_unanswered: usize = requests.unanswered.values().sum();
        stages.add_row([
            stage.stage.clone(),
            stage.n_in.to_string(),
            stage.n_kept.to_string(),
            (stage.dropped.values().sum::<usize>()).to_string(),
            requests.n_replies.to_string(),
            requests.n_asked_again.to_string(),
            n_unanswered.to_string(),
            format!("{} + {}", requests.n_prompt_tokens, requests.n_tokens),
        ]);
    }
    print_line(&stages.trim_fmt())?;
    for stage in &report.stages {
        for (reason, n) in &stage.dropped {
            print_line(&format!("  {} dropped {n}: {reason}", stage.stage))?;
        }
        for (what, n) in &stage.counts {
            print_line(&format!("  {} {what}: {n}", stage.stage))?;
        }
    }
    let all = report.requests();
    match args.cost(all.n_prompt_tokens, all.n_tokens) {
        Some(cost) => print_line(&format!("cost of the replies: {cost:.2}")),
        None => Ok(()),
    }
}

/// Prints remarks about files and replies.
///
/// # Errors
///
/// The terminal cannot be written to.
pub(in crate::commands) fn print_notes(notes: &[String]) -> Result<(), Error> {
    notes.iter().try_for_each(|note| eprint_line(note))
}

/// If the pipeline ended early, prints the results of its completed stages.
pub(in crate::commands) fn with_report<R>(
    args: &PipelineArgs,
    result: Result<R, PipelineError>,
) -> Result<R, Error> {
    if result.is_err() {
        let report = tooltune_pipelines::read_report(&args.output);
        if let Some(report) = report.ok().filter(|report| !report.stages.is_empty()) {
            print_report(args, &report)?;
        }
    }
    Ok(result?)
}
