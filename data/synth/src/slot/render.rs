//! Renders facts as text in one of the styles.
//!
//! Templates are few and general: a fact has a label and, for many fields, its own sentence without
//! the label. Variety comes from families, order and style. Values are copied without inflection or
//! capitalisation, so that a model can copy them verbatim.

use tooltune_rows::batches::SeededRandom;

use super::Style;
use super::field::{Field, Kind};
use super::values::{FieldValue, happens, pick};
use super::vocabulary::VOCABULARY;

/// Percentage of facts that are stated by the field's own sentence, if it has one.
const OWN_SENTENCE_PERCENT: usize = 40;

const ORDINALS: [&str; 3] = ["first", "second", "third"];

/// A fact that a text states.
#[derive(Debug, Clone)]
pub(super) enum Fact {
    /// A string or a number.
    Value {
        label: String,
        text: String,
        sentence: &'static str,
    },
    /// A boolean, stated by the true clause; `opposite` is the false one.
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
    /// One object of an array, as labels and values.
    Item {
        item_idx: usize,
        singular: &'static str,
        parts: Vec<(&'static str, String)>,
    },
}

/// The subject of a text and all of its facts.
#[derive(Debug)]
pub(super) struct TextPlan {
    pub(super) noun: &'static str,
    pub(super) facts: Vec<Fact>,
    pub(super) aside: Option<&'static str>,
}

impl Fact {
    /// The fact that `field`, which the text calls `label`, has this value.
    pub(super) fn from_field(field: &'static Field, label: &str, field_value: &FieldValue) -> Self {
        match &field.kind {
            Kind::Flag(yes, no) => {
                let value = field_value.json == true;
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
                text: field_value.text.clone(),
                sentence: &field.say,
            },
            _ => Self::Value {
                label: label.to_owned(),
                text: field_value.text.clone(),
                sentence: &field.say,
            },
        }
    }

    /// The fact as a full sentence.
    fn sentence(&self, random: &mut SeededRandom) -> String {
        match self {
            Self::Value { text, sentence, .. }
                if !sentence.is_empty() && happens(OWN_SENTENCE_PERCENT, random) =>
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
                several => format!("The {label} are {}.", join_with_and(several)),
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
                    join_with_and(&parts)
                )
            }
        }
    }

    /// The fact as a labelled entry of a list or form.
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

    /// The fact as an assignment in a log.
    fn assignment(&self) -> String {
        match self {
            Self::Value { label, text, .. } => format!("{}={text}", snake_case(label)),
            Self::Flag { label, value, .. } => format!("{}={value}", snake_case(label)),
            Self::List { label, values } => format!("{}={}", snake_case(label), values.join(", ")),
            Self::Item {
                singular, parts, ..
            } => {
                let parts: Vec<String> = parts
                    .iter()
                    .map(|(label, text)| format!("{}={text}", snake_case(label)))
                    .collect();
                format!("{} {}", snake_case(singular), parts.join(", "))
            }
        }
    }

    /// Whether `text` states the fact in any style.
    pub(super) fn is_stated_in(&self, text: &str) -> bool {
        let states = |phrase: &str| contains_token(text, phrase);
        match self {
            // Labels do not matter here, because a field's own sentence has none.
            Self::Value { text: value, .. } => states(value),
            Self::List { values, .. } => values.iter().all(|value| states(value)),
            Self::Item { parts, .. } => parts.iter().all(|(_, value)| states(value)),
            Self::Flag {
                clause,
                opposite,
                value,
                ..
            } => {
                let is_stated = |clause: &str| states(clause) || states(&capitalise(clause));
                let opposite_value = self.with_value(!value);
                let labelled = |fact: &Self| states(&fact.entry()) || states(&fact.assignment());
                (is_stated(clause) || labelled(self))
                    && !is_stated(opposite)
                    && !labelled(&opposite_value)
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

/// Whether `phrase` occurs in `text` without an adjacent letter, digit or part of a number.
pub fn contains_token(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(start, _)| {
        let mut following = text[start + phrase.len()..].chars();
        let (next_char, second) = (following.next(), following.next());
        let preceding = text[..start].chars().next_back();
        let is_alphanumeric = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let continues = matches!(next_char, Some('.' | ':' | '-' | ','))
            && second.is_some_and(|c| c.is_ascii_digit());
        let continued = matches!(preceding, Some('.' | '-')) || (preceding == Some(':'));
        !phrase.is_empty()
            && !is_alphanumeric(preceding)
            && !is_alphanumeric(next_char)
            && !continues
            && !continued
    })
}

/// Renders all facts in one style, in the given order.
pub(super) fn render(style: Style, text_facts: &TextPlan, random: &mut SeededRandom) -> String {
    match style {
        Style::Prose => render_prose(text_facts, random),
        Style::Bullets => render_bullets(text_facts, random),
        Style::Mail => render_mail(text_facts, random),
        Style::Log => render_log(text_facts, random),
        Style::Dialogue => render_dialogue(text_facts, random),
    }
}

fn render_prose(text_facts: &TextPlan, random: &mut SeededRandom) -> String {
    let noun = text_facts.noun;
    let opening = match random.below(4) {
        0 => format!("This is about the {noun}."),
        1 => format!("Here are the details of the {noun}."),
        2 => format!("Some notes on the {noun}."),
        _ => String::new(),
    };
    let mut sentences = vec![opening];
    sentences.extend(text_facts.facts.iter().map(|fact| fact.sentence(random)));
    sentences.extend(text_facts.aside.map(str::to_owned));
    sentences.retain(|sentence| !sentence.is_empty());
    sentences.join(" ")
}

fn render_bullets(text_facts: &TextPlan, random: &mut SeededRandom) -> String {
    let marker = pick(&["-", "*", "•"], random);
    let entries = text_facts
        .facts
        .iter()
        .map(Fact::entry)
        .chain(text_facts.aside.map(str::to_owned));
    let entries: Vec<String> = entries.map(|entry| format!("{marker} {entry}")).collect();
    format!("{}\n{}", capitalise(text_facts.noun), entries.join("\n"))
}

fn render_mail(text_facts: &TextPlan, random: &mut SeededRandom) -> String {
    let first_names = &VOCABULARY.first_names;
    let (reader, writer) = (pick(first_names, random), pick(first_names, random));
    let greeting = pick(&["Hello", "Dear", "Hi"], random);
    let farewell = pick(&["Best regards", "Thanks", "Cheers"], random);
    let mut sentences: Vec<String> = text_facts
        .facts
        .iter()
        .map(|f| f.sentence(random))
        .collect();
    sentences.extend(text_facts.aside.map(str::to_owned));
    format!(
        "Subject: {}\n\n{greeting} {reader},\n\n{}\n\n{farewell},\n{writer} {}",
        text_facts.noun,
        sentences.join(" "),
        pick(&VOCABULARY.last_names, random),
    )
}

fn render_log(text_facts: &TextPlan, random: &mut SeededRandom) -> String {
    let level = pick(&["INFO", "LOG", ">"], random);
    let heading = snake_case(text_facts.noun);
    let entries = text_facts.facts.iter().map(Fact::assignment);
    let entries = entries.chain(text_facts.aside.map(|extra| format!("# {extra}")));
    let lines = std::iter::once(heading)
        .chain(entries)
        .map(|entry| format!("{level} {entry}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn render_dialogue(text_facts: &TextPlan, random: &mut SeededRandom) -> String {
    let first_names = &VOCABULARY.first_names;
    let (askers, answerers) = first_names.split_at(first_names.len() / 2);
    let (asker, answerer) = (pick(askers, random), pick(answerers, random));
    let mut lines = vec![format!(
        "{asker}: What do we know about the {}?",
        text_facts.noun
    )];
    for fact in &text_facts.facts {
        match fact {
            Fact::Value { label, text, .. } if happens(50, random) => {
                let question = pick(&["And the", "What is the"], random);
                lines.push(format!("{asker}: {question} {label}?"));
                lines.push(format!("{answerer}: {text}."));
            }
            _ => lines.push(format!("{answerer}: {}", fact.sentence(random))),
        }
    }
    lines.extend(text_facts.aside.map(|extra| format!("{asker}: {extra}")));
    lines.join("\n")
}

/// `word` with its first letter in upper case.
pub(crate) fn capitalise(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first_letter| first_letter.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

fn snake_case(words: &str) -> String {
    words.replace(' ', "_")
}

/// `a`, `a and b`, `a, b and c`.
fn join_with_and<S: AsRef<str>>(parts: &[S]) -> String {
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, other_parts)) => format!("{} and {last}", other_parts.join(", ")),
    }
}
