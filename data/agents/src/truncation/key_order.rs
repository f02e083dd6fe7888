//! Puts the keys of objects back into the order of those that they were made of.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Orders of keys, each found by the keys themselves.
#[derive(Debug, Default)]
pub(super) struct KeyOrders {
    /// The order of the first object with these keys, by the sorted keys.
    orders: HashMap<Vec<String>, Vec<String>>,
}

impl KeyOrders {
    /// Remembers an order, unless one of the same keys is known.
    pub(super) fn add<'k>(&mut self, keys: impl Iterator<Item = &'k str>) {
        let order: Vec<String> = keys.map(str::to_owned).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        self.orders.entry(sorted).or_insert(order);
    }

    /// Remembers the orders of all objects in a value.
    pub(super) fn add_all(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add_all(item)),
            Value::Object(fields) => {
                self.add(fields.keys().map(String::as_str));
                fields.values().for_each(|field| self.add_all(field));
            }
            _ => {}
        }
    }

    /// Puts the keys of all objects in a value into the order that is known for them.
    pub(super) fn restored(&self, value: Value) -> Value {
        match value {
            Value::Array(items) => items.into_iter().map(|item| self.restored(item)).collect(),
            Value::Object(fields) => Value::Object(self.restored_fields(fields)),
            scalar => scalar,
        }
    }

    fn restored_fields(&self, mut fields: Map<String, Value>) -> Map<String, Value> {
        let mut sorted: Vec<String> = fields.keys().cloned().collect();
        sorted.sort_unstable();
        let order = self.orders.get(&sorted).unwrap_or(&sorted);
        let in_order = order.iter().filter_map(|key| {
            let field = fields.swap_remove(key)?;
            Some((key.clone(), self.restored(field)))
        });
        in_order.collect()
    }
}
