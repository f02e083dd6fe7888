//! Builds the cuDNN plans of a run on other threads before they are needed.
//!
//! cuDNN compiles a kernel for each plan, which takes half a second on one core. Without this, the
//! device thread would wait for it at the first micro-batch of each shape. The threads here have no
//! cuDNN handle: they describe the GPU to cuDNN and store the plans on disk, from where the device
//! thread loads them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, available_parallelism};

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cudarc::driver::result::{DriverError, ctx, device, init, primary_ctx};

use super::descriptor::Refusal;
use super::graph::PlanTarget;
use super::sdpa::PlanShape;
use super::{AttentionShape, Pass, cached_plans, is_found, takes_ragged};
use crate::attention::Causality;
use crate::gpu;

/// Maximum number of threads: enough to build the plans of a run within seconds.
const MOST_THREADS: usize = 8;

/// The attention layers of a model, in bf16.
#[derive(Debug, Clone)]
pub struct AttentionLayers {
    /// Numbers of query heads and of key/value heads.
    pub heads: [usize; 2],
    /// Head size.
    pub size: usize,
    /// The attention masks that occur in the layers.
    pub causalities: Vec<Causality>,
}

/// Threads that build plans; on drop, they finish their current plans and end.
#[derive(Debug)]
pub struct PlanPrefetch {
    jobs: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Jobs {
    all: Vec<(PlanShape, Pass)>,
    next: AtomicUsize,
    is_over: AtomicBool,
}

impl PlanPrefetch {
    /// Builds the forward and backward plans that the micro-batches of a device need, in order; a
    /// micro-batch is given as the lengths of its documents. `None` if cuDNN does not compute them
    /// or the disk cache is disabled.
    pub fn begin(
        device: &Device,
        layers: &AttentionLayers,
        micro_batches: impl IntoIterator<Item = Vec<usize>>,
    ) -> Option<Self> {
        let index = index_of(device)?;
        if !is_found() {
            return None;
        }
        init().ok()?;
        let kind = gpu::kind(index).ok()?;
        let plans = cached_plans(&kind).filter(|plans| plans.is_writable())?;
        let plan_shapes = plan_shapes(layers, takes_ragged(index)?, micro_batches);
        Some(Self::start(plan_shapes, move || {
            let context = Context::new(index);
            if let Err(error) = &context {
                tracing::debug!("cuDNN plans are not prefetched: {error:?}");
            }
            let context = context.ok()?;
            let target = PlanTarget::from_device(index, Some(plans.clone()));
            if let Err(refusal) = &target {
                tracing::debug!("cuDNN plans are not prefetched: {refusal}");
            }
            Some((target.ok()?, Some(context)))
        }))
    }

    /// Like `begin`, for a GPU that need not be present: `properties` is cuDNN's JSON of its device
    /// properties, and plans are cached under `name`.
    ///
    /// # Errors
    ///
    /// cuDNN's message, if it rejects the properties.
    pub fn from_properties(
        name: &str,
        properties: &str,
        shapes: &[AttentionShape],
    ) -> Result<Self, String> {
        let make_target = |name: &str, properties: &str| {
            PlanTarget::from_properties(properties, cached_plans(name))
        };
        let message = |refusal: Refusal| refusal.to_string();
        make_target(name, properties).map_err(message)?;
        let (name, properties) = (name.to_owned(), properties.to_owned());
        let plan_shapes = shapes.iter().map(AttentionShape::plan_shape).collect();
        Ok(Self::start(plan_shapes, move || {
            Some((make_target(&name, &properties).ok()?, None))
        }))
    }

    fn start(
        plan_shapes: Vec<PlanShape>,
        make_target: impl Fn() -> Option<(PlanTarget, Option<Context>)> + Send + Clone + 'static,
    ) -> Self {
        let both = |plan_shape: PlanShape| {
            [
                (plan_shape.clone(), Pass::Forward),
                (plan_shape, Pass::Backward),
            ]
        };
        let all: Vec<_> = plan_shapes.into_iter().flat_map(both).collect();
        let cores = available_parallelism().map_or(1, usize::from);
        let n_threads = cores.div_ceil(2).min(MOST_THREADS).min(all.len());
        let jobs = Arc::new(Jobs {
            all,
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let threads = (0..n_threads).filter_map(|_| {
            let (jobs, make_target) = (Arc::clone(&jobs), make_target.clone());
            let builder = thread::Builder::new().name("cudnn-plans".to_owned());
            builder
                .spawn(move || {
                    // The context is dropped last.
                    if let Some((target, _context)) = make_target() {
                        jobs.work(&target);
                    }
                })
                .ok()
        });
        Self {
            threads: threads.collect(),
            jobs,
        }
    }

    /// Waits until all plans are built.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // The panic has been printed; the device thread will build the plan itself.
            let _ = thread.join();
        }
    }
}

impl Drop for PlanPrefetch {
    fn drop(&mut self) {
        self.jobs.is_over.store(true, Ordering::Relaxed);
        self.join();
    }
}

impl Jobs {
    fn work(&self, target: &PlanTarget) {
        while !self.is_over.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((plan_shape, pass)) = self.all.get(next) else {
                return;
            };
            let plan = match pass {
                Pass::Forward => plan_shape.forward(target),
                Pass::Backward => plan_shape.backward(target),
            };
            // The device thread gets the same error when it needs the plan.
            if let Err(refusal) = plan {
                tracing::debug!(
                    "the plan for {plan_shape:?} {pass:?} was not prefetched: {refusal}"
                );
            }
        }
    }
}

/// Number of distinct shapes of micro-batches (each given as its document lengths), for engines
/// with or without ragged tensors; each shape has a forward and a backward plan.
pub fn n_attention_shapes(
    layers: &AttentionLayers,
    takes_ragged: bool,
    micro_batches: impl IntoIterator<Item = Vec<usize>>,
) -> usize {
    plan_shapes(layers, takes_ragged, micro_batches).len()
}

/// The distinct shapes of micro-batches, in order of first use.
fn plan_shapes(
    layers: &AttentionLayers,
    takes_ragged: bool,
    micro_batches: impl IntoIterator<Item = Vec<usize>>,
) -> Vec<PlanShape> {
    let (mut met, mut plan_shapes) = (HashSet::new(), Vec::new());
    let [heads, groups] = layers.heads;
    for lengths in micro_batches {
        for causality in &layers.causalities {
            let n = lengths.iter().sum();
            // The multiplier of the scores is passed at each execution.
            let dims = [n, heads, groups, layers.size];
            let plan_shape = PlanShape::for_lengths(takes_ragged, dims, 1.0, &lengths, *causality);
            if let Some(plan_shape) = plan_shape
                && met.insert(plan_shape.clone())
            {
                plan_shapes.push(plan_shape);
            }
        }
    }
    plan_shapes
}

/// Index of the CUDA device.
fn index_of(device: &Device) -> Option<i32> {
    match device.as_dispatch() {
        DispatchDevice::Cube(cubecl::Device::Cuda(device)) => i32::try_from(device.index).ok(),
        DispatchDevice::Autodiff(device) => index_of(&Device::new((**device).clone())),
        _ => None,
    }
}

/// The primary context of a device, current on this thread.
struct Context(i32);

impl Context {
    fn new(index: i32) -> Result<Self, DriverError> {
        let handle = device::get(index)?;
        // SAFETY: `handle` was just returned by the driver; the context is retained once and
        // released once, on drop.
        unsafe { ctx::set_current(primary_ctx::retain(handle)?)? };
        Ok(Self(index))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(handle) = device::get(self.0) {
            // SAFETY: retained by `new`.
            let _ = unsafe { primary_ctx::release(handle) };
        }
    }
}
