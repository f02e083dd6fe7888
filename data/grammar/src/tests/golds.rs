//! Random schemas, each with a valid value.

use serde_json::Map;

use super::*;

/// A schema and a valid value.
pub(super) struct SchemaWithGold {
    pub(super) schema: Value,
    pub(super) gold: Value,
}

/// Generates schemas over all keywords that constraints enforce.
pub(super) struct GoldGenerator {
    choices: Choices,
    definitions: Map<String, Value>,
}

/// Scalars with several spellings or with escapes.
fn odd_scalars() -> Vec<Value> {
    let numbers = [
        1.0,
        1e-7,
        -0.0,
        1e22,
        -2.5e-5,
        1e16,
        123_456_789.25,
        0.1,
        -3.0,
        1e15,
        5e-324,
        1.5e300,
    ];
    let texts = [
        "",
        "é 東京 😀",
        "a\"b\\c/d",
        "\n\t\r\u{8}\u{c}",
        "\u{1}\u{1f}",
        "\u{7f}",
        "\u{2028}\u{feff}",
        "</tool_call>",
        "true",
        "1e5",
    ];
    let floats = numbers.iter().map(|float| json!(float));
    let others = [
        json!(0),
        json!(-7),
        json!(4_000_000_000_u64),
        json!(null),
        json!(true),
    ];
    let texts = texts.iter().map(|text| json!(text));
    floats.chain(others).chain(texts).collect()
}

const KEYS: [&str; 9] = ["a", "b", "ab", "é\"k", "x_1", "x y", "", "zz/~", "\u{1}"];
/// Patterns, each with a matching string.
const PATTERNS: [(&str, &str); 6] = [
    ("^[A-Z]{2}-\\d+$", "AB-12"),
    ("b+", "abba"),
    ("^\\S+@\\S+$", "a@b"),
    ("^(é|東)+\\s?$", "é東"),
    ("^.*$", "any"),
    ("^[a-z]{1,12}$", "word"),
];

impl GoldGenerator {
    pub(super) fn new(choices: Choices) -> Self {
        Self {
            choices,
            definitions: Map::new(),
        }
    }

    pub(super) fn build(mut self) -> SchemaWithGold {
        let SchemaWithGold { mut schema, gold } = self.schema(3);
        if !self.definitions.is_empty() {
            if !schema.is_object() {
                schema = json!({"allOf": [schema]});
            }
            schema["$defs"] = Value::Object(self.definitions);
        }
        SchemaWithGold { schema, gold }
    }

    fn one<T: Clone>(&mut self, options: &[T]) -> T {
        options[self.choices.below(options.len())].clone()
    }

    fn chance(&mut self, n: usize) -> bool {
        self.choices.below(n) == 0
    }

    fn schema(&mut self, n_levels: usize) -> SchemaWithGold {
        let n_kinds = if n_levels == 0 { 6 } else { 13 };
        let mut generated = match self.choices.below(n_kinds) {
            0 => self.constant(),
            1 => self.enumeration(n_levels),
            2 => self.number(),
            3 => self.text(),
            4 => self.simple(),
            5 => self.number(),
            6 => self.array(n_levels),
            7 | 8 => self.object(n_levels),
            9 => self.any_of(n_levels),
            10 => self.reference(n_levels),
            11 => self.all_of(n_levels),
            _ => self.object(n_levels),
        };
        if self.chance(6)
            && let Some(fields) = generated.schema.as_object_mut()
        {
            fields.insert("title".to_owned(), json!("t"));
            fields.insert("default".to_owned(), generated.gold.clone());
            fields.insert("description".to_owned(), json!("some \"words\""));
        }
        generated
    }

    fn value(&mut self, n_levels: usize) -> Value {
        match self.choices.below(if n_levels == 0 { 3 } else { 5 }) {
            0..=2 => self.one(&odd_scalars()),
            3 => (0..self.choices.below(3))
                .map(|_| self.value(n_levels - 1))
                .collect(),
            _ => {
                let n = self.choices.below(3);
                let mut fields = Map::new();
                for _ in 0..n {
                    let key = self.one(&KEYS);
                    fields.insert(key.to_owned(), self.value(n_levels - 1));
                }
                Value::Object(fields)
            }
        }
    }

    /// The same value with object keys in a different order, and floats in place of integers.
    fn vary_spelling(&mut self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let mut keys: Vec<&String> = fields.keys().collect();
                if self.chance(2) {
                    keys.reverse();
                }
                let fields = keys
                    .into_iter()
                    .map(|key| (key.clone(), self.vary_spelling(&fields[key])));
                Value::Object(fields.collect())
            }
            Value::Array(items) => items.iter().map(|item| self.vary_spelling(item)).collect(),
            Value::Number(number) if self.chance(3) => json!(number.as_f64()),
            other => other.clone(),
        }
    }

    fn constant(&mut self) -> SchemaWithGold {
        let value = self.value(2);
        let gold = self.vary_spelling(&value);
        SchemaWithGold {
            schema: json!({"const": value}),
            gold,
        }
    }

    fn enumeration(&mut self, n_levels: usize) -> SchemaWithGold {
        let n = 1 + self.choices.below(4);
        let values: Vec<Value> = (0..n).map(|_| self.value(n_levels.min(2))).collect();
        let chosen = self.one(&values);
        let gold = self.vary_spelling(&chosen);
        SchemaWithGold {
            schema: json!({"enum": values}),
            gold,
        }
    }

    fn number(&mut self) -> SchemaWithGold {
        let is_integer = self.chance(2);
        let gold = if is_integer {
            self.one(&[
                json!(0),
                json!(7),
                json!(-12),
                json!(3.0),
                json!(1e22),
                json!(123_456),
            ])
        } else {
            let floats = [0.5, 1e-5, -2.25, 1e16, 0.1, 3.0, -0.0, 1e-7, 123.456];
            json!(self.one(&floats))
        };
        let mut schema = json!({"type": if is_integer { "integer" } else { "number" }});
        let value = gold.as_f64().expect("a number");
        if value.abs() < 1e15 {
            if self.chance(2) {
                let distance = self.one(&[0.0, 0.5, 1.0, 100.0, 1e-9]);
                schema["minimum"] = json!(value - distance);
            }
            if self.chance(3) {
                let distance = self.one(&[0.5, 1.0, 100.0, 0.05]);
                schema["exclusiveMaximum"] = json!(value + distance);
            }
            let steps = [1.0, 0.5, 0.25];
            let step = self.one(&steps);
            let text = tooltune_json::dumps(&gold, tooltune_json::Style::Python);
            if self.chance(4) && (value / step).fract() == 0.0 && !text.contains('e') {
                schema["multipleOf"] = json!(step);
            }
        }
        SchemaWithGold { schema, gold }
    }

    fn text(&mut self) -> SchemaWithGold {
        match self.choices.below(3) {
            0 => {
                let (pattern, text) = self.one(&PATTERNS);
                SchemaWithGold {
                    schema: json!({"type": "string", "pattern": pattern}),
                    gold: json!(text),
                }
            }
            1 => {
                let texts = ["2024-02-29", "a@b.org", "not a date at all", "192.168.0.1"];
                let formats = ["date", "email", "date-time", "ipv4", "made-up"];
                SchemaWithGold {
                    schema: json!({"type": "string", "format": self.one(&formats)}),
                    gold: json!(self.one(&texts)),
                }
            }
            _ => {
                let texts: Vec<Value> =
                    odd_scalars().into_iter().filter(Value::is_string).collect();
                let gold = self.one(&texts);
                let n = gold.as_str().expect("a text").chars().count();
                let mut schema = json!({"type": "string"});
                if self.chance(2) {
                    schema["minLength"] = json!(n - self.choices.below(n + 1));
                }
                if self.chance(2) {
                    schema["maxLength"] = json!(n + self.choices.below(4));
                }
                SchemaWithGold { schema, gold }
            }
        }
    }

    fn simple(&mut self) -> SchemaWithGold {
        let (schema, gold) = self.one(&[
            (json!({"type": "boolean"}), json!(true)),
            (json!({"type": "null"}), json!(null)),
            (json!({"type": ["string", "null"]}), json!(null)),
            (json!({"type": ["integer", "string"]}), json!(5)),
            (json!({}), json!({"b": [1.0, "\u{7f}"], "a": {}})),
            (json!(true), json!([1e-7])),
            (json!({"title": "free"}), json!("x")),
        ]);
        SchemaWithGold { schema, gold }
    }

    fn array(&mut self, n_levels: usize) -> SchemaWithGold {
        let item = self.schema(n_levels - 1);
        let n = self.choices.below(4);
        let mut schema = json!({"type": "array", "items": item.schema});
        let mut items = vec![item.gold; n];
        if self.chance(3) {
            let first = self.schema(n_levels - 1);
            schema["prefixItems"] = json!([first.schema]);
            items.insert(0, first.gold);
        }
        if self.chance(2) {
            schema["minItems"] = json!(items.len() - self.choices.below(items.len() + 1));
        }
        if self.chance(2) {
            schema["maxItems"] = json!(items.len() + self.choices.below(3));
        }
        SchemaWithGold {
            schema,
            gold: Value::Array(items),
        }
    }

    fn object(&mut self, n_levels: usize) -> SchemaWithGold {
        let (mut properties, mut gold) = (Map::new(), Map::new());
        let mut required = Vec::new();
        for _ in 0..self.choices.below(4) {
            let key = self.one(&KEYS);
            if properties.contains_key(key) {
                continue;
            }
            let property = self.schema(n_levels - 1);
            properties.insert(key.to_owned(), property.schema);
            let is_required = self.chance(2);
            if is_required {
                required.push(key);
            }
            if is_required || self.chance(2) {
                // Keys are added in a different order than in the schema.
                gold.insert(key.to_owned(), property.gold);
                gold = gold.into_iter().rev().collect();
            }
        }
        let mut schema = json!({"type": "object", "properties": properties, "required": required});
        match self.choices.below(4) {
            0 => schema["additionalProperties"] = json!(false),
            1 => {
                let rest = self.schema(n_levels - 1);
                schema["additionalProperties"] = rest.schema;
                for key in ["other", "a\u{2}"].iter().take(self.choices.below(3)) {
                    gold.insert((*key).to_owned(), rest.gold.clone());
                }
            }
            2 => {
                let rest = self.schema(n_levels - 1);
                schema["patternProperties"] = json!({"^p-": rest.schema});
                schema["additionalProperties"] = json!(false);
                for key in ["p-1", "p-é"].iter().take(self.choices.below(3)) {
                    gold.insert((*key).to_owned(), rest.gold.clone());
                }
            }
            _ => {
                for key in ["undeclared", "é"].iter().take(self.choices.below(3)) {
                    gold.insert((*key).to_owned(), self.value(1));
                }
            }
        }
        SchemaWithGold {
            schema,
            gold: Value::Object(gold),
        }
    }

    fn any_of(&mut self, n_levels: usize) -> SchemaWithGold {
        let chosen = self.schema(n_levels - 1);
        let other = self.schema(n_levels - 1);
        let mut options = vec![chosen.schema, other.schema];
        if self.chance(3) {
            options.push(json!({"type": "null"}));
        }
        if self.chance(2) {
            options.reverse();
        }
        SchemaWithGold {
            schema: json!({"anyOf": options}),
            gold: chosen.gold,
        }
    }

    fn reference(&mut self, n_levels: usize) -> SchemaWithGold {
        let generated = self.schema(n_levels - 1);
        let name = format!("d{}", self.definitions.len());
        self.definitions.insert(name.clone(), generated.schema);
        SchemaWithGold {
            schema: json!({"$ref": format!("#/$defs/{name}")}),
            gold: generated.gold,
        }
    }

    fn all_of(&mut self, n_levels: usize) -> SchemaWithGold {
        let generated = self.object(n_levels);
        let part = json!({"properties": {"from-all": {"type": "integer"}}});
        if generated.schema["additionalProperties"] == false {
            generated
        } else {
            SchemaWithGold {
                schema: json!({"allOf": [generated.schema, part]}),
                gold: generated.gold,
            }
        }
    }
}
