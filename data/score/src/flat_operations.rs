//! Score operations on flat schemas and truncated outputs.
//!
//! Each function reads the fields of one line and calls the module that computes the value; this
//! file has no rules of its own.

use serde_json::{Map, Value, json};
use tooltune_agents::flat::{
    Audience, FlatSchema, FlattenOptions, OnCollision, advise, flatten_minimal,
};
use tooltune_agents::truncation::{
    PruneOptions, Scalars, TruncationOptions, filter, prune, truncate_text,
};

use tooltune_suites::operations::{InputField, LineError, Operation, Request};

const SCHEMA: InputField = InputField::new("schema", "the JSON Schema of an object");
const NESTED: InputField = InputField::new("args", "the nested arguments");
const FLAT: InputField = InputField::new("args", "the arguments by flat name");
const VALUE: InputField = InputField::new("value", "any JSON value");
const MAX_ITEMS: InputField =
    InputField::new("options.max_items", "number of list items to keep (10)");
const MAX_DEPTH: InputField = InputField::new(
    "options.max_depth",
    "depth from which values are summarised (4)",
);
const STRINGIFY: InputField = InputField::new(
    "options.stringify",
    "whether scalars at that depth become strings (false)",
);
const SLOTS: InputField = InputField::new(
    "options.slots",
    "numbered copies of the items of a list of objects (1)",
);
const SEPARATOR: InputField = InputField::new(
    "options.sep",
    "separator between the steps of a path (\"_\")",
);
const ON_COLLISION: InputField =
    InputField::new("options.on_collision", "\"number\" (default) or \"error\"");

/// All operations on schemas and outputs.
pub(super) static TABLE: &[Operation] = &[
    Operation {
        name: "flat.flatten",
        fields: &[SCHEMA, SLOTS, SEPARATOR, ON_COLLISION],
        definition: "the flat schema, and the path of each of its properties",
        run: flatten,
    },
    Operation {
        name: "flat.minimal",
        fields: &[SCHEMA],
        definition: "the schema as the flattener of the cited post returns it",
        run: |request| Ok(flatten_minimal(request.input.value("schema")?)?),
    },
    Operation {
        name: "flat.unflatten",
        fields: &[SCHEMA, FLAT, SLOTS, SEPARATOR, ON_COLLISION],
        definition: "the flat arguments converted to nested ones",
        run: |request| {
            let flat = arguments(request)?;
            Ok(flat_schema(request)?.unflatten_arguments(flat)?.into())
        },
    },
    Operation {
        name: "flat.flatten_args",
        fields: &[SCHEMA, NESTED, SLOTS, SEPARATOR, ON_COLLISION],
        definition: "the nested arguments converted to flat ones",
        run: |request| {
            let nested = arguments(request)?;
            Ok(flat_schema(request)?.flatten_arguments(nested)?.into())
        },
    },
    Operation {
        name: "flat.roundtrip",
        fields: &[SCHEMA, NESTED, SLOTS, SEPARATOR, ON_COLLISION],
        definition: "whether converting nested arguments to flat ones and back changes nothing",
        run: |request| {
            let nested = arguments(request)?;
            Ok(flat_schema(request)?.round_trips(nested)?.into())
        },
    },
    Operation {
        name: "flat.missing",
        fields: &[SCHEMA, NESTED],
        definition: "paths of required values that are missing from the nested arguments",
        run: |request| {
            let nested = arguments(request)?;
            Ok(json!(flat_schema(request)?.missing_required(nested)?))
        },
    },
    Operation {
        name: "flat.advise",
        fields: &[
            SCHEMA,
            InputField::new(
                "options.user_facing",
                "whether the schema is shown to people (false)",
            ),
        ],
        definition: "whether to flatten a schema, with the reason",
        run: |request| {
            let audience = match request.option_flag("user_facing")? {
                Some(true) => Audience::User,
                None | Some(false) => Audience::Model,
            };
            Ok(json!(advise(request.input.value("schema")?, audience)?))
        },
    },
    Operation {
        name: "flat.prune",
        fields: &[VALUE, MAX_ITEMS, MAX_DEPTH, STRINGIFY],
        definition: "the value with long lists sliced and deep objects summarised",
        run: |request| {
            let options = prune_options(request)?.unwrap_or_default();
            Ok(prune(request.input.value("value")?, &options))
        },
    },
    Operation {
        name: "flat.truncate_text",
        fields: &[
            VALUE,
            InputField::new("options.max_chars", "maximum code points (50,000)"),
            MAX_ITEMS,
            MAX_DEPTH,
            STRINGIFY,
        ],
        definition: "the value as JSON indented by two spaces, pruned if flat.prune's options are \
                     given, and truncated if it is too long",
        run: |request| {
            let max_chars = request.option_count("max_chars")?;
            let max_chars = max_chars.unwrap_or(TruncationOptions::default().max_chars);
            let value = request.input.value("value")?;
            Ok(match prune_options(request)? {
                Some(options) => truncate_text(&prune(value, &options), max_chars),
                None => truncate_text(value, max_chars),
            }
            .into())
        },
    },
    Operation {
        name: "flat.jmespath",
        fields: &[
            InputField::new("expr", "a JMESPath expression"),
            InputField::new("data", "any JSON value"),
        ],
        definition: "the part of the data that the expression selects",
        run: |request| {
            let expression = request.input.text("expr")?;
            Ok(filter(expression, request.input.value("data")?)?)
        },
    },
];

fn flat_schema(request: &Request<'_>) -> Result<FlatSchema, LineError> {
    let defaults = FlattenOptions::default();
    let on_collision = match request.choice("on_collision")? {
        None | Some("number") => OnCollision::Number,
        Some("error") => OnCollision::Error,
        Some(_) => {
            return Err(LineError::WrongType {
                field: "options.on_collision".to_owned(),
                expected: "\"number\" or \"error\"",
            });
        }
    };
    let options = FlattenOptions {
        separator: request
            .choice("sep")?
            .map_or(defaults.separator, str::to_owned),
        slots: request.option_count("slots")?.unwrap_or(defaults.slots),
        on_collision,
    };
    Ok(FlatSchema::new(request.input.value("schema")?, &options)?)
}

fn arguments<'l>(request: &Request<'l>) -> Result<&'l Map<String, Value>, LineError> {
    request.input.fields("args")
}

fn flatten(request: &Request<'_>) -> Result<Value, LineError> {
    let flat_schema = flat_schema(request)?;
    let map: Map<String, Value> = flat_schema
        .mapping()
        .map(|(name, path)| (name.to_owned(), json!(path)))
        .collect();
    Ok(json!({"schema": flat_schema.schema(), "map": map}))
}

/// The pruning options of a line; `None` if it sets none.
fn prune_options(request: &Request<'_>) -> Result<Option<PruneOptions>, LineError> {
    let (items, depth) = (
        request.option_count("max_items")?,
        request.option_count("max_depth")?,
    );
    let stringify = request.option_flag("stringify")?;
    if items.is_none() && depth.is_none() && stringify.is_none() {
        return Ok(None);
    }
    let defaults = PruneOptions::default();
    Ok(Some(PruneOptions {
        max_items: items.unwrap_or(defaults.max_items),
        max_depth: depth.unwrap_or(defaults.max_depth),
        scalars: match stringify {
            Some(true) => Scalars::Stringify,
            None | Some(false) => Scalars::Keep,
        },
    }))
}
