//! A query, the calls that solve it in order, and the answer.
//!
//! Reading is strict: unknown fields are errors, because a misspelt `derived` would silently change
//! the loss mask. [`Trajectory::check`] validates the contents, for which it needs the API
//! documents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ToolsError;
use super::fields::{Fields, wrong_type};

const ROW: &str = "a trajectory needs query, calls and response";
const CALL: &str = "a call needs sub_query, name, arguments and output, or the short s, c and o";
const SHORT_CALL: &str = "c needs name and arguments";
const ORIGIN: &str = "a derivation needs call and path, and may have pick";

/// A query with the calls that solve it and the final answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct Trajectory {
    /// Name of the row in reports.
    pub id: String,
    /// The query of the user.
    pub query: String,
    /// Calls in execution order.
    pub calls: Vec<TrajectoryCall>,
    /// The final answer to the user.
    pub response: String,
    /// Names of the APIs in the sub-graph from which the query was generated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subgraph: Vec<String>,
    /// Strings that a correct final answer must contain; used for scoring without a judge.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<String>,
}

/// One call of a trajectory. The paper's short names `s`, `c` and `o` are also read; `c` is
/// `{"name", "arguments"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct TrajectoryCall {
    /// Goal of this call, in words.
    pub sub_query: String,
    /// `tool/api` name of the API.
    pub name: String,
    /// Arguments by name, in data order.
    pub arguments: Map<String, Value>,
    /// Output of the API.
    pub output: Value,
    /// Origin of each argument that was taken from an earlier output.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub derived: BTreeMap<String, Derived>,
}

/// The origin of an argument in the output of an earlier call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Index of the earlier call.
    pub call: usize,
    /// Path in its output, such as `results[].currency`.
    pub path: String,
    /// Which of several values to use, such as `first`.
    #[serde(default)]
    pub pick: String,
}

impl Trajectory {
    /// Reads a row. `single_tool` is ignored, because it follows from the calls.
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
    fn from_value(value: &Value, path: &str) -> Result<Self, ToolsError> {
        let fields = Fields::new(value, path, CALL)?;
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
                    field: fields.path(long),
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
            derived: parse_derived(&fields)?,
        })
    }
}

impl TryFrom<Value> for TrajectoryCall {
    type Error = ToolsError;

    fn try_from(value: Value) -> Result<Self, ToolsError> {
        Self::from_value(&value, "")
    }
}

/// The name of a row; numbers are converted to strings.
fn id(fields: &Fields<'_>) -> Result<String, ToolsError> {
    match fields.get("id") {
        None => Ok(String::new()),
        Some(Value::String(id)) => Ok(id.clone()),
        Some(Value::Number(id)) => Ok(id.to_string()),
        Some(other) => Err(wrong_type(
            &fields.path("id"),
            other,
            "a string or a number",
        )),
    }
}

fn name_and_arguments(fields: &Fields<'_>) -> Result<(String, Map<String, Value>), ToolsError> {
    let read_name_and_arguments = |fields: &Fields<'_>| {
        let arguments = fields.object("arguments")?;
        let arguments = arguments.ok_or_else(|| fields.missing("arguments"))?;
        Ok((fields.text("name")?.to_owned(), arguments.clone()))
    };
    let Some(short) = fields.get("c") else {
        return read_name_and_arguments(fields);
    };
    let path = fields.path("c");
    let short = Fields::new(short, &path, SHORT_CALL)?;
    short.only(&["name", "arguments"])?;
    read_name_and_arguments(&short)
}

fn parse_derived(fields: &Fields<'_>) -> Result<BTreeMap<String, Derived>, ToolsError> {
    let path = fields.path("derived");
    let Some(map) = fields.object("derived")? else {
        return Ok(BTreeMap::new());
    };
    let origin = |(argument, value): (&String, &Value)| {
        let path = format!("{path}.{argument}");
        Ok((argument.clone(), origin(value, &path)?))
    };
    map.iter().map(origin).collect()
}

fn origin(value: &Value, path: &str) -> Result<Derived, ToolsError> {
    let fields = Fields::new(value, path, ORIGIN)?;
    fields.only(&["call", "path", "pick"])?;
    let call = fields.get("call").ok_or_else(|| fields.missing("call"))?;
    let index = call.as_u64().and_then(|index| usize::try_from(index).ok());
    const EXPECTED: &str = "the number of an earlier call, from 0";
    Ok(Derived {
        call: index.ok_or_else(|| wrong_type(&fields.path("call"), call, EXPECTED))?,
        path: fields.text("path")?.to_owned(),
        pick: fields.optional_text("pick")?.unwrap_or("").to_owned(),
    })
}
