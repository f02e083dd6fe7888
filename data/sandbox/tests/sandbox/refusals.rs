//! Tests machines and callers that cannot run any code.

use std::path::PathBuf;

use libtest_mimic::Trial;
use tooltune_sandbox::{Launcher, Limits, Part, PythonRunner, Requirement, Sandbox, SandboxError};

use crate::machines::launcher;

type Test = (&'static str, fn());

const TESTS: [Test; 6] = [
    (
        "machines_without_isolation_are_refused",
        machines_without_isolation_are_refused,
    ),
    (
        "unisolated_runs_keep_their_limits",
        unisolated_runs_keep_their_limits,
    ),
    ("errors_name_the_launcher", errors_name_the_launcher),
    (
        "errors_name_the_python_program",
        errors_name_the_python_program,
    ),
    (
        "errors_name_the_invalid_limit",
        errors_name_the_invalid_limit,
    ),
    (
        "errors_name_the_refused_folder",
        errors_name_the_refused_folder,
    ),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |(name, test): Test| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    TESTS.into_iter().map(trial).collect()
}

fn machines_without_isolation_are_refused() {
    for (lacking, parts) in [
        ("seccomp", vec![Part::Seccomp]),
        (
            "namespaces,landlock",
            vec![Part::Namespaces, Part::Landlock],
        ),
        (
            "namespaces,landlock,seccomp",
            vec![Part::Namespaces, Part::Landlock, Part::Seccomp],
        ),
    ] {
        let refusal = Sandbox::new(launcher(lacking), Requirement::Isolated);
        let error = refusal.expect_err(lacking);
        let SandboxError::NotIsolated { missing } = &error else {
            panic!("{lacking}: {error}");
        };
        let text = error.to_string();
        for part in parts {
            assert!(
                missing.iter().any(|missing| missing.part == part),
                "{lacking}: {error}"
            );
            assert!(text.contains(&format!("no {part} (")), "{text}");
        }
        assert!(text.contains("to enable it, "), "{text}");
    }
}

fn unisolated_runs_keep_their_limits() {
    let launcher = launcher("namespaces,landlock,seccomp");
    let sandbox = Sandbox::new(launcher, Requirement::AllowUnisolated).expect("allowed");
    assert!(!sandbox.isolation().is_isolated());
    assert_eq!(sandbox.isolation().missing().len(), 3);
    let runner = PythonRunner::new(sandbox, "python3").expect("python3");
    let limits = Limits {
        wall_secs: 1.0,
        ..Limits::default()
    };
    let code =
        "import os\ndef f(wait):\n  while wait: pass\n  return sorted(os.listdir('/proc'))[:1]";
    let run = |argument, limits: &Limits| {
        let outcome = runner.run_function(code, "f", argument, limits);
        outcome.expect("a sandbox").result
    };
    assert!(run("true", &limits).is_err());
    let long_limits = Limits {
        wall_secs: 600.0,
        ..limits
    };
    assert_eq!(run("false", &long_limits).expect("a value").repr, "['1']");
}

fn errors_name_the_launcher() {
    for program in ["/bin/true", "/no/such/program"] {
        let launcher = Launcher {
            program: PathBuf::from(program),
            arguments: Vec::new(),
        };
        let error = Sandbox::new(launcher, Requirement::Isolated).expect_err(program);
        assert!(matches!(error, SandboxError::Launcher { .. }), "{error}");
        assert!(error.to_string().contains(program), "{error}");
    }
}

fn sandbox() -> Sandbox {
    Sandbox::new(launcher(""), Requirement::Isolated).expect("a sandbox")
}

fn errors_name_the_python_program() {
    for python in ["no-such-python", "true", "false"] {
        let error = PythonRunner::new(sandbox(), python).expect_err(python);
        assert!(matches!(error, SandboxError::NoPython { .. }), "{error}");
        assert!(error.to_string().starts_with(python), "{error}");
    }
    let runner = PythonRunner::new(sandbox(), "python3").expect("python3");
    let (program, version) = runner.interpreter();
    assert!(
        program.is_absolute() && version.starts_with("3."),
        "{runner:?}"
    );
}

fn errors_name_the_invalid_limit() {
    let runner = PythonRunner::new(sandbox(), "python3").expect("python3");
    let limits = Limits::default;
    for (field, limits) in [
        (
            "wall_secs",
            Limits {
                wall_secs: f64::NAN,
                ..limits()
            },
        ),
        (
            "wall_secs",
            Limits {
                wall_secs: 0.0,
                ..limits()
            },
        ),
        (
            "memory_bytes",
            Limits {
                memory_bytes: 0,
                ..limits()
            },
        ),
        (
            "output_bytes",
            Limits {
                output_bytes: 0,
                ..limits()
            },
        ),
    ] {
        let refusal = runner.run_function("", "f", "null", &limits);
        let error = refusal.expect_err(field).to_string();
        assert!(error.contains(field), "{error}");
    }
    let refusal = runner.run_function("", "f", "{", &limits());
    assert!(matches!(refusal, Err(SandboxError::BadArgument { .. })));
}

fn errors_name_the_refused_folder() {
    let runner = PythonRunner::new(sandbox(), "python3").expect("python3");
    for folder in ["/no/such/folder", "/"] {
        let folders = [PathBuf::from(folder)];
        let refusal = runner.run_script("", "null", &folders, &Limits::default());
        let error = refusal.expect_err(folder);
        assert!(matches!(error, SandboxError::BadFolder { .. }), "{error}");
        assert!(error.to_string().contains(folder), "{error}");
    }
}
