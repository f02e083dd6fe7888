//! Tests of WikiBio's info boxes.

use serde_json::json;

use super::*;
use crate::import::{ImportError, import_wikibio};

#[test]
fn a_field_is_kept_if_its_tokens_occur_in_the_text() {
    let folder = folder();
    let boxes = write(
        folder.path(),
        "a.box",
        "occupation_1:weaver\tname_1:ida\tname_2:brandt\tborn:<none>\tgames_1:4\timage_1:ida\n\
         name_1:kurt\tarticle_title_1:kurt\n\
         name_1:mona\tclub_9_1:rot\tclub_9_2:weiss\n",
    );
    let texts = write(
        folder.path(),
        "a.sent",
        " ida brandt -lrb- 1947 -rrb- is a weaver . \nnobody .\nmona of rot weiss .\n",
    );
    let imported = import_wikibio(&boxes, &texts).expect("imports");
    let ida = json!({"name": "ida brandt", "occupation": "weaver"});
    let mona = json!({"club_9": "rot weiss", "name": "mona"});
    assert_eq!(
        row_texts(&imported),
        [
            ("ida brandt -lrb- 1947 -rrb- is a weaver .", &ida),
            ("mona of rot weiss .", &mona),
        ]
    );
    let keys: Vec<&String> = imported.rows[1]
        .gold
        .as_object()
        .expect("an object")
        .keys()
        .collect();
    assert_eq!(keys, ["club_9", "name"]);
    assert_eq!(
        skipped_counts(&imported.counts.dropped),
        [("no field's value is in the text", 1)]
    );
    assert_eq!(
        skipped_counts(&imported.counts.left_out),
        [
            ("a field of the page, not of the person", 2),
            ("a field whose value is not in the text", 2),
        ]
    );
}

#[test]
fn files_with_different_line_counts_are_refused() {
    let folder = folder();
    let boxes = write(folder.path(), "a.box", "name_1:ida\nname_1:mona\n");
    let texts = write(folder.path(), "a.sent", "ida .\n");
    let error = import_wikibio(&boxes, &texts).expect_err("lengths");
    assert!(
        matches!(
            error,
            ImportError::Lengths {
                n_first: 2,
                n_second: 1,
                ..
            }
        ),
        "{error}"
    );
    let boxes = write(folder.path(), "a.box", "name_1:ida\tname_2\n");
    let message = import_wikibio(&boxes, &texts)
        .expect_err("an item")
        .to_string();
    assert!(
        message.contains("a.box:1: \"name_2\" has no colon"),
        "{message}"
    );
}
