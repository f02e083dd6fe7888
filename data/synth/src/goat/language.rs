//! Executed calls in, the query, the sub-queries, the answer and its facts out.
//!
//! A value is named by the phrase of the output that it came from, and that phrase by the values
//! of the call before: "the weather in the home port of the ship Grey Gull". The query asks for
//! what the last calls give; a phrase is drawn once, so that query and sub-queries agree.

use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_rows::batches::SeededRandom;

use super::api::Aspect;
use super::binding::{Argument, BoundCall};
use super::catalogue::Catalogue;
use crate::slot::{capitalise, chance, pick};

/// Percentage of queries with one aim that are asked as a question of its own.
const QUESTION_PERCENT: usize = 45;
/// Percentage of queries with two aims whose first is asked as a question.
const ALSO_PERCENT: usize = 25;

/// What stands before and after the things asked for.
const FRAMES: &[(&str, &str)] = &[
    ("Tell me ", "."),
    ("Please find ", "."),
    ("I would like to know ", "."),
    ("Can you tell me ", "?"),
    ("Could you look up ", "?"),
    ("Show me ", "."),
    ("I need ", "."),
    ("Give me ", ", please."),
    ("Please look up ", "."),
    ("Do you know ", "?"),
    ("Help me find ", "."),
    ("I am looking for ", "."),
    ("I want ", "."),
];

/// What stands between two things asked for.
const JOINS: &[&str] = &[
    " and ",
    ", and also ",
    " as well as ",
    " together with ",
    ", then ",
];

/// How a second thing is asked for after a question.
const ALSO: &[(&str, &str)] = &[
    (" Also tell me ", "."),
    (" I also need ", "."),
    (" And please find ", "."),
];

/// The words of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) query: String,
    /// One for each call.
    pub(super) sub_queries: Vec<String>,
    pub(super) response: String,
    /// Texts of the response that answer the query.
    pub(super) facts: Vec<String>,
}

/// A value as sentences write it.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Names by parameter.
type Names = BTreeMap<&'static str, String>;

/// Puts the calls into words.
pub(super) fn tell(catalogue: &Catalogue, calls: &[BoundCall], random: &mut SeededRandom) -> Told {
    let mut names: Vec<Names> = Vec::new();
    for call in calls {
        let of_call = call.arguments.iter().map(|argument| {
            let name = name_of(argument, calls, &names, random);
            (argument.parameter.name.as_str(), name)
        });
        let of_call = of_call.collect();
        names.push(of_call);
    }
    let sub_queries = calls.iter().zip(&names).map(|(call, names)| {
        let api = catalogue.entry(call.api_idx).api;
        let request = fill(pick(&api.sub_queries, random).as_str(), names);
        with_restrictions(&request, call, random)
    });
    let sub_queries = sub_queries.collect();
    let mut aims = Vec::new();
    let (mut answers, mut facts): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (call, names) in calls.iter().zip(&names).filter(|(call, _)| call.is_sink) {
        let api = catalogue.entry(call.api_idx).api;
        let aspect = &api.aspects[random.below(api.aspects.len())];
        aims.push(Aim::draw(aspect, call, names, random));
        answers.push(answer(&aspect.answer, &api.list, &call.output, &mut facts));
    }
    Told {
        query: ask(&aims, random),
        sub_queries,
        response: answers.join(" "),
        facts,
    }
}

fn name_of(
    argument: &Argument,
    calls: &[BoundCall],
    names: &[Names],
    random: &mut SeededRandom,
) -> String {
    let Some(source) = argument.source else {
        let phrase = pick(&argument.parameter.kind.phrases, random);
        return phrase.replace("{}", &text(&argument.value));
    };
    let phrase = pick(&source.field.phrases, random);
    let phrase = match calls[source.call].pick {
        Some(choice) => phrase.replace("{pick}", pick(&choice.words, random).as_str()),
        None => phrase.clone(),
    };
    fill(&phrase, &names[source.call])
}

/// Replaces `{parameter}` by its name.
fn fill(template: &str, names: &Names) -> String {
    let filled = names
        .iter()
        .fold(template.to_owned(), |text, (parameter, name)| {
            text.replace(&format!("{{{parameter}}}"), name)
        });
    debug_assert!(
        !filled.contains('{'),
        "{template} names an unknown parameter"
    );
    filled
}

/// Adds the optional arguments to a request, before its closing mark if it has one.
fn with_restrictions(request: &str, call: &BoundCall, random: &mut SeededRandom) -> String {
    let (body, mark) = match request.strip_suffix('.') {
        Some(body) => (body, "."),
        None => (request, ""),
    };
    let mut said = body.to_owned();
    for argument in &call.arguments {
        if let Some(limit) = &argument.parameter.optional {
            said += &pick(&limit.phrases, random).replace("{}", &text(&argument.value));
        }
    }
    said + mark
}

/// One thing that a query asks for.
#[derive(Debug)]
struct Aim {
    noun: String,
    /// The same as a question; `None` if the table has none or an option must be said.
    question: Option<String>,
    /// How the query names the values of the call.
    names: Vec<String>,
}

impl Aim {
    fn draw(aspect: &Aspect, call: &BoundCall, names: &Names, random: &mut SeededRandom) -> Self {
        let is_optional = |argument: &&Argument| !argument.parameter.is_required();
        let is_plain = !call.arguments.iter().any(|argument| is_optional(&argument));
        let question = (is_plain && !aspect.questions.is_empty())
            .then(|| capitalise(&fill(pick(&aspect.questions, random).as_str(), names)));
        let noun = fill(pick(&aspect.nouns, random).as_str(), names);
        Self {
            noun: with_restrictions(&noun, call, random),
            question,
            names: names.values().cloned().collect(),
        }
    }
}

fn ask(aims: &[Aim], random: &mut SeededRandom) -> String {
    if let [only] = aims
        && let Some(question) = &only.question
        && chance(QUESTION_PERCENT, random)
    {
        return question.clone();
    }
    if let [first, second] = aims
        && let Some(question) = &first.question
        && chance(ALSO_PERCENT, random)
    {
        let (before, after) = pick(ALSO, random);
        return format!("{question}{before}{}{after}", second.noun);
    }
    let (before, after) = pick(FRAMES, random);
    format!("{before}{}{after}", joined(aims, random))
}

fn joined(aims: &[Aim], random: &mut SeededRandom) -> String {
    match aims {
        [first, second] => match merged(first, second) {
            Some(both) if chance(70, random) => both,
            _ => format!("{}{}{}", first.noun, pick(JOINS, random), second.noun),
        },
        [others @ .., last] if !others.is_empty() => {
            let others: Vec<&str> = others.iter().map(|aim| aim.noun.as_str()).collect();
            format!("{} and {}", others.join(", "), last.noun)
        }
        _ => aims.iter().map(|aim| aim.noun.as_str()).collect(),
    }
}

/// "the cast of X" and "the writer of X" as "the cast and the writer of X".
fn merged(first: &Aim, second: &Aim) -> Option<String> {
    let shared = first
        .names
        .iter()
        .find(|name| second.names.contains(name))?;
    [" of ", " in ", " at "].iter().find_map(|link| {
        let end = format!("{link}{shared}");
        let first = first.noun.strip_suffix(&end)?;
        let second = second.noun.strip_suffix(&end)?;
        Some(format!("{first} and {second}{end}"))
    })
}

/// Fills an answer with the columns of the output; what is marked `!` is added to the facts.
fn answer(template: &str, list: &str, output: &Value, facts: &mut Vec<String>) -> String {
    let Some((before, rest)) = template.split_once('[') else {
        return say(template, output, facts);
    };
    let (each, after) = rest.split_once(']').unwrap_or((rest, ""));
    let rows = output[list].as_array().map_or(&[][..], Vec::as_slice);
    let items: Vec<String> = rows.iter().map(|row| say(each, row, facts)).collect();
    format!("{before}{}{after}", items.join(", "))
}

fn say(template: &str, row: &Value, facts: &mut Vec<String>) -> String {
    let mut said = String::new();
    let mut rest = template;
    while let Some((before, tail)) = rest.split_once('{') {
        let (column, after) = tail.split_once('}').unwrap_or((tail, ""));
        let name = column.strip_suffix('!').unwrap_or(column);
        let value = text(&row[name]);
        debug_assert!(!row[name].is_null(), "{template} names an unknown column");
        if name != column && !facts.contains(&value) {
            facts.push(value.clone());
        }
        said = said + before + &value;
        rest = after;
    }
    said + rest
}
