//! RestBench's measures of a path of calls, and the two means that reports are made of.
//!
//! A path is right if the gold calls occur in it in their order, whatever stands between them;
//! how much stands there is the business of the difference of lengths.

use super::GoatError;
use super::endpoints::collapse_blanks;

/// Whether one of the gold paths is a subsequence of the predicted one; gaps are allowed, repeats
/// count, names are compared exactly but for blanks.
///
/// # Errors
///
/// - there is no gold path, or one of them is empty
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
        let mut rest = pred.iter();
        gold.iter().all(|name| {
            let name = collapse_blanks(name.as_ref());
            rest.any(|given| *given == name)
        })
    };
    Ok(golds.iter().any(is_within))
}

/// One case behind [`delta_len`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthCase {
    /// Whether the query was solved; others do not count.
    pub success: bool,
    /// Calls attempted, failed ones too.
    pub pred_len: u64,
    /// Calls of the gold path.
    pub gold_len: u64,
}

/// Mean number of calls beyond the gold's, over the solved cases; none if none is solved.
///
/// It is negative where a model needs fewer calls than the gold.
pub fn delta_len(cases: &[LengthCase]) -> Option<f64> {
    let solved = cases.iter().filter(|case| case.success);
    mean(
        &solved
            .map(|case| case.pred_len as f64 - case.gold_len as f64)
            .collect::<Vec<f64>>(),
    )
}

/// The share of flags that are set, in per cent; none without a flag.
pub fn percent(flags: &[bool]) -> Option<f64> {
    let n_set = flags.iter().filter(|flag| **flag).count();
    (!flags.is_empty()).then(|| 100.0 * n_set as f64 / flags.len() as f64)
}

/// The mean of fractions, in per cent; none without a value.
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
    fn any_of_several_gold_paths_will_do_and_an_empty_one_is_an_error() {
        assert_eq!(is_correct("berth", &["tide ship", "berth"]), Ok(true));
        assert_eq!(is_correct("pilot", &["tide ship", "berth"]), Ok(false));
        assert_eq!(is_correct("berth", &[]), Err(GoatError::EmptyGold));
        assert_eq!(
            is_correct("berth", &["berth", ""]),
            Err(GoatError::EmptyGold)
        );
    }

    #[test]
    fn lengths_count_only_where_the_query_was_solved() {
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
    fn means_of_nothing_are_absent() {
        assert_eq!(percent(&[true, true, false, true]), Some(75.0));
        assert_eq!(percent(&[]), None);
        assert_eq!(mean_pct(&[0.25, 0.75]), Some(50.0));
        assert_eq!(mean_pct(&[]), None);
    }
}
