//! The dependencies between APIs as one page: a drawing, and a table of the edges with their reasons.
//!
//! It is GOAT's Figure 5. APIs stand in columns, each behind those that it takes values from as far
//! as cycles allow that, and a line leads from an output to each API that it fills a parameter of.
//! The drawing is a function of the edges: nothing of it is drawn by chance or moved by a script.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

use super::error::ReportError;
use super::number::count;
use super::page::{STYLE, environment};
use super::shortened::{MAX_TEXT, cell, shortened};

/// The name ends in `.html`, which is what turns escaping on.
const TEMPLATE: (&str, &str) = ("graph.html", include_str!("page/graph.html"));

/// Units of the drawing.
const COLUMN_WIDTH: usize = 330;
const BOX_WIDTH: usize = 210;
const BOX_HEIGHT: usize = 26;
/// Characters that fit into a box.
const BOX_CHARS: usize = 30;
const ROW_HEIGHT: usize = 44;
const MARGIN: usize = 12;

/// Edges that are drawn: more are a blot. The table has all up to [`MOST_LISTED`].
const MOST_DRAWN: usize = 400;
const MOST_LISTED: usize = 5_000;

/// An output that fills a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphEdge {
    /// The API whose output it is.
    pub source: String,
    /// The API that has the parameter.
    pub target: String,
    /// The parameter.
    pub parameter: String,
    /// Why the output fills it; empty where nobody has said.
    pub reason: String,
}

#[derive(Serialize)]
struct Page {
    title: String,
    n_apis: String,
    n_edges: String,
    n_not_drawn: usize,
    n_not_listed: usize,
    width: usize,
    height: usize,
    nodes: Vec<Node>,
    lines: Vec<Line>,
    edges: Vec<Shown>,
}

#[derive(Serialize)]
struct Node {
    name: String,
    /// What fits into its box.
    shown: String,
    x: usize,
    y: usize,
}

/// A line between two APIs, with the parameters that it fills.
#[derive(Serialize)]
struct Line {
    path: String,
    label: String,
    is_back: bool,
}

#[derive(Serialize)]
struct Shown {
    source: String,
    target: String,
    parameter: String,
    reason: String,
}

/// Writes the page of a graph that is called `title`.
///
/// # Errors
///
/// The page's template does not fit what it shows.
pub fn render_graph(title: &str, edges: &[GraphEdge]) -> Result<String, ReportError> {
    let drawn = &edges[..edges.len().min(MOST_DRAWN)];
    let listed = &edges[..edges.len().min(MOST_LISTED)];
    let apis: BTreeSet<&str> = edges.iter().flat_map(ends).collect();
    let places = places(drawn);
    let n_columns = places.values().map(|place| place.column + 1).max();
    let n_rows = places.values().map(|place| place.row + 1).max();
    let page = Page {
        title: cell(title),
        n_apis: count(apis.len() as u64),
        n_edges: count(edges.len() as u64),
        n_not_drawn: edges.len() - drawn.len(),
        n_not_listed: edges.len() - listed.len(),
        width: n_columns.map_or(0, |n| (n - 1) * COLUMN_WIDTH + BOX_WIDTH) + 2 * MARGIN,
        height: n_rows.unwrap_or(0) * ROW_HEIGHT + 2 * MARGIN,
        nodes: places
            .iter()
            .map(|(name, place)| Node {
                shown: short(name),
                name: cell(name),
                x: place.x(),
                y: place.y(),
            })
            .collect(),
        lines: lines(drawn, &places),
        edges: listed.iter().map(shown).collect(),
    };
    let mut environment = environment()?;
    environment.add_template(TEMPLATE.0, TEMPLATE.1)?;
    Ok(environment.get_template(TEMPLATE.0)?.render(context! {
        page => Value::from(Serde(page)),
        style => STYLE,
        box_width => BOX_WIDTH,
        box_height => BOX_HEIGHT,
    })?)
}

fn ends(edge: &GraphEdge) -> [&str; 2] {
    [edge.source.as_str(), edge.target.as_str()]
}

/// A name as long as its box.
fn short(name: &str) -> String {
    match shortened(name, BOX_CHARS) {
        (shown, Some(_)) => format!("{shown}…"),
        (shown, None) => shown.to_owned(),
    }
}

fn shown(edge: &GraphEdge) -> Shown {
    Shown {
        source: cell(&edge.source),
        target: cell(&edge.target),
        parameter: cell(&edge.parameter),
        reason: shortened(&edge.reason, MAX_TEXT).0.to_owned(),
    }
}

/// Where an API stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    column: usize,
    row: usize,
}

impl Place {
    fn x(self) -> usize {
        MARGIN + self.column * COLUMN_WIDTH
    }

    fn y(self) -> usize {
        MARGIN + self.row * ROW_HEIGHT
    }
}

/// Columns by the longest way that leads to an API, and rows by name within them.
fn places(edges: &[GraphEdge]) -> BTreeMap<&str, Place> {
    let mut columns: BTreeMap<&str, usize> = BTreeMap::new();
    let mut open: BTreeSet<&str> = edges.iter().flat_map(ends).collect();
    let mut column = 0;
    while !open.is_empty() {
        let is_free = |name: &&&str| {
            let mut to = edges.iter().filter(|edge| edge.target == **name);
            to.all(|edge| !open.contains(edge.source.as_str()) || edge.source == edge.target)
        };
        let mut free: Vec<&str> = open.iter().filter(is_free).copied().collect();
        if free.is_empty() {
            // A cycle is entered at the API that waits for the fewest others.
            let n_awaited = |name: &&&str| {
                let to = edges.iter().filter(|edge| edge.target == **name);
                to.filter(|edge| open.contains(edge.source.as_str()))
                    .map(|edge| edge.source.as_str())
                    .collect::<BTreeSet<_>>()
                    .len()
            };
            free.extend(open.iter().min_by_key(n_awaited).copied());
        }
        for name in free {
            open.remove(name);
            columns.insert(name, column);
        }
        column += 1;
    }
    let mut n_in_column: BTreeMap<usize, usize> = BTreeMap::new();
    columns
        .into_iter()
        .map(|(name, column)| {
            let n = n_in_column.entry(column).or_default();
            let row = *n;
            *n += 1;
            (name, Place { column, row })
        })
        .collect()
}

fn lines(edges: &[GraphEdge], places: &BTreeMap<&str, Place>) -> Vec<Line> {
    let mut parameters: BTreeMap<[&str; 2], Vec<&str>> = BTreeMap::new();
    for edge in edges {
        let of_line = parameters.entry(ends(edge)).or_default();
        of_line.push(&edge.parameter);
    }
    let line = |([source, target], parameters): ([&str; 2], Vec<&str>)| {
        let (from, to) = (places.get(source)?, places.get(target)?);
        let is_back = to.column <= from.column;
        let (x1, y1) = (from.x() + BOX_WIDTH, from.y() + BOX_HEIGHT / 2);
        let (x2, y2) = (to.x(), to.y() + BOX_HEIGHT / 2);
        let bend = (COLUMN_WIDTH - BOX_WIDTH) * 3 / 4;
        let path = format!(
            "M{x1} {y1} C{} {y1} {} {y2} {x2} {y2}",
            x1 + bend,
            x2 as i64 - bend as i64
        );
        let label = format!("{source} → {target}: {}", parameters.join(", "));
        Some(Line {
            path,
            label,
            is_back,
        })
    };
    parameters.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(source: &str, target: &str, reason: &str) -> GraphEdge {
        GraphEdge {
            source: source.to_owned(),
            target: target.to_owned(),
            parameter: "latitude".to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn apis_stand_behind_what_they_take_values_from_and_names_stay_text() {
        let edges = [
            edge("Geocode", "Weather", "the latitude"),
            edge("Geocode", "Places", ""),
            edge("Weather", "Clothes", "<b>warm</b>"),
            edge("Clothes", "Weather", "a cycle"),
        ];
        let places = places(&edges);
        let column = |name: &str| places[name].column;
        assert_eq!(column("Geocode"), 0);
        assert_eq!(column("Places"), 1);
        assert_ne!(column("Weather"), column("Clothes"));
        let page = render_graph("<i>tides</i>", &edges).expect("a page");
        for part in [
            "&lt;i&gt;tides&lt;",
            "&lt;b&gt;warm&lt;",
            "Geocode → Weather: latitude",
            "<svg viewBox",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("<rect").count(), 4);
        for outside in ["http://", "https://", "src=", "<b>warm"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn what_is_not_drawn_is_counted_and_no_edge_is_a_page_too() {
        let edges: Vec<GraphEdge> = (0..MOST_DRAWN + 3)
            .map(|n| edge("A", &format!("B{n}"), ""))
            .collect();
        let page = render_graph("many", &edges).expect("a page");
        assert!(page.contains("3 further edges are not drawn"));
        assert!(
            render_graph("none", &[])
                .expect("a page")
                .contains("no edge")
        );
    }
}
