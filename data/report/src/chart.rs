//! Computes the geometry of a drawing of one quantity's curves.
//!
//! Places are shares of the drawing in per cent, and lines are in units of a box that is stretched
//! over it: so a chart fits any width while its labels keep their size.

use std::fmt::Write;

use serde::Serialize;

use super::axis::Axis;
use super::number;
use super::series::Points;

/// Width of the box that paths are drawn in.
const WIDTH: f64 = 1000.0;

/// Its height.
const HEIGHT: f64 = 400.0;

/// Curves of at most so many points show each of them.
const MAX_DOTS: usize = 40;

/// Ticks that an axis aims at.
const N_TICKS: usize = 4;

/// Values whose least is above this share of their greatest are too near to each other to be seen on
/// an axis from zero.
const NEAR_SHARE: f64 = 0.75;

/// Per cent of the height that the letters at the ends of two lines are kept apart.
const LETTER_DISTANCE: f64 = 9.0;

/// The curve of one run.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// Position of the run.
    pub(super) run: usize,
    /// Rising steps with their values; at least one value.
    pub(super) points: Points,
    /// The same, smoothed; empty where it is not.
    pub(super) smoothed: Points,
    /// Step of the selected checkpoint.
    pub(super) best_step: Option<u64>,
}

/// A drawing of the curves of all runs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Chart {
    /// Unique on the page.
    pub(super) id: usize,
    /// What is drawn.
    pub(super) title: String,
    /// Its unit, which labels the upright axis.
    pub(super) unit: String,
    x_ticks: Vec<Tick>,
    y_ticks: Vec<Tick>,
    lines: Vec<Line>,
    bests: Vec<Best>,
    data: Data,
}

#[derive(Debug, Clone, Serialize)]
struct Tick {
    /// Per cent from the left, or from the top.
    at: String,
    label: String,
}

#[derive(Debug, Clone, Serialize)]
struct Line {
    run: usize,
    /// The line, broken where there is no value.
    path: String,
    /// The smoothed line, if there is one.
    smooth: String,
    /// Points of no length, which round line ends make into dots.
    dots: String,
    /// Place of the last value, in per cent.
    end_x: String,
    end_y: String,
    first: String,
    last: String,
    last_step: String,
    least: String,
    most: String,
}

/// Where a run's selected checkpoint lies.
#[derive(Debug, Clone, Serialize)]
struct Best {
    run: usize,
    at: String,
}

/// What the script reads out under the pointer.
#[derive(Debug, Clone, Serialize)]
struct Data {
    x: [f64; 2],
    y: [f64; 2],
    lines: Vec<DataLine>,
}

#[derive(Debug, Clone, Serialize)]
struct DataLine {
    run: usize,
    points: Vec<(u64, Option<f64>)>,
}

/// What a chart is called, and how far its steps go.
#[derive(Debug, Clone)]
pub(super) struct Heading {
    /// Unique on the page.
    pub(super) id: usize,
    /// What is drawn.
    pub(super) title: String,
    /// Its unit.
    pub(super) unit: String,
    /// Last step of all charts, so that they line up.
    pub(super) last_step: f64,
    /// Whether the upright axis may begin above zero where the values are far from it; it says so.
    pub(super) may_begin_high: bool,
}

impl Chart {
    /// Draws curves; none if no curve has a value.
    pub(super) fn new(heading: Heading, curves: &[Curve]) -> Option<Self> {
        let values = || curves.iter().flat_map(|curve| values(&curve.points));
        let low = values().map(|(_, value)| value).reduce(f64::min)?;
        let high = values().map(|(_, value)| value).reduce(f64::max)?;
        let x = Axis::of_steps(heading.last_step, N_TICKS);
        let is_near = heading.may_begin_high && low > NEAR_SHARE * high;
        let y = match is_near {
            true => Axis::of_values(low, high, N_TICKS),
            false => Axis::with_zero(low, high, N_TICKS),
        };
        let mut unit = heading.unit;
        if is_near {
            let begins = y.ticks.first().map_or("", |(_, label)| label.as_str());
            let comma = if unit.is_empty() { "" } else { ", " };
            unit.push_str(&format!("{comma}axis from {begins}"));
        }
        let mut lines: Vec<Line> = curves
            .iter()
            .filter_map(|curve| line(curve, &x, &y))
            .collect();
        keep_ends_apart(&mut lines);
        Some(Self {
            id: heading.id,
            title: heading.title,
            unit,
            x_ticks: ticks(&x, |share| share),
            y_ticks: ticks(&y, |share| 1.0 - share),
            bests: curves.iter().filter_map(|curve| best(curve, &x)).collect(),
            data: Data {
                x: [x.low, x.high],
                y: [y.low, y.high],
                lines: curves
                    .iter()
                    .map(|curve| DataLine {
                        run: curve.run,
                        points: curve
                            .points
                            .iter()
                            .map(|&(step, value)| read_out(step, value))
                            .collect(),
                    })
                    .collect(),
            },
            lines,
        })
    }

    /// Whether a line is drawn smoothed.
    pub(super) fn has_smoothed(&self) -> bool {
        self.lines.iter().any(|line| !line.smooth.is_empty())
    }
}

/// With as many digits as anyone reads, so that the page stays small.
fn read_out(step: f64, value: Option<f64>) -> (u64, Option<f64>) {
    let rounded = |value: f64| format!("{value:.4e}").parse().ok();
    (step as u64, value.and_then(rounded))
}

fn values(points: &[(f64, Option<f64>)]) -> impl Iterator<Item = (f64, f64)> {
    points
        .iter()
        .filter_map(|(step, value)| Some((*step, (*value)?)))
}

fn percent(share: f64) -> String {
    format!("{:.2}", 100.0 * share)
}

fn ticks(axis: &Axis, place: fn(f64) -> f64) -> Vec<Tick> {
    let tick = |(value, label): &(f64, String)| Tick {
        at: percent(place(axis.share(*value))),
        label: label.clone(),
    };
    axis.ticks.iter().map(tick).collect()
}

fn best(curve: &Curve, x: &Axis) -> Option<Best> {
    let step = curve.best_step.filter(|step| *step as f64 <= x.high)?;
    Some(Best {
        run: curve.run,
        at: percent(x.share(step as f64)),
    })
}

/// A path through the points, broken where there is no value, and its dots: at each point of a
/// curve of few, at lone ones of a longer one.
fn path_and_dots(points: &[(f64, Option<f64>)], x: &Axis, y: &Axis) -> (String, String) {
    let place = |step: f64, value: f64| {
        let (across, down) = (x.share(step), 1.0 - y.share(value));
        format!("{:.1} {:.1}", WIDTH * across, HEIGHT * down)
    };
    let shows_all = points.len() <= MAX_DOTS;
    let (mut path, mut dots) = (String::new(), String::new());
    let has_value = |place: Option<usize>| {
        let point = place.and_then(|place| points.get(place));
        point.is_some_and(|(_, value)| value.is_some())
    };
    for (idx, (step, value)) in points.iter().enumerate() {
        let Some(value) = value else { continue };
        let at = place(*step, *value);
        let continues = has_value(idx.checked_sub(1));
        path.push_str(if continues { "L" } else { "M" });
        path.push_str(&at);
        if shows_all || !continues && !has_value(Some(idx + 1)) {
            // Writing to a String cannot fail.
            let _ = write!(dots, "M{at}h0");
        }
    }
    (path, dots)
}

fn line(curve: &Curve, x: &Axis, y: &Axis) -> Option<Line> {
    let points = &curve.points;
    let (path, dots) = path_and_dots(points, x, y);
    let all: Vec<(f64, f64)> = values(points).collect();
    let ((_, first), (last_step, last)) = (*all.first()?, *all.last()?);
    let extreme = |of: fn(f64, f64) -> f64| {
        let found = all
            .iter()
            .copied()
            .reduce(|a, b| if of(a.1, b.1) == a.1 { a } else { b });
        found.map_or_else(String::new, |(step, value)| {
            format!("{} at step {}", number::value(value), number::value(step))
        })
    };
    Some(Line {
        run: curve.run,
        path,
        smooth: path_and_dots(&curve.smoothed, x, y).0,
        dots,
        end_x: percent(x.share(last_step)),
        end_y: percent(1.0 - y.share(last)),
        first: number::value(first),
        last: number::value(last),
        last_step: number::value(last_step),
        least: extreme(f64::min),
        most: extreme(f64::max),
    })
}

/// Moves the letters at the ends of lines apart where they would lie upon each other, from the top
/// down and then back up from the bottom.
fn keep_ends_apart(lines: &mut [Line]) {
    let number = |text: &str| text.parse::<f64>().unwrap_or_default();
    let mut ends: Vec<(usize, f64, f64)> = lines
        .iter()
        .enumerate()
        .map(|(place, line)| (place, number(&line.end_x), number(&line.end_y)))
        .collect();
    ends.sort_by(|one, other| one.2.total_cmp(&other.2).then(one.0.cmp(&other.0)));
    let mut columns: Vec<Vec<(usize, f64, f64)>> = Vec::new();
    for end in ends {
        let is_near = |column: &&mut Vec<(usize, f64, f64)>| {
            column
                .iter()
                .any(|other| (other.1 - end.1).abs() <= LETTER_DISTANCE)
        };
        match columns.iter_mut().find(is_near) {
            Some(column) => column.push(end),
            None => columns.push(vec![end]),
        }
    }
    for column in columns {
        let distance = LETTER_DISTANCE.min(100.0 / column.len() as f64);
        let mut least = f64::NEG_INFINITY;
        let mut places: Vec<f64> = Vec::with_capacity(column.len());
        for (_, _, y) in &column {
            let place = y.max(least);
            places.push(place);
            least = place + distance;
        }
        let mut most = 100.0_f64;
        for place in places.iter_mut().rev() {
            *place = place.min(most);
            most = *place - distance;
        }
        for ((line, ..), place) in column.iter().zip(places) {
            if let Some(line) = lines.get_mut(*line) {
                line.end_y = format!("{place:.2}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
