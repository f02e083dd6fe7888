//! The SLOT suite as operations of `tooltune score`.
//!
//! Each function only reads the fields of a line and calls the suite; it contains no scoring rules.

use super::{
    Agreement, SchemaChecker, SchemaMode, ScoreError, SlotRow, content_agreement, scalar_text,
    score_dataset, value_similarity,
};
use serde_json::{Value, json};
use tooltune_json as json;
use tooltune_json::json_complexity;

use crate::encoder::{EncoderError, HashEncoder};
use crate::operations::{Fields, InputField, LineError, Operation, Request};

const RAW: InputField = InputField::new("raw", "the completion as generated");
const SCHEMA: InputField = InputField::new("json_schema", "the row's JSON Schema");
const GOLD: InputField = InputField::new("gold", "the gold value");
const TEXT: InputField = InputField::new("text", "a string");
const ENCODER: InputField = InputField::new("options.encoder", "\"minilm\" (default) or \"hash\"");
const MODE: InputField = InputField::new(
    "options.mode",
    "\"schema\" (default), \"strict_keys\" or \"formats\"",
);

/// All operations of the suite.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        name: "slot.parse",
        fields: &[RAW],
        definition: "whether the completion is a single RFC 8259 JSON value and nothing else",
        run: parse,
    },
    Operation {
        name: "slot.schema",
        fields: &[RAW, SCHEMA, MODE],
        definition: "whether the completion parses and is valid under the schema",
        run: schema,
    },
    Operation {
        name: "slot.content",
        fields: &[RAW, GOLD, ENCODER],
        definition: "[precision, recall, F] of content similarity over leaves at equal paths",
        run: content,
    },
    Operation {
        name: "slot.value_sim",
        fields: &[
            InputField::new("a", "a string or scalar"),
            InputField::new("b", "a string or scalar"),
            ENCODER,
        ],
        definition: "similarity of two leaves, 0 to 1",
        run: |request| {
            let (left, right) = (
                leaf_text(&request.input, "a")?,
                leaf_text(&request.input, "b")?,
            );
            Ok(json!(value_similarity(&left, &right, request.encoder()?)?))
        },
    },
    Operation {
        name: "slot.hash_embed",
        fields: &[TEXT],
        definition: "the 64 signed counts of the deterministic hash encoder",
        run: |request| Ok(json!(HashEncoder::vector(request.input.text("text")?))),
    },
    Operation {
        name: "slot.embed_first8",
        fields: &[TEXT, ENCODER],
        definition: "the first 8 components of the text's sentence vector",
        run: |request| {
            let text = request.input.text("text")?;
            let vectors = request.encoder()?.encode(&[text])?;
            let vector = vectors.first().ok_or(EncoderError::Shape { n_texts: 1 })?;
            Ok(json!(vector.iter().take(8).collect::<Vec<_>>()))
        },
    },
    Operation {
        name: "slot.dataset",
        fields: &[
            InputField::new("rows", "array of {raw, json_schema, gold}"),
            ENCODER,
        ],
        definition: "[schema accuracy, content similarity F], macro means in per cent",
        run: dataset,
    },
    Operation {
        name: "slot.json_complexity",
        fields: &[InputField::new("value", "any JSON value")],
        definition: "SLOT's seven measures of complexity (appendix D.3)",
        run: complexity,
    },
];

impl From<ScoreError> for LineError {
    fn from(error: ScoreError) -> Self {
        let message = error.to_string();
        let mut cause = &error;
        while let ScoreError::Row { source, .. } = cause {
            cause = source;
        }
        let kind = match cause {
            ScoreError::Schema { .. } => "bad_schema",
            ScoreError::EmptyDataset => "empty_dataset",
            ScoreError::Row { .. } => "bad_row",
            ScoreError::TooManyLeaves { .. } => "too_large",
            ScoreError::Encoder(_) => "encoder_failed",
        };
        Self::NoValue { kind, message }
    }
}

fn parse(request: &Request<'_>) -> Result<Value, LineError> {
    Ok(json!(json::parse(request.input.text("raw")?).is_ok()))
}

fn schema(request: &Request<'_>) -> Result<Value, LineError> {
    let raw = request.input.text("raw")?;
    let mode = match request.choice("mode")? {
        None | Some("schema") => SchemaMode::Schema,
        Some("strict_keys") => SchemaMode::StrictKeys,
        Some("formats") => SchemaMode::Formats,
        Some(_) => {
            let expected = "\"schema\", \"strict_keys\" or \"formats\"";
            return Err(LineError::WrongType {
                field: "options.mode".to_owned(),
                expected,
            });
        }
    };
    let checker = SchemaChecker::new(request.input.value("json_schema")?, mode)?;
    Ok(json!(
        json::parse(raw).is_ok_and(|value| checker.is_valid(&value))
    ))
}

fn content(request: &Request<'_>) -> Result<Value, LineError> {
    let (raw, gold) = (request.input.text("raw")?, request.input.value("gold")?);
    let encoder = request.encoder()?;
    let Agreement {
        precision,
        recall,
        f,
    } = match json::parse(raw) {
        Ok(pred) => content_agreement(&pred, gold, encoder)?,
        Err(_) => Agreement::default(),
    };
    Ok(json!([precision, recall, f]))
}

fn leaf_text(input: &Fields<'_>, name: &str) -> Result<String, LineError> {
    match input.value(name)? {
        Value::Object(_) | Value::Array(_) => Err(input.wrong_type(name, "a string or scalar")),
        scalar => Ok(scalar_text(scalar)),
    }
}

fn dataset(request: &Request<'_>) -> Result<Value, LineError> {
    let objects = request.input.objects("rows")?;
    let rows = objects
        .iter()
        .map(|row| {
            let (raw, schema) = (row.text("raw")?, row.value("json_schema")?);
            Ok(SlotRow {
                raw,
                schema,
                gold: row.value("gold")?,
            })
        })
        .collect::<Result<Vec<_>, LineError>>()?;
    let (score, _) = score_dataset(&rows, request.encoder()?)?;
    let percent = |fraction: f64| 100.0 * fraction;
    let overall = score.overall;
    Ok(json!([
        percent(overall.schema_accuracy.value),
        percent(overall.content_similarity.value)
    ]))
}

fn complexity(request: &Request<'_>) -> Result<Value, LineError> {
    Ok(json!(json_complexity(request.input.value("value")?)))
}
