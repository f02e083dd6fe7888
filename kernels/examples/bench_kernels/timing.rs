//! A prepared operation to its seconds a call.

use std::time::Instant;

use burn::tensor::Device;
use tooltune_kernels::cpu::spin_scope::wide_awake;

use crate::Run;

/// A sample takes at least this long, so that reading clocks costs nothing beside it.
const SAMPLE_SECONDS: f64 = 2e-3;
const MIN_SAMPLES: usize = 3;

/// Runs for about `seconds` and answers with wall and CPU seconds of a call, once a sample.
pub(crate) fn measured(run: &mut Run, seconds: f64) -> String {
    // The first call meets cold caches and untouched memory, the second tells how many make a sample.
    sample(run, 1);
    let (one, _) = sample(run, 1);
    let calls = (SAMPLE_SECONDS / one).ceil().clamp(1.0, 1e6) as usize;
    let start = Instant::now();
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    while wall.len() < MIN_SAMPLES || start.elapsed().as_secs_f64() < seconds {
        let (wall_seconds, cpu_seconds) = sample(run, calls);
        wall.push(wall_seconds);
        cpu.push(cpu_seconds);
    }
    let work = run
        .work
        .map_or("null".to_owned(), |work| format!("{work:e}"));
    format!("{{\"wall\": {wall:?}, \"cpu\": {cpu:?}, \"work\": {work}}}")
}

/// Wall and CPU seconds of a call, as the mean over `calls`.
fn sample(run: &mut Run, calls: usize) -> (f64, f64) {
    if let Some(before) = &mut run.before {
        before(calls);
    }
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let mut all = || (0..calls).for_each(|_| (run.call)());
    if run.is_awake {
        wide_awake(&Device::flex(), all)
    } else {
        all()
    }
    let seconds = [wall.elapsed().as_secs_f64(), cpu_seconds() - cpu];
    let [wall, cpu] = seconds.map(|seconds| seconds / calls as f64);
    (wall, cpu)
}

/// CPU time of all threads so far.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`, which lives on this stack.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
