//! Schemas that ask for more work than a constraint may take.
use super::*;

#[test]
fn timing() {
    let vocabulary = vocabulary();
    for schema in [
        json!({"type": "integer", "multipleOf": 7}),
        json!({"type": "number", "multipleOf": 0.25}),
        json!({"type": "number", "multipleOf": 100}),
        json!({"type": "number", "multipleOf": 1234.5}),
        json!({"type": "integer", "multipleOf": 9973}),
        json!({"type": "number", "multipleOf": 9973}),
        json!({"type": "number", "multipleOf": 9.9999}),
        json!({"type": "number", "multipleOf": 99.9999}),
        json!({"type": "number", "multipleOf": 999.9999}),
        json!({"type": "number", "multipleOf": 9999.9999}),
        json!({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}),
        json!({"type": "integer", "allOf": [{"multipleOf": 97}, {"multipleOf": 89}]}),
        json!({"type": "integer", "allOf": [{"multipleOf": 997}, {"multipleOf": 89}]}),
    ] {
        let start = std::time::Instant::now();
        let found = Grammar::json_schema(&vocabulary, &schema, &GrammarOptions::default());
        eprintln!("{schema} {:?} {:?}", start.elapsed(), found.err());
    }
}
