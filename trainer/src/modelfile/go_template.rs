//! Writes turns in Go's template language, with Ollama's variables: `.Messages`, each with `.Role`
//! and `.Content`.
//!
//! # Source
//!
//! ollama/ollama, `template/template.go`; the Go standard library, `text/template`.

use std::fmt::Write;

use super::turns::{Stripped, Turn, Turns};

/// Translates turns to a template. `default_system` is for conversations without a system message.
pub(super) fn go_template(turns: &Turns, default_system: Option<&str>) -> String {
    let mut strippers = Strippers::default();
    let system = strippers.turn(&turns.system);
    let user = strippers.turn(&turns.user);
    let assistant = strippers.turn(&turns.assistant);
    let after_system = turns.user_after_system.as_ref();
    let after_system = after_system.map(|turn| strippers.turn(turn));
    let opening = match default_system {
        None => turns.opening.clone(),
        Some(text) => {
            let Turn {
                before,
                after,
                stripped,
            } = &turns.system;
            format!("{before}{}{after}", stripped.apply(text))
        }
    };
    let mut template = strippers.definitions();
    if !opening.is_empty() || default_system.is_some() {
        let _ = write!(
            template,
            "{{{{- $told := false }}}}{{{{- range .Messages }}}}{{{{- if eq .Role \"system\" }}}}\
             {{{{- $told = true }}}}{{{{- end }}}}{{{{- end }}}}{{{{- if not $told }}}}{}{{{{- end }}}}",
            go_print(&opening)
        );
    }
    let (declared, user, is_joined, is_not_joined) = match after_system {
        None => (String::new(), user, "", ""),
        Some(after_system) => {
            let declared = match default_system {
                Some(_) => "{{- $joined := not $told }}",
                None => "{{- $joined := false }}",
            };
            let user =
                format!("{{{{- if $joined }}}}{after_system}{{{{- else }}}}{user}{{{{- end }}}}");
            (
                declared.to_owned(),
                user,
                "{{- $joined = true }}",
                "{{- $joined = false }}",
            )
        }
    };
    let _ = write!(
        template,
        "{declared}{{{{- range .Messages }}}}{{{{- if eq .Role \"system\" }}}}{system}{is_joined}\
         {{{{- else if eq .Role \"user\" }}}}{user}{is_not_joined}\
         {{{{- else if eq .Role \"assistant\" }}}}{assistant}{is_not_joined}\
         {{{{- end }}}}{{{{- end }}}}{}",
        go_print(&turns.generation)
    );
    template
}

/// Templates that strip a string, because Go's templates have no function for it.
#[derive(Default)]
struct Strippers<'t> {
    named: Vec<&'t Stripped>,
}

impl<'t> Strippers<'t> {
    /// The actions that print a turn.
    fn turn(&mut self, turn: &'t Turn) -> String {
        let [before, after] = [&turn.before, &turn.after].map(|text| go_print(text));
        format!("{before}{}{after}", self.content(&turn.stripped))
    }

    /// The action that prints the content of a message.
    fn content(&mut self, stripped: &'t Stripped) -> String {
        if stripped.is_nothing() {
            return "{{ .Content }}".to_owned();
        }
        let known = self.named.iter().position(|other| *other == stripped);
        let number = known.unwrap_or_else(|| {
            self.named.push(stripped);
            self.named.len() - 1
        });
        format!("{{{{ template \"strip{number}\" .Content }}}}")
    }

    fn definitions(&self) -> String {
        let definitions = self.named.iter().enumerate();
        definitions
            .map(|(number, stripped)| definition(&format!("strip{number}"), stripped))
            .collect()
    }
}

/// Defines a template that prints a stripped string: it removes one character and calls itself with
/// the rest. Characters are compared by their bytes, because Go's `slice` uses byte offsets.
fn definition(name: &str, stripped: &Stripped) -> String {
    let mut text = format!("{{{{- define \"{name}\" }}}}");
    let mut otherwise = "";
    for (characters, is_start) in [(&stripped.start, true), (&stripped.end, false)] {
        for n_bytes in 1..=4 {
            let alike = characters
                .iter()
                .filter(|character| character.len_utf8() == n_bytes);
            let listed: Vec<String> = alike.map(|c| quote(&c.to_string())).collect();
            if listed.is_empty() {
                continue;
            }
            // Slicing twice by the length of the rest yields the last bytes.
            let [part, rest] = match is_start {
                true => [format!("slice . 0 {n_bytes}"), format!("slice . {n_bytes}")],
                false => [
                    format!("slice . (len (slice . {n_bytes}))"),
                    format!("slice . 0 (len (slice . {n_bytes}))"),
                ],
            };
            let _ = write!(
                text,
                "{{{{- {otherwise}if and (ge (len .) {n_bytes}) (eq ({part}) {}) }}}}\
                 {{{{- template \"{name}\" ({rest}) }}}}",
                listed.join(" ")
            );
            otherwise = "else ";
        }
    }
    text + "{{- else }}{{ . }}{{- end }}{{- end }}"
}

/// An action that prints a string literal. Neighbouring tags strip whitespace from plain text, but
/// not from the output of an action.
fn go_print(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("{{{{ {} }}}}", quote(text)),
    }
}

/// A Go string literal in ASCII, because a `Modelfile` drops characters that Go considers
/// unprintable.
fn quote(text: &str) -> String {
    let mut literal = "\"".to_owned();
    for character in text.chars() {
        let _ = match character {
            '"' | '\\' => write!(literal, "\\{character}"),
            '\n' => write!(literal, "\\n"),
            '\t' => write!(literal, "\\t"),
            '\r' => write!(literal, "\\r"),
            ' '..='~' => write!(literal, "{character}"),
            '\0'..='\u{ffff}' => write!(literal, "\\u{:04x}", u32::from(character)),
            _ => write!(literal, "\\U{:08x}", u32::from(character)),
        };
    }
    literal + "\""
}
