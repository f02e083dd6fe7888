//! Selects a token from a row of logits.

use tooltune_rows::batches::SeededRandom;

use crate::config::Sampling;

/// The most likely token. If several are equally likely, the first; 0 for an empty row.
pub(super) fn most_likely(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.0 {
            best = (logit, id as u32);
        }
    }
    best.1
}

/// Samples a token after applying temperature, top-k and top-p in this order.
///
/// # Source
///
/// transformers 5.23, `TemperatureLogitsWarper`, `TopKLogitsWarper`, `TopPLogitsWarper`.
pub(super) fn sample_token(logits: &[f32], sampling: Sampling, random: &mut SeededRandom) -> u32 {
    let mut likely: Vec<(f64, u32)> = logits
        .iter()
        .zip(0..)
        .filter(|(logit, _)| **logit > f32::NEG_INFINITY)
        .map(|(&logit, id)| (f64::from(logit) / sampling.temperature, id))
        .collect();
    likely.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    likely.truncate(sampling.top_k.unwrap_or(usize::MAX));
    let Some(&(largest, first)) = likely.first() else {
        return 0;
    };
    let mut total = 0.0;
    for (logit, _) in &mut likely {
        *logit = (*logit - largest).exp();
        total += *logit;
    }
    let target = sampling.top_p * total;
    let mut kept_mass = 0.0;
    let n_kept = likely
        .iter()
        .take_while(|(weight, _)| {
            let is_needed = kept_mass < target;
            kept_mass += weight;
            is_needed
        })
        .count();
    likely.truncate(n_kept.max(1));
    let kept_mass: f64 = likely.iter().map(|(weight, _)| weight).sum();
    let mut remaining = random.uniform_f64() * kept_mass;
    for &(weight, id) in &likely {
        remaining -= weight;
        if remaining < 0.0 {
            return id;
        }
    }
    // Rounding can leave a small remainder; it belongs to the last token.
    likely.last().map_or(first, |&(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f64, top_k: Option<usize>, top_p: f64) -> Sampling {
        Sampling {
            temperature,
            top_k,
            top_p,
        }
    }

    fn counts(logits: &[f32], sampling: Sampling) -> Vec<usize> {
        let mut random = SeededRandom::new(1, 0);
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            counts[sample_token(logits, sampling, &mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn the_first_of_equally_likely_tokens_is_selected() {
        assert_eq!(most_likely(&[0.0, 2.0, 1.0, 2.0]), 1);
        assert_eq!(most_likely(&[f32::NEG_INFINITY, -3.0]), 1);
    }

    #[test]
    fn tokens_are_sampled_with_their_softmax_probabilities() {
        let logits = [1.0f32, 0.0, 2.0, f32::NEG_INFINITY];
        for temperature in [0.5, 1.0, 2.0] {
            let weights = logits.map(|logit| (f64::from(logit) / temperature).exp());
            let total: f64 = weights.iter().sum();
            let drawn_counts = counts(&logits, sampling(temperature, None, 1.0));
            for (weight, n) in weights.iter().zip(drawn_counts) {
                let (expected, drawn_counts) = (weight / total, n as f64 / 20_000.0);
                assert!(
                    (expected - drawn_counts).abs() < 0.015,
                    "{expected} {drawn_counts}"
                );
            }
        }
    }

    #[test]
    fn top_k_and_top_p_keep_the_most_likely_tokens() {
        // Probabilities .5, .3 and .2.
        let logits = [0.3f32.ln(), 0.2f32.ln(), 0.5f32.ln()];
        let allowed = |sampling| -> Vec<bool> {
            let counts = counts(&logits, sampling);
            counts.iter().map(|&n| n > 0).collect()
        };
        assert_eq!(allowed(sampling(1.0, Some(1), 1.0)), [false, false, true]);
        assert_eq!(allowed(sampling(1.0, Some(2), 1.0)), [true, false, true]);
        assert_eq!(allowed(sampling(1.0, None, 0.4)), [false, false, true]);
        assert_eq!(allowed(sampling(1.0, None, 0.6)), [true, false, true]);
        assert_eq!(allowed(sampling(1.0, None, 0.9)), [true, true, true]);
        // Top-p applies to the probabilities after top-k: .5 of .8 is above .6.
        assert_eq!(allowed(sampling(1.0, Some(2), 0.6)), [false, false, true]);
    }
}
