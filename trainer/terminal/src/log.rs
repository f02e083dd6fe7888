//! Prints warnings on standard error.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use crate::BetweenBars;

/// A log layer that prints warnings on standard error. `RUST_LOG` sets the level.
pub fn log_layer<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt::layer()
        .with_writer(|| BetweenBars)
        // An internal error would be printed to the same failing output, and panic.
        .log_internal_errors(false)
        // Time and target are left out as in all other output; lines have only 80 columns.
        .without_time()
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter)
        .boxed()
}
