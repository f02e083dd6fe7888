//! Finds secrets in the arguments of a server's command.
//!
//! An argument is a secret if its name suggests it: `--api-key VALUE`, `--api-key=VALUE`, or
//! `API_KEY=VALUE` and `Authorization: Bearer VALUE` as a word. The password of an address is also
//! a secret. A secret without a name, such as the third word of a command, cannot be recognized;
//! pass it in a variable of `environment` instead.

/// The ends of names whose values are secrets, in lower case and without `-` and `_`.
const SECRET_ENDINGS: [&str; 6] = [
    "authorization",
    "key",
    "passwd",
    "password",
    "secret",
    "token",
];

/// The values in `arguments` that must not occur in the server's output.
pub(super) fn secret_values(arguments: &[String]) -> Vec<&str> {
    let mut secrets = Vec::new();
    let mut words = arguments.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        if let Some((name, value)) = word.split_once(['=', ':'])
            && is_secret_name(name)
        {
            secrets.push(value.trim_start());
        } else if word.starts_with('-') && is_secret_name(word) {
            secrets.extend(words.next_if(|value| !value.starts_with("--")));
        } else if let Some(password) = password_of_address(word) {
            secrets.push(password);
        }
    }
    secrets
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase().replace(['-', '_'], "");
    !name.contains(char::is_whitespace)
        && SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The password in `scheme://user:password@host`, or in a word that ends in one, such as
/// `--url=scheme://user:password@host`.
fn password_of_address(word: &str) -> Option<&str> {
    let (_, rest) = word.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (_, password) = user.split_once(':')?;
    Some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(command: &str) -> Vec<String> {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let secrets = secret_values(&words).into_iter();
        secrets.map(str::to_owned).collect()
    }

    #[test]
    fn values_of_arguments_with_a_secret_name_are_secrets() {
        for (command, expected) in [
            ("-y shop --api-key abc --verbose", vec!["abc"]),
            ("--api-key=abc --API_TOKEN def", vec!["abc", "def"]),
            ("run -e SHOP_SECRET=a=b image", vec!["a=b"]),
            ("-password x --token --verbose", vec!["x"]),
            ("postgres://me:hunter2@db/x?y", vec!["hunter2"]),
            ("--url=postgres://me:hunter2@db", vec!["hunter2"]),
            ("--max-tokens 100 --keys a", vec![]),
            ("https://example.org/a:b@c key", vec![]),
        ] {
            assert_eq!(secrets(command), expected, "{command}");
        }
        let header = ["--header", "Authorization: Bearer abc"].map(str::to_owned);
        assert_eq!(secret_values(&header), ["Bearer abc"]);
    }
}
