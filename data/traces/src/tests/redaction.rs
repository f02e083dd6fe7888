//! The redaction rules, and placeholders within a row.

use serde_json::{Value, json};

use super::{count, import, import_with, lines};
use crate::TraceOptions;

/// The user's message after redaction.
#[track_caller]
fn redacted(text: &str, options: &TraceOptions) -> String {
    let entry = json!({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]});
    let (rows, _) = import_with(&[("t", lines(&[entry]).as_bytes())], options).expect("imported");
    rows[0]["messages"][0]["content"]
        .as_str()
        .expect("text")
        .to_owned()
}

/// A string of `n` letters and digits.
fn key(n: usize) -> String {
    "a1B2".chars().cycle().take(n).collect()
}

#[test]
fn each_rule_replaces_its_secrets_and_nothing_else() {
    let (home, users) = ("home", "Users");
    let jwt = format!("eyJ{}.eyJ{}.{}", key(10), key(20), key(30));
    let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----";
    for (text, expected) in [
        (format!("{pem} end"), "[PRIVATE_KEY_1] end".to_owned()),
        (
            "a -----BEGIN PRIVATE KEY-----\nMIIE".to_owned(),
            "a [PRIVATE_KEY_1]".to_owned(),
        ),
        (format!("t={jwt};"), "t=[JWT_1];".to_owned()),
        (format!("sk-proj-{} x", key(30)), "[API_KEY_1] x".to_owned()),
        (format!("ghp_{}", key(36)), "[API_KEY_1]".to_owned()),
        ("AKIAIOSFODNN7EXAMPLE".to_owned(), "[API_KEY_1]".to_owned()),
        (format!("xoxb-{}", key(20)), "[API_KEY_1]".to_owned()),
        (format!("AIza{}", key(35)), "[API_KEY_1]".to_owned()),
        (
            format!("Authorization: Bearer {}", key(20)),
            "Authorization: Bearer [SECRET_1]".to_owned(),
        ),
        (
            format!("curl -H 'bearer {}'", key(20)),
            "curl -H 'bearer [SECRET_1]'".to_owned(),
        ),
        (
            "postgres://app:hunter2@db/x".to_owned(),
            "postgres://app:[SECRET_1]@db/x".to_owned(),
        ),
        (
            "PASSWORD=hunter2 --x".to_owned(),
            "PASSWORD=[SECRET_1] --x".to_owned(),
        ),
        (
            "ida.ek@mail.example.org, ok".to_owned(),
            "[EMAIL_1], ok".to_owned(),
        ),
        (
            "IBAN DE89 3704 0044 0532 0130 00.".to_owned(),
            "IBAN [IBAN_1].".to_owned(),
        ),
        (
            "card 4111 1111 1111 1111!".to_owned(),
            "card [CARD_1]!".to_owned(),
        ),
        (
            "call +49 30 1234567 or (030) 555-1234".to_owned(),
            "call [PHONE_1] or [PHONE_2]".to_owned(),
        ),
        (
            "call 555-123-4567.".to_owned(),
            "call [PHONE_1].".to_owned(),
        ),
        (
            format!("ls /{home}/ida/src /{users}/ole"),
            "ls /home/[USER_1]/src /Users/[USER_2]".to_owned(),
        ),
        (
            format!(r"C:\{users}\Ida\x file:///home/ida/y"),
            format!(r"C:\{users}\[USER_1]\x file:///home/[USER_2]/y"),
        ),
    ] {
        assert_eq!(
            redacted(&text, &TraceOptions::default()),
            expected,
            "{text}"
        );
    }
    for text in [
        "sk-learn-pipeline-example and task-1234567890abcdef1234",
        "git@github.com:org/repo",
        "card 4111 1111 1111 1112, id 1732999999995, DE89 3704 0044 0532 0130 02",
        "2026-11-30 12:30:45, v1.2.3, 10.0.0.1, 127.0.0.1:8080, ::1, fe80::1",
        "https://example.org/home/page and ./home/x and file:///Users/Shared/y",
        "password == None; the password: see below; bearer authentication",
        "+1 and 2+2=4, x@y, 12-34-56",
    ] {
        assert_eq!(redacted(text, &TraceOptions::default()), text);
    }
}

#[test]
fn equal_secrets_have_the_same_number_within_a_row() {
    let call = json!({"id": "a", "function": {"name": "mail", "arguments":
        "{\"to\": \"ole\\u0040example.org\", \"cc\": [\"ida@example.org\"], \"n\": 1}"}});
    let entry = json!({"messages": [
        {"role": "user", "content": "Tell ida@example.org and ole@example.org; password=correct-horse"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content":
            "{\"sent\": {\"ole\\u0040example.org\": true}, \"quote\": \"\\\"ida@example.org\\\"\", \"key\": \"correct-horse\"}"},
        {"role": "assistant", "content": "Sent to ole@example.org with correct-horse."},
    ]});
    let (rows, report) = import(&lines(&[entry]));
    let messages = &rows[0]["messages"];
    assert_eq!(
        messages[0]["content"],
        "Tell [EMAIL_1] and [EMAIL_2]; password=[SECRET_1]"
    );
    assert_eq!(
        messages[1]["tool_calls"][0]["function"]["arguments"],
        json!({"to": "[EMAIL_2]", "cc": ["[EMAIL_1]"], "n": 1})
    );
    let result = messages[2]["content"].as_str().expect("text");
    let result: Value = serde_json::from_str(result).expect("still JSON");
    assert_eq!(
        result,
        json!({"sent": {"[EMAIL_2]": true}, "quote": "\"[EMAIL_1]\"", "key": "[SECRET_1]"})
    );
    assert_eq!(messages[3]["content"], "Sent to [EMAIL_2] with [SECRET_1].");
    assert_eq!(count(&report.redacted, "email"), Some((7, "t.jsonl:1")));
    assert_eq!(count(&report.redacted, "password"), Some((1, "t.jsonl:1")));
}

#[test]
fn fields_are_redacted_by_their_name() {
    let arguments = json!({"db_password": "hunter2", "nested": {"apiKey": "k", "monkey": "m"}, "token_count": "3", "access_token": ""});
    let entry = json!({"messages": [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}]},
    ]});
    let (rows, _) = import(&lines(&[entry]));
    assert_eq!(
        rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"],
        json!({"db_password": "[SECRET_1]", "nested": {"apiKey": "[SECRET_2]", "monkey": "m"}, "token_count": "3", "access_token": ""})
    );
}

#[test]
fn keys_that_become_equal_stay_apart() {
    let content = "{\"ida@example.org\": 1, \"[EMAIL_1]\": 2}";
    let text = redacted(content, &TraceOptions::default());
    assert_eq!(text, "{\"[EMAIL_1]\": 1, \"[EMAIL_1]_\": 2}");
}

#[test]
fn tools_are_redacted_without_their_schema_words() {
    let tool = json!({"type": "function", "function": {"name": "f", "description": "Ask ida@example.org",
        "parameters": {"type": "object", "properties": {"password": {"type": "string", "pattern": "a@b.org"}}}}});
    let entry = json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}], "tools": [tool]});
    let (rows, _) = import(&lines(&[entry]));
    let function = &rows[0]["tools"][0]["function"];
    assert_eq!(function["description"], "Ask [EMAIL_1]");
    assert_eq!(
        function["parameters"]["properties"],
        json!({"password": {"type": "string", "pattern": "a@b.org"}})
    );
}

#[test]
fn rules_are_switched_and_added() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.toml");
    let with = |rules: &str, keep: &[&str], also: &[&str]| {
        std::fs::write(&file, rules).expect("written");
        TraceOptions {
            rules: Some(file.clone()),
            keep: keep.iter().map(|name| (*name).to_owned()).collect(),
            also: also.iter().map(|name| (*name).to_owned()).collect(),
            ..TraceOptions::default()
        }
    };
    let text = "ORD-77 of ida@example.org at 10.0.0.1, fe80:0:0:0:1:2:3:4 or fe80::1";
    let own =
        "[[rule]]\nname = \"order\"\npattern = 'ORD-(?P<secret>\\d+)'\nreplacement = \"N{n}\"\n";
    assert_eq!(
        redacted(text, &with(own, &["email"], &["ipv4", "ipv6"])),
        "ORD-N1 of ida@example.org at [IP_1], [IP_2] or [IP_3]"
    );
    let replaced =
        "[[rule]]\nname = \"email\"\npattern = '\\S+@\\S+'\nreplacement = \"p{n}@example.com\"\n";
    assert_eq!(
        redacted(
            "ida@example.org ole@example.org ida@example.org",
            &with(replaced, &[], &[])
        ),
        "p1@example.com p2@example.com p1@example.com"
    );
    let refused = |options: &TraceOptions| {
        let error = import_with(&[("t", b"{\"messages\": []}")], options).expect_err("refused");
        error.to_string()
    };
    for (rules, part) in [
        (
            "[[rule]]\nname = \"a\"\nreplacement = \"r\"\n",
            "needs either pattern or key",
        ),
        (
            "[[rule]]\nname = \"a\"\npattern = '('\nreplacement = \"r\"\n",
            "rule \"a\": regex parse error",
        ),
        (
            "[[rule]]\nname = \"a\"\npattern = '(?=x)'\nreplacement = \"r\"\n",
            "without lookaround",
        ),
        (
            "[[rule]]\nname = \"a\"\npattern = 'x*'\nreplacement = \"r\"\n",
            "matches the empty string",
        ),
        (
            "[[rule]]\nname = \"a\"\npattern = '(\\w{1000}){1000}'\nreplacement = \"r\"\n",
            "PATTERN_BYTES",
        ),
        (
            "[[rule]]\nname = \"a\"\npattern = 'x'\nreplacement = \"\"\n",
            "replacement is empty",
        ),
        (
            "[[rule]]\nname = \"a\"\nregex = 'x'\nreplacement = \"r\"\n",
            "unknown field `regex`",
        ),
        ("rules = 3\n", "write [[rule]] with name"),
    ] {
        let message = refused(&with(rules, &[], &[]));
        assert!(message.contains(part), "{rules}: {message}");
    }
    let twice = format!("{own}{own}");
    assert!(refused(&with(&twice, &[], &[])).contains("two rules have the name"));
    let many: String = (0..1_001)
        .map(|n| own.replace("order", &format!("o{n}")))
        .collect();
    assert!(refused(&with(&many, &[], &[])).contains("REDACTION_RULES"));
    for (keep, also) in [(&["mail"][..], &[][..]), (&[][..], &["mail"][..])] {
        let message = refused(&with("", keep, also));
        assert!(
            message.contains("\"mail\"") && message.contains("email, iban"),
            "{message}"
        );
    }
}

#[test]
fn a_redacted_argument_that_breaks_its_schema_is_counted() {
    let tool = json!({"name": "f", "parameters": {"type": "object", "properties": {"to": {"type": "string", "format": "email"}}}});
    let entry = json!({"messages": [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"to": "ida@example.org"}}}]},
    ], "tools": [tool]});
    let (rows, report) = import(&lines(&[entry]));
    assert!(rows.is_empty());
    assert_eq!(
        count(&report.dropped, "training refuses the redacted row"),
        Some((1, "t.jsonl:1"))
    );
}
