//! Drafts a row and its facts from the families.
//!
//! The depth is drawn first and determines the shape: only flat fields, or also a nested object, an
//! array of strings or an array of objects, with or without an object that wraps everything.
//! Optional properties are nearly always stated, because otherwise a metric that requires every
//! declared key would penalize the correct answer.

use serde_json::{Map, Value, json};
use tooltune_rows::batches::SeededRandom;

use super::field::{Family, Field};
use super::render::{self, Fact, TextPlan};
use super::values::{self, happens, pick, sample};
use super::vocabulary::VOCABULARY;
use super::{RowMetadata, Style, SynthRow};

/// Percentage of rows with a depth of at most 1, 2 and 3; the others have depth 4.
const DEPTH_BELOW: [usize; 3] = [55, 85, 95];
/// Percentage of flat properties declared as optional.
const OPTIONAL_PERCENT: usize = 15;
/// Percentage of rows with a declared property that the text does not state.
const ABSENT_PERCENT: usize = 2;
/// Percentage of wrapped rows with one more property next to the wrapping object.
const SIBLING_PERCENT: usize = 25;
/// Percentage of objects that declare nested properties after flat ones, as people usually do.
const NESTED_LAST_PERCENT: usize = 60;
/// Number of objects in an array; one of these entries is drawn uniformly.
const N_ITEMS: [usize; 6] = [1, 1, 2, 2, 2, 3];
/// Percentage of rows that end with an irrelevant sentence.
const ASIDE_PERCENT: usize = 30;

/// A row, and the facts that its schema asks for.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) row: SynthRow,
    pub(super) facts: Vec<Fact>,
}

/// How the words of a field name become a key.
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
                let first_part = parts.next().unwrap_or_default().to_owned();
                parts.fold(first_part, |key, part| key + &render::capitalise(part))
            }
        }
    }
}

/// The nested part of a row, in addition to its flat fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Group,
    List,
    Items,
}

/// Number of flat fields, the nested part, and whether one object wraps everything.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The resulting depth.
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
        let percent = random.below(100);
        let depth = 1 + DEPTH_BELOW
            .iter()
            .filter(|threshold| percent >= **threshold)
            .count();
        let (part, wrapped, min_fields, max_fields) = match depth {
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
        let n_flat = min_fields + random.below(max_fields - min_fields + 1);
        Self {
            depth,
            n_flat,
            part,
            wrapped,
        }
    }
}

/// A declared property; `gold` is `None` if the text does not state it.
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
    let (described_fields, other_fields) = fields.split_at(shape.n_flat);

    let mut writer = Writer {
        family,
        key_style,
        blocks: Vec::new(),
        random,
    };
    let (json_schema, gold) = writer.draft_root(shape, described_fields);
    let Writer {
        mut blocks, random, ..
    } = writer;
    let asked_facts = blocks.concat();

    let n_distractors = *pick(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 2], random);
    for field in other_fields.iter().take(n_distractors) {
        blocks.push(vec![Fact::from_field(
            field,
            &field.name,
            &values::draw(field, random),
        )]);
    }
    random.shuffle(&mut blocks);
    let extra_sentence =
        happens(ASIDE_PERCENT, random).then(|| pick(&VOCABULARY.asides, random).as_str());
    let text_facts = TextPlan {
        noun: &family.name,
        facts: blocks.concat(),
        aside: extra_sentence,
    };
    let input_text = render::render(style, &text_facts, random);
    let row = SynthRow {
        input_text,
        json_schema,
        gold,
        metadata: RowMetadata {
            family: &family.name,
            depth: shape.depth,
            style,
        },
    };
    Draft {
        row,
        facts: asked_facts,
    }
}

/// Builds the schema and gold value, and collects the facts to state. The facts of a block stay
/// together in the text.
struct Writer<'a> {
    family: &'static Family,
    key_style: KeyStyle,
    blocks: Vec<Vec<Fact>>,
    random: &'a mut SeededRandom,
}

impl Writer<'_> {
    fn draft_root(&mut self, shape: Shape, fields: &[&'static Field]) -> (Value, Value) {
        let mut properties: Vec<Property> = fields.iter().map(|f| self.draft_field(f)).collect();
        if properties.len() > 1 && happens(ABSENT_PERCENT, self.random) {
            self.blocks.pop();
            if let Some(absent) = properties.last_mut() {
                (absent.gold, absent.required) = (None, false);
            }
        }
        properties.extend(match shape.part {
            Part::Nothing => None,
            Part::Group => Some(self.draft_group()),
            Part::List => Some(self.draft_list()),
            Part::Items => Some(self.draft_items()),
        });
        if shape.wrapped == Wrapped::No {
            self.shuffle_properties(&mut properties);
            return object(properties);
        }
        // The first property is a flat field, so the wrapping object still contains a property.
        let has_sibling = properties.len() > 2 && happens(SIBLING_PERCENT, self.random);
        let mut outer: Vec<Property> = properties.drain(..usize::from(has_sibling)).collect();
        self.shuffle_properties(&mut properties);
        let (schema, gold) = object(properties);
        outer.push(self.required_property(&self.family.name, schema, gold));
        self.shuffle_properties(&mut outer);
        object(outer)
    }

    /// Puts properties into the order in which the schema declares them.
    fn shuffle_properties(&mut self, properties: &mut [Property]) {
        self.random.shuffle(properties);
        if happens(NESTED_LAST_PERCENT, self.random) {
            properties.sort_by_key(Property::is_nested);
        }
    }

    fn required_property(&self, name: &str, schema: Value, gold: Value) -> Property {
        Property {
            key: self.key_style.key(name),
            schema,
            gold: Some(gold),
            required: true,
        }
    }

    fn draft_field(&mut self, field: &'static Field) -> Property {
        let field_value = values::draw(field, self.random);
        self.blocks
            .push(vec![Fact::from_field(field, &field.name, &field_value)]);
        let required = !happens(OPTIONAL_PERCENT, self.random);
        Property {
            required,
            ..self.required_property(&field.name, values::schema(field), field_value.json)
        }
    }

    fn draft_group(&mut self) -> Property {
        let group = &self.family.group;
        let n_fields = 2 + self.random.below(2);
        let fields = sample(&group.fields, n_fields, self.random);
        let mut properties = Vec::new();
        for field in fields {
            let field_value = values::draw(field, self.random);
            let label = format!("{} {}", group.name, field.name);
            self.blocks
                .push(vec![Fact::from_field(field, &label, &field_value)]);
            properties.push(self.required_property(
                &field.name,
                values::schema(field),
                field_value.json,
            ));
        }
        let (schema, gold) = object(properties);
        self.required_property(&group.name, schema, gold)
    }

    fn draft_list(&mut self) -> Property {
        let list = &self.family.list;
        let n_values = 1 + self.random.below(3);
        let values = sample(&list.values, n_values, self.random);
        let values: Vec<&str> = values.into_iter().map(String::as_str).collect();
        let gold = json!(values);
        self.blocks.push(vec![Fact::List {
            label: &list.name,
            values,
        }]);
        self.required_property(
            &list.name,
            json!({"type": "array", "items": {"type": "string"}}),
            gold,
        )
    }

    fn draft_items(&mut self) -> Property {
        let items = &self.family.items;
        let fields = sample(&items.fields, 2, self.random);
        let n_items = *pick(&N_ITEMS, self.random);
        let (mut block, mut golds, mut item_schema) = (Vec::new(), Vec::new(), Value::Null);
        for item_idx in 0..n_items {
            let item_values: Vec<_> = fields
                .iter()
                .map(|f| values::draw(f, self.random))
                .collect();
            let parts = fields
                .iter()
                .zip(&item_values)
                .map(|(f, d)| (f.name.as_str(), d.text.clone()));
            let parts = parts.collect();
            block.push(Fact::Item {
                item_idx,
                singular: &items.singular,
                parts,
            });
            let properties = fields.iter().zip(item_values).map(|(field, item_values)| {
                self.required_property(&field.name, values::schema(field), item_values.json)
            });
            let (schema, gold) = object(properties.collect());
            item_schema = schema;
            golds.push(gold);
        }
        self.blocks.push(block);
        let schema = json!({"type": "array", "items": item_schema});
        self.required_property(&items.plural, schema, Value::Array(golds))
    }
}

/// The schema of a closed object and its gold value, both in the order of `properties`.
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
