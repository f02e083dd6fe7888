//! Compares the arguments of calls.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::{Map, Value};

use super::{LeafErrorKind, LeafErrors, compare};
use crate::finish::is_cut;
use crate::leaves::leaves;

/// A call of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedCall {
    /// Name of the tool.
    pub name: String,
    /// The arguments, an object; `None` if they could not be parsed.
    pub arguments: Option<Value>,
}

impl ComparedCall {
    /// A call with parsed arguments.
    pub fn new(name: impl Into<String>, arguments: Map<String, Value>) -> Self {
        Self {
            name: name.into(),
            arguments: Some(Value::Object(arguments)),
        }
    }
}

impl LeafErrors {
    /// Compares predicted calls with the reference calls. `pairs` are indices of a reference call
    /// and of the predicted call to the same tool that is compared with it.
    ///
    /// A call without arguments has one leaf. The leaves of a reference call without a partner are
    /// `truncated` if a completion was cut off, otherwise `malformed` if one could not be parsed,
    /// otherwise `missing`. The leaves of a predicted call without a partner are `invented`.
    pub fn compare_calls(
        reference: &[ComparedCall],
        predicted: &[ComparedCall],
        pairs: &[(usize, usize)],
        is_malformed: bool,
        finish_reasons: &[&str],
    ) -> Self {
        let unpaired = match () {
            () if finish_reasons.iter().any(|reason| is_cut(reason)) => LeafErrorKind::Truncated,
            () if is_malformed => LeafErrorKind::Malformed,
            () => LeafErrorKind::Missing,
        };
        let partners: BTreeMap<usize, usize> = pairs.iter().copied().collect();
        let mut leaves = Vec::new();
        let mut add = |tool: &str, compared: Vec<super::ComparedLeaf>| {
            leaves.extend(compared.into_iter().map(|leaf| super::ComparedLeaf {
                tool: Some(tool.to_owned()),
                ..leaf
            }));
        };
        let empty = Value::Object(Map::new());
        for (idx, call) in reference.iter().enumerate() {
            let (name, wanted) = (&call.name, call.arguments.as_ref().unwrap_or(&empty));
            let partner = partners.get(&idx).and_then(|made| predicted.get(*made));
            let compared = match partner.map(|made| made.arguments.as_ref()) {
                Some(Some(arguments)) => compare::compare(name, arguments, wanted),
                Some(None) => compare::all_wrong(name, wanted, LeafErrorKind::Malformed),
                None => compare::all_wrong(name, wanted, unpaired),
            };
            add(name, compared);
        }
        let mut is_paired = vec![false; predicted.len()];
        for (_, made) in pairs {
            if let Some(is_paired) = is_paired.get_mut(*made) {
                *is_paired = true;
            }
        }
        for (call, is_paired) in predicted.iter().zip(is_paired) {
            if let (Some(arguments), false) = (&call.arguments, is_paired) {
                let invented = LeafErrorKind::Invented;
                add(
                    &call.name,
                    compare::all_wrong(&call.name, arguments, invented),
                );
            }
        }
        Self { leaves }
    }

    /// Compares calls that are paired by their names: equal calls first, then in order.
    pub fn compare_sequences(
        reference: &[ComparedCall],
        predicted: &[ComparedCall],
        is_malformed: bool,
        finish_reasons: &[&str],
    ) -> Self {
        let pairs = pairs_by_name(reference, predicted);
        Self::compare_calls(reference, predicted, &pairs, is_malformed, finish_reasons)
    }
}

/// A call's name, and its leaves or nothing.
type PairingKey = (String, Option<Vec<(String, String)>>);

fn pairs_by_name(reference: &[ComparedCall], predicted: &[ComparedCall]) -> Vec<(usize, usize)> {
    let mut is_free = vec![true; predicted.len()];
    let mut partners = vec![None; reference.len()];
    let exact = |call: &ComparedCall| (call.name.clone(), call.arguments.as_ref().map(sorted));
    let name = |call: &ComparedCall| (call.name.clone(), None);
    let keys: [&dyn Fn(&ComparedCall) -> PairingKey; 2] = [&exact, &name];
    for key in keys {
        let mut free: HashMap<_, VecDeque<usize>> = HashMap::new();
        for (made, call) in predicted
            .iter()
            .enumerate()
            .filter(|(made, _)| is_free[*made])
        {
            free.entry(key(call)).or_default().push_back(made);
        }
        for (partner, call) in partners.iter_mut().zip(reference) {
            if partner.is_none() {
                *partner = free.get_mut(&key(call)).and_then(VecDeque::pop_front);
            }
        }
        for made in partners.iter().flatten() {
            is_free[*made] = false;
        }
    }
    let pairs = partners.into_iter().enumerate();
    pairs
        .filter_map(|(gold, made)| Some((gold, made?)))
        .collect()
}

/// The leaves of a value, independent of the order of its keys.
fn sorted(value: &Value) -> Vec<(String, String)> {
    let mut leaves = leaves(value);
    leaves.sort_unstable();
    leaves
}
