//! Generates JSON documents for property tests, with few distinct keys so that keys repeat.

use proptest::prelude::*;
use serde_json::{Map, Value};

/// A document of up to four levels.
pub(crate) fn any_document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-9e9..9e9).prop_map(Value::from),
        "[a-z é']{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-d]", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}
