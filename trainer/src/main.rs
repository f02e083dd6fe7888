//! Parses the command line, runs the command, and turns its error into an exit status.

use std::io::{IsTerminal, Write as _};
use std::process::ExitCode;

use tooltune::cli::Cli;

use tooltune::config::Colors;
use tooltune::eval::suites::code::SANDBOX_STAGE;

use tooltune::{Error, commands, process};
use tooltune_json::printable;
use tooltune_kernels::cpu::malloc_tuning::{self, ReportingAllocator};
use tooltune_kernels::mpi;
use tooltune_terminal::{fitting_text, log_layer, with_colors_only};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Stack size of the command thread, independent of `ulimit -s`: four times the default size of the
/// main thread. Pages are allocated only when they are used.
const STACK_BYTES: usize = 32 << 20;

/// Exit status after a failed memory allocation.
const NO_MEMORY: u8 = 4;

#[global_allocator]
static HEAP: ReportingAllocator = ReportingAllocator;

fn main() -> ExitCode {
    // A sandbox stage must be single-threaded, so enter it before any thread starts, and without
    // clap.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == SANDBOX_STAGE) {
        return tooltune_sandbox::enter(arguments);
    }
    malloc_tuning::set_exit_status(NO_MEMORY);
    let command = std::thread::Builder::new()
        .name("command".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(run);
    let status = match command.map(std::thread::JoinHandle::join) {
        Ok(Ok(status)) => status,
        // The panic hook has already printed the message.
        Ok(Err(_)) => 101,
        Err(error) => {
            print_failure(&format!("cannot start the command thread: {error}"));
            1
        }
    };
    let _ = std::io::stdout().flush();
    mpi::end_process_if_running(status);
    ExitCode::from(status)
}

/// Runs the command, and returns the exit status.
fn run() -> u8 {
    tracing_subscriber::registry().with(log_layer()).init();
    process::handle_file_limit_signal();
    match commands::run(Cli::from_env()) {
        Ok(()) => 0,
        Err(error) => {
            report(&error);
            error.exit_code()
        }
    }
}

/// Prints the error of a failed command. If it cannot be written, for example on a full disk, only
/// the exit status reports the failure.
fn print_failure(message: &str) {
    let mut stderr = std::io::stderr();
    let text = match process::exceeded_limits(message) {
        Some(limits) => format!("tooltune: {message}; {limits}"),
        None => format!("tooltune: {message}"),
    };
    let text = printable::lines(&text);
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
            let _ = write!(stderr, "{}", with_colors_only(&error.render(colors)));
        }
        other => print_failure(&other.to_string()),
    }
}
