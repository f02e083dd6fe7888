//! Writes the text that a prompt shows of the result of a call.

use tooltune_rows::json::{self, Style};
use tooltune_rows::tools::cut_output;

use super::options::AgentLimits;
use crate::executors::CallResult;
use crate::truncation::shorten_or_explain;

/// The output, shortened as the limits say and then cut so that it stays JSON; the message of a
/// failed call is cut alone, since no filter was written for it.
pub(super) fn shown_result(result: &CallResult, limits: &AgentLimits) -> String {
    let shown = match &limits.truncate {
        Some(options) if !result.is_failure() => shorten_or_explain(&result.output, options),
        _ => result.shown(),
    };
    cut_output(&json::dumps(&shown, Style::Python), limits.output_limit)
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
    fn an_output_is_shortened_before_it_is_cut() {
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
    fn failures_and_what_no_filter_fits_are_told() {
        let failed = CallResult::failure("no port \"Atlantis\"");
        let told = "{\"error\": \"no port \\\"Atlantis\\\"\"}";
        assert_eq!(shown_result(&failed, &limits(200)), told);
        let other = CallResult::success(json!({"columns": []}));
        let shown = shown_result(&other, &limits(200));
        assert!(shown.contains("finds nothing in this output"), "{shown}");
        let mut fails = limits(300);
        if let Some(options) = &mut fails.truncate {
            options.filter = Some("length(rows)".to_owned());
        }
        let shown = shown_result(&other, &fails);
        assert!(shown.contains("this output is not shown: "), "{shown}");
    }
}
