//! RestBench's metrics of a call path, and the two means used in reports.
//!
//! A path is right if it contains the gold calls in order, with any calls in between; the length
//! difference measures the additional calls.

use super::GoatError;
use super::endpoints::collapse_blanks;

/// Whether a gold path is a subsequence of the predicted path. Gaps are allowed, and a repeated
/// name must occur repeatedly. Names are compared exactly except for whitespace.
///
/// # Errors
///
/// There is no gold path, or a gold path is empty.
///
/// # Source
///
/// Song et al. 2023 (RestGPT), section 4: Correct Path Rate.
pub fn correct_path<P, G>(pred: &[P], golds: &[Vec<G>]) -> Result<bool, GoatError>
where
    P: AsRef<str>,
    G: AsRef<str>,
{
    if golds.is_empty() || golds.iter().any(Vec::is_empty) {
        return Err(GoatError::EmptyGold);
    }
    let pred: Vec<String> = pred
        .iter()
        .map(|name| collapse_blanks(name.as_ref()))
        .collect();
    let is_within = |gold: &Vec<G>| {
        let mut remaining = pred.iter();
        gold.iter().all(|name| {
            let name = collapse_blanks(name.as_ref());
            remaining.any(|pred_name| *pred_name == name)
        })
    };
    Ok(golds.iter().any(is_within))
}

/// A case for [`delta_len`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthCase {
    /// Whether the query was solved; unsolved cases are excluded.
    pub success: bool,
    /// Number of attempted calls, including failed ones.
    pub pred_len: u64,
    /// Number of calls in the gold path.
    pub gold_len: u64,
}

/// Mean number of calls in addition to the gold calls, over the solved cases; `None` if none is
/// solved.
///
/// Negative if a model needs fewer calls than the gold path.
pub fn delta_len(cases: &[LengthCase]) -> Option<f64> {
    let solved = cases.iter().filter(|case| case.success);
    mean(
        &solved
            .map(|case| case.pred_len as f64 - case.gold_len as f64)
            .collect::<Vec<f64>>(),
    )
}

/// Percentage of true flags; `None` without flags.
pub fn percent(flags: &[bool]) -> Option<f64> {
    let n_set = flags.iter().filter(|flag| **flag).count();
    (!flags.is_empty()).then(|| 100.0 * n_set as f64 / flags.len() as f64)
}

/// Mean of fractions in per cent; `None` without values.
pub fn mean_pct(values: &[f64]) -> Option<f64> {
    mean(values).map(|mean| 100.0 * mean)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &str) -> Vec<String> {
        names
            .split(' ')
            .filter(|n| !n.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn is_correct(pred: &str, golds: &[&str]) -> Result<bool, GoatError> {
        let golds: Vec<Vec<String>> = golds.iter().map(|gold| path(gold)).collect();
        correct_path(&path(pred), &golds)
    }

    #[test]
    fn the_gold_calls_must_occur_in_order_with_gaps_allowed() {
        assert_eq!(is_correct("tide berth ship", &["tide ship"]), Ok(true));
        assert_eq!(is_correct("ship tide", &["tide ship"]), Ok(false));
        assert_eq!(is_correct("tide", &["tide tide"]), Ok(false));
        assert_eq!(is_correct("tide x tide", &["tide tide"]), Ok(true));
        assert_eq!(is_correct("", &["tide"]), Ok(false));
    }

    #[test]
    fn any_gold_path_may_match_and_an_empty_one_is_an_error() {
        assert_eq!(is_correct("berth", &["tide ship", "berth"]), Ok(true));
        assert_eq!(is_correct("pilot", &["tide ship", "berth"]), Ok(false));
        assert_eq!(is_correct("berth", &[]), Err(GoatError::EmptyGold));
        assert_eq!(
            is_correct("berth", &["berth", ""]),
            Err(GoatError::EmptyGold)
        );
    }

    #[test]
    fn lengths_count_only_solved_queries() {
        let case = |success, pred_len, gold_len| LengthCase {
            success,
            pred_len,
            gold_len,
        };
        let cases = [case(true, 5, 2), case(false, 90, 1), case(true, 1, 2)];
        assert_eq!(delta_len(&cases), Some(1.0));
        assert_eq!(delta_len(&cases[1..2]), None);
        assert_eq!(delta_len(&[]), None);
    }

    #[test]
    fn means_without_values_are_absent() {
        assert_eq!(percent(&[true, true, false, true]), Some(75.0));
        assert_eq!(percent(&[]), None);
        assert_eq!(mean_pct(&[0.25, 0.75]), Some(50.0));
        assert_eq!(mean_pct(&[]), None);
    }
}
