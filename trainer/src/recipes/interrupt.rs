//! SIGTERM and SIGINT to a flag that every long loop looks at.
//!
//! The first signal asks for a save; a second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::Error;

/// Whether a signal has asked the run to end.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to SIGTERM and SIGINT from now on.
    ///
    /// # Errors
    ///
    /// The system refuses the handlers.
    pub fn listen() -> Result<Self, Error> {
        let interrupt = Self::default();
        for signal in [SIGTERM, SIGINT] {
            // Registered in this order: the second signal finds the flag set and exits.
            let flag = &interrupt.0;
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .map_err(|error| Error::Usage(format!("cannot listen to signals: {error}")))?;
        }
        Ok(interrupt)
    }

    /// Whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
