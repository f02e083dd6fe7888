//! Measures the seconds per call of a prepared operation.

use std::time::Instant;

use burn::tensor::Device;
use tooltune_kernels::cpu::spin_scope::with_spinning_threads;

use crate::Run;

/// Minimum duration of a sample, long enough that reading the clocks is negligible.
const SAMPLE_SECONDS: f64 = 2e-3;
const MIN_SAMPLES: usize = 3;

/// Runs for about `seconds` and returns the wall and CPU seconds per call of each sample.
pub(crate) fn measure(run: &mut Run, seconds: f64) -> String {
    // The first call warms caches and memory; the second determines the number of calls per sample.
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

/// Mean wall and CPU seconds per call over `calls`.
fn sample(run: &mut Run, calls: usize) -> (f64, f64) {
    if let Some(prepare) = &mut run.prepare {
        prepare(calls);
    }
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let mut all = || (0..calls).for_each(|_| (run.call)());
    if run.is_awake {
        with_spinning_threads(&Device::flex(), all)
    } else {
        all()
    }
    let seconds = [wall.elapsed().as_secs_f64(), cpu_seconds() - cpu];
    let [wall, cpu] = seconds.map(|seconds| seconds / calls as f64);
    (wall, cpu)
}

/// CPU time used by all threads so far.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`, which is a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
