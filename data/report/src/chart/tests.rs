//! Tests of the positions of lines, letters and axes.

use super::*;

fn curve(run: usize, points: &[(f64, Option<f64>)]) -> Curve {
    Curve {
        run,
        points: points.to_vec(),
        smoothed: Vec::new(),
        best_step: Some(50),
    }
}

fn heading() -> Heading {
    Heading {
        id: 1,
        title: "Loss".to_owned(),
        unit: "nats".to_owned(),
        last_step: 100.0,
        may_start_above_zero: false,
    }
}

#[test]
fn lines_break_at_gaps_and_match_the_axes() {
    let points = [
        (0.0, Some(2.0)),
        (25.0, Some(1.0)),
        (50.0, None),
        (100.0, Some(0.0)),
    ];
    let chart = Chart::new(heading(), &[curve(0, &points)]).expect("a value");
    assert_eq!(chart.lines[0].path, "M0.0 0.0L250.0 200.0M1000.0 400.0");
    assert_eq!(
        chart.lines[0].dots,
        "M0.0 0.0h0M250.0 200.0h0M1000.0 400.0h0"
    );
    assert_eq!(chart.lines[0].least, "0 at step 100");
    assert_eq!(chart.bests[0].at, "50.00");
    assert_eq!(
        chart.y_ticks.first().map(|tick| tick.at.as_str()),
        Some("100.00")
    );
}

#[test]
fn a_lone_value_of_a_long_curve_is_a_dot() {
    let mut points: Vec<(f64, Option<f64>)> = (0..100).map(|n| (f64::from(n), Some(1.0))).collect();
    points[1].1 = None;
    let chart = Chart::new(heading(), &[curve(0, &points)]).expect("a value");
    assert_eq!(chart.lines[0].dots, "M0.0 0.0h0");
}

#[test]
fn letters_of_lines_that_end_together_are_moved_apart() {
    let first_curve = curve(0, &[(0.0, Some(0.0)), (100.0, Some(1.0))]);
    let other = curve(1, &[(0.0, Some(0.0)), (100.0, Some(0.99))]);
    let chart = Chart::new(heading(), &[first_curve, other]).expect("values");
    assert_eq!(chart.lines[0].end_y, "0.00");
    assert_eq!(chart.lines[1].end_y, "9.00");
}

#[test]
fn letters_of_many_lines_do_not_overlap() {
    let curves: Vec<Curve> = (0..26)
        .map(|run| curve(run, &[(0.0, Some(0.0)), (100.0, Some(1.0))]))
        .collect();
    let chart = Chart::new(heading(), &curves).expect("values");
    let mut line_ends: Vec<f64> = chart
        .lines
        .iter()
        .map(|line| line.end_y.parse().expect("a number"))
        .collect();
    assert!(line_ends.iter().all(|end| (-0.01..=100.01).contains(end)));
    line_ends.sort_by(f64::total_cmp);
    assert!(line_ends.windows(2).all(|pair| pair[1] - pair[0] > 3.0));
}

#[test]
fn an_axis_starts_at_zero_unless_its_unit_states_the_start() {
    let flat = curve(0, &[(0.0, Some(0.0)), (100.0, Some(0.0))]);
    let chart = Chart::new(heading(), &[flat]).expect("values");
    assert_eq!((chart.data.y, chart.unit.as_str()), ([0.0, 1.0], "nats"));
    let narrow = [(0.0, Some(2.4)), (100.0, Some(2.2))];
    let chart = Chart::new(heading(), &[curve(0, &narrow)]).expect("values");
    assert_eq!(chart.data.y[0], 0.0);
    let loss_heading = Heading {
        may_start_above_zero: true,
        ..heading()
    };
    let chart = Chart::new(loss_heading, &[curve(0, &narrow)]).expect("values");
    assert_eq!(chart.unit, "nats, axis from 2.20");
    assert!(chart.data.y[0] > 2.0);
}

#[test]
fn without_a_value_there_is_no_chart() {
    assert!(Chart::new(heading(), &[curve(0, &[(1.0, None)])]).is_none());
}
