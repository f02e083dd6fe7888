//! Our own prompts, a replacement for the published ones.
//!
//! They request the same content with the same placeholders, so that both sets are interchangeable,
//! but only runs with the published prompts are comparable with the paper's tables.

use super::setting::Setting;

const ANSWER_TASK: &str = "Below is what an API returned, as JSON. Answer the question from it and from nothing else.\n\n\
     ```json\n{api_response}\n```\n\nQuestion: {question}\n\n";

const STEPS: &str = "Work in steps: find out how the JSON is built, pick the fields that the question is about, \
     and derive the answer from their values.\n\n";

const ANSWER_ONLY: &str =
    "Reply with the answer alone: no sentence around it, no explanation, no JSON.\n\n";

const ANSWER_END: &str = "Answer:";

const CODE_TASK: &str = "An API has returned the JSON object `data`. Write a Python function that answers this \
     request: <<task_prefix>>\n\n";

const CODE_TASK_UNSEEN: &str = "An API has returned a JSON object, loaded already as a Python dictionary. You see its JSON \
     Schema only. Write a Python function that answers this request: <<task_prefix>>\n\n";

const CODE_TASK_REDUCED: &str = "An API has returned a JSON object. `data` below is a shortened copy of it: lists are cut to a \
     few items, while the function will be given the whole. Write a Python function that answers \
     this request: <<task_prefix>>\n\n";

const CODE_STEPS: &str = "Work in steps: read the schema, pick the fields that the request is about, think of missing \
     keys, nulls and unexpected types, then write the code.\n\n";

const CODE_RULES: &str = "The function\n\
    - is defined with \"def \" and takes one argument, the whole response;\n\
    - checks that a key exists and is not None before it uses its value;\n\
    - compares texts in lower case;\n\
    - takes characters that are no digits out of a text before it reads a number from it;\n\
    - returns the answer alone, as a string.\n\n\
    Reply with the function in a Python code block, between ```python and ```, without \
    explanations, comments or an example of its use.\n\n";

const SCHEMA: &str = "JSON Schema of the data: <<json_schema>>\n\n";

const CODE_DATA: &str = "data = <<json_obj>>\n\n";

const CODE_END: &str = "Python function:\n";

/// Our own judge prompt.
pub(crate) const JUDGE: &str = "Two texts follow: the right answer to a question and a predicted one. Say \
    whether they mean the same. Other words, another order or a whole sentence do no harm. Reply \
    with one word, True or False.\n\n\
    Right answer: {gold_answer}\nPredicted answer: {predicted_answer}\n\n\
    Do they mean the same?";

/// Our own classifier prompt.
pub(crate) const CLASSIFIER: &str = "Questions about JSON data are of three kinds:\n\
    - Extractive: the value of a key is asked for\n\
    - Filtering: the entries that fulfil a condition are asked for\n\
    - Aggregation: a value computed from several entries is asked for\n\n\
    Of which kind is the question below? End with \"Final answer, category: \" and the kind.\n\n\
    Question: \"{nl_query}\"\nJSON Schema of the data: \"{schema}\"\nFinal answer, category: ";

/// Our own prompt for a setting.
pub(crate) fn built_in_text(setting: Setting) -> String {
    let parts: &[&str] = match setting {
        Setting::Answer => &[ANSWER_TASK, ANSWER_ONLY, ANSWER_END],
        Setting::AnswerSchema => &[ANSWER_TASK, ANSWER_ONLY, SCHEMA, ANSWER_END],
        Setting::CotAnswerSchema => &[ANSWER_TASK, STEPS, ANSWER_ONLY, SCHEMA, ANSWER_END],
        Setting::Code => &[CODE_TASK, CODE_RULES, CODE_DATA, CODE_END],
        Setting::CodeSchema => &[CODE_TASK, CODE_RULES, SCHEMA, CODE_DATA, CODE_END],
        Setting::CodeSchemaNoResponse => &[CODE_TASK_UNSEEN, CODE_RULES, SCHEMA, CODE_END],
        Setting::CodeSchemaReduced => &[CODE_TASK_REDUCED, CODE_RULES, SCHEMA, CODE_DATA, CODE_END],
        Setting::CotCodeSchema => &[
            CODE_TASK, CODE_STEPS, CODE_RULES, SCHEMA, CODE_DATA, CODE_END,
        ],
    };
    parts.concat()
}
