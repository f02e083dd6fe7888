//! Profiles training steps: a table of operations, and a trace for Perfetto or Chrome.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use tooltune_disk::atomic::write_atomic;
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
use tooltune_terminal::{count_noun, log_layer};

/// Subfolder of the run directory for the profile.
const PROFILE_DIR: &str = "profile";

/// Calls and time of an operation.
#[derive(Debug, Clone, Copy, Default)]
struct OperationTime {
    calls: u64,
    /// Total time, including nested operations.
    total: Duration,
    /// Time without nested operations.
    own: Duration,
}

type Table = BTreeMap<String, OperationTime>;

impl OperationTime {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.total += other.total;
        self.own += other.own;
    }
}

/// Profiles steps of a run. It starts with the second step, because the first one compiles kernels
/// and fills caches.
#[derive(Debug)]
pub struct ProfiledSteps {
    dir: PathBuf,
    device: Device,
    /// Number of steps to profile; 0 disables profiling.
    n_steps: u64,
    /// Number of steps run by this process.
    steps_run: u64,
    running: Option<Running>,
    done: Option<Profile>,
}

/// A profile in progress.
struct Running {
    first_step: u64,
    /// Operations of completed steps.
    done: Table,
    last_step: Option<u64>,
    /// Operations of the current step.
    table: Arc<Mutex<Table>>,
    trace: SharedBuffer,
    /// Collects the operations. It must be dropped before `flush`, which then writes the trace.
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

/// Files of a completed profile.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Profiled steps.
    pub steps: std::ops::RangeInclusive<u64>,
    /// Markdown table of operations.
    pub table: PathBuf,
    /// Trace in Chrome's JSON format.
    pub trace: PathBuf,
}

impl ProfiledSteps {
    /// Profiles `n_steps` steps of the run in `run_dir`; 0 disables profiling.
    pub fn new(run_dir: &Path, n_steps: u64, device: &Device) -> Self {
        Self {
            dir: run_dir.join(PROFILE_DIR),
            device: device.clone(),
            n_steps,
            steps_run: 0,
            running: None,
            done: None,
        }
    }

    /// Starts profiling if due. Call it before every step.
    pub fn start_step(&mut self, step: u64) {
        self.steps_run += 1;
        if self.steps_run == 2 && self.n_steps > 0 {
            self.running = Some(Running::start(step, &self.device));
        }
    }

    /// Call it after every step. Writes the profile after the last profiled step.
    pub fn end_step(&mut self, step: u64) {
        if let Some(running) = &mut self.running {
            running.take(step);
        }
        if self.steps_run > self.n_steps {
            self.write();
        }
    }

    /// Ends profiling and returns the profile. Returns `None` if the run had fewer than two steps,
    /// or after a warning if the profile could not be written.
    pub fn end(mut self) -> Option<Profile> {
        self.write();
        self.done.take()
    }

    /// Writes the profile. A failure is only a warning, because the run must continue.
    fn write(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        let (first, last) = (running.first_step, running.last_step);
        let (table, trace) = running.end();
        let Some(last) = last else {
            return;
        };
        let profile = Profile {
            steps: first..=last,
            table: self.dir.join("operations.md"),
            trace: self.dir.join("trace.json"),
        };
        match self.write_files(&profile, &table, &trace) {
            Ok(()) => self.done = Some(profile),
            Err(error) => tracing::warn!("cannot write the profile: {error}"),
        }
    }

    fn write_files(&self, profile: &Profile, table: &Table, trace: &[u8]) -> Result<(), Error> {
        std::fs::create_dir_all(&self.dir).map_err(Error::io(&self.dir, "create"))?;
        write_atomic(&profile.table, self.page(table, profile).as_bytes())?;
        Ok(write_atomic(&profile.trace, trace)?)
    }

    fn page(&self, table: &Table, profile: &Profile) -> String {
        let (first, last) = (*profile.steps.start(), *profile.steps.end());
        let n = (last - first + 1) as f64;
        let on = if is_cpu(&self.device) {
            let threads = count_noun(rayon::current_num_threads(), "thread");
            format!("the CPU ({}), {threads}", instruction_set())
        } else {
            "a GPU, synchronized after each operation, so steps take longer than without a \
             profile"
                .to_owned()
        };
        let mut text = format!(
            "# Profile of steps {first} to {last}\n\n\
             Measured on {on}. `own` is the time of an operation without nested operations, \
             `whole` includes them; both are means over the steps. A step includes the evaluation \
             and checkpoint that follow it, with their operations. Open `trace.json` in this \
             folder with ui.perfetto.dev or chrome://tracing.\n\n\
             | operation | calls per step | own, ms per step | share | whole, ms per step |\n\
             |---|--:|--:|--:|--:|\n"
        );
        let all: Duration = table.values().map(|time| time.own).sum();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3 / n;
        let mut rows: Vec<(&String, &OperationTime)> = table.iter().collect();
        rows.sort_by_key(|(name, time)| (std::cmp::Reverse(time.own), *name));
        for (name, time) in rows {
            let share = 100.0 * time.own.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {name} | {:.1} | {:.2} | {share:.1} % | {:.2} |",
                time.calls as f64 / n,
                milliseconds(time.own),
                milliseconds(time.total),
            );
        }
        let _ = writeln!(text, "| all | | {:.2} | 100 % | |", milliseconds(all));
        text
    }
}

impl Running {
    fn start(first_step: u64, device: &Device) -> Self {
        let trace = SharedBuffer::default();
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
            .with(operations.with_filter(operations_filter()))
            .with(chrome.with_filter(operations_filter()))
            .with(log_layer());
        let subscriber = dispatcher::set_default(&Dispatch::new(subscriber));
        profile::begin(device);
        Self {
            first_step,
            done: Table::new(),
            last_step: None,
            table,
            trace,
            subscriber,
            flush,
        }
    }

    /// Adds the operations of a completed step.
    fn take(&mut self, step: u64) {
        for (name, time) in std::mem::take(&mut *lock(&self.table)) {
            self.done.entry(name).or_default().add(time);
        }
        self.last_step = Some(step);
    }

    /// Returns the table of the completed steps and the bytes of the trace.
    fn end(self) -> (Table, Vec<u8>) {
        profile::end();
        drop(self.subscriber);
        // Blocks until the trace is written.
        drop(self.flush);
        let trace = std::mem::take(&mut *lock(&self.trace.0));
        (self.done, trace)
    }
}

/// Writes the profile if the run ends early.
impl Drop for ProfiledSteps {
    fn drop(&mut self) {
        self.write();
    }
}

/// Accepts only spans of operations.
fn operations_filter() -> FilterFn<fn(&Metadata<'_>) -> bool> {
    let is_operation: fn(&Metadata<'_>) -> bool = |metadata| metadata.target() == TARGET;
    filter_fn(is_operation).with_max_level_hint(LevelFilter::TRACE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer written by another thread.
#[derive(Debug, Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A tracing layer that adds up the time of operations.
#[derive(Debug)]
struct Operations {
    table: Arc<Mutex<Table>>,
}

/// An operation in progress.
#[derive(Debug)]
struct RunningOperation {
    name: String,
    started: Instant,
    /// Time of nested operations.
    nested: Duration,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Operations {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut name = attributes.metadata().name().to_owned();
        attributes.record(&mut Shape(&mut name));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(RunningOperation {
                name,
                started: Instant::now(),
                nested: Duration::ZERO,
            });
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let Some(operation) = span.extensions_mut().remove::<RunningOperation>() else {
            return;
        };
        let elapsed = operation.started.elapsed();
        if let Some(parent) = span.parent()
            && let Some(parent) = parent.extensions_mut().get_mut::<RunningOperation>()
        {
            parent.nested += elapsed;
        }
        let mut table = lock(&self.table);
        table.entry(operation.name).or_default().add(OperationTime {
            calls: 1,
            total: elapsed,
            own: elapsed.saturating_sub(operation.nested),
        });
    }
}

/// Appends the shape of an operation to its name.
struct Shape<'a>(&'a mut String);

impl Visit for Shape<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {value:?}");
    }
}
