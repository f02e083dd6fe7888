//! Keeps the edges between outputs and parameters whose descriptions are alike.
//!
//! The filter needs no complete graph: each pair is looked at and forgotten, so that memory is that
//! of the edges kept. It favours recall, since costlier filters follow.
//! The decision to question: what is compared with what. The paper lets a model write both
//! descriptions; here they are taken from the document as it stands, see [`ApiTexts`]. An API that
//! says which fields it returns gives these, each on its own, and one that returns nothing gives
//! nothing, whatever its description says.

use std::collections::HashSet;

use serde_json::Value;
use tooltune_rows::tools::{ApiDocument, ApiParameter};
use tooltune_suites::{Embeddings, EncoderError, SentenceEncoder};

use super::dependencies::{DependencyGraph, Edge, Ground, MAX_EDGES};
use super::error::GraphError;

/// How a parameter is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterText {
    /// Its description, or its name where it has none.
    Description,
    /// `name: description`, or its name where it has no description: for documents whose
    /// descriptions do not say what they describe, such as "The name." in API-Bank's.
    NameAndDescription,
}

/// How an output is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputText {
    /// `output_description`, else what follows the last `Returns: ` in the API's description, else
    /// the whole description.
    Returned,
    /// The API's description, as a sentence: for specifications whose responses are described as
    /// "An album".
    Description,
}

/// How a collection of documents describes what goes in and what comes out.
///
/// Which rule fits which documents, and how many edges all-MiniLM-L6-v2 keeps by it, is a table of
/// the guide (`docs/data.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRule {
    /// How parameters are described.
    pub parameter: ParameterText,
    /// How outputs are described.
    pub output: OutputText,
}

/// What the filter reads of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiTexts {
    /// The name that calls carry.
    pub name: String,
    /// In(n, k): the description of each parameter, the required ones first.
    pub inputs: Vec<String>,
    /// Out(n): what it returns, each field on its own where a schema says which there are; none of
    /// an API that returns nothing.
    pub outputs: Vec<OutputField>,
}

/// A part of what an API returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputField {
    /// Where it stands, such as `results[].id`; empty for the whole.
    pub path: String,
    /// What describes it.
    pub text: String,
}

impl OutputField {
    /// An output that is described as a whole.
    pub fn whole(text: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            text: text.into(),
        }
    }
}

/// Stands in a description before the text on what is returned, in StableToolBench's layout.
const RETURNS: &str = "Returns: ";

/// Stands in a description before the values that a parameter may take, where a specification
/// lists them apart from it.
const CHOICES: &str = "One of: ";

/// Characters of an output's description that are read: specifications carry whole pages with
/// tables of changes, and what an API returns stands at the beginning.
const MAX_OUTPUT_CHARS: usize = 600;

impl ApiTexts {
    /// Reads a document. Where it has an `output_schema`, its fields are the outputs, described as
    /// parameters are; else the output is described as a whole, by the first 600 characters of its
    /// description.
    pub fn of(document: &ApiDocument, rule: TextRule) -> Self {
        let fields = document.output_schema.as_ref();
        let outputs = match fields.map(|schema| output_fields(schema, rule.parameter)) {
            Some(fields) => fields,
            None => vec![OutputField::whole(described_output(document, rule))],
        };
        Self {
            name: document.call_name(),
            inputs: document
                .parameters()
                .map(|parameter| rule.parameter.of(parameter))
                .collect(),
            outputs,
        }
    }
}

/// What the words of a document say of its output.
fn described_output(document: &ApiDocument, rule: TextRule) -> String {
    let description = document.api_description.as_str();
    let returned = || match document.output_description.as_str() {
        "" => description
            .rsplit_once(RETURNS)
            .map_or(description, |(_, output)| output),
        output => output,
    };
    let output = match rule.output {
        OutputText::Returned => returned(),
        OutputText::Description => description,
    };
    let mut output: String = output.chars().take(MAX_OUTPUT_CHARS).collect();
    // A summary that stands alone is closed as one before a description is.
    if rule.output == OutputText::Description && !output.contains(['.', '!', '?']) {
        output.push('.');
    }
    output
}

/// The scalars of an output's schema, by their places; those of several forms, each once.
fn output_fields(schema: &Value, rule: ParameterText) -> Vec<OutputField> {
    let mut gathered = Gathered {
        rule,
        fields: Vec::new(),
        paths: HashSet::new(),
    };
    gathered.gather(schema, "", "");
    gathered.fields
}

struct Gathered {
    rule: ParameterText,
    fields: Vec<OutputField>,
    paths: HashSet<String>,
}

impl Gathered {
    /// `name` is the key of the part, with that of the object around it.
    fn gather(&mut self, schema: &Value, path: &str, name: &str) {
        let mut has_parts = false;
        for (key, property) in properties(schema) {
            has_parts = true;
            let gap = if path.is_empty() { "" } else { "." };
            let around = name.rsplit(' ').next().unwrap_or_default();
            let inner = format!("{around} {key}");
            self.gather(property, &format!("{path}{gap}{key}"), inner.trim());
        }
        if let Some(items) = schema.get("items") {
            has_parts = true;
            self.gather(items, &format!("{path}[]"), name);
        }
        for form in ["allOf", "anyOf", "oneOf"] {
            let branches = schema.get(form).and_then(Value::as_array);
            for branch in branches.into_iter().flatten() {
                has_parts = true;
                self.gather(branch, path, name);
            }
        }
        let is_nothing = schema.get("type").is_some_and(|kind| kind == "null");
        if has_parts || is_nothing || schema == &Value::Bool(false) {
            return;
        }
        if self.paths.insert(path.to_owned()) {
            let description = schema.get("description").and_then(Value::as_str);
            let text = self.rule.of_words(name, description.unwrap_or_default());
            self.fields.push(OutputField {
                path: path.to_owned(),
                text: text.chars().take(MAX_OUTPUT_CHARS).collect(),
            });
        }
    }
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten()
}

impl ParameterText {
    fn of(self, parameter: &ApiParameter) -> String {
        // The values that a parameter may take are not what it means.
        let meaning = parameter.description.split(CHOICES).next();
        self.of_words(&parameter.name, meaning.unwrap_or_default().trim_end())
    }

    fn of_words(self, name: &str, meaning: &str) -> String {
        match (self, meaning) {
            (_, "") => name.to_owned(),
            (Self::Description, meaning) => meaning.to_owned(),
            (Self::NameAndDescription, meaning) => format!("{name}: {meaning}"),
        }
    }
}

impl DependencyGraph {
    /// The edges of the complete graph whose output and parameter are described alike: the cosine
    /// of their vectors is at least `threshold`.
    ///
    /// # Errors
    ///
    /// - the threshold is not from -1 to 1, or two APIs have one name
    /// - more than [`MAX_EDGES`] edges are kept
    /// - the encoder fails
    ///
    /// # Source
    ///
    /// GOAT, section 3.1.1: filtering via embedding similarity; thresholds .2 and .05 (appendix).
    pub fn by_similarity(
        apis: &[ApiTexts],
        encoder: &dyn SentenceEncoder,
        threshold: f64,
    ) -> Result<Self, GraphError> {
        if !(-1.0..=1.0).contains(&threshold) {
            return Err(GraphError::BadThreshold { threshold });
        }
        let outputs = apis.iter().flat_map(|api| &api.outputs);
        let outputs = outputs.map(|field| field.text.as_str());
        let inputs = apis.iter().flat_map(|api| &api.inputs).map(String::as_str);
        let embeddings = Embeddings::of(outputs.chain(inputs), encoder)?;
        let unit = |text: &str| -> Result<Vec<f32>, GraphError> {
            let vector = embeddings.vector(text);
            Ok(unit_vector(
                vector.ok_or(EncoderError::Shape { n_texts: 1 })?,
            ))
        };
        let parameters: Vec<(usize, usize, Vec<f32>)> = parameters(apis)
            .map(|(target, parameter, text)| Ok((target, parameter, unit(text)?)))
            .collect::<Result<_, GraphError>>()?;
        let mut edges = Vec::new();
        for (source, api) in apis.iter().enumerate() {
            let outputs = api.outputs.iter();
            let outputs = outputs.map(|field| Ok((field.path.as_str(), unit(&field.text)?)));
            let outputs = outputs.collect::<Result<Vec<_>, GraphError>>()?;
            for (target, parameter, input) in &parameters {
                if *target == source {
                    continue;
                }
                let Some(ground) = nearest(&outputs, input) else {
                    continue;
                };
                if f64::from(ground.score) >= threshold {
                    let edge = Edge {
                        source,
                        target: *target,
                        parameter: *parameter,
                    };
                    edges.push((edge, Some(ground)));
                }
            }
            if edges.len() > MAX_EDGES {
                return Err(GraphError::TooManyEdges { limit: MAX_EDGES });
            }
        }
        Self::of_texts(apis, &edges)
    }
}

/// The output that is most like an input, the first of those that are alike.
fn nearest<'a>(outputs: &[(&'a str, Vec<f32>)], input: &[f32]) -> Option<Ground<'a>> {
    let mut best: Option<Ground<'a>> = None;
    for (field, output) in outputs {
        let score = dot(output, input);
        if best.is_none_or(|best| score > best.score) {
            best = Some(Ground { score, field });
        }
    }
    best
}

/// Every parameter as (API, position, description).
fn parameters(apis: &[ApiTexts]) -> impl Iterator<Item = (usize, usize, &str)> {
    apis.iter().enumerate().flat_map(|(target, api)| {
        let inputs = api.inputs.iter().enumerate();
        inputs.map(move |(parameter, text)| (target, parameter, text.as_str()))
    })
}

/// A vector of length 1; a zero vector stays one and is unlike all.
fn unit_vector(vector: &[f32]) -> Vec<f32> {
    let length: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let scale = if length > 0.0 {
        length.sqrt().recip()
    } else {
        0.0
    };
    vector
        .iter()
        .map(|x| (f64::from(*x) * scale) as f32)
        .collect()
}

/// In eight partial sums, which the compiler keeps in one register.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let (left, left_rest) = left.as_chunks::<8>();
    let (right, right_rest) = right.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for (left, right) in left.iter().zip(right) {
        for lane in 0..8 {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use tooltune_suites::HashEncoder;

    use super::*;
    use serde_json::json;

    fn document(description: &str, output: &str) -> ApiDocument {
        serde_json::from_value(json!({
            "tool_name": "Harbour", "api_name": "Tide", "api_description": description,
            "output_description": output,
            "required_parameters": [{"name": "port", "description": "Name of the port."}],
            "optional_parameters": [{"name": "day"}],
        }))
        .expect("a document")
    }

    const RETURNED: TextRule = TextRule {
        parameter: ParameterText::Description,
        output: OutputText::Returned,
    };

    fn whole(document: &ApiDocument, rule: TextRule) -> String {
        match ApiTexts::of(document, rule).outputs.as_slice() {
            [field] if field.path.is_empty() => field.text.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_output_with_a_schema_is_its_fields_and_nothing_is_nothing() {
        let mut tide = document("Tides. Returns: Cancelled", "Cancelled");
        let fields = |tide: &ApiDocument, parameter| {
            let rule = TextRule {
                parameter,
                ..RETURNED
            };
            let fields = ApiTexts::of(tide, rule).outputs.into_iter();
            fields
                .map(|field| (field.path, field.text))
                .collect::<Vec<_>>()
        };
        let owned = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
                .collect::<Vec<_>>()
        };
        tide.output_schema = Some(json!({"type": "object", "properties": {
            "port": {"type": "object", "properties": {
                "id": {"type": "integer", "description": "Number of the port."}}},
            "times": {"type": "array", "items": {"anyOf": [
                {"type": "null"}, {"type": "object", "properties": {"low": {"type": "string"}}}]}},
            "unit": {"type": "string"}}}));
        assert_eq!(
            fields(&tide, ParameterText::NameAndDescription),
            owned(&[
                ("port.id", "port id: Number of the port."),
                ("times[].low", "times low"),
                ("unit", "unit"),
            ])
        );
        assert_eq!(
            fields(&tide, ParameterText::Description)[0],
            ("port.id".to_owned(), "Number of the port.".to_owned())
        );
        tide.output_schema = Some(json!({"type": "null"}));
        assert_eq!(fields(&tide, ParameterText::Description), []);
        let apis = [ApiTexts::of(&tide, RETURNED), apis().remove(1)];
        let graph = DependencyGraph::by_similarity(&apis, &HashEncoder, -1.0).expect("a graph");
        assert!(
            graph.edges().iter().all(|edge| edge.source == 1),
            "{graph:?}"
        );
    }

    #[test]
    fn texts_are_taken_from_the_document() {
        let output =
            |description: &str, output: &str| whole(&document(description, output), RETURNED);
        assert_eq!(
            output("Tides. Returns: Times of low water.", ""),
            "Times of low water."
        );
        assert_eq!(
            output("Tides. Returns: x", "height: in metres"),
            "height: in metres"
        );
        assert_eq!(output("Tides of a port.", ""), "Tides of a port.");
        assert_eq!(output("", &"é".repeat(700)), "é".repeat(600));
        let texts = ApiTexts::of(&document("", ""), RETURNED);
        assert_eq!(texts.name, "Harbour/Tide");
        assert_eq!(texts.inputs, ["Name of the port.", "day"]);
        let named = TextRule {
            parameter: ParameterText::NameAndDescription,
            output: OutputText::Description,
        };
        let mut listed = document("Tides. Returns: x", "y");
        listed.optional_parameters[0].description = "One of: 1, 2.".to_owned();
        listed.required_parameters[0].description += " One of: Emden, Ulm.";
        let texts = ApiTexts::of(&listed, named);
        assert_eq!(texts.inputs, ["port: Name of the port.", "day"]);
        assert_eq!(whole(&listed, named), "Tides. Returns: x");
        assert_eq!(whole(&document("Tides", ""), named), "Tides.");
    }

    fn apis() -> Vec<ApiTexts> {
        let api = |name: &str, inputs: &[&str], output: &str| ApiTexts {
            name: name.to_owned(),
            inputs: inputs.iter().map(ToString::to_string).collect(),
            outputs: vec![OutputField::whole(output)],
        };
        vec![
            api("find", &["Name of the port."], "The number of the port."),
            api(
                "tide",
                &["Number of the port.", "A day."],
                "Times of low water.",
            ),
            api("pilot", &["Number of a ship."], "The name of the pilot."),
        ]
    }

    #[test]
    fn an_edge_is_kept_if_its_texts_are_alike() {
        let kept = |threshold| {
            DependencyGraph::by_similarity(&apis(), &HashEncoder, threshold).expect("a graph")
        };
        let near = Edge {
            source: 0,
            target: 1,
            parameter: 0,
        };
        assert!(kept(0.5).edges().contains(&near), "{:?}", kept(0.5));
        let ground = kept(0.5)
            .ground(&near)
            .map(|ground| (ground.score, ground.field.to_owned()));
        let (score, field) = ground.expect("a ground");
        assert!(
            (0.5..1.0).contains(&score) && field.is_empty(),
            "{score} {field}"
        );
        let complete = DependencyGraph::complete(&apis()).expect("small");
        assert_eq!(kept(-1.0).edges(), complete.edges());
        assert_eq!(complete.ground(&near), None);
        assert_eq!(kept(1.0).edges(), []);
        let thresholds = [-1.0, 0.0, 0.2, 0.4, 0.6];
        let counts = thresholds.map(|threshold| kept(threshold).edges().len());
        assert!(
            counts.is_sorted_by(|more, fewer| more >= fewer),
            "{counts:?}"
        );
    }

    #[test]
    fn the_threshold_must_be_a_cosine() {
        for threshold in [1.5, -2.0, f64::NAN] {
            let error = DependencyGraph::by_similarity(&apis(), &HashEncoder, threshold);
            assert!(
                matches!(error, Err(GraphError::BadThreshold { .. })),
                "{threshold}"
            );
        }
    }

    #[test]
    fn products_of_any_length_are_summed_whole() {
        for n in [0, 1, 7, 8, 9, 64, 100] {
            let vector: Vec<f32> = (0..n).map(|x| x as f32).collect();
            let expected: f32 = vector.iter().map(|x| x * x).sum();
            assert_eq!(dot(&vector, &vector), expected);
        }
        let unit = unit_vector(&[3.0, 4.0]);
        assert!((dot(&unit, &unit) - 1.0).abs() < 1e-6);
        assert_eq!(unit_vector(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
