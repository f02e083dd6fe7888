//! Tests the client against a local hub with all simulated faults.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;

use crate::client::RetryPolicy;
use crate::test_hub::{Fault, TestHub};
use crate::{Event, Fetched, Hub, HubError, HubName, HubSettings, WantedFiles};

mod push;
mod shared_cache;

const TOKEN: &str = "hf_of_a_test_and_secret";
const REPO: &str = "models/org/tiny";

/// Waits short enough for tests.
const TEST_POLICY: RetryPolicy = RetryPolicy {
    connect: Duration::from_secs(5),
    silence: Duration::from_secs(1),
    exchange: Duration::from_secs(20),
    between: Duration::from_millis(1),
    longest: Duration::from_millis(2),
    tries: 3,
};

struct Machine {
    server: TestHub,
    dir: TempDir,
}

fn weights(n: usize, seed: u8) -> Vec<u8> {
    (0..n)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    crate::download::hex(&sha2::Sha256::digest(bytes))
}

impl Machine {
    /// A hub with a model of two shards, and an empty cache.
    fn new() -> Self {
        let server = TestHub::start();
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        server.add(REPO, "config.json", b"{}", false);
        server.add(REPO, "tokenizer.json", "{\"é\": 1}".as_bytes(), false);
        server.add(REPO, "README.md", b"# not read", false);
        server.add(REPO, "pytorch_model.bin", &weights(999, 9), true);
        server.add(
            REPO,
            "model.safetensors.index.json",
            index.as_bytes(),
            false,
        );
        server.add(REPO, "model-1.safetensors", &weights(3_000_000, 1), true);
        server.add(REPO, "model-2.safetensors", &weights(50_000, 2), true);
        server.add(
            "datasets/org/rows",
            "d/train.jsonl",
            b"{\"text\": 1}\n",
            false,
        );
        let dir = tempfile::tempdir().expect("a folder");
        Self { server, dir }
    }

    fn hub_with(&self, token: Option<&str>, is_offline: bool) -> Hub {
        let settings = HubSettings {
            endpoint: self.server.url(),
            cache: self.dir.path().join("hub"),
            token: token.map(str::to_owned),
            is_offline,
        };
        Hub::with_retry_policy(settings, TEST_POLICY).expect("a hub")
    }

    fn fetch(&self, name: &str) -> Result<Fetched, HubError> {
        fetch_with(&self.hub_with(None, false), name)
    }

    fn offline(&self, name: &str) -> Result<Fetched, HubError> {
        fetch_with(&self.hub_with(None, true), name)
    }

    fn n_requests(&self) -> usize {
        let (hub, storage) = self.server.received();
        hub.len() + storage.len()
    }

    fn file(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("hub").join(path)
    }
}

fn hub_name(text: &str) -> HubName {
    let rows = HubName::parse_rows(text).ok().flatten();
    rows.unwrap_or_else(|| {
        HubName::parse_model(text)
            .expect("no mistake")
            .expect("a name")
    })
}

fn fetch_with(hub: &Hub, name: &str) -> Result<Fetched, HubError> {
    hub.fetch(&hub_name(name), WantedFiles::All, &|_| {})
}

#[test]
fn the_cache_layout_equals_huggingface_hubs() {
    let machine = Machine::new();
    let fetched = machine.fetch("org/tiny").expect("a model");
    let commit = machine.server.repo(REPO).commit();
    let folder = machine.file("models--org--tiny");
    assert_eq!(fetched.path, folder.join("snapshots").join(&commit));
    assert_eq!(
        (fetched.commit.as_str(), fetched.instead),
        (commit.as_str(), None)
    );
    let read_file = |path: &str| std::fs::read(fetched.path.join(path)).expect(path);
    assert_eq!(read_file("model-1.safetensors"), weights(3_000_000, 1));
    assert_eq!(read_file("tokenizer.json"), "{\"é\": 1}".as_bytes());
    assert!(
        !fetched.path.join("README.md").exists()
            && !fetched.path.join("pytorch_model.bin").exists()
    );
    let link = std::fs::read_link(fetched.path.join("config.json")).expect("a link");
    // As computed by `git hash-object` and `sha256sum`.
    let blob = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
    assert_eq!(link, Path::new("../../blobs").join(blob));
    assert_eq!(
        std::fs::read_to_string(folder.join("refs/main")).expect("a ref"),
        commit
    );
    let locks = machine.file(".locks/models--org--tiny");
    assert!(locks.join(format!("{blob}.lock")).exists());
    let tag = std::fs::read_to_string(machine.file("CACHEDIR.TAG")).expect("a tag");
    assert!(
        tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"),
        "{tag}"
    );
    let listing = std::fs::read_to_string(folder.join(format!("trees/{commit}.json")));
    let listing = listing.expect("a listing");
    assert!(
        listing.starts_with(
            "{\n \"format_version\": 1,\n \"files\": {\n  \"README.md\": {\n   \"size\": 10,"
        ),
        "{listing}"
    );
    // No partial blob is left, and no blob exists twice.
    let blobs = std::fs::read_dir(folder.join("blobs"))
        .expect("blobs")
        .count();
    assert_eq!(blobs, 5);

    // For a branch, the hub is asked only for the commit.
    let n_before = machine.n_requests();
    machine.fetch("org/tiny").expect("a model");
    assert_eq!(machine.n_requests(), n_before + 1);
    // For a commit, no request is needed.
    assert_eq!(
        machine
            .fetch(&format!("org/tiny@{commit}"))
            .expect("a model")
            .path,
        fetched.path
    );
    assert_eq!(
        machine.offline("org/tiny").expect("a model").path,
        fetched.path
    );
    assert_eq!(machine.n_requests(), n_before + 1);
}

#[test]
fn the_token_is_sent_only_to_the_hub() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    fetch_with(&machine.hub_with(Some(TOKEN), false), "org/tiny").expect("a model");
    let (hub, storage) = machine.server.received();
    assert!(
        hub.iter()
            .all(|request| request.headers.contains_key("authorization"))
    );
    assert!(storage.len() >= 2);
    assert!(
        storage
            .iter()
            .all(|request| !request.headers.contains_key("authorization"))
    );
}

#[test]
fn a_partial_download_is_resumed_by_the_same_and_by_another_process() {
    let machine = Machine::new();
    let large = sha256(&weights(3_000_000, 1));
    machine.server.fail(&large, 1, Fault::CutAfter(2_000_000));
    machine.fetch("org/tiny").expect("the rest comes");
    let (_, storage) = machine.server.received();
    let ranges: Vec<_> = storage
        .iter()
        .filter_map(|r| r.headers.get("range"))
        .collect();
    assert_eq!(ranges.len(), 1, "{ranges:?}");

    let machine = Machine::new();
    machine.server.fail(&large, 1, Fault::CutAfter(1_500_000));
    machine.server.fail(&large, 100, Fault::CutAfter(0));
    let name = "org/tiny@main";
    let error = machine.fetch(name).expect_err("cut too often").to_string();
    assert!(
        error.contains("broke off") || error.contains("were received"),
        "{error}"
    );
    let blobs = machine.file("models--org--tiny/blobs");
    let incomplete_files: Vec<_> = std::fs::read_dir(&blobs)
        .expect("blobs")
        .flatten()
        .collect();
    assert!(
        incomplete_files
            .iter()
            .any(|file| file.file_name().to_string_lossy().ends_with(".incomplete"))
    );
    let machine = Machine {
        server: Machine::new().server,
        dir: machine.dir,
    };
    let fetched = machine.fetch(name).expect("the rest comes");
    assert_eq!(
        std::fs::read(fetched.path.join("model-1.safetensors")).expect("a file"),
        weights(3_000_000, 1)
    );
    let (_, storage) = machine.server.received();
    assert!(
        storage
            .iter()
            .any(|request| request.headers.contains_key("range"))
    );
    let incomplete_files = std::fs::read_dir(&blobs).expect("blobs").flatten();
    assert_eq!(
        incomplete_files
            .filter(|f| f.file_name().to_string_lossy().contains("incomplete"))
            .count(),
        0
    );
}

#[test]
fn no_reply_to_a_range_request_damages_a_file() {
    for fault in [
        Fault::IgnoreRange,
        Fault::Status(416, vec![]),
        Fault::WrongByte,
        Fault::Silence,
        Fault::Status(403, vec![]),
        Fault::Status(503, vec![("Retry-After", "0")]),
    ] {
        let machine = Machine::new();
        let hash = "models--org--tiny/blobs";
        std::fs::create_dir_all(machine.file(hash)).expect("a folder");
        let sha = sha256(&weights(50_000, 2));
        // An earlier process downloaded this much.
        let incomplete = machine.file(&format!("{hash}/{sha}.incomplete"));
        std::fs::write(&incomplete, &weights(50_000, 2)[..20_000]).expect("written");
        machine.server.fail(&sha, 1, fault.clone());
        let fetched = machine
            .fetch("org/tiny")
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let fetched_bytes =
            std::fs::read(fetched.path.join("model-2.safetensors")).expect("a file");
        assert_eq!(fetched_bytes, weights(50_000, 2), "{fault:?}");
        // The partial download belongs to other content.
        let machine = Machine::new();
        std::fs::create_dir_all(machine.file(hash)).expect("a folder");
        let incomplete = machine.file(&format!("{hash}/{sha}.incomplete"));
        std::fs::write(&incomplete, vec![7; 60_000]).expect("written");
        let fetched = machine.fetch("org/tiny").expect("from the beginning");
        let fetched_bytes =
            std::fs::read(fetched.path.join("model-2.safetensors")).expect("a file");
        assert_eq!(fetched_bytes, weights(50_000, 2));
    }
}

#[test]
fn content_with_the_wrong_hash_is_never_stored() {
    for path in ["/file/", "/resolve/"] {
        let machine = Machine::new();
        machine.server.fail(path, 100, Fault::WrongByte);
        let error = machine.fetch("org/tiny").expect_err("damaged").to_string();
        assert!(error.contains("but the hub lists"), "{error}");
        let commit = machine.server.repo(REPO).commit();
        let snapshot = machine.file(&format!("models--org--tiny/snapshots/{commit}"));
        assert!(!snapshot.join("model-1.safetensors").exists());
        let error = machine
            .offline("org/tiny")
            .expect_err("not whole")
            .to_string();
        assert!(error.contains("`tooltune fetch org/tiny`"), "{error}");
    }
}

#[test]
fn refusals_give_advice() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    machine
        .server
        .add("models/org/gated", "config.json", b"{}", false);
    machine
        .server
        .add("models/org/gated", "model.safetensors", b"x", true);
    machine
        .server
        .change("models/org/gated", |repo| repo.is_gated = true);
    machine
        .server
        .add("models/org/private", "config.json", b"{}", false);
    machine
        .server
        .change("models/org/private", |repo| repo.is_private = true);
    for (name, token, expected) in [
        (
            "org/gated",
            None,
            "is gated: accept its conditions at http://127.0.0.1",
        ),
        ("org/gated", None, "set HF_TOKEN"),
        (
            "org/tony",
            None,
            "check the spelling (the owner has org/tiny)",
        ),
        ("org/private", None, "or it is private"),
        (
            "org/tiny",
            Some("hf_of_somebody_else"),
            "refuses your token",
        ),
        ("org/tiny@v2", None, "no revision \"v2\": it has main, v1"),
        (
            "hf://datasets/org/rows/d/trane.jsonl",
            None,
            "it has d/train.jsonl",
        ),
        (
            "hf://datasets/org/rows",
            None,
            "name a file of the data set: it has d/train.jsonl",
        ),
        (
            "hf://datasets/org/raws/x.jsonl",
            None,
            "no data set org/raws",
        ),
    ] {
        let hub = machine.hub_with(token, false);
        let error = fetch_with(&hub, name).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(
            !error.contains("somebody_else") && !error.contains(TOKEN),
            "{error}"
        );
    }
    // A token with access succeeds.
    fetch_with(&machine.hub_with(Some(TOKEN), false), "org/gated").expect("a model");
    // Afterwards every user of this cache has access, and a remark reports this.
    let result = machine.fetch("org/gated");
    assert!(result.is_ok(), "the commit is public: {result:?}");
}

#[test]
fn a_busy_hub_is_retried_and_finally_reported() {
    let machine = Machine::new();
    machine.server.fail(
        "/api/",
        2,
        Fault::Status(429, vec![("RateLimit", "\"api\";r=0;t=1")]),
    );
    let waits = Mutex::new(0);
    let hub = machine.hub_with(None, false);
    hub.fetch(&hub_name("org/tiny"), WantedFiles::All, &|event| {
        if let Event::Waiting { .. } = event {
            *waits.lock().expect("no panic") += 1;
        }
    })
    .expect("after a while");
    assert_eq!(*waits.lock().expect("no panic"), 2);

    let machine = Machine::new();
    machine.server.fail("", 1000, Fault::Status(429, vec![]));
    let error = machine.fetch("org/tiny").expect_err("busy").to_string();
    assert!(
        error.contains("too many requests") && error.contains("set HF_TOKEN"),
        "{error}"
    );
}

#[test]
fn the_cache_is_used_and_reported_if_the_hub_is_unreachable() {
    let machine = Machine::new();
    let fetched = machine.fetch("org/tiny").expect("a model");
    for fault in [
        Fault::Status(500, vec![]),
        Fault::Silence,
        Fault::Status(401, vec![]),
    ] {
        machine.server.fail("/api/", 100, fault);
        let cached = machine.fetch("org/tiny").expect("from the cache");
        assert_eq!(cached.path, fetched.path);
        assert!(cached.instead.is_some());
        // A name that does not exist gives an error.
        let error = machine
            .fetch("org/other")
            .expect_err("not there")
            .to_string();
        assert!(error.contains("127.0.0.1"), "{error}");
        let server = Machine::new().server;
        drop(server);
    }
    let closed = Hub::with_retry_policy(
        HubSettings {
            endpoint: "http://127.0.0.1:1".to_owned(),
            cache: machine.dir.path().join("hub"),
            token: None,
            is_offline: false,
        },
        TEST_POLICY,
    )
    .expect("a hub");
    assert!(
        fetch_with(&closed, "org/tiny")
            .expect("from the cache")
            .instead
            .is_some()
    );
    let error = closed.fetch(&hub_name("org/other"), WantedFiles::All, &|event| {
        panic!("an unreachable hub is requested again: {event:?}");
    });
    let error = error.expect_err("unreachable").to_string();
    assert!(
        error.contains("check the network and HF_ENDPOINT"),
        "{error}"
    );
    let error = machine
        .offline("org/other")
        .expect_err("offline")
        .to_string();
    assert!(
        error.contains("HF_HUB_OFFLINE is set; run `tooltune fetch org/other`"),
        "{error}"
    );
}

#[test]
fn replies_that_do_not_come_from_a_hub_are_detected() {
    for (path, fault, expected) in [
        (
            "/revision/",
            Fault::Page("<html>log in</html>"),
            "is not JSON",
        ),
        (
            "/revision/",
            Fault::Page("{\"sha\": \"../../x\"}"),
            "without the commit",
        ),
        ("/tree/", Fault::Page("{}"), "no list of files"),
        (
            "/tree/",
            Fault::Page("[{\"type\": \"file\", \"path\": \"../x\", \"size\": 1, \"oid\": \"\"}]"),
            "whose path is not safe to create",
        ),
        (
            "/tree/",
            Fault::Page("[{\"type\": \"file\", \"path\": \"x\", \"size\": 1, \"oid\": \"../..\"}]"),
            "without path, size or hash",
        ),
        (
            "/revision/",
            Fault::Status(302, vec![("Location", "file:///etc/passwd")]),
            "redirects without an address",
        ),
        (
            "",
            Fault::Status(302, vec![("Location", "/loop")]),
            "redirects too often",
        ),
        (
            "/revision/",
            Fault::Status(302, vec![]),
            "redirects without an address",
        ),
    ] {
        let machine = Machine::new();
        machine.server.fail(path, 100, fault);
        let error = machine.fetch("org/tiny").expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!machine.file("models--org--tiny/refs").exists(), "{error}");
    }
    for endpoint in [
        "huggingface.co",
        "ftp://x",
        "https://me:secret@x",
        "https://x/?a=secret",
    ] {
        let settings = HubSettings {
            endpoint: endpoint.to_owned(),
            cache: "cache".into(),
            token: None,
            is_offline: false,
        };
        let error = Hub::new(settings).expect_err(endpoint).to_string();
        assert!(
            error.contains("HF_ENDPOINT") && !error.contains("secret"),
            "{error}"
        );
    }
}

#[test]
fn two_processes_fetch_each_content_once() {
    let machine = Machine::new();
    std::thread::scope(|scope| {
        let fetch = || machine.fetch("org/tiny").expect("a model").path;
        let both = [scope.spawn(fetch), scope.spawn(fetch)].map(|thread| thread.join());
        let [one, other] = both.map(|path| path.expect("no panic"));
        assert_eq!(one, other);
    });
    let (_, storage) = machine.server.received();
    assert_eq!(storage.len(), 2, "{storage:?}");
}

#[test]
fn single_files_of_another_program_are_found_and_completed() {
    let machine = Machine::new();
    let fetched = machine.fetch("org/tiny").expect("a model");
    // Simulate a cache from single-file downloads, which has no listing.
    std::fs::remove_dir_all(machine.file("models--org--tiny/trees")).expect("removed");
    assert_eq!(
        machine.offline("org/tiny").expect("looks whole").path,
        fetched.path
    );
    std::fs::remove_file(fetched.path.join("model-2.safetensors")).expect("removed");
    let error = machine
        .offline("org/tiny")
        .expect_err("a shard is missing")
        .to_string();
    assert!(
        error.contains("with all required files of its commit"),
        "{error}"
    );
    let n_before = machine.server.received().1.len();
    machine.fetch("org/tiny").expect("linked again");
    // Nothing was downloaded again, because the blob still existed.
    assert_eq!(machine.server.received().1.len(), n_before);
}
