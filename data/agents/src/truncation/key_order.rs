//! Restores the key order of objects from the objects that they were derived from.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Key orders, looked up by the sorted keys.
#[derive(Debug, Default)]
pub(super) struct KeyOrders {
    /// The order of the first object with these keys, by sorted keys.
    orders: HashMap<Vec<String>, Vec<String>>,
}

impl KeyOrders {
    /// Stores an order, unless one for the same keys exists.
    pub(super) fn add<'k>(&mut self, keys: impl Iterator<Item = &'k str>) {
        let order: Vec<String> = keys.map(str::to_owned).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        self.orders.entry(sorted).or_insert(order);
    }

    /// Stores the orders of all objects in a value.
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

    /// Restores the stored key order of all objects in a value.
    pub(super) fn restore_order(&self, value: Value) -> Value {
        match value {
            Value::Array(items) => items
                .into_iter()
                .map(|item| self.restore_order(item))
                .collect(),
            Value::Object(fields) => Value::Object(self.restore_fields(fields)),
            scalar => scalar,
        }
    }

    fn restore_fields(&self, mut fields: Map<String, Value>) -> Map<String, Value> {
        let mut sorted: Vec<String> = fields.keys().cloned().collect();
        sorted.sort_unstable();
        let order = self.orders.get(&sorted).unwrap_or(&sorted);
        let in_order = order.iter().filter_map(|key| {
            let field = fields.swap_remove(key)?;
            Some((key.clone(), self.restore_order(field)))
        });
        in_order.collect()
    }
}
