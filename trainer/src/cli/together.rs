//! Options that mean something beside another one alone.
//!
//! clap's `requires` is not asked where the other option conflicts with a third one that is given, so
//! that such an option would count for nothing without a word.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};

/// An option, and those of which one must stand beside it.
struct Together {
    /// The verb, where others have the option for itself.
    verb: Option<&'static str>,
    option: &'static str,
    beside: &'static [&'static str],
}

const fn rule(option: &'static str, beside: &'static [&'static str]) -> Together {
    Together {
        verb: None,
        option,
        beside,
    }
}

const fn in_verb(
    verb: &'static str,
    option: &'static str,
    beside: &'static [&'static str],
) -> Together {
    Together {
        verb: Some(verb),
        option,
        beside,
    }
}

const SERVERS: &[&str] = &["endpoint", "upstream_endpoint"];

const RULES: [Together; 13] = [
    rule("endpoint_model", SERVERS),
    rule("api_key_env", SERVERS),
    rule("concurrency", SERVERS),
    rule("extra_body", SERVERS),
    rule("retries", SERVERS),
    rule("timeout", SERVERS),
    rule("no_response_format", SERVERS),
    rule("upstream_max_tokens", SERVERS),
    in_verb("generate", "schema", &["text"]),
    in_verb("generate", "system", &["message"]),
    in_verb("generate", "tools", &["message"]),
    in_verb("chat", "execute", &["tools"]),
    in_verb("export", "private", &["push_to_hub"]),
];

/// Refuses what was typed without the option that it belongs to.
///
/// # Errors
///
/// The first such option, with those of which one is missing.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let (mut verb, mut typed, mut known) = ("", matches, Some(&*command));
    while let Some((name, below)) = typed.subcommand() {
        (verb, typed) = (name, below);
        known = known.and_then(|command| command.find_subcommand(name));
    }
    let arguments = known.into_iter().flat_map(Command::get_arguments);
    let ids: Vec<String> = arguments.map(|one| one.get_id().to_string()).collect();
    let has = |id: &str| ids.iter().any(|known| known == id);
    let is_typed = |id: &str| has(id) && typed.value_source(id) == Some(ValueSource::CommandLine);
    for Together {
        verb: of,
        option,
        beside,
    } in RULES
    {
        let partners: Vec<&&str> = beside.iter().filter(|id| has(id)).collect();
        let is_meant = of.is_none_or(|of| of == verb) && !partners.is_empty();
        if is_meant && is_typed(option) && !partners.iter().any(|id| is_typed(id)) {
            let long = |id: &str| format!("--{}", id.replace('_', "-"));
            let partners: Vec<String> = partners.iter().map(|id| long(id)).collect();
            let message = format!(
                "{} means something beside {} alone",
                long(option),
                partners.join(" or ")
            );
            return Err(command.error(ErrorKind::MissingRequiredArgument, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;

    fn said(line: &str) -> Option<String> {
        let words = line.split(' ').map(std::ffi::OsString::from);
        Cli::of(words).err().map(|error| error.to_string())
    }

    #[test]
    fn an_option_without_the_one_that_it_belongs_to_is_refused() {
        for (line, message) in [
            (
                "tooltune eval run --loss-only --concurrency 3",
                "--concurrency means something beside --endpoint alone",
            ),
            (
                "tooltune eval run --loss-only --endpoint-model x",
                "--endpoint-model means something beside --endpoint alone",
            ),
            (
                "tooltune eval run --predictions p.jsonl --api-key-env K",
                "--api-key-env means something beside --endpoint alone",
            ),
            (
                "tooltune generate run --data rows.jsonl --system x",
                "--system means something beside --message alone",
            ),
            (
                "tooltune generate run --prompt x --tools t.json",
                "--tools means something beside --message alone",
            ),
            (
                "tooltune export run --check --private",
                "--private means something beside --push-to-hub alone",
            ),
            (
                "tooltune structure run --text t --schema s.json --concurrency 3",
                "--upstream-endpoint <URL>",
            ),
        ] {
            let said = said(line).unwrap_or_default();
            assert!(said.contains(message), "{line}: {said}");
        }
        for line in [
            "tooltune eval run --endpoint http://h/v1 --endpoint-model x --concurrency 3",
            "tooltune eval run --loss-only",
            "tooltune generate run --message x --system y",
            "tooltune chat run --system y",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
    }
}
