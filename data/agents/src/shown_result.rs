//! Formats the result of a call for a prompt.

use tooltune_apis::cut_output;
use tooltune_json as json;
use tooltune_json::Style;

use super::options::AgentLimits;
use crate::executors::CallResult;
use crate::truncation::shorten_or_explain;

/// The output, shortened according to the limits and then cut such that it is still JSON. The
/// message of a failed call is only cut, because filters are written for outputs, not for messages.
pub(super) fn shown_result(result: &CallResult, limits: &AgentLimits) -> String {
    let output = match &limits.truncate {
        Some(options) if !result.is_failure() => shorten_or_explain(&result.output, options),
        _ => result.shown_value(),
    };
    cut_output(&json::dumps(&output, Style::Python), limits.output_limit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::truncation::{PruneOptions, ShapeOptions};

    fn limits(output_limit: usize) -> AgentLimits {
        AgentLimits {
            output_limit,
            truncate: Some(ShapeOptions {
                filter: Some("rows[].{id: id}".to_owned()),
                prune: PruneOptions {
                    max_items: 1,
                    ..PruneOptions::default()
                },
            }),
            ..AgentLimits::default()
        }
    }

    #[test]
    fn an_output_is_shortened_before_it_is_truncated() {
        let output = json!({"rows": [{"id": 1, "note": "x".repeat(90)}, {"id": 2}]});
        let result = CallResult::success(output);
        assert_eq!(
            shown_result(&result, &limits(200)),
            "[{\"id\": 1}, {\"_meta\": \"showing 1 of 2 items. Use offset/limit to paginate.\"}]"
        );
        let cut = shown_result(&result, &limits(60));
        assert!(
            cut.starts_with("[{\"id\": 1}, ") && cut.ends_with("\"}]"),
            "{cut}"
        );
        assert!(json::parse(&cut).is_ok(), "{cut}");
    }

    #[test]
    fn failures_and_unmatched_filters_are_shown() {
        let failed = CallResult::failure("no port \"Atlantis\"");
        let expected = "{\"error\": \"no port \\\"Atlantis\\\"\"}";
        assert_eq!(shown_result(&failed, &limits(200)), expected);
        let other = CallResult::success(json!({"columns": []}));
        let output = shown_result(&other, &limits(200));
        assert!(output.contains("finds nothing in this output"), "{output}");
        let mut fails = limits(300);
        if let Some(options) = &mut fails.truncate {
            options.filter = Some("length(rows)".to_owned());
        }
        let output = shown_result(&other, &fails);
        assert!(output.contains("this output is not shown: "), "{output}");
    }
}
