//! Builds the catalogue of the API tables: entries with call names, documents and true edges.
//!
//! An edge connects an output to a required parameter with the same kind of value. Optional
//! parameters have no edges, so an optional argument is always stated in the query and never comes
//! from an output.

use std::collections::BTreeMap;

use tooltune_apis::{ApiDocument, ApiParameter};

use super::SemanticEdge;
use super::api::{Api, Field, Parameter, Role, Tool};
use super::apis::TOOLS;

/// An API with its tool.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) tool: &'static Tool,
    pub(super) api: &'static Api,
    /// `tool/api`.
    pub(super) call_name: String,
}

impl Entry {
    /// The required parameters, in table order.
    pub(super) fn required_parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.api.parameters.iter().filter(|p| p.is_required())
    }

    pub(super) fn is_held_out(&self) -> bool {
        self.tool.role == Role::HeldOut
    }

    /// Path of `field` in the output, such as `inns[].inn_id`.
    pub(super) fn path(&self, field: &Field) -> String {
        match self.api.list.as_str() {
            "" => field.column.clone(),
            list => format!("{list}[].{}", field.column),
        }
    }

    /// The document that the API's provider would publish.
    pub(super) fn document(&self) -> ApiDocument {
        let (required, optional): (Vec<&Parameter>, Vec<&Parameter>) =
            self.api.parameters.iter().partition(|p| p.is_required());
        ApiDocument {
            category_name: self.tool.category.clone(),
            api_description: self.api.does.clone(),
            required_parameters: required.into_iter().map(describe).collect(),
            optional_parameters: optional.into_iter().map(describe).collect(),
            method: "GET".to_owned(),
            output_description: self.api.returns.clone(),
            ..ApiDocument::new(self.tool.name.clone(), self.api.name.clone())
        }
    }
}

fn describe(parameter: &Parameter) -> ApiParameter {
    ApiParameter {
        kind: parameter.kind.json_type.name().to_owned(),
        description: parameter.description.clone(),
        ..ApiParameter::new(parameter.name.clone())
    }
}

/// An output that can become a required argument.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    pub(super) source: usize,
    pub(super) field: &'static Field,
    pub(super) target: usize,
    pub(super) parameter: &'static Parameter,
}

/// All APIs and the edges between them.
#[derive(Debug, Clone)]
pub(super) struct Catalogue {
    entries: Vec<Entry>,
    edges: Vec<Edge>,
    by_call_name: BTreeMap<String, usize>,
}

impl Catalogue {
    pub(super) fn new() -> Self {
        let entries: Vec<Entry> = TOOLS
            .iter()
            .flat_map(|tool| {
                tool.apis.iter().map(move |api| Entry {
                    tool,
                    api,
                    call_name: format!("{}/{}", tool.name, api.name),
                })
            })
            .collect();
        let names = entries.iter().enumerate();
        let by_call_name = names
            .map(|(i, entry)| (entry.call_name.clone(), i))
            .collect();
        let edges = edges_between(&entries);
        Self {
            entries,
            edges,
            by_call_name,
        }
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn entry(&self, api_idx: usize) -> &Entry {
        &self.entries[api_idx]
    }

    pub(super) fn edges(&self) -> &[Edge] {
        &self.edges
    }

    pub(super) fn position(&self, call_name: &str) -> Option<usize> {
        self.by_call_name.get(call_name).copied()
    }

    /// The edges with the names used in documents and outputs.
    pub(super) fn semantic_edges(&self) -> Vec<SemanticEdge> {
        let edges = self.edges.iter().map(|edge| {
            let source = self.entry(edge.source);
            SemanticEdge {
                source: source.call_name.clone(),
                path: source.path(edge.field),
                target: self.entry(edge.target).call_name.clone(),
                parameter: edge.parameter.name.clone(),
                kind: edge.parameter.kind.name.clone(),
            }
        });
        edges.collect()
    }
}

fn edges_between(entries: &[Entry]) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (source, from) in entries.iter().enumerate() {
        for (target, to) in entries.iter().enumerate() {
            if source == target {
                continue;
            }
            for parameter in to.required_parameters() {
                let fits = |field: &&Field| field.kind.name == parameter.kind.name;
                let candidates = from.api.fields.iter().filter(fits);
                edges.extend(candidates.map(|field| Edge {
                    source,
                    field,
                    target,
                    parameter,
                }));
            }
        }
    }
    edges
}
