//! The parts of Go's `text/template` and of Ollama's `Modelfile` parser that these tests need,
//! written from their documentation.

use std::collections::BTreeMap;

use regex::Regex;

/// A value of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(Vec<u8>),
    Bool(bool),
    Int(usize),
    List(Vec<Value>),
    Fields(BTreeMap<&'static str, Value>),
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.as_bytes().to_vec())
    }

    fn is_true(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Bool(is_true) => *is_true,
            Self::Int(number) => *number != 0,
            Self::List(items) => !items.is_empty(),
            Self::Fields(fields) => !fields.is_empty(),
        }
    }
}

#[derive(Debug, Clone)]
enum Piece {
    Text(String),
    Action(String),
}

/// Splits a template into text and actions, without the whitespace next to `{{-` and `-}}`.
fn pieces(source: &str) -> Vec<Piece> {
    let (mut pieces, mut rest, mut strips) = (Vec::new(), source, false);
    while let Some((text, after)) = rest.split_once("{{") {
        let mut text = if strips { text.trim_start() } else { text };
        let after = match after.strip_prefix("- ") {
            Some(after) => {
                text = text.trim_end();
                after
            }
            None => after,
        };
        pieces.push(Piece::Text(text.to_owned()));
        // An end marker inside a string does not end the action.
        let (mut end, mut in_string, mut escaped) = (0, false, false);
        for (idx, character) in after.char_indices() {
            match character {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                '}' if !in_string && after[idx..].starts_with("}}") => {
                    end = idx;
                    break;
                }
                _ => {}
            }
        }
        let action = &after[..end];
        strips = action.ends_with(" -");
        pieces.push(Piece::Action(
            action.trim_end_matches(" -").trim().to_owned(),
        ));
        rest = &after[end + 2..];
    }
    let rest = if strips { rest.trim_start() } else { rest };
    pieces.push(Piece::Text(rest.to_owned()));
    pieces
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Open,
    Close,
}

fn tokens(action: &str) -> Vec<Token> {
    let mut words = Vec::new();
    let mut characters = action.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            ' ' => {}
            '(' => words.push(Token::Open),
            ')' => words.push(Token::Close),
            '"' => {
                let mut text = String::new();
                while let Some(character) = characters.next().filter(|c| *c != '"') {
                    let escaped = match character {
                        '\\' => characters.next().unwrap(),
                        plain => {
                            text.push(plain);
                            continue;
                        }
                    };
                    let mut code = |n: usize| {
                        let digits: String = characters.by_ref().take(n).collect();
                        char::from_u32(u32::from_str_radix(&digits, 16).unwrap()).unwrap()
                    };
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        'u' => code(4),
                        'U' => code(8),
                        quote @ ('"' | '\\') => quote,
                        other => panic!("\\{other} is not an escape of Go"),
                    });
                }
                words.push(Token::Text(text));
            }
            first => {
                let mut word = first.to_string();
                while let Some(next) = characters.next_if(|c| !" ()\"".contains(*c)) {
                    word.push(next);
                }
                words.push(Token::Word(word));
            }
        }
    }
    words
}

#[derive(Debug, Clone)]
enum Expression {
    Text(String),
    Int(usize),
    Bool(bool),
    Dot,
    Field(String),
    Variable(String),
    Call(String, Vec<Expression>),
}

/// A command: a function with its arguments, or one operand.
fn command(tokens: &mut std::slice::Iter<'_, Token>) -> Expression {
    let mut operands = Vec::new();
    let mut function = None;
    while let Some(token) = tokens.next() {
        let operand = match token {
            Token::Close => break,
            Token::Open => command(tokens),
            Token::Text(text) => Expression::Text(text.clone()),
            Token::Word(word) => match word.as_str() {
                "." => Expression::Dot,
                "true" => Expression::Bool(true),
                "false" => Expression::Bool(false),
                variable if variable.starts_with('$') => Expression::Variable(word.clone()),
                field if field.starts_with('.') => Expression::Field(field[1..].to_owned()),
                number if number.parse::<usize>().is_ok() => {
                    Expression::Int(number.parse().unwrap())
                }
                _ => {
                    assert!(function.is_none() && operands.is_empty(), "{word}");
                    function = Some(word.clone());
                    continue;
                }
            },
        };
        operands.push(operand);
    }
    match function {
        Some(function) => Expression::Call(function, operands),
        None => {
            assert_eq!(operands.len(), 1);
            operands.remove(0)
        }
    }
}

fn expression(tokens: &[Token]) -> Expression {
    command(&mut tokens.iter())
}

#[derive(Debug, Clone)]
enum Node {
    Text(String),
    Print(Expression),
    Declare(String, Expression),
    Assign(String, Expression),
    If(Vec<(Expression, Vec<Node>)>, Vec<Node>),
    Range(Expression, Vec<Node>),
    Template(String, Expression),
}

/// A template and the templates that it defines.
#[derive(Debug, Default)]
pub(super) struct Template {
    named: BTreeMap<String, Vec<Node>>,
}

impl Template {
    pub(super) fn parse(source: &str) -> Self {
        let mut template = Self::default();
        let pieces = pieces(source);
        let mut rest = pieces.iter();
        let (main, end) = template.nodes(&mut rest);
        assert_eq!(end, "", "an end without a beginning");
        template.named.insert(String::new(), main);
        template
    }

    /// Parses nodes up to an `else` or `end`, which is returned with them.
    fn nodes(&mut self, pieces: &mut std::slice::Iter<'_, Piece>) -> (Vec<Node>, String) {
        let mut nodes = Vec::new();
        while let Some(piece) = pieces.next() {
            let action = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text.clone()));
                    continue;
                }
                Piece::Action(action) => action,
            };
            let words = tokens(action);
            let word = |idx: usize| match words.get(idx) {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            nodes.push(match (word(0), word(1)) {
                ("end" | "else", _) => return (nodes, action.clone()),
                ("define", _) => {
                    let Token::Text(name) = &words[1] else {
                        panic!("{action}")
                    };
                    let (body, end) = self.nodes(pieces);
                    assert_eq!(end, "end");
                    self.named.insert(name.clone(), body);
                    continue;
                }
                ("template", _) => {
                    let Token::Text(name) = &words[1] else {
                        panic!("{action}")
                    };
                    Node::Template(name.clone(), expression(&words[2..]))
                }
                ("range", _) => {
                    let (body, end) = self.nodes(pieces);
                    assert_eq!(end, "end");
                    Node::Range(expression(&words[1..]), body)
                }
                ("if", _) => {
                    let mut branches = Vec::new();
                    let mut condition = expression(&words[1..]);
                    loop {
                        let (body, end) = self.nodes(pieces);
                        branches.push((condition, body));
                        let words = tokens(&end);
                        match &*end {
                            "end" => break Node::If(branches, Vec::new()),
                            "else" => {
                                let (otherwise, end) = self.nodes(pieces);
                                assert_eq!(end, "end");
                                break Node::If(branches, otherwise);
                            }
                            _ => condition = expression(&words[2..]),
                        }
                    }
                }
                (variable, ":=") => Node::Declare(variable.to_owned(), expression(&words[2..])),
                (variable, "=") => Node::Assign(variable.to_owned(), expression(&words[2..])),
                _ => Node::Print(expression(&words)),
            });
        }
        (nodes, String::new())
    }

    /// Returns the output of the template for these fields.
    pub(super) fn execute(&self, fields: &Value) -> String {
        let mut printed = Vec::new();
        self.run(&self.named[""], fields, &mut Vec::new(), &mut printed);
        String::from_utf8(printed).unwrap()
    }

    fn run(
        &self,
        nodes: &[Node],
        dot: &Value,
        variables: &mut Vec<(String, Value)>,
        printed: &mut Vec<u8>,
    ) {
        let outside = variables.len();
        for node in nodes {
            match node {
                Node::Text(text) => printed.extend(text.bytes()),
                Node::Print(expression) => match evaluate(expression, dot, variables) {
                    Value::Text(text) => printed.extend(text),
                    other => panic!("{other:?} is not a text"),
                },
                Node::Declare(name, expression) => {
                    let value = evaluate(expression, dot, variables);
                    variables.push((name.clone(), value));
                }
                Node::Assign(name, expression) => {
                    let value = evaluate(expression, dot, variables);
                    let known = variables.iter_mut().rev().find(|(known, _)| known == name);
                    known.unwrap_or_else(|| panic!("{name} is not declared")).1 = value;
                }
                Node::If(branches, otherwise) => {
                    let mut branches = branches.iter();
                    let branch = branches
                        .find(|(condition, _)| evaluate(condition, dot, variables).is_true());
                    let body = branch.map_or(otherwise, |(_, body)| body);
                    self.run(body, dot, variables, printed);
                }
                Node::Range(expression, body) => {
                    let Value::List(items) = evaluate(expression, dot, variables) else {
                        panic!("{expression:?} is not a list");
                    };
                    for item in &items {
                        self.run(body, item, variables, printed);
                    }
                }
                // A template does not see its caller's variables.
                Node::Template(name, expression) => {
                    let dot = evaluate(expression, dot, variables);
                    self.run(&self.named[name], &dot, &mut Vec::new(), printed);
                }
            }
        }
        variables.truncate(outside);
    }
}

fn evaluate(expression: &Expression, dot: &Value, variables: &[(String, Value)]) -> Value {
    let value = |expression: &Expression| evaluate(expression, dot, variables);
    let (function, operands) = match expression {
        Expression::Text(text) => return Value::text(text),
        Expression::Int(number) => return Value::Int(*number),
        Expression::Bool(is_true) => return Value::Bool(*is_true),
        Expression::Dot => return dot.clone(),
        Expression::Field(name) => match dot {
            Value::Fields(fields) => return fields[name.as_str()].clone(),
            other => panic!("{other:?} has no field {name}"),
        },
        Expression::Variable(name) => {
            let mut known = variables.iter().rev().filter(|(known, _)| known == name);
            return known
                .next()
                .unwrap_or_else(|| panic!("{name} is not declared"))
                .1
                .clone();
        }
        Expression::Call(function, operands) => (function.as_str(), operands),
    };
    let size = |value: Value| match value {
        Value::Int(number) => number,
        other => panic!("{other:?} is not a number"),
    };
    match function {
        "not" => Value::Bool(!value(&operands[0]).is_true()),
        // Arguments after the first false one are not evaluated.
        "and" => {
            let mut last = Value::Bool(true);
            for operand in operands {
                last = value(operand);
                if !last.is_true() {
                    break;
                }
            }
            last
        }
        "eq" => {
            let first = value(&operands[0]);
            Value::Bool(operands[1..].iter().any(|other| value(other) == first))
        }
        "ge" => Value::Bool(size(value(&operands[0])) >= size(value(&operands[1]))),
        "len" => match value(&operands[0]) {
            Value::Text(text) => Value::Int(text.len()),
            other => panic!("{other:?} has no length"),
        },
        "slice" => {
            let Value::Text(text) = value(&operands[0]) else {
                panic!("{operands:?} is not a text");
            };
            let bounds: Vec<usize> = operands[1..]
                .iter()
                .map(|bound| size(value(bound)))
                .collect();
            let end = bounds.get(1).copied().unwrap_or(text.len());
            Value::Text(text[bounds[0]..end].to_vec())
        }
        other => panic!("{other} is not a function"),
    }
}

/// Parses the commands of a `Modelfile` and their arguments like Ollama: unprintable characters are
/// dropped, and a quoted argument ends at the first line that ends with closing quotes.
pub(super) fn commands(modelfile: &str) -> Vec<(String, String)> {
    let is_printable = Regex::new(r"^[ \p{L}\p{M}\p{N}\p{P}\p{S}]$").unwrap();
    let is_printable =
        |character: char| character != '\u{a0}' && is_printable.is_match(&character.to_string());
    let unquoted = |text: &str| -> Option<String> {
        for quotes in ["\"\"\"", "\""] {
            if let Some(rest) = text.strip_prefix(quotes) {
                return rest.strip_suffix(quotes).map(str::to_owned);
            }
        }
        Some(text.to_owned())
    };
    let mut commands = Vec::new();
    let mut rest = modelfile;
    while !rest.is_empty() {
        let (name, after) = rest.split_once(' ').unwrap();
        let (name, after) = match name {
            "PARAMETER" => after.split_once(' ').unwrap(),
            name => (name, after),
        };
        let mut text = String::new();
        let mut end = after.len();
        for (idx, character) in after.char_indices() {
            let is_blank = [' ', '\t'].contains(&character);
            if ['\n', '\r'].contains(&character) && unquoted(text.trim()).is_some() {
                end = idx;
                break;
            }
            if is_blank || ['\n', '\r'].contains(&character) || is_printable(character) {
                text.push(character);
            }
        }
        let text = unquoted(text.trim()).unwrap_or_else(|| panic!("{text:?} has no end"));
        commands.push((name.to_owned(), text));
        rest = after[end..].trim_start_matches(['\n', '\r']);
    }
    commands
}
