//! Uploads of exports.

use super::{Machine, TOKEN, weights};
use crate::Upload;
use crate::test_hub::Fault;

#[test]
fn an_export_becomes_one_commit_and_is_not_sent_twice() {
    for part_bytes in [None, Some(30_000)] {
        let machine = Machine::new();
        machine.server.take_token(TOKEN);
        if let Some(bytes) = part_bytes {
            machine.server.take_parts_of(bytes);
        }
        let export = machine.dir.path().join("export");
        std::fs::create_dir_all(export.join("sub")).expect("a folder");
        std::fs::write(export.join("README.md"), "# Card").expect("written");
        std::fs::write(export.join("sub/empty.safetensors"), "").expect("written");
        std::fs::write(
            export.join("adapter_model.safetensors"),
            weights(100_000, 3),
        )
        .expect("written");
        let hub = machine.hub_with(Some(TOKEN), false);
        let upload = Upload {
            repo: "org/adapter",
            path: &export,
            is_private: true,
            message: "A message",
        };
        machine
            .server
            .fail("/commit/", 1, Fault::Status(500, vec![]));
        let error = hub
            .push(upload, &|_| {})
            .expect_err("no commit")
            .to_string();
        assert!(error.contains("answers 500"), "{error}");
        assert!(machine.server.repo("models/org/adapter").files.is_empty());
        machine
            .server
            .fail("/upload/", 1, Fault::Status(500, vec![]));
        let pushed = hub.push(upload, &|_| {}).expect("a commit");
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
        assert_eq!(repo.files["README.md"].bytes, b"# Card");
        let again = hub.push(upload, &|_| {}).expect("nothing to do");
        assert_eq!(again.commit, None);
        std::fs::write(export.join("README.md"), "# Other").expect("written");
        hub.push(upload, &|_| {}).expect("a commit");
        let (_, storage) = machine.server.received();
        let n_sent = storage
            .iter()
            .filter(|request| request.method == "PUT")
            .count();
        // A first send, or four parts; once.
        assert_eq!(n_sent, if part_bytes.is_some() { 4 } else { 1 });
    }
}

#[test]
fn an_upload_that_is_not_taken_says_why() {
    let machine = Machine::new();
    machine.server.take_token(TOKEN);
    let export = machine.dir.path().join("export");
    std::fs::create_dir_all(&export).expect("a folder");
    std::fs::write(export.join("x.ignored"), "x").expect("written");
    for (repo, token, is_offline, expected) in [
        ("org/adapter", None, false, "set HF_TOKEN"),
        (
            "org/adapter",
            Some("hf_of_somebody"),
            false,
            "does not take your token",
        ),
        (
            "others/adapter",
            Some(TOKEN),
            false,
            "with the right to write",
        ),
        ("adapter", Some(TOKEN), false, "write owner/name"),
        ("org/adapter", Some(TOKEN), true, "HF_HUB_OFFLINE"),
        ("org/adapter", Some(TOKEN), false, ".gitignore"),
    ] {
        let hub = machine.hub_with(token, is_offline);
        let upload = Upload {
            repo,
            path: &export,
            is_private: false,
            message: "x",
        };
        let error = hub.push(upload, &|_| {}).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
