//! SIGTERM and SIGINT: the end at once, or, where a loop has something to save, a flag that it looks at.
//!
//! A signal ends the program at once, with 128 and its number, wherever that loses nothing: while
//! files are read, rows prepared, a model loaded, before the first step of a run. Handlers do so and
//! not the system's default, because the first process of a container has no default.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Arriving;

use crate::error::Error;
use crate::progress;

/// What the handlers read and set; a process has its signals once.
#[derive(Debug)]
struct Signals {
    /// Whether the next signal ends the program.
    ends_at_once: Arc<AtomicBool>,
    /// Whether a signal has come that did not.
    has_come: Arc<AtomicBool>,
    /// Its number; 0 before one comes.
    number: Arc<AtomicUsize>,
}

static SIGNALS: LazyLock<Signals> = LazyLock::new(|| Signals {
    ends_at_once: Arc::new(AtomicBool::new(true)),
    has_come: Arc::default(),
    number: Arc::default(),
});

/// Listens to SIGTERM and SIGINT, which end the program at once from now on.
///
/// # Errors
///
/// The system refuses the handlers.
pub fn listen() -> Result<(), Error> {
    static LISTENING: Once = Once::new();
    let mut listening = Ok(());
    LISTENING.call_once(|| listening = register());
    listening.map_err(|error| Error::Usage(format!("cannot listen to signals: {error}")))
}

fn register() -> std::io::Result<()> {
    let signals = &*SIGNALS;
    for signal in [SIGTERM, SIGINT] {
        let number = usize::try_from(signal).unwrap_or_default();
        // Called in this order: the second signal finds set what the first one has set.
        let ends = &signals.ends_at_once;
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, ends.clone())?;
        signal_hook::flag::register(signal, ends.clone())?;
        signal_hook::flag::register_usize(signal, signals.number.clone(), number)?;
        signal_hook::flag::register(signal, signals.has_come.clone())?;
    }
    Ok(())
}

/// The number of the signal that has asked for the end; nothing before.
pub fn signal() -> Option<i32> {
    let number = SIGNALS.number.load(Ordering::Relaxed);
    i32::try_from(number).ok().filter(|number| *number > 0)
}

/// The flag that a signal sets which does not end the program, for what waits below this crate.
pub fn flag() -> Arc<AtomicBool> {
    SIGNALS.has_come.clone()
}

/// While it lives, the first signal asks for the end in order, and a second one ends the program at
/// once.
#[derive(Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Begins to look at signals instead of ending at once. One that came under an earlier look
    /// still asks for the end. The first signal is answered on the terminal when it comes.
    pub fn begin() -> Self {
        static ANSWERING: Once = Once::new();
        ANSWERING.call_once(answer_signals);
        let interrupt = Self(());
        SIGNALS
            .ends_at_once
            .store(interrupt.is_set(), Ordering::Relaxed);
        interrupt
    }

    /// Whether a signal has come, which counts as answered from now on: the work that it ended goes on
    /// with something else.
    pub fn take(&self) -> bool {
        SIGNALS.number.store(0, Ordering::Relaxed);
        SIGNALS.ends_at_once.store(false, Ordering::Relaxed);
        SIGNALS.has_come.swap(false, Ordering::Relaxed)
    }

    /// Whether a signal has come.
    pub fn is_set(&self) -> bool {
        SIGNALS.has_come.load(Ordering::Relaxed)
    }
}

/// Says at once that a signal has come, whatever the other threads are in the middle of. Without a
/// thread for that, the work ends in order all the same and says so at its end.
fn answer_signals() {
    let Ok(mut arriving) = Arriving::new([SIGINT, SIGTERM]) else {
        return;
    };
    let answer = move || {
        if let Some(signal) = arriving.forever().next() {
            let name = match signal {
                SIGTERM => "SIGTERM",
                _ => "SIGINT",
            };
            progress::print(&format!(
                "{name}: stopping at the next safe point; a second one ends the program at once"
            ));
        }
    };
    let name = "signals".to_owned();
    let _ = std::thread::Builder::new().name(name).spawn(answer);
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        SIGNALS.ends_at_once.store(true, Ordering::Relaxed);
    }
}
