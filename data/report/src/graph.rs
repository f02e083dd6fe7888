//! Renders the dependencies between APIs as one page: a drawing, and a table of edges with their
//! reasons.
//!
//! This is GOAT's Figure 5. APIs are drawn in layers from top to bottom, each below its sources.
//! APIs that depend on each other in a cycle share a layer. A layer that is wider than the page is
//! split into rows. A line connects an API to each API whose parameter its output fills. The
//! drawing depends only on the edges: there is no randomness and no script.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::error::ReportError;
use super::number::group_digits;
use super::page::render_without_script;
use super::truncation::{MAX_TEXT, shorten_cell, truncate};

/// Template name and source. Escaping is on because the name ends in `.html`.
const TEMPLATE: (&str, &str) = ("graph.html", include_str!("page/graph.html"));

/// Width of the drawing; all lengths are in its units.
const WIDTH: usize = 1_120;
const MARGIN: usize = 12;
/// Horizontal space between the boxes of a row.
const BOX_GAP: usize = 24;
/// Vertical space between rows, where lines bend.
const ROW_GAP: usize = 56;
/// Width of a character in the monospaced font.
const CHARACTER_WIDTH: usize = 8;
const LINE_HEIGHT: usize = 18;
/// Padding around a name in its box.
const PADDING: usize = 10;
/// Characters per line of a name; longer names are wrapped.
const LINE_CHARS: usize = 32;
/// Maximum number of lines per name; the table shows the full name.
const MAX_LINES: usize = 4;

/// Maximum number of edges in the drawing, because more would be unreadable. The table lists up to
/// [`MAX_LISTED_EDGES`].
const MAX_DRAWN_EDGES: usize = 400;
const MAX_LISTED_EDGES: usize = 5_000;

/// An API output that fills a parameter of another API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphEdge {
    /// The API with the output.
    pub source: String,
    /// The API with the parameter.
    pub target: String,
    /// Name of the parameter.
    pub parameter: String,
    /// Why the output fills the parameter; empty if unknown.
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
    edges: Vec<EdgeRow>,
}

#[derive(Serialize)]
struct Node {
    name: String,
    lines: Vec<NameLine>,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

/// One line of a name.
#[derive(Serialize)]
struct NameLine {
    text: String,
    y: usize,
}

/// A line between two APIs, with the parameters that the output fills.
#[derive(Serialize)]
struct Line {
    path: String,
    label: String,
    is_back: bool,
}

#[derive(Serialize)]
struct EdgeRow {
    source: String,
    target: String,
    parameter: String,
    reason: String,
}

/// Renders the page of a graph under a title.
///
/// # Errors
///
/// The template does not match its data.
pub fn render_graph(title: &str, edges: &[GraphEdge]) -> Result<String, ReportError> {
    let drawn_edges = &edges[..edges.len().min(MAX_DRAWN_EDGES)];
    let listed_edges = &edges[..edges.len().min(MAX_LISTED_EDGES)];
    let apis: BTreeSet<&str> = edges.iter().flat_map(edge_ends).collect();
    let boxes = layout(drawn_edges);
    let bottom = boxes
        .values()
        .map(|node_box| node_box.y + node_box.height)
        .max();
    let page = Page {
        title: shorten_cell(title),
        n_apis: group_digits(apis.len() as u64),
        n_edges: group_digits(edges.len() as u64),
        n_not_drawn: edges.len() - drawn_edges.len(),
        n_not_listed: edges.len() - listed_edges.len(),
        width: WIDTH,
        height: bottom.unwrap_or(0) + MARGIN,
        nodes: boxes
            .iter()
            .map(|(name, node_box)| node(name, node_box))
            .collect(),
        lines: lines(drawn_edges, &boxes),
        edges: listed_edges.iter().map(edge_row).collect(),
    };
    render_without_script(TEMPLATE, page)
}

fn edge_ends(edge: &GraphEdge) -> [&str; 2] {
    [edge.source.as_str(), edge.target.as_str()]
}

fn node(name: &str, node_box: &NodeBox) -> Node {
    let lines = name_lines(name).into_iter().enumerate();
    let line = |(line_idx, text)| NameLine {
        text,
        y: node_box.y + PADDING + (line_idx + 1) * LINE_HEIGHT - 5,
    };
    Node {
        name: shorten_cell(name),
        lines: lines.map(line).collect(),
        x: node_box.x,
        y: node_box.y,
        width: node_box.width,
        height: node_box.height,
    }
}

/// Wraps a name into lines, after a separator between words if possible.
fn name_lines(name: &str) -> Vec<String> {
    let name = shorten_cell(name).replace(['\n', '\r', '\t'], " ");
    let mut remaining: Vec<char> = name.chars().collect();
    let mut lines = Vec::new();
    while remaining.len() > LINE_CHARS && lines.len() + 1 < MAX_LINES {
        let is_break = |sign: &char| !sign.is_alphanumeric();
        let line = remaining.get(..LINE_CHARS).unwrap_or_default();
        let end = line
            .iter()
            .rposition(is_break)
            .map_or(LINE_CHARS, |break_at| break_at + 1);
        lines.push(remaining.drain(..end).collect());
    }
    let is_truncated = remaining.len() > LINE_CHARS;
    remaining.truncate(LINE_CHARS - usize::from(is_truncated));
    let mut last: String = remaining.into_iter().collect();
    if is_truncated {
        last.push('…');
    }
    lines.push(last);
    lines
}

fn edge_row(edge: &GraphEdge) -> EdgeRow {
    EdgeRow {
        source: shorten_cell(&edge.source),
        target: shorten_cell(&edge.target),
        parameter: shorten_cell(&edge.parameter),
        reason: truncate(&edge.reason, MAX_TEXT).0.to_owned(),
    }
}

/// The box of an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NodeBox {
    layer: usize,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl NodeBox {
    fn center_x(&self) -> usize {
        self.x + self.width / 2
    }
}

/// Assigns APIs to layers by the longest path that leads to them. All APIs of a cycle are in one
/// layer.
fn layers(edges: &[GraphEdge]) -> Vec<Vec<&str>> {
    let cycles = cycles(edges);
    let cycle_of: BTreeMap<&str, usize> = (cycles.iter().enumerate())
        .flat_map(|(cycle, names)| names.iter().map(move |name| (*name, cycle)))
        .collect();
    let mut targets = vec![BTreeSet::new(); cycles.len()];
    for edge in edges {
        let [source, target] = edge_ends(edge).map(|name| cycle_of[name]);
        if source != target {
            targets[source].insert(target);
        }
    }
    let mut layer_of = vec![0; cycles.len()];
    let mut layers: Vec<Vec<&str>> = Vec::new();
    // A target comes before its sources in `cycles`.
    for cycle in (0..cycles.len()).rev() {
        let layer = layer_of[cycle];
        for &target in &targets[cycle] {
            layer_of[target] = layer_of[target].max(layer + 1);
        }
        layers.resize_with(layers.len().max(layer + 1), Vec::new);
        layers[layer].extend(&cycles[cycle]);
    }
    layers
}

/// The strongly connected components of the graph. Each comes after the components that it has
/// edges to. An API that is not in a cycle is a component of its own.
///
/// # Source
///
/// R. Tarjan, "Depth-First Search and Linear Graph Algorithms", SIAM Journal on Computing 1 (1972).
/// The call stack is a vector, because a chain of edges may be long.
fn cycles(edges: &[GraphEdge]) -> Vec<Vec<&str>> {
    let mut targets: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for edge in edges {
        targets.entry(&edge.source).or_default().push(&edge.target);
        targets.entry(&edge.target).or_default();
    }
    let mut cycles = Vec::new();
    // Order of discovery, and the earliest API on the stack that each API leads to.
    let mut discovery_order: BTreeMap<&str, usize> = BTreeMap::new();
    let mut earliest: BTreeMap<&str, usize> = BTreeMap::new();
    let mut stack: Vec<&str> = Vec::new();
    let mut on_stack: BTreeSet<&str> = BTreeSet::new();
    for &root in targets.keys() {
        let mut visits = vec![(root, 0)];
        while let Some((name, next_target)) = visits.pop() {
            if next_target == 0 {
                if discovery_order.contains_key(name) {
                    continue;
                }
                discovery_order.insert(name, discovery_order.len());
                earliest.insert(name, discovery_order[name]);
                stack.push(name);
                on_stack.insert(name);
            } else {
                let target = targets[name][next_target - 1];
                if on_stack.contains(target) {
                    let lowest = earliest[name].min(earliest[target]);
                    earliest.insert(name, lowest);
                }
            }
            if let Some(&target) = targets[name].get(next_target) {
                visits.push((name, next_target + 1));
                visits.push((target, 0));
            } else if earliest[name] == discovery_order[name] {
                let start = stack.iter().rposition(|other| *other == name);
                let cycle = stack.split_off(start.unwrap_or(0));
                cycle.iter().for_each(|name| {
                    on_stack.remove(name);
                });
                cycles.push(cycle);
            }
        }
    }
    cycles
}

/// Places the boxes. Within a layer each box is close to its sources, and rows wrap at the page
/// width.
fn layout(edges: &[GraphEdge]) -> BTreeMap<&str, NodeBox> {
    let mut boxes: BTreeMap<&str, NodeBox> = BTreeMap::new();
    let mut top = MARGIN;
    for (layer, mut names) in layers(edges).into_iter().enumerate() {
        let preferred_x = |name: &&str| {
            let sources = edges.iter().filter(|edge| edge.target == *name);
            let middles =
                sources.filter_map(|edge| Some(boxes.get(edge.source.as_str())?.center_x()));
            let middles: Vec<usize> = middles.collect();
            middles.iter().sum::<usize>() / middles.len().max(1)
        };
        names.sort_by_cached_key(|name| (preferred_x(name), *name));
        let mut row: Vec<(&str, NodeBox)> = Vec::new();
        let mut min_x = MARGIN;
        for name in names {
            let lines = name_lines(name);
            let longest = lines
                .iter()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0);
            let (width, height) = (
                longest * CHARACTER_WIDTH + 2 * PADDING,
                lines.len() * LINE_HEIGHT + 2 * PADDING,
            );
            if min_x + width + MARGIN > WIDTH && !row.is_empty() {
                top = finish_row(&mut row, top, &mut boxes);
                min_x = MARGIN;
            }
            let node_box = NodeBox {
                layer,
                x: min_x,
                y: top,
                width,
                height,
            };
            row.push((name, node_box));
            min_x += width + BOX_GAP;
        }
        top = finish_row(&mut row, top, &mut boxes);
    }
    boxes
}

/// Centres a completed row, and returns the top of the next row.
fn finish_row<'e>(
    row: &mut Vec<(&'e str, NodeBox)>,
    top: usize,
    boxes: &mut BTreeMap<&'e str, NodeBox>,
) -> usize {
    let right = row
        .iter()
        .map(|(_, node_box)| node_box.x + node_box.width)
        .max();
    let shift = WIDTH.saturating_sub(right.unwrap_or(0) + MARGIN) / 2;
    let height = row
        .iter()
        .map(|(_, node_box)| node_box.height)
        .max()
        .unwrap_or(0);
    for (name, mut node_box) in row.drain(..) {
        node_box.x += shift;
        boxes.insert(name, node_box);
    }
    top + height + ROW_GAP
}

fn lines(edges: &[GraphEdge], boxes: &BTreeMap<&str, NodeBox>) -> Vec<Line> {
    let mut parameters: BTreeMap<[&str; 2], Vec<&str>> = BTreeMap::new();
    for edge in edges {
        let line_parameters = parameters.entry(edge_ends(edge)).or_default();
        line_parameters.push(&edge.parameter);
    }
    let line = |([source, target], parameters): ([&str; 2], Vec<&str>)| {
        let (from, to) = (boxes.get(source)?, boxes.get(target)?);
        let is_back = to.layer <= from.layer;
        let (x1, y1) = (from.center_x(), from.y + from.height);
        let (x2, y2) = (to.center_x(), to.y);
        let bend = ROW_GAP * 3 / 4;
        let path = format!(
            "M{x1} {y1} C{x1} {} {x2} {} {x2} {y2}",
            y1 + bend,
            y2 as i64 - bend as i64
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
    fn apis_are_below_their_sources_and_names_are_escaped() {
        let edges = [
            edge("Geocode", "Weather", "the latitude"),
            edge("Geocode", "Places", ""),
            edge("Weather", "Clothes", "<b>warm</b>"),
            edge("Clothes", "Weather", "a cycle"),
        ];
        let boxes = layout(&edges);
        let layer = |name: &str| boxes[name].layer;
        assert_eq!(layer("Geocode"), 0);
        assert_eq!(layer("Places"), 1);
        assert_eq!([layer("Weather"), layer("Clothes")], [1, 1]);
        assert!(boxes["Places"].y > boxes["Geocode"].y);
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
        for external in ["http://", "https://", "src=", "<b>warm"] {
            assert!(!page.contains(external), "{external}");
        }
    }

    #[test]
    fn the_apis_of_a_cycle_share_a_layer() {
        let api = |n: usize| format!("api{}", n % 10);
        let mut edges: Vec<GraphEdge> = (0..10).map(|n| edge(&api(n), &api(n + 1), "")).collect();
        edges.push(edge("login", &api(7), ""));
        edges.push(edge(&api(3), "pay", ""));
        edges.push(edge("login", "pay", ""));
        edges.push(edge("pay", "pay", "itself"));
        edges.push(edge("pay", "ship", ""));
        let ring: Vec<String> = (0..10).map(api).collect();
        let layers: Vec<BTreeSet<&str>> = (layers(&edges).into_iter())
            .map(|layer| layer.into_iter().collect())
            .collect();
        let expected = [
            BTreeSet::from(["login"]),
            ring.iter().map(String::as_str).collect(),
            BTreeSet::from(["pay"]),
            BTreeSet::from(["ship"]),
        ];
        assert_eq!(layers, expected);
        // Two cycles with an edge between them are two layers; a long chain does not overflow the
        // call stack.
        let mut edges: Vec<GraphEdge> =
            [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]
                .map(|(source, target)| edge(source, target, ""))
                .into();
        assert_eq!(super::layers(&edges).len(), 2);
        edges.extend((0..2_000).map(|n| edge(&format!("n{n}"), &format!("n{}", n + 1), "")));
        assert_eq!(super::layers(&edges).len(), 2_001);
    }

    /// Boxes fit on the page, contain their names and do not overlap, for any number of APIs and
    /// any name length.
    #[test]
    fn a_wide_layer_wraps_and_names_are_complete() {
        let long = "GET /customers/{customer_id}/orders/{order_id}/shipments/latest";
        let mut edges: Vec<GraphEdge> = (0..40)
            .map(|n| edge("list of customers", &format!("{long}/{n}"), ""))
            .collect();
        edges.push(edge(&format!("{long}/3"), "track", ""));
        let boxes = layout(&edges);
        let layer_boxes: Vec<&NodeBox> = boxes
            .values()
            .filter(|node_box| node_box.layer == 1)
            .collect();
        let rows: BTreeSet<usize> = layer_boxes.iter().map(|node_box| node_box.y).collect();
        assert!(rows.len() > 5, "{rows:?}");
        for (name, node_box) in &boxes {
            assert!(node_box.x + node_box.width <= WIDTH, "{name} {node_box:?}");
            assert_eq!(name_lines(name).concat(), *name);
            for other in boxes.values().filter(|other| *other != node_box) {
                let is_apart = node_box.x + node_box.width <= other.x
                    || other.x + other.width <= node_box.x
                    || node_box.y + node_box.height <= other.y
                    || other.y + other.height <= node_box.y;
                assert!(is_apart, "{node_box:?} {other:?}");
            }
        }
        assert_eq!(name_lines("x".repeat(500).as_str()).len(), MAX_LINES);
        assert!(name_lines("x".repeat(500).as_str())[MAX_LINES - 1].ends_with('…'));
    }

    #[test]
    fn edges_not_drawn_are_counted_and_an_empty_graph_renders() {
        let edges: Vec<GraphEdge> = (0..MAX_DRAWN_EDGES + 3)
            .map(|n| edge("A", &format!("B{n}"), ""))
            .collect();
        let page = render_graph("many", &edges).expect("a page");
        assert!(page.contains("3 further edges are not drawn"));
        assert!(
            render_graph("none", &[])
                .expect("a page")
                .contains("has no edges")
        );
    }
}
