//! Rewrites `{% generation %}` and `{% endgeneration %}`, which minijinja does not support.
//!
//! In Hugging Face's implementation, the tag only opens a scope. Here `{% with %}` opens the scope,
//! and a variable prints the mark. Both remain block tags with the original white-space control, so
//! the text around them is trimmed as in Jinja2.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Variable that prints the mark at the start of the generated part; empty in a plain rendering.
pub(super) const OPEN_VARIABLE: &str = "tooltune_generation_begins";
/// Variable that prints the mark at the end of the generated part.
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
