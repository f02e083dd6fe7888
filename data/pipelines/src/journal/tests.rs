//! Tests of journals that are complete, truncated, damaged, removed, or of earlier versions.

use serde_json::json;

use super::*;

fn settings(rows: usize) -> Map<String, Value> {
    Map::from_iter([
        ("rows".to_owned(), json!(rows)),
        ("seed".to_owned(), json!(1)),
    ])
}

fn reply(text: &str) -> Entry {
    Entry::Reply(Reply {
        text: text.to_owned(),
        finish_reason: "stop".to_owned(),
        n_prompt_tokens: 3,
        n_tokens: 2,
        without_text: None,
    })
}

fn reopen(dir: &Path) -> Journal {
    Journal::open(dir, &settings(1)).unwrap()
}

#[test]
fn a_reopened_journal_has_its_replies_and_a_truncated_line_loses_only_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = reopen(dir.path());
    let fault = Unanswered {
        kind: "context".to_owned(),
        message: "too long".to_owned(),
        is_final: false,
    };
    journal.add("judge/1", reply("{\"x\": \"é\n\"}")).unwrap();
    journal
        .add("judge/2", Entry::Unanswered(fault.clone()))
        .unwrap();
    journal.add("write/1", reply("b")).unwrap();
    journal.sync().unwrap();
    drop(journal);
    let path = dir.path().join(JOURNAL_FILE);
    let complete_bytes = std::fs::read(&path).unwrap();
    let line_ends: Vec<usize> = (0..complete_bytes.len())
        .filter(|&at| complete_bytes[at] == b'\n')
        .collect();
    for length in line_ends[0] + 1..=complete_bytes.len() {
        std::fs::write(&path, &complete_bytes[..length]).unwrap();
        let mut journal = reopen(dir.path());
        let n_whole = line_ends[1..].iter().filter(|end| **end < length).count();
        assert_eq!(journal.len(), n_whole, "{length}");
        let is_torn = !line_ends.contains(&(length - 1));
        assert_eq!(journal.notes().len(), usize::from(is_torn), "{length}");
        journal.add("write/1", reply("again")).unwrap();
        drop(journal);
        let journal = reopen(dir.path());
        assert_eq!(journal.get("write/1"), Some(&reply("again")), "{length}");
        assert_eq!(
            journal.len(),
            n_whole.max(1) + usize::from(n_whole == 1 || n_whole == 2),
            "{length}"
        );
    }
    std::fs::write(&path, &complete_bytes).unwrap();
    let journal = reopen(dir.path());
    assert_eq!(journal.get("judge/2"), Some(&Entry::Unanswered(fault)));
    let judge_keys: Vec<&str> = journal.entries_of("judge/").map(|(key, _)| key).collect();
    assert_eq!(judge_keys, ["judge/1", "judge/2"]);
}

#[test]
fn a_damaged_line_loses_only_its_own_reply_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = reopen(dir.path());
    for n in 1..=3 {
        journal.add(&format!("a/{n}"), reply("text")).unwrap();
    }
    drop(journal);
    let path = dir.path().join(JOURNAL_FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let damaged: Vec<String> = text
        .lines()
        .enumerate()
        .map(|(n, line)| match n {
            2 => line.replace("\"text\":\"text\"", "\"text\":\"Text\""),
            _ => line.to_owned(),
        })
        .collect();
    std::fs::write(&path, damaged.join("\n") + "\n").unwrap();
    let journal = reopen(dir.path());
    assert_eq!((journal.len(), journal.get("a/2")), (2, None));
    assert!(journal.notes()[0].contains(":3: 1 of 3 lines are damaged"));
}

#[test]
fn changed_settings_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(reopen(dir.path()));
    let error = Journal::open(dir.path(), &settings(2)).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("rows was 1, now 2"), "{error}");
    assert!(!error.contains("seed"), "{error}");
}

#[test]
fn a_damaged_first_line_loses_no_reply_and_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(JOURNAL_FILE);
    let mut journal = reopen(dir.path());
    for n in 1..=3 {
        journal.add(&format!("a/{n}"), reply("text")).unwrap();
    }
    drop(journal);
    let whole = std::fs::read(&path).unwrap();
    let end = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut damaged: Vec<Vec<u8>> = (0..end - 1)
        .map(|n_bytes| {
            let mut bytes = whole.clone();
            bytes[n_bytes] ^= 1;
            bytes
        })
        .collect();
    damaged.push(whole[end..].to_vec());
    damaged.push([b"\xef\xbb\xbf", &whole[..]].concat());
    damaged.push([b"\n", &whole[end..]].concat());
    for bytes in damaged {
        std::fs::write(&path, &bytes).unwrap();
        let journal = reopen(dir.path());
        assert_eq!(journal.len(), 3, "{}", String::from_utf8_lossy(&bytes));
        assert!(journal.notes()[0].contains(":1: the line with the settings is damaged"));
        drop(journal);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        // Replies with other settings are not used.
        std::fs::write(&path, &bytes).unwrap();
        assert!(Journal::open(dir.path(), &settings(2)).is_err());
    }
    for bytes in [&whole[..0], b"\n", &whole[..end - 5]] {
        std::fs::write(&path, bytes).unwrap();
        let journal = reopen(dir.path());
        assert_eq!(journal.len(), 0);
        assert!(!journal.notes().is_empty());
        drop(journal);
        assert!(reopen(dir.path()).notes().is_empty());
    }
}

#[test]
fn a_journal_of_an_earlier_version_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(JOURNAL_FILE);
    // The format of earlier versions, without settings digests.
    let old = concat!(
        "{\"settings\":{\"rows\":1,\"seed\":1}}\n",
        "{\"key\":\"a/1\",\"reply\":{\"text\":\"text\",\"finish_reason\":\"stop\",",
        "\"n_prompt_tokens\":3,\"n_tokens\":2},\"check\":\"CHECK\"}\n",
    );
    let checked = serde_json::to_vec(&("a/1", reply("text"))).unwrap();
    let old = old.replace("CHECK", &crate::prompts::digest(&checked)[..16]);
    std::fs::write(&path, &old).unwrap();
    let mut journal = reopen(dir.path());
    assert_eq!((journal.len(), journal.notes().len()), (1, 0));
    journal.add("a/2", reply("more")).unwrap();
    drop(journal);
    assert_eq!(reopen(dir.path()).len(), 2);
    // Without the first line, its replies cannot be attributed to these settings.
    std::fs::write(&path, old.replace("\"rows\"", "\"rows")).unwrap();
    let error = Journal::open(dir.path(), &settings(1)).unwrap_err();
    assert!(
        error.to_string().contains(":1: the line with the settings"),
        "{error}"
    );
}

#[test]
fn a_journal_that_is_removed_or_truncated_during_a_run_is_rewritten() {
    for change in ["removed", "truncated"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL_FILE);
        let mut journal = reopen(dir.path());
        journal.add("a/1", reply("one")).unwrap();
        journal.sync().unwrap();
        match change {
            "removed" => std::fs::remove_file(&path).unwrap(),
            _ => File::create(&path).map(drop).unwrap(),
        }
        journal.add("a/2", reply("two")).unwrap();
        journal.sync().unwrap();
        let note = &journal.notes()[0];
        assert!(note.contains(&format!("the file was {change}")), "{note}");
        journal.add("a/3", reply("three")).unwrap();
        drop(journal);
        let reopened = reopen(dir.path());
        assert_eq!((reopened.len(), reopened.notes().len()), (3, 0), "{change}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(JOURNAL_FILE);
    let mut journal = reopen(dir.path());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "of somebody else").unwrap();
    journal.add("a/1", reply("one")).unwrap();
    let error = journal.sync().unwrap_err().to_string();
    assert!(error.contains("another file has replaced it"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"of somebody else");
}

#[test]
fn a_symbolic_link_instead_of_a_journal_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join(JOURNAL_FILE)).unwrap();
    let error = Journal::open(dir.path(), &settings(1)).unwrap_err();
    assert!(error.to_string().contains("a symbolic link"), "{error}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}
