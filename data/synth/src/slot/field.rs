//! Types of the family tables: fields, groups, lists, items, families.
//!
//! The module `families` documents the file format.

use serde::Deserialize;

use super::Split;

/// A scalar that a text can state and a schema can ask for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Field {
    /// Lower-case words, such as `departure time`.
    pub(super) name: String,
    pub(super) kind: Kind,
    /// A word after the number, such as `minutes`; empty for none.
    #[serde(default)]
    pub(super) unit: String,
    /// A sentence with `{}` for the value, which does not contain the name; empty for none.
    #[serde(default)]
    pub(super) say: String,
}

/// Where the values of a field come from, which also determines the type in the schema.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A string from a list.
    Text(Vec<String>),
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
    Code(String),
    /// An integer in this inclusive range.
    Int(u32, u32),
    /// A number with one decimal: the bounds are in tenths, and integers are excluded.
    Tenths(u32, u32),
    /// A boolean, stated by the first clause if true and by the second if false.
    Flag(String, String),
    /// A string that the schema restricts to this list.
    Choice(Vec<String>),
}

/// A nested object.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) fields: Vec<Field>,
}

/// An array of strings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    /// A plural.
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

/// An array of objects.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Items {
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) fields: Vec<Field>,
}

/// A kind of thing that texts describe; schemas of rows are drawn from its parts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    /// A noun, such as `ferry crossing`.
    pub(super) name: String,
    pub(super) split: Split,
    pub(super) fields: Vec<Field>,
    pub(super) group: Group,
    pub(super) list: List,
    pub(super) items: Items,
}

/// Families with a common subject, in one file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Domain {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "names the table; tests count them")
    )]
    pub(super) name: String,
    #[serde(rename = "family")]
    pub(super) families: Vec<Family>,
}
