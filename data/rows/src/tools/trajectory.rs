//! A query, the calls that answer it in order, and the answer.
//!
//! Reading is strict: a field that the layout does not have is an error, because a misspelt
//! `derived` would change what is masked without a word. What a trajectory means is not looked
//! at here but by [`Trajectory::check`], which needs to know the APIs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ToolsError;
use super::fields::{Fields, wrong_type};

const ROW: &str = "a trajectory needs query, calls and response";
const CALL: &str = "a call needs sub_query, name, arguments and output, or the short s, c and o";
const SHORT_CALL: &str = "c needs name and arguments";
const ORIGIN: &str = "a derivation needs call and path, and may have pick";

/// One solved query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Trajectory {
    /// Name of the row, for reports.
    pub id: String,
    /// What the user asks.
    pub query: String,
    /// The calls, in the order of their execution.
    pub calls: Vec<TrajectoryCall>,
    /// The final answer.
    pub response: String,
    /// Names of the APIs whose sub-graph the query was made from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subgraph: Vec<String>,
    /// Texts that a right final answer must hold, for checking without a judge.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// One call of a trajectory.
///
/// The paper's letters `s`, `c` and `o` are read too, `c` being `{"name", "arguments"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct TrajectoryCall {
    /// What this call is to find out, in words.
    pub sub_query: String,
    /// The API's `tool/api` name.
    pub name: String,
    /// Arguments by name, in the order of the data.
    pub arguments: Map<String, Value>,
    /// What the API answered.
    pub output: Value,
    /// Which arguments came from an earlier output, and from where in it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub derived: BTreeMap<String, Derived>,
}

/// The origin of an argument in the output of an earlier call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Index of the earlier call, from 0.
    pub call: usize,
    /// Where in its output, such as `results[].currency`.
    pub path: String,
    /// Which of several values, such as `first`.
    #[serde(default)]
    pub pick: String,
}

impl Trajectory {
    /// Reads a row.
    ///
    /// `single_tool`, which follows from the calls, is passed over.
    fn from_value(value: &Value) -> Result<Self, ToolsError> {
        let fields = Fields::new(value, "", ROW)?;
        fields.only(&[
            "id",
            "query",
            "calls",
            "response",
            "subgraph",
            "facts",
            "single_tool",
        ])?;
        if fields.get("calls").is_none() {
            return Err(fields.missing("calls"));
        }
        let call = |(i, call)| TrajectoryCall::from_value(call, &format!("calls[{i}]"));
        Ok(Self {
            id: id(&fields)?,
            query: fields.text("query")?.to_owned(),
            calls: fields
                .list("calls")?
                .iter()
                .enumerate()
                .map(call)
                .collect::<Result<_, _>>()?,
            response: fields.text("response")?.to_owned(),
            subgraph: fields.texts("subgraph")?,
            facts: fields.texts("facts")?,
        })
    }
}

impl TryFrom<Value> for Trajectory {
    type Error = ToolsError;

    fn try_from(value: Value) -> Result<Self, ToolsError> {
        Self::from_value(&value)
    }
}

impl TrajectoryCall {
    fn from_value(value: &Value, place: &str) -> Result<Self, ToolsError> {
        let fields = Fields::new(value, place, CALL)?;
        fields.only(&[
            "sub_query",
            "name",
            "arguments",
            "output",
            "derived",
            "s",
            "c",
            "o",
        ])?;
        for (long, short) in [
            ("sub_query", "s"),
            ("output", "o"),
            ("name", "c"),
            ("arguments", "c"),
        ] {
            if fields.raw(long).is_some() && fields.raw(short).is_some() {
                return Err(ToolsError::FieldTwice {
                    field: fields.place(long),
                    other: short,
                });
            }
        }
        let sub_query = match fields.optional_text("s")? {
            Some(text) => text,
            None => fields.text("sub_query")?,
        };
        let (name, arguments) = name_and_arguments(&fields)?;
        let output = fields.raw("o").or_else(|| fields.raw("output"));
        Ok(Self {
            sub_query: sub_query.to_owned(),
            name,
            arguments,
            output: output.ok_or_else(|| fields.missing("output"))?.clone(),
            derived: derived(&fields)?,
        })
    }
}

impl TryFrom<Value> for TrajectoryCall {
    type Error = ToolsError;

    fn try_from(value: Value) -> Result<Self, ToolsError> {
        Self::from_value(&value, "")
    }
}

/// The name of a row; a number is taken as its text.
fn id(fields: &Fields<'_>) -> Result<String, ToolsError> {
    match fields.get("id") {
        None => Ok(String::new()),
        Some(Value::String(id)) => Ok(id.clone()),
        Some(Value::Number(id)) => Ok(id.to_string()),
        Some(other) => Err(wrong_type(&fields.place("id"), other, "a text or a number")),
    }
}

fn name_and_arguments(fields: &Fields<'_>) -> Result<(String, Map<String, Value>), ToolsError> {
    let read = |fields: &Fields<'_>| {
        let arguments = fields.object("arguments")?;
        let arguments = arguments.ok_or_else(|| fields.missing("arguments"))?;
        Ok((fields.text("name")?.to_owned(), arguments.clone()))
    };
    let Some(short) = fields.get("c") else {
        return read(fields);
    };
    let place = fields.place("c");
    let short = Fields::new(short, &place, SHORT_CALL)?;
    short.only(&["name", "arguments"])?;
    read(&short)
}

fn derived(fields: &Fields<'_>) -> Result<BTreeMap<String, Derived>, ToolsError> {
    let place = fields.place("derived");
    let Some(map) = fields.object("derived")? else {
        return Ok(BTreeMap::new());
    };
    let origin = |(argument, value): (&String, &Value)| {
        let place = format!("{place}.{argument}");
        Ok((argument.clone(), origin(value, &place)?))
    };
    map.iter().map(origin).collect()
}

fn origin(value: &Value, place: &str) -> Result<Derived, ToolsError> {
    let fields = Fields::new(value, place, ORIGIN)?;
    fields.only(&["call", "path", "pick"])?;
    let call = fields.get("call").ok_or_else(|| fields.missing("call"))?;
    let index = call.as_u64().and_then(|index| usize::try_from(index).ok());
    const EXPECTED: &str = "the number of an earlier call, from 0";
    Ok(Derived {
        call: index.ok_or_else(|| wrong_type(&fields.place("call"), call, EXPECTED))?,
        path: fields.text("path")?.to_owned(),
        pick: fields.optional_text("pick")?.unwrap_or("").to_owned(),
    })
}
