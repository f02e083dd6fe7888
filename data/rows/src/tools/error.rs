//! What can be wrong with API documents, specifications and trajectories.
//!
//! The enum is flat, and [`ToolsError::At`] adds the place: a trajectory built in memory has no
//! file and line, the same fault found in a file has. Every message says how to fix the fault.

use thiserror::Error;

use super::declared::DeclaredBy;
use crate::faults::{self, Fault};
use crate::json::JsonError;
use crate::read_error::ReadError;

/// A reason why documents or trajectories cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// The fault belongs to one place of a file, or to one named row.
    #[error("{place}: {error}")]
    At {
        /// `file:line`, `file`, or the id of a row.
        place: String,
        /// What is wrong there.
        error: Box<ToolsError>,
    },

    /// Several rows are at fault.
    #[error("{}", faults::lines(shown, *n_more))]
    Several {
        /// The first faults, in the order of the rows; more than one.
        shown: Vec<ToolsError>,
        /// Further ones, counted only.
        n_more: usize,
    },

    /// A fault that every reader of rows can meet.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// A file that calls are to be recorded in cannot be used.
    #[error("{}: cannot record calls: {reason}; name another file", path.display())]
    NotRecordable {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// A file holds nothing.
    #[error(
        "the file holds no {what}; each line, or each element of an array, must be one JSON object"
    )]
    Empty {
        /// What was looked for, such as `API documents`.
        what: &'static str,
    },

    /// A text is not UTF-8.
    #[error("invalid UTF-8 at byte {byte}; save the file as UTF-8 (iconv -t utf-8 converts)")]
    NotUtf8 {
        /// Offset of the first bad byte, from 0.
        byte: usize,
    },

    /// A text is not one JSON value.
    #[error(
        "not valid JSON: {error}; a .jsonl file holds one JSON object a line, a .json file one value"
    )]
    NotJson {
        /// What the parser says.
        error: JsonError,
    },

    /// A specification is not YAML.
    #[error("not valid YAML: {reason}; give an OpenAPI 3 document as JSON or YAML")]
    NotYaml {
        /// What the parser says.
        reason: String,
    },

    /// A field that must say something is empty.
    #[error("{field} is empty; {needed}")]
    EmptyField {
        /// Where the field is.
        field: String,
        /// What belongs there.
        needed: &'static str,
    },

    /// A pair that contradicts itself.
    #[error("a negative is the right document itself; leave it out of the negatives")]
    NegativeIsPositive,

    /// A field that the layout does not have.
    #[error("unknown field {field:?}{hint}; use one of {known}")]
    UnknownField {
        /// Where the field is.
        field: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// The fields that exist here.
        known: String,
    },

    /// A field is given in both spellings.
    #[error("{field} and {other} are the same field; keep one of them")]
    FieldTwice {
        /// The long spelling.
        field: String,
        /// The short spelling.
        other: &'static str,
    },

    /// Two documents have one call name.
    #[error(
        "API {name:?} is described twice, at {first} and at {second}; call names must differ, so rename or remove one"
    )]
    DuplicateApi {
        /// The call name.
        name: String,
        /// Where it stands first.
        first: String,
        /// Where it stands again.
        second: String,
    },

    /// A file of recorded answers has two for one API.
    #[error("{name:?} has an answer already; keep one answer for each API")]
    DuplicateAnswer {
        /// The call name.
        name: String,
    },

    /// A list of tools is one page of several.
    #[error(
        "the list has a nextCursor, so that tools are missing; give the tools of all pages in one list, or take them from the server: --command"
    )]
    MoreTools,

    /// A `$ref` leads nowhere.
    #[error("{pointer}: $ref {reference:?} {reason}; define it in the same document")]
    UnresolvedReference {
        /// JSON pointer of the object that holds the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
        /// Why it cannot be followed.
        reason: &'static str,
    },

    /// A part of a specification is not as OpenAPI 3 says.
    #[error("{pointer}: {reason}")]
    BadSpec {
        /// JSON pointer of the part; empty for the whole.
        pointer: String,
        /// What is wrong with it and how to fix it.
        reason: String,
    },

    /// A call names an API that no document describes, or a tool that its row does not have.
    #[error("{field}: no {} is called {name:?}{hint}; {}", by.what(), by.fix_name())]
    UnknownApi {
        /// Where the name is, such as `calls[1].name`.
        field: String,
        /// The name as given.
        name: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// Who says which names there are.
        by: DeclaredBy,
    },

    /// A trajectory has no calls.
    #[error("calls is empty; a trajectory needs at least one call")]
    NoCalls,

    /// An argument that is said to be derived is not an argument of its call.
    #[error("{field}: the call has no argument of that name; it has {arguments}")]
    DerivedWithoutArgument {
        /// Where the derivation is, such as `calls[1].derived.amount`.
        field: String,
        /// The arguments that the call has.
        arguments: String,
    },

    /// An argument is derived from a call that has not been made by then.
    #[error("{field} takes its value from calls[{from}], {reason}; derive from an earlier call")]
    DerivedFromTheFuture {
        /// Where the derivation is, such as `calls[1].derived.amount`.
        field: String,
        /// The call named as the origin.
        from: usize,
        /// Why that call cannot be the origin.
        reason: &'static str,
    },

    /// An argument is derived from a place that the earlier output does not have.
    #[error(
        "{field}: the output of calls[{from}] has nothing at {path:?}; write its keys with points between them, [] for the items of a list, and nothing for the whole output"
    )]
    DerivedFromNothing {
        /// Where the derivation is, such as `calls[1].derived.amount`.
        field: String,
        /// The call named as the origin.
        from: usize,
        /// The place in its output.
        path: String,
    },

    /// A call has an argument that its API or tool does not take.
    #[error(
        "{field}: {api} has no such parameter{hint}; it has {known}; {}", by.fix_argument()
    )]
    UnknownArgument {
        /// Where the argument is, such as `calls[1].arguments.amount`.
        field: String,
        /// The API's call name.
        api: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// The parameters that the API has.
        known: String,
        /// Who says so.
        by: DeclaredBy,
    },

    /// A call lacks an argument that its API or tool requires.
    #[error("{field}: {api} requires {name:?}, {}", by.fix_missing())]
    MissingArgument {
        /// Where the arguments are, such as `calls[1].arguments`.
        field: String,
        /// The API's call name.
        api: String,
        /// The parameter.
        name: String,
        /// Who says so.
        by: DeclaredBy,
    },

    /// An argument cannot be what its API's document declares.
    #[error(
        "{field} is {found}, but {api} declares it as {declared}; fix the call or the type in the API's document"
    )]
    ArgumentOfOtherType {
        /// Where the argument is, such as `calls[1].arguments.amount`.
        field: String,
        /// What is there, in words.
        found: String,
        /// The API's call name.
        api: String,
        /// The type as the document spells it.
        declared: String,
    },

    /// An argument breaks the JSON Schema of its API or tool.
    #[error("{field}: {tool} does not take this value: {reason}; {}", by.fix_argument())]
    ArgumentBreaksSchema {
        /// Where the argument is, such as `messages[1].tool_calls[0].arguments.days`.
        field: String,
        /// The API or tool.
        tool: String,
        /// What the validator says.
        reason: String,
        /// Who gives the schema.
        by: DeclaredBy,
    },

    /// The schema of a parameter is no JSON Schema that values can be checked with.
    #[error(
        "the schema of parameter {parameter:?} of {api} is not usable: {pointer}: {reason}; fix it in the API's document, or take it out"
    )]
    BadParameterSchema {
        /// The API's call name.
        api: String,
        /// The parameter.
        parameter: String,
        /// JSON pointer into the schema.
        pointer: String,
        /// What is wrong there.
        reason: String,
    },

    /// Two trajectories of an evaluation have one id.
    #[error(
        "id {id:?} stands at {first} already; predictions are known by their ids, so give each trajectory one of its own"
    )]
    DuplicateTrajectory {
        /// The id.
        id: String,
        /// Where it stands first.
        first: String,
    },
}

impl ToolsError {
    /// Adds the place that the fault belongs to, unless one is known already.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        match self {
            Self::At { .. } | Self::Several { .. } => self,
            Self::Read(ref error) if error.names_its_file() => self,
            error => Self::At {
                place: place.into(),
                error: Box::new(error),
            },
        }
    }

    /// Why a row is no row.
    pub(super) fn of_row(error: JsonError) -> Self {
        match error {
            JsonError::DuplicateKey(twice) => ReadError::from(twice).into(),
            error => Self::NotJson { error },
        }
    }

    /// The fault itself, without its place; of several the first.
    pub fn fault(&self) -> &Self {
        match self {
            Self::At { error, .. } => error.fault(),
            Self::Several { shown, .. } => shown.first().map_or(self, Self::fault),
            fault => fault,
        }
    }
}

impl Fault for ToolsError {
    fn several(shown: Vec<Self>, n_more: usize) -> Self {
        Self::Several { shown, n_more }
    }

    fn placed(&self) -> Option<(&str, String)> {
        match self {
            Self::At { place, error } => Some((place, error.to_string())),
            _ => None,
        }
    }
}

/// `, did you mean "..."?` if one of `known` is near to `name`, else nothing.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    const NEAR: f64 = 0.85;
    let lower = name.trim().to_lowercase();
    let mut best: Option<(f64, &str)> = None;
    for candidate in known {
        let score = strsim::jaro_winkler(&lower, &candidate.to_lowercase());
        if score >= NEAR && best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| format!(", did you mean {candidate:?}?"))
        .unwrap_or_default()
}
