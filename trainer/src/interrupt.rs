//! Handles SIGTERM and SIGINT: ends the process at once, or sets a flag for loops that have state
//! to save.
//!
//! While there is nothing to save (reading files, preparing rows, loading a model, before the first
//! step), a signal ends the program at once with status 128 plus its number. Handlers do this
//! instead of the default action, because process 1 of a container has no default action.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Arriving;

use crate::error::Error;
use tooltune_terminal as progress;

/// State shared with the signal handlers; one per process.
#[derive(Debug)]
struct Signals {
    /// Whether the next signal ends the program.
    ends_at_once: Arc<AtomicBool>,
    /// Whether a signal has arrived that did not end the program.
    has_arrived: Arc<AtomicBool>,
    /// Signal number; 0 until one arrives.
    number: Arc<AtomicUsize>,
}

static SIGNALS: LazyLock<Signals> = LazyLock::new(|| Signals {
    ends_at_once: Arc::new(AtomicBool::new(true)),
    has_arrived: Arc::default(),
    number: Arc::default(),
});

/// Installs handlers for SIGTERM and SIGINT; from now on these signals end the program at once.
///
/// # Errors
///
/// The system rejects the handlers.
pub fn listen() -> Result<(), Error> {
    static LISTENING: Once = Once::new();
    let mut listening = Ok(());
    LISTENING.call_once(|| listening = register());
    listening.map_err(|error| Error::Usage(format!("cannot install signal handlers: {error}")))
}

fn register() -> std::io::Result<()> {
    let signals = &*SIGNALS;
    for signal in [SIGTERM, SIGINT] {
        let number = usize::try_from(signal).unwrap_or_default();
        // Order matters: the first signal sets the flag that makes the second one end the program.
        let ends = &signals.ends_at_once;
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ends.clone())?;
        signal_hook::flag::register(signal, ends.clone())?;
        signal_hook::flag::register_usize(signal, signals.number.clone(), number)?;
        signal_hook::flag::register(signal, signals.has_arrived.clone())?;
    }
    Ok(())
}

/// Number of the signal that requested a stop, if any.
pub fn signal() -> Option<i32> {
    let number = SIGNALS.number.load(Ordering::Relaxed);
    i32::try_from(number).ok().filter(|number| *number > 0)
}

/// The flag that a signal sets if it does not end the program. Loops in other crates check it.
pub fn flag() -> Arc<AtomicBool> {
    SIGNALS.has_arrived.clone()
}

/// While this value lives, the first signal requests an orderly stop and the second ends the
/// program at once.
#[derive(Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// From now on, a signal sets a flag instead of ending the program at once. A signal that
    /// arrived during an earlier `Interrupt` still counts. A message is printed when the first
    /// signal arrives.
    pub fn begin() -> Self {
        static ANNOUNCING: Once = Once::new();
        ANNOUNCING.call_once(announce_signals);
        let interrupt = Self(());
        SIGNALS
            .ends_at_once
            .store(interrupt.is_set(), Ordering::Relaxed);
        interrupt
    }

    /// Returns whether a signal has arrived, and clears the flag. Use it if the work continues
    /// after the interruption.
    pub fn take(&self) -> bool {
        SIGNALS.number.store(0, Ordering::Relaxed);
        SIGNALS.ends_at_once.store(false, Ordering::Relaxed);
        SIGNALS.has_arrived.swap(false, Ordering::Relaxed)
    }

    /// Whether a signal has arrived.
    pub fn is_set(&self) -> bool {
        SIGNALS.has_arrived.load(Ordering::Relaxed)
    }
}

/// Starts a thread that prints a message as soon as a signal arrives. If the thread cannot start,
/// the work still stops in order and reports the signal at its end.
fn announce_signals() {
    let Ok(mut arriving) = Arriving::new([SIGINT, SIGTERM]) else {
        return;
    };
    let announce = move || {
        if let Some(signal) = arriving.forever().next() {
            let name = match signal {
                SIGTERM => "SIGTERM",
                _ => "SIGINT",
            };
            progress::print(&format!(
                "{name}: stopping at the next safe point; send it again to quit immediately"
            ));
        }
    };
    let name = "signals".to_owned();
    let _ = std::thread::Builder::new().name(name).spawn(announce);
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        SIGNALS.ends_at_once.store(true, Ordering::Relaxed);
    }
}
