//! Implements the commands: each one parses options, calls the library and prints the result.
//!
//! Only this module and `main` print to the terminal.
#![allow(clippy::print_stdout, reason = "only commands print to the terminal")]

mod chat;
mod compare;
mod data;
mod doctor;
mod evaluate;
mod executor_options;
mod export;
mod fetch;
mod generate;
mod init;
mod inspect;
mod manual;
mod new_file;
mod plan;
mod prompts;
mod reading_report;
mod report;
mod run_summary;
mod score;
mod select;
mod structure;
mod target;
mod train;
mod verify;

use std::io::{IsTerminal, Write};
use std::path::Path;

use burn::tensor::Device;
use comfy_table::{ContentArrangement, Table, presets};
use tooltune_json::printable;

use crate::cli::{
    Cli, Command, ConfigArgs, DataCommand, DataGoatCommand, MachineArgs, SynthCommand,
};
use crate::config::{self, Config, LoadedConfig};
use crate::device;
use crate::error::Error;
use crate::eval::generate::GenerationProgress;
use crate::interrupt::{self, Interrupt};
use crate::out_of_memory::{GENERATION_SETTINGS, catch_out_of_memory};
use tooltune_ranks::Role;
use tooltune_terminal::{Progress, columns, count_noun, fitting_text, write_between_bars};

/// Runs one command.
///
/// # Errors
///
/// The error that ended the command; [`Error::exit_code`] is its exit status.
pub fn run(cli: Cli) -> Result<(), Error> {
    // First: the main thread only waits for this one, and others start below.
    let may_use_gpu = |machine: &MachineArgs| machine.device.as_deref() != Some("cpu");
    if cli.command.machine().is_some_and(may_use_gpu) {
        device::locate_cuda_headers();
    }
    interrupt::listen()?;
    let machine = cli.command.machine().cloned().unwrap_or_default();
    let role = match &cli.command {
        Command::Train(on) => train::role(on.args.ranks)?,
        Command::Doctor(on) => train::role(on.args.ranks)?,
        _ => Role::Alone,
    };
    let of_rank = || train::threads_of_rank(&role);
    device::start_threads(machine.threads.or_else(of_rank))?;
    // Training adds its own details to an out-of-memory error. The other commands generate text, so
    // their advice is about generation settings.
    let done = catch_out_of_memory(GENERATION_SETTINGS, || {
        run_command(cli.command, machine, role)
    });
    done.or_else(|error| match interrupt::signal() {
        Some(signal) if error.is_stop() => Err(Error::BySignal {
            signal,
            source: Box::new(error),
        }),
        _ if matches!(error, Error::ReaderGone) => Ok(()),
        _ => Err(error),
    })
}

fn run_command(command: Command, machine: MachineArgs, role: Role) -> Result<(), Error> {
    let device_option = DeviceOption {
        device: machine.device,
    };
    match command {
        Command::Init(args) => init::run(&args),
        Command::Inspect(on) => inspect::run(&on.args, &device_option),
        Command::Plan(on) => plan::run(&on.args, &device_option),
        Command::Train(on) => train::run(&on.args, role, &device_option),
        Command::Eval(on) => evaluate::run(&on.args, &device_option),
        Command::Generate(on) => generate::run(&on.args, &device_option),
        Command::Structure(on) => structure::run(&on.args, &device_option),
        Command::Chat(on) => chat::run(&on.args, &device_option),
        Command::Score(on) => score::run(on.args, &device_option),
        Command::Select(on) => select::run(on.args, &device_option),
        Command::Compare(args) => compare::run(&args),
        Command::Report(on) => report::run(&on.args, &device_option),
        Command::Export(args) => export::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Verify(on) => verify::run(&on.args, &device_option),
        Command::Data(DataCommand::Synth(SynthCommand::Slot(args))) => data::synth_slot(&args),
        Command::Data(DataCommand::Synth(SynthCommand::Goat(args))) => data::synth_goat(&args),
        Command::Data(DataCommand::Synth(SynthCommand::Toolqa(args))) => {
            data::tool_questions::synth(&args)
        }
        Command::Data(DataCommand::Slot(on)) => data::slot::run(&on.args, &device_option),
        Command::Data(DataCommand::Goat(DataGoatCommand::Make(on))) => {
            data::goat::run(&on.args, &device_option)
        }
        Command::Data(DataCommand::Goat(DataGoatCommand::Rows(command))) => {
            data::goat_review::run(&command)
        }
        Command::Data(DataCommand::Import(args)) => data::import(&args),
        Command::Data(DataCommand::Graph(on)) => data::graph::graph(&on.args, &device_option),
        Command::Data(DataCommand::Pairs(args)) => data::graph::pairs(&args),
        Command::Data(DataCommand::Convert(args)) => data::files::convert(&args),
        Command::Data(DataCommand::Cache(args)) => data::files::cache(&args),
        Command::Data(DataCommand::Stats(args)) => data::stats::run(&args),
        Command::Data(DataCommand::Flatten(args)) => data::shapes::flatten(&args),
        Command::Data(DataCommand::Unflatten(args)) => data::shapes::unflatten(&args),
        Command::Data(DataCommand::Reduce(args)) => data::shapes::reduce_outputs(&args),
        Command::Doctor(on) => doctor::run(&on.args, role, &device_option),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args),
        Command::Schema => {
            let schema = serde_json::to_string_pretty(&config::json_schema());
            print_result(&schema.map_err(|error| Error::Usage(error.to_string()))?)
        }
    }
}

/// The `--device` option, which overrides the config.
#[derive(Debug)]
struct DeviceOption {
    device: Option<String>,
}

impl DeviceOption {
    fn name(&self, configured: config::Device) -> Result<config::Device, Error> {
        let Some(text) = &self.device else {
            return Ok(configured);
        };
        config::Device::parse(text).ok_or_else(|| {
            Error::Usage(format!("--device {text}: expected cpu, cuda or cuda:INDEX"))
        })
    }

    fn open(&self, configured: config::Device) -> Result<Device, Error> {
        device::open(self.name(configured)?)
    }
}

/// Loads the config, and checks that its files exist and that the run folder is usable.
fn load_config(args: &ConfigArgs) -> Result<Config, Error> {
    let loaded = LoadedConfig::load_with_files(&args.config, &args.overrides)?;
    for line in loaded.contradictions() {
        eprint_line(&line)?;
    }
    reading_report::say_detected_format(&loaded)?;
    Ok(loaded.config)
}

/// Runs `work` with a generation progress bar until a signal stops it.
fn with_interruptible_progress<R>(
    work: impl FnOnce(&mut dyn FnMut(GenerationProgress) -> bool) -> Result<Option<R>, Error>,
) -> Result<R, Error> {
    // Handle signals only from the first completion on: while a model loads, there is nothing to
    // save.
    with_progress_under(None, work)??.ok_or(Error::Stopped)
}

/// Runs `work` with a progress bar. After a signal, the callback returns false, and the requests
/// that were still pending are reported.
fn with_progress<R>(
    work: impl FnOnce(&mut dyn FnMut(GenerationProgress) -> bool) -> R,
) -> Result<R, Error> {
    with_progress_under(Some(Interrupt::begin()), work)
}

/// Like [`with_progress`]. If `interrupt` is `None`, signals are handled from the first completion
/// on.
fn with_progress_under<R>(
    mut interrupt: Option<Interrupt>,
    work: impl FnOnce(&mut dyn FnMut(GenerationProgress) -> bool) -> R,
) -> Result<R, Error> {
    let mut progress = Progress::begin();
    let result = work(&mut |state| {
        progress.show(state);
        !interrupt.get_or_insert_with(Interrupt::begin).is_set()
    });
    progress.finish();
    let is_set = interrupt.is_some_and(|interrupt| interrupt.is_set());
    if let Some(waiting) = progress.waiting().filter(|_| is_set) {
        eprint_line(&format!("stopped by a signal: {waiting} abandoned"))?;
    }
    Ok(result)
}

/// Prints a line, wrapped if the output is a terminal.
fn say(text: &str) -> Result<(), Error> {
    print_line(&fitting_text(text, &std::io::stdout()))
}

/// Prints a line with control characters escaped; ignores a closed output.
fn print_line(text: &str) -> Result<(), Error> {
    print_exactly(&printable::lines(text))
}

/// Prints a machine-readable result unchanged, but on a terminal like [`print_line`].
fn print_result(text: &str) -> Result<(), Error> {
    match std::io::stdout().is_terminal() {
        true => print_line(text),
        false => print_exactly(text),
    }
}

fn print_exactly(text: &str) -> Result<(), Error> {
    match write_between_bars(|| writeln!(std::io::stdout(), "{text}")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io(Path::new("standard output"), "write")(error))
        }
        _ => Ok(()),
    }
}

/// Writes bytes to standard output unchanged and flushes them.
///
/// # Errors
///
/// [`Error::ReaderGone`] if the reader closed the output; the command then ends without a message.
fn write_stdout(bytes: &[u8]) -> Result<(), Error> {
    write_flushed(&mut std::io::stdout(), bytes)
}

/// Like [`write_stdout`], but writes to `output`.
fn write_flushed(output: &mut impl Write, bytes: &[u8]) -> Result<(), Error> {
    let written = output.write_all(bytes).and_then(|()| output.flush());
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Error::ReaderGone,
        _ => Error::io(Path::new("standard output"), "write")(error),
    })
}

/// Prints a message that is not part of the result to standard error. A full disk is not an error.
fn eprint_line(text: &str) -> Result<(), Error> {
    use std::io::ErrorKind::{BrokenPipe, StorageFull};
    let text = printable::lines(text);
    let text = fitting_text(&text, &std::io::stderr());
    match write_between_bars(|| writeln!(std::io::stderr(), "{text}")) {
        Err(error) if !matches!(error.kind(), BrokenPipe | StorageFull) => {
            Err(Error::io(Path::new("standard error"), "write")(error))
        }
        _ => Ok(()),
    }
}

/// A table without borders, as wide as the terminal.
fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(columns()).unwrap_or(u16::MAX));
    }
    table
}
