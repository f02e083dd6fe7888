//! The ids of saved predictions to whether they can be of the rows that they are scored against.

use std::collections::HashSet;
use std::path::Path;

use crate::error::Error;

/// Ids of each side that a message names.
const N_SHOWN: usize = 3;

/// Refuses predictions of which not one is named for a row: no number of theirs would say anything
/// of these rows. What a suite asks for beyond that, such as an order, it checks itself.
///
/// # Errors
///
/// There are predictions and rows, and no prediction has the id of a row.
pub fn check_ids<'a>(
    path: &Path,
    saved: impl IntoIterator<Item = &'a str>,
    rows: impl IntoIterator<Item = &'a str>,
) -> Result<(), Error> {
    let saved: Vec<&str> = saved.into_iter().collect();
    let rows: Vec<&str> = rows.into_iter().collect();
    let known: HashSet<&str> = rows.iter().map(|id| in_file(id)).collect();
    let is_known = |id: &&str| known.contains(in_file(id));
    if saved.is_empty() || rows.is_empty() || saved.iter().any(is_known) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{}: none of its {} predictions is of these {} rows: it has {}, the rows are {}; name the \
         rows that it was made of with --data, or give predictions of these rows",
        path.display(),
        saved.len(),
        rows.len(),
        shown(&saved),
        shown(&rows)
    )))
}

/// The file and line of a row, wherever the file lies.
pub fn in_file(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

fn shown(ids: &[&str]) -> String {
    let first = ids.iter().take(N_SHOWN);
    let mut shown: Vec<String> = first.map(|id| format!("{:?}", excerpt(id))).collect();
    if ids.len() > N_SHOWN {
        shown.push("...".to_owned());
    }
    shown.join(", ")
}

/// The beginning of a text, for a message.
pub fn excerpt(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(saved: &[&str], rows: &[&str]) -> Option<String> {
        let path = Path::new("saved.jsonl");
        let checked = check_ids(path, saved.iter().copied(), rows.iter().copied());
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn predictions_are_refused_where_not_one_is_of_the_rows() {
        assert_eq!(
            refusal(&["a:1", "a:2", "a:3", "a:4"], &["b:1"]).as_deref(),
            Some(
                "saved.jsonl: none of its 4 predictions is of these 1 rows: it has \"a:1\", \
                 \"a:2\", \"a:3\", ..., the rows are \"b:1\"; name the rows that it was made of \
                 with --data, or give predictions of these rows"
            )
        );
        // One is enough, in any place, and the folder of a file says nothing.
        assert_eq!(refusal(&["a:1", "b:2"], &["b:1", "b:2"]), None);
        assert_eq!(refusal(&["old/b.jsonl:1"], &["/new/b.jsonl:1"]), None);
        assert_eq!(
            (refusal(&[], &["b:1"]), refusal(&["a:1"], &[])),
            (None, None)
        );
    }
}
