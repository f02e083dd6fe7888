//! Checks success without a judge: whether an answer contains the facts of the gold answer.
//!
//! Fact and answer are split into tokens, and the tokens of the fact must occur consecutively in
//! the answer. Words are compared in lower case and NFKC. Numbers are compared by value, so
//! `1,250.0` contains `1250`, but `120` does not contain `12`. Percent and currency signs are
//! tokens; other punctuation is ignored.
//!
//! A comma or apostrophe before three digits is a thousands separator, so the list `100,200`
//! without a space is parsed as one number.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;
use tooltune_json::Decimal;
use unicode_normalization::UnicodeNormalization;

/// Scripts without spaces between words; each character is a token.
const UNSPACED: &str = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}";

fn pattern(text: &str) -> Regex {
    Regex::new(&text.replace("UNSPACED", UNSPACED)).expect("a fixed pattern")
}

static PIECE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"[0-9]{1,3}(?:[,'’][0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)*|[UNSPACED]|%|\p{Sc}|[[\p{L}\p{M}\p{N}]--[UNSPACED]]+",
    )
});
static DIGITS: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[0-9]+"));
static EXPONENT: LazyLock<Regex> = LazyLock::new(|| pattern(r"^e[+-]?[0-9]+"));
static TAIL: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[[\p{L}\p{M}\p{N}]--[UNSPACED]]+"));

/// Suffixes that make a number a word.
const ORDINALS: [&str; 4] = ["st", "nd", "rd", "th"];

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(Decimal),
    Word(String),
}

/// Whether an answer contains all facts; false if there are none.
///
/// A sign belongs to a number if it directly precedes the number and does not follow a letter or
/// digit: `-3` does not contain `3`, while `2024-05-01` contains `5`. A unit may follow its number
/// without a space: `12km` equals `12 km`. An ordinal (`2nd`) or identifier (`12ab34`, `FX106`,
/// `1.2.3`) is one word.
pub fn answer_holds_facts<S: AsRef<str>>(answer: &str, facts: &[S]) -> bool {
    let answer = tokenize(answer);
    // Positions of each word, so that the search for a fact starts only at its first word.
    let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
    for (position, token) in answer.iter().enumerate() {
        if let Token::Word(word) = token {
            positions.entry(word).or_default().push(position);
        }
    }
    let is_contained = |fact: &S| {
        let fact = tokenize(fact.as_ref());
        let stands_at = |position: usize| {
            answer
                .get(position..position + fact.len())
                .is_some_and(|part| part == fact)
        };
        match fact.first() {
            None => false,
            Some(Token::Word(word)) => {
                let mut positions = positions.get(word.as_str()).into_iter().flatten();
                positions.any(|position| stands_at(*position))
            }
            Some(Token::Number(_)) => (0..answer.len()).any(stands_at),
        }
    };
    !facts.is_empty() && facts.iter().all(is_contained)
}

fn tokenize(text: &str) -> Vec<Token> {
    let text = text.nfkc().collect::<String>().to_lowercase();
    let mut all_tokens = Vec::new();
    let mut position = 0;
    while let Some(piece) = PIECE.find_at(&text, position) {
        position = if piece.as_str().starts_with(|c: char| c.is_ascii_digit()) {
            read_number(&text, piece.range(), &mut all_tokens)
        } else {
            all_tokens.push(Token::Word(piece.as_str().to_owned()));
            piece.end()
        };
    }
    all_tokens
}

/// Parses a number or identifier that starts with a digit, and returns its end.
fn read_number(text: &str, range: std::ops::Range<usize>, all_tokens: &mut Vec<Token>) -> usize {
    let (start, mut end) = (range.start, range.end);
    // In `1,2345` the comma is not a thousands separator.
    let is_grouped = text[range.clone()].contains([',', '\'', '’']);
    if is_grouped && text[end..].starts_with(|c: char| c.is_ascii_digit()) {
        end = start + DIGITS.find(&text[start..]).map_or(1, |digits| digits.len());
    }
    let digits = text[start..end].replace([',', '\'', '’'], "");
    let sign = if is_signed(&text[..start]) { "-" } else { "" };
    let with_exponent = EXPONENT.find(&text[end..]).map_or(end, |e| end + e.len());
    for number_end in [with_exponent, end] {
        let tail = TAIL
            .find(&text[number_end..])
            .map_or("", |tail| tail.as_str());
        let is_number = digits.matches('.').count() <= 1
            && !ORDINALS.contains(&tail)
            && tail.chars().all(|c| !c.is_numeric());
        let literal = format!(
            "{sign}{}{}",
            strip_leading_zeros(&digits),
            &text[end..number_end]
        );
        if let Some(number) = Decimal::parse(&literal).filter(|_| is_number) {
            all_tokens.push(Token::Number(number));
            if !tail.is_empty() {
                all_tokens.push(Token::Word(tail.to_owned()));
            }
            return number_end + tail.len();
        }
    }
    let tail = TAIL.find(&text[end..]).map_or(0, |tail| tail.len());
    all_tokens.push(Token::Word(format!("{digits}{}", &text[end..end + tail])));
    end + tail
}

/// Whether the text before a number ends with the number's minus sign.
fn is_signed(prefix: &str) -> bool {
    let Some(rest) = prefix.strip_suffix(['-', '−']) else {
        return false;
    };
    !rest.ends_with(|c: char| c.is_alphanumeric() || c == '-')
}

/// Removes leading zeros: `007` equals 7.
fn strip_leading_zeros(digits: &str) -> &str {
    let trimmed = digits.trim_start_matches('0');
    if trimmed.starts_with(|c: char| c.is_ascii_digit()) {
        trimmed
    } else {
        &digits[digits.len() - trimmed.len() - 1..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_contains_a_fact_in_any_spelling() {
        let rows = [
            ("The tide is 3.50 m at EMDEN.", "3.5"),
            ("It costs 1,250 crowns.", "1250"),
            ("It costs 1'250'000.50 crowns.", "1250000.5"),
            ("It costs 1250.0 crowns.", "1,250"),
            ("The pilot is Ida  Brandt.", "ida brandt"),
            ("The pilot is “Ida Brandt”, I think.", "Ida Brandt"),
            ("Berth 7 (and 12).", "12"),
            ("The depth is 12km off", "12 km"),
            ("The depth is 12 km", "12km"),
            ("It was -3 degrees.", "-3"),
            ("It was −3 degrees.", "-3"),
            ("On 2024-05-01 at 09:15.", "2024-05-01"),
            ("On 2024-05-01 at 09:15.", "9:15"),
            ("It rose by 1.5e3.", "1500"),
            ("It rose by 2e-05 m.", "0.00002"),
            ("Up 5 % today", "5%"),
            ("It is €12.50.", "€ 12.5"),
            ("Zero: 0.0", "0"),
            ("Agent 007", "7"),
            ("１２ ships", "12"),
            ("船は東京にあります", "東京"),
            ("the STRASSE", "Strasse"),
            ("Flight FX106.", "fx106"),
            ("See the list: 1, 2, 3.", "3"),
            ("1,2345", "2345"),
        ];
        for (answer, fact) in rows {
            assert!(answer_holds_facts(answer, &[fact]), "{answer:?} {fact:?}");
        }
    }

    #[test]
    fn a_fact_inside_another_word_or_number_does_not_count() {
        let rows = [
            ("There are 120 ships.", "12"),
            ("There are 312 ships.", "12"),
            ("There are 12.5 metres.", "12"),
            ("There are 12.5 metres.", "5"),
            ("There are 1,250 ships.", "250"),
            ("It was -3 degrees.", "3"),
            ("It was 3 degrees.", "-3"),
            ("Berths 10-12", "-12"),
            ("Flight FX106", "106"),
            ("The 2nd berth", "2"),
            ("Part 12ab34", "12"),
            ("Version 1.2.3", "1.2"),
            ("Emdener Hafen", "Emden"),
            ("Ida and Brandt", "Ida Brandt"),
            ("It is $12.50.", "€12.50"),
            ("The answer is 007a1", "7"),
            ("", "12"),
        ];
        for (answer, fact) in rows {
            assert!(!answer_holds_facts(answer, &[fact]), "{answer:?} {fact:?}");
        }
    }

    #[test]
    fn every_fact_must_be_contained_and_an_empty_fact_never_is() {
        let answer = "Low water is at 06:10 in Emden.";
        assert!(answer_holds_facts(answer, &["Emden", "06:10"]));
        assert!(!answer_holds_facts(answer, &["Emden", "06:20"]));
        assert!(!answer_holds_facts::<&str>(answer, &[]));
        assert!(!answer_holds_facts(answer, &["Emden", "…"]));
    }

    #[test]
    fn zeros_keep_one_digit_before_the_point() {
        let rows = [
            ("0", "0"),
            ("000", "0"),
            ("0.5", "0.5"),
            ("00.5", "0.5"),
            ("010", "10"),
        ];
        for (digits, expected) in rows {
            assert_eq!(strip_leading_zeros(digits), expected);
        }
    }
}
