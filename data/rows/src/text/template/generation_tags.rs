//! `{% generation %}` and `{% endgeneration %}`, which minijinja does not know, as known tags.
//!
//! Hugging Face's tag opens a scope and nothing else; here `{% with %}` opens the scope, and a
//! variable prints the mark. Both stay block tags with the white-space control of the original, so
//! that the text around them is trimmed as Jinja2 trims it.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Variable that prints where the generated part begins; empty in a plain rendering.
pub(super) const OPEN_VARIABLE: &str = "tooltune_generation_begins";
/// Variable that prints where the generated part ends.
pub(super) const CLOSE_VARIABLE: &str = "tooltune_generation_ends";

static TAG: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").ok());

/// Replaces the tag pair in a template's source.
pub(super) fn rewrite(source: &str) -> String {
    let Some(tag) = TAG.as_ref() else {
        return source.to_owned();
    };
    tag.replace_all(source, |tag: &Captures<'_>| {
        let (left, right) = (&tag[1], &tag[3]);
        if tag.get(2).is_some() {
            format!(
                "{{%{left} if true %}}{{{{ {CLOSE_VARIABLE} }}}}{{% endif %}}{{% endwith {right}%}}"
            )
        } else {
            format!(
                "{{%{left} with %}}{{% if true %}}{{{{ {OPEN_VARIABLE} }}}}{{% endif {right}%}}"
            )
        }
    })
    .into_owned()
}
