//! Tests that a match of a pattern must pass.

use serde::Deserialize;

/// A test of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Check {
    /// The digits pass the Luhn test of ISO/IEC 7812-1.
    Luhn,
    /// The check digits of ISO 13616 are right.
    Iban,
    /// 7 to 15 digits, the lengths of E.164.
    Phone,
    /// A letter and a digit: a word such as `sk-learn-pipeline-example` is not a key.
    Mixed,
    /// Not the `git@HOST` of SSH.
    Email,
    /// Not a folder that every machine has.
    User,
}

impl Check {
    pub(super) fn passes(self, secret: &str) -> bool {
        match self {
            Self::Luhn => luhn(secret),
            Self::Iban => iban(secret),
            Self::Phone => (7..=15).contains(&digits(secret).count()),
            Self::Mixed => {
                secret.bytes().any(|byte| byte.is_ascii_digit())
                    && secret.bytes().any(|byte| byte.is_ascii_alphabetic())
            }
            Self::Email => !secret.starts_with("git@"),
            Self::User => !["Shared", "Public", "Default"].contains(&secret),
        }
    }
}

fn digits(text: &str) -> impl DoubleEndedIterator<Item = u32> {
    text.chars().filter_map(|one| one.to_digit(10))
}

/// From the right, every second digit is doubled, and the sum of all decimal digits is a multiple
/// of 10.
fn luhn(text: &str) -> bool {
    let sum: u32 = digits(text)
        .rev()
        .enumerate()
        .map(|(idx, digit)| match idx % 2 {
            0 => digit,
            _ => 2 * digit / 10 + 2 * digit % 10,
        })
        .sum();
    sum.is_multiple_of(10)
}

/// With the first four characters at the end and A = 10, …, Z = 35, the number is 1 modulo 97.
fn iban(text: &str) -> bool {
    let characters: Vec<char> = text.chars().filter(|one| *one != ' ').collect();
    let rotated = characters.iter().skip(4).chain(characters.iter().take(4));
    let mut remainder = 0;
    for one in rotated {
        let Some(value) = one.to_digit(36) else {
            return false;
        };
        let shift = if value < 10 { 10 } else { 100 };
        remainder = (remainder * shift + value) % 97;
    }
    characters.len() >= 15 && remainder == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_digits_are_verified() {
        // Test numbers of the card brands and the examples of the IBAN registry.
        for card in [
            "4111 1111 1111 1111",
            "5555-5555-5555-4444",
            "378282246310005",
        ] {
            assert!(luhn(card), "{card}");
            let last = card.len() - 1;
            let wrong = format!(
                "{}{}",
                &card[..last],
                (card.as_bytes()[last] - b'0' + 1) % 10
            );
            assert!(!luhn(&wrong), "{wrong}");
        }
        for iban_text in [
            "DE89 3704 0044 0532 0130 00",
            "GB29NWBK60161331926819",
            "NO9386011117947",
        ] {
            assert!(iban(iban_text), "{iban_text}");
            assert!(!iban(&iban_text.replacen('9', "8", 1)), "{iban_text}");
        }
        assert!(!iban("DE89"));
        assert!(!iban(""));
    }
}
