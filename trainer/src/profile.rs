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

impl Taken {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.whole += other.whole;
        self.own += other.own;
    }
}

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
    /// Of the steps that are done.
    done: Table,
    last_step: Option<u64>,
    /// Of the step that is under way.
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
#[derive(Debug, Clone)]
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

    /// Behind step `step`, which is done; writes the profile when it was the last one of it.
    pub fn behind(&mut self, step: u64) {
        if let Some(running) = &mut self.running {
            running.take(step);
        }
        if self.taken > self.n_steps {
            self.write();
        }
    }

    /// The profile of the steps that were done; `None` if there were no two of them, or where it could not
    /// be written, which is said.
    pub fn end(mut self) -> Option<Profile> {
        self.write();
        self.done.take()
    }

    /// No profile is worth a run: what cannot be written is a warning.
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
            Err(error) => tracing::warn!("the profile is not kept: {error}"),
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
             them; each is a mean over the steps. A step ends with what is due behind it: an \
             evaluation, whose operations count, too, and saving. `trace.json` beside this file \
             opens in ui.perfetto.dev or chrome://tracing.\n\n\
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
            done: Table::new(),
            last_step: None,
            table,
            trace,
            subscriber,
            flush,
        }
    }

    /// Counts the operations of a step that is done.
    fn take(&mut self, step: u64) {
        for (name, taken) in std::mem::take(&mut *locked(&self.table)) {
            self.done.entry(name).or_default().add(taken);
        }
        self.last_step = Some(step);
    }

    /// The table of the steps that are done, and the text of the trace.
    fn end(self) -> (Table, Vec<u8>) {
        profile::end();
        drop(self.subscriber);
        // Waits until all is written.
        drop(self.flush);
        let trace = std::mem::take(&mut *locked(&self.trace.0));
        (self.done, trace)
    }
}

/// However a run ends, what was measured is kept.
impl Drop for ProfiledSteps {
    fn drop(&mut self) {
        self.write();
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
        table.entry(operation.name).or_default().add(Taken {
            calls: 1,
            whole,
            own: whole.saturating_sub(operation.within),
        });
    }
}

/// Adds the shape of an operation to its name.
struct Shape<'a>(&'a mut String);

impl Visit for Shape<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {value:?}");
    }
}
