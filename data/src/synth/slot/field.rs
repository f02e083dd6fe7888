//! The words in which the family tables are written: fields, groups, lists, items, families.
//!
//! A field carries its name once, as plain words; keys of every style and the labels in the text
//! are derived from them. The constructors are `const` so that a table is one constant and a
//! misspelt kind does not compile.

use super::Split;

/// One scalar that a text can state and a schema can ask for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// Lower-case words, such as `departure time`.
    pub(super) words: &'static str,
    pub(super) kind: Kind,
    /// A word after the number, such as `minutes`; empty for none.
    pub(super) unit: &'static str,
    /// A whole sentence with `{}` for the value, which does not use the words; empty for none.
    pub(super) sentence: &'static str,
}

/// Where a field's values come from; it also fixes the type in the schema.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A string from a list.
    Text(&'static [&'static str]),
    /// A first and a last name.
    Person,
    /// A town.
    Place,
    /// A house number and a street.
    Address,
    /// A company or society.
    Company,
    /// An ISO date.
    Date,
    /// Hours and minutes.
    Time,
    /// The prefix, a hyphen and three digits.
    Code(&'static str),
    /// An integer of at least the first and at most the second number.
    Integer(u32, u32),
    /// A number with a fraction: the bounds count tenths.
    Number(u32, u32),
    /// A boolean, stated by the first clause if true and by the second if false.
    Flag(&'static str, &'static str),
    /// A string that the schema restricts to this list.
    Choice(&'static [&'static str]),
}

/// A nested object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) words: &'static str,
    pub(super) fields: &'static [Field],
}

/// An array of strings.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    /// A plural.
    pub(super) words: &'static str,
    pub(super) values: &'static [&'static str],
}

/// An array of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Items {
    pub(super) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) fields: &'static [Field],
}

/// A kind of thing that texts are about; schemas of its rows draw from these parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    /// A noun, such as `ferry crossing`.
    pub(super) name: &'static str,
    pub(super) split: Split,
    pub(super) flat: &'static [Field],
    pub(super) group: Group,
    pub(super) list: List,
    pub(super) items: Items,
}

/// Families that share a subject.
#[derive(Debug, Clone, Copy)]
pub(super) struct Domain {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "names the table; tests count them")
    )]
    pub(super) name: &'static str,
    pub(super) families: &'static [Family],
}

impl Field {
    const fn of(words: &'static str, kind: Kind) -> Self {
        Self {
            words,
            kind,
            unit: "",
            sentence: "",
        }
    }

    /// The same field with a sentence of its own.
    pub(super) const fn say(self, sentence: &'static str) -> Self {
        Self { sentence, ..self }
    }

    /// The same field with a unit after its number.
    pub(super) const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }
}

pub(super) const fn text(words: &'static str, values: &'static [&'static str]) -> Field {
    Field::of(words, Kind::Text(values))
}

pub(super) const fn person(words: &'static str) -> Field {
    Field::of(words, Kind::Person)
}

pub(super) const fn place(words: &'static str) -> Field {
    Field::of(words, Kind::Place)
}

pub(super) const fn address(words: &'static str) -> Field {
    Field::of(words, Kind::Address)
}

pub(super) const fn company(words: &'static str) -> Field {
    Field::of(words, Kind::Company)
}

pub(super) const fn date(words: &'static str) -> Field {
    Field::of(words, Kind::Date)
}

pub(super) const fn time(words: &'static str) -> Field {
    Field::of(words, Kind::Time)
}

pub(super) const fn code(words: &'static str, prefix: &'static str) -> Field {
    Field::of(words, Kind::Code(prefix))
}

pub(super) const fn int(words: &'static str, low: u32, high: u32) -> Field {
    Field::of(words, Kind::Integer(low, high))
}

/// The bounds count tenths: `num("fare", 45, 120)` draws from 4.5 to 12.0, whole numbers left out.
pub(super) const fn num(words: &'static str, low: u32, high: u32) -> Field {
    Field::of(words, Kind::Number(low, high))
}

pub(super) const fn flag(words: &'static str, yes: &'static str, no: &'static str) -> Field {
    Field::of(words, Kind::Flag(yes, no))
}

pub(super) const fn choice(words: &'static str, values: &'static [&'static str]) -> Field {
    Field::of(words, Kind::Choice(values))
}

pub(super) const fn group(words: &'static str, fields: &'static [Field]) -> Group {
    Group { words, fields }
}

pub(super) const fn list(words: &'static str, values: &'static [&'static str]) -> List {
    List { words, values }
}

pub(super) const fn items(
    plural: &'static str,
    singular: &'static str,
    fields: &'static [Field],
) -> Items {
    Items {
        plural,
        singular,
        fields,
    }
}
