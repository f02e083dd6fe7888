//! What each verb does: options in, library calls, text out.
//!
//! Only this module and `main` write to the terminal.
#![allow(
    clippy::print_stdout,
    reason = "the commands are what speaks to the user"
)]

mod asked;
mod chat;
mod compare;
mod data;
mod data_files;
mod data_goat;
mod data_graph;
mod data_shapes;
mod data_slot;
mod data_stats;
mod evaluate;
mod export;
mod fetch;
mod generate;
mod goat_review;
mod init;
mod inspect;
mod machine;
mod manual;
mod measured_loss;
mod model_card;
mod pipelines;
mod plan;
mod reading;
mod report;
mod score;
mod select;
mod setup;
mod structure;
mod target;
mod train;
mod verify;

use std::io::{IsTerminal, Write};
use std::path::Path;

use burn::tensor::Device;
use comfy_table::{ContentArrangement, Table, presets};

use crate::cli::{
    Cli, Command, ConfigArgs, DataCommand, DataGoatCommand, MachineArgs, SynthCommand,
};
use crate::config::{self, Config, LoadedConfig};
use crate::device;
use crate::error::Error;
use crate::eval::generate::GenerationProgress;
use crate::interrupt::{self, Interrupt};
use crate::out_of_memory::{GENERATION_SETTINGS, caught};
use crate::progress::{Progress, between_bars, columns, counted, fitting_text};

/// Runs one command to its end.
///
/// # Errors
///
/// Whatever ended it; [`Error::exit_code`] is the process's status.
pub fn run(cli: Cli) -> Result<(), Error> {
    interrupt::listen()?;
    let machine = cli.command.machine().cloned().unwrap_or_default();
    device::start_threads(machine.threads)?;
    // Training says more of it by itself; what else computes generates.
    let done = caught(GENERATION_SETTINGS, || run_command(cli.command, machine));
    done.map_err(|error| match interrupt::signal() {
        Some(signal) if error.is_stop() => Error::BySignal {
            signal,
            source: Box::new(error),
        },
        _ => error,
    })
}

fn run_command(command: Command, machine: MachineArgs) -> Result<(), Error> {
    let place = DeviceOption {
        device: machine.device,
    };
    match command {
        Command::Init(args) => init::run(&args),
        Command::Inspect(on) => inspect::run(&on.args, &place),
        Command::Plan(on) => plan::run(&on.args, &place),
        Command::Train(on) => train::run(&on.args, &place),
        Command::Eval(on) => evaluate::run(&on.args, &place),
        Command::Generate(on) => generate::run(&on.args, &place),
        Command::Structure(on) => structure::run(&on.args, &place),
        Command::Chat(on) => chat::run(&on.args, &place),
        Command::Score(on) => score::run(on.args, &place),
        Command::Select(on) => select::run(on.args, &place),
        Command::Compare(args) => compare::run(&args),
        Command::Report(on) => report::run(&on.args, &place),
        Command::Export(args) => export::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Verify(on) => verify::run(&on.args, &place),
        Command::Data(DataCommand::Synth(SynthCommand::Slot(args))) => data::synth_slot(&args),
        Command::Data(DataCommand::Synth(SynthCommand::Goat(args))) => data::synth_goat(&args),
        Command::Data(DataCommand::Slot(on)) => data_slot::run(&on.args, &place),
        Command::Data(DataCommand::Goat(DataGoatCommand::Make(on))) => {
            data_goat::run(&on.args, &place)
        }
        Command::Data(DataCommand::Goat(DataGoatCommand::Rows(command))) => {
            goat_review::run(&command)
        }
        Command::Data(DataCommand::Import(args)) => data::import(&args),
        Command::Data(DataCommand::Graph(on)) => data_graph::graph(&on.args, &place),
        Command::Data(DataCommand::Pairs(args)) => data_graph::pairs(&args),
        Command::Data(DataCommand::Convert(args)) => data_files::convert(&args),
        Command::Data(DataCommand::Cache(args)) => data_files::cache(&args),
        Command::Data(DataCommand::Stats(args)) => data_stats::run(&args),
        Command::Data(DataCommand::Flatten(args)) => data_shapes::flatten(&args),
        Command::Data(DataCommand::Unflatten(args)) => data_shapes::unflatten(&args),
        Command::Data(DataCommand::Reduce(args)) => data_shapes::reduce_outputs(&args),
        Command::Doctor(on) => machine::doctor(&on.args, &place),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::pages(&args),
        Command::Schema => {
            let schema = serde_json::to_string_pretty(&config::json_schema());
            print_line(&schema.map_err(|error| Error::Usage(error.to_string()))?)
        }
    }
}

/// The device of the command line, which wins over the config's.
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

/// Reads the config and checks that its files exist and that its run has a place.
fn load_config(args: &ConfigArgs) -> Result<Config, Error> {
    let loaded = LoadedConfig::load_with_files(&args.config, &args.overrides)?;
    for line in loaded.contradictions() {
        eprint_line(&line)?;
    }
    reading::say_recognised(&loaded)?;
    Ok(loaded.config)
}

/// Lets `work` generate with a progress bar, until a signal ends it.
fn watched<R>(
    work: impl FnOnce(&mut dyn FnMut(GenerationProgress) -> bool) -> Result<Option<R>, Error>,
) -> Result<R, Error> {
    // From the first text on: while a model is loaded, there is nothing to keep and to tell.
    watching_under(None, work)??.ok_or(Error::Stopped)
}

/// Runs `work` with a progress bar and tells it when a signal asks for its end;
/// what it waited for then is said.
fn watching<R>(
    work: impl FnOnce(&mut dyn FnMut(GenerationProgress) -> bool) -> R,
) -> Result<R, Error> {
    watching_under(Some(Interrupt::begin()), work)
}

/// The same, where signals may be looked at from the first text on only.
fn watching_under<R>(
    mut interrupt: Option<Interrupt>,
    work: impl FnOnce(&mut dyn FnMut(GenerationProgress) -> bool) -> R,
) -> Result<R, Error> {
    let mut progress = Progress::begin();
    let found = work(&mut |state| {
        progress.generated(state);
        !interrupt.get_or_insert_with(Interrupt::begin).is_set()
    });
    progress.finish();
    let is_set = interrupt.is_some_and(|interrupt| interrupt.is_set());
    if let Some(waiting) = progress.waiting().filter(|_| is_set) {
        eprint_line(&format!("a signal ends the work: {waiting} given up"))?;
    }
    Ok(found)
}

/// Prints what is not for programs: on a terminal in lines that fit.
fn say(text: &str) -> Result<(), Error> {
    print_line(&fitting_text(text, &std::io::stdout()))
}

/// Prints a line; a reader that has gone away is no error.
fn print_line(text: &str) -> Result<(), Error> {
    match between_bars(|| writeln!(std::io::stdout(), "{text}")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io(Path::new("standard output"), "write")(error))
        }
        _ => Ok(()),
    }
}

/// What is not the result, where the result may go to the same terminal; a full disk below it is no
/// error either.
fn eprint_line(text: &str) -> Result<(), Error> {
    use std::io::ErrorKind::{BrokenPipe, StorageFull};
    let text = fitting_text(text, &std::io::stderr());
    match between_bars(|| writeln!(std::io::stderr(), "{text}")) {
        Err(error) if !matches!(error.kind(), BrokenPipe | StorageFull) => {
            Err(Error::io(Path::new("standard error"), "write")(error))
        }
        _ => Ok(()),
    }
}

/// A table without lines, on a terminal as wide as that.
fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(columns()).unwrap_or(u16::MAX));
    }
    table
}
