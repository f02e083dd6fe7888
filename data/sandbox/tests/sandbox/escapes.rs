//! Tests code that tries to access files, processes and networks outside its sandbox.

use std::fs;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use serde_json::{Map, Value, json};
use tooltune_sandbox::{Failure, Limits};

use crate::machines::{Machine, Test};
use crate::runs::{attempt_code, failure, long_limits, run, run_within, value, value_of};

pub(crate) const TESTS: &[Test] = &[
    ("forking_is_denied", forking_is_denied),
    ("no_process_survives_its_run", no_process_survives_its_run),
    (
        "files_of_the_user_cannot_be_read",
        files_of_the_user_cannot_be_read,
    ),
    (
        "nothing_outside_can_be_changed",
        nothing_outside_can_be_changed,
    ),
    (
        "symbolic_links_stay_in_the_sandbox",
        symbolic_links_stay_in_the_sandbox,
    ),
    ("sockets_cannot_connect", sockets_cannot_connect),
    (
        "other_processes_cannot_be_signalled",
        other_processes_cannot_be_signalled,
    ),
    (
        "other_processes_cannot_be_seen",
        other_processes_cannot_be_seen,
    ),
    (
        "descriptors_of_the_caller_are_closed",
        descriptors_of_the_caller_are_closed,
    ),
    (
        "unneeded_system_calls_are_denied",
        unneeded_system_calls_are_denied,
    ),
    ("a_new_program_stays_confined", a_new_program_stays_confined),
];

/// Checks that every attempt failed with a system error.
#[track_caller]
fn assert_all_denied(results: &Value) {
    let results = results.as_object().expect("outcomes by name");
    assert!(!results.is_empty());
    let successes: Vec<_> = results.iter().filter(|(_, end)| !end.is_i64()).collect();
    assert!(successes.is_empty(), "these succeeded: {successes:?}");
}

fn forking_is_denied(machine: &Machine) {
    let code = attempt_code(
        r#"
    def fork():
        process = os.fork()
        while process == 0:
            os.fork()
        return process
    forks = [tried(fork) for _ in range(200)]
    return [
        sorted(set(forks), key=str),
        tried(os.forkpty),
        tried(lambda: subprocess.run(["/bin/true"])),
        tried(lambda: os.posix_spawn("/bin/true", ["true"], {})),
        tried(lambda: os.system("true")),
    ]"#,
    );
    let results = value(machine, &code, &Value::Null);
    let outcomes = results.as_array().expect("outcomes");
    assert_eq!(outcomes.first(), Some(&json!([1])), "{results}");
    let (system, other_results) = outcomes.split_last().expect("outcomes");
    // `system` returns a status instead of raising.
    assert_ne!(system, "0", "{results}");
    assert!(other_results.iter().skip(1).all(Value::is_i64), "{results}");
}

/// Processes whose limit of open files is `n_open_files`, which no other test uses.
fn processes_with(n_open_files: u64) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    folders
        .filter(|folder| {
            let limits = fs::read_to_string(folder.join("limits")).unwrap_or_default();
            let line = limits
                .lines()
                .find(|line| line.starts_with("Max open files"));
            line.is_some_and(|line| {
                line.split_whitespace().nth(3) == Some(&n_open_files.to_string())
            })
        })
        .map(|folder| fs::read_to_string(folder.join("status")).unwrap_or_default())
        .collect()
}

fn no_process_survives_its_run(machine: &Machine) {
    let code = attempt_code(
        r#"
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()
    tried(os.fork)
    tried(os.setsid)
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while given:
        time.sleep(0.01)
    return "done""#,
    );
    // These tests may also run in another process, so the mark depends on the process id.
    let machines = ["as_it_is", "without_namespaces", "without_landlock"];
    let machine_idx = machines.iter().position(|name| *name == machine.name);
    let machine_idx = machine_idx.expect("a machine") as u64;
    let n_mark_files = 514 + 3 * (u64::from(std::process::id()) % 168) + machine_idx;
    let limits = Limits {
        n_open_files: n_mark_files,
        ..long_limits()
    };
    let outcome = run_within(machine, &code, &json!(false), &limits);
    assert_eq!(value_of(&outcome), "done");
    assert_eq!(processes_with(n_mark_files), Vec::<String>::new());
    // The check below proves something only if the process was seen running. On a busy machine,
    // this may take longer.
    let was_seen = |wall_secs: f64| {
        let limits = Limits {
            wall_secs,
            ..limits.clone()
        };
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run_within(machine, &code, &json!(true), &limits));
            let mut was_seen = false;
            while !was_seen && !running.is_finished() {
                was_seen = !processes_with(n_mark_files).is_empty();
            }
            let outcome = running.join().expect("a run");
            assert!(matches!(failure(&outcome), Failure::TimedOut { .. }));
            was_seen
        })
    };
    assert!([2.0, 20.0, 200.0].into_iter().any(was_seen));
    assert_eq!(processes_with(n_mark_files), Vec::<String>::new());
}

/// Whether these names, formatted as a Python list, are on the path to the interpreter or to the
/// linker cache.
fn is_covered(machine: &Machine, names: &str) -> bool {
    let (interpreter, _) = machine.runner.interpreter();
    let is_in_path = |name| interpreter.iter().any(|part| part == name) || name == "ld.so.cache";
    let is_list = names.starts_with('[') && names.ends_with(']');
    is_list && names.split('\'').skip(1).step_by(2).all(is_in_path)
}

fn files_of_the_user_cannot_be_read(machine: &Machine) {
    let secret = tempfile::Builder::new()
        .prefix("secret")
        .tempdir()
        .expect("a folder");
    let file = secret.path().join("key");
    fs::write(&file, "secret").expect("a file");
    let home_folder = std::env::var("HOME").unwrap_or_else(|_| "/".to_owned());
    let files = json!({
        "secret": file,
        "shadow": "/etc/shadow",
        "passwd": "/etc/passwd",
        "hosts": "/etc/hosts",
        "binary": std::env::current_exe().expect("this binary"),
        "manifest": Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"),
        "disk": "/dev/sda",
        "memory": "/dev/mem",
    });
    let folders = json!({
        "home": home_folder,
        "temporary": std::env::temp_dir(),
        "secret": secret.path(),
        "repository": env!("CARGO_MANIFEST_DIR"),
        "etc": "/etc",
        "var": "/var",
        "sys": "/sys",
    });
    let code = attempt_code(
        r#"
    ended = {name: tried(lambda: open(path).read()) for name, path in given["files"].items()}
    for name, path in given["folders"].items():
        ended["folder " + name] = tried(lambda: os.listdir(path))
        ended["walk to " + name] = tried(lambda: os.listdir("../../../../../.." + path))
    return ended"#,
    );
    let mut results = value(machine, &code, &json!({"files": files, "folders": folders}));
    let attempts = results.as_object_mut().expect("outcomes by name");
    // A private root may have other folders, but they contain only the paths to the given files.
    attempts.retain(|_, end| !end.as_str().is_some_and(|names| is_covered(machine, names)));
    assert_all_denied(&results);
}

fn nothing_outside_can_be_changed(machine: &Machine) {
    let outside_folder = tempfile::tempdir().expect("a folder");
    let victim = outside_folder.path().join("victim");
    fs::write(&victim, "as it was").expect("a file");
    let metadata_before = fs::metadata(&victim).expect("a file");
    let new =
        |folder: &Path| folder.join(format!("left-by-{}-{}", std::process::id(), machine.name));
    let writable_places = [
        outside_folder.path(),
        &std::env::temp_dir(),
        Path::new("/"),
        Path::new("/usr"),
        Path::new("/dev/shm"),
        Path::new("/var/tmp"),
        Path::new(env!("CARGO_MANIFEST_DIR")),
    ]
    .map(new);
    let code = attempt_code(
        r#"
    victim = given["victim"]
    with open("own", "w") as own:
        own.write("own")
    ended = {}
    for path in given["places"]:
        ended["file " + path] = tried(lambda: open(path, "w").write("x"))
        ended["folder " + path] = tried(lambda: os.mkdir(path))
        ended["link " + path] = tried(lambda: os.symlink("x", path))
        ended["rename " + path] = tried(lambda: os.rename("own", path))
        ended["hard link " + path] = tried(lambda: os.link("own", path))
    for mode in ("w", "a", "r+"):
        ended["open " + mode] = tried(lambda: open(victim, mode))
    ended["unlink"] = tried(lambda: os.unlink(victim))
    ended["truncate"] = tried(lambda: os.truncate(victim, 0))
    ended["chmod"] = tried(lambda: os.chmod(victim, 0o777))
    ended["chmod folder"] = tried(lambda: os.chmod(os.path.dirname(victim), 0o777))
    ended["chown"] = tried(lambda: os.chown(victim, 1, 1))
    ended["utime"] = tried(lambda: os.utime(victim, (0, 0)))
    ended["attribute"] = tried(lambda: os.setxattr(victim, "user.x", b"x"))
    ended["take"] = tried(lambda: os.rename(victim, "taken"))
    ended["steal by link"] = tried(lambda: os.link(victim, "taken"))
    ended["mkfifo"] = tried(lambda: os.mkfifo(os.path.dirname(victim) + "/fifo"))
    ended["rmtree"] = tried(lambda: shutil.rmtree(os.path.dirname(victim)))
    return ended"#,
    );
    let argument = json!({"victim": victim, "places": writable_places});
    assert_all_denied(&value(machine, &code, &argument));
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "as it was");
    let metadata_after = fs::metadata(&victim).expect("a file");
    assert_eq!(metadata_after.permissions(), metadata_before.permissions());
    assert_eq!(
        metadata_after.modified().expect("a time"),
        metadata_before.modified().expect("a time")
    );
    let changed: Vec<_> = writable_places
        .iter()
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
}

fn symbolic_links_stay_in_the_sandbox(machine: &Machine) {
    let outside_folder = tempfile::tempdir().expect("a folder");
    let victim = outside_folder.path().join("victim");
    fs::write(&victim, "as it was").expect("a file");
    let code = attempt_code(
        r#"
    victim = given
    os.symlink(victim, "file")
    os.symlink(os.path.dirname(victim), "folder")
    os.symlink("/", "root")
    os.mkdir("deep")
    os.symlink("../" * 20 + victim.lstrip("/"), "deep/relative")
    ended = {}
    for path in ("file", "folder/victim", "root" + victim, "deep/relative"):
        ended["read " + path] = tried(lambda: open(path).read())
        ended["write " + path] = tried(lambda: open(path, "w").write("x"))
        ended["append " + path] = tried(lambda: open(path, "a").write("x"))
    ended["new"] = tried(lambda: open("folder/new", "w").write("x"))
    ended["list"] = tried(lambda: os.listdir("folder"))
    ended["chdir"] = tried(lambda: (os.chdir("folder"), os.listdir(".")))
    return ended"#,
    );
    assert_all_denied(&value(machine, &code, &json!(victim)));
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "as it was");
    assert_eq!(
        fs::read_dir(outside_folder.path())
            .expect("a folder")
            .count(),
        1
    );
}

fn sockets_cannot_connect(machine: &Machine) {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    tcp.set_nonblocking(true).expect("a socket");
    let name = format!("tooltune-{}-{}", std::process::id(), machine.name);
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let unix = UnixListener::bind_addr(&address).expect("an abstract socket");
    unix.set_nonblocking(true).expect("a socket");
    let argument = json!({"port": tcp.local_addr().expect("an address").port(), "name": name});
    let code = attempt_code(
        r#"
    def connected(family, kind, address):
        with socket.socket(family, kind) as own:
            own.connect(address)
            own.send(b"hello")
    ip, port, name = "127.0.0.1", given["port"], "\0" + given["name"]
    inet, unix = socket.AF_INET, socket.AF_UNIX
    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    return {
        "tcp": tried(lambda: connected(inet, stream, (ip, port))),
        "tcp6": tried(lambda: connected(socket.AF_INET6, stream, ("::1", port))),
        "udp": tried(lambda: connected(inet, datagram, (ip, 53))),
        "unix": tried(lambda: connected(unix, stream, "/run/systemd/private")),
        "abstract": tried(lambda: connected(unix, stream, name)),
        "log": tried(lambda: connected(unix, datagram, "/dev/log")),
        "raw": tried(lambda: connected(inet, socket.SOCK_RAW, (ip, 0))),
        "netlink": tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
        "packet": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)),
        "vsock": tried(lambda: socket.socket(socket.AF_VSOCK, stream)),
        "listen": tried(lambda: socket.create_server((ip, 0))),
        "name": tried(lambda: socket.create_connection(("example.org", 80), 1)),
        "pair of datagrams": tried(lambda: socket.socketpair(unix, datagram)),
    }"#,
    );
    let results = value(machine, &code, &argument);
    // Without a socket, name resolution fails with a different error number.
    assert_all_denied(&results);
    for connection in [tcp.accept().map(drop), unix.accept().map(drop)] {
        let error = connection.expect_err("no connection");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
}

fn other_processes_cannot_be_signalled(machine: &Machine) {
    let argument = json!({"caller": std::process::id()});
    let code = attempt_code(
        r#"
    libc = ctypes.CDLL(None, use_errno=True)
    def call(number, *arguments):
        if libc.syscall(number, *arguments) == -1:
            raise OSError(ctypes.get_errno(), "refused")
    def owned(process):
        read, write = os.pipe()
        fcntl.fcntl(read, fcntl.F_SETOWN, process)
        fcntl.fcntl(read, 10, signal.SIGKILL)
    ended = {}
    others = {"caller": given["caller"], "parent": os.getppid(), "first": 1, "all": -1, "group": 0}
    for name, process in others.items():
        if process != os.getpid():
            ended["kill " + name] = tried(lambda: os.kill(process, signal.SIGKILL))
            ended["stop " + name] = tried(lambda: os.kill(process, signal.SIGSTOP))
            ended["own " + name] = tried(lambda: owned(process))
    ended["tkill"] = tried(lambda: call(200, given["caller"], 9))
    ended["tgkill"] = tried(lambda: call(234, given["caller"], given["caller"], 9))
    ended["sigqueue"] = tried(lambda: call(129, given["caller"], 9, 0))
    ended["pidfd"] = tried(lambda: os.pidfd_open(given["caller"]))
    ended["nice"] = tried(lambda: os.setpriority(os.PRIO_PROCESS, given["caller"], 19))
    ended["limit"] = tried(lambda: __import__("resource").prlimit(given["caller"], 0, (1, 1)))
    return ended"#,
    );
    assert_all_denied(&value(machine, &code, &argument));
    let own_signal =
        "import os, signal\ndef attack(_):\n  os.kill(os.getpid(), 0)\n  return 'alive'";
    assert_eq!(value(machine, own_signal, &Value::Null), "alive");
}

fn other_processes_cannot_be_seen(machine: &Machine) {
    let code = attempt_code(
        r#"
    ended = {}
    for process in (given, os.getppid(), 1, "self"):
        if process != os.getpid():
            for name in ("environ", "cmdline", "mem", "maps", "status", "fd", "root", "task"):
                path = "/proc/{}/{}".format(process, name)
                ended["open " + path] = tried(lambda: os.open(path, os.O_RDONLY))
                ended["list " + path] = tried(lambda: os.listdir(path))
    for name in ("environ", "mem"):
        ended["write " + name] = tried(lambda: open("/proc/{}/{}".format(given, name), "r+b"))
    ended["all"] = tried(lambda: os.listdir("/proc"))
    ended["setting"] = tried(lambda: open("/proc/sys/kernel/core_pattern", "w"))
    return ended"#,
    );
    assert_all_denied(&value(machine, &code, &json!(std::process::id())));
    let code = "import os\ndef attack(_):\n  return sorted(os.environ)";
    let known_ids = [
        "HOME",
        "LANG",
        "LC_CTYPE",
        "MALLOC_ARENA_MAX",
        "MKL_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "PATH",
        "PYTHONHASHSEED",
        "PYTHONSAFEPATH",
        "PYTHONUTF8",
        "TMPDIR",
        "TZ",
    ];
    let names = value(machine, code, &Value::Null);
    let names = names.as_array().expect("names");
    let strange: Vec<_> = names
        .iter()
        .filter(|name| !known_ids.contains(&name.as_str().expect("a name")))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");
}

fn descriptors_of_the_caller_are_closed(machine: &Machine) {
    let mut secret = tempfile::tempfile().expect("a file");
    std::io::Write::write_all(&mut secret, b"secret").expect("a file");
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).expect("a descriptor");
    let code = attempt_code(
        r#"
    opened = []
    for number in range(3, 1024):
        try:
            os.fstat(number)
            opened.append(number)
        except OSError:
            pass
    return {"opened": opened, "secret": tried(lambda: os.pread(given, 100, 0))}"#,
    );
    let results = value(machine, &code, &json!(secret.as_raw_fd()));
    // This is the descriptor of the result, which may have the same number as the secret.
    assert_eq!(
        results["opened"].as_array().expect("numbers").len(),
        1,
        "{results}"
    );
    assert!(
        !results["secret"].to_string().contains("secret"),
        "{results}"
    );
}

/// Names and numbers of the kernel's calls on this processor. The numbers of the x32 variant have
/// 0x40000000 added.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const CALLS: &[(&str, u64)] = &[
    ("clone", 56), ("fork", 57), ("vfork", 58), ("ptrace", 101), ("syslog", 103), ("setuid", 105),
    ("capset", 126), ("personality", 135), ("pivot_root", 155), ("prctl", 157), ("chroot", 161),
    ("mount", 165), ("umount2", 166), ("swapon", 167), ("reboot", 169), ("init_module", 175),
    ("add_key", 248), ("request_key", 249), ("keyctl", 250), ("inotify_init", 253),
    ("unshare", 272), ("perf_event_open", 298), ("fanotify_init", 300),
    ("open_by_handle_at", 304), ("setns", 308), ("process_vm_readv", 310),
    ("process_vm_writev", 311), ("kcmp", 312), ("seccomp", 317), ("memfd_create", 319),
    ("kexec_file_load", 320), ("bpf", 321), ("execveat", 322), ("userfaultfd", 323),
    ("io_uring_setup", 425), ("open_tree", 428), ("fsopen", 430), ("pidfd_open", 434),
    ("clone3", 435), ("pidfd_getfd", 438), ("mount_setattr", 442),
    ("landlock_create_ruleset", 444), ("of the future", 9999), ("x32", 0x4000_0000 + 39),
];

#[cfg(target_arch = "x86_64")]
fn unneeded_system_calls_are_denied(machine: &Machine) {
    let code = attempt_code(
        r#"
    libc = ctypes.CDLL(None, use_errno=True)
    def call(number):
        ended = libc.syscall(number, 0, 0, 0, 0, 0, 0)
        if ended == -1:
            raise OSError(ctypes.get_errno(), "refused")
        return ended
    return {name: tried(lambda: call(number)) for name, number in given.items()}"#,
    );
    let arguments: Map<String, Value> = CALLS
        .iter()
        .map(|(name, number)| ((*name).to_owned(), json!(number)))
        .collect();
    let arguments = Value::Object(arguments);
    let results = value(machine, &code, &arguments);
    assert_all_denied(&results);
    let numbers: Vec<i64> = results
        .as_object()
        .expect("attempts")
        .values()
        .filter_map(Value::as_i64)
        .collect();
    // The filters must refuse the calls, and not the kernel because of wrong arguments.
    assert!(
        numbers.iter().all(|number| [1, 38].contains(number)),
        "{results}"
    );
}

#[cfg(not(target_arch = "x86_64"))]
fn unneeded_system_calls_are_denied(machine: &Machine) {
    let code = attempt_code("    return {'prctl': ctypes.CDLL(None).prctl(38, 0, 0, 0, 0)}");
    assert_eq!(value(machine, &code, &Value::Null), json!({"prctl": -1}));
}

fn a_new_program_stays_confined(machine: &Machine) {
    let outside_folder = tempfile::tempdir().expect("a folder");
    let code = r#"
import os
def attack(folder):
    script = "exec 2>&1; read line < /etc/passwd; echo line=$line; echo x > " + folder + "/new; /bin/ls /; echo end"
    os.execv("/bin/sh", ["sh", "-c", script])
"#;
    let outcome = run(machine, code, &json!(outside_folder.path()));
    assert!(
        matches!(failure(&outcome), Failure::NoResult { .. }),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("line=\n"), "{outcome:?}");
    assert_eq!(
        fs::read_dir(outside_folder.path())
            .expect("a folder")
            .count(),
        0
    );
}
