//! Tests hubs whose headers identify other content than they send, and caches modified by other
//! users.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;

use super::{Machine, REPO, TOKEN, fetch_with, sha256, weights};
use crate::test_hub::Fault;
use crate::{Event, WantedFiles};

/// The git hash of `{}`, the content of config.json.
const CONFIG: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
const BLOBS: &str = "models--org--tiny/blobs";

fn pipe(path: &Path) {
    let status = std::process::Command::new("mkfifo").arg(path).status();
    assert!(status.expect("mkfifo").success());
}

#[test]
fn a_header_that_identifies_other_content_is_refused() {
    let weights = sha256(&weights(50_000, 2));
    let commit = "0".repeat(40);
    let cases = [
        ("ETag", weights.clone(), CONFIG),
        ("X-Linked-Etag", "1".repeat(64), CONFIG),
        ("X-Linked-Etag", weights.to_uppercase(), CONFIG),
        ("X-Repo-Commit", commit.clone(), ""),
    ];
    for (header, value, expected) in cases {
        let machine = Machine::new();
        let is_quoted = header != "X-Repo-Commit";
        let header_value = if is_quoted {
            format!("\"{value}\"")
        } else {
            value.clone()
        };
        let header_fault = Fault::Header(header, header_value);
        machine.server.fail("config.json", 100, header_fault);
        let error = machine.fetch("org/tiny").expect_err(header).to_string();
        let value = value.to_lowercase();
        for part in ["config.json", header, value.as_str(), expected] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let blob = machine.file(BLOBS).join(&value);
        assert!(
            blob.metadata().map_or(true, |metadata| metadata.len() > 2),
            "{header}"
        );
    }
    // The ETag of a mirror may be any hash, or none; the content is still checked.
    for value in ["\"x\"", "W/\"0123456789012345678901234567890123456789\""] {
        let machine = Machine::new();
        let header_fault = Fault::Header("ETag", value.to_owned());
        machine.server.fail("config.json", 100, header_fault);
        let metadata = machine.fetch("org/tiny").expect("a model");
        let link = std::fs::read_link(metadata.path.join("config.json")).expect("a link");
        assert_eq!(link, Path::new("../../blobs").join(CONFIG));
    }
}

#[test]
fn links_pipes_and_folders_in_a_cache_are_refused_and_not_followed() {
    let commit = Machine::new().server.repo(REPO).commit();
    let cache_paths = [
        format!("{BLOBS}/{CONFIG}.incomplete"),
        format!("{BLOBS}/{CONFIG}"),
        format!(".locks/models--org--tiny/{CONFIG}.lock"),
        "models--org--tiny/refs/main".to_owned(),
        format!("models--org--tiny/trees/{commit}.json"),
        format!("models--org--tiny/snapshots/{commit}/config.json"),
    ];
    for cache_path in &cache_paths {
        for kind in ["link", "loose link", "pipe", "folder"] {
            let machine = Machine::new();
            let victim = machine.dir.path().join("victim");
            std::fs::write(&victim, "precious").expect("written");
            let path = machine.file(cache_path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            match kind {
                "link" => symlink(&victim, &path).expect("a link"),
                "loose link" => symlink(machine.dir.path().join("new"), &path).expect("a link"),
                "pipe" => pipe(&path),
                _ => std::fs::create_dir(&path).expect("a folder"),
            }
            std::fs::create_dir_all(machine.file(BLOBS)).expect("a folder");
            let fetched = machine.fetch("org/tiny");
            let is_dangling = kind == "loose link" && cache_path.contains("snapshots");
            match fetched {
                // A link to a deleted blob is created again.
                Ok(metadata) if is_dangling => {
                    let config = std::fs::read(metadata.path.join("config.json"));
                    assert_eq!(config.expect("a file"), b"{}");
                }
                fetched => {
                    let error = fetched.expect_err(kind).to_string();
                    let name = path.file_name().expect("a name").to_string_lossy();
                    assert!(error.contains(&*name), "{cache_path} {kind}: {error}");
                }
            }
            assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
            assert!(
                !machine.dir.path().join("new").exists(),
                "{cache_path} {kind}"
            );
        }
    }
    // A hard link to another user's file.
    let machine = Machine::new();
    std::fs::create_dir_all(machine.file(BLOBS)).expect("a folder");
    let victim = machine.dir.path().join("victim");
    std::fs::write(&victim, "precious").expect("written");
    std::fs::hard_link(&victim, machine.file(&cache_paths[0])).expect("a link");
    let error = machine
        .fetch("org/tiny")
        .expect_err("a hard link")
        .to_string();
    assert!(error.contains("2 hard links"), "{error}");
    assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
}

#[test]
fn a_wrong_link_and_a_blob_of_wrong_length_are_replaced() {
    let machine = Machine::new();
    let fetched = machine.fetch("org/tiny").expect("a model");
    let config = fetched.path.join("config.json");
    let other = std::fs::read_link(fetched.path.join("tokenizer.json")).expect("a link");
    std::fs::remove_file(&config).expect("removed");
    symlink(other, &config).expect("a link");
    machine.fetch("org/tiny").expect("a model");
    assert_eq!(std::fs::read(&config).expect("a file"), b"{}");
    let blob = machine.file(BLOBS).join(sha256(&weights(50_000, 2)));
    std::fs::write(&blob, "cut").expect("written");
    machine.fetch("org/tiny").expect("a model");
    assert_eq!(std::fs::read(&blob).expect("a file"), weights(50_000, 2));
}

#[test]
fn sizes_that_would_wrap_do_not_fit_a_disk() {
    for size in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let machine = Machine::new();
        let file = |path: &str, n: usize| {
            format!(
                "{{\"type\": \"file\", \"path\": \"{path}\", \"size\": {size}, \"oid\": \"{n:040}\"}}"
            )
        };
        let names = ["config.json", "model.safetensors", "tokenizer.json"];
        let files: Vec<String> = names
            .iter()
            .zip(1..)
            .map(|(name, n)| file(name, n))
            .collect();
        let page: &'static str = format!("[{}]", files.join(",")).leak();
        machine.server.fail("/tree/", 100, Fault::Page(page));
        let error = machine.fetch("org/tiny").expect_err("no disk").to_string();
        assert!(error.contains("free some space"), "{error}");
        assert_eq!(
            std::fs::read_dir(machine.file(BLOBS))
                .expect("blobs")
                .count(),
            0
        );
    }
}

#[test]
fn a_reply_with_too_many_values_is_refused_before_parsing() {
    for value in ["0,", "{},", "[[]],"] {
        let machine = Machine::new();
        let page: &'static str = format!("[{}0]", value.repeat(1_100_000)).leak();
        machine.server.fail("/tree/", 100, Fault::Page(page));
        let error = machine.fetch("org/tiny").expect_err(value).to_string();
        assert!(error.contains("more than 1000000 JSON values"), "{error}");
    }
}

#[test]
fn control_characters_in_hub_names_are_escaped() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    let refs = "{\"branches\": [{\"name\": \"\\u001b]0;x\\u0007main\\r\\nerror: false\"}], \
                \"tags\": [{\"name\": \"\\u009b31m\\u202e\"}]}";
    machine.server.fail("/refs", 100, Fault::Page(refs));
    let listing = "[{\"id\": \"org/\\u001btiny\"}, {\"id\": \"org/tiny\\n\"}]";
    machine.server.fail("author=", 100, Fault::Page(listing));
    for name in ["org/tiny@v2", "org/tinx"] {
        let hub = machine.hub_with(None, false);
        let error = fetch_with(&hub, name).expect_err(name).to_string();
        let is_plain = |c: char| !c.is_control() && c != '\u{202e}';
        assert!(error.chars().all(is_plain), "{error:?}");
        assert!(error.contains("\\u{1b}"), "{error}");
    }
    machine
        .server
        .add("models/org/odd", "a\u{202e}b.gguf", b"x", false);
    machine.server.add("models/org/odd", "c.gguf", b"x", false);
    let error = machine.fetch("org/odd").expect_err("no model").to_string();
    assert!(error.contains("a\\u{202e}b.gguf"), "{error}");
}

#[test]
fn an_unreachable_hub_is_retried_only_after_an_earlier_reply() {
    let machine = Machine::new();
    let hub = machine.hub_with(None, false);
    fetch_with(&hub, "org/tiny").expect("a model");
    drop(machine.server);
    let n_waits = Mutex::new(0);
    let name = super::hub_name("org/other");
    let error = hub.fetch(&name, WantedFiles::All, &|event| {
        if matches!(event, Event::Waiting { .. }) {
            *n_waits.lock().expect("no panic") += 1;
        }
    });
    assert!(error.is_err());
    assert_eq!(
        *n_waits.lock().expect("no panic"),
        super::TEST_POLICY.tries - 1
    );
}
