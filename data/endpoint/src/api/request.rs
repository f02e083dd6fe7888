//! Builds the request of a call by placing its arguments as the specification requires.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value};
use tooltune_apis::{ApiOperation, ParameterLocation, ParameterStyle};
use tooltune_json::{Style, dumps};
use ureq::http::{HeaderName, HeaderValue, Method};

use super::style::{join_value, query_pairs};
use super::values::{encode_component, value_text};
use crate::http::is_own_header;

/// Characters that must be encoded in a path of a specification.
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

/// Headers and parameters that some servers interpret as a method override.
const METHOD_OVERRIDES: [&str; 4] = [
    "_method",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// A request without the server's address and the configured headers.
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
/// A value is not allowed in its location, or the specification requires an unsupported feature.
/// The message names it.
pub(super) fn build_call_request(
    operation: &ApiOperation,
    arguments: &Map<String, Value>,
) -> Result<CallRequest, String> {
    let located_arguments = || {
        let parameters = operation.parameters.iter();
        parameters.filter_map(|parameter| Some((parameter, arguments.get(&parameter.name)?)))
    };
    let mut query = Vec::new();
    let mut cookies = Vec::new();
    let mut headers = Vec::new();
    for (parameter, value) in located_arguments() {
        let name = parameter.name.as_str();
        let is_override = METHOD_OVERRIDES
            .iter()
            .any(|own_header| own_header.eq_ignore_ascii_case(name));
        if is_override {
            return Err(format!(
                "argument {name:?} would change the method of the request; call the operation with \
                 that method"
            ));
        }
        match parameter.location {
            ParameterLocation::Query => query.extend(query_pairs(name, value, &parameter.style)?),
            ParameterLocation::Cookie => {
                cookies.extend(query_pairs(name, value, &parameter.style)?)
            }
            ParameterLocation::Header => {
                let value = join_value(name, value, &parameter.style, |text| text.to_owned())?;
                headers.push(build_header(name, &value)?);
            }
            ParameterLocation::Path
            | ParameterLocation::BodyField
            | ParameterLocation::WholeBody => {}
        }
    }
    if !cookies.is_empty() {
        headers.push(build_header("cookie", &cookies.join("; "))?);
    }
    let mut target = fill_path(operation, arguments)?;
    if !query.is_empty() {
        target = format!("{target}?{}", query.join("&"));
    }
    let method = Method::from_bytes(operation.document.method.as_bytes());
    Ok(CallRequest {
        method: method.map_err(|_| format!("{:?} is not a method", operation.document.method))?,
        body: build_body(operation, arguments)?,
        target,
        headers,
    })
}

/// Fills in the placeholders of the path.
fn fill_path(operation: &ApiOperation, arguments: &Map<String, Value>) -> Result<String, String> {
    let mut path = String::new();
    let mut rest = operation.path.as_str();
    while let Some((literal, after_brace)) = rest.split_once('{') {
        let Some((name, after_brace)) = after_brace.split_once('}') else {
            break;
        };
        path.extend(utf8_percent_encode(literal, NOT_IN_PATHS));
        let mut parameters = operation.parameters.iter();
        let parameter = parameters.find(|candidate| {
            candidate.location == ParameterLocation::Path && candidate.name == name
        });
        let value = arguments.get(name);
        let (Some(parameter), Some(value)) = (parameter, value) else {
            return Err(format!("the path has no value for {{{name}}}"));
        };
        refuse_dot_segments(
            name,
            &join_value(name, value, &form_style(&parameter.style), str::to_owned)?,
        )?;
        path.push_str(&join_value(
            name,
            value,
            &parameter.style,
            encode_component,
        )?);
        rest = after_brace;
    }
    path.extend(utf8_percent_encode(rest, NOT_IN_PATHS));
    if let Some(step) = find_dot_segment(&operation.path) {
        return Err(format!(
            "the path of the specification has the segment {step:?}, which leaves the address of \
             the API; remove it from the specification"
        ));
    }
    // Adjacent values may form a path segment together.
    let steps = path.split('/').zip(operation.path.split('/'));
    for (step, _) in steps.filter(|(_, template)| template.contains('{')) {
        let decoded = percent_decode_str(step).decode_utf8_lossy();
        if [".", "..", ""].contains(&decoded.as_ref()) {
            return Err(format!(
                "its arguments make {decoded:?} a path segment; use other values"
            ));
        }
    }
    Ok(path)
}

/// A segment `.` or `..` of a path, in any percent encoding.
fn find_dot_segment(path: &str) -> Option<String> {
    let mut decoded = path.to_owned();
    loop {
        let without_parameters =
            |step: &str| step.split(';').next().unwrap_or_default().trim().to_owned();
        let mut steps = decoded.split(['/', '\\']).map(without_parameters);
        let dot_step = steps.find(|step| [".", ".."].contains(&step.as_str()));
        if dot_step.is_some() {
            return dot_step;
        }
        // Each level is shorter than the one before, so the loop ends.
        let decoded_next = percent_decode_str(&decoded)
            .decode_utf8_lossy()
            .into_owned();
        if decoded_next.len() >= decoded.len() {
            return None;
        }
        decoded = decoded_next;
    }
}

/// The style without its prefix, such as the dot of `label`.
fn form_style(style: &ParameterStyle) -> ParameterStyle {
    match style {
        ParameterStyle::Named {
            explode,
            allow_reserved,
            ..
        } => ParameterStyle::Named {
            style: "simple".to_owned(),
            explode: *explode,
            allow_reserved: *allow_reserved,
        },
        ParameterStyle::Json => ParameterStyle::Json,
    }
}

/// Refuses a path value that is empty or could lead the server to a different path.
///
/// Many servers and proxies decode a path before splitting it into segments, some of them more than
/// once. A single slash is sent encoded, because names such as `owner/name` contain one.
fn refuse_dot_segments(name: &str, value: &str) -> Result<(), String> {
    const DECODINGS: usize = 8;
    let refusal = |reason: &str| {
        Err(format!(
            "argument {name:?} is {value:?}, which {reason}; it cannot be part of a path"
        ))
    };
    let mut decoded = value.to_owned();
    for _ in 0..DECODINGS {
        let mut steps = decoded.split(['/', '\\']);
        if decoded.contains('\0') {
            return refusal("has a NUL character");
        }
        // Some servers ignore everything after a semicolon.
        let without_parameters =
            |step: &str| step.split(';').next().unwrap_or_default().trim().to_owned();
        if steps
            .clone()
            .any(|step| [".", ".."].contains(&without_parameters(step).as_str()))
        {
            return refusal("is or contains the path segment . or ..");
        }
        if steps.any(|step| step.trim().is_empty()) {
            return refusal("is or contains an empty path segment");
        }
        let decoded_next = percent_decode_str(&decoded)
            .decode_utf8_lossy()
            .into_owned();
        if decoded_next == decoded {
            return Ok(());
        }
        let n_slashes = |text: &str| text.matches(['/', '\\']).count();
        if n_slashes(&decoded_next) > n_slashes(&decoded) {
            return refusal("contains an encoded slash");
        }
        decoded = decoded_next;
    }
    refusal("is percent-encoded repeatedly")
}

fn build_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_bytes(name.as_bytes());
    let header = header.ok().filter(|_| !is_own_header(name));
    let header = header.ok_or_else(|| format!("{name:?} cannot be sent as a header"))?;
    let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
        format!("argument {name:?} has a line break or control character, which headers must not contain")
    })?;
    Ok((header, value))
}

/// The body; `None` if no argument belongs in it and the specification does not require it.
fn build_body(
    operation: &ApiOperation,
    arguments: &Map<String, Value>,
) -> Result<Option<(HeaderValue, Vec<u8>)>, String> {
    let Some(body) = &operation.body else {
        return Ok(None);
    };
    let body_arguments = |location: ParameterLocation| {
        let parameters = operation
            .parameters
            .iter()
            .filter(move |p| p.location == location);
        parameters.filter_map(|parameter| {
            Some((
                parameter.name.clone(),
                arguments.get(&parameter.name)?.clone(),
            ))
        })
    };
    let whole_body = body_arguments(ParameterLocation::WholeBody)
        .next()
        .map(|(_, value)| value);
    let fields: Map<String, Value> = body_arguments(ParameterLocation::BodyField).collect();
    let value = match whole_body {
        Some(whole_body) => whole_body,
        None if fields.is_empty() && !body.is_required => return Ok(None),
        None => Value::Object(fields),
    };
    let media_type = body.media_type.split(';').next().unwrap_or("").trim();
    let bytes = match media_type.to_lowercase().as_str() {
        kind if kind.contains("json") || kind == "*/*" => dumps(&value, Style::Compact),
        "application/x-www-form-urlencoded" => encode_form(&value)?,
        kind if kind.starts_with("text/") => value_text(&value),
        kind => return Err(format!("a body of type {kind} is not supported")),
    };
    let media_type = if media_type == "*/*" {
        "application/json"
    } else {
        media_type
    };
    let media_type = HeaderValue::from_str(media_type)
        .map_err(|_| format!("{media_type:?} is not a media type"))?;
    Ok(Some((media_type, bytes.into_bytes())))
}

fn encode_form(value: &Value) -> Result<String, String> {
    let Value::Object(fields) = value else {
        return Err("a form must be an object of fields".to_owned());
    };
    let encode_pair = |name: &str, value: &Value| {
        format!(
            "{}={}",
            encode_component(name),
            encode_component(&value_text(value))
        )
    };
    let field = |(name, value): (&String, &Value)| match value {
        // Forms have no null.
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().map(|item| encode_pair(name, item)).collect(),
        other => vec![encode_pair(name, other)],
    };
    let pairs: Vec<String> = fields.iter().flat_map(field).collect();
    Ok(pairs.join("&"))
}
