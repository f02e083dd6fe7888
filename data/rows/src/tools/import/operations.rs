//! An OpenAPI 3 document as operations that can be sent: each [`ApiDocument`] with the place of
//! every parameter in a request.
//!
//! Prompts and retrievers need documents only; who sends requests needs to know what goes into
//! path, query, header or body. The decision to question: one name has one place, that of the
//! document's parameter, also where a specification has the name in the query and in the body.

use std::path::Path;

use super::body::{body_fields, preferred_body};
use super::openapi::{RequestBodies, import_openapi, parse};
use super::reference::{Copied, Part, Spec};
use crate::tools::document::ApiDocument;
use crate::tools::error::ToolsError;
use crate::tools::source::read_text;

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiOperation {
    /// What prompts show of it.
    pub document: ApiDocument,
    /// The path with its placeholders, such as `/movie/{movie_id}`.
    pub path: String,
    /// Where each parameter of the document goes, in the document's order.
    pub places: Vec<ParameterPlace>,
    /// The request's body, where there is one and its fields were read.
    pub body: Option<OperationBody>,
}

/// Where a parameter goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterPlace {
    /// The parameter's name.
    pub name: String,
    /// The part of the request.
    pub place: ParameterLocation,
    /// How it is written there; without meaning for bodies.
    pub style: ParameterStyle,
}

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterLocation {
    /// A placeholder of the path.
    Path,
    /// The query string.
    Query,
    /// A header.
    Header,
    /// A cookie.
    Cookie,
    /// A field of the body.
    BodyField,
    /// The body as a whole.
    WholeBody,
}

/// How a value is written in path, query, header or cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterStyle {
    /// As its style says, such as `form`, `simple`, `spaceDelimited` or `deepObject`.
    Named {
        /// The style.
        style: String,
        /// Whether each element of a list, or member of an object, is a parameter of its own.
        explode: bool,
    },
    /// As a JSON text, because the specification gives the parameter a media type.
    Json,
}

/// The body of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationBody {
    /// Its media type, such as `application/json`.
    pub media_type: String,
    /// Whether a request without it is an error.
    pub is_required: bool,
}

/// Reads the operations of a specification from a file of JSON or YAML, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be read
/// - those of [`import_openapi`]
pub fn import_openapi_operations_file(
    path: &Path,
    bodies: RequestBodies,
) -> Result<Vec<ApiOperation>, ToolsError> {
    import_openapi_operations(&read_text(path)?, bodies)
        .map_err(|error| error.at(path.display().to_string()))
}

/// Reads the operations of a specification; their documents are those of [`import_openapi`].
///
/// # Errors
///
/// - those of [`import_openapi`]
pub fn import_openapi_operations(
    text: &str,
    bodies: RequestBodies,
) -> Result<Vec<ApiOperation>, ToolsError> {
    let documents = import_openapi(text, bodies)?.documents;
    let root = parse(text)?;
    let copied = Copied::default();
    let spec = Spec::new(&root, &copied);
    let documents = documents.into_iter();
    documents
        .map(|document| operation(spec, document, bodies))
        .collect()
}

fn operation(
    spec: Spec<'_>,
    document: ApiDocument,
    bodies: RequestBodies,
) -> Result<ApiOperation, ToolsError> {
    let whole = Part {
        value: spec.root,
        pointer: String::new(),
    };
    let (method, path) = document.api_name.split_once(' ').unwrap_or_default();
    let method = method.to_lowercase();
    let path = path.to_owned();
    let item = whole.child("paths").and_then(|paths| paths.child(&path));
    let item = item.map(|item| spec.resolve(item)).transpose()?;
    let part = item.as_ref().and_then(|item| item.child(&method));
    let (Some(item), Some(part)) = (item, part) else {
        return Err(whole.bad("an operation is listed that is not there"));
    };
    let parameters = parameters(spec, &item, &part)?;
    let (fields, body) = match bodies {
        RequestBodies::AsParameters => (body_fields(spec, &part)?, body(spec, &part)?),
        RequestBodies::LeftOut => (Vec::new(), None),
    };
    let place = |name: &str| {
        let found = parameters.iter().filter(|found| found.name == name);
        // A later parameter of the same place is the operation's own.
        let found = found.min_by_key(|found| found.place as usize);
        let is_whole = || {
            let mut fields = fields.iter();
            fields.any(|field| field.is_whole && field.parameter.name == name)
        };
        found.cloned().unwrap_or_else(|| ParameterPlace {
            name: name.to_owned(),
            place: if is_whole() {
                ParameterLocation::WholeBody
            } else {
                ParameterLocation::BodyField
            },
            style: ParameterStyle::Json,
        })
    };
    let names = document.parameters();
    Ok(ApiOperation {
        places: names.map(|parameter| place(&parameter.name)).collect(),
        path,
        body,
        document,
    })
}

fn body(spec: Spec<'_>, operation: &Part<'_>) -> Result<Option<OperationBody>, ToolsError> {
    let Some(body) = operation.child("requestBody") else {
        return Ok(None);
    };
    let body = spec.resolve(body)?;
    let Some((media_type, _)) = preferred_body(&body) else {
        return Ok(None);
    };
    Ok(Some(OperationBody {
        media_type: media_type.to_owned(),
        is_required: body.flag("required")? == Some(true),
    }))
}

/// The parameters of operation and path item; those of the operation first, so that they win.
fn parameters(
    spec: Spec<'_>,
    item: &Part<'_>,
    operation: &Part<'_>,
) -> Result<Vec<ParameterPlace>, ToolsError> {
    let mut parts = operation.elements("parameters");
    parts.reverse();
    parts.extend(item.elements("parameters").into_iter().rev());
    let mut found = Vec::new();
    for part in parts {
        let part = spec.resolve(part)?;
        let place = match part.text("in") {
            "path" => ParameterLocation::Path,
            "query" => ParameterLocation::Query,
            "header" => ParameterLocation::Header,
            _ => ParameterLocation::Cookie,
        };
        found.push(ParameterPlace {
            name: part.text("name").to_owned(),
            style: style(&part, place)?,
            place,
        });
    }
    Ok(found)
}

/// The style that a parameter names, or that of its place.
fn style(part: &Part<'_>, place: ParameterLocation) -> Result<ParameterStyle, ToolsError> {
    if part.child("schema").is_none() && part.child("content").is_some() {
        return Ok(ParameterStyle::Json);
    }
    let usual = match place {
        ParameterLocation::Path | ParameterLocation::Header => "simple",
        _ => "form",
    };
    let style = match part.text("style") {
        "" => usual,
        style => style,
    };
    Ok(ParameterStyle::Named {
        explode: part.flag("explode")?.unwrap_or(style == "form"),
        style: style.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r##"
openapi: 3.0.0
paths:
  /lists/{list_id}/items:
    parameters:
      - {name: list_id, in: path, required: true, schema: {type: string}}
      - {name: page, in: header, schema: {type: integer}}
      - {name: tags, in: query, schema: {type: array}}
    post:
      parameters:
        - {name: page, in: query, schema: {type: integer}}
        - {name: tags, in: query, explode: false, schema: {type: array}}
        - {name: filter, in: query, content: {application/json: {schema: {type: object}}}}
        - {name: session, in: cookie, schema: {type: string}}
        - {name: X-Trace, in: header, schema: {type: array}}
      requestBody:
        required: true
        content:
          text/plain: {schema: {type: string}}
          application/json:
            schema: {type: object, properties: {title: {type: string}, page: {type: integer}}}
      responses: {}
    put:
      requestBody:
        content: {application/json: {schema: {type: array, items: {type: string}}}}
      responses: {}
    get: {responses: {}}
"##;

    #[test]
    fn every_parameter_of_a_document_has_its_place() {
        let all = import_openapi_operations(SPEC, RequestBodies::AsParameters).expect("reads");
        let documents = import_openapi(SPEC, RequestBodies::AsParameters).expect("reads");
        let documents = documents.documents;
        let kept: Vec<_> = all.iter().map(|operation| &operation.document).collect();
        assert_eq!(kept, documents.iter().collect::<Vec<_>>());
        assert!(all.iter().all(|one| one.path == "/lists/{list_id}/items"));

        let styled = |style: &str, explode| ParameterStyle::Named {
            style: style.to_owned(),
            explode,
        };
        let place = |name: &str, place, style| ParameterPlace {
            name: name.to_owned(),
            place,
            style,
        };
        let post = [
            place("list_id", ParameterLocation::Path, styled("simple", false)),
            place("page", ParameterLocation::Query, styled("form", true)),
            place("tags", ParameterLocation::Query, styled("form", false)),
            place("filter", ParameterLocation::Query, ParameterStyle::Json),
            place("session", ParameterLocation::Cookie, styled("form", true)),
            place(
                "X-Trace",
                ParameterLocation::Header,
                styled("simple", false),
            ),
            place("title", ParameterLocation::BodyField, ParameterStyle::Json),
        ];
        assert_eq!(all[0].places, post);
        let json = |is_required| {
            Some(OperationBody {
                media_type: "application/json".to_owned(),
                is_required,
            })
        };
        assert_eq!(all[0].body, json(true));
        assert_eq!(all[1].body, json(false));
        assert_eq!(
            all[1].places.last().map(|p| p.place),
            Some(ParameterLocation::WholeBody)
        );
        assert_eq!(all[2].body, None);
    }

    #[test]
    fn bodies_that_are_left_out_have_no_fields() {
        let all = import_openapi_operations(SPEC, RequestBodies::LeftOut).expect("reads");
        let is_field = |place: &ParameterPlace| place.place == ParameterLocation::BodyField;
        assert!(!all[0].places.iter().any(is_field));
        assert_eq!(all[0].body, None);
        assert!(import_openapi_operations("{}", RequestBodies::LeftOut).is_err());
    }
}
