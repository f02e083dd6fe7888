//! Errors of API documents, specifications and trajectories.
//!
//! The enum is flat; [`ToolsError::At`] adds the location, which is known for rows read from a file
//! but not for trajectories built in memory. Every message states the fix.

use thiserror::Error;
use tooltune_json::faults::Fault;
use tooltune_json::yaml::YamlError;
use tooltune_json::{JsonError, ReadError, faults};

use super::declared::DeclaredBy;

/// A reason why documents or trajectories cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// An error at one location of a file, or in one named row.
    #[error("{place}: {error}")]
    At {
        /// `file:line`, `file`, or the id of a row.
        place: String,
        /// The error at that location.
        error: Box<ToolsError>,
    },

    /// Several rows have errors.
    #[error("{}", faults::lines(shown, *n_more))]
    Several {
        /// The first errors, in row order; at least two.
        shown: Vec<ToolsError>,
        /// Number of errors that are not shown.
        n_more: usize,
    },

    /// An error shared by all row readers.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// A file cannot be used to record calls.
    #[error("{}: cannot record calls: {reason}; use another file", path.display())]
    NotRecordable {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Why calls cannot be recorded in the file.
        reason: String,
    },

    /// A file has no records.
    #[error(
        "the file has no {what}; each line, or each element of an array, must be one JSON object"
    )]
    Empty {
        /// Kind of record expected, such as `API documents`.
        what: &'static str,
    },

    /// Text is not UTF-8.
    #[error("invalid UTF-8 at byte {byte}; save the file as UTF-8 (iconv -t utf-8 converts)")]
    NotUtf8 {
        /// Offset of the first invalid byte, from 0.
        byte: usize,
    },

    /// Text is not one JSON value.
    #[error(
        "not valid JSON: {error}; a .jsonl file needs one JSON object per line, a .json file one value"
    )]
    NotJson {
        /// The error of the JSON parser.
        error: JsonError,
    },

    /// A specification is not YAML.
    #[error("not valid YAML: {error}; write the OpenAPI document as one JSON or YAML document")]
    NotYaml {
        /// Parser error with its location.
        error: YamlError,
    },

    /// A required field is empty.
    #[error("{field} is empty; {needed}")]
    EmptyField {
        /// Path of the field.
        field: String,
        /// Required content, and what to do.
        needed: &'static str,
    },

    /// A pair lists its positive document as a negative.
    #[error("a negative is identical to the positive document; remove it from the negatives")]
    NegativeIsPositive,

    /// A pair names a document that is not in the index.
    #[error(
        "document_id {id:?} is not in the index; use the \"id\" of an indexed document, or remove \
         document_id and give the document's text"
    )]
    UnknownDocument {
        /// The id.
        id: String,
    },

    /// Two documents with different text have the same id.
    #[error(
        "id {id:?} is used for two different documents; give each document its own id, or give both the same text"
    )]
    TwoTexts {
        /// The id.
        id: String,
    },

    /// A field that the layout does not have.
    #[error("unknown field {field:?}{}", remedy_after(hint, &format!("use one of {known}")))]
    UnknownField {
        /// Path of the field.
        field: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// The fields that are allowed here.
        known: String,
    },

    /// A field is given under both of its names.
    #[error("{field} and {other} are the same field; keep one of them")]
    FieldTwice {
        /// Path of the field, with its long name.
        field: String,
        /// The short name of the field.
        other: &'static str,
    },

    /// Two documents have the same call name.
    #[error(
        "API {name:?} is described twice, at {first} and at {second}; rename or remove one of them"
    )]
    DuplicateApi {
        /// Call name of the API.
        name: String,
        /// Location of the first document.
        first: String,
        /// Location of the second document.
        second: String,
    },

    /// A file of recorded answers has two answers for one API.
    #[error("{name:?} already has an answer; keep one answer for each API")]
    DuplicateAnswer {
        /// Call name of the API.
        name: String,
    },

    /// A list of tools is only one page of several.
    #[error(
        "the list has a nextCursor, so it is incomplete; put the tools of all pages into one list, or fetch them from the server with --command"
    )]
    MoreTools,

    /// A `$ref` does not resolve.
    #[error("{pointer}: $ref {reference:?} {reason}; define it in the same document")]
    UnresolvedReference {
        /// JSON pointer of the object that contains the reference.
        pointer: String,
        /// The reference as written.
        reference: String,
        /// Why it does not resolve.
        reason: &'static str,
    },

    /// A part of a specification violates OpenAPI 3.
    #[error("{pointer}: {reason}")]
    BadSpec {
        /// JSON pointer of the part; empty for the whole document.
        pointer: String,
        /// What is wrong and how to fix it.
        reason: String,
    },

    /// A call names an API without a document, or a tool that its row does not declare.
    #[error("{field}: no {} is called {name:?}{}", by.noun(), remedy_after(hint, by.fix_name()))]
    UnknownApi {
        /// Path of the name, such as `calls[1].name`.
        field: String,
        /// The name as given.
        name: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// Source of the valid names.
        by: DeclaredBy,
    },

    /// A trajectory has no calls.
    #[error("calls is empty; add at least one call")]
    NoCalls,

    /// A derived argument is not an argument of its call.
    #[error("{field}: the call has no argument of that name; it has {arguments}")]
    DerivedWithoutArgument {
        /// Path of the derivation, such as `calls[1].derived.amount`.
        field: String,
        /// Arguments of the call.
        arguments: String,
    },

    /// An argument is derived from a call that does not come before its own call.
    #[error(
        "{field} takes its value from calls[{from}], {reason}; derive the value from an earlier call"
    )]
    DerivedFromTheFuture {
        /// Path of the derivation, such as `calls[1].derived.amount`.
        field: String,
        /// Index of the source call.
        from: usize,
        /// Why that call cannot be the source.
        reason: &'static str,
    },

    /// An argument is derived from a path that does not exist in the earlier output.
    #[error(
        "{field}: the output of calls[{from}] has nothing at {path:?}; separate keys by dots, write [] for the items of a list, and leave the path empty for the whole output"
    )]
    DerivedFromNothing {
        /// Path of the derivation, such as `calls[1].derived.amount`.
        field: String,
        /// Index of the source call.
        from: usize,
        /// Path in its output.
        path: String,
    },

    /// A call has an argument that its API or tool does not declare.
    #[error(
        "{field}: {api} has no such parameter{}; {}",
        remedy_after(hint, &format!("known parameters: {known}")), by.fix_argument()
    )]
    UnknownArgument {
        /// Path of the argument, such as `calls[1].arguments.amount`.
        field: String,
        /// Call name of the API.
        api: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// Parameters of the API.
        known: String,
        /// Source of the declaration.
        by: DeclaredBy,
    },

    /// A call lacks a required argument.
    #[error("{field}: {api} requires {name:?}, {}", by.fix_missing())]
    MissingArgument {
        /// Path of the arguments, such as `calls[1].arguments`.
        field: String,
        /// Call name of the API.
        api: String,
        /// Name of the parameter.
        name: String,
        /// Source of the declaration.
        by: DeclaredBy,
    },

    /// An argument cannot have the type that its API's document declares.
    #[error(
        "{field} is {found}, but {api} declares it as {declared}; fix the call or the type in the API's document"
    )]
    WrongArgumentType {
        /// Path of the argument, such as `calls[1].arguments.amount`.
        field: String,
        /// The value in words.
        found: String,
        /// Call name of the API.
        api: String,
        /// The type as spelled in the document.
        declared: String,
    },

    /// An argument violates the JSON Schema of its API or tool.
    #[error("{field}: {tool} does not accept this value: {reason}; {}", by.fix_argument())]
    ArgumentBreaksSchema {
        /// Path of the argument, such as `messages[1].tool_calls[0].arguments.days`.
        field: String,
        /// Name of the API or tool.
        tool: String,
        /// The message of the schema validator.
        reason: String,
        /// Source of the schema.
        by: DeclaredBy,
    },

    /// The schema of a parameter is not a usable JSON Schema.
    #[error(
        "the schema of parameter {parameter:?} of {api} is not usable: {pointer}: {reason}; fix or remove it in the API's document"
    )]
    BadParameterSchema {
        /// Call name of the API.
        api: String,
        /// Name of the parameter.
        parameter: String,
        /// JSON pointer into the schema.
        pointer: String,
        /// What is wrong there.
        reason: String,
    },

    /// Two evaluation trajectories have the same id.
    #[error(
        "duplicate id {id:?}, first at {first}; give each trajectory its own id, because predictions refer to ids"
    )]
    DuplicateTrajectory {
        /// The id.
        id: String,
        /// Location of the first trajectory.
        first: String,
    },
}

impl ToolsError {
    /// Adds the location, unless one is already known.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        match self {
            Self::At { .. } | Self::Several { .. } => self,
            Self::Read(ref error) if error.has_file_path() => self,
            error => Self::At {
                place: place.into(),
                error: Box::new(error),
            },
        }
    }

    /// Converts the parse error of a row.
    pub(super) fn from_row_json(error: JsonError) -> Self {
        match error {
            JsonError::DuplicateKey(twice) => ReadError::from(twice).into(),
            error => Self::NotJson { error },
        }
    }

    /// The error without its location; the first one if there are several.
    pub fn fault(&self) -> &Self {
        match self {
            Self::At { error, .. } => error.fault(),
            Self::Several { shown, .. } => shown.first().map_or(self, Self::fault),
            fault => fault,
        }
    }

    /// Whether a file could not be read, in which case no row is wrong.
    pub fn is_system_error(&self) -> bool {
        match self.fault() {
            Self::Read(error) => error.is_system_error(),
            _ => false,
        }
    }
}

impl Fault for ToolsError {
    fn combine(shown: Vec<Self>, n_more: usize) -> Self {
        Self::Several { shown, n_more }
    }

    fn location_and_message(&self) -> Option<(&str, String)> {
        match self {
            Self::At { place, error } => Some((place, error.to_string())),
            _ => None,
        }
    }
}

/// Appends a remedy to a message that ends with `hint`: as a new sentence if the hint is a question,
/// and after a semicolon if it is empty.
fn remedy_after(hint: &str, remedy: &str) -> String {
    let mut characters = remedy.chars();
    match characters.next() {
        Some(first) if !hint.is_empty() => {
            format!("{hint} {}{}", first.to_uppercase(), characters.as_str())
        }
        _ => format!("; {remedy}"),
    }
}

/// `, did you mean "..."?` if one of `known` is similar to `name`; otherwise empty.
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
