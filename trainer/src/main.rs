//! Parses the command line, runs the command, and turns its error into an exit status.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tooltune::cli::Cli;
use tooltune::config::Colors;
use tooltune::eval::code::SANDBOX_STAGE;
use tooltune::{Error, commands};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // A stage of the sandbox must be alone in its process: before any thread, and without clap.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == SANDBOX_STAGE) {
        return tooltune_data::sandbox::enter(arguments);
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match commands::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

#[allow(
    clippy::print_stderr,
    reason = "the last word of a command that failed"
)]
fn report(error: &Error) {
    let colors = if std::io::stderr().is_terminal() {
        Colors::On
    } else {
        Colors::Off
    };
    match error {
        Error::Config(error) => eprint!("{}", error.render(colors)),
        other => eprintln!("tooltune: {other}"),
    }
}
