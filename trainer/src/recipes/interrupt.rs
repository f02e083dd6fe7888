//! SIGTERM and SIGINT to a flag that every long loop looks at.
//!
//! The first signal asks for a save; a second one ends the process at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::Error;

/// Whether a signal has asked the run to end.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    /// The signal's number; 0 before one comes.
    signal: Arc<AtomicUsize>,
}

/// A process has its signals once, and everyone who listens looks at the same flag.
static LISTENING: Mutex<Option<Interrupt>> = Mutex::new(None);

/// The number of the signal that has asked for the end; nothing before.
pub fn signal() -> Option<i32> {
    let listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    let number = listening.as_ref()?.signal.load(Ordering::Relaxed);
    i32::try_from(number).ok().filter(|number| *number > 0)
}

impl Interrupt {
    /// Listens to SIGTERM and SIGINT from now on.
    ///
    /// # Errors
    ///
    /// The system refuses the handlers.
    pub fn listen() -> Result<Self, Error> {
        let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(interrupt) = &*listening {
            return Ok(interrupt.clone());
        }
        let interrupt = Self::default();
        for signal in [SIGTERM, SIGINT] {
            // Registered in this order: the second signal finds the flag set and exits.
            let (flag, number) = (&interrupt.is_set, &interrupt.signal);
            let value = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone())
                .and_then(|_| signal_hook::flag::register_usize(signal, number.clone(), value))
                .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
                .map_err(|error| Error::Usage(format!("cannot listen to signals: {error}")))?;
        }
        *listening = Some(interrupt.clone());
        Ok(interrupt)
    }

    /// Whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// The flag itself, for what waits below this crate.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_set.clone()
    }
}
