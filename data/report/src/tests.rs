//! The whole page: what it holds, what it must not hold, and how large it becomes.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::json;

use super::*;

/// A text that would run, were it not escaped.
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

/// A run in which every text of a file is the attack.
fn attacked() -> ReportRun {
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

fn rendered(runs: &[ReportRun]) -> String {
    let words = |name: &str| (name == "slot.schema_accuracy").then_some("valid");
    render(runs, words).expect("a page")
}

fn n_of(page: &str, pattern: &str) -> usize {
    Regex::new(pattern)
        .expect("a pattern")
        .find_iter(page)
        .count()
}

#[test]
fn the_page_holds_every_part_of_a_run() {
    let page = rendered(&[run("tides")]);
    for part in [
        "<title>tides · tooltune report</title>",
        "2026-11-22 10:00",
        "<b>1,400</b>",
        "<h4>Training loss</h4>",
        "<caption>by depth</caption>",
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
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(
        !page.contains("class=\"badge"),
        "a run alone needs no letter"
    );
    assert_eq!(page, rendered(&[run("tides")]), "the same bytes each time");
}

#[test]
fn two_runs_share_charts_tables_and_samples() {
    let mut other = run("berths");
    other.settings = [("train.seed".to_owned(), "2".to_owned())].into();
    let (one, both) = (rendered(&[run("tides")]), rendered(&[run("tides"), other]));
    assert!(both.contains("<title>tides and berths · tooltune report</title>"));
    for pattern in [
        r#"<figure class="chart">"#,
        "<table ",
        r#"<article class="card"#,
    ] {
        // Behind the comparison that the page opens with, which a run alone lacks.
        let n = |page: &str| n_of(page, pattern) - n_of(section(page, "outcome"), pattern);
        assert_eq!(n(&both), n(&one), "{pattern}");
    }
    assert_eq!(n_of(section(&both, "outcome"), "<table class=\"runs\">"), 2);
    assert_eq!(
        n_of(&both, r#"class="line run1""#),
        n_of(&one, r#"class="line run0""#)
    );
    assert!(both.contains("the same rows in these runs"));
    let setting = "<code>train.seed</code></th><td class=\"number\"><code>1</code></td>\
                   <td class=\"number\"><code>2</code></td>";
    assert!(both.contains(setting), "{}", section(&both, "outcome"));
}

#[test]
fn texts_of_files_stay_text_wherever_they_stand() {
    for runs in [vec![attacked()], vec![attacked(), run("b")]] {
        let page = rendered(&runs);
        let harmless = rendered(&vec![run("a"); runs.len()]);
        assert_eq!(n_of(&page, "<img"), 0);
        assert_eq!(n_of(&page, "onerror='"), 0);
        assert!(!page.contains("1337"), "a text is no template");
        for tag in ["script", "title", "style", "pre"] {
            let opened = n_of(&page, &format!("<{tag}[ >]"));
            assert_eq!(opened, n_of(&page, &format!("</{tag}>")), "{tag}");
        }
        // A script more than the harmless page's is that of a chart more.
        let n_charts = |page: &str| n_of(page, r#"<figure class="chart">"#);
        assert_eq!(n_of(&page, "<script") - n_charts(&page), 1);
        assert_eq!(n_of(&harmless, "<script") - n_charts(&harmless), 1);
        assert!(n_of(&page, "&lt;&#x2f;script&gt;") > 20);
    }
}

/// Each tag of the page with its attributes is one that the template writes, quoted and closed.
#[test]
fn every_tag_is_well_formed_and_closed() {
    let page = rendered(&[attacked(), run("b")]);
    let body = &page[page.find("<body").expect("a body")..];
    let tag = Regex::new(r#"<(/?)([a-z][a-z0-9]*)((?: [a-zA-Z-]+(?:="[^"<>]*")?)*)(/?)>"#)
        .expect("a pattern");
    let script = Regex::new("(?s)<script>.*?</script>").expect("a pattern");
    let body = script.replace_all(body, "");
    let mut open: Vec<&str> = vec!["html"];
    for found in tag.captures_iter(&body) {
        let (name, closes) = (found.get(2).expect("a name").as_str(), &found[1] == "/");
        match closes {
            true => assert_eq!(open.pop(), Some(name), "{}", &found[0]),
            false if &found[4] == "/" => {}
            false => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert_eq!(body.matches('<').count(), tag.find_iter(&body).count());
}

#[test]
fn the_page_asks_for_nothing_outside_itself() {
    let page = rendered(&[run("a"), run("b")]);
    assert_eq!(n_of(&page, "https?:|//[a-z]|@import|url\\("), 0);
    assert_eq!(n_of(&page, "<link|<iframe|<img"), 1, "the empty icon");
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn everything_has_a_name_and_headers_say_what_they_head() {
    let page = rendered(&[run("a"), run("b")]);
    assert_eq!(
        n_of(&page, "<th[ >]"),
        n_of(&page, r#"<th scope="(col|row|rowgroup)""#)
    );
    assert_eq!(n_of(&page, "<table"), n_of(&page, "<caption>"));
    assert_eq!(n_of(&page, r#"role="img""#), n_of(&page, "<desc "));
    assert_eq!(n_of(&page, "<h1>"), 1);
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
fn the_page_opens_with_base_beside_best_and_a_sample_of_both() {
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
    let page = rendered(&[tuned]);
    let opening = section(&page, "outcome");
    for part in [
        "suite slot, 9 samples, 95 % intervals",
        r#"<span class="metric-name">slot.schema_accuracy</span><span class="words">valid</span>"#,
        r#"<span class="value">0.250</span>"#,
        r#"<span class="value">0.750</span>"#,
        "+0.500",
        "test.jsonl:3",
        ">JSON<",
    ] {
        assert!(opening.contains(part), "{part}: {opening}");
    }
    // The results of the run itself come later, and not beside those of other rows.
    assert!(!opening.contains("step 20"), "{opening}");

    // Without such evaluations the run's own base and best stand there.
    let mut alone = run("alone");
    let own = SuiteResult {
        label: "step 0".to_owned(),
        ..evaluation("", 0, 0.5)
    };
    alone.suites.insert(0, own);
    assert!(section(&rendered(&[alone]), "outcome").contains("step 0"));
    let none = rendered(&[run("none")]);
    assert!(section(&none, "outcome").contains("There are no two results to compare"));
}

/// The text of a section of the page.
fn section<'p>(page: &'p str, id: &str) -> &'p str {
    let start = page
        .find(&format!(r#"<section id="{id}""#))
        .expect("a section");
    let length = page[start..].find("</section>").expect("its end");
    &page[start..start + length]
}

#[test]
fn an_empty_run_says_what_it_lacks() {
    let page = rendered(&[ReportRun::default()]);
    assert_eq!(n_of(&page, r#"<p class="empty">"#), 7);
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
    let page = rendered(&[long]);
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
fn as_many_runs_are_shown_as_there_are_letters() {
    let page = rendered(&vec![run("a"); 26]);
    assert!(page.contains("run </span>Z</span>"));
    let style = Regex::new(
        r"\.run(\d+) \{ --run: (\S+); \}\n\.line\S+, \S+ \S+ path \{ stroke-dasharray: ([^;]+)",
    )
    .expect("a pattern");
    let looks: std::collections::BTreeSet<(String, String)> = style
        .captures_iter(&page)
        .map(|found| (found[2].to_owned(), found[3].to_owned()))
        .collect();
    assert_eq!(looks.len(), 26, "two runs look alike");
    for n in [0, 27] {
        let error = render(&vec![run("a"); n], |_| None).expect_err("a number of runs");
        assert!(
            error.to_string().starts_with(&format!("{n} runs")),
            "{error}"
        );
    }
}

/// Custom properties of a block of the style sheet.
fn colours(block: &str) -> BTreeMap<&str, [f64; 3]> {
    let colour = Regex::new("--([a-z-]+): #([0-9a-f]{6});").expect("a pattern");
    let channel = |text: &str| {
        let share = f64::from(u8::from_str_radix(text, 16).expect("hexadecimal")) / 255.0;
        if share <= 0.04045 {
            share / 12.92
        } else {
            ((share + 0.055) / 1.055).powf(2.4)
        }
    };
    colour
        .captures_iter(block)
        .map(|found| {
            let (name, hex) = (found.get(1).expect("a name"), &found[2]);
            (name.as_str(), [0, 2, 4].map(|at| channel(&hex[at..at + 2])))
        })
        .collect()
}

/// WCAG 2.2, contrast ratio.
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let luminance = |[r, g, b]: [f64; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// The colours of runs.
const RUNS: [&str; 8] = [
    "run-a", "run-b", "run-c", "run-d", "run-e", "run-f", "run-g", "run-h",
];

#[test]
fn texts_have_a_contrast_of_4_5_and_marks_of_3_in_both_schemes() {
    let style = include_str!("page/base.css");
    let blocks: Vec<&str> = style.split(":root {").skip(1).take(2).collect();
    let light = colours(blocks[0].split('}').next().expect("a block"));
    let dark = colours(blocks[1].split('}').next().expect("a block"));
    assert_eq!(light.len(), dark.len());
    for scheme in [light, dark] {
        for (front, back, least) in [
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
            let found = contrast(scheme[front], scheme[back]);
            assert!(found >= least, "{front} on {back}: {found:.2}");
        }
    }
}
