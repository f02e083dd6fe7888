//! Where the time of some steps goes: a table of operations, and a trace for Perfetto or Chrome.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_kernels::profile::{self, TARGET};
use tooltune_kernels::{instruction_set, is_cpu};
use tracing::dispatcher::{self, DefaultGuard, Dispatch};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::error::Error;
use crate::log::log_layer;
use crate::progress::counted;

/// The folder of a run that a profile lies in.
const PROFILE_DIR: &str = "profile";

/// What an operation took.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    calls: u64,
    /// From its begins to its ends.
    whole: Duration,
    /// The same without the operations within it.
    own: Duration,
}

type Table = BTreeMap<String, Taken>;

/// Profiles some steps of a run; the first one, which compiles and fills caches, is not among them.
#[derive(Debug)]
pub struct ProfiledSteps {
    dir: PathBuf,
    device: Device,
    /// Steps that are to be profiled; 0 for none.
    n_steps: u64,
    /// Steps that this process has taken.
    taken: u64,
    running: Option<Running>,
    done: Option<Profile>,
}

/// A profile that is being made.
struct Running {
    first_step: u64,
    table: Arc<Mutex<Table>>,
    trace: Written,
    /// What ends it, in this order.
    subscriber: DefaultGuard,
    flush: FlushGuard,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("first_step", &self.first_step)
            .finish_non_exhaustive()
    }
}

/// Files of a profile that is done.
#[derive(Debug)]
pub struct Profile {
    /// Its steps.
    pub steps: std::ops::RangeInclusive<u64>,
    /// The table of operations, Markdown.
    pub table: PathBuf,
    /// The trace, JSON of Chrome's form.
    pub trace: PathBuf,
}

impl ProfiledSteps {
    /// Of a run in `run_dir`, so many steps; 0 for none.
    pub fn new(run_dir: &Path, n_steps: u64, device: &Device) -> Self {
        Self {
            dir: run_dir.join(PROFILE_DIR),
            device: device.clone(),
            n_steps,
            taken: 0,
            running: None,
            done: None,
        }
    }

    /// Before step `step`.
    pub fn before(&mut self, step: u64) {
        self.taken += 1;
        if self.taken == 2 && self.n_steps > 0 {
            self.running = Some(Running::begin(step, &self.device));
        }
    }

    /// Behind step `step`; writes the profile when it was the last one of it.
    ///
    /// # Errors
    ///
    /// Files that cannot be written.
    pub fn behind(&mut self, step: u64) -> Result<(), Error> {
        if self.taken > self.n_steps {
            self.write(step)?;
        }
        Ok(())
    }

    /// The profile, after step `step` as the last one; `None` if there were no two steps.
    ///
    /// # Errors
    ///
    /// Files that cannot be written.
    pub fn end(mut self, step: u64) -> Result<Option<Profile>, Error> {
        self.write(step)?;
        Ok(self.done.take())
    }

    fn write(&mut self, step: u64) -> Result<(), Error> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        let steps = running.first_step..=step;
        let (table, trace) = running.end();
        std::fs::create_dir_all(&self.dir).map_err(Error::io(&self.dir, "create"))?;
        let profile = Profile {
            steps,
            table: self.dir.join("operations.md"),
            trace: self.dir.join("trace.json"),
        };
        let text = self.page(&table, &profile);
        write_atomic(&profile.table, text.as_bytes())?;
        write_atomic(&profile.trace, &trace)?;
        self.done = Some(profile);
        Ok(())
    }

    fn page(&self, table: &Table, profile: &Profile) -> String {
        let (first, last) = (*profile.steps.start(), *profile.steps.end());
        let n = (last - first + 1) as f64;
        let on = if is_cpu(&self.device) {
            let threads = counted(rayon::current_num_threads(), "thread");
            format!("the processor ({}), {threads}", instruction_set())
        } else {
            "a GPU, for which each operation waits, so that steps take longer than without a \
             profile"
                .to_owned()
        };
        let mut text = format!(
            "# Profile of steps {first} to {last}\n\n\
             On {on}. `own` is the time of an operation without those within it, `whole` with \
             them; each is a mean over the steps. `trace.json` beside this file opens in \
             ui.perfetto.dev or chrome://tracing.\n\n\
             | operation | calls a step | own, ms a step | share | whole, ms a step |\n\
             |---|--:|--:|--:|--:|\n"
        );
        let all: Duration = table.values().map(|taken| taken.own).sum();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3 / n;
        let mut rows: Vec<(&String, &Taken)> = table.iter().collect();
        rows.sort_by_key(|(name, taken)| (std::cmp::Reverse(taken.own), *name));
        for (name, taken) in rows {
            let share = 100.0 * taken.own.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE);
            // Writing to a text cannot fail.
            let _ = writeln!(
                text,
                "| {name} | {:.1} | {:.2} | {share:.1} % | {:.2} |",
                taken.calls as f64 / n,
                milliseconds(taken.own),
                milliseconds(taken.whole),
            );
        }
        let _ = writeln!(text, "| all | | {:.2} | 100 % | |", milliseconds(all));
        text
    }
}

impl Running {
    fn begin(first_step: u64, device: &Device) -> Self {
        let trace = Written::default();
        let table = Arc::new(Mutex::new(Table::new()));
        let (chrome, flush) = ChromeLayerBuilder::new()
            .writer(trace.clone())
            .include_args(true)
            .include_locations(false)
            .build();
        let operations = Operations {
            table: table.clone(),
        };
        let subscriber = Registry::default()
            .with(operations.with_filter(of_operations()))
            .with(chrome.with_filter(of_operations()))
            .with(log_layer());
        let subscriber = dispatcher::set_default(&Dispatch::new(subscriber));
        profile::begin(device);
        Self {
            first_step,
            table,
            trace,
            subscriber,
            flush,
        }
    }

    /// The table, and the text of the trace.
    fn end(self) -> (Table, Vec<u8>) {
        profile::end();
        drop(self.subscriber);
        // Waits until all is written.
        drop(self.flush);
        let table = std::mem::take(&mut *locked(&self.table));
        let trace = std::mem::take(&mut *locked(&self.trace.0));
        (table, trace)
    }
}

impl Drop for ProfiledSteps {
    fn drop(&mut self) {
        if self.running.is_some() {
            profile::end();
        }
    }
}

/// Spans of operations alone.
fn of_operations() -> FilterFn<fn(&Metadata<'_>) -> bool> {
    let is_operation: fn(&Metadata<'_>) -> bool = |of| of.target() == TARGET;
    filter_fn(is_operation).with_max_level_hint(LevelFilter::TRACE)
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that are written from another thread.
#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        locked(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds up what operations take.
#[derive(Debug)]
struct Operations {
    table: Arc<Mutex<Table>>,
}

/// An operation that is under way.
#[derive(Debug)]
struct UnderWay {
    name: String,
    started: Instant,
    /// What the operations within it took.
    within: Duration,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Operations {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut name = attributes.metadata().name().to_owned();
        attributes.record(&mut Shape(&mut name));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(UnderWay {
                name,
                started: Instant::now(),
                within: Duration::ZERO,
            });
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let Some(operation) = span.extensions_mut().remove::<UnderWay>() else {
            return;
        };
        let whole = operation.started.elapsed();
        if let Some(parent) = span.parent()
            && let Some(parent) = parent.extensions_mut().get_mut::<UnderWay>()
        {
            parent.within += whole;
        }
        let mut table = locked(&self.table);
        let taken = table.entry(operation.name).or_default();
        taken.calls += 1;
        taken.whole += whole;
        taken.own += whole.saturating_sub(operation.within);
    }
}

/// Adds the shape of an operation to its name.
struct Shape<'a>(&'a mut String);

impl Visit for Shape<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {value:?}");
    }
}
