//! Plans that a run will need, made by other threads before it needs them.
//!
//! cuDNN compiles a kernel for each plan, half a second of one core, which is where the thread of a
//! device would wait at the first micro-batch of each form. These threads have no handle: they describe
//! the GPU to cuDNN, keep what it makes on disk, and the thread of the device takes it from there.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, available_parallelism};

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cudarc::driver::result::{DriverError, ctx, device, init, primary_ctx};

use super::descriptor::Refusal;
use super::graph::Place;
use super::sdpa::Form;
use super::{AttentionShape, Pass, is_found, kept_plans, takes_ragged};
use crate::attention::Causality;
use crate::gpu;

/// Threads at most: with so many the plans of a run are there within seconds.
const MOST_THREADS: usize = 8;

/// The attention of a model, bf16.
#[derive(Debug, Clone)]
pub struct AttentionLayers {
    /// Query heads, and key/value heads.
    pub heads: [usize; 2],
    /// Elements of a head.
    pub size: usize,
    /// Which tokens of its document a token sees, as one layer or another has it.
    pub causalities: Vec<Causality>,
}

/// Threads that make plans; dropped, they end with the plans that they are at.
#[derive(Debug)]
pub struct PlansAhead {
    jobs: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Jobs {
    all: Vec<(Form, Pass)>,
    next: AtomicUsize,
    is_over: AtomicBool,
}

impl PlansAhead {
    /// Has the plans made that micro-batches of a device need, in their order, forward and backward: of
    /// each micro-batch the lengths of its documents. `None` where cuDNN does not compute them, or where
    /// nothing is kept on disk.
    pub fn begin(
        on: &Device,
        layers: &AttentionLayers,
        micro_batches: impl IntoIterator<Item = Vec<usize>>,
    ) -> Option<Self> {
        let index = index_of(on)?;
        if !is_found() {
            return None;
        }
        init().ok()?;
        let kind = gpu::kind(index).ok()?;
        let plans = kept_plans(&kind).filter(|plans| plans.is_writable())?;
        let forms = forms(layers, takes_ragged(index)?, micro_batches);
        Some(Self::start(forms, move || {
            let context = Context::of(index);
            if let Err(error) = &context {
                tracing::debug!("no plan is made ahead: {error:?}");
            }
            let context = context.ok()?;
            let on = Place::of_device(index, Some(plans.clone()));
            if let Err(refusal) = &on {
                tracing::debug!("no plan is made ahead: {refusal}");
            }
            Some((on.ok()?, Some(context)))
        }))
    }

    /// The same for a GPU that is described by cuDNN's JSON of device properties, under a name; none has
    /// to be there.
    ///
    /// # Errors
    ///
    /// Properties that cuDNN does not take, in its words.
    pub fn described(
        name: &str,
        properties: &str,
        shapes: &[AttentionShape],
    ) -> Result<Self, String> {
        let place = |name: &str, properties: &str| Place::described(properties, kept_plans(name));
        let said = |refusal: Refusal| refusal.to_string();
        place(name, properties).map_err(said)?;
        let (name, properties) = (name.to_owned(), properties.to_owned());
        let forms = shapes.iter().map(AttentionShape::form).collect();
        Ok(Self::start(forms, move || {
            Some((place(&name, &properties).ok()?, None))
        }))
    }

    fn start(
        forms: Vec<Form>,
        place: impl Fn() -> Option<(Place, Option<Context>)> + Send + Clone + 'static,
    ) -> Self {
        let both = |form: Form| [(form.clone(), Pass::Forward), (form, Pass::Backward)];
        let all: Vec<_> = forms.into_iter().flat_map(both).collect();
        let cores = available_parallelism().map_or(1, usize::from);
        let n_threads = cores.div_ceil(2).min(MOST_THREADS).min(all.len());
        let jobs = Arc::new(Jobs {
            all,
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let threads = (0..n_threads).filter_map(|_| {
            let (jobs, place) = (Arc::clone(&jobs), place.clone());
            let named = thread::Builder::new().name("cudnn-plans".to_owned());
            named
                .spawn(move || {
                    // The context goes last.
                    if let Some((on, _context)) = place() {
                        jobs.work(&on);
                    }
                })
                .ok()
        });
        Self {
            threads: threads.collect(),
            jobs,
        }
    }

    /// Waits until all plans are made.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // Its panic has been printed; whoever needs the plan makes it.
            let _ = thread.join();
        }
    }
}

impl Drop for PlansAhead {
    fn drop(&mut self) {
        self.jobs.is_over.store(true, Ordering::Relaxed);
        self.join();
    }
}

impl Jobs {
    fn work(&self, on: &Place) {
        while !self.is_over.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((form, pass)) = self.all.get(next) else {
                return;
            };
            let made = match pass {
                Pass::Forward => form.forward(on),
                Pass::Backward => form.backward(on),
            };
            // Whoever needs the plan hears of it.
            if let Err(refusal) = made {
                tracing::debug!("no plan of {form:?} {pass:?} ahead: {refusal}");
            }
        }
    }
}

/// How many forms micro-batches have, of each the lengths of its documents, where engines compute with
/// ragged sums or do not; each form has a plan forward and one backward.
pub fn n_attention_forms(
    layers: &AttentionLayers,
    takes_ragged: bool,
    micro_batches: impl IntoIterator<Item = Vec<usize>>,
) -> usize {
    forms(layers, takes_ragged, micro_batches).len()
}

/// The forms of micro-batches, each once, in the order in which they are met.
fn forms(
    layers: &AttentionLayers,
    takes_ragged: bool,
    micro_batches: impl IntoIterator<Item = Vec<usize>>,
) -> Vec<Form> {
    let (mut met, mut forms) = (HashSet::new(), Vec::new());
    let [heads, groups] = layers.heads;
    for lengths in micro_batches {
        for causality in &layers.causalities {
            let n = lengths.iter().sum();
            // Scores are multiplied with a number that is given at each execution.
            let dims = [n, heads, groups, layers.size];
            let form = Form::fitting(takes_ragged, dims, 1.0, &lengths, *causality);
            if let Some(form) = form
                && met.insert(form.clone())
            {
                forms.push(form);
            }
        }
    }
    forms
}

/// Which CUDA device it is.
fn index_of(device: &Device) -> Option<i32> {
    match device.as_dispatch() {
        DispatchDevice::Cube(cubecl::Device::Cuda(device)) => i32::try_from(device.index).ok(),
        DispatchDevice::Autodiff(device) => index_of(&Device::new((**device).clone())),
        _ => None,
    }
}

/// The primary context of a device, current to this thread.
struct Context(i32);

impl Context {
    fn of(index: i32) -> Result<Self, DriverError> {
        let handle = device::get(index)?;
        // SAFETY: `handle` is a device that the driver has just given; what is retained is released once,
        // when this is dropped.
        unsafe { ctx::set_current(primary_ctx::retain(handle)?)? };
        Ok(Self(index))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(handle) = device::get(self.0) {
            // SAFETY: retained by `of`.
            let _ = unsafe { primary_ctx::release(handle) };
        }
    }
}
