//! Examples in README and guide: commands parse, configs load, rows are read, and links resolve.

use tooltune::cli::Cli;
use tooltune::config::{LoadedConfig, Source};
use tooltune_apis::read_trajectories;
use tooltune_checkpoints::families::{BERT, FAMILIES};
use tooltune_rows::text::{RecognisedFormat, read_rows, recognise_file};

use crate::support::{root, words};

const PAGES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/verification.md",
    "docs/README.md",
    "docs/cluster.md",
    "docs/commands.md",
    "docs/config.md",
    "docs/constrained.md",
    "docs/data.md",
    "docs/evaluate.md",
    "docs/from-elsewhere.md",
    "docs/gpu.md",
    "docs/install.md",
    "docs/limits.md",
    "docs/metrics.md",
    "docs/models.md",
    "docs/pipelines.md",
    "docs/prompts.md",
    "docs/retriever.md",
    "docs/runs.md",
    "docs/sandbox.md",
    "docs/serving.md",
    "docs/supervision.md",
    "docs/tutorial.md",
];

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns line and text of every fenced block in a language. A block ends with a fence of the same
/// length as its opening fence.
fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let text = read(page);
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String, String)> = None;
    for (i, line) in text.lines().enumerate() {
        match &mut open {
            None if line.starts_with("```") => {
                open = Some((i + 2, line.to_owned(), String::new()));
            }
            None => {}
            Some((_, begin, _)) if line == begin.trim_end_matches(|c| c != '`') => {
                let (first, begin, block) = open.take().expect("a block");
                if begin.trim_start_matches('`') == language {
                    blocks.push((first, block));
                }
            }
            Some((_, _, block)) => *block += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "{page}: a code block is not closed");
    blocks
}

#[test]
fn the_page_of_models_lists_every_family() {
    let page = read("docs/models.md");
    for family in FAMILIES {
        let model_type = family.model_type;
        let row = format!("| `{model_type}` | `{}` | ", family.gguf.architecture);
        assert!(
            page.contains(&row),
            "docs/models.md lacks the row {row}: run scripts/docs --families"
        );
    }
    assert!(page.contains(&format!("`{}`", BERT.model_type)));
}

#[test]
fn every_command_in_the_guide_exists() {
    let mut n_commands = 0;
    for page in PAGES {
        for (first, block) in blocks(page, "sh") {
            let block = block.replace("\\\n", " ");
            for (i, line) in block.lines().enumerate() {
                let command = line.split(" #").next().unwrap_or_default().trim();
                let location = format!("{page}:{}: {command}", first + i);
                let words = words(command);
                match words.first().map(String::as_str) {
                    // External programs that download public files.
                    Some("git" | "hf" | "ollama") => {}
                    Some("tooltune") => {
                        let parsed = Cli::from_words(words.iter().map(std::ffi::OsString::from));
                        assert!(parsed.is_ok(), "{location}: {}", parsed.unwrap_err());
                        n_commands += 1;
                    }
                    Some(script) => assert!(root().join(script).is_file(), "{location}"),
                    None => {}
                }
            }
        }
    }
    assert!(n_commands >= 9, "only {n_commands} commands found");
}

/// Commands in prose are in backticks, and sometimes abbreviated.
#[test]
fn every_verb_and_option_in_the_text_exists() {
    let help = all_help();
    let quoted = regex::Regex::new(r"`(tooltune [^`]*)`").unwrap();
    for page in PAGES {
        let text = read(page);
        for captures in quoted.captures_iter(&text) {
            for word in captures[1].split_whitespace().skip(1) {
                let is_checked = word.starts_with("--") || word.chars().all(char::is_lowercase);
                assert!(
                    !is_checked || help.contains(word),
                    "{page}: `{}`: {word}",
                    &captures[1]
                );
            }
        }
    }
}

/// The long help of every subcommand.
fn all_help() -> String {
    fn add(command: &mut clap::Command, all: &mut String) {
        *all += &command.render_long_help().to_string();
        command
            .get_subcommands_mut()
            .for_each(|inner| add(inner, all));
    }
    let mut all = String::new();
    add(&mut <Cli as clap::CommandFactory>::command(), &mut all);
    all
}

#[test]
fn every_config_in_the_guide_loads() {
    let mut n_loaded = 0;
    for page in PAGES {
        for (line, text) in blocks(page, "toml") {
            let source = Source {
                name: format!("{page}:{line}.toml"),
                text: text.clone(),
            };
            match (LoadedConfig::parse(source, &[]), text.contains("[model]")) {
                (Ok(_), _) => n_loaded += 1,
                (Err(error), true) => panic!("{page}:{line}: {error}"),
                // A config without `[model]` is an excerpt, so missing settings are the only
                // errors.
                (Err(error), false) => error.to_string().lines().for_each(|line| {
                    assert!(line.contains("is missing"), "{page}: {line}");
                }),
            }
        }
    }
    assert!(n_loaded >= 1, "the guide has no complete config");
}

#[test]
fn every_row_of_the_guide_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("row.jsonl");
    let mut formats = Vec::new();
    for page in ["README.md", "docs/data.md", "docs/supervision.md"] {
        for (line, text) in blocks(page, "json") {
            std::fs::write(&path, &text).unwrap();
            let recognised = recognise_file(&path);
            let found = recognised.unwrap_or_else(|error| panic!("{page}:{line}: {error}"));
            match found.format {
                RecognisedFormat::Trajectories => {
                    for trajectory in read_trajectories(&path).unwrap() {
                        trajectory.unwrap_or_else(|error| panic!("{page}:{line}: {error}"));
                    }
                }
                RecognisedFormat::Rows(format) => {
                    for row in read_rows(&path, format).unwrap() {
                        row.unwrap_or_else(|error| panic!("{page}:{line}: {error}"));
                    }
                }
            }
            formats.push(format!("{page}: {}", found.format.as_str()));
        }
    }
    assert_eq!(formats.len(), 9, "{formats:?}");
}

#[test]
fn every_link_of_the_guide_leads_to_a_file() {
    let link = regex::Regex::new(r"\]\(([^)#\s]+)(?:#[^)]*)?\)").unwrap();
    for page in PAGES {
        let folder = root().join(page);
        let folder = folder.parent().expect("a folder");
        for (i, line) in read(page).lines().enumerate() {
            for captures in link
                .captures_iter(line)
                .filter(|captures| !captures[1].contains("://"))
            {
                let target = folder.join(&captures[1]);
                assert!(
                    target.exists(),
                    "{page}:{}: {} leads nowhere",
                    i + 1,
                    &captures[1]
                );
            }
        }
    }
}

#[test]
fn every_path_in_the_architecture_exists() {
    let path = regex::Regex::new(
        r"`((?:data|kernels|checkpoints|trainer|tests|scripts|configs|docs)/[\w./-]*)`",
    )
    .unwrap();
    let text = read("ARCHITECTURE.md");
    let paths: Vec<&str> = path
        .captures_iter(&text)
        .map(|captures| captures.get(1).unwrap().as_str())
        .collect();
    assert!(paths.len() > 10, "{paths:?}");
    for path in paths {
        assert!(
            root().join(path).exists(),
            "ARCHITECTURE.md: {path} does not exist"
        );
    }
}

/// Errors about budgets refer to docs/limits.md, so it must list every budget.
#[test]
fn every_budget_is_on_the_page_of_limits() {
    let page = read("docs/limits.md");
    for file in [
        "checkpoints/src/budgets.rs",
        "data/agents/src/budgets.rs",
        "data/apis/src/budgets.rs",
        "data/disk/src/budgets.rs",
        "data/endpoint/src/budgets.rs",
        "data/files/src/budgets.rs",
        "data/grammar/src/budgets.rs",
        "data/json/src/budgets.rs",
        "data/pipelines/src/budgets.rs",
        "data/rows/src/budgets.rs",
        "data/suites/src/budgets.rs",
        "data/synth/src/budgets.rs",
        "data/template/src/budgets.rs",
        "data/traces/src/budgets.rs",
        "trainer/config/src/budgets.rs",
        "trainer/ranks/src/budgets.rs",
        "trainer/src/budgets.rs",
    ] {
        let text = read(file);
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("pub const "))
            .filter_map(|rest| rest.split(':').next())
            .collect();
        assert!(!names.is_empty(), "{file}");
        for name in names {
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/limits.md does not mention {name} in {file}"
            );
        }
    }
}
