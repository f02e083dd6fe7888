//! Tests of the tables of APIs and of the world.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::api::{Api, By, Field, Operation, Order, Restriction, Values};
use super::super::apis::{self, Tools};
use super::super::catalogue::Entry;
use super::super::kinds::{self, KINDS, Kinds};
use super::super::world::World;
use super::super::world::names::{self, Names};
use super::*;
use crate::table::{TableFile, example, table_errors};

fn names_in(template: &str) -> BTreeSet<String> {
    let placeholders = template.split('{').skip(1);
    placeholders
        .map(|placeholder| placeholder.split('}').next().unwrap().to_owned())
        .collect()
}

fn required_names(api: &Api) -> BTreeSet<String> {
    let required = api.parameters.iter().filter(|p| p.is_required());
    required.map(|p| p.name.clone()).collect()
}

#[test]
fn every_table_file_is_read_and_parses() {
    let mut problems = table_errors::<Kinds>("goat", &[kinds::FILE]);
    problems.extend(table_errors::<Tools>("goat/apis", &apis::FILES));
    problems.extend(table_errors::<Names>("goat/world", &[names::FILE]));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_example_of_an_api_parses() {
    let tools: Tools = toml::from_str(&example(include_str!("../apis/mod.rs"))).unwrap();
    assert_eq!(tools.tools[0].apis.len(), 1);
}

#[test]
fn each_kind_has_one_line_and_is_used() {
    let apis = TOOLS.iter().flat_map(|tool| &tool.apis);
    let used = apis.flat_map(|api| api.parameters.iter().map(|parameter| &parameter.kind.name));
    let used: BTreeSet<&String> = used.collect();
    let names: BTreeSet<&String> = KINDS.kinds.iter().map(|kind| &kind.name).collect();
    assert_eq!(names.len(), KINDS.kinds.len());
    assert_eq!(names, used);
}

#[test]
fn an_unknown_kind_is_an_error_with_its_location() {
    let text = "column = 'region'\nphrases = ['the region of {town}']\nkind = 'regoin.name'\n";
    let path = "goat/apis/coast.toml";
    let problem = TableFile { path, text }.parse::<Field>().unwrap_err();
    let problem = problem.to_string();
    let location = "data/synth/src/goat/apis/coast.toml: TOML parse error at line 3, column";
    assert!(problem.starts_with(location), "{problem}");
    let message = "no kind of kinds.toml is named `regoin.name`";
    assert!(problem.contains(message), "{problem}");
}

#[test]
fn the_catalogue_has_fifty_apis_in_nine_tools_with_two_held_out() {
    let documents = documents();
    let tools: BTreeSet<&str> = documents.iter().map(|d| d.tool_name.as_str()).collect();
    let names: BTreeSet<String> = documents.iter().map(ApiDocument::call_name).collect();
    assert_eq!(names.len(), documents.len(), "call names are unique");
    assert!(documents.len() >= 50 && tools.len() >= 9);
    let held_out = held_out_tools();
    assert!(held_out.len() >= 2 && held_out.iter().all(|tool| tools.contains(tool)));
    let seen_documents = documents
        .iter()
        .filter(|d| !held_out.contains(&d.tool_name.as_str()));
    assert!(seen_documents.count() >= 50);
}

#[test]
fn a_document_describes_the_api_its_parameters_and_its_result() {
    for document in documents() {
        assert!(!document.api_description.is_empty() && !document.output_description.is_empty());
        assert!(!document.required_parameters.is_empty());
        for parameter in document.parameters() {
            assert!(["STRING", "INTEGER", "NUMBER"].contains(&parameter.kind.as_str()));
            assert!(!parameter.description.is_empty());
        }
    }
    let optional: usize = documents()
        .iter()
        .map(|d| d.optional_parameters.len())
        .sum();
    assert!(optional >= 15, "{optional}");
}

/// Models must infer the hidden kinds from the edges; otherwise the task would be trivial.
#[test]
fn no_document_contains_a_semantic_type() {
    let documents = serde_json::to_string(&documents()).unwrap();
    for edge in semantic_edges() {
        assert!(!documents.contains(&edge.kind), "{}", edge.kind);
    }
}

#[test]
fn every_edge_leads_from_a_shown_column_to_a_required_parameter() {
    let catalogue = Catalogue::new();
    let edges = semantic_edges();
    assert!(edges.len() >= 90, "{}", edges.len());
    let different: BTreeSet<_> = edges.iter().collect();
    assert_eq!(different.len(), edges.len());
    for edge in &edges {
        let source = catalogue.entry(catalogue.position(&edge.source).unwrap());
        let column = edge.path.rsplit('.').next().unwrap();
        assert!(
            source
                .api
                .shown
                .iter()
                .any(|shown_column| shown_column == column),
            "{edge:?}"
        );
        let target = catalogue.entry(catalogue.position(&edge.target).unwrap());
        assert!(
            target
                .required_parameters()
                .any(|p| p.name == edge.parameter)
        );
        assert_ne!(edge.source, edge.target);
    }
    let across = edges
        .iter()
        .filter(|e| e.source.split('/').next() != e.target.split('/').next());
    assert!(across.count() >= 30);
}

#[test]
fn every_template_names_parameters_and_columns_that_exist() {
    let catalogue = Catalogue::new();
    for Entry { api, call_name, .. } in catalogue.entries() {
        let required = required_names(api);
        assert!(api.sub_queries.len() >= 2 && !api.aspects.is_empty());
        let parameters_and_aspects = api
            .aspects
            .iter()
            .flat_map(|a| a.nouns.iter().chain(&a.questions));
        for template in api.sub_queries.iter().chain(parameters_and_aspects) {
            assert_eq!(names_in(template), required, "{call_name}: {template}");
        }
        assert!(
            api.aspects
                .iter()
                .map(|a| a.nouns.len() + a.questions.len())
                .sum::<usize>()
                >= 3
        );
        for field in &api.fields {
            for phrase in &field.phrases {
                let mut expected = required.clone();
                if !api.picks.is_empty() {
                    expected.insert("pick".to_owned());
                }
                assert_eq!(names_in(phrase), expected, "{call_name}: {phrase}");
            }
        }
        for aspect in &api.aspects {
            assert_eq!(
                aspect.answer.contains('['),
                !api.list.is_empty(),
                "{call_name}"
            );
            assert!(
                aspect.answer.contains("!}"),
                "an answer of {call_name} states no fact"
            );
            let columns = names_in(&aspect.answer);
            let is_known = |column: &String| {
                let column = column.trim_end_matches('!');
                api.shown.iter().any(|shown_column| shown_column == column)
                    || matches!(api.operation, Operation::Compute(_))
            };
            assert!(columns.iter().all(is_known), "{call_name}: {columns:?}");
        }
    }
}

#[test]
fn every_column_of_an_api_is_in_its_table() {
    let world = World::new();
    for Entry { api, call_name, .. } in Catalogue::new().entries() {
        let (table, mut columns) = match &api.operation {
            Operation::Compute(_) => continue,
            Operation::Search { table, column } | Operation::Get { table, column } => {
                (table, vec![column])
            }
            Operation::List {
                table,
                column,
                order: Order::Ascending(by) | Order::Descending(by),
            } => (table, vec![column, by]),
            Operation::Similar { table, key, by } => (table, vec![key, by]),
        };
        columns.extend(&api.shown);
        for pick in &api.picks {
            if let By::Max(column) | By::Min(column) = &pick.by {
                assert!(api.shown.contains(column), "{call_name}: {column}");
            }
        }
        for parameter in &api.parameters {
            let restriction = parameter.optional.as_ref().map(|limit| &limit.restriction);
            if let Some(Restriction::AtMost(c) | Restriction::AtLeast(c)) = restriction {
                columns.push(c);
            }
            if let Values::Column(table, column) = &parameter.kind.values {
                assert!(world.rows(table).iter().all(|row| row.contains_key(column)));
                assert!(!world.rows(table).is_empty());
            }
        }
        assert!(!world.rows(table).is_empty(), "{call_name}");
        for row in world.rows(table) {
            let present = columns.iter().all(|column| row.contains_key(*column));
            assert!(present, "{call_name}: {row:?}");
        }
    }
}

#[test]
fn ids_and_names_identify_one_row() {
    let world = World::new();
    let unique = [
        ("towns", "town"),
        ("ships", "ship_id"),
        ("ships", "name"),
        ("trips", "trip_id"),
        ("inns", "inn_id"),
        ("inns", "name"),
        ("games", "game_id"),
        ("games", "title"),
        ("designers", "designer_id"),
        ("plays", "play_id"),
        ("plays", "title"),
        ("actors", "actor_id"),
        ("actors", "name"),
        ("stars", "star_id"),
        ("stars", "name"),
        ("planets", "planet_id"),
        ("trails", "trail_id"),
        ("trails", "name"),
        ("huts", "hut_id"),
        ("firms", "firm_id"),
        ("firms", "name"),
        ("jobs", "job_id"),
        ("dishes", "dish_id"),
        ("dishes", "name"),
        ("ingredients", "ingredient"),
        ("museums", "museum_id"),
        ("museums", "name"),
        ("works", "work_id"),
        ("painters", "painter_id"),
        ("animals", "animal_id"),
        ("animals", "name"),
        ("species", "species"),
    ];
    let mut ids: BTreeSet<i64> = BTreeSet::new();
    for (table, column) in unique {
        let cells = world.rows(table).iter().map(|row| &row[column]);
        let values: BTreeSet<String> = cells.clone().map(Value::to_string).collect();
        assert_eq!(values.len(), world.rows(table).len(), "{table}.{column}");
        for id in cells.filter_map(Value::as_i64) {
            assert!(
                ids.insert(id),
                "{table}.{column}: {id} is also an id of another table"
            );
        }
    }
}
