//! The prompts of the pipeline.
//!
//! # Source
//!
//! GOAT, Figures 13 to 20, in our own words. Each prompt asks for the reasoning before the result.

use crate::ask::RETRY_PROMPT;
use crate::prompts::PromptFile;

pub(super) const PARSE: &str = "parse";
pub(super) const FILTER: &str = "filter";
pub(super) const FIRST_CALL: &str = "first_call";
pub(super) const OTHER_CALL: &str = "other_call";
pub(super) const NEXT_CALL: &str = "next_call";
pub(super) const CHECK_CALL: &str = "check_call";
pub(super) const FILL_CALL: &str = "fill_call";
pub(super) const COMPLETE_CALL: &str = "complete_call";
pub(super) const SUB_QUERY: &str = "sub_query";
pub(super) const QUERY: &str = "query";
pub(super) const RESPONSE: &str = "response";

/// The prompts of the pipeline.
pub const PROMPTS: &[PromptFile] = &[
    PromptFile {
        name: PARSE,
        variables: &["document"],
        source: include_str!("../../../../configs/prompts/goat/parse.jinja"),
    },
    PromptFile {
        name: FILTER,
        variables: &[
            "source_document",
            "output",
            "target_document",
            "parameter",
            "meaning",
        ],
        source: include_str!("../../../../configs/prompts/goat/filter.jinja"),
    },
    PromptFile {
        name: FIRST_CALL,
        variables: &["document"],
        source: include_str!("../../../../configs/prompts/goat/first_call.jinja"),
    },
    PromptFile {
        name: OTHER_CALL,
        variables: &["document", "taken"],
        source: include_str!("../../../../configs/prompts/goat/other_call.jinja"),
    },
    PromptFile {
        name: NEXT_CALL,
        variables: &["document", "parameter", "reason", "result"],
        source: include_str!("../../../../configs/prompts/goat/next_call.jinja"),
    },
    PromptFile {
        name: CHECK_CALL,
        variables: &["result", "parameter", "arguments"],
        source: include_str!("../../../../configs/prompts/goat/check_call.jinja"),
    },
    PromptFile {
        name: FILL_CALL,
        variables: &["document", "wanted", "results"],
        source: include_str!("../../../../configs/prompts/goat/fill_call.jinja"),
    },
    PromptFile {
        name: COMPLETE_CALL,
        variables: &["document", "arguments"],
        source: include_str!("../../../../configs/prompts/goat/complete_call.jinja"),
    },
    PromptFile {
        name: SUB_QUERY,
        variables: &["document", "arguments", "results"],
        source: include_str!("../../../../configs/prompts/goat/sub_query.jinja"),
    },
    PromptFile {
        name: QUERY,
        variables: &["sub_queries"],
        source: include_str!("../../../../configs/prompts/goat/query.jinja"),
    },
    PromptFile {
        name: RESPONSE,
        variables: &["query", "steps"],
        source: include_str!("../../../../configs/prompts/goat/response.jinja"),
    },
    RETRY_PROMPT,
];
