//! Views of the repository's files for the layering tests: text, code without comments and strings,
//! and library code without tests.
//!
//! A small lexer for Rust is needed, because a word in a comment is not a use, and a brace in a
//! string does not close a block. Removed parts are replaced by blanks, so line numbers do not
//! change.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use crate::support::root;

/// Folders of a checkout that do not belong to the project; see `.gitignore`. Hidden files are also
/// ignored, except in `.ci`.
const IGNORED_FOLDERS: [&str; 3] = ["target", "models", "runs"];

/// One Rust file.
pub(super) struct Source {
    /// Path below the repository's root, with "/".
    pub(super) path: String,
    /// The unchanged contents.
    pub(super) text: String,
    /// Without comments and the contents of strings.
    pub(super) code: String,
    /// `code` without items under `#[cfg(test)]`; blank in tests, examples and benchmarks.
    pub(super) library: String,
    /// The string literals of the library code with their quotes; everything else is blank.
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
            source.library = blank_out(&source.code, &(0..source.code.len()));
            source.strings = source.library.clone();
        }
    }
    sources
}

/// Every file of the repository, by its path below the root, sorted.
pub(super) fn files() -> Vec<String> {
    let root = root();
    let mut paths = Vec::new();
    walk(&root, &root, &mut paths);
    assert!(
        paths.len() > 100,
        "{}: only {} files",
        root.display(),
        paths.len()
    );
    paths.sort();
    paths
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let relative = path
            .strip_prefix(root)
            .unwrap()
            .to_string_lossy()
            .replace('\\', "/");
        let is_hidden = relative.starts_with('.') && !relative.starts_with(".ci");
        let is_skipped = IGNORED_FOLDERS.contains(&relative.as_str())
            || is_hidden
            || relative.ends_with("__pycache__")
            || relative.ends_with(".tmp");
        match is_skipped {
            true => {}
            false if path.is_dir() => walk(root, &path, found),
            false => found.push(relative),
        }
    }
}

/// A file of the repository as text.
pub(super) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Source {
    fn read(path: &str) -> Self {
        Self::from_text(path, &read(path))
    }

    /// A file with this path and contents.
    pub(super) fn from_text(path: &str, text: &str) -> Self {
        let code = without_comments_and_strings(text);
        let (mut library, mut strings) = (code.clone(), only_strings(text));
        for item in items_under_test(&code) {
            library = blank_out(&library, &item);
            strings = blank_out(&strings, &item);
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

    /// Paths, without `.rs`, of modules that this file declares under `#[cfg(test)]`.
    fn modules_under_test(&self) -> Vec<String> {
        let declaration = regex(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))?\s+)?mod\s+(\w+)\s*;");
        let (folder, file) = self.path.rsplit_once('/').unwrap_or_default();
        let folder = match file {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
            file => format!("{folder}/{}", file.trim_end_matches(".rs")),
        };
        let names = declaration.captures_iter(&self.code);
        names
            .map(|captures| format!("{folder}/{}", &captures[1]))
            .collect()
    }

    /// Returns `path:line: TEXT` for each match of `pattern` in `view`, one of this file's views.
    pub(super) fn matches(&self, view: &str, pattern: &Regex) -> Vec<String> {
        pattern
            .find_iter(view)
            .map(|hit| self.location(view, hit.start()))
            .collect()
    }

    fn location(&self, view: &str, offset: usize) -> String {
        let line = line_of(view, offset);
        let code = self.text.lines().nth(line - 1).unwrap_or_default().trim();
        format!("{}:{line}: {code}", self.path)
    }

    /// Every function with a body, including nested ones and tests.
    pub(super) fn functions(&self) -> Vec<Function> {
        let head = regex(r"\bfn\s+(\w+)");
        let heads = head.captures_iter(&self.code);
        heads
            .filter_map(|captures| {
                let start = captures.get(0)?.start();
                let body = body_after(&self.code, start)?;
                let line = line_of(&self.code, start);
                let n_lines = line_of(&self.code, body.end) - line + 1;
                Some(Function {
                    name: captures[1].to_owned(),
                    line,
                    n_lines,
                })
            })
            .collect()
    }

    /// Names of the functions under `#[test]`, including those inside `proptest!`.
    pub(super) fn tests(&self) -> Vec<String> {
        let test = regex(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn\s+(\w+)");
        test.captures_iter(&self.code)
            .map(|captures| captures[1].to_owned())
            .collect()
    }
}

pub(super) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// The range of the braces of the item that starts at `start`, or `None` if a semicolon ends it.
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
        .filter_map(|hit| Some(hit.start()..body_after(code, hit.end())?.end + 1))
        .collect()
}

/// `text` with blanks in `range`; line breaks are kept.
fn blank_out(text: &str, range: &Range<usize>) -> String {
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

/// Replaces comments and the contents of quotes by blanks.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut end = 0;
    for token in tokens().find_iter(text) {
        code.push_str(&text[end..token.start()]);
        code.push_str(&blank_out(token.as_str(), &(0..token.len())));
        end = token.end();
    }
    code.push_str(&text[end..]);
    code
}

/// Replaces everything except strings by blanks.
fn only_strings(text: &str) -> String {
    let mut strings = String::with_capacity(text.len());
    let mut end = 0;
    for hit in tokens().find_iter(text) {
        strings.push_str(&blank_out(&text[end..hit.start()], &(0..hit.start() - end)));
        let token = hit.as_str();
        if token.starts_with(['"', 'r', 'b']) && token.contains('"') {
            strings.push_str(token);
        } else {
            strings.push_str(&blank_out(token, &(0..token.len())));
        }
        end = hit.end();
    }
    strings.push_str(&blank_out(&text[end..], &(0..text.len() - end)));
    strings
}

#[test]
fn comments_strings_and_tests_are_removed_without_changing_line_numbers() {
    let text = "// fn a {\nlet s = \"fn b { \\\" \"; let c = '{'; fn f<'a>(x: &'a str) {}\n\
                let r = r#\"a \" {\"#; /* {\n */ #[cfg(test)]\nmod tests { fn t() {} }\nfn z() {}\n";
    let code = without_comments_and_strings(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(code.matches('{').count(), 4, "{code}");
    let strings = only_strings(text);
    assert_eq!(strings.len(), text.len());
    let words: Vec<&str> = strings.split_whitespace().collect();
    assert_eq!(words.concat(), "\"fnb{\\\"\"r#\"a\"{\"#");
    let [item] = &items_under_test(&code)[..] else {
        panic!("{code}")
    };
    let library = blank_out(&code, item);
    assert!(
        !library.contains("fn t") && library.contains("fn z"),
        "{library}"
    );
    assert_eq!(line_of(&library, library.find("fn z").unwrap()), 6);
}
