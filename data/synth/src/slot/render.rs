//! Facts in, a text in one of the styles out.
//!
//! Templates are few and general: a fact knows its label and, for many fields, a sentence of its
//! own that avoids the label. Variety comes from families, order and style. Values are copied,
//! never inflected or capitalised, so that a reader can return them letter by letter.

use tooltune_rows::batches::SeededRandom;

use super::Style;
use super::field::{Field, Kind};
use super::values::{Drawn, chance, pick};
use super::vocabulary::VOCABULARY;

/// Percentage of facts told by the field's own sentence where it has one.
const OWN_SENTENCE_PERCENT: usize = 40;

const ORDINALS: [&str; 3] = ["first", "second", "third"];

/// Something that a text states.
#[derive(Debug, Clone)]
pub(super) enum Fact {
    /// A string or a number.
    Value {
        label: String,
        text: String,
        sentence: &'static str,
    },
    /// A boolean, by the clause that holds; `opposite` is the one that does not.
    Flag {
        label: String,
        clause: &'static str,
        opposite: &'static str,
        value: bool,
    },
    /// The strings of an array.
    List {
        label: &'static str,
        values: Vec<&'static str>,
    },
    /// One object of an array: labels and values.
    Item {
        item_idx: usize,
        singular: &'static str,
        parts: Vec<(&'static str, String)>,
    },
}

/// What a text is about and everything that it says.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) noun: &'static str,
    pub(super) facts: Vec<Fact>,
    pub(super) aside: Option<&'static str>,
}

impl Fact {
    /// The fact that `field`, called `label` in the text, has the value `drawn`.
    pub(super) fn of(field: &'static Field, label: &str, drawn: &Drawn) -> Self {
        match &field.kind {
            Kind::Flag(yes, no) => {
                let value = drawn.json == true;
                let (clause, opposite) = if value { (yes, no) } else { (no, yes) };
                Self::Flag {
                    label: label.to_owned(),
                    clause,
                    opposite,
                    value,
                }
            }
            // "The number of seats is 40": the label is a plural.
            Kind::Int(..) if label.ends_with('s') => Self::Value {
                label: format!("number of {label}"),
                text: drawn.text.clone(),
                sentence: &field.say,
            },
            _ => Self::Value {
                label: label.to_owned(),
                text: drawn.text.clone(),
                sentence: &field.say,
            },
        }
    }

    /// A full sentence.
    fn sentence(&self, random: &mut SeededRandom) -> String {
        match self {
            Self::Value { text, sentence, .. }
                if !sentence.is_empty() && chance(OWN_SENTENCE_PERCENT, random) =>
            {
                sentence.replace("{}", text)
            }
            Self::Value { label, text, .. } => match random.below(3) {
                0 => format!("The {label} is {text}."),
                1 => format!("The {label} was given as {text}."),
                _ => format!("We have {text} as the {label}."),
            },
            Self::Flag { clause, .. } => format!("{}.", capitalise(clause)),
            Self::List { label, values } => match values.as_slice() {
                [only] => format!("The only entry under {label} is {only}."),
                several => format!("The {label} are {}.", join(several)),
            },
            Self::Item {
                item_idx,
                singular,
                parts,
            } => {
                let parts: Vec<String> = parts
                    .iter()
                    .map(|(label, text)| format!("the {label} {text}"))
                    .collect();
                format!(
                    "The {} {singular} has {}.",
                    ORDINALS[*item_idx],
                    join(&parts)
                )
            }
        }
    }

    /// A labelled entry, as in a list or a form.
    fn entry(&self) -> String {
        match self {
            Self::Value { label, text, .. } => format!("{}: {text}", capitalise(label)),
            Self::Flag { label, value, .. } => {
                format!(
                    "{}: {}",
                    capitalise(label),
                    if *value { "yes" } else { "no" }
                )
            }
            Self::List { label, values } => format!("{}: {}", capitalise(label), values.join(", ")),
            Self::Item {
                item_idx,
                singular,
                parts,
            } => {
                let parts: Vec<String> = parts
                    .iter()
                    .map(|(label, text)| format!("{label} {text}"))
                    .collect();
                let ordinal = capitalise(ORDINALS[*item_idx]);
                format!("{ordinal} {singular}: {}", parts.join(", "))
            }
        }
    }

    /// An assignment, as a program would log it.
    fn assignment(&self) -> String {
        match self {
            Self::Value { label, text, .. } => format!("{}={text}", snake(label)),
            Self::Flag { label, value, .. } => format!("{}={value}", snake(label)),
            Self::List { label, values } => format!("{}={}", snake(label), values.join(", ")),
            Self::Item {
                singular, parts, ..
            } => {
                let parts: Vec<String> = parts
                    .iter()
                    .map(|(label, text)| format!("{}={text}", snake(label)))
                    .collect();
                format!("{} {}", snake(singular), parts.join(", "))
            }
        }
    }

    /// Whether `text` says so in any style.
    pub(super) fn is_stated_in(&self, text: &str) -> bool {
        let states = |phrase: &str| contains_token(text, phrase);
        match self {
            // The labels do not matter here: a field's own sentence has none.
            Self::Value { text: value, .. } => states(value),
            Self::List { values, .. } => values.iter().all(|value| states(value)),
            Self::Item { parts, .. } => parts.iter().all(|(_, value)| states(value)),
            Self::Flag {
                clause,
                opposite,
                value,
                ..
            } => {
                let said = |clause: &str| states(clause) || states(&capitalise(clause));
                let opposite_value = self.with_value(!value);
                let labelled = |fact: &Self| states(&fact.entry()) || states(&fact.assignment());
                (said(clause) || labelled(self)) && !said(opposite) && !labelled(&opposite_value)
            }
        }
    }

    fn with_value(&self, flag: bool) -> Self {
        let mut fact = self.clone();
        if let Self::Flag { value, .. } = &mut fact {
            *value = flag;
        }
        fact
    }
}

/// Whether `phrase` stands in `text` with no letter, digit or part of a number touching it.
pub fn contains_token(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(start, _)| {
        let mut after = text[start + phrase.len()..].chars();
        let (next, second) = (after.next(), after.next());
        let before = text[..start].chars().next_back();
        let touches = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let continues = matches!(next, Some('.' | ':' | '-' | ','))
            && second.is_some_and(|c| c.is_ascii_digit());
        let continued = matches!(before, Some('.' | '-')) || (before == Some(':'));
        !phrase.is_empty() && !touches(before) && !touches(next) && !continues && !continued
    })
}

/// Tells everything in one style; facts come in the order given.
pub(super) fn render(style: Style, told: &Told, random: &mut SeededRandom) -> String {
    match style {
        Style::Prose => prose(told, random),
        Style::Bullets => bullets(told, random),
        Style::Mail => mail(told, random),
        Style::Log => log(told, random),
        Style::Dialogue => dialogue(told, random),
    }
}

fn prose(told: &Told, random: &mut SeededRandom) -> String {
    let noun = told.noun;
    let opening = match random.below(4) {
        0 => format!("This is about the {noun}."),
        1 => format!("Here are the details of the {noun}."),
        2 => format!("Some notes on the {noun}."),
        _ => String::new(),
    };
    let mut sentences = vec![opening];
    sentences.extend(told.facts.iter().map(|fact| fact.sentence(random)));
    sentences.extend(told.aside.map(str::to_owned));
    sentences.retain(|sentence| !sentence.is_empty());
    sentences.join(" ")
}

fn bullets(told: &Told, random: &mut SeededRandom) -> String {
    let marker = pick(&["-", "*", "•"], random);
    let entries = told
        .facts
        .iter()
        .map(Fact::entry)
        .chain(told.aside.map(str::to_owned));
    let entries: Vec<String> = entries.map(|entry| format!("{marker} {entry}")).collect();
    format!("{}\n{}", capitalise(told.noun), entries.join("\n"))
}

fn mail(told: &Told, random: &mut SeededRandom) -> String {
    let first_names = &VOCABULARY.first_names;
    let (reader, writer) = (pick(first_names, random), pick(first_names, random));
    let greeting = pick(&["Hello", "Dear", "Hi"], random);
    let farewell = pick(&["Best regards", "Thanks", "Cheers"], random);
    let mut sentences: Vec<String> = told.facts.iter().map(|f| f.sentence(random)).collect();
    sentences.extend(told.aside.map(str::to_owned));
    format!(
        "Subject: {}\n\n{greeting} {reader},\n\n{}\n\n{farewell},\n{writer} {}",
        told.noun,
        sentences.join(" "),
        pick(&VOCABULARY.last_names, random),
    )
}

fn log(told: &Told, random: &mut SeededRandom) -> String {
    let level = pick(&["INFO", "LOG", ">"], random);
    let heading = snake(told.noun);
    let entries = told.facts.iter().map(Fact::assignment);
    let entries = entries.chain(told.aside.map(|aside| format!("# {aside}")));
    let lines = std::iter::once(heading)
        .chain(entries)
        .map(|entry| format!("{level} {entry}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn dialogue(told: &Told, random: &mut SeededRandom) -> String {
    let first_names = &VOCABULARY.first_names;
    let (askers, answerers) = first_names.split_at(first_names.len() / 2);
    let (asker, answerer) = (pick(askers, random), pick(answerers, random));
    let mut lines = vec![format!("{asker}: What do we know about the {}?", told.noun)];
    for fact in &told.facts {
        match fact {
            Fact::Value { label, text, .. } if chance(50, random) => {
                let question = pick(&["And the", "What is the"], random);
                lines.push(format!("{asker}: {question} {label}?"));
                lines.push(format!("{answerer}: {text}."));
            }
            _ => lines.push(format!("{answerer}: {}", fact.sentence(random))),
        }
    }
    lines.extend(told.aside.map(|aside| format!("{asker}: {aside}")));
    lines.join("\n")
}

/// `word` with its first letter in upper case.
pub(crate) fn capitalise(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

fn snake(words: &str) -> String {
    words.replace(' ', "_")
}

/// `a`, `a and b`, `a, b and c`.
fn join<S: AsRef<str>>(parts: &[S]) -> String {
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}
