//! Tests, filters, methods and operators against Jinja2 on values of every type.

use super::*;

/// What our engine makes of an expression where Jinja2 says something else.
fn differences(table: &Value, which: &str, source_of: impl Fn(&str) -> String) -> Vec<String> {
    let values = &table["values"];
    let names: Vec<&str> = match which {
        "operators" => strings(&table["operands"]),
        _ => std::iter::once("undefined")
            .chain(values.as_object().unwrap().keys().map(String::as_str))
            .collect(),
    };
    let pairs: Vec<(&str, Option<&str>)> = match which {
        "operators" => names
            .iter()
            .flat_map(|v| names.iter().map(move |w| (*v, Some(*w))))
            .collect(),
        _ => names.iter().map(|v| (*v, None)).collect(),
    };
    let mut found = Vec::new();
    for (expression, wanted) in table[which].as_object().unwrap() {
        let template = ChatTemplate::new(&source_of(expression), SpecialTokens::default());
        let Ok(template) = template else {
            found.push(format!(
                "{expression} does not compile: None, Jinja2 renders"
            ));
            continue;
        };
        let mut template = template;
        let wanted = wanted.as_array().unwrap();
        assert_eq!(wanted.len(), pairs.len(), "{expression}");
        for ((v, w), wanted) in pairs.iter().zip(wanted) {
            let mut variables = Map::new();
            for (name, value) in [("v", Some(*v)), ("w", *w)] {
                if let Some(value) = value.and_then(|value| values.get(value)) {
                    variables.insert(name.to_owned(), value.clone());
                }
            }
            template.variables = variables;
            let conversation = Conversation::new(Vec::new());
            let got = template.render(&conversation, GenerationPrompt::Omit).ok();
            if got.as_deref() != wanted.as_str() {
                let w = w.map(|w| format!(", {w}")).unwrap_or_default();
                found.push(format!("{expression} of {v}{w}: {got:?}, Jinja2 {wanted}"));
            }
        }
    }
    found
}

fn strings(value: &Value) -> Vec<&str> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn every_test_filter_method_and_operator_gives_what_jinja2_gives() {
    let path = fixture("../jinja/table.json");
    let table = crate::json::parse(&fs::read_to_string(path).unwrap()).unwrap();
    let show = table["show"].as_str().unwrap();
    let shown = |expression: &str| show.replace("EXPRESSION", expression);
    let mut found = differences(&table, "expressions", shown);
    found.extend(differences(&table, "operators", shown));
    found.extend(differences(&table, "statements", str::to_owned));
    // What the engine refuses is an error with its line; what it renders is what Jinja2 renders.
    let is_wrong = |line: &&String| !line.contains(": None, Jinja2");
    let wrong: Vec<&String> = found.iter().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(found.len(), 303, "refused, and rendered by Jinja2");
}
