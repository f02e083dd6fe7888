//! Computes the geometry of a chart of one quantity over steps.
//!
//! Positions are percentages of the chart. Paths use the units of a box that is stretched over the
//! chart, so a chart fits any width while its labels keep their size.

use std::fmt::Write;

use serde::Serialize;

use super::axis::Axis;
use super::number;
use super::series::Points;

/// Width of the box that paths are drawn in.
const WIDTH: f64 = 1000.0;

/// Height of that box.
const HEIGHT: f64 = 400.0;

/// Curves with at most this many points show a dot per point.
const MAX_DOTS: usize = 40;

/// Target number of ticks per axis.
const N_TICKS: usize = 4;

/// If the smallest value exceeds this fraction of the largest, differences would be invisible on an
/// axis that starts at zero.
const NEAR_SHARE: f64 = 0.75;

/// Minimum vertical distance between the letters at the line ends, in per cent of the height.
const LETTER_DISTANCE: f64 = 9.0;

/// The curve of one run.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// Index of the run.
    pub(super) run: usize,
    /// Ascending steps with their values; at least one value.
    pub(super) points: Points,
    /// The smoothed points; empty if the curve is not smoothed.
    pub(super) smoothed: Points,
    /// Step of the selected checkpoint.
    pub(super) best_step: Option<u64>,
}

/// A chart with the curves of all runs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Chart {
    /// Chart id, unique on the page.
    pub(super) id: usize,
    /// Name of the quantity.
    pub(super) title: String,
    /// Unit, which labels the vertical axis.
    pub(super) unit: String,
    x_ticks: Vec<Tick>,
    y_ticks: Vec<Tick>,
    lines: Vec<Line>,
    bests: Vec<BestMark>,
    data: Data,
}

#[derive(Debug, Clone, Serialize)]
struct Tick {
    /// Distance from the left or the top, in per cent.
    at: String,
    label: String,
}

#[derive(Debug, Clone, Serialize)]
struct Line {
    run: usize,
    /// The line, interrupted at missing values.
    path: String,
    /// The smoothed line; empty if there is none.
    smooth: String,
    /// Zero-length segments; round line caps draw them as dots.
    dots: String,
    /// Horizontal position of the last value, in per cent.
    end_x: String,
    end_y: String,
    first: String,
    last: String,
    last_step: String,
    least: String,
    most: String,
}

/// The vertical line at the step of a run's selected checkpoint.
#[derive(Debug, Clone, Serialize)]
struct BestMark {
    run: usize,
    at: String,
}

/// The values that the script shows at the mouse pointer.
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

/// The title, unit and extent of a chart.
#[derive(Debug, Clone)]
pub(super) struct Heading {
    /// Chart id, unique on the page.
    pub(super) id: usize,
    /// Name of the quantity.
    pub(super) title: String,
    /// Unit of the quantity.
    pub(super) unit: String,
    /// Last step of all charts, so that their axes have the same range.
    pub(super) last_step: f64,
    /// Whether the vertical axis may start above zero if all values are far from zero. The unit
    /// then names the start.
    pub(super) may_start_above_zero: bool,
}

impl Chart {
    /// Draws the curves, or returns `None` if no curve has a value.
    pub(super) fn new(heading: Heading, curves: &[Curve]) -> Option<Self> {
        let values = || curves.iter().flat_map(|curve| values(&curve.points));
        let low = values().map(|(_, value)| value).reduce(f64::min)?;
        let high = values().map(|(_, value)| value).reduce(f64::max)?;
        let x = Axis::for_steps(heading.last_step, N_TICKS);
        let is_near = heading.may_start_above_zero && low > NEAR_SHARE * high;
        let y = match is_near {
            true => Axis::for_values(low, high, N_TICKS),
            false => Axis::with_zero(low, high, N_TICKS),
        };
        let mut unit = heading.unit;
        if is_near {
            let first_label = y.ticks.first().map_or("", |(_, label)| label.as_str());
            let comma = if unit.is_empty() { "" } else { ", " };
            unit.push_str(&format!("{comma}axis from {first_label}"));
        }
        let mut lines: Vec<Line> = curves
            .iter()
            .filter_map(|curve| to_line(curve, &x, &y))
            .collect();
        spread_line_ends(&mut lines);
        Some(Self {
            id: heading.id,
            title: heading.title,
            unit,
            x_ticks: ticks(&x, |position| position),
            y_ticks: ticks(&y, |position| 1.0 - position),
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
                            .map(|&(step, value)| step_value(step, value))
                            .collect(),
                    })
                    .collect(),
            },
            lines,
        })
    }

    /// Whether every value is 0.
    pub(super) fn is_zero(&self) -> bool {
        let points = self.data.lines.iter().flat_map(|line| &line.points);
        points
            .filter_map(|(_, value)| *value)
            .all(|value| value == 0.0)
    }

    /// Whether any line is smoothed.
    pub(super) fn has_smoothed(&self) -> bool {
        self.lines.iter().any(|line| !line.smooth.is_empty())
    }
}

/// Rounds a value to the digits that the page shows, which keeps the page small.
fn step_value(step: f64, value: Option<f64>) -> (u64, Option<f64>) {
    let rounded = |value: f64| format!("{value:.4e}").parse().ok();
    (step as u64, value.and_then(rounded))
}

fn values(points: &[(f64, Option<f64>)]) -> impl Iterator<Item = (f64, f64)> {
    points
        .iter()
        .filter_map(|(step, value)| Some((*step, (*value)?)))
}

fn percent(fraction: f64) -> String {
    format!("{:.2}", 100.0 * fraction)
}

fn ticks(axis: &Axis, position_of: fn(f64) -> f64) -> Vec<Tick> {
    let tick = |(value, label): &(f64, String)| Tick {
        at: percent(position_of(axis.share(*value))),
        label: label.clone(),
    };
    axis.ticks.iter().map(tick).collect()
}

fn best(curve: &Curve, x: &Axis) -> Option<BestMark> {
    let step = curve.best_step.filter(|step| *step as f64 <= x.high)?;
    Some(BestMark {
        run: curve.run,
        at: percent(x.share(step as f64)),
    })
}

/// Returns a path through the points, interrupted at missing values, and the path of its dots. A
/// short curve has a dot per point, a longer curve only at isolated points.
fn path_and_dots(points: &[(f64, Option<f64>)], x: &Axis, y: &Axis) -> (String, String) {
    let point_at = |step: f64, value: f64| {
        let (across, down) = (x.share(step), 1.0 - y.share(value));
        format!("{:.1} {:.1}", WIDTH * across, HEIGHT * down)
    };
    let shows_all = points.len() <= MAX_DOTS;
    let (mut path, mut dots) = (String::new(), String::new());
    let has_value = |point_at: Option<usize>| {
        let point = point_at.and_then(|point_at| points.get(point_at));
        point.is_some_and(|(_, value)| value.is_some())
    };
    for (idx, (step, value)) in points.iter().enumerate() {
        let Some(value) = value else { continue };
        let position = point_at(*step, *value);
        let continues = has_value(idx.checked_sub(1));
        path.push_str(if continues { "L" } else { "M" });
        path.push_str(&position);
        if shows_all || !continues && !has_value(Some(idx + 1)) {
            // Writing to a String cannot fail.
            let _ = write!(dots, "M{position}h0");
        }
    }
    (path, dots)
}

fn to_line(curve: &Curve, x: &Axis, y: &Axis) -> Option<Line> {
    let points = &curve.points;
    let (path, dots) = path_and_dots(points, x, y);
    let all_points: Vec<(f64, f64)> = values(points).collect();
    let ((_, first_value), (last_step, last)) = (*all_points.first()?, *all_points.last()?);
    let extreme = |of: fn(f64, f64) -> f64| {
        let extreme_point = all_points
            .iter()
            .copied()
            .reduce(|a, b| if of(a.1, b.1) == a.1 { a } else { b });
        extreme_point.map_or_else(String::new, |(step, value)| {
            format!(
                "{} at step {}",
                number::format_number(value),
                number::format_number(step)
            )
        })
    };
    Some(Line {
        run: curve.run,
        path,
        smooth: path_and_dots(&curve.smoothed, x, y).0,
        dots,
        end_x: percent(x.share(last_step)),
        end_y: percent(1.0 - y.share(last)),
        first: number::format_number(first_value),
        last: number::format_number(last),
        last_step: number::format_number(last_step),
        least: extreme(f64::min),
        most: extreme(f64::max),
    })
}

/// Moves overlapping letters at the line ends apart: first from top to bottom, then from bottom to
/// top.
fn spread_line_ends(lines: &mut [Line]) {
    let number = |text: &str| text.parse::<f64>().unwrap_or_default();
    let mut line_ends: Vec<(usize, f64, f64)> = lines
        .iter()
        .enumerate()
        .map(|(idx, line)| (idx, number(&line.end_x), number(&line.end_y)))
        .collect();
    line_ends.sort_by(|left, other| left.2.total_cmp(&other.2).then(left.0.cmp(&other.0)));
    let mut columns: Vec<Vec<(usize, f64, f64)>> = Vec::new();
    for end in line_ends {
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
        let mut min_y = f64::NEG_INFINITY;
        let mut ys: Vec<f64> = Vec::with_capacity(column.len());
        for (_, _, y) in &column {
            let idx = y.max(min_y);
            ys.push(idx);
            min_y = idx + distance;
        }
        let mut max_y = 100.0_f64;
        for idx in ys.iter_mut().rev() {
            *idx = idx.min(max_y);
            max_y = *idx - distance;
        }
        for ((line, ..), idx) in column.iter().zip(ys) {
            if let Some(line) = lines.get_mut(*line) {
                line.end_y = format!("{idx:.2}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
