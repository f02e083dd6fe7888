//! Tests code that exceeds its limits of time, memory, disk space or output.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tooltune_sandbox::{Failure, Limits, Part, PythonRunner, SandboxError};

use crate::machines::{Machine, Test};
use crate::runs::{attempt_code, failure, long_limits, run, run_within, value, value_of};

pub(crate) const TESTS: &[Test] = &[
    ("endless_loops_time_out", endless_loops_time_out),
    ("sleeping_code_times_out", sleeping_code_times_out),
    ("the_stop_flag_ends_a_run", the_stop_flag_ends_a_run),
    ("cpu_time_is_limited", cpu_time_is_limited),
    ("memory_is_limited", memory_is_limited),
    ("threads_are_limited", threads_are_limited),
    ("output_is_limited", output_is_limited),
    ("result_size_is_limited", result_size_is_limited),
    ("file_size_is_limited", file_size_is_limited),
    ("disk_space_is_limited", disk_space_is_limited),
    ("open_files_are_limited", open_files_are_limited),
    ("limits_cannot_be_raised", limits_cannot_be_raised),
];

/// Runs code that would take a thousand seconds, with a limit of one second.
fn failure_after_one_second(machine: &Machine, code: &str) -> Failure {
    let limits = Limits {
        wall_secs: 1.0,
        ..Limits::default()
    };
    let start = Instant::now();
    let outcome = run_within(machine, code, &Value::Null, &limits);
    let elapsed = start.elapsed();
    assert!(
        elapsed >= Duration::from_secs(1) && elapsed < Duration::from_secs(500),
        "{elapsed:?}"
    );
    failure(&outcome).clone()
}

fn endless_loops_time_out(machine: &Machine) {
    let timed_out = Failure::TimedOut {
        secs: "1".to_owned(),
    };
    let codes = [
        "def attack(_):\n  while True: pass",
        "while True: pass",
        // No Python exception or handler can stop the code that follows.
        "def attack(_):\n  while True:\n    try:\n      while True: pass\n    except BaseException: pass",
        "def attack(_):\n  return 'a' * 40 in __import__('re').sub('(a+)+$', '', 'a' * 40 + 'b')",
        "class Slow:\n  def __repr__(self):\n    while True: pass\ndef attack(_):\n  return Slow()",
    ];
    for code in codes {
        assert_eq!(failure_after_one_second(machine, code), timed_out, "{code}");
    }
}

fn sleeping_code_times_out(machine: &Machine) {
    let timed_out = Failure::TimedOut {
        secs: "1".to_owned(),
    };
    let codes = [
        "import time\ndef attack(_):\n  time.sleep(1000)",
        "import os, time\ndef attack(_):\n  os.closerange(0, 100)\n  time.sleep(1000)",
        "import threading\ndef attack(_):\n  threading.Event().wait()",
    ];
    for code in codes {
        assert_eq!(failure_after_one_second(machine, code), timed_out, "{code}");
    }
}

/// These runs would take ten minutes if the caller did not end them.
fn the_stop_flag_ends_a_run(machine: &Machine) {
    let stop = Arc::new(AtomicBool::new(false));
    let runner = PythonRunner::clone(&machine.runner).with_stop_flag(Arc::clone(&stop));
    let code = "import time\ndef attack(_):\n  time.sleep(1000)";
    let start = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| runner.run_function(code, "attack", "null", &long_limits()));
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::SeqCst);
        run.join().expect("no panic")
    });
    assert!(matches!(outcome, Err(SandboxError::Stopped)), "{outcome:?}");
    assert!(start.elapsed() < Duration::from_secs(300));
}

fn cpu_time_is_limited(machine: &Machine) {
    let limits = Limits {
        cpu_secs: 1,
        ..long_limits()
    };
    let codes = [
        "def attack(_):\n  while True: pass",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\ndef attack(_):\n  while True: pass",
    ];
    for code in codes {
        let outcome = run_within(machine, code, &Value::Null, &limits);
        assert_eq!(
            failure(&outcome),
            &Failure::CpuTime { secs: 1 },
            "{outcome:?}"
        );
        // The kernel counts the limit in ticks, which can exceed the used time on a busy machine.
        assert!(
            outcome.cpu_secs >= 0.5 && outcome.cpu_secs < 4.0,
            "{outcome:?}"
        );
    }
}

fn memory_is_limited(machine: &Machine) {
    let memory = Failure::Memory { bytes: 1 << 30 };
    let codes = [
        "def attack(_):\n  return len(bytearray(10 << 30))",
        "def attack(_):\n  kept = []\n  while True: kept.append(bytearray(1 << 20))",
        "import mmap\ndef attack(_):\n  try:\n    return mmap.mmap(-1, 10 << 30)\n  except OSError:\n    raise MemoryError",
    ];
    for code in codes {
        assert_eq!(
            failure(&run(machine, code, &Value::Null)),
            &memory,
            "{code}"
        );
    }
    let small_limits = Limits {
        memory_bytes: 256 << 20,
        ..long_limits()
    };
    let code = "def attack(n):\n  return len(bytearray(n << 20))";
    let outcome_with = |n: u64| run_within(machine, code, &json!(n), &small_limits);
    assert_eq!(value_of(&outcome_with(100)), 100 << 20);
    let bytes = small_limits.memory_bytes;
    assert_eq!(failure(&outcome_with(300)), &Failure::Memory { bytes });
}

fn threads_are_limited(machine: &Machine) {
    let code = r#"
import _thread
def attack(_):
    _thread.stack_size(32768)
    held = _thread.allocate_lock()
    held.acquire()
    started = 0
    try:
        while started < 100000:
            _thread.start_new_thread(held.acquire, ())
            started += 1
    except (RuntimeError, MemoryError):
        pass
    return started
"#;
    // Starting thousands of threads while other tests run can exceed the usual processor time. This
    // test checks a different limit, so it allows more.
    let limits = Limits {
        memory_bytes: 128 << 20,
        cpu_secs: 60,
        ..long_limits()
    };
    let outcome = run_within(machine, code, &Value::Null, &limits);
    let max_threads = if machine.runner.isolation().has(Part::Namespaces) && !is_root() {
        limits.n_threads
    } else {
        // The stacks of the threads fill the address space.
        limits.memory_bytes / 32768
    };
    match outcome.result {
        Ok(returned) => {
            let started: u64 = returned.repr.parse().expect("a number");
            assert!((4..=max_threads).contains(&started), "{started}");
        }
        // The memory left may be too little for the result.
        Err(failure) => assert!(matches!(failure, Failure::Memory { .. }), "{failure}"),
    }
    let few_threads = "import threading\ndef attack(_):\n  threads = [threading.Thread(target=int) for _ in range(4)]\n  [t.start() for t in threads]\n  [t.join() for t in threads]\n  return 4";
    assert_eq!(value(machine, few_threads, &Value::Null), 4);
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

fn output_is_limited(machine: &Machine) {
    let too_large = Failure::OutputTooLarge { bytes: 1 << 20 };
    let codes = [
        "def attack(_):\n  for _ in range(1024): print('x' * (1 << 20))",
        "import sys\ndef attack(_):\n  for _ in range(1024): sys.stderr.write('x' * (1 << 20))",
        "import os\ndef attack(_):\n  while True: os.write(1, b'x' * 65536)",
        "def attack(_):\n  while True: print('x')",
    ];
    for code in codes {
        let outcome = run(machine, code, &Value::Null);
        assert_eq!(failure(&outcome), &too_large, "{code}");
        assert!(outcome.stdout.len() <= 1 << 20 && outcome.stderr.len() <= 1 << 20);
    }
    let code = "def attack(_):\n  print('x' * 1000000)\n  return 1";
    let outcome = run(machine, code, &Value::Null);
    assert_eq!(value_of(&outcome), 1);
    assert_eq!(outcome.stdout.len(), 1_000_001);
}

fn result_size_is_limited(machine: &Machine) {
    let too_large = Failure::ResultTooLarge { bytes: 1 << 20 };
    let codes = [
        "def attack(_):\n  return 'x' * (8 << 20)",
        "def attack(_):\n  return list(range(1 << 20))",
        "def attack(_):\n  raise ValueError('x' * (2 << 20))",
    ];
    for code in codes {
        assert_eq!(
            failure(&run(machine, code, &Value::Null)),
            &too_large,
            "{code}"
        );
    }
    let code = "def attack(_):\n  return len('x' * (8 << 20))";
    assert_eq!(value(machine, code, &Value::Null), 8 << 20);
}

fn file_size_is_limited(machine: &Machine) {
    let code = attempt_code(
        r#"
    def fill():
        with open("large", "wb") as file:
            for _ in range(64):
                file.write(b"x" * (1 << 20))
    def grow():
        with open("sparse", "wb") as file:
            file.truncate(1 << 40)
    return [tried(fill), os.path.getsize("large"), tried(grow)]"#,
    );
    let results = value(machine, &code, &Value::Null);
    // The error number of EFBIG; the size is at the limit.
    assert_eq!(results, json!([27, 16 << 20, 27]));
}

fn disk_space_is_limited(machine: &Machine) {
    let code = attempt_code(
        r#"
    def fill():
        for n in range(64):
            with open(str(n), "wb") as file:
                file.write(b"x" * (1 << 20))
    def many():
        for n in range(100000):
            open("empty" + str(n), "w").close()
    ended = tried(fill)
    for name in os.listdir("."):
        os.unlink(name)
    return [ended, tried(many) if given else 28]"#,
    );
    let limits = Limits {
        disk_bytes: 8 << 20,
        ..long_limits()
    };
    let has_disk = machine.runner.isolation().has(Part::Namespaces);
    let outcome = run_within(machine, &code, &json!(has_disk), &limits);
    // The error number of ENOSPC, if the directory is a separate file system.
    let expected = if has_disk { json!(28) } else { json!("None") };
    assert_eq!(value_of(&outcome), json!([expected, 28]));
}

fn open_files_are_limited(machine: &Machine) {
    let code = attempt_code(
        r#"
    kept = []
    def more():
        while True:
            kept.append(open(os.devnull))
    return [tried(more), len(kept)]"#,
    );
    let results = value(machine, &code, &Value::Null);
    // The error number of EMFILE. The standard streams and the result use four descriptors.
    assert_eq!(results, json!([24, 60]));
}

fn limits_cannot_be_raised(machine: &Machine) {
    let code = r#"
import resource
def attack(_):
    ended = []
    for name in ("CPU", "AS", "FSIZE", "NOFILE", "CORE"):
        kind = getattr(resource, "RLIMIT_" + name)
        soft, hard = resource.getrlimit(kind)
        try:
            resource.setrlimit(kind, (hard + 1, hard + 1))
            ended.append(name)
        except (OSError, ValueError):
            pass
    return ended
"#;
    assert_eq!(value(machine, code, &Value::Null), json!([]));
}
