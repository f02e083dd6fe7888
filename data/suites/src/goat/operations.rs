//! The GOAT suite and its pipeline as operations of `tooltune score`.
//!
//! Each function only reads the fields of a line and calls the suite; it contains no scoring rules.
//! Values compared as JSON are parsed from the raw line, so that numbers keep all digits.

use super::{
    ApiBankCall, ApiBankSample, ArgumentEquality, Arguments, Call, Endpoints, GoatError,
    LengthCase, answer_holds_facts, api_bank_correctness, api_bank_sample_accuracy, args_equal,
    correct_path, delta_len, invocation_accuracy, mean_pct, parse_judge, percent, rouge_l_apibank,
    rouge_l_plain, selection_accuracy,
};
use crate::budgets::{CALL_PAIRS, ROUGE_STEPS};
use crate::ranking::{RankedGold, RetrievalError};
use serde_json::{Value, json};
use tooltune_json::ExactJson;

use crate::operations::{Fields, InputField, LineError, Operation, Request};

const CALLS: &str = "array of {name, args}; args is an object, its text, or null";
const PRED_CALLS: InputField = InputField::new("pred", CALLS);
const GOLD_CALLS: InputField = InputField::new("gold", CALLS);
const MODE: InputField = InputField::new("options.mode", "\"normalized\" (default) or \"strict\"");
const TEMPLATES: InputField = InputField::new(
    "templates",
    "endpoint names, such as \"GET /movie/{movie_id}\"; optional",
);
const INSTANCES: InputField = InputField::new(
    "instances",
    "array of {pred, gold}, each an array of {name, args, output, exception}; a gold call may have \
     check_input",
);
const HYPOTHESIS: InputField = InputField::new("hyp", "the answer");
const REFERENCE: InputField = InputField::new("ref", "the gold answer");
const RANKED: InputField = InputField::new("ranked", "names of documents, best first");
const GOLD_DOCUMENTS: InputField = InputField::new("gold", "names of the gold documents");

/// All operations of the suite.
pub(super) static OPERATIONS: &[Operation] = &[
    Operation {
        name: "goat.sa",
        fields: &[PRED_CALLS, GOLD_CALLS, TEMPLATES],
        definition: "selection accuracy: Jaccard similarity of the sets of names",
        run: |request| {
            let (pred, gold) = (calls(request, "pred")?, calls(request, "gold")?);
            Ok(json!(selection_accuracy(&pred, &gold)))
        },
    },
    Operation {
        name: "goat.ia",
        fields: &[PRED_CALLS, GOLD_CALLS, TEMPLATES, MODE],
        definition: "invocation accuracy: Jaccard similarity of the sets of names with arguments",
        run: |request| {
            let (pred, gold) = (calls(request, "pred")?, calls(request, "gold")?);
            Ok(json!(invocation_accuracy(&pred, &gold, equality(request)?)))
        },
    },
    Operation {
        name: "goat.args_equal",
        fields: &[
            InputField::new("a", "arguments: an object, its text, or null"),
            InputField::new("b", "arguments"),
            MODE,
        ],
        definition: "whether two calls have the same arguments",
        run: |request| {
            let [left, right] = ["a", "b"].map(|name| {
                request.input.value(name)?;
                Ok::<_, LineError>(Arguments::from(request.exact_input(name)))
            });
            Ok(json!(args_equal(&left?, &right?, equality(request)?)))
        },
    },
    Operation {
        name: "goat.norm_name",
        fields: &[InputField::new("name", "the name to normalize"), TEMPLATES],
        definition: "the endpoint template that matches a name, or the normalized name",
        run: |request| {
            let name = request.input.text("name")?;
            Ok(json!(endpoints(request)?.normalize(name)))
        },
    },
    Operation {
        name: "goat.correct_path",
        fields: &[
            InputField::new("pred", "names in order"),
            InputField::new("gold", "names in order, or an array of such paths"),
            TEMPLATES,
        ],
        definition: "whether a gold path is a subsequence of the predicted one",
        run: path,
    },
    Operation {
        name: "goat.delta_len",
        fields: &[InputField::new(
            "items",
            "array of {success, pred_len, gold_len}",
        )],
        definition: "mean number of calls beyond the gold calls over the solved cases, or null",
        run: lengths,
    },
    Operation {
        name: "goat.percent",
        fields: &[InputField::new("flags", "array of booleans")],
        definition: "percentage of true flags, or null",
        run: |request| Ok(json!(percent(&request.input.flags("flags")?))),
    },
    Operation {
        name: "goat.mean_pct",
        fields: &[InputField::new("values", "array of numbers")],
        definition: "mean of fractions in per cent, or null",
        run: |request| Ok(json!(mean_pct(&request.input.numbers("values")?))),
    },
    Operation {
        name: "goat.parse_judge",
        fields: &[InputField::new("text", "the judge's reply")],
        definition: "the judge's verdict, or null if the reply has none",
        run: verdict,
    },
    Operation {
        name: "goat.facts",
        fields: &[
            InputField::new("answer", "the final answer"),
            InputField::new("facts", "texts that it must contain"),
        ],
        definition: "whether the answer contains every fact, numbers compared by value",
        run: |request| {
            let (answer, facts) = (request.input.text("answer")?, request.input.texts("facts")?);
            Ok(json!(answer_holds_facts(answer, &facts)))
        },
    },
    Operation {
        name: "goat.apibank_correctness",
        fields: &[INSTANCES],
        definition: "percentage of predicted calls with the result of an unused gold call",
        run: |request| Ok(json!(api_bank_correctness(&instances(request)?))),
    },
    Operation {
        name: "goat.apibank_sample_accuracy",
        fields: &[INSTANCES],
        definition: "percentage of samples in which all predicted and gold calls match",
        run: |request| Ok(json!(api_bank_sample_accuracy(&instances(request)?))),
    },
    Operation {
        name: "goat.rouge_l_apibank",
        fields: &[HYPOTHESIS, REFERENCE],
        definition: "ROUGE-L F as the Python package rouge computes it",
        run: |request| {
            let (hypothesis, reference) = (request.input.text("hyp")?, request.input.text("ref")?);
            score_or_error(rouge_l_apibank(hypothesis, reference))
        },
    },
    Operation {
        name: "goat.rouge_l_plain",
        fields: &[HYPOTHESIS, REFERENCE],
        definition: "ROUGE-L F as Google's rouge_score computes it",
        run: |request| {
            let (hypothesis, reference) = (request.input.text("hyp")?, request.input.text("ref")?);
            score_or_error(rouge_l_plain(hypothesis, reference))
        },
    },
    Operation {
        name: "goat.recall_at",
        fields: &[
            RANKED,
            GOLD_DOCUMENTS,
            InputField::new("k", "a positive integer"),
        ],
        definition: "fraction of the gold documents among the first k",
        run: |request| {
            let k = match request.input.count("k")? {
                0 => return Err(request.input.wrong_type("k", "a positive integer")),
                k => usize::try_from(k).unwrap_or(usize::MAX),
            };
            Ok(json!(ranked_gold(request)?.recall_at(k)))
        },
    },
    Operation {
        name: "goat.recall_at_gt",
        fields: &[RANKED, GOLD_DOCUMENTS],
        definition: "fraction of the gold documents among the first n, with n gold documents",
        run: |request| Ok(json!(ranked_gold(request)?.recall_at_gt())),
    },
];

impl From<GoatError> for LineError {
    fn from(error: GoatError) -> Self {
        let kind = match error {
            GoatError::EmptyGold => "empty_gold",
            GoatError::NoSamples => "empty_dataset",
        };
        Self::NoValue {
            kind,
            message: error.to_string(),
        }
    }
}

impl From<RetrievalError> for LineError {
    fn from(error: RetrievalError) -> Self {
        let kind = match error {
            RetrievalError::EmptyGold => "empty_gold",
            RetrievalError::NoQueries => "empty_dataset",
        };
        Self::NoValue {
            kind,
            message: error.to_string(),
        }
    }
}

/// The endpoint templates in the line.
fn endpoints(request: &Request<'_>) -> Result<Endpoints, LineError> {
    Ok(Endpoints::new(
        request
            .input
            .optional_texts("templates")?
            .unwrap_or_default(),
    ))
}

fn calls(request: &Request<'_>, name: &str) -> Result<Vec<Call>, LineError> {
    let endpoints = endpoints(request)?;
    let exact_json = request.exact_input(name);
    let items = request.input.objects(name)?.into_iter();
    let call = |(item, exact_json): (Fields<'_>, &ExactJson)| {
        let name = item.optional_text("name")?.unwrap_or_default();
        Ok(Call {
            name: endpoints.normalize(name),
            arguments: Arguments::from(exact_json.get("args").unwrap_or(&ExactJson::Null)),
        })
    };
    items.zip(exact_json.items()).map(call).collect()
}

fn equality(request: &Request<'_>) -> Result<ArgumentEquality, LineError> {
    match request.choice("mode")? {
        None | Some("normalized") => Ok(ArgumentEquality::Normalized),
        Some("strict") => Ok(ArgumentEquality::Strict),
        Some(_) => Err(LineError::WrongType {
            field: "options.mode".to_owned(),
            expected: "\"normalized\" or \"strict\"",
        }),
    }
}

fn path(request: &Request<'_>) -> Result<Value, LineError> {
    let endpoints = endpoints(request)?;
    let normal = |names: Vec<&str>| -> Vec<String> {
        names
            .into_iter()
            .map(|name| endpoints.normalize(name))
            .collect()
    };
    let golds: Vec<Vec<&str>> = match request.input.texts("gold") {
        Ok(path) => vec![path],
        Err(_) => request.input.text_lists("gold")?,
    };
    let pred = normal(request.input.texts("pred")?);
    let golds: Vec<Vec<String>> = golds.into_iter().map(normal).collect();
    Ok(json!(correct_path(&pred, &golds)?))
}

fn lengths(request: &Request<'_>) -> Result<Value, LineError> {
    let case = |item: &Fields<'_>| {
        Ok(LengthCase {
            success: item.flag("success")?,
            pred_len: item.count("pred_len")?,
            gold_len: item.count("gold_len")?,
        })
    };
    let items = request.input.objects("items")?;
    let cases: Vec<LengthCase> = items.iter().map(case).collect::<Result<_, LineError>>()?;
    Ok(json!(delta_len(&cases)))
}

fn verdict(request: &Request<'_>) -> Result<Value, LineError> {
    Ok(json!(parse_judge(request.input.text("text")?)))
}

fn instances(request: &Request<'_>) -> Result<Vec<ApiBankSample>, LineError> {
    let exact_json = request.exact_input("instances");
    let samples = request.input.objects("instances")?.into_iter();
    let samples: Vec<ApiBankSample> = samples
        .zip(exact_json.items())
        .map(|(sample, exact_json)| {
            Ok(ApiBankSample {
                pred: executed_calls(&sample, exact_json, "pred")?,
                gold: executed_calls(&sample, exact_json, "gold")?,
            })
        })
        .collect::<Result<_, LineError>>()?;
    let pairs = samples
        .iter()
        .map(|sample| sample.pred.len().saturating_mul(sample.gold.len()));
    let n_pairs = pairs.fold(0_usize, usize::saturating_add);
    if n_pairs > CALL_PAIRS {
        Err(LineError::NoValue {
            kind: "too_large",
            message: format!(
                "`input.instances` has {n_pairs} pairs of predicted and gold calls of the same \
                 sample; at most {CALL_PAIRS} are compared (CALL_PAIRS in docs/limits.md)"
            ),
        })
    } else {
        Ok(samples)
    }
}

fn executed_calls(
    sample: &Fields<'_>,
    exact_json: &ExactJson,
    name: &str,
) -> Result<Vec<ApiBankCall>, LineError> {
    let exact_json = exact_json.get(name).map_or(&[][..], ExactJson::items);
    let calls = sample.objects(name)?.into_iter();
    calls
        .zip(exact_json)
        .map(|(call, exact_json)| {
            let part = |name| exact_json.get(name).cloned().unwrap_or(ExactJson::Null);
            call.value("output")?;
            Ok(ApiBankCall {
                name: call.text("name")?.to_owned(),
                output: part("output"),
                exception: part("exception"),
                arguments: Arguments::from(&part("args")),
                check_input: call.optional_flag("check_input")?,
            })
        })
        .collect()
}

fn score_or_error(score: Option<f64>) -> Result<Value, LineError> {
    score
        .map(|score| json!(score))
        .ok_or_else(|| LineError::NoValue {
            kind: "too_large",
            message: format!(
                "`input.hyp` and `input.ref` have too many words: the comparison takes more than \
             {ROUGE_STEPS} steps of 64 pairs of words; two texts of 100,000 words each fit (ROUGE_STEPS in \
             docs/limits.md)"
            ),
        })
}

fn ranked_gold(request: &Request<'_>) -> Result<RankedGold, LineError> {
    let (ranked, gold) = (request.input.texts("ranked")?, request.input.texts("gold")?);
    Ok(RankedGold::new(&ranked, &gold)?)
}
