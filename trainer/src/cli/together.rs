//! Checks options that require another option.
//!
//! clap does not check `requires` if the required option conflicts with a third option that is
//! given. Without this check, the option would be ignored silently.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};

/// An option that requires one of several other options.
struct RequiredOption {
    /// The command, if other commands have the option without the requirement.
    verb: Option<&'static str>,
    option: &'static str,
    requires: &'static [&'static str],
}

const fn rule(option: &'static str, requires: &'static [&'static str]) -> RequiredOption {
    RequiredOption {
        verb: None,
        option,
        requires,
    }
}

const fn command_rule(
    verb: &'static str,
    option: &'static str,
    requires: &'static [&'static str],
) -> RequiredOption {
    RequiredOption {
        verb: Some(verb),
        option,
        requires,
    }
}

const SERVERS: &[&str] = &["endpoint", "upstream_endpoint"];

const RULES: [RequiredOption; 13] = [
    rule("endpoint_model", SERVERS),
    rule("api_key_env", SERVERS),
    rule("concurrency", SERVERS),
    rule("extra_body", SERVERS),
    rule("retries", SERVERS),
    rule("timeout", SERVERS),
    rule("no_response_format", SERVERS),
    rule("upstream_max_tokens", SERVERS),
    command_rule("generate", "schema", &["text"]),
    command_rule("generate", "system", &["message"]),
    command_rule("generate", "tools", &["message"]),
    command_rule("chat", "execute", &["tools"]),
    command_rule("export", "private", &["push_to_hub"]),
];

/// Checks that every given option has the option that it requires.
///
/// # Errors
///
/// The first option that lacks a required one, with the options that would satisfy it.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let (mut verb, mut typed, mut known) = ("", matches, Some(&*command));
    while let Some((name, inner)) = typed.subcommand() {
        (verb, typed) = (name, inner);
        known = known.and_then(|command| command.find_subcommand(name));
    }
    let arguments = known.into_iter().flat_map(Command::get_arguments);
    let ids: Vec<String> = arguments.map(|one| one.get_id().to_string()).collect();
    let has = |id: &str| ids.iter().any(|known| known == id);
    let is_given = |id: &str| has(id) && typed.value_source(id) == Some(ValueSource::CommandLine);
    for RequiredOption {
        verb: of,
        option,
        requires,
    } in RULES
    {
        let partners: Vec<&&str> = requires.iter().filter(|id| has(id)).collect();
        let is_meant = of.is_none_or(|of| of == verb) && !partners.is_empty();
        if is_meant && is_given(option) && !partners.iter().any(|id| is_given(id)) {
            let long = |id: &str| format!("--{}", id.replace('_', "-"));
            let partners: Vec<String> = partners.iter().map(|id| long(id)).collect();
            let message = format!("{} requires {}", long(option), partners.join(" or "));
            return Err(command.error(ErrorKind::MissingRequiredArgument, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;

    fn error_message(line: &str) -> Option<String> {
        let words = line.split(' ').map(std::ffi::OsString::from);
        Cli::from_words(words).err().map(|error| error.to_string())
    }

    #[test]
    fn an_extra_body_cannot_set_what_the_program_sends() {
        let line =
            "tooltune eval run --endpoint http://localhost:1/v1 --endpoint-model m --extra-body ";
        for (body, message) in [
            ("{\"messages\":[]}", "the field \"messages\" cannot be set"),
            ("{\"stream\":true}", "the field \"stream\" cannot be set"),
            ("[]", "expected a JSON object"),
        ] {
            let error = error_message(&format!("{line}{body}")).expect(body);
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(error_message(&format!("{line}{{\"top_k\":3}}")), None);
    }

    #[test]
    fn an_option_without_its_required_option_is_refused() {
        for (line, message) in [
            (
                "tooltune eval run --loss-only --concurrency 3",
                "--concurrency requires --endpoint",
            ),
            (
                "tooltune eval run --loss-only --endpoint-model x",
                "--endpoint-model requires --endpoint",
            ),
            (
                "tooltune eval run --predictions p.jsonl --api-key-env K",
                "--api-key-env requires --endpoint",
            ),
            (
                "tooltune generate run --data rows.jsonl --system x",
                "--system requires --message",
            ),
            (
                "tooltune generate run --prompt x --tools t.json",
                "--tools requires --message",
            ),
            (
                "tooltune export run --check --private",
                "--private requires --push-to-hub",
            ),
            (
                "tooltune structure run --text t --schema s.json --concurrency 3",
                "--upstream-endpoint <URL>",
            ),
        ] {
            let requirement = error_message(line).unwrap_or_default();
            assert!(requirement.contains(message), "{line}: {requirement}");
        }
        for line in [
            "tooltune eval run --endpoint http://h/v1 --endpoint-model x --concurrency 3",
            "tooltune eval run --loss-only",
            "tooltune generate run --message x --system y",
            "tooltune chat run --system y",
        ] {
            assert_eq!(error_message(line), None, "{line}");
        }
    }
}
