//! Tests of the whole page: required contents, forbidden contents, and size.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::json;

use super::*;

/// A string that would run as code if it were not escaped.
const ATTACK: &str = r#"</script></title></pre>"><img src=x onerror='alert(1)'>{{ 7*191 }}<!--"#;

fn run(name: &str) -> ReportRun {
    ReportRun {
        name: name.to_owned(),
        date: Some("2026-11-22 10:00".to_owned()),
        metrics: vec![
            json!({"step": 0, "eval/slot.mean": 0.25}),
            json!({"step": 10, "epoch": 0.5, "loss": 1.5, "learning_rate": 1e-4,
                   "grad_norm": 0.5, "tokens": 5_000, "trained_tokens": 700}),
            json!({"step": 20, "epoch": 1.0, "loss": 1.25, "learning_rate": 0.0,
                   "grad_norm": 0.25, "tokens": 10_000, "trained_tokens": 1_400}),
            json!({"step": 20, "eval/slot.mean": 0.75}),
        ],
        timing: vec![json!({"step": 1, "seconds": 2.0, "tokens": 250,
                            "peak_rss_bytes": 1_u64 << 30})],
        best: Some(BestCheckpoint {
            step: 20,
            metric: "slot.mean".to_owned(),
            value: 0.75,
        }),
        suites: vec![SuiteResult {
            suite: "slot".to_owned(),
            label: "step 20".to_owned(),
            step: Some(20),
            metrics: json!({"n": 2, "mean": {"value": 0.75, "low": 0.5, "high": 1.0},
                            "by_depth": [{"depth": 1, "n": 2, "mean": 0.75}]}),
        }],
        evaluations: Vec::new(),
        origins: vec![OriginLine {
            label: "best".to_owned(),
            text: "step 20 of tiny, on dev.jsonl (2 rows)".to_owned(),
        }],
        is_retriever_only: false,
        mask_preview: vec![PreviewRow {
            id: "rows.jsonl:1".to_owned(),
            tokens: [("Answer:", 0.0), (" {", 1.0), ("\"a\"", 0.5)]
                .map(|(text, weight)| PreviewToken {
                    text: text.to_owned(),
                    weight,
                })
                .to_vec(),
        }],
        samples: vec![SampleView {
            suite: "slot".to_owned(),
            result: "step 20, best".to_owned(),
            is_base: false,
            id: "eval.jsonl:7".to_owned(),
            prompt: "Extract the tide.".to_owned(),
            prediction: r#"{"tide": "low"}"#.to_owned(),
            gold: r#"{"tide": "high"}"#.to_owned(),
            rank: Some(SampleScoreView {
                name: "mean of schema and content.f".to_owned(),
                value: 0.25,
            }),
            scores: vec![SampleScoreView {
                name: "slot.content_similarity".to_owned(),
                value: 0.5,
            }],
            notes: vec!["required: /tide".to_owned()],
        }],
        texts: Vec::new(),
        settings: [("train.seed".to_owned(), "1".to_owned())].into(),
        n_rows: None,
        config_toml: "[train]\nseed = 1\n".to_owned(),
        lock_json: r#"{"device": "cpu"}"#.to_owned(),
    }
}

/// The plain name and the direction of every metric are unknown.
const FACTS: MetricFacts = MetricFacts {
    plain_name: |_| None,
    greater_is_better: |_| None,
};

/// A run in which every string from a file is the attack.
fn hostile_run() -> ReportRun {
    let text = || ATTACK.to_owned();
    let mut run = run(ATTACK);
    run.date = Some(text());
    run.metrics
        .push(json!({"step": 20, ATTACK: 1.0, (format!("eval/{ATTACK}.x")): 1.0}));
    run.best = Some(BestCheckpoint {
        step: 20,
        metric: text(),
        value: 1.0,
    });
    run.suites = vec![SuiteResult {
        suite: text(),
        label: text(),
        step: None,
        metrics: json!({ATTACK: 1.0, "text": ATTACK, "inner": {ATTACK: {"value": 1.0}},
                        (format!("by_{ATTACK}")): {ATTACK: {ATTACK: 2.0}},
                        "rows": [{"name": ATTACK, ATTACK: 1}]}),
    }];
    run.origins = vec![OriginLine {
        label: text(),
        text: text(),
    }];
    run.mask_preview[0].id = text();
    run.mask_preview[0].tokens[0].text = text();
    run.samples = vec![SampleView {
        suite: text(),
        result: text(),
        is_base: false,
        id: text(),
        prompt: text(),
        prediction: text(),
        gold: text(),
        rank: Some(SampleScoreView {
            name: text(),
            value: 1.0,
        }),
        scores: vec![SampleScoreView {
            name: text(),
            value: 1.0,
        }],
        notes: vec![text()],
    }];
    run.texts = run.samples.clone();
    run.settings = [(text(), text())].into();
    run.config_toml = text();
    run.lock_json = text();
    run
}

fn render_page(runs: &[ReportRun]) -> String {
    let plain_name = |name: &str| (name == "slot.schema_accuracy").then_some("valid");
    let facts = MetricFacts {
        plain_name,
        greater_is_better: |name| name.starts_with("slot.").then_some(true),
    };
    render(runs, facts).expect("a page")
}

fn n_matches(page: &str, pattern: &str) -> usize {
    Regex::new(pattern)
        .expect("a pattern")
        .find_iter(page)
        .count()
}

#[test]
fn the_page_contains_every_part_of_a_run() {
    let page = render_page(&[run("tides")]);
    for part in [
        "<title>tides · tooltune report</title>",
        "2026-11-22 10:00",
        "<b>1,400</b>",
        "<h4>Training loss</h4>",
        "<caption>by depth</caption>",
        "<b>best</b> <span>step 20 of tiny, on dev.jsonl (2 rows)</span>",
        "<b>slot.mean</b> <span class=\"detail\">0.75 at step 20</span>",
        "<span>slot.content_similarity</span> <b>0.500</b>",
        "ranked by <span>mean of schema and content.f</span> <b>0.250</b>",
        "<span>step 20, best</span>",
        r#"<mark class="missed">high</mark>"#,
        r#"<mark class="wrong">low</mark>"#,
        r#"<span class="t supervised"> {</span>"#,
        r#"<sup>0.5</sup>"#,
        "required: &#x2f;tide",
        "seed = 1",
        "&quot;device&quot;: &quot;cpu&quot;",
    ] {
        assert!(page.contains(part), "missing from the page: {part}");
    }
    assert!(
        !page.contains("class=\"badge"),
        "a single run has no letter"
    );
    assert_eq!(
        page,
        render_page(&[run("tides")]),
        "rendering must be deterministic"
    );
}

#[test]
fn two_runs_share_charts_tables_and_samples() {
    let mut other = run("berths");
    other.settings = [("train.seed".to_owned(), "2".to_owned())].into();
    let (first_page, both) = (
        render_page(&[run("tides")]),
        render_page(&[run("tides"), other]),
    );
    assert!(both.contains("<title>tides and berths · tooltune report</title>"));
    for pattern in [
        r#"<figure class="chart">"#,
        "<table ",
        r#"<article class="card"#,
    ] {
        // Skip the opening comparison, which exists only on a page of several runs.
        let n =
            |page: &str| n_matches(page, pattern) - n_matches(section(page, "outcome"), pattern);
        assert_eq!(n(&both), n(&first_page), "{pattern}");
    }
    assert_eq!(
        n_matches(section(&both, "outcome"), "<table class=\"runs\">"),
        2
    );
    assert_eq!(
        n_matches(&both, r#"class="line run1""#),
        n_matches(&first_page, r#"class="line run0""#)
    );
    assert!(both.contains("same rows in all of these runs"));
    let setting = "<code>train.seed</code></th><td class=\"number\"><code>1</code></td>\
                   <td class=\"number\"><code>2</code></td>";
    assert!(both.contains(setting), "{}", section(&both, "outcome"));
}

/// Invariant: A report shows file contents as text, never as markup.
#[test]
fn file_contents_are_escaped_everywhere() {
    for runs in [vec![hostile_run()], vec![hostile_run(), run("b")]] {
        let page = render_page(&runs);
        let harmless = render_page(&vec![run("a"); runs.len()]);
        assert_eq!(n_matches(&page, "<img"), 0);
        assert_eq!(n_matches(&page, "onerror='"), 0);
        assert!(!page.contains("1337"), "data was evaluated as a template");
        for tag in ["script", "title", "style", "pre"] {
            let n_opened = n_matches(&page, &format!("<{tag}[ >]"));
            assert_eq!(n_opened, n_matches(&page, &format!("</{tag}>")), "{tag}");
        }
        // The page has one script per chart, and no other script.
        let n_charts = |page: &str| n_matches(page, r#"<figure class="chart">"#);
        assert_eq!(n_matches(&page, "<script") - n_charts(&page), 1);
        assert_eq!(n_matches(&harmless, "<script") - n_charts(&harmless), 1);
        assert!(n_matches(&page, "&lt;&#x2f;script&gt;") > 20);
    }
}

/// Every tag of the page is one that the template writes, with quoted attributes, and is closed.
#[test]
fn every_tag_is_well_formed_and_closed() {
    let page = render_page(&[hostile_run(), run("b")]);
    let body = &page[page.find("<body").expect("a body")..];
    let tag = Regex::new(r#"<(/?)([a-z][a-z0-9]*)((?: [a-zA-Z-]+(?:="[^"<>]*")?)*)(/?)>"#)
        .expect("a pattern");
    let script = Regex::new("(?s)<script>.*?</script>").expect("a pattern");
    let body = script.replace_all(body, "");
    let mut open_tags: Vec<&str> = vec!["html"];
    for captures in tag.captures_iter(&body) {
        let (name, closes) = (
            captures.get(2).expect("a name").as_str(),
            &captures[1] == "/",
        );
        match closes {
            true => assert_eq!(open_tags.pop(), Some(name), "{}", &captures[0]),
            false if &captures[4] == "/" => {}
            false => open_tags.push(name),
        }
    }
    assert!(open_tags.is_empty(), "{open_tags:?}");
    assert_eq!(body.matches('<').count(), tag.find_iter(&body).count());
}

/// Invariant: A report loads nothing from outside.
#[test]
fn the_page_is_self_contained() {
    let page = render_page(&[run("a"), run("b")]);
    assert_eq!(n_matches(&page, "https?:|//[a-z]|@import|url\\("), 0);
    assert_eq!(
        n_matches(&page, "<link|<iframe|<img"),
        1,
        "only the empty icon"
    );
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn elements_have_names_and_headers_have_scopes() {
    let page = render_page(&[run("a"), run("b")]);
    assert_eq!(
        n_matches(&page, "<th[ >]"),
        n_matches(&page, r#"<th scope="(col|row|rowgroup)""#)
    );
    assert_eq!(n_matches(&page, "<table"), n_matches(&page, "<caption>"));
    assert_eq!(
        n_matches(&page, r#"role="img""#),
        n_matches(&page, "<desc ")
    );
    assert_eq!(n_matches(&page, "<h1>"), 1);
    for landmark in ["<header", "<nav aria-label", "<main>", "<footer>"] {
        assert!(page.contains(landmark), "{landmark}");
    }
    let ids = Regex::new(r#" id="([^"]+)""#).expect("a pattern");
    let mut n_times: BTreeMap<&str, usize> = BTreeMap::new();
    for id in ids.captures_iter(&page) {
        *n_times
            .entry(id.get(1).expect("an id").as_str())
            .or_default() += 1;
    }
    assert!(n_times.values().all(|n| *n == 1), "{n_times:?}");
    let refers = Regex::new(r#"(?:aria-labelledby="|href="\#)([^"]+)""#).expect("a pattern");
    for reference in refers.captures_iter(&page) {
        for id in reference[1].split(' ') {
            assert!(n_times.contains_key(id), "{id}");
        }
    }
}

#[test]
fn the_page_opens_with_base_compared_with_best() {
    let evaluation = |label: &str, step: u64, mean: f64| SuiteResult {
        suite: "slot".to_owned(),
        label: label.to_owned(),
        step: Some(step),
        metrics: json!({"n": 9, "schema_accuracy": {"value": mean, "low": mean - 0.1, "high": mean + 0.1}}),
    };
    let mut tuned = run("tuned");
    tuned.evaluations = vec![evaluation("base", 0, 0.25), evaluation("best", 20, 0.75)];
    let sample = |result: &str, prediction: &str| SampleView {
        result: result.to_owned(),
        prediction: prediction.to_owned(),
        id: "test.jsonl:3".to_owned(),
        ..tuned.samples[0].clone()
    };
    let both = [
        sample("base", "JSON"),
        sample("best", r#"{"tide": "high"}"#),
    ];
    tuned.samples.extend(both);
    let page = render_page(&[tuned]);
    let opening = section(&page, "outcome");
    for part in [
        "suite slot, 9 samples, 95 % intervals",
        r#"<span class="metric-name">slot.schema_accuracy</span><span class="words">valid</span>"#,
        r#"<span class="value">0.250</span>"#,
        r#"<span class="value best-value">0.750</span><span class="mark-best">"#,
        " better</span>",
        "+0.500",
        "test.jsonl:3",
        ">JSON<",
    ] {
        assert!(opening.contains(part), "{part}: {opening}");
    }
    // Results within the run are in a later section, not next to results on different rows.
    assert!(!opening.contains(">step 20<"), "{opening}");

    // Without separate evaluations, the run's own base and best are compared.
    let mut single = run("alone");
    let suite_result = SuiteResult {
        label: "step 0".to_owned(),
        ..evaluation("", 0, 0.5)
    };
    single.suites.insert(0, suite_result);
    assert!(section(&render_page(&[single]), "outcome").contains("step 0"));
    let empty_page = render_page(&[run("none")]);
    assert!(section(&empty_page, "outcome").contains("No two results to compare"));
}

/// The HTML of a section of the page.
fn section<'p>(page: &'p str, id: &str) -> &'p str {
    let start = page
        .find(&format!(r#"<section id="{id}""#))
        .expect("a section");
    let length = page[start..].find("</section>").expect("its end");
    &page[start..start + length]
}

#[test]
fn all_zero_metrics_and_charts_are_folded() {
    let mut zeros = run("zeros");
    zeros
        .metrics
        .push(json!({"step": 20, "eval/slot.exact_match": 0.0}));
    zeros.suites[0].metrics = json!({"n": 2, "mean": {"value": 0.75, "low": 0.5, "high": 1.0},
        "exact_match": {"value": 0.0, "low": 0.0, "high": 0.66}, "parse_rate": 0.0,
        "by_depth": [{"depth": 1, "n": 2, "mean": 0.0}]});
    let page = render_page(&[zeros]);
    let charts = section(&page, "training");
    assert!(charts.contains("<summary>1 chart is 0 at every step: slot.exact_match</summary>"));
    let results = section(&page, "results");
    for part in [
        "<summary>2 metrics are 0</summary>",
        "<summary>by depth: all values are 0</summary>",
    ] {
        assert!(results.contains(part), "{part}: {results}");
    }
}

#[test]
fn leading_masked_text_is_folded_without_a_script() {
    let mut long = run("long");
    let tokens = &mut long.mask_preview[0].tokens;
    let masked = tokens[0].clone();
    tokens.splice(..1, vec![masked; 400]);
    let page = render_page(&[long]);
    let mask = section(&page, "mask");
    assert!(
        mask.contains(r#"<details class="fold"><summary>388 masked tokens</summary>"#),
        "{mask}"
    );
    let after_mask = mask
        .split("</details>")
        .nth(1)
        .expect("tokens after the fold");
    let supervised = after_mask.find("t supervised").expect("a supervised token");
    assert!(supervised < 1_000, "{supervised}");
}

#[test]
fn an_empty_run_reports_missing_parts() {
    let page = render_page(&[ReportRun::default()]);
    assert_eq!(n_matches(&page, r#"<p class="empty">"#), 7);
}

#[test]
fn a_hundred_thousand_steps_and_long_texts_make_a_page_of_bounded_size() {
    let mut long = run("long");
    long.metrics = (0..100_000)
        .map(|step| {
            let wave = f64::from(step) / 777.0;
            json!({"step": step, "loss": wave.sin(), "grad_norm": wave.cos(),
                   "learning_rate": wave, "eval/slot.mean": 0.5 + wave.sin() / 3.0})
        })
        .collect();
    long.timing = (0..100_000)
        .map(|step| json!({"step": step, "seconds": 1.5, "tokens": 4_000 + step % 100}))
        .collect();
    long.samples = (0..500)
        .map(|id| SampleView {
            id: id.to_string(),
            prompt: "p ".repeat(50_000),
            prediction: "a".repeat(100_000),
            ..SampleView::default()
        })
        .collect();
    long.mask_preview[0].tokens = vec![long.mask_preview[0].tokens[1].clone(); 50_000];
    long.config_toml = "x".repeat(1_000_000);
    let page = render_page(&[long]);
    assert!(page.len() < 700_000, "{} bytes", page.len());
    for note in [
        "480 more samples not shown",
        "96,000 more characters not shown",
        "48,000 more tokens not shown",
        "900,000 more characters not shown",
    ] {
        assert!(page.contains(note), "{note}");
    }
}

#[test]
fn one_report_shows_up_to_26_runs() {
    let page = render_page(&vec![run("a"); 26]);
    assert!(page.contains("run </span>Z</span>"));
    let style = Regex::new(
        r"\.run(\d+) \{ --run: (\S+); \}\n\.line\S+, \S+ \S+ path \{ stroke-dasharray: ([^;]+)",
    )
    .expect("a pattern");
    let looks: std::collections::BTreeSet<(String, String)> = style
        .captures_iter(&page)
        .map(|captures| (captures[2].to_owned(), captures[3].to_owned()))
        .collect();
    assert_eq!(looks.len(), 26, "two runs look alike");
    for n in [0, 27] {
        let error = render(&vec![run("a"); n], FACTS).expect_err("a number of runs");
        assert!(
            error.to_string().starts_with(&format!("{n} runs")),
            "{error}"
        );
    }
}

/// Custom properties in a block of the style sheet.
fn css_colors(block: &str) -> BTreeMap<&str, [f64; 3]> {
    let colour = Regex::new("--([a-z-]+): #([0-9a-f]{6});").expect("a pattern");
    let channel = |text: &str| {
        let channel_value = f64::from(u8::from_str_radix(text, 16).expect("hexadecimal")) / 255.0;
        if channel_value <= 0.04045 {
            channel_value / 12.92
        } else {
            ((channel_value + 0.055) / 1.055).powf(2.4)
        }
    };
    colour
        .captures_iter(block)
        .map(|captures| {
            let (name, hex) = (captures.get(1).expect("a name"), &captures[2]);
            (
                name.as_str(),
                [0, 2, 4].map(|start| channel(&hex[start..start + 2])),
            )
        })
        .collect()
}

/// WCAG 2.2 contrast ratio.
fn contrast(left: [f64; 3], other: [f64; 3]) -> f64 {
    let luminance = |[r, g, b]: [f64; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
    let (left, other) = (luminance(left), luminance(other));
    (left.max(other) + 0.05) / (left.min(other) + 0.05)
}

/// The run colours.
const RUNS: [&str; 8] = [
    "run-a", "run-b", "run-c", "run-d", "run-e", "run-f", "run-g", "run-h",
];

#[test]
fn text_and_marks_meet_wcag_contrast_in_both_schemes() {
    let style = include_str!("page/base.css");
    let blocks: Vec<&str> = style.split(":root {").skip(1).take(2).collect();
    let light = css_colors(blocks[0].split('}').next().expect("a block"));
    let dark = css_colors(blocks[1].split('}').next().expect("a block"));
    assert_eq!(light.len(), dark.len());
    for scheme in [light, dark] {
        for (front, background, min_contrast) in [
            ("ink", "surface", 7.0),
            ("ink", "page", 7.0),
            ("muted", "surface", 4.5),
            ("muted", "page", 4.5),
            ("accent", "page", 4.5),
            ("ink", "supervised", 4.5),
            ("ink", "partial", 4.5),
            ("ink", "wrong", 4.5),
            ("ink", "missed", 4.5),
            ("supervised-edge", "page", 3.0),
            ("partial-edge", "page", 3.0),
            ("wrong-edge", "page", 3.0),
            ("missed-edge", "page", 3.0),
        ]
        .into_iter()
        .chain(RUNS.map(|run| (run, "surface", 4.5)))
        .chain(RUNS.map(|run| ("on-badge", run, 4.5)))
        {
            let actual = contrast(scheme[front], scheme[background]);
            assert!(
                actual >= min_contrast,
                "{front} on {background}: {actual:.2}"
            );
        }
    }
}
