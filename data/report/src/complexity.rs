//! Data sets beside each other as one page: a table and a drawing of each measure's means.
//!
//! It is SLOT's Figure 2: how complex the JSON of the data sets is, in seven measures. Bars begin at
//! zero and have one scale a measure, because the measures have nothing in common.

use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

use super::error::ReportError;
use super::number::{count, value};
use super::page::{STYLE, environment};
use super::shortened::cell;

/// The name ends in `.html`, which is what turns escaping on.
const TEMPLATE: (&str, &str) = ("complexity.html", include_str!("page/complexity.html"));

/// Units of the drawing: a bar's row, and what a bar of the largest value is wide.
const ROW_HEIGHT: usize = 26;
const WIDEST: f64 = 200.0;

/// A data set with the means of its measures.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredSet {
    /// What it is called.
    pub name: String,
    /// Its rows.
    pub n_rows: usize,
    /// The mean of each measure by its name; the same measures for all sets.
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
    /// Where its row begins, from the top.
    y: usize,
    width: String,
    /// Whether it is of the first set, which the page is about.
    is_first: bool,
}

/// Writes the page; the first set is the one that it is about.
///
/// # Errors
///
/// The page's template does not fit what it shows.
pub fn render_complexity(sets: &[MeasuredSet]) -> Result<String, ReportError> {
    let measures = sets.first().map_or(&[][..], |set| &set.means);
    let page = Page {
        sets: sets.iter().map(shown).collect(),
        panels: (0..measures.len())
            .map(|place| panel(sets, place))
            .collect(),
        height: ROW_HEIGHT * sets.len(),
    };
    let mut environment = environment()?;
    environment.add_template(TEMPLATE.0, TEMPLATE.1)?;
    Ok(environment.get_template(TEMPLATE.0)?.render(context! {
        page => Value::from(Serde(page)),
        style => STYLE,
    })?)
}

fn shown(set: &MeasuredSet) -> Set {
    Set {
        name: cell(&set.name),
        n_rows: count(set.n_rows as u64),
        means: set.means.iter().map(|(_, mean)| value(*mean)).collect(),
    }
}

fn panel(sets: &[MeasuredSet], place: usize) -> Panel {
    let of = |set: &MeasuredSet| set.means.get(place).map_or(0.0, |(_, mean)| *mean);
    let largest = sets.iter().map(of).fold(0.0, f64::max);
    let share = |mean: f64| if largest > 0.0 { mean / largest } else { 0.0 };
    let measure = sets.first().and_then(|set| set.means.get(place));
    let bars = sets.iter().enumerate().map(|(idx, set)| Bar {
        name: cell(&set.name),
        mean: value(of(set)),
        y: ROW_HEIGHT * idx,
        width: format!("{:.1}", WIDEST * share(of(set))),
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

    fn set(name: &str, means: [f64; 2]) -> MeasuredSet {
        let names = ["depth", "schema_complexity"];
        MeasuredSet {
            name: name.to_owned(),
            n_rows: 1_234,
            means: names.map(str::to_owned).into_iter().zip(means).collect(),
        }
    }

    #[test]
    fn bars_have_one_scale_a_measure_and_names_stay_text() {
        let page = render_complexity(&[set("ours", [2.0, 10.0]), set("<b>x</b>", [4.0, 0.0])]);
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
        for outside in ["http://", "https://", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
