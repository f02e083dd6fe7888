//! Converts API documents to flat parameters, and calls back to nested arguments.
//!
//! The model only sees and writes the flat form: documents for retrieval and prompts, earlier
//! calls, and constraints. Executors and metrics only see the nested form.
//!
//! A document has the same flat form in the whole data set, so that the retrieval index and the
//! prompts agree. A list with more items than `slots` therefore makes its trajectory an error
//! instead of widening the document.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use tooltune_apis::{
    ApiCatalogue, ApiDocument, ApiParameter, Derived, ParameterSchema, Trajectory, TrajectoryCall,
};
use tooltune_json::PathStep;
use tooltune_rows::text::DataError;

use super::error::FlatError;
use super::flatten::FlatSchema;
use super::report::FlattenReport;
use super::rows::{RowFlattening, flat_form};

/// The documents of a catalogue, as a model sees them.
#[derive(Debug, Clone)]
pub struct FlatDocuments {
    catalogue: ApiCatalogue,
    /// The flat schemas of flattened documents, by call name.
    flat_schemas: HashMap<String, FlatSchema>,
    report: FlattenReport,
}

impl FlatDocuments {
    /// Flattens documents with nested schemas as configured. All other documents, including those
    /// without a flat form, are unchanged and counted.
    pub fn new(catalogue: &ApiCatalogue, flattening: &RowFlattening) -> Self {
        let mut report = FlattenReport::default();
        let mut flat_schemas = HashMap::new();
        let mut documents = Vec::with_capacity(catalogue.len());
        for document in catalogue {
            let name = document.call_name();
            let outcome = flat_form(&arguments_schema(document), &[], flattening);
            report.record(
                &name,
                None,
                outcome.as_ref().map(|flat_form| flat_form.is_widened),
            );
            match outcome {
                Ok(flat_form) => {
                    documents.push(flat_document(document, &flat_form.flat_schema));
                    flat_schemas.insert(name, flat_form.flat_schema);
                }
                Err(_) => documents.push(document.clone()),
            }
        }
        // The names come from a catalogue, so there are no duplicates.
        let (catalogue, _) = ApiCatalogue::without_duplicates(documents);
        Self {
            catalogue,
            flat_schemas,
            report,
        }
    }

    /// The documents, in the order of the nested documents.
    pub fn catalogue(&self) -> &ApiCatalogue {
        &self.catalogue
    }

    /// Number of flat documents, and why the others stay nested.
    pub fn report(&self) -> &FlattenReport {
        &self.report
    }

    /// Converts the arguments of a call to the nested form of its API.
    ///
    /// # Errors
    ///
    /// A name is not in the flat form of the document.
    pub fn nested_arguments(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, FlatError> {
        match self.flat_schemas.get(name) {
            Some(flat_schema) => flat_schema.unflatten_arguments(arguments),
            None => Ok(arguments.clone()),
        }
    }

    /// Flattens the calls of a trajectory.
    ///
    /// # Errors
    ///
    /// A call has no flat form, or flattening would not preserve it.
    pub fn trajectory(&self, nested: Trajectory) -> Result<Trajectory, DataError> {
        let Trajectory { id, calls, .. } = &nested;
        let flat = |(call_idx, call): (usize, &TrajectoryCall)| {
            let call = self
                .flat_call(call)
                .map_err(|reason| DataError::NoFlatCall {
                    call: call_idx,
                    reason,
                });
            call.map_err(|error| if id.is_empty() { error } else { error.at(id) })
        };
        let calls = calls.iter().enumerate().map(flat);
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        Ok(Trajectory { calls, ..nested })
    }

    fn flat_call(&self, call: &TrajectoryCall) -> Result<TrajectoryCall, String> {
        let Some(flat_schema) = self.flat_schemas.get(&call.name) else {
            return Ok(call.clone());
        };
        let to_message = |error: FlatError| error.to_string();
        let arguments = flat_schema
            .flatten_arguments(&call.arguments)
            .map_err(to_message)?;
        if !flat_schema
            .round_trips(&call.arguments)
            .map_err(to_message)?
        {
            return Err(
                "an empty object or list, or a null that the schema does not allow, would be lost"
                    .to_owned(),
            );
        }
        let origin = |path: &[PathStep]| match path.first() {
            Some(PathStep::Key(argument)) => call.derived.get(argument).cloned(),
            _ => None,
        };
        let leaves = flat_schema.mapping();
        let leaves = leaves.filter(|(name, _)| arguments.contains_key(*name));
        let flat_derived = leaves.filter_map(|(name, path)| Some((name.to_owned(), origin(path)?)));
        Ok(TrajectoryCall {
            derived: flat_derived.collect::<std::collections::BTreeMap<String, Derived>>(),
            arguments,
            ..call.clone()
        })
    }
}

/// The schema of a call's arguments.
fn arguments_schema(document: &ApiDocument) -> Value {
    let mut properties = Map::new();
    for parameter in document.parameters() {
        properties
            .entry(parameter.name.clone())
            .or_insert_with(|| parameter.schema_with_description());
    }
    let required = document.required_parameters.iter();
    let required: Vec<&str> = required.map(|parameter| parameter.name.as_str()).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// The document with one parameter per leaf.
fn flat_document(document: &ApiDocument, flat_schema: &FlatSchema) -> ApiDocument {
    let required = flat_schema
        .schema()
        .get("required")
        .and_then(Value::as_array);
    let is_required = |name: &str| {
        required.is_some_and(|names| names.iter().any(|required_name| required_name == name))
    };
    let mut flat = ApiDocument {
        required_parameters: Vec::new(),
        optional_parameters: Vec::new(),
        ..document.clone()
    };
    for (name, path) in flat_schema.mapping() {
        let Some(PathStep::Key(parameter_name)) = path.first() else {
            continue;
        };
        let Some(parameter) = document.parameter(parameter_name) else {
            continue;
        };
        let leaf = flat_schema
            .schema()
            .pointer("/properties")
            .and_then(|parameters_by_name| parameters_by_name.get(name));
        let parameter = match (path.len(), leaf) {
            (1, _) | (_, None) => ApiParameter {
                name: name.to_owned(),
                ..parameter.clone()
            },
            (_, Some(leaf)) => leaf_parameter(name, parameter, leaf),
        };
        let parameters = if is_required(name) {
            &mut flat.required_parameters
        } else {
            &mut flat.optional_parameters
        };
        parameters.push(parameter);
    }
    flat
}

fn leaf_parameter(name: &str, parameter: &ApiParameter, leaf: &Value) -> ApiParameter {
    let text = |key: &str| leaf.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = match leaf.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(Value::Array(kinds)) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            kinds
                .filter(|kind| *kind != "null")
                .collect::<Vec<_>>()
                .join("|")
        }
        _ => String::new(),
    };
    let mut description = text("description").to_owned();
    if let Some(values) = leaf.get("enum").and_then(Value::as_array) {
        let value_text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        let values: Vec<String> = values.iter().map(value_text).collect();
        let gap = if description.is_empty() { "" } else { " " };
        description.push_str(&format!("{gap}One of: {}.", values.join(", ")));
    }
    let mut schema = leaf.clone();
    if let Some(schema) = schema.as_object_mut() {
        for keyword in ["description", "default"] {
            schema.shift_remove(keyword);
        }
    }
    let says_type_alone = schema == json!({"type": kind}) || schema == json!({});
    ApiParameter {
        kind,
        description,
        default: leaf
            .get("default")
            .cloned()
            .unwrap_or_else(|| Value::from("")),
        location: parameter.location.clone(),
        schema: (!says_type_alone).then(|| ParameterSchema::new(schema)),
        ..ApiParameter::new(name)
    }
}
