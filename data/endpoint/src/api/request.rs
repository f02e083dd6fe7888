//! A call's arguments, put where the specification wants them.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value};
use tooltune_rows::json::{Style, dumps};
use tooltune_rows::tools::{ApiOperation, ParameterLocation};
use ureq::http::{HeaderName, HeaderValue, Method};

use super::style::{joined, pairs};
use super::values::{encoded, text};
use crate::http::is_own_header;

/// What a path of a specification may not hold as it stands.
const NOT_IN_PATHS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// A request but for the server's address and the configured headers.
#[derive(Debug, Clone)]
pub(super) struct CallRequest {
    pub(super) method: Method,
    /// Path and query string, encoded.
    pub(super) target: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Media type and bytes.
    pub(super) body: Option<(HeaderValue, Vec<u8>)>,
}

/// Builds the request of a call whose arguments have the declared types.
///
/// # Errors
///
/// - a value cannot stand where it belongs, or the specification asks for what is not supported;
///   the text says which
pub(super) fn request(
    operation: &ApiOperation,
    arguments: &Map<String, Value>,
) -> Result<CallRequest, String> {
    let given = || {
        let places = operation.places.iter();
        places.filter_map(|place| Some((place, arguments.get(&place.name)?)))
    };
    let mut query = Vec::new();
    let mut cookies = Vec::new();
    let mut headers = Vec::new();
    for (place, value) in given() {
        let name = place.name.as_str();
        match place.place {
            ParameterLocation::Query => query.extend(pairs(name, value, &place.style)?),
            ParameterLocation::Cookie => cookies.extend(pairs(name, value, &place.style)?),
            ParameterLocation::Header => {
                let value = joined(name, value, &place.style, |text| text.to_owned())?;
                headers.push(header(name, &value)?);
            }
            ParameterLocation::Path
            | ParameterLocation::BodyField
            | ParameterLocation::WholeBody => {}
        }
    }
    if !cookies.is_empty() {
        headers.push(header("cookie", &cookies.join("; "))?);
    }
    let mut target = path(operation, arguments)?;
    if !query.is_empty() {
        target = format!("{target}?{}", query.join("&"));
    }
    let method = Method::from_bytes(operation.document.method.as_bytes());
    Ok(CallRequest {
        method: method.map_err(|_| format!("{:?} is no method", operation.document.method))?,
        body: body(operation, arguments)?,
        target,
        headers,
    })
}

/// The path with its placeholders filled in.
fn path(operation: &ApiOperation, arguments: &Map<String, Value>) -> Result<String, String> {
    let mut path = String::new();
    let mut rest = operation.path.as_str();
    while let Some((literal, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else {
            break;
        };
        path.extend(utf8_percent_encode(literal, NOT_IN_PATHS));
        let mut places = operation.places.iter();
        let place = places.find(|one| one.place == ParameterLocation::Path && one.name == name);
        let value = arguments.get(name);
        let (Some(place), Some(value)) = (place, value) else {
            return Err(format!("the path has no value for {{{name}}}"));
        };
        let value = joined(name, value, &place.style, encoded)?;
        // A server takes these for steps in its tree, encoded or not.
        if ["", ".", ".."].contains(&value.as_str()) {
            return Err(format!(
                "argument {name:?} is {value:?}, which cannot stand in a path"
            ));
        }
        path.push_str(&value);
        rest = after;
    }
    path.extend(utf8_percent_encode(rest, NOT_IN_PATHS));
    Ok(path)
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_bytes(name.as_bytes());
    let header = header.ok().filter(|_| !is_own_header(name));
    let header = header.ok_or_else(|| format!("{name:?} cannot be sent as a header"))?;
    let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
        format!("argument {name:?} has a line break or control character; a header cannot hold it")
    })?;
    Ok((header, value))
}

/// The body; nothing where no argument belongs in it and the specification can do without.
fn body(
    operation: &ApiOperation,
    arguments: &Map<String, Value>,
) -> Result<Option<(HeaderValue, Vec<u8>)>, String> {
    let Some(body) = &operation.body else {
        return Ok(None);
    };
    let of_body = |wanted: ParameterLocation| {
        let places = operation.places.iter().filter(move |p| p.place == wanted);
        places.filter_map(|place| Some((place.name.clone(), arguments.get(&place.name)?.clone())))
    };
    let whole = of_body(ParameterLocation::WholeBody)
        .next()
        .map(|(_, value)| value);
    let fields: Map<String, Value> = of_body(ParameterLocation::BodyField).collect();
    let value = match whole {
        Some(whole) => whole,
        None if fields.is_empty() && !body.is_required => return Ok(None),
        None => Value::Object(fields),
    };
    let media_type = body.media_type.split(';').next().unwrap_or("").trim();
    let bytes = match media_type.to_lowercase().as_str() {
        kind if kind.contains("json") || kind == "*/*" => dumps(&value, Style::Compact),
        "application/x-www-form-urlencoded" => form(&value)?,
        kind if kind.starts_with("text/") => text(&value),
        kind => return Err(format!("a body of type {kind} is not supported")),
    };
    let media_type = if media_type == "*/*" {
        "application/json"
    } else {
        media_type
    };
    let media_type = HeaderValue::from_str(media_type)
        .map_err(|_| format!("{media_type:?} is no type of a body"))?;
    Ok(Some((media_type, bytes.into_bytes())))
}

fn form(value: &Value) -> Result<String, String> {
    let Value::Object(fields) = value else {
        return Err("a form must be an object of fields".to_owned());
    };
    let one = |name: &str, value: &Value| format!("{}={}", encoded(name), encoded(&text(value)));
    let field = |(name, value): (&String, &Value)| match value {
        Value::Array(items) => items.iter().map(|item| one(name, item)).collect(),
        other => vec![one(name, other)],
    };
    let pairs: Vec<String> = fields.iter().flat_map(field).collect();
    Ok(pairs.join("&"))
}
