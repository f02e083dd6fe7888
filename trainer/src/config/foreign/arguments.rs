//! The text of a shell script -> the arguments of the command in it.

use serde_json::{Map, Value};

/// The arguments of a command line, as in a shell script: `--key value`, `--key=value`, `--flag` and
/// `--list a b`. Words before the first argument are passed over; nothing where the text is no words of
/// a shell: a quote is not closed, or the text ends with a backslash.
pub fn arguments(text: &str) -> Option<Map<String, Value>> {
    let mut found = Map::new();
    let mut key: Option<String> = None;
    let mut values: Vec<String> = Vec::new();
    let mut end = |key: &mut Option<String>, values: &mut Vec<String>| {
        let values: Vec<Value> = values.drain(..).map(|text| scalar(&text)).collect();
        if let Some(key) = key.take() {
            let value = match values.len() {
                0 => Value::Bool(true),
                1 => values.into_iter().next().unwrap_or_default(),
                _ => Value::Array(values),
            };
            found.insert(key.replace('-', "_"), value);
        }
    };
    for word in words(text)? {
        match word.strip_prefix("--") {
            Some(named) => {
                end(&mut key, &mut values);
                let (name, value) = named
                    .split_once('=')
                    .map_or((named, None), |(n, v)| (n, Some(v)));
                key = Some(name.to_owned());
                values.extend(value.map(str::to_owned));
            }
            None if key.is_some() => values.push(word),
            None => {}
        }
    }
    end(&mut key, &mut values);
    Some(found)
}

/// The words of a script, as a shell reads them; nothing where the text is no words of a shell.
pub fn words(text: &str) -> Option<Vec<String>> {
    // A continued line parts no words.
    let text = text.replace("\r\n", "\n").replace("\\\n", "");
    shlex::split(&text)
}

/// A word as the value that it spells.
fn scalar(text: &str) -> Value {
    match text {
        "true" | "True" => return Value::Bool(true),
        "false" | "False" => return Value::Bool(false),
        _ => {}
    }
    let number = text.parse::<i64>().ok().map(Value::from);
    let number = number.or_else(|| {
        let looks_so = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.'));
        let value = text.parse::<f64>().ok().filter(|_| looks_so)?;
        serde_json::Number::from_f64(value).map(Value::Number)
    });
    number.unwrap_or_else(|| Value::from(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_of_a_shell_script_are_read_as_the_shell_reads_them() {
        let text = "CUDA_VISIBLE_DEVICES=0 \\\nswift sft \\\n  --model 'a b' \\\n  --dataset x.jsonl#500 \
                    y.jsonl \\\n  --learning_rate 1e-4 # the peak\n  --packing --lora-rank=8 --system \"\"";
        let expected = json!({"model": "a b", "dataset": ["x.jsonl#500", "y.jsonl"],
            "learning_rate": 1e-4, "packing": true, "lora_rank": 8, "system": ""});
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            assert_eq!(arguments(&text).map(Value::Object), Some(expected.clone()));
        }
        let escaped = arguments("--a \"x \\\"y\\\"\" --b one\\ word --c lon\\\nger");
        let expected = json!({"a": "x \"y\"", "b": "one word", "c": "longer"});
        assert_eq!(escaped.map(Value::Object), Some(expected));
        for broken in ["--a 'x", "--a \"x", "--a x\\"] {
            assert_eq!(arguments(broken), None, "{broken}");
        }
    }
}
