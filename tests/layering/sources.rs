//! The repository's files as the layering tests see them: text, code without comments and strings,
//! and library code without tests.
//!
//! A small reader of Rust's tokens, because a word in a comment is no use of it and a brace in a
//! string closes nothing. Everything taken out is replaced by blanks, so that lines keep their
//! numbers.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use crate::support::root;

/// What a checkout holds beside the project's own files; see `.gitignore`. Hidden files are an
/// editor's or git's, except those of `.ci`.
const NOT_OURS: [&str; 3] = ["target", "models", "runs"];

/// One Rust file.
pub(super) struct Source {
    /// Path below the repository's root, with "/".
    pub(super) path: String,
    /// The file as it is.
    pub(super) text: String,
    /// Without comments and the contents of strings.
    pub(super) code: String,
    /// `code` without items under `#[cfg(test)]`; blank in tests, examples and benchmarks.
    pub(super) library: String,
    /// The strings of the library code, quotes and all; everything else is blank.
    pub(super) strings: String,
}

/// A function with a body.
pub(super) struct Function {
    pub(super) name: String,
    /// Line of its `fn`, from 1.
    pub(super) line: usize,
    /// From its `fn` to its closing brace.
    pub(super) n_lines: usize,
}

/// Every Rust file of the crates and of the integration tests.
pub(super) fn rust_sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(read_sources);
    &SOURCES
}

fn read_sources() -> Vec<Source> {
    let mut sources: Vec<Source> = files()
        .into_iter()
        .filter(|path| path.ends_with(".rs"))
        .map(|path| Source::read(&path))
        .collect();
    let test_files: Vec<String> = sources
        .iter()
        .flat_map(Source::modules_under_test)
        .collect();
    for source in &mut sources {
        let is_test = !source.path.contains("/src/")
            || test_files.iter().any(|prefix| {
                source.path == format!("{prefix}.rs")
                    || source.path.starts_with(&format!("{prefix}/"))
            });
        if is_test {
            source.library = blanked(&source.code, &(0..source.code.len()));
            source.strings = source.library.clone();
        }
    }
    sources
}

/// Every file of the repository, by its path below the root, sorted.
pub(super) fn files() -> Vec<String> {
    let root = root();
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    assert!(
        found.len() > 100,
        "{}: only {} files",
        root.display(),
        found.len()
    );
    found.sort();
    found
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let below = path
            .strip_prefix(root)
            .unwrap()
            .to_string_lossy()
            .replace('\\', "/");
        let is_hidden = below.starts_with('.') && !below.starts_with(".ci");
        let is_skipped = NOT_OURS.contains(&below.as_str())
            || is_hidden
            || below.ends_with("__pycache__")
            || below.ends_with(".tmp");
        match is_skipped {
            true => {}
            false if path.is_dir() => walk(root, &path, found),
            false => found.push(below),
        }
    }
}

/// A file of the repository as text.
pub(super) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Source {
    fn read(path: &str) -> Self {
        Self::of_text(path, &read(path))
    }

    /// A file of that path and text.
    pub(super) fn of_text(path: &str, text: &str) -> Self {
        let code = without_comments_and_strings(text);
        let (mut library, mut strings) = (code.clone(), strings_alone(text));
        for item in items_under_test(&code) {
            library = blanked(&library, &item);
            strings = blanked(&strings, &item);
        }
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            library,
            strings,
        }
    }

    /// The crate's folder, such as `data`.
    pub(super) fn top(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// The paths, less `.rs`, of modules that this file declares under `#[cfg(test)]`.
    fn modules_under_test(&self) -> Vec<String> {
        let declaration = regex(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))?\s+)?mod\s+(\w+)\s*;");
        let (folder, file) = self.path.rsplit_once('/').unwrap_or_default();
        let folder = match file {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
            file => format!("{folder}/{}", file.trim_end_matches(".rs")),
        };
        let names = declaration.captures_iter(&self.code);
        names
            .map(|found| format!("{folder}/{}", &found[1]))
            .collect()
    }

    /// `path:line: the line` for each match of `pattern` in `view`, which is one of this file's
    /// texts.
    pub(super) fn matches(&self, view: &str, pattern: &Regex) -> Vec<String> {
        pattern
            .find_iter(view)
            .map(|found| self.place(view, found.start()))
            .collect()
    }

    fn place(&self, view: &str, at: usize) -> String {
        let line = line_of(view, at);
        let shown = self.text.lines().nth(line - 1).unwrap_or_default().trim();
        format!("{}:{line}: {shown}", self.path)
    }

    /// Every function with a body, inner ones and tests too.
    pub(super) fn functions(&self) -> Vec<Function> {
        let head = regex(r"\bfn\s+(\w+)");
        let heads = head.captures_iter(&self.code);
        heads
            .filter_map(|found| {
                let start = found.get(0)?.start();
                let body = body_after(&self.code, start)?;
                let line = line_of(&self.code, start);
                let n_lines = line_of(&self.code, body.end) - line + 1;
                Some(Function {
                    name: found[1].to_owned(),
                    line,
                    n_lines,
                })
            })
            .collect()
    }

    /// Names of the functions under `#[test]`, those inside `proptest!` too.
    pub(super) fn tests(&self) -> Vec<String> {
        let test = regex(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn\s+(\w+)");
        test.captures_iter(&self.code)
            .map(|found| found[1].to_owned())
            .collect()
    }
}

pub(super) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The braces of the item that begins at `start`, or `None` where a semicolon ends it.
fn body_after(code: &str, start: usize) -> Option<Range<usize>> {
    let mut depth = 0usize;
    let mut brackets = 0usize;
    let mut opened = None;
    for (i, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets = brackets.saturating_sub(1),
            b';' if depth == 0 && brackets == 0 => return None,
            b'{' => {
                opened.get_or_insert(i);
                depth += 1;
            }
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(opened?..i);
                }
            }
            _ => {}
        }
    }
    None
}

fn items_under_test(code: &str) -> Vec<Range<usize>> {
    let mark = regex(r"#\[cfg\((?:test|all\(test[^)]*\))\)\]");
    let marks = mark.find_iter(code);
    marks
        .filter_map(|found| Some(found.start()..body_after(code, found.end())?.end + 1))
        .collect()
}

/// `text` with blanks in `range`; line ends stay.
fn blanked(text: &str, range: &Range<usize>) -> String {
    let blank = |c: char| {
        if c == '\n' {
            "\n".to_owned()
        } else {
            " ".repeat(c.len_utf8())
        }
    };
    let inside: String = text[range.clone()].chars().map(blank).collect();
    format!("{}{inside}{}", &text[..range.start], &text[range.end..])
}

/// Comments, strings and characters.
fn tokens() -> Regex {
    regex(concat!(
        r"(?s)//[^\n]*", // line comment
        r"|/\*.*?\*/",   // block comment; nested ones are not written here
        r####"|\bb?r###".*?"###|\bb?r##".*?"##"####,
        r##"|\bb?r#".*?"#|\bb?r"[^"]*""##,           // raw strings
        r#"|"(?:\\.|[^"\\])*""#,                     // strings
        r"|b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])'", // characters, which lifetimes are not
    ))
}

/// Blanks in place of comments and of what stands between quotes.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut end = 0;
    for found in tokens().find_iter(text) {
        code.push_str(&text[end..found.start()]);
        code.push_str(&blanked(found.as_str(), &(0..found.len())));
        end = found.end();
    }
    code.push_str(&text[end..]);
    code
}

/// Blanks in place of all but strings.
fn strings_alone(text: &str) -> String {
    let mut strings = String::with_capacity(text.len());
    let mut end = 0;
    for found in tokens().find_iter(text) {
        strings.push_str(&blanked(
            &text[end..found.start()],
            &(0..found.start() - end),
        ));
        let token = found.as_str();
        if token.starts_with(['"', 'r', 'b']) && token.contains('"') {
            strings.push_str(token);
        } else {
            strings.push_str(&blanked(token, &(0..token.len())));
        }
        end = found.end();
    }
    strings.push_str(&blanked(&text[end..], &(0..text.len() - end)));
    strings
}

#[test]
fn comments_strings_and_tests_are_taken_out_and_lines_keep_their_numbers() {
    let text = "// fn a {\nlet s = \"fn b { \\\" \"; let c = '{'; fn f<'a>(x: &'a str) {}\n\
                let r = r#\"a \" {\"#; /* {\n */ #[cfg(test)]\nmod tests { fn t() {} }\nfn z() {}\n";
    let code = without_comments_and_strings(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(code.matches('{').count(), 4, "{code}");
    let strings = strings_alone(text);
    assert_eq!(strings.len(), text.len());
    let shown: Vec<&str> = strings.split_whitespace().collect();
    assert_eq!(shown.concat(), "\"fnb{\\\"\"r#\"a\"{\"#");
    let [item] = &items_under_test(&code)[..] else {
        panic!("{code}")
    };
    let library = blanked(&code, item);
    assert!(
        !library.contains("fn t") && library.contains("fn z"),
        "{library}"
    );
    assert_eq!(line_of(&library, library.find("fn z").unwrap()), 6);
}
