//! Compares tests, filters, methods and operators with Jinja2 on values of every type.

use super::*;

/// Returns the lines in which our engine's result differs from Jinja2's result.
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
    let mut errors = Vec::new();
    for (expression, results) in table[which].as_object().unwrap() {
        let template = ChatTemplate::new(&source_of(expression), SpecialTokens::default());
        let Ok(template) = template else {
            errors.push(format!(
                "{expression} does not compile: None, Jinja2 renders"
            ));
            continue;
        };
        let mut template = template;
        let results = results.as_array().unwrap();
        assert_eq!(results.len(), pairs.len(), "{expression}");
        for ((v, w), result) in pairs.iter().zip(results) {
            let mut variables = Map::new();
            for (name, value) in [("v", Some(*v)), ("w", *w)] {
                if let Some(value) = value.and_then(|value| values.get(value)) {
                    variables.insert(name.to_owned(), value.clone());
                }
            }
            template.variables = variables;
            let conversation = Conversation::new(Vec::new());
            let actual = template.render(&conversation, GenerationPrompt::Omit).ok();
            if actual.as_deref() != result.as_str() {
                let w = w.map(|w| format!(", {w}")).unwrap_or_default();
                errors.push(format!(
                    "{expression} of {v}{w}: {actual:?}, Jinja2 {result}"
                ));
            }
        }
    }
    errors
}

fn strings(value: &Value) -> Vec<&str> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap()).collect()
}

/// Invariant: Chat templates render as in transformers.
#[test]
fn every_test_filter_method_and_operator_gives_what_jinja2_gives() {
    let path = fixture("../jinja/table.json");
    let table = tooltune_json::parse(&fs::read_to_string(path).unwrap()).unwrap();
    let show = table["show"].as_str().unwrap();
    let show_expression = |expression: &str| show.replace("EXPRESSION", expression);
    let mut found = differences(&table, "expressions", show_expression);
    found.extend(differences(&table, "operators", show_expression));
    found.extend(differences(&table, "statements", str::to_owned));
    // Our engine may reject an expression and name its line, but any result must equal Jinja2's
    // result.
    let is_wrong = |line: &&String| !line.contains(": None, Jinja2");
    let wrong: Vec<&String> = found.iter().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(found.len(), 298, "rejected here, but rendered by Jinja2");
}

#[test]
fn a_dictionary_method_is_found_unless_a_key_has_its_name() {
    // The output of Jinja2 3.1.6 in the environment of transformers.
    let expected = [
        ("d['items'] is mapping", "false"),
        ("d['items'] is iterable", "false"),
        ("d['items'] is sequence", "false"),
        ("d['items'] is string", "false"),
        ("d['items'] is number", "false"),
        ("d['items'] is none", "false"),
        ("d['items'] is defined", "true"),
        ("d.items is defined", "true"),
        ("d['items'] is callable", "true"),
        ("d['items'] == d['items']", "true"),
        ("d['items'] == d['keys']", "false"),
        ("d['items'] == 'a'", "false"),
        ("d['items']['type'] is defined", "false"),
        ("d['items'].type is defined", "false"),
        ("d['items'].items is defined", "false"),
        ("d['items'] and true", "true"),
        ("not d.items", "false"),
        ("d['items'] is mapping and d['items']", "false"),
        ("(d['items'] | default('n')) is string", "false"),
        ("(d['items']() | list | length) == 1", "true"),
        ("d['get']('k') == 'v'", "true"),
    ];
    let rendered = |source: &str| {
        let mut template = inline(source);
        template.variables = Map::from_iter([("d".to_owned(), json!({"k": "v"}))]);
        template.render(&Conversation::new(Vec::new()), GenerationPrompt::Omit)
    };
    for (expression, expected_text) in expected {
        let text = rendered(&format!("{{{{ 'true' if {expression} else 'false' }}}}"));
        assert_eq!(text.unwrap(), expected_text, "{expression}");
    }
    for failing in [
        "d['items']",
        "d.items",
        "d['items'] | length",
        "d['items'] | list",
        "d['items'] | tojson",
        "d['items'] | string",
        "d['items'] | trim",
        "d['items'] | upper",
        "d['items'] | dictsort",
        "d['items'] | items",
        "d['items'] | join",
        "d['items'] ~ 'a'",
        "[d['items']] | join",
        "'%s' | format(d['items'])",
        "'x' in d['items']",
        "d['pop']",
    ] {
        let result = rendered(&format!("{{{{ {failing} }}}}"));
        assert!(result.is_err(), "{failing}: {result:?}");
    }
    let printed = rendered("{{ d.items }}").unwrap_err().to_string();
    assert!(
        printed.contains("`items`, the method of a dictionary"),
        "{printed}"
    );
    let looped = rendered("{% for x in d.items %}{% endfor %}")
        .unwrap_err()
        .to_string();
    assert!(
        looped.contains("(its key of this name is `['items']`)"),
        "{looped}"
    );
}

#[test]
fn a_schema_of_an_array_without_items_renders_as_in_transformers() {
    // The lines of Gemma 4's template (trl 1.16.0, gemma4.jinja) that read `items`.
    let template = inline(
        "{%- for tool in tools -%}
        {%- for key, value in tool['function']['parameters']['properties'] | dictsort -%}
            {%- set add_comma = false -%}
            {{ key }}:{
            {%- if value['description'] -%}
                description:<|\"|>{{ value['description'] }}<|\"|>
                {%- set add_comma = true -%}
            {%- endif -%}
            {%- if value['type'] | upper == 'ARRAY' -%}
                {%- if value['items'] is mapping and value['items'] -%}
                    {%- if add_comma %},{%- else -%} {%- set add_comma = true -%} {% endif -%}
                    items:{type:{{ value['items']['type'] | upper }}}
                {%- endif -%}
            {%- endif -%}
            {%- if add_comma %},{%- else -%} {%- set add_comma = true -%} {% endif -%}
            type:<|\"|>{{ value['type'] | upper }}<|\"|>}
        {%- endfor -%}
        {%- endfor -%}",
    );
    let with = |parameter: Value| {
        conversation(&json!({
            "messages": [{"role": "user", "content": "How deep?"}],
            "tools": [{"type": "function", "function": {
                "name": "harbour_depths",
                "parameters": {"type": "object", "properties": {"harbours": parameter}},
            }}],
        }))
    };
    let render = |parameter| template.render(&with(parameter), GenerationPrompt::Omit);
    let text = render(json!({"type": "array", "description": "Names."})).unwrap();
    let expected = "harbours:{description:<|\"|>Names.<|\"|>,type:<|\"|>ARRAY<|\"|>}";
    assert_eq!(text, expected);
    let text = render(json!({"type": "array", "items": {"type": "string"}})).unwrap();
    assert_eq!(
        text,
        "harbours:{items:{type:STRING},type:<|\"|>ARRAY<|\"|>}"
    );
}
