//! Ranks as real processes: signals, kills, silence, and the launcher of one host.
//!
//! The program of each rank is this test's own binary, with the work in `TOOLTUNE_TEST_WORK`.

#[path = "../support/mod.rs"]
mod support;
mod work;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::free_ports;
use tooltune_ranks::local::{self, Ended, FailedRank};
use tooltune_ranks::{Node, RequestedRanks, Role, role};
use work::WORK;

/// How long something may take that must happen at all.
const SURELY: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    if std::env::var_os(WORK).is_some() {
        return work::run();
    }
    let arguments = Arguments::from_args();
    let tests: [(&str, fn()); 10] = [
        ("processes_train_together", processes_train_together),
        (
            "a_killed_rank_is_named_at_once",
            a_killed_rank_is_named_at_once,
        ),
        (
            "a_killed_leader_ends_the_followers",
            a_killed_leader_ends_the_followers,
        ),
        ("a_stopped_rank_is_silent", a_stopped_rank_is_silent),
        (
            "a_stopped_leader_does_not_blame_others",
            a_stopped_leader_does_not_blame_others,
        ),
        (
            "the_first_failing_rank_is_named_and_all_end",
            the_first_failing_rank_is_named_and_all_end,
        ),
        ("signals_are_passed_on", signals_are_passed_on),
        (
            "ranks_that_stop_in_order_are_not_disturbed",
            ranks_that_stop_in_order_are_not_disturbed,
        ),
        (
            "a_rank_that_hangs_ends_after_a_failure",
            a_rank_that_hangs_ends_after_a_failure,
        ),
        (
            "ranks_end_with_a_killed_launcher",
            ranks_end_with_a_killed_launcher,
        ),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            let run = std::panic::catch_unwind(test);
            run.map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Failed::from(text.unwrap_or_else(|| "it panicked".to_owned()))
            })
        })
    };
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}

fn program() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

/// A rank as torchrun would start it.
struct Started {
    child: Child,
}

impl Started {
    fn new(work: &str, rank: usize, world_size: usize, port: u16) -> Self {
        let child = program()
            .env(WORK, work)
            .envs([
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", world_size.to_string()),
                ("LOCAL_RANK", rank.to_string()),
                ("LOCAL_WORLD_SIZE", world_size.to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("TOOLTUNE_RANKS_TOKEN", "secret".to_owned()),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank");
        Self { child }
    }

    fn signal(&self, signal: Signal) {
        kill_process(id_of(&self.child), signal).expect("signalled");
    }

    /// Waits for the line after the meeting.
    fn wait_until_met(&mut self) {
        let out = self.child.stdout.as_mut().expect("piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert_eq!(line, "met\n");
    }

    /// Exit status and error output.
    fn finish(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + SURELY;
        while self.child.try_wait().expect("a state").is_none() {
            if Instant::now() > deadline {
                self.child.kill().expect("killed");
                panic!("a rank did not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut text = String::new();
        let mut err = self.child.stderr.take().expect("piped");
        err.read_to_string(&mut text).expect("text");
        (self.child.wait().expect("a state").code(), text)
    }
}

fn id_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("an ID")).expect("an ID")
}

fn start_all(work: &str, world_size: usize) -> Vec<Started> {
    let port = free_ports();
    let ranks = (0..world_size).map(|rank| Started::new(work, rank, world_size, port));
    ranks.collect()
}

fn processes_train_together() {
    for rank in start_all("train", 3) {
        let (status, errors) = rank.finish();
        assert_eq!(status, Some(0), "{errors}");
    }
}

fn a_killed_rank_is_named_at_once() {
    let mut ranks = start_all("wait", 3);
    ranks.iter_mut().for_each(Started::wait_until_met);
    ranks[2].signal(Signal::KILL);
    let ends: Vec<_> = ranks.into_iter().map(Started::finish).collect();
    assert_eq!(ends[2].0, None);
    for (status, errors) in &ends[..2] {
        assert_eq!(*status, Some(76), "{errors}");
        let expected = "lost the connection to rank 2 on";
        assert!(errors.contains(expected), "{errors}");
        assert!(errors.contains("(working)"), "{errors}");
    }
    assert!(ends[1].1.contains("rank 0 on"), "{}", ends[1].1);
}

fn a_killed_leader_ends_the_followers() {
    let mut ranks = start_all("wait", 3);
    ranks.iter_mut().for_each(Started::wait_until_met);
    ranks[0].signal(Signal::KILL);
    for (status, errors) in ranks.into_iter().map(Started::finish).skip(1) {
        assert_eq!(status, Some(76), "{errors}");
        assert!(errors.contains("lost the connection to rank 0"), "{errors}");
    }
}

fn a_stopped_rank_is_silent() {
    let mut ranks = start_all("wait", 3);
    ranks.iter_mut().for_each(Started::wait_until_met);
    ranks[1].signal(Signal::STOP);
    let stopped = ranks.remove(1);
    let ends: Vec<_> = ranks.into_iter().map(Started::finish).collect();
    for ((status, errors), expected) in ends.iter().zip([3, 76]) {
        assert_eq!(*status, Some(expected), "{errors}");
        assert!(errors.contains("rank 1 on"), "{errors}");
        assert!(errors.contains("has been silent for"), "{errors}");
    }
    // It continues into a run that has ended.
    stopped.signal(Signal::CONT);
    let (status, errors) = stopped.finish();
    assert_eq!(status, Some(76), "{errors}");
}

/// While the leader is stopped, a follower ends the run; the leader then learns of that, instead of
/// taking its own pause for the silence of others.
fn a_stopped_leader_does_not_blame_others() {
    let mut ranks = start_all("wait", 2);
    ranks.iter_mut().for_each(Started::wait_until_met);
    ranks[0].signal(Signal::STOP);
    let (status, errors) = ranks.pop().expect("a follower").finish();
    assert_eq!(status, Some(3), "{errors}");
    assert!(errors.contains("rank 0 on"), "{errors}");
    assert!(errors.contains("silent"), "{errors}");
    ranks[0].signal(Signal::CONT);
    let (status, errors) = ranks.pop().expect("the leader").finish();
    assert_eq!(status, Some(76), "{errors}");
    assert!(errors.contains("rank 1 on"), "{errors}");
    assert!(errors.contains("ended the run: rank 0"), "{errors}");
}

/// Starts ranks by our own launcher, in this process.
fn start(work: &str, n: usize) -> (Ended, Vec<(usize, String)>) {
    let requested = Some(RequestedRanks::Number(n));
    let Ok(Role::Start(node)) = role(&BTreeMap::new(), requested, 1) else {
        panic!("nothing to start");
    };
    launch(&node, work)
}

fn launch(node: &Node, work: &str) -> (Ended, Vec<(usize, String)>) {
    let command = work::command(work);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let print = {
        let lines = lines.clone();
        move |rank: usize, line: &str| {
            lines.lock().expect("lines").push((rank, line.to_owned()));
        }
    };
    let ended = local::start(node, &command, print).expect("started");
    let lines = std::mem::take(&mut *lines.lock().expect("lines"));
    (ended, lines)
}

fn the_first_failing_rank_is_named_and_all_end() {
    let (ended, mut lines) = start("train", 3);
    assert_eq!(
        ended,
        Ended {
            status: 0,
            failed: None
        }
    );
    lines.sort();
    let expected = [(1, "met".to_owned()), (2, "met".to_owned())];
    assert_eq!(lines, expected);

    let (ended, lines) = start("fail 2", 3);
    assert_eq!(ended.status, 42);
    let failed = ended.failed.expect("a failed rank");
    assert_eq!(failed.rank, 2);
    assert!(failed.how.contains("42"), "{}", failed.how);
    let of_rank_1: Vec<&str> = lines
        .iter()
        .filter(|(rank, _)| *rank == 1)
        .map(|(_, line)| line.as_str())
        .collect();
    let explains = |line: &&str| line.contains("rank 2 on") && line.contains("out of cheese");
    assert!(of_rank_1.iter().any(explains), "{of_rank_1:?}");

    let (ended, _) = start("killed 1", 3);
    let expected = FailedRank {
        rank: 1,
        how: "signal: 9 (SIGKILL)".to_owned(),
    };
    assert_eq!((ended.status, ended.failed), (137, Some(expected)));
}

/// Starts a launcher in a process of its own, whose ranks write their process IDs.
fn start_launcher(work: &str) -> (Child, Vec<Pid>) {
    let mut launcher = program()
        .env(WORK, format!("launch {work}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a launcher");
    let out = BufReader::new(launcher.stdout.as_mut().expect("piped"));
    let ids = out.lines().map_while(Result::ok).filter_map(|line| {
        let id: i32 = line.split("process ").nth(1)?.parse().ok()?;
        Pid::from_raw(id)
    });
    let ids: Vec<Pid> = ids.take(3).collect();
    assert_eq!(ids.len(), 3);
    (launcher, ids)
}

fn wait_for_end(launcher: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + SURELY;
    loop {
        if let Some(status) = launcher.try_wait().expect("a state") {
            return status.code();
        }
        assert!(Instant::now() < deadline, "the launcher did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until these processes have gone, or are only waited for.
fn wait_until_gone(ids: &[Pid]) {
    let deadline = Instant::now() + SURELY;
    let is_there = |id: &Pid| {
        let path = format!("/proc/{}/stat", id.as_raw_nonzero());
        let state = std::fs::read_to_string(path).unwrap_or_default();
        let is_zombie = state
            .rsplit(')')
            .next()
            .is_some_and(|s| s.trim().starts_with('Z'));
        test_kill_process(*id).is_ok() && !is_zombie
    };
    while ids.iter().any(is_there) {
        assert!(Instant::now() < deadline, "ranks are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signals_are_passed_on() {
    for signal in [Signal::TERM, Signal::INT] {
        let (mut launcher, ids) = start_launcher("until signal");
        kill_process(id_of(&launcher), signal).expect("signalled");
        assert_eq!(wait_for_end(&mut launcher), Some(0));
        wait_until_gone(&ids);
    }
}

fn ranks_that_stop_in_order_are_not_disturbed() {
    let (mut launcher, ids) = start_launcher("save slowly");
    kill_process(id_of(&launcher), Signal::TERM).expect("signalled");
    assert_eq!(wait_for_end(&mut launcher), Some(75));
    wait_until_gone(&ids);
}

fn a_rank_that_hangs_ends_after_a_failure() {
    let (ended, _) = start("hang 1", 3);
    assert_eq!(ended.status, 41);
    assert_eq!(ended.failed.expect("a failed rank").rank, 1);
}

/// No rank survives its launcher.
fn ranks_end_with_a_killed_launcher() {
    let (mut launcher, ids) = start_launcher("until signal");
    launcher.kill().expect("killed");
    launcher.wait().expect("a state");
    wait_until_gone(&ids);
}
