//! Computes macro precision, recall and F1 of gold and predicted labels.
//!
//! The classes are the gold labels. A predicted label that is never a gold label has no cost. Every
//! class has the same weight, even if it is rare, so the result is unstable for sets with many rare
//! classes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Unweighted means over classes, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MacroF1 {
    /// Mean precision.
    pub precision: f64,
    /// Mean recall.
    pub recall: f64,
    /// Mean F1, which differs from the F1 of the means.
    pub f1: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    right: usize,
    predicted: usize,
    gold: usize,
}

/// Accumulates rows.
#[derive(Debug, Default)]
pub struct MacroF1Counter {
    classes: BTreeMap<String, Counts>,
}

impl MacroF1Counter {
    /// Adds a row; repeated labels in a row count once.
    pub fn add(&mut self, gold: &[String], pred: &[String]) {
        let [gold, pred] = [gold, pred].map(|labels| labels.iter().collect::<BTreeSet<_>>());
        for label in &gold {
            let counts = self.classes.entry((*label).clone()).or_default();
            counts.gold += 1;
            counts.right += usize::from(pred.contains(label));
        }
        for label in pred {
            self.classes.entry(label.clone()).or_default().predicted += 1;
        }
    }

    /// The means over the gold classes, with 0/0 = 0; zero if there are no classes.
    ///
    /// # Source
    ///
    /// scikit-learn's `MultiLabelBinarizer` fitted on the gold labels and
    /// `f1_score(average="macro")`, compared with version 1.9.1. Here a single class is treated
    /// like several classes, whereas scikit-learn treats it as a binary problem.
    pub fn macro_f1(&self) -> MacroF1 {
        let golds = || self.classes.values().filter(|counts| counts.gold > 0);
        let n_classes = golds().count().max(1) as f64;
        let mean = |numerator: fn(&Counts) -> usize, denominator: fn(&Counts) -> usize| {
            let ratio = |counts: &Counts| match denominator(counts) {
                0 => 0.0,
                n => numerator(counts) as f64 / n as f64,
            };
            golds().map(ratio).sum::<f64>() / n_classes
        };
        MacroF1 {
            precision: mean(|counts| counts.right, |counts| counts.predicted),
            recall: mean(|counts| counts.right, |counts| counts.gold),
            f1: mean(
                |counts| 2 * counts.right,
                |counts| counts.predicted + counts.gold,
            ),
        }
    }
}
