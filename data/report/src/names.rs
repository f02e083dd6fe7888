//! Says what a metric is called on the page; its files keep the short key.

/// Keys with a name of their own; all others lose their underscores.
const NAMES: [(&str, &str); 21] = [
    ("parse_rate", "JSON parses"),
    ("parses", "JSON parses"),
    ("schema", "schema validity"),
    ("strict_keys_accuracy", "schema accuracy, strict keys"),
    ("exact_match_f", "exact-match F"),
    ("content.f", "content similarity"),
    ("exact.f", "exact-match F"),
    ("sa", "selection accuracy"),
    ("ia", "invocation accuracy"),
    ("sr", "success rate"),
    ("delta_len", "calls beyond the gold's"),
    ("rouge_l", "ROUGE-L"),
    ("rouge_l_plain", "ROUGE-L, plain"),
    ("win_strict", "win rate, strict"),
    ("win_official", "win rate, official"),
    ("judged", "judge's verdict"),
    ("recall_at_gt", "recall at the number of golds"),
    ("mrr_at_10", "MRR at 10"),
    ("ndcg_at_10", "NDCG at 10"),
    ("map_at_100", "MAP at 100"),
    ("f", "F"),
];

/// The name of a metric for people: `content_similarity` is "content similarity".
pub(super) fn metric_name(key: &str) -> String {
    let known = NAMES.iter().find(|(known, _)| *known == key);
    known.map_or_else(|| key.replace('_', " "), |(_, name)| (*name).to_owned())
}
