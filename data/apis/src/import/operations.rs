//! Imports an OpenAPI 3 document as operations that can be sent: each [`ApiDocument`] with the
//! request location of every parameter.
//!
//! Prompts and retrievers need only documents. An executor must also know which values are in the
//! path, query, header or body. Each name has one location: the location of the document's
//! parameter, even if a specification uses the name in both query and body.

use std::path::Path;

use super::body::{body_fields, preferred_body};
use super::listing::{ListedOperation, PathItem, SpecText, operations};
use super::openapi::{OpenApiOptions, RequestBodies, import_parsed};
use super::reference::{ImportState, Part, Spec};
use crate::document::ApiDocument;
use crate::error::ToolsError;
use crate::source::read_text;

/// One operation of an OpenAPI specification.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiOperation {
    /// API document, as shown in prompts.
    pub document: ApiDocument,
    /// Path with its placeholders, such as `/movie/{movie_id}`; the API name may omit it.
    pub path: String,
    /// Request location of each parameter, in document order.
    pub parameters: Vec<LocatedParameter>,
    /// Request body, if there is one and its fields were imported.
    pub body: Option<OperationBody>,
}

/// Request location of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedParameter {
    /// Name of the parameter.
    pub name: String,
    /// Part of the request.
    pub location: ParameterLocation,
    /// Serialization in that part; unused for bodies.
    pub style: ParameterStyle,
}

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterLocation {
    /// A path placeholder.
    Path,
    /// The query string.
    Query,
    /// A header.
    Header,
    /// A cookie.
    Cookie,
    /// A field of the body.
    BodyField,
    /// The whole body.
    WholeBody,
}

/// Serialization of a value in path, query, header or cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParameterStyle {
    /// By an OpenAPI style, such as `form`, `simple`, `spaceDelimited` or `deepObject`.
    Named {
        /// Name of the style.
        style: String,
        /// Whether each list element or object member becomes a separate parameter.
        explode: bool,
        /// Whether reserved characters of a query string are left unescaped.
        allow_reserved: bool,
    },
    /// As JSON, because the specification gives the parameter a media type.
    Json,
}

/// The request body of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationBody {
    /// Media type, such as `application/json`.
    pub media_type: String,
    /// Whether the body is required.
    pub is_required: bool,
}

/// Reads the operations from a specification file in JSON or YAML, optionally gzip-compressed.
///
/// # Errors
///
/// - the file cannot be read
/// - the errors of [`import_openapi`](super::import_openapi)
pub fn import_openapi_operations_file<'w>(
    path: &Path,
    options: impl Into<OpenApiOptions<'w>>,
) -> Result<Vec<ApiOperation>, ToolsError> {
    import_openapi_operations(&read_text(path)?, options)
        .map_err(|error| error.at(path.display().to_string()))
}

/// Reads the operations of a specification, with the documents of
/// [`import_openapi`](super::import_openapi).
///
/// # Errors
///
/// - the errors of [`import_openapi`](super::import_openapi)
pub fn import_openapi_operations<'w>(
    text: &str,
    options: impl Into<OpenApiOptions<'w>>,
) -> Result<Vec<ApiOperation>, ToolsError> {
    let options = options.into();
    let parsed = SpecText::parse(text)?;
    let documents = import_parsed(&parsed, &options)?.documents;
    let state = ImportState::default();
    let spec = Spec::new(&parsed.root, &state).with_source_texts(parsed.source_texts.as_ref());
    let listed = operations(spec, &parsed.root_part(), options.names)?;
    let pairs = listed.iter().zip(documents);
    pairs
        .map(|(one, document)| operation(spec, one, document, options.bodies))
        .collect()
}

fn operation(
    spec: Spec<'_>,
    listed: &ListedOperation<'_>,
    document: ApiDocument,
    bodies: RequestBodies,
) -> Result<ApiOperation, ToolsError> {
    let part = &listed.operation;
    let parameters = parameters(spec, &listed.item, part)?;
    let (fields, body) = match bodies {
        RequestBodies::AsParameters => (body_fields(spec, part)?, body(spec, part)?),
        RequestBodies::LeftOut => (Vec::new(), None),
    };
    let location_of = |name: &str| {
        let candidates = parameters.iter().filter(|candidate| candidate.name == name);
        // Among parameters with the same location, the first is the operation's own.
        let candidates = candidates.min_by_key(|candidate| candidate.location as usize);
        let is_whole_body = || {
            let mut fields = fields.iter();
            fields.any(|field| field.is_whole_body && field.parameter.name == name)
        };
        candidates.cloned().unwrap_or_else(|| LocatedParameter {
            name: name.to_owned(),
            location: if is_whole_body() {
                ParameterLocation::WholeBody
            } else {
                ParameterLocation::BodyField
            },
            style: ParameterStyle::Json,
        })
    };
    let names = document.parameters();
    Ok(ApiOperation {
        parameters: names
            .map(|parameter| location_of(&parameter.name))
            .collect(),
        path: listed.path.to_owned(),
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

/// The parameters of the operation, which take precedence, then the parameters of the path item.
fn parameters(
    spec: Spec<'_>,
    item: &PathItem<'_>,
    operation: &Part<'_>,
) -> Result<Vec<LocatedParameter>, ToolsError> {
    let mut parts = operation.elements("parameters");
    parts.reverse();
    parts.extend(item.parameters().into_iter().rev());
    let mut parameters = Vec::new();
    for part in parts {
        let part = spec.resolve(part)?;
        let location = match part.text("in") {
            "path" => ParameterLocation::Path,
            "query" => ParameterLocation::Query,
            "header" => ParameterLocation::Header,
            _ => ParameterLocation::Cookie,
        };
        parameters.push(LocatedParameter {
            name: part.text("name").to_owned(),
            style: style(&part, location)?,
            location,
        });
    }
    Ok(parameters)
}

/// The style of a parameter, or the default of its location.
fn style(part: &Part<'_>, location: ParameterLocation) -> Result<ParameterStyle, ToolsError> {
    if part.child("schema").is_none() && part.child("content").is_some() {
        return Ok(ParameterStyle::Json);
    }
    let default = match location {
        ParameterLocation::Path | ParameterLocation::Header => "simple",
        _ => "form",
    };
    let style = match part.text("style") {
        "" => default,
        style => style,
    };
    Ok(ParameterStyle::Named {
        explode: part.flag("explode")?.unwrap_or(style == "form"),
        allow_reserved: part.flag("allowReserved")? == Some(true),
        style: style.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import_openapi;

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
    fn every_parameter_of_a_document_has_its_location() {
        let all = import_openapi_operations(SPEC, RequestBodies::AsParameters).expect("reads");
        let documents = import_openapi(SPEC, RequestBodies::AsParameters).expect("reads");
        let documents = documents.documents;
        let operation_documents: Vec<_> = all.iter().map(|operation| &operation.document).collect();
        assert_eq!(operation_documents, documents.iter().collect::<Vec<_>>());
        assert!(all.iter().all(|one| one.path == "/lists/{list_id}/items"));

        let styled = |style: &str, explode| ParameterStyle::Named {
            style: style.to_owned(),
            explode,
            allow_reserved: false,
        };
        let parameter = |name: &str, parameter, style| LocatedParameter {
            name: name.to_owned(),
            location: parameter,
            style,
        };
        let post = [
            parameter("list_id", ParameterLocation::Path, styled("simple", false)),
            parameter("page", ParameterLocation::Query, styled("form", true)),
            parameter("tags", ParameterLocation::Query, styled("form", false)),
            parameter("filter", ParameterLocation::Query, ParameterStyle::Json),
            parameter("session", ParameterLocation::Cookie, styled("form", true)),
            parameter(
                "X-Trace",
                ParameterLocation::Header,
                styled("simple", false),
            ),
            parameter("title", ParameterLocation::BodyField, ParameterStyle::Json),
        ];
        assert_eq!(all[0].parameters, post);
        let json = |is_required| {
            Some(OperationBody {
                media_type: "application/json".to_owned(),
                is_required,
            })
        };
        assert_eq!(all[0].body, json(true));
        assert_eq!(all[1].body, json(false));
        assert_eq!(
            all[1].parameters.last().map(|p| p.location),
            Some(ParameterLocation::WholeBody)
        );
        assert_eq!(all[2].body, None);
    }

    #[test]
    fn bodies_that_are_left_out_have_no_fields() {
        let all = import_openapi_operations(SPEC, RequestBodies::LeftOut).expect("reads");
        let is_field =
            |parameter: &LocatedParameter| parameter.location == ParameterLocation::BodyField;
        assert!(!all[0].parameters.iter().any(is_field));
        assert_eq!(all[0].body, None);
        assert!(import_openapi_operations("{}", RequestBodies::LeftOut).is_err());
    }
}
