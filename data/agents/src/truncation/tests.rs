//! Tests shortened shapes and malicious expressions.

use serde_json::json;

use super::*;

#[test]
fn defaults_keep_ten_items_four_levels_and_fifty_thousand_characters() {
    let options = TruncationOptions::default();
    let bounds = (
        options.shape.prune.max_items,
        options.shape.prune.max_depth,
        options.max_chars,
    );
    assert_eq!(bounds, (10, 4, 50_000));
    let long: Vec<usize> = (0..12).collect();
    let pruned = prune(&json!({"l": long}), &options.shape.prune);
    assert_eq!(pruned["l"].as_array().map(Vec::len), Some(11));
    assert_eq!(
        pruned["l"][10],
        json!({"_meta": "showing 10 of 12 items. Use offset/limit to paginate."})
    );
    let nested = json!({"a": {"b": {"c": {"d": {"e": {"f": 1}, "g": [1], "h": 2}}}}});
    assert_eq!(
        prune(&nested, &options.shape.prune)["a"]["b"]["c"]["d"],
        json!({"e": "[object(1 keys)]", "g": "[array(1)]", "h": 2})
    );
}

#[test]
fn a_list_at_the_depth_limit_is_sliced_and_not_summarised() {
    let options = PruneOptions {
        max_items: 1,
        max_depth: 0,
        ..PruneOptions::default()
    };
    let meta = json!({"_meta": "showing 1 of 2 items. Use offset/limit to paginate."});
    assert_eq!(
        prune(&json!([[{"a": [1, 2]}, 3], 4]), &options),
        json!([[{"a": "[array(2)]"}, meta], meta])
    );
    let no_limits = PruneOptions {
        max_items: 0,
        ..options
    };
    assert_eq!(prune(&json!([]), &no_limits), json!([]));
}

#[test]
fn truncation_counts_code_points_and_reports_the_omitted_number() {
    assert_eq!(truncate_text(&json!("é😀e\u{301}"), 6), "\"é😀e\u{301}\"");
    assert_eq!(
        truncate_text(&json!("é😀e\u{301}"), 3),
        "\"é😀\n\n... [truncated, 3 characters omitted]"
    );
    assert_eq!(
        truncate_text(&json!(null), 0),
        "\n\n... [truncated, 4 characters omitted]"
    );
}

#[test]
fn an_output_is_filtered_then_pruned_then_truncated() {
    let options = TruncationOptions {
        shape: shape("rows[].{z: z, a: a}", 1),
        max_chars: 29,
    };
    let value = json!({"rows": [{"a": 1, "b": 2, "z": 3}, {"a": 4, "z": 5}], "more": "x"});
    assert_eq!(
        truncate_output(&value, &options).expect("filters"),
        "[\n  {\n    \"z\": 3,\n    \"a\": 1\n\n\n... [truncated, 81 characters omitted]"
    );
}

#[test]
fn a_string_output_has_no_quotes() {
    let options = TruncationOptions {
        max_chars: 3,
        ..TruncationOptions::default()
    };
    let cut = |value: serde_json::Value| truncate_output(&value, &options).expect("no filter");
    assert_eq!(cut(json!("é😀e")), "é😀e");
    assert_eq!(
        cut(json!("no row")),
        "no \n\n... [truncated, 3 characters omitted]"
    );
}

fn shape(filter: &str, max_items: usize) -> ShapeOptions {
    ShapeOptions {
        filter: Some(filter.to_owned()),
        prune: PruneOptions {
            max_items,
            ..PruneOptions::default()
        },
    }
}

#[test]
fn a_filter_without_a_match_or_with_an_error_is_reported() {
    let value = json!({"rows": [1, 2]});
    let nothing_found = json!({"_meta": "the filter cells[].id finds nothing in this output."});
    assert_eq!(shorten(&value, &shape("cells[].id", 9)), Ok(nothing_found));
    // An empty list, false and the tool's own null are results.
    for (value, filter, expected) in [
        (value.clone(), "rows[?@ > `5`]", json!([])),
        (value.clone(), "rows == `1`", json!(false)),
        (json!(null), "cells", json!(null)),
    ] {
        assert_eq!(shorten(&value, &shape(filter, 9)), Ok(expected), "{filter}");
    }
    let fails = shape("length(cells)", 9);
    assert!(shorten(&value, &fails).is_err());
    let explained = shorten_or_explain(&value, &fails);
    let meta = explained["_meta"].as_str().unwrap_or_default();
    assert!(
        meta.starts_with("this output is not shown: JMESPath expression \"length(cells)\": "),
        "{meta}"
    );
}

#[test]
fn an_expression_is_checked_without_a_value() {
    for valid in ["@", "a[?b > `1`].c | [0]", "length(a)", "{n: keys(@)}"] {
        assert_eq!(check_filter(valid), Ok(()), "{valid}");
    }
    for invalid in ["", "a[", "[::0]", "[-2147483647]", "a && nope(@)"] {
        assert!(check_filter(invalid).is_err(), "{invalid}");
    }
    let message = check_filter("a && nope(@)")
        .expect_err("unknown")
        .to_string();
    assert!(message.ends_with("unknown function \"nope\""), "{message}");
}

#[test]
fn filtered_keys_keep_the_order_of_their_objects() {
    let value = json!({"z": {"q": 1, "b": {"y": 1, "x": [{"k2": 1, "k1": 2}]}}, "a": 0});
    let text = |expression: &str| filter(expression, &value).expect(expression).to_string();
    assert_eq!(text("@"), value.to_string());
    assert_eq!(text("z.b.x[0]"), r#"{"k2":1,"k1":2}"#);
    assert_eq!(
        text("{n: a, \"a b\": z.q, m: z.b.x[0].{k: k1, j: k2}}"),
        r#"{"n":0,"a b":1,"m":{"k":2,"j":1}}"#
    );
    assert_eq!(
        text("merge(z, {n: a})"),
        r#"{"b":{"y":1,"x":[{"k2":1,"k1":2}]},"n":0,"q":1}"#
    );
}

#[test]
fn numbers_pass_unchanged() {
    let value = json!([
        1,
        1.0,
        18_446_744_073_709_551_615_u64,
        -9_007_199_254_740_993_i64,
        1e22
    ]);
    assert_eq!(filter("@", &value), Ok(value.clone()));
    assert_eq!(filter("[2]", &value), Ok(value[2].clone()));
}

#[test]
fn an_invalid_expression_is_an_error_with_its_column() {
    let message = |expression: &str| {
        filter(expression, &json!([1]))
            .expect_err(expression)
            .to_string()
    };
    assert!(
        message("a[").starts_with("JMESPath expression \"a[\": column "),
        "{}",
        message("a[")
    );
    for expression in [
        "",
        "a b",
        "nope(@)",
        "length(`1`)",
        "[::0]",
        "a.",
        "{a}",
        "`{`",
        "'",
        "\"",
    ] {
        assert!(filter(expression, &json!([1])).is_err(), "{expression}");
    }
    assert!(message(&"é ".repeat(500)).len() < 700);
}

#[test]
fn expressions_over_the_limits_are_refused() {
    let value = json!([1, 2, 3]);
    for opening in ["(", "[", "{a:", "!", "&", "a.", "a|", "[0]", "[?a", "a||"] {
        for n in [140, 20_000] {
            let expression = format!("{}@{}", opening.repeat(n), ")".repeat(n));
            // Whether it parses or not, the call returns.
            let _ = filter(&expression, &value);
        }
        assert!(matches!(
            filter(&opening.repeat(20_000), &value),
            Err(FilterError::TooLarge { .. })
        ));
    }
    for expression in [
        "[-2147483647]",
        "[2:10:2147483647]",
        "[0:3:-2147483647]",
        "[2147483647:]",
    ] {
        let error = filter(expression, &value).expect_err(expression);
        assert!(matches!(error, FilterError::TooLarge { .. }), "{error}");
    }
    let doubling = vec!["[@, @]"; 30].join(" | ");
    let error = filter(&doubling, &value).expect_err("huge");
    assert!(
        error.to_string().contains("values in its result"),
        "{error}"
    );
}
