//! Filters edges by the similarity of the descriptions of output and parameter.
//!
//! The filter does not build the complete graph: each pair is compared and discarded, so memory
//! depends only on the number of kept edges. It favours recall, because more expensive filters
//! follow. In the paper, a model writes both descriptions; here they are taken from the document,
//! see [`ApiDescriptions`]. If an API declares output fields, each field is compared separately. An API
//! without output has no edges, whatever its description is.

use std::collections::HashSet;

use serde_json::Value;
use tooltune_apis::{ApiDocument, ApiParameter};
use tooltune_suites::{Embeddings, EncoderError, SentenceEncoder};

use super::dependencies::{DependencyGraph, Edge, EdgeEvidence, MAX_EDGES};
use super::error::GraphError;

/// How a parameter is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterText {
    /// The parameter's description, or its name if it has none.
    Description,
    /// `name: description`, or the name without a description. For documents whose descriptions are
    /// not self-contained, such as API-Bank's "The name.".
    NameAndDescription,
}

/// How an output is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputText {
    /// `output_description`, otherwise the text after the last `Returns: ` in the API's
    /// description, otherwise the whole description.
    Returned,
    /// The API's description as a sentence, for specifications with response descriptions such as
    /// "An album".
    Description,
}

/// How a collection of documents describes inputs and outputs.
///
/// `docs/data.md` lists which rule fits which documents, and how many edges all-MiniLM-L6-v2 keeps
/// with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRule {
    /// Description of parameters.
    pub parameter: ParameterText,
    /// Description of outputs.
    pub output: OutputText,
}

/// The texts of an API for the filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiDescriptions {
    /// The call name.
    pub name: String,
    /// In(n, k): the description of each parameter, required ones first.
    pub inputs: Vec<String>,
    /// Out(n): the output, or one entry per field if a schema declares fields; empty for an API
    /// without output.
    pub outputs: Vec<OutputField>,
}

/// A part of an API's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputField {
    /// Path, such as `results[].id`; empty for the whole output.
    pub path: String,
    /// Description of this part.
    pub text: String,
}

impl OutputField {
    /// An output that is described as a whole.
    pub fn single_text(text: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            text: text.into(),
        }
    }
}

/// Marks the description of the output in StableToolBench's layout.
const RETURNS: &str = "Returns: ";

/// Marks the allowed values in a parameter's description, if the specification lists them
/// separately.
const CHOICES: &str = "One of: ";

/// Maximum length of an output description. Some specifications contain whole pages with change
/// logs, and describe the output at the start.
const MAX_OUTPUT_CHARS: usize = 600;

impl ApiDescriptions {
    /// The texts of a document. With an `output_schema`, its fields are the outputs and are
    /// described like parameters. Otherwise the output is one text, the first 600 characters of its
    /// description.
    pub fn from_document(document: &ApiDocument, rule: TextRule) -> Self {
        let fields = document.output_schema.as_ref();
        let outputs = match fields.map(|schema| output_fields(schema, rule.parameter)) {
            Some(fields) => fields,
            None => vec![OutputField::single_text(output_description(document, rule))],
        };
        Self {
            name: document.call_name(),
            inputs: document
                .parameters()
                .map(|parameter| rule.parameter.text(parameter))
                .collect(),
            outputs,
        }
    }
}

/// The description of the output in the document.
fn output_description(document: &ApiDocument, rule: TextRule) -> String {
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
    // End a bare summary with a full stop, like a summary that is followed by a description.
    if rule.output == OutputText::Description && !output.contains(['.', '!', '?']) {
        output.push('.');
    }
    output
}

/// The scalar fields of an output schema, by path. A scalar with several variants occurs once.
fn output_fields(schema: &Value, rule: ParameterText) -> Vec<OutputField> {
    let mut output_fields = OutputFields {
        rule,
        fields: Vec::new(),
        paths: HashSet::new(),
    };
    output_fields.collect_fields(schema, "", "");
    output_fields.fields
}

struct OutputFields {
    rule: ParameterText,
    fields: Vec<OutputField>,
    paths: HashSet<String>,
}

impl OutputFields {
    /// `name` is the key of the part, prefixed with the key of the object around it.
    fn collect_fields(&mut self, schema: &Value, path: &str, name: &str) {
        let mut has_parts = false;
        for (key, property) in properties(schema) {
            has_parts = true;
            let gap = if path.is_empty() { "" } else { "." };
            let parent_key = name.rsplit(' ').next().unwrap_or_default();
            let child_name = format!("{parent_key} {key}");
            self.collect_fields(property, &format!("{path}{gap}{key}"), child_name.trim());
        }
        if let Some(items) = schema.get("items") {
            has_parts = true;
            self.collect_fields(items, &format!("{path}[]"), name);
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let branches = schema.get(keyword).and_then(Value::as_array);
            for branch in branches.into_iter().flatten() {
                has_parts = true;
                self.collect_fields(branch, path, name);
            }
        }
        let is_nothing = schema.get("type").is_some_and(|kind| kind == "null");
        if has_parts || is_nothing || schema == &Value::Bool(false) {
            return;
        }
        if self.paths.insert(path.to_owned()) {
            let description = schema.get("description").and_then(Value::as_str);
            let text = self
                .rule
                .combine_with(name, description.unwrap_or_default());
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
    fn text(self, parameter: &ApiParameter) -> String {
        // The allowed values of a parameter are not part of its meaning.
        let meaning = parameter.description.split(CHOICES).next();
        self.combine_with(&parameter.name, meaning.unwrap_or_default().trim_end())
    }

    fn combine_with(self, name: &str, meaning: &str) -> String {
        match (self, meaning) {
            (_, "") => name.to_owned(),
            (Self::Description, meaning) => meaning.to_owned(),
            (Self::NameAndDescription, meaning) => format!("{name}: {meaning}"),
        }
    }
}

impl DependencyGraph {
    /// Returns the graph of edges whose output and parameter have similar descriptions: the cosine
    /// of their embeddings is at least `threshold`.
    ///
    /// # Errors
    ///
    /// - the threshold is not from -1 to 1, or two APIs have the same name
    /// - more than [`MAX_EDGES`] edges are kept
    /// - the encoder fails
    ///
    /// # Source
    ///
    /// GOAT, section 3.1.1: filtering via embedding similarity; thresholds .2 and .05 (appendix).
    pub fn from_similarity(
        apis: &[ApiDescriptions],
        encoder: &dyn SentenceEncoder,
        threshold: f64,
    ) -> Result<Self, GraphError> {
        if !(-1.0..=1.0).contains(&threshold) {
            return Err(GraphError::BadThreshold { threshold });
        }
        let outputs = apis.iter().flat_map(|api| &api.outputs);
        let outputs = outputs.map(|field| field.text.as_str());
        let inputs = apis.iter().flat_map(|api| &api.inputs).map(String::as_str);
        let embeddings = Embeddings::encode(outputs.chain(inputs), encoder)?;
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
                let Some(evidence) = nearest_output(&outputs, input) else {
                    continue;
                };
                if f64::from(evidence.score) >= threshold {
                    let edge = Edge {
                        source,
                        target: *target,
                        parameter: *parameter,
                    };
                    edges.push((edge, Some(evidence)));
                }
            }
            if edges.len() > MAX_EDGES {
                return Err(GraphError::TooManyEdges { limit: MAX_EDGES });
            }
        }
        Self::from_descriptions(apis, &edges)
    }
}

/// The output most similar to an input; the first one if there are ties.
fn nearest_output<'a>(outputs: &[(&'a str, Vec<f32>)], input: &[f32]) -> Option<EdgeEvidence<'a>> {
    let mut best: Option<EdgeEvidence<'a>> = None;
    for (field, output) in outputs {
        let score = dot(output, input);
        if best.is_none_or(|best| score > best.score) {
            best = Some(EdgeEvidence { score, field });
        }
    }
    best
}

/// Every parameter as (API, index, description).
fn parameters(apis: &[ApiDescriptions]) -> impl Iterator<Item = (usize, usize, &str)> {
    apis.iter().enumerate().flat_map(|(target, api)| {
        let inputs = api.inputs.iter().enumerate();
        inputs.map(move |(parameter, text)| (target, parameter, text.as_str()))
    })
}

/// Normalizes a vector to length 1. A zero vector is unchanged and similar to nothing.
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

/// The dot product, with eight partial sums that the compiler keeps in one register.
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

    fn single_text(document: &ApiDocument, rule: TextRule) -> String {
        match ApiDescriptions::from_document(document, rule)
            .outputs
            .as_slice()
        {
            [field] if field.path.is_empty() => field.text.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_output_with_a_schema_becomes_its_fields_and_an_empty_one_nothing() {
        let mut tide_document = document("Tides. Returns: Cancelled", "Cancelled");
        let fields = |tide_document: &ApiDocument, parameter| {
            let rule = TextRule {
                parameter,
                ..RETURNED
            };
            let fields = ApiDescriptions::from_document(tide_document, rule)
                .outputs
                .into_iter();
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
        tide_document.output_schema = Some(json!({"type": "object", "properties": {
            "port": {"type": "object", "properties": {
                "id": {"type": "integer", "description": "Number of the port."}}},
            "times": {"type": "array", "items": {"anyOf": [
                {"type": "null"}, {"type": "object", "properties": {"low": {"type": "string"}}}]}},
            "unit": {"type": "string"}}}));
        assert_eq!(
            fields(&tide_document, ParameterText::NameAndDescription),
            owned(&[
                ("port.id", "port id: Number of the port."),
                ("times[].low", "times low"),
                ("unit", "unit"),
            ])
        );
        assert_eq!(
            fields(&tide_document, ParameterText::Description)[0],
            ("port.id".to_owned(), "Number of the port.".to_owned())
        );
        tide_document.output_schema = Some(json!({"type": "null"}));
        assert_eq!(fields(&tide_document, ParameterText::Description), []);
        let apis = [
            ApiDescriptions::from_document(&tide_document, RETURNED),
            apis().remove(1),
        ];
        let graph = DependencyGraph::from_similarity(&apis, &HashEncoder, -1.0).expect("a graph");
        assert!(
            graph.edges().iter().all(|edge| edge.source == 1),
            "{graph:?}"
        );
    }

    #[test]
    fn texts_are_taken_from_the_document() {
        let output =
            |description: &str, output: &str| single_text(&document(description, output), RETURNED);
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
        let texts = ApiDescriptions::from_document(&document("", ""), RETURNED);
        assert_eq!(texts.name, "Harbour/Tide");
        assert_eq!(texts.inputs, ["Name of the port.", "day"]);
        let with_names = TextRule {
            parameter: ParameterText::NameAndDescription,
            output: OutputText::Description,
        };
        let mut tide_document = document("Tides. Returns: x", "y");
        tide_document.optional_parameters[0].description = "One of: 1, 2.".to_owned();
        tide_document.required_parameters[0].description += " One of: Emden, Ulm.";
        let texts = ApiDescriptions::from_document(&tide_document, with_names);
        assert_eq!(texts.inputs, ["port: Name of the port.", "day"]);
        assert_eq!(single_text(&tide_document, with_names), "Tides. Returns: x");
        assert_eq!(single_text(&document("Tides", ""), with_names), "Tides.");
    }

    fn apis() -> Vec<ApiDescriptions> {
        let api = |name: &str, inputs: &[&str], output: &str| ApiDescriptions {
            name: name.to_owned(),
            inputs: inputs.iter().map(ToString::to_string).collect(),
            outputs: vec![OutputField::single_text(output)],
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
    fn an_edge_is_kept_if_its_texts_are_similar() {
        let kept_edges = |threshold| {
            DependencyGraph::from_similarity(&apis(), &HashEncoder, threshold).expect("a graph")
        };
        let similar_edge = Edge {
            source: 0,
            target: 1,
            parameter: 0,
        };
        assert!(
            kept_edges(0.5).edges().contains(&similar_edge),
            "{:?}",
            kept_edges(0.5)
        );
        let evidence = kept_edges(0.5)
            .evidence(&similar_edge)
            .map(|evidence| (evidence.score, evidence.field.to_owned()));
        let (score, field) = evidence.expect("evidence");
        assert!(
            (0.5..1.0).contains(&score) && field.is_empty(),
            "{score} {field}"
        );
        let complete = DependencyGraph::complete_graph(&apis()).expect("small");
        assert_eq!(kept_edges(-1.0).edges(), complete.edges());
        assert_eq!(complete.evidence(&similar_edge), None);
        assert_eq!(kept_edges(1.0).edges(), []);
        let thresholds = [-1.0, 0.0, 0.2, 0.4, 0.6];
        let counts = thresholds.map(|threshold| kept_edges(threshold).edges().len());
        assert!(
            counts.is_sorted_by(|earlier_count, fewer| earlier_count >= fewer),
            "{counts:?}"
        );
    }

    #[test]
    fn the_threshold_must_be_a_cosine() {
        for threshold in [1.5, -2.0, f64::NAN] {
            let error = DependencyGraph::from_similarity(&apis(), &HashEncoder, threshold);
            assert!(
                matches!(error, Err(GraphError::BadThreshold { .. })),
                "{threshold}"
            );
        }
    }

    #[test]
    fn dot_products_of_any_length_include_the_remainder() {
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
