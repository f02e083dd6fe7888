//! The work of the processes in these tests, by `TOOLTUNE_TEST_WORK`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the tests read the output"
)]

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tooltune_ranks::launcher::Variables;
use tooltune_ranks::{Ranks, RequestedRanks, Result, Role, Settings, local, role};

use crate::support::{identity, patient};

/// Names what a process of these tests does.
pub(crate) const WORK: &str = "TOOLTUNE_TEST_WORK";

pub(crate) fn run() -> ExitCode {
    let work = std::env::var(WORK).expect("text");
    let variables: Variables = std::env::vars().collect();
    if let Some(work) = work.strip_prefix("launch ") {
        return launch(work, &variables);
    }
    let Ok(Role::Rank(launch)) = role(&variables, None, 1) else {
        panic!("not a rank");
    };
    local::watch_parent(&launch).expect("a parent");
    let settings = match work.as_str() {
        // Short silence: the stopped rank is the only one that does not beat.
        "wait" => Settings {
            silence_seconds: 12,
            ..patient()
        },
        _ => patient(),
    };
    let directory = std::env::var_os("TOOLTUNE_TEST_DIRECTORY").map(std::path::PathBuf::from);
    let identity = identity(launch.rank);
    let ranks = Ranks::meet(&launch, &identity, directory.as_deref(), &settings);
    let ranks = match ranks {
        Ok(ranks) => ranks,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    ranks.pulse().phase("working");
    match work.as_str() {
        "until signal" | "save slowly" => println!("process {}", std::process::id()),
        _ => println!("met"),
    }
    std::io::stdout().flush().expect("written");
    let rank = ranks.rank();
    let result = match work.split_once(' ') {
        Some(("fail", failing)) if failing == rank.to_string() => {
            ranks.fail("out of cheese", Some(42));
            return ExitCode::from(42);
        }
        Some(("killed", failing)) if failing == rank.to_string() => {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            Ok(())
        }
        Some(("until", _)) => until_signal(ranks),
        Some(("save", _)) => return save_after_signal(ranks),
        Some(("hang", failing)) => {
            if failing == rank.to_string() {
                return ExitCode::from(41);
            }
            hang(&ranks);
            Ok(())
        }
        _ if work == "train" => train(ranks),
        _ => wait(ranks),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_of_other_rank() => {
            eprintln!("{error}");
            ExitCode::from(error.status().unwrap_or(76))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

/// A few steps with sums.
fn train(mut ranks: Ranks) -> Result<()> {
    for step in 0..20i64 {
        if ranks.is_leader() {
            ranks.order(&step.to_le_bytes())?;
        } else {
            assert_eq!(ranks.obey()?, step.to_le_bytes());
        }
        let mut sums = vec![step; 100_000];
        ranks.add_all(&mut sums)?;
        assert!(
            sums.iter()
                .all(|sum| *sum == step * ranks.world_size() as i64)
        );
        ranks.gather(b"report")?;
        ranks.broadcast(b"verdict".to_vec())?;
    }
    ranks.end()
}

/// Waits for what does not happen.
fn wait(mut ranks: Ranks) -> Result<()> {
    if ranks.is_leader() {
        ranks.gather(b"").map(drop)
    } else {
        ranks.obey().map(drop)
    }
}

/// Ends in order after a signal.
fn until_signal(ranks: Ranks) -> Result<()> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, flag.clone()).expect("a handler");
    }
    while !flag.load(Ordering::Relaxed) {
        ranks.check()?;
        ranks.pulse().progress();
        std::thread::sleep(Duration::from_millis(20));
    }
    ranks.end()
}

/// Stops after a signal as a run with saved state does. Saving takes longer than other ranks wait
/// after a failure; a second signal in that time is an error.
fn save_after_signal(ranks: Ranks) -> ExitCode {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, flag.clone()).expect("a handler");
    }
    while !flag.swap(false, Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let is_leader = ranks.is_leader();
    // The followers have nothing to save.
    std::mem::forget(ranks);
    if is_leader {
        std::thread::sleep(Duration::from_secs(7));
    }
    ExitCode::from(if flag.load(Ordering::Relaxed) { 9 } else { 75 })
}

/// Never looks at its connections or at signals again, like a thread in a driver.
fn hang(ranks: &Ranks) {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, flag).expect("a handler");
    assert_eq!(ranks.world_size(), 3);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The command of a rank with this work.
pub(crate) fn command(work: &str) -> local::Command {
    let this_program = std::env::current_exe().expect("this program");
    local::Command {
        program: "/usr/bin/env".into(),
        arguments: [
            format!("{WORK}={work}").into(),
            this_program.into_os_string(),
        ]
        .into(),
    }
}

/// The launcher of three ranks, which print through it.
fn launch(work: &str, variables: &Variables) -> ExitCode {
    let requested = Some(RequestedRanks::Number(3));
    let Ok(Role::Start(node)) = role(variables, requested, 1) else {
        panic!("nothing to start");
    };
    let command = command(work);
    let print = |rank: usize, line: &str| println!("[rank {rank}] {line}");
    let ended = local::start(&node, &command, print).expect("started");
    ExitCode::from(u8::try_from(ended.status).unwrap_or(1))
}
