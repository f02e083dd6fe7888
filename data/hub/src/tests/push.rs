//! Tests uploads of exports.

use std::path::Path;

use super::{Machine, TOKEN, weights};
use crate::test_hub::Fault;
use crate::{Hub, HubError, KeptCard, Pushed, Upload, marked_card};

/// An upload to the named repository, as the command makes it.
fn upload(hub: &Hub, repo: &str, path: &Path) -> Result<Pushed, HubError> {
    let target = hub.prepare_upload(repo, true, &|_| {})?;
    let upload = Upload {
        target: &target,
        path,
        replaces_card: false,
        message: "A message",
    };
    hub.push(upload, &|_| {})
}

/// Creates a folder with these files, replacing an earlier one.
fn folder(path: &Path, files: &[(&str, &str)]) {
    let _ = std::fs::remove_dir_all(path);
    for (name, content) in files {
        let file = path.join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, content).expect("written");
    }
}

#[test]
fn an_export_becomes_one_commit_and_is_not_sent_twice() {
    for part_bytes in [None, Some(30_000)] {
        let machine = Machine::new();
        machine.server.require_token(TOKEN);
        if let Some(bytes) = part_bytes {
            machine.server.require_parts_of(bytes);
        }
        let export = machine.dir.path().join("export");
        std::fs::create_dir_all(export.join("sub")).expect("a folder");
        std::fs::write(export.join("README.md"), marked_card("# Card")).expect("written");
        std::fs::write(export.join("sub/empty.safetensors"), "").expect("written");
        std::fs::write(
            export.join("adapter_model.safetensors"),
            weights(100_000, 3),
        )
        .expect("written");
        let hub = machine.hub_with(Some(TOKEN), false);
        let push = || upload(&hub, "org/adapter", &export);
        machine
            .server
            .fail("/commit/", 1, Fault::Status(500, vec![]));
        let error = push().expect_err("no commit").to_string();
        assert!(error.contains("returns status 500"), "{error}");
        assert!(machine.server.repo("models/org/adapter").files.is_empty());
        machine
            .server
            .fail("/upload/", 1, Fault::Status(500, vec![]));
        let pushed = push().expect("a commit");
        let repo = machine.server.repo("models/org/adapter");
        assert_eq!(pushed.commit, Some(repo.commit()));
        assert_eq!(pushed.page, format!("{}/org/adapter", machine.server.url()));
        assert!(repo.is_private);
        assert_eq!(repo.messages, ["A message"]);
        assert_eq!(
            repo.files["adapter_model.safetensors"].bytes,
            weights(100_000, 3)
        );
        assert!(repo.files["adapter_model.safetensors"].is_large);
        assert!(!repo.files["sub/empty.safetensors"].is_large);
        assert_eq!(
            repo.files["README.md"].bytes,
            marked_card("# Card").as_bytes()
        );
        let second = push().expect("nothing to do");
        assert_eq!(second.commit, None);
        std::fs::write(export.join("README.md"), "# Other").expect("written");
        push().expect("a commit");
        let (_, storage) = machine.server.received();
        let n_sent = storage
            .iter()
            .filter(|request| request.method == "PUT")
            .count();
        // One transfer, or four parts, sent once.
        assert_eq!(n_sent, if part_bytes.is_some() { 4 } else { 1 });
    }
}

#[test]
fn a_refused_upload_is_an_error_with_the_reason() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    let export = machine.dir.path().join("export");
    std::fs::create_dir_all(&export).expect("a folder");
    std::fs::write(export.join("x.ignored"), "x").expect("written");
    for (repo, token, is_offline, expected) in [
        ("org/adapter", None, false, "set HF_TOKEN"),
        (
            "org/adapter",
            Some("hf_of_somebody"),
            false,
            "refuses your token",
        ),
        (
            "others/adapter",
            Some(TOKEN),
            false,
            "with permission to write",
        ),
        ("adapter", Some(TOKEN), false, "write owner/name"),
        ("org/adapter", Some(TOKEN), true, "HF_HUB_OFFLINE"),
        ("org/adapter", Some(TOKEN), false, ".gitignore"),
    ] {
        let hub = machine.hub_with(token, is_offline);
        let error = upload(&hub, repo, &export).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_commit_deletes_files_of_an_earlier_export_that_loaders_would_use() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    let hub = machine.hub_with(Some(TOKEN), false);
    let export = machine.dir.path().join("export");
    let names = || -> Vec<String> {
        let repo = machine.server.repo("models/org/m");
        repo.files.into_keys().collect()
    };
    let forms: [&[(&str, &str)]; 4] = [
        &[("config.json", "{}"), ("model.safetensors", "one")],
        &[
            ("config.json", "{}"),
            ("model-00001-of-00002.safetensors", "a"),
            ("model-00002-of-00002.safetensors", "b"),
            ("model.safetensors.index.json", "{}"),
        ],
        &[
            ("adapter_config.json", "{}"),
            ("adapter_model.safetensors", "c"),
        ],
        &[("config.json", "{}"), ("model.safetensors", "two")],
    ];
    for (n, files) in forms.into_iter().enumerate() {
        folder(&export, files);
        let n_before = if n == 0 { 0 } else { names().len() };
        let pushed = upload(&hub, "org/m", &export).expect("a commit");
        let new: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        assert_eq!(names(), new);
        let n_kept = usize::from(n == 1);
        assert_eq!(pushed.deleted.len(), n_before - n_kept, "{pushed:?}");
        assert_eq!(machine.server.repo("models/org/m").messages.len(), n + 1);
    }
    // A second upload of the same export deletes nothing, and a GGUF file stays next to other
    // files.
    let second = upload(&hub, "org/m", &export).expect("nothing to do");
    assert_eq!((second.commit, second.deleted), (None, Vec::new()));
    folder(&export, &[("m.gguf", "GGUF")]);
    let pushed = upload(&hub, "org/m", &export.join("m.gguf")).expect("a commit");
    assert_eq!(pushed.kept, ["config.json", "model.safetensors"]);
    assert_eq!(names(), ["config.json", "m.gguf", "model.safetensors"]);
}

#[test]
fn a_foreign_card_is_kept_unless_replacement_is_requested() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    let hub = machine.hub_with(Some(TOKEN), false);
    let export = machine.dir.path().join("export");
    let card = || {
        let repo = machine.server.repo("models/org/m");
        String::from_utf8(repo.files["README.md"].bytes.clone()).expect("UTF-8")
    };
    let own_cards = ["One.", "Two.", "Three."].map(marked_card);
    let write = |text: &str| folder(&export, &[("README.md", text), ("model.safetensors", text)]);
    write(&own_cards[0]);
    upload(&hub, "org/m", &export).expect("a commit");
    write(&own_cards[1]);
    let pushed = upload(&hub, "org/m", &export).expect("a commit");
    assert_eq!((card(), pushed.kept_card), (own_cards[1].clone(), None));
    let edited_card = own_cards[1].replace("Two.", "Two, and what I found.");
    let (server, repo) = (&machine.server, "models/org/m");
    server.add(repo, "README.md", edited_card.as_bytes(), false);
    write(&own_cards[2]);
    let pushed = upload(&hub, "org/m", &export).expect("a commit");
    assert_eq!(
        (card(), pushed.kept_card),
        (edited_card, Some(KeptCard::OfOthers))
    );
    assert!(pushed.commit.is_some());
    // The author of a card that the hub does not send is unknown.
    server.fail("/resolve/main/README.md", 1, Fault::Status(404, Vec::new()));
    write(&own_cards[0]);
    let pushed = upload(&hub, "org/m", &export).expect("a commit");
    assert_eq!(pushed.kept_card, Some(KeptCard::Unread));
    let target = hub.prepare_upload("org/m", false, &|_| {}).expect("there");
    let upload = Upload {
        target: &target,
        path: &export,
        replaces_card: true,
        message: "A message",
    };
    hub.push(upload, &|_| {}).expect("a commit");
    assert_eq!(card(), own_cards[0]);
}

#[test]
fn a_concurrently_changed_repository_is_not_overwritten() {
    let machine = Machine::new();
    machine.server.require_token(TOKEN);
    let hub = machine.hub_with(Some(TOKEN), false);
    let export = machine.dir.path().join("export");
    folder(&export, &[("model.safetensors", "x")]);
    upload(&hub, "org/m", &export).expect("a commit");
    folder(&export, &[("model.safetensors", "y")]);
    let target = hub.prepare_upload("org/m", false, &|_| {}).expect("there");
    let upload = Upload {
        target: &target,
        path: &export,
        replaces_card: false,
        message: "A message",
    };
    let error = hub.push(upload, &|event| {
        if matches!(event, crate::Event::Begun { .. }) {
            machine.server.add("models/org/m", "LICENSE", b"MIT", false);
        }
    });
    let error = error.expect_err("another commit").to_string();
    assert!(error.contains("changed since"), "{error}");
    assert!(
        !machine.server.repo("models/org/m").files["model.safetensors"]
            .bytes
            .contains(&b'y')
    );
}
