//! Renders the complexity of several data sets as one page: a table and a bar chart per measure.
//!
//! This is SLOT's Figure 2: seven measures of how complex the JSON of a data set is. Bars start at
//! zero. Each measure has its own scale, because the measures have different units.

use serde::Serialize;

use super::error::ReportError;
use super::number::{format_number, group_digits};
use super::page::render_without_script;
use super::truncation::shorten_cell;

/// Template name and source. Escaping is on because the name ends in `.html`.
const TEMPLATE: (&str, &str) = ("complexity.html", include_str!("page/complexity.html"));

/// Height of a bar's row, in units of the drawing.
const ROW_HEIGHT: usize = 26;
const MAX_BAR_WIDTH: f64 = 200.0;

/// A data set with the means of its measures.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredSet {
    /// Name shown for the data set.
    pub name: String,
    /// Number of rows.
    pub n_rows: usize,
    /// Mean of each measure, by name. All sets have the same measures.
    pub means: Vec<(String, f64)>,
}

#[derive(Serialize)]
struct Page {
    sets: Vec<Set>,
    panels: Vec<Panel>,
    height: usize,
}

#[derive(Serialize)]
struct Set {
    name: String,
    n_rows: String,
    means: Vec<String>,
}

/// The bars of one measure.
#[derive(Serialize)]
struct Panel {
    measure: String,
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct Bar {
    name: String,
    mean: String,
    /// Top edge of the bar's row.
    y: usize,
    width: String,
    /// Whether the bar belongs to the first set, which is highlighted.
    is_first: bool,
}

/// Renders the page; the bars of the first set are highlighted.
///
/// # Errors
///
/// The template does not match its data.
pub fn render_complexity(sets: &[MeasuredSet]) -> Result<String, ReportError> {
    let measures = sets.first().map_or(&[][..], |set| &set.means);
    let page = Page {
        sets: sets.iter().map(to_row).collect(),
        panels: (0..measures.len())
            .map(|measure_idx| panel(sets, measure_idx))
            .collect(),
        height: ROW_HEIGHT * sets.len(),
    };
    render_without_script(TEMPLATE, page)
}

fn to_row(set: &MeasuredSet) -> Set {
    Set {
        name: shorten_cell(&set.name),
        n_rows: group_digits(set.n_rows as u64),
        means: set
            .means
            .iter()
            .map(|(_, mean)| format_number(*mean))
            .collect(),
    }
}

fn panel(sets: &[MeasuredSet], measure_idx: usize) -> Panel {
    let mean_of = |set: &MeasuredSet| set.means.get(measure_idx).map_or(0.0, |(_, mean)| *mean);
    let largest = sets.iter().map(mean_of).fold(0.0, f64::max);
    let fraction = |mean: f64| if largest > 0.0 { mean / largest } else { 0.0 };
    let measure = sets.first().and_then(|set| set.means.get(measure_idx));
    let bars = sets.iter().enumerate().map(|(idx, set)| Bar {
        name: shorten_cell(&set.name),
        mean: format_number(mean_of(set)),
        y: ROW_HEIGHT * idx,
        width: format!("{:.1}", MAX_BAR_WIDTH * fraction(mean_of(set))),
        is_first: idx == 0,
    });
    Panel {
        measure: measure.map_or_else(String::new, |(name, _)| name.replace('_', " ")),
        bars: bars.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured_set(name: &str, means: [f64; 2]) -> MeasuredSet {
        let names = ["depth", "schema_complexity"];
        MeasuredSet {
            name: name.to_owned(),
            n_rows: 1_234,
            means: names.map(str::to_owned).into_iter().zip(means).collect(),
        }
    }

    #[test]
    fn bars_have_one_scale_per_measure_and_names_are_escaped() {
        let page = render_complexity(&[
            measured_set("ours", [2.0, 10.0]),
            measured_set("<b>x</b>", [4.0, 0.0]),
        ]);
        let page = page.expect("a page");
        for part in [
            "&lt;b&gt;x&lt;",
            "1,234",
            "schema complexity",
            "width=\"100.0\"",
            "width=\"200.0\"",
            "width=\"0.0\"",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<b>x"));
        assert_eq!(page.matches("<svg").count(), 2);
        for external in ["http://", "https://", "src="] {
            assert!(!page.contains(external), "{external}");
        }
    }
}
