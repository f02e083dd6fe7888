//! Where warnings go.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use crate::progress::BetweenBars;

/// Lines of warnings on standard error, as `RUST_LOG` asks for more or fewer.
pub fn log_layer<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt::layer()
        .with_writer(|| BetweenBars)
        // It would be printed to where nothing can be printed, and panic.
        .log_internal_errors(false)
        // Other lines have neither, and 80 columns are few.
        .without_time()
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter)
        .boxed()
}
