//! Families in, one row with the facts behind it out.
//!
//! The depth is drawn first; it decides the shape: flat fields alone, with a nested object, an
//! array of strings or an array of objects, and with or without one object around everything. A
//! property that is not required is nearly always stated all the same: a metric that demands
//! every declared key would otherwise punish the right answer.

use serde_json::{Map, Value, json};
use tooltune_rows::batches::SeededRandom;

use super::field::{Family, Field};
use super::render::{self, Fact, Told};
use super::values::{self, chance, pick, sample};
use super::vocabulary::VOCABULARY;
use super::{Style, SynthRow};

/// Percentage of rows whose depth is at most 1, 2 and 3; the others have depth 4.
const DEPTH_BELOW: [usize; 3] = [55, 85, 95];
/// Percentage of flat properties that a schema declares without requiring them.
const OPTIONAL_PERCENT: usize = 15;
/// Percentage of rows with a declared property that the text does not state.
const ABSENT_PERCENT: usize = 2;
/// Percentage of wrapped rows with one property beside the wrapper.
const BESIDE_PERCENT: usize = 25;
/// Percentage of objects that declare what is nested after what is flat, as people tend to.
const NESTED_LAST_PERCENT: usize = 60;
/// How many objects an array of objects holds, each entry being as likely.
const N_ITEMS: [usize; 6] = [1, 1, 2, 2, 2, 3];
/// Percentage of rows that end with a sentence of no interest.
const ASIDE_PERCENT: usize = 30;

/// A row and the facts that its schema asks for.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) row: SynthRow,
    pub(super) asked: Vec<Fact>,
}

/// How the words of a field become a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyStyle {
    Snake,
    Camel,
    Kebab,
    Title,
}

impl KeyStyle {
    pub(super) const ALL: [Self; 4] = [Self::Snake, Self::Camel, Self::Kebab, Self::Title];

    pub(super) fn key(self, words: &str) -> String {
        match self {
            Self::Snake => words.replace(' ', "_"),
            Self::Kebab => words.replace(' ', "-"),
            Self::Title => words
                .split(' ')
                .map(render::capitalise)
                .collect::<Vec<_>>()
                .join(" "),
            Self::Camel => {
                let mut parts = words.split(' ');
                let first = parts.next().unwrap_or_default().to_owned();
                parts.fold(first, |key, part| key + &render::capitalise(part))
            }
        }
    }
}

/// What accompanies the flat fields of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Group,
    List,
    Items,
}

/// Number of flat fields, what accompanies them, and whether one object is around everything.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// What the rest adds up to.
    depth: usize,
    n_flat: usize,
    part: Part,
    wrapped: Wrapped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrapped {
    No,
    Yes,
}

impl Shape {
    fn draw(random: &mut SeededRandom) -> Self {
        let drawn = random.below(100);
        let depth = 1 + DEPTH_BELOW.iter().filter(|below| drawn >= **below).count();
        let (part, wrapped, fewest, most) = match depth {
            1 => (Part::Nothing, Wrapped::No, 3, 6),
            2 => *pick(
                &[
                    (Part::Group, Wrapped::No, 1, 3),
                    (Part::List, Wrapped::No, 2, 4),
                    (Part::Nothing, Wrapped::Yes, 3, 4),
                ],
                random,
            ),
            3 => *pick(
                &[
                    (Part::Items, Wrapped::No, 1, 2),
                    (Part::Group, Wrapped::Yes, 1, 2),
                    (Part::List, Wrapped::Yes, 1, 3),
                ],
                random,
            ),
            _ => (Part::Items, Wrapped::Yes, 1, 2),
        };
        let n_flat = fewest + random.below(most - fewest + 1);
        Self {
            depth,
            n_flat,
            part,
            wrapped,
        }
    }
}

/// One declared property; `gold` is `None` if the text does not state it.
#[derive(Debug)]
struct Property {
    key: String,
    schema: Value,
    gold: Option<Value>,
    required: bool,
}

impl Property {
    fn is_nested(&self) -> bool {
        self.schema["type"] == "object" || self.schema["type"] == "array"
    }
}

/// Draws one row.
pub(super) fn draw(families: &[&'static Family], random: &mut SeededRandom) -> Draft {
    let family = *pick(families, random);
    let style = *pick(&Style::ALL, random);
    let key_style = *pick(&KeyStyle::ALL, random);
    let shape = Shape::draw(random);
    let fields = sample(&family.fields, family.fields.len(), random);
    let (asked_fields, other_fields) = fields.split_at(shape.n_flat);

    let mut writer = Writer {
        family,
        key_style,
        blocks: Vec::new(),
        random,
    };
    let (json_schema, gold) = writer.root(shape, asked_fields);
    let Writer {
        mut blocks, random, ..
    } = writer;
    let asked = blocks.concat();

    let n_distractors = *pick(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 2], random);
    for field in other_fields.iter().take(n_distractors) {
        blocks.push(vec![Fact::of(
            field,
            &field.name,
            &values::draw(field, random),
        )]);
    }
    random.shuffle(&mut blocks);
    let aside = chance(ASIDE_PERCENT, random).then(|| pick(&VOCABULARY.asides, random).as_str());
    let told = Told {
        noun: &family.name,
        facts: blocks.concat(),
        aside,
    };
    let input_text = render::render(style, &told, random);
    let row = SynthRow {
        input_text,
        json_schema,
        gold,
        family: &family.name,
        depth: shape.depth,
        style,
    };
    Draft { row, asked }
}

/// Writes schema and gold, and keeps the facts to be told: a block stays together in the text.
struct Writer<'a> {
    family: &'static Family,
    key_style: KeyStyle,
    blocks: Vec<Vec<Fact>>,
    random: &'a mut SeededRandom,
}

impl Writer<'_> {
    fn root(&mut self, shape: Shape, fields: &[&'static Field]) -> (Value, Value) {
        let mut properties: Vec<Property> = fields.iter().map(|f| self.flat(f)).collect();
        if properties.len() > 1 && chance(ABSENT_PERCENT, self.random) {
            self.blocks.pop();
            if let Some(absent) = properties.last_mut() {
                (absent.gold, absent.required) = (None, false);
            }
        }
        properties.extend(match shape.part {
            Part::Nothing => None,
            Part::Group => Some(self.group()),
            Part::List => Some(self.list()),
            Part::Items => Some(self.items()),
        });
        if shape.wrapped == Wrapped::No {
            self.arrange(&mut properties);
            return object(properties);
        }
        // The first property is a flat field, so an object remains for the wrapper to hold.
        let beside = properties.len() > 2 && chance(BESIDE_PERCENT, self.random);
        let mut outer: Vec<Property> = properties.drain(..usize::from(beside)).collect();
        self.arrange(&mut properties);
        let (schema, gold) = object(properties);
        outer.push(self.required(&self.family.name, schema, gold));
        self.arrange(&mut outer);
        object(outer)
    }

    /// Puts properties into the order in which the schema declares them.
    fn arrange(&mut self, properties: &mut [Property]) {
        self.random.shuffle(properties);
        if chance(NESTED_LAST_PERCENT, self.random) {
            properties.sort_by_key(Property::is_nested);
        }
    }

    fn required(&self, name: &str, schema: Value, gold: Value) -> Property {
        Property {
            key: self.key_style.key(name),
            schema,
            gold: Some(gold),
            required: true,
        }
    }

    fn flat(&mut self, field: &'static Field) -> Property {
        let drawn = values::draw(field, self.random);
        self.blocks.push(vec![Fact::of(field, &field.name, &drawn)]);
        let required = !chance(OPTIONAL_PERCENT, self.random);
        Property {
            required,
            ..self.required(&field.name, values::schema(field), drawn.json)
        }
    }

    fn group(&mut self) -> Property {
        let group = &self.family.group;
        let n_fields = 2 + self.random.below(2);
        let fields = sample(&group.fields, n_fields, self.random);
        let mut properties = Vec::new();
        for field in fields {
            let drawn = values::draw(field, self.random);
            let label = format!("{} {}", group.name, field.name);
            self.blocks.push(vec![Fact::of(field, &label, &drawn)]);
            properties.push(self.required(&field.name, values::schema(field), drawn.json));
        }
        let (schema, gold) = object(properties);
        self.required(&group.name, schema, gold)
    }

    fn list(&mut self) -> Property {
        let list = &self.family.list;
        let n_values = 1 + self.random.below(3);
        let values = sample(&list.values, n_values, self.random);
        let values: Vec<&str> = values.into_iter().map(String::as_str).collect();
        let gold = json!(values);
        self.blocks.push(vec![Fact::List {
            label: &list.name,
            values,
        }]);
        self.required(
            &list.name,
            json!({"type": "array", "items": {"type": "string"}}),
            gold,
        )
    }

    fn items(&mut self) -> Property {
        let items = &self.family.items;
        let fields = sample(&items.fields, 2, self.random);
        let n_items = *pick(&N_ITEMS, self.random);
        let (mut block, mut golds, mut item_schema) = (Vec::new(), Vec::new(), Value::Null);
        for item_idx in 0..n_items {
            let drawn: Vec<_> = fields
                .iter()
                .map(|f| values::draw(f, self.random))
                .collect();
            let parts = fields
                .iter()
                .zip(&drawn)
                .map(|(f, d)| (f.name.as_str(), d.text.clone()));
            let parts = parts.collect();
            block.push(Fact::Item {
                item_idx,
                singular: &items.singular,
                parts,
            });
            let properties = fields.iter().zip(drawn).map(|(field, drawn)| {
                self.required(&field.name, values::schema(field), drawn.json)
            });
            let (schema, gold) = object(properties.collect());
            item_schema = schema;
            golds.push(gold);
        }
        self.blocks.push(block);
        let schema = json!({"type": "array", "items": item_schema});
        self.required(&items.plural, schema, Value::Array(golds))
    }
}

/// The schema of a closed object and its gold, both in the order of `properties`.
fn object(properties: Vec<Property>) -> (Value, Value) {
    let (mut declared, mut required, mut gold) = (Map::new(), Vec::new(), Map::new());
    for property in properties {
        if property.required {
            required.push(property.key.clone());
        }
        if let Some(value) = property.gold {
            gold.insert(property.key.clone(), value);
        }
        declared.insert(property.key, property.schema);
    }
    let schema = json!({
        "type": "object",
        "properties": declared,
        "required": required,
        "additionalProperties": false,
    });
    (schema, Value::Object(gold))
}
