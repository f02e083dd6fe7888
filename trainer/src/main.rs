//! Parses the command line, runs the command, and turns its error into an exit status.

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use tooltune::cli::Cli;
use tooltune::config::Colors;
use tooltune::eval::suites::code::SANDBOX_STAGE;
use tooltune::log::log_layer;
use tooltune::progress::fitting_text;
use tooltune::{Error, commands, process};
use tooltune_kernels::cpu::malloc_tuning::{self, TellingHeap};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Bytes of the stack that commands run on, whatever `ulimit -s` says: four times what most systems
/// give the first thread, and taken only as far as it is used.
const STACK_BYTES: usize = 32 << 20;

/// The status of a program that memory was refused to.
const NO_MEMORY: u8 = 4;

#[global_allocator]
static HEAP: TellingHeap = TellingHeap;

fn main() -> ExitCode {
    // A stage of the sandbox must be alone in its process: before any thread, and without clap.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == SANDBOX_STAGE) {
        return tooltune_sandbox::enter(arguments);
    }
    malloc_tuning::end_with(NO_MEMORY);
    let command = std::thread::Builder::new()
        .name("command".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(run);
    match command.map(std::thread::JoinHandle::join) {
        Ok(Ok(status)) => status,
        // The panic has said what it had to say.
        Ok(Err(_)) => ExitCode::from(101),
        Err(error) => {
            print_failure(&format!("no thread for the command: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> ExitCode {
    tracing_subscriber::registry().with(log_layer()).init();
    process::survive_file_limit();
    match commands::run(Cli::of_process()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// The last word of a command that failed. Where it cannot be written, on a full disk for one, the
/// status says it.
fn print_failure(message: &str) {
    let mut stderr = std::io::stderr();
    let text = match process::limits_behind(message) {
        Some(limits) => format!("tooltune: {message}; {limits}"),
        None => format!("tooltune: {message}"),
    };
    let _ = writeln!(stderr, "{}", fitting_text(&text, &stderr));
}

fn report(error: &Error) {
    let mut stderr = std::io::stderr();
    let colors = if stderr.is_terminal() {
        Colors::On
    } else {
        Colors::Off
    };
    match error {
        Error::Config(error) => {
            let _ = write!(stderr, "{}", error.render(colors));
        }
        other => print_failure(&other.to_string()),
    }
}
