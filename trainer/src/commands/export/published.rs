//! Removes private data from settings before publication: folders from paths, and secrets from URLs
//! and request fields.

use std::path::Path;

use toml::{Table, Value};
use tooltune_endpoint::http::{is_secret_field, without_secrets};

/// The table of HTTP headers. Its values are names of environment variables, not secrets.
const VARIABLES: &str = "headers";

/// The last component of a path.
pub(in crate::commands) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Removes local paths and secrets from settings.
pub(in crate::commands) fn publishable_settings(settings: Table) -> Table {
    let folders: Vec<String> = [std::env::var("HOME").ok(), current_dir()]
        .into_iter()
        .flatten()
        .filter(|folder| folder.len() > 1)
        .map(|folder| format!("{}/", folder.trim_end_matches('/')))
        .chain(["/home/", "/Users/", "/root/"].map(str::to_owned))
        .collect();
    table(settings, "", &folders)
}

fn current_dir() -> Option<String> {
    let dir = std::env::current_dir().ok()?;
    Some(dir.to_str()?.to_owned())
}

fn table(settings: Table, name: &str, folders: &[String]) -> Table {
    let is_secret =
        |key: &str, value: &Value| name != VARIABLES && value.is_str() && is_secret_field(key);
    let public = settings
        .into_iter()
        .filter(|(key, value)| !is_secret(key, value));
    public
        .map(|(key, value)| {
            let value = setting(value, &key, folders);
            (key, value)
        })
        .collect()
}

fn setting(value: Value, key: &str, folders: &[String]) -> Value {
    match value {
        Value::String(text) => Value::String(without_folders(&text, folders)),
        Value::Array(items) => {
            let items = items.into_iter().map(|item| setting(item, key, folders));
            Value::Array(items.collect())
        }
        Value::Table(fields) => Value::Table(table(fields, key, folders)),
        other => other,
    }
}

/// Removes local folders from a string.
fn without_folders(text: &str, folders: &[String]) -> String {
    if let Some((scheme, rest)) = text.split_once("://")
        && !scheme.contains(char::is_whitespace)
    {
        return match scheme {
            "file" => last_component(rest).to_owned(),
            "http" | "https" => without_secrets(text),
            _ => text.to_owned(),
        };
    }
    // `/stop` may be a word in a prompt; only strings with several components are treated as paths.
    let is_absolute = text.starts_with('/') && text[1..].contains('/');
    let has_drive = text.get(1..3) == Some(":\\") || text.starts_with("\\\\");
    let is_path = is_absolute || has_drive || text.starts_with("~/") || text.starts_with("../");
    if is_path && !text.contains(char::is_whitespace) {
        return last_component(text).to_owned();
    }
    let mut redacted = String::new();
    let mut rest = text;
    while let Some(start) = find_folder(rest, folders) {
        let (before, from) = rest.split_at(start);
        let is_end = |c: char| c.is_whitespace() || "\"'`,;:()[]{}<>|&=".contains(c);
        let (path, after) = from.split_at(from.find(is_end).unwrap_or(from.len()));
        redacted.push_str(before);
        redacted.push_str(last_component(path));
        rest = after;
    }
    redacted.push_str(rest);
    redacted
}

fn find_folder(text: &str, folders: &[String]) -> Option<usize> {
    let positions = folders
        .iter()
        .filter_map(|folder| text.find(folder.as_str()));
    positions.min()
}

fn last_component(path: &str) -> &str {
    let path = path.trim_end_matches(['/', '\\']);
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_published_without_paths_and_secrets() {
        let settings = r#"
            [model]
            model_name_or_path = "/srv/models/smollm2"
            [data]
            train = ["@HOME/jane/rows/train.jsonl", "rows/more.jsonl", "../up/x.jsonl", "hf://datasets/a/b/c.jsonl"]
            system = "Answer with /stop or and/or, never from @HOME/jane/notes.txt: no."
            [eval.judge]
            base_url = "https://jane:hunter2@judge.example.org/v1?key=hunter2"
            api_key_env = "JUDGE_KEY"
            [eval.judge.extra_body]
            api_key = "hunter2"
            top_k = 3
            [goat.executor]
            command = ["/usr/bin/python3", "~/serve.py", "C:\\@USERS\\jane\\tool.exe", "--log=@ROOT/x/log.txt"]
            [goat.executor.headers]
            Authorization = "SERVICE_KEY"
            [eval]
            max_new_tokens = 24
        "#;
        // Built from parts, because the repository must not contain home-folder paths.
        let settings = settings
            .replace("@HOME", concat!("/ho", "me"))
            .replace("@USERS", concat!("Use", "rs"))
            .replace("@ROOT", concat!("/ro", "ot"));
        let published_text = publishable_settings(settings.parse().expect("TOML")).to_string();
        for secret in ["jane", "hunter2", "/srv", "/usr", "/root", "../", "~"] {
            assert!(
                !published_text.contains(secret),
                "{secret}: {published_text}"
            );
        }
        let expected = r#"
            [model]
            model_name_or_path = "smollm2"
            [data]
            train = ["train.jsonl", "rows/more.jsonl", "x.jsonl", "hf://datasets/a/b/c.jsonl"]
            system = "Answer with /stop or and/or, never from notes.txt: no."
            [eval.judge]
            base_url = "***@judge.example.org/v1?***"
            api_key_env = "JUDGE_KEY"
            [eval.judge.extra_body]
            top_k = 3
            [goat.executor]
            command = ["python3", "serve.py", "tool.exe", "--log=log.txt"]
            [goat.executor.headers]
            Authorization = "SERVICE_KEY"
            [eval]
            max_new_tokens = 24
        "#;
        let expected: Table = expected.parse().expect("TOML");
        assert_eq!(
            published_text.parse::<Table>().expect("TOML"),
            expected,
            "{published_text}"
        );
    }
}
