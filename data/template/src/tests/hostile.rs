//! Templates that need more resources than allowed end with an error that names the limit.
//!
//! No test here measures time, because an unbounded rendering would not end at all.

use std::fmt::Write as _;
use std::path::Path;

use tooltune_disk::budgets::TEMPLATE_BYTES;

use super::*;
use crate::budgets::{TEMPLATE_BLOCKS, TEMPLATE_MADE_BYTES, TEMPLATE_NAME_BYTES, TEMPLATE_NESTING};

fn render(source: &str) -> Result<String, TemplateError> {
    let template = ChatTemplate::new(source, SpecialTokens::default())?;
    let conversation = conversation_of(json!([
        {"role": "user", "content": "Depth?"},
        {"role": "assistant", "content": "Seven."},
    ]));
    template
        .with_origin("templates/of_others.jinja")
        .render(&conversation, GenerationPrompt::Omit)
}

/// Asserts that a template is rejected by the limit of this name.
fn assert_limited(source: &str, constant: &str) {
    let excerpt: String = source.chars().take(200).collect();
    match render(source) {
        Ok(text) => panic!("{excerpt}: {} bytes of text", text.len()),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(constant), "{excerpt}: {error}");
            assert!(error.contains("chat template, line "), "{excerpt}: {error}");
        }
    }
}

fn lines(all: &[&str], constant: &str) {
    for source in all {
        assert_limited(source, constant);
    }
}

/// Invariant: Rendering a template is bounded in steps, memory and stack, and leaks no memory.
#[test]
fn work_without_end_is_refused_by_steps() {
    lines(
        &[
            "{% for i in range(99999) %}{% for j in range(99999) %}{% if i == j %}{% endif %}{% endfor %}{% endfor %}",
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
            "{% block b %}{% for i in range(99999) %}{{ self.c() }}{% endfor %}{% endblock %}{% block c %}{% for i in range(99999) %}{% endfor %}{% endblock %}",
        ],
        "TEMPLATE_STEPS",
    );
}

/// Invariant: Rendering a template is bounded in steps, memory and stack, and leaks no memory.
#[test]
fn texts_and_lists_that_grow_are_refused_by_bytes() {
    lines(
        &[
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
            "{% set ns = namespace(t=[1]) %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
            "{% set ns = namespace(t=(1, 2)) %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = [ns.t, ns.t]|join %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t.join('ab') ~ ns.t.join('abc') %}{% endfor %}",
            "{% set ns = namespace(t='<') %}{% for i in range(40) %}{% set ns.t = ns.t|e %}{% set ns.t = ns.t|replace('&', '<<') %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t %}{{ ns.t }}{{ ns.t }}{% endset %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}{% for i in range(40) %}{% set ns.t = m(ns.t) %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = '%s%s'|format(ns.t, ns.t) %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = '{0}{0}'.format(ns.t) %}{% endfor %}",
            "{% set ns = namespace(t=['x']) %}{% for i in range(40) %}{% set ns.t = (ns.t ~ ns.t).split('x') %}{% endfor %}",
            "{% set n = 4000000000 %}{{ 'a\nb'|indent(n) }}",
            "{% set n = 200000000 %}{{ 'a\nb'|indent('x' * n) }}",
            "{% set n = 4000000000 %}{{ [1]|batch(n, 'z')|list|length }}",
            "{% set n = 4000000000 %}{{ [1]|slice(n, 'z')|list|length }}",
            "{% set n = 100000 %}{{ ('a' * n)|replace('a', 'b' * n)|length }}",
            "{% set n = 100000 %}{{ ('a' * n)|replace('', 'b' * n)|length }}",
            "{% set n = 2000000000 %}{{ messages|tojson(indent=n) }}",
            "{% set n = 100000000 %}{{ messages|tojson(indent='x' * n) }}",
            "{% set n = 100000000 %}{{ messages|tojson(separators=('x' * n, 'y' * n)) }}",
            "{% set n = 4000000000 %}{{ 'a' * n }}",
            "{% set n = 4000000000 %}{{ n * [1] }}",
            "{{ '%4000000000d'|format(1) }}",
            "{{ '%.4000000000f'|format(1.5) }}",
            "{{ '{:>4000000000}'.format('x') }}",
            "{{ '{:.4000000000}'.format(1) }}",
            "{{ '{:{}}'.format('x', 4000000000) }}",
            "{% set n = 99999 %}{% set t %}{% for i in range(n) %}{{ 'a' * n }}{% endfor %}{% endset %}",
            "{% set n = 99999 %}{% for i in range(n) %}{{ 'a' * n }}{% endfor %}",
            "{% autoescape true %}{% set n = 40000000 %}{{ '<' * n }}{% endautoescape %}",
            "{% set n = 200000000 %}{{ ('a' * n)[::-1]|length }}",
            "{% set n = 60000000 %}{{ ('a' * n)|upper|length }}{{ ('a' * n).lower()|length }}",
            "{% set n = 60000000 %}{% for c in 'a' * n %}{% endfor %}",
            "{% set n = 9000000 %}{{ ('a' * n)|list|length }}",
            "{% for i in range(99999) %}{% set x = range(99999) %}{% endfor %}",
            "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
            "{% set ns = namespace(n=1) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.n = namespace(a=ns.n) %}{% endfor %}{% endfor %}",
            "{% set ns = namespace(n=1) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.n = dict(a=ns.n) %}{% endfor %}{% endfor %}",
            "{% set ns = namespace(n=1) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.n = {'a': ns.n} %}{% endfor %}{% endfor %}",
            "{% for i in range(99999) %}{% for j in range(99999) %}{% macro m() %}{{ i }}{% endmacro %}{% endfor %}{% endfor %}",
        ],
        "TEMPLATE_MADE_BYTES",
    );
}

#[test]
fn long_literals_written_often_are_refused() {
    let literal = "word ".repeat(20_000);
    let source = format!("{{% for i in range(99999) %}}{literal}{{% endfor %}}");
    assert_limited(&source, "TEMPLATE_MADE_BYTES");
    let source = format!("{{% set t %}}{source}{{% endset %}}");
    assert_limited(&source, "TEMPLATE_MADE_BYTES");
}

#[test]
fn a_text_longer_than_any_context_is_rejected() {
    let source = "{% set n = 20000000 %}{{ 'a' * n }}";
    assert_limited(source, "TEMPLATE_TEXT_BYTES");
}

#[test]
fn endless_searching_and_comparing_is_stopped() {
    lines(
        &[
            "{% set n = 10000000 %}{% set t = 'a' * n %}{% for i in range(99999) %}{{ 'b' in t }}{% endfor %}",
            "{% set n = 10000000 %}{% set t = 'a' * n %}{% for i in range(99999) %}{% if t.find('b') %}{% endif %}{% endfor %}",
            "{% set n = 10000000 %}{% set t = 'a' * n %}{% for i in range(99999) %}{% if t[i] %}{% endif %}{% endfor %}",
            "{% set n = 10000000 %}{% set t = 'a' * n %}{% for i in range(99999) %}{% if t|length %}{% endif %}{% endfor %}",
            "{% set n = 10000000 %}{% set t = 'a' * n %}{% for i in range(99999) %}{% if t is upper %}{% endif %}{% endfor %}",
            "{% set n = 10000000 %}{% set t = 'a' * n %}{% set u = 'a' * n %}{% for i in range(99999) %}{% if t == u %}{% endif %}{% endfor %}",
            "{% set n = 10000000 %}{{ ('a' * n).strip('b' * n ~ 'a')|length }}",
            "{% set n = 10000000 %}{{ ('a' * n)|trim('b' * n ~ 'a')|length }}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t|replace('x', 'xx') %}{% endfor %}",
            "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t.replace('x', 'xx') %}{% endfor %}",
            "{% set n = 60000000 %}{% if ('a' * n)|replace('a', '') %}{% endif %}",
            "{% set n = 60000000 %}{% if ('a' * n).count('a') %}{% endif %}",
            "{% set t = range(99999)|list %}{% for i in range(99999) %}{% if -1 in t %}{% endif %}{% endfor %}",
            "{% set t = range(99999)|list %}{% for i in range(99999) %}{% if t == t %}{% endif %}{% endfor %}",
            "{% set t = range(99999)|list %}{% for i in range(99999) %}{% if t.count(-1) %}{% endif %}{% endfor %}",
            "{{ range(99999)|map('string')|unique|list|length }}",
            "{% set ns = namespace(t=[]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t|tojson }}",
            "{% set ns = namespace(t=[]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t|string }}",
            "{% set ns = namespace(t=[], u=[]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% set ns.u = [ns.u, ns.u] %}{% endfor %}{{ ns.t == ns.u }}",
            "{% set ns = namespace(t=[], u=[]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% set ns.u = [ns.u, ns.u] %}{% endfor %}{{ ns.t < ns.u }}",
            "{% set ns = namespace(t={}, u={}) %}{% for i in range(60) %}{% set ns.t = {'a': ns.t, 'b': ns.t} %}{% set ns.u = {'a': ns.u, 'b': ns.u} %}{% endfor %}{{ ns.t == ns.u }}",
            "{% for x in [[1, 2]] recursive %}{% if loop.depth < 45 %}{{ loop([x]) }}{{ loop([x]) }}{% endif %}{% endfor %}",
        ],
        "TEMPLATE_READ_BYTES",
    );
}

#[test]
fn deeply_nested_values_are_not_walked_or_dropped_recursively() {
    let templates = [
        "[ns.t]",
        "(ns.t,)",
        "{'a': ns.t}",
        "dict(a=ns.t)",
        "namespace(a=ns.t)",
        "[ns.t]|batch(1)|list",
        "[ns.t]|slice(1)|list",
        "[ns.t, 1]|map('list')|list if false else [ns.t]",
        "{'a': ns.t}|dictsort",
        "{'a': ns.t}|items|list",
        "{'a': ns.t}.items()|list",
        "[ns.t]|select('defined')",
        "[ns.t]|reverse",
        "[[ns.t]]|sum(start=[])",
        "[ns.t][0:1]",
        "[ns.t] * 1",
    ];
    let uses = [
        "{{ ns.t|tojson }}",
        "{{ ns.t|string }}",
        "{{ ns.t == ns.u }}",
    ];
    for way in templates {
        let grow = |name: &str| way.replace("ns.t", &format!("ns.{name}"));
        let (first, second) = (grow("t"), grow("u"));
        let source = format!(
            "{{% set ns = namespace(t=1, u=1) %}}{{% for i in range(40000) %}}\
             {{% set ns.t = {first} %}}{{% set ns.u = {second} %}}{{% endfor %}}"
        );
        // Dropping the value must not fail; only creating it may exceed a limit.
        if let Err(error) = render(&source) {
            assert!(error.to_string().contains("TEMPLATE_"), "{way}: {error}");
        }
        let source = source.replace("range(40000)", "range(3000)");
        assert_eq!(render(&source).ok().as_deref(), Some(""), "{way}");
        for walk in uses {
            let error = match render(&format!("{source}{walk}")) {
                // Generators and namespaces are compared by identity and cannot be printed.
                Ok(text) => {
                    assert_eq!(text, "False", "{way} {walk}");
                    continue;
                }
                Err(error) => error.to_string(),
            };
            let is_known = error.contains("TEMPLATE_VALUE_LEVELS") || error.contains("has no ");
            assert!(is_known, "{way} {walk}: {error}");
        }
    }
}

/// Invariant: Rendering a template is bounded in steps, memory and stack, and leaks no memory.
#[test]
fn values_that_contain_themselves_are_refused_and_freed() {
    for (source, reason) in [
        (
            "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns|tojson }}",
            "TEMPLATE_VALUE_LEVELS",
        ),
        (
            "{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns|string }}",
            "TEMPLATE_VALUE_LEVELS",
        ),
        (
            "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me == ns }}",
            "",
        ),
        (
            "{% for m in messages %}{% if loop.changed([loop]) %}{% endif %}{% endfor %}",
            "",
        ),
    ] {
        match render(source) {
            Ok(_) => assert!(reason.is_empty(), "{source}"),
            Err(error) => assert!(error.to_string().contains(reason), "{source}: {error}"),
        }
    }
    // Each rendering creates 20 MB and a namespace that contains itself.
    let source = "{% set n = 20000000 %}{% set ns = namespace() %}{% set ns.me = [ns] %}\
                  {% set ns.t = 'x' * n %}{% for m in messages %}{% if loop.changed([loop, ns]) %}\
                  {% endif %}{% endfor %}";
    let before = resident_bytes();
    for _ in 0..40 {
        assert_eq!(render(source).ok().as_deref(), Some(""));
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 400_000_000, "{grown} bytes more");
}

/// Memory of this process in bytes; 0 if no file reports it.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_usize) * 4096
}

#[test]
fn deeply_nested_keys_are_rejected_on_use() {
    let deep = "{% set ns = namespace(t=(1,)) %}{% for i in range(5000) %}{% set ns.t = (ns.t,) %}{% endfor %}";
    for used in [
        "{% set m = {ns.t: 1} %}",
        "{% set m = {'a': 1} %}{{ m[ns.t] }}",
        "{% set m = {'a': 1} %}{{ m.get(ns.t) }}",
        "{% set m = {'a': 1} %}{{ ns.t in m }}",
        "{{ [ns.t]|unique|list|length }}{{ [ns.t, ns.t]|unique|list|length }}",
        "{{ [ns.t, ns.t]|sort|length }}",
        "{{ [ns.t, ns.t]|min }}",
        "{{ {'a': ns.t, 'b': ns.t}|dictsort(by='value')|length }}",
        "{{ raise_exception(ns.t) }}",
        "{{ [1]|join(attribute=ns.t) }}",
        "{{ [1]|sum(ns.t) }}",
        "{{ 1.5|round(method=ns.t) }}",
        "{{ '%s'|format(ns.t) }}",
        "{{ messages|tojson(separators=(ns.t, ns.t)) }}",
    ] {
        let error = render(&format!("{deep}{used}")).map(|text| panic!("{used}: {text}"));
        assert!(error.is_err());
    }
}

/// Invariant: Rendering a template is bounded in steps, memory and stack, and leaks no memory.
#[test]
fn chains_and_nests_are_refused_before_they_are_parsed() {
    let chain = |start: &str, part: &str, end: &str| {
        format!("{{{{ {start}{}{end} }}}}", part.repeat(31_500))
    };
    let nested = |open: &str, close: &str| {
        format!("{{{{ {}1{} }}}}", open.repeat(31_500), close.repeat(31_500))
    };
    let mut sources = vec![
        chain("", "-", "1"),
        chain("", "not ", "x"),
        chain("x", ".a", ""),
        chain("x", "['a']", ""),
        chain("x", "[0]", ""),
        chain("x", "()", ""),
        chain("1", "~1", ""),
        chain("1", "+x", ""),
        chain("1", "**x", ""),
        chain("1", " and x", ""),
        chain("1", " or x", ""),
        chain("1", " < x", ""),
        chain("1", " in x", ""),
        chain("x", "|list", ""),
        chain("x", "|map('list')", ""),
        chain("x", " is defined", ""),
        chain("x", " if x else x", ""),
        chain("x", "[1:2]", ""),
        nested("[", "]"),
        nested("(", ")"),
        nested("{1:", "}"),
        nested("f(", ")"),
        nested("[x, -", "]"),
        format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(31_500)),
        format!("{{% set {}x = 1 %}}", "x.".repeat(31_500)),
        format!(
            "{{% filter {}upper %}}{{% endfilter %}}",
            "upper|".repeat(31_500)
        ),
        format!(
            "{{% set x | {}upper %}}{{% endset %}}",
            "upper|".repeat(31_500)
        ),
    ];
    // Nested short chains.
    let mut deep = String::from("1");
    for _ in 0..70 {
        deep = format!("({deep}{})", "+x".repeat(20));
    }
    sources.push(format!("{{{{ {deep} }}}}"));
    let branches = "{% if x %}".to_owned() + &"{% elif x %}".repeat(20);
    sources.push(branches.repeat(70) + &"{% endif %}".repeat(70));
    for source in &sources {
        assert_limited(source, "TEMPLATE_NESTING");
    }
}

#[test]
fn the_maximum_nesting_fits_the_stack_of_a_thread() {
    let n_parts = TEMPLATE_NESTING / 2 - 5;
    let mut many = String::new();
    for part in ["+x", "~x", ".a", " and x"] {
        write!(many, "{{{{ x{} }}}}", part.repeat(n_parts)).unwrap();
    }
    write!(many, "{{{{ {}1 }}}}", "-".repeat(2 * n_parts)).unwrap();
    let branches = "{% elif x %}".repeat(TEMPLATE_NESTING - 5);
    write!(many, "{{% if x %}}{branches}{{% endif %}}").unwrap();
    write!(
        many,
        "{}{}",
        "{% if x %}".repeat(100),
        "{% endif %}".repeat(100)
    )
    .unwrap();
    let on_small_stack = std::thread::Builder::new().stack_size(512 << 10);
    let compiled = on_small_stack.spawn(move || {
        ChatTemplate::new(&many, SpecialTokens::default()).map(|template| template.sha256().len())
    });
    assert_eq!(compiled.unwrap().join().unwrap().unwrap(), 64);
}

#[test]
fn the_template_length_limit_allows_real_templates() {
    assert_limited(
        &"x".repeat(TEMPLATE_BYTES.bytes as usize + 1),
        "TEMPLATE_BYTES",
    );
    let name = "x".repeat(TEMPLATE_NAME_BYTES + 1);
    assert_limited(&format!("{{{{ {name} }}}}"), "TEMPLATE_NAME_BYTES");
    let mut blocks = String::new();
    for i in 0..=TEMPLATE_BLOCKS {
        write!(blocks, "{{% block b{i} %}}{{% endblock %}}").unwrap();
    }
    assert_limited(&blocks, "TEMPLATE_BLOCKS");
    assert_limited("{{ 'x' * 90000000 }}", "TEMPLATE_LITERAL_BYTES");
    assert_limited(
        "{{ ([0] * 90000000) == ([0] * 90000000) }}",
        "TEMPLATE_LITERAL_BYTES",
    );
    assert_limited(
        "{{ (('ab' ~ 'c') * (1000 * 1000)) in 'a' }}",
        "TEMPLATE_LITERAL_BYTES",
    );
    assert_eq!(render("{{ '=' * 80 }}").unwrap(), "=".repeat(80));
}

#[test]
fn endless_recursion_is_an_error() {
    for source in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{% for i in [1] %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro k() %}{% call m() %}{{ k() }}{% endcall %}{% endmacro %}{{ k() }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
        "{% set l = [] %}{% for i in [1] %}{{ loop.cycle(*l) }}{% endfor %}",
        "{% include 'chat_template' %}",
        "{% extends 'chat_template' %}",
        "{% import 'chat_template' as t %}",
        "{% from 'chat_template' import t %}",
        "{{ debug() }}",
    ] {
        let error = render(source).map(|text| panic!("{source}: {text}"));
        assert!(error.is_err());
    }
}

#[test]
fn name_lookups_in_many_frames_are_charged() {
    let mut source = String::new();
    for frame in 0..100 {
        write!(source, "{{% with a{frame} = 1 %}}").unwrap();
    }
    source += "{% for i in range(99999) %}{% for j in range(99999) %}{% if nothing %}{% endif %}{% endfor %}{% endfor %}";
    source += &"{% endwith %}".repeat(100);
    assert_limited(&source, "TEMPLATE_READ_BYTES");
}

#[test]
fn budget_errors_name_the_template_file() {
    let dir = tempfile::tempdir().unwrap();
    let source = "{% set n = 4000000000 %}\n{{ 'a' * n }}";
    fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
    let template = ChatTemplate::from_model_dir(dir.path()).unwrap();
    let nothing = Conversation::new(Vec::new());
    let error = template
        .render(&nothing, GenerationPrompt::Omit)
        .unwrap_err();
    let error = error.to_string();
    for part in [
        "chat_template.jinja: chat template, line 2",
        "4,000,000,000 bytes",
        "268,435,456 bytes",
        "TEMPLATE_MADE_BYTES",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(TEMPLATE_MADE_BYTES, 268_435_456);
    fs::write(
        dir.path().join("chat_template.jinja"),
        format!("\n{{{{ x{} }}}}", ".a".repeat(9999)),
    )
    .unwrap();
    let error = ChatTemplate::from_model_dir(dir.path())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("chat_template.jinja: chat template, line 2"),
        "{error}"
    );
    assert!(Path::new("chat_template.jinja").is_relative());
}

#[test]
fn budgets_are_reset_between_renderings() {
    let source =
        "{% set n = 100000000 %}{{ ('a' * n)|length }}{% for i in range(20000) %}{% endfor %}";
    for _ in 0..10 {
        assert_eq!(render(source).unwrap(), "100000000");
    }
}
