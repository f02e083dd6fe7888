//! Tests each program's rules with small adapters, and the compatibility table.

use serde_json::json;

use super::*;
use crate::adapter::{Adapter, Patterns, PeftConfig, Scalings, TargetModules, neutral};
use crate::error::CheckpointError;
use crate::weights::HostTensor;

const Q: &str = "model.layers.0.self_attn.q_proj";
const V: &str = "model.layers.1.self_attn.v_proj";
const PLAIN: ServedBase = ServedBase {
    tied_head: false,
    within_vision_model: false,
};
const TIED: ServedBase = ServedBase {
    tied_head: true,
    ..PLAIN
};

fn names(names: &[&str]) -> TargetModules {
    TargetModules::Names(names.iter().map(|name| (*name).to_owned()).collect())
}

/// An adapter of rank 4 and alpha 8 with factors of these ranks. `A` contains ascending numbers,
/// `B` ones.
fn adapter(modules: &[(&str, usize)]) -> Adapter {
    let mut tensors = std::collections::BTreeMap::new();
    for (module, rank) in modules {
        let a = HostTensor {
            shape: vec![*rank, 3],
            values: (0..3 * rank).map(|i| i as f32).collect(),
        };
        let b = HostTensor {
            shape: vec![2, *rank],
            values: vec![1.0; 2 * rank],
        };
        tensors.insert(format!("{module}.lora_A.weight"), a);
        tensors.insert(format!("{module}.lora_B.weight"), b);
    }
    let targets = names(&["q_proj", "v_proj"]);
    Adapter {
        config: PeftConfig::new(4, 8.0, targets),
        tensors,
    }
}

fn scales(scalings: &Scalings) -> Vec<(&str, usize, f64)> {
    let entries = scalings.iter();
    entries
        .map(|(module, s)| (module.as_str(), s.rank, s.scaling))
        .collect()
}

/// The verdicts of the whole adapter as strings.
fn whole_verdicts(adapter: &Adapter) -> [String; 4] {
    let table = compatibility(adapter, PLAIN).unwrap();
    table.whole.verdicts.map(|verdict| verdict.to_string())
}

#[test]
fn peft_uses_rank_and_alpha_of_the_first_matching_pattern() {
    let mut patterned = adapter(&[(Q, 2), (V, 4)]);
    patterned.config.rank_pattern = Patterns(vec![("q_proj".to_owned(), 2)]);
    patterned.config.alpha_pattern = Patterns(vec![
        (r"layers\.1\..*".to_owned(), 16.0),
        ("v_proj".to_owned(), 1.0),
    ]);
    let scalings = peft_rules(&patterned).unwrap();
    assert_eq!(scales(&scalings), [(Q, 2, 4.0), (V, 4, 4.0)]);
    patterned.config.use_rslora = true;
    let scalings = peft_rules(&patterned).unwrap();
    assert_eq!(scales(&scalings), [(Q, 2, 8.0 / 2_f64.sqrt()), (V, 4, 8.0)]);
    // A pattern must match up to the end of the path: `proj` matches only part of a component.
    patterned.config.rank_pattern = Patterns(vec![("proj".to_owned(), 2)]);
    let error = peft_rules(&patterned).unwrap_err().to_string();
    let expected = format!("the config sets rank 4 for {Q}, but its factors have rank 2");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn peft_applies_the_configs_targets() {
    let head = "lm_head";
    let modules = |change: &dyn Fn(&mut PeftConfig)| {
        let mut adapter = adapter(&[(Q, 4), (V, 4), (head, 4)]);
        change(&mut adapter.config);
        let scalings = peft_rules(&adapter).unwrap();
        scalings.into_keys().collect::<Vec<_>>()
    };
    let pattern = |text: &str| Some(TargetModules::Pattern(text.to_owned()));
    assert_eq!(modules(&|_| ()), [Q, V]);
    assert_eq!(modules(&|c| c.target_modules = None), [Q, V]);
    assert_eq!(
        modules(&|c| c.target_modules = pattern("all-linear")),
        [Q, V]
    );
    assert_eq!(
        modules(&|c| c.target_modules = pattern(".*v_proj|lm_.*")),
        [head, V]
    );
    assert_eq!(modules(&|c| c.exclude_modules = pattern(r".*\.1\..*")), [Q]);
    assert_eq!(
        modules(&|c| c.exclude_modules = Some(names(&["q_proj"]))),
        [V]
    );
    assert_eq!(
        modules(&|c| c.layers_to_transform = Some(json!([1, 5]))),
        [V]
    );
    assert_eq!(modules(&|c| c.layers_to_transform = Some(json!(0))), [Q]);
    assert_eq!(
        modules(&|c| {
            c.layers_to_transform = Some(json!(0));
            c.layers_pattern = Some(json!("blocks"));
            c.target_modules = Some(names(&["q_proj", V]));
        }),
        [V]
    );
}

#[test]
fn configs_that_peft_refuses_are_errors() {
    let mut adapter = adapter(&[(Q, 4)]);
    adapter.config.target_modules = Some(TargetModules::Pattern("all-linear".to_owned()));
    adapter.config.layers_to_transform = Some(json!([0]));
    let error = peft_rules(&adapter).unwrap_err();
    assert!(matches!(
        error,
        CheckpointError::RefusedBy {
            consumer: "PEFT",
            ..
        }
    ));
    let [peft, vllm, ..] = whole_verdicts(&adapter);
    assert!(peft.starts_with("refused: layers_to_transform"), "{peft}");
    assert_eq!(vllm, "ok");
    adapter.config.layers_to_transform = None;
    adapter.config.alpha_pattern = Patterns(vec![("(".to_owned(), 2.0)]);
    let error = peft_rules(&adapter).unwrap_err().to_string();
    assert!(
        error.contains("alpha_pattern: \"(\" is not a valid regular"),
        "{error}"
    );
    adapter.config.alpha_pattern = Patterns::default();
    adapter.config.layers_to_transform = Some(json!(["first"]));
    let error = peft_rules(&adapter).unwrap_err().to_string();
    assert!(
        error.contains("layers_to_transform: must be layer indices"),
        "{error}"
    );
}

#[test]
fn patterns_that_need_too_much_memory_are_refused() {
    let mut adapter = adapter(&[(Q, 4)]);
    let patterns = |n: usize, pattern: &str| Patterns(vec![(pattern.to_owned(), 2.0); n]);
    for (patterns, expected) in [
        (patterns(1, "(.{1,500}){1,500}"), "size limit"),
        (patterns(5_000, "q_proj"), "more than 4096 entries"),
    ] {
        adapter.config.alpha_pattern = patterns;
        let error = peft_rules(&adapter).unwrap_err().to_string();
        assert!(error.contains(expected), "no {expected:?} in: {error}");
    }
    adapter.config.alpha_pattern = patterns(4_096, r"model\.layers\.\d+\.self_attn\.q_proj");
    peft_rules(&adapter).unwrap();
}

#[test]
fn targets_without_any_factors_are_refused() {
    let mut adapter = adapter(&[(Q, 4)]);
    for targets in [
        names(&[]),
        names(&["../../etc/passwd"]),
        names(&["v_proj"]),
        // A pattern must match the whole path.
        TargetModules::Pattern("q_proj".to_owned()),
    ] {
        adapter.config.target_modules = Some(targets);
        let error = peft_rules(&adapter).unwrap_err().to_string();
        assert!(error.contains("correct target_modules"), "{error}");
    }
}

#[test]
fn an_unpaired_factor_is_an_error_for_every_program() {
    let mut half = adapter(&[(Q, 4)]);
    half.tensors.remove(&format!("{Q}.lora_B.weight"));
    for error in [
        peft_rules(&half).unwrap_err(),
        vllm_rules(&half, None).unwrap_err(),
        compatibility(&half, PLAIN).unwrap_err(),
    ] {
        assert!(error.to_string().contains("the other half of"), "{error}");
    }
}

#[test]
fn vllm_has_one_scaling_and_ranks_in_buckets() {
    let mut patterned = adapter(&[(Q, 2), (V, 17)]);
    patterned.config.rank_pattern =
        Patterns(vec![("q_proj".to_owned(), 2), ("v_proj".to_owned(), 17)]);
    let load = vllm_rules(&patterned, None).unwrap();
    assert_eq!(scales(&load.scalings), [(Q, 2, 2.0), (V, 17, 2.0)]);
    assert_eq!(load.max_lora_rank, 32);
    let error = vllm_rules(&patterned, Some(16)).unwrap_err().to_string();
    let expected = "rank 17 exceeds its max_lora_rank of 16; serve with --max-lora-rank 32";
    assert!(error.contains(expected), "{error}");
    patterned.config.r = 513;
    let error = vllm_rules(&patterned, None).unwrap_err().to_string();
    assert!(error.contains("513 exceeds 512"), "{error}");
    let error = vllm_rules(&adapter(&[("model.norm", 4)]), None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("model.norm is not one of its linear"),
        "{error}"
    );
}

#[test]
fn plain_lora_is_the_same_everywhere() {
    let plain = adapter(&[(Q, 4), (V, 4)]);
    let table = compatibility(&plain, TIED).unwrap();
    assert_eq!(table.rows.len(), 1);
    assert!(
        table
            .whole
            .verdicts
            .iter()
            .all(|verdict| *verdict == Verdict::Ok)
    );
    assert_eq!(table.whole.fix, None);
    let expected = peft_rules(&plain).unwrap();
    assert_eq!(vllm_rules(&plain, None).unwrap().scalings, expected);
}

#[test]
fn every_row_reports_wrong_scalings() {
    let mut rslora = adapter(&[(Q, 4), (V, 4)]);
    rslora.config.use_rslora = true;
    let wrong = "wrong scale: 0.5x";
    assert_eq!(whole_verdicts(&rslora), ["ok", "ok", wrong, wrong]);

    let mut ranks = adapter(&[(Q, 2), (V, 4)]);
    ranks.config.rank_pattern = Patterns(vec![("q_proj".to_owned(), 2)]);
    let refused = "refused: by most versions, because ranks differ";
    assert_eq!(whole_verdicts(&ranks), ["ok", wrong, "ok", refused]);

    let mut alphas = adapter(&[(Q, 4), (V, 4)]);
    alphas.config.alpha_pattern = Patterns(vec![
        ("q_proj".to_owned(), 2.0),
        ("v_proj".to_owned(), 24.0),
    ]);
    let wrong = "wrong scale: 0.333x to 4x";
    assert_eq!(whole_verdicts(&alphas), ["ok", wrong, wrong, wrong]);

    for mut adapter in [rslora, ranks.clone(), alphas] {
        let table = compatibility(&adapter, PLAIN).unwrap();
        assert_eq!(table.whole.fix.as_deref(), Some("export with --neutral"));
        adapter = neutral(
            &adapter.config,
            &adapter.tensors,
            &peft_rules(&adapter).unwrap(),
        )
        .unwrap();
        assert_eq!(whole_verdicts(&adapter), ["ok"; 4]);
    }

    // An alpha for the smaller rank compensates in vLLM; SGLang still refuses the ranks.
    ranks.config.alpha_pattern = Patterns(vec![("q_proj".to_owned(), 4.0)]);
    assert_eq!(
        whole_verdicts(&ranks),
        ["ok", "ok", "wrong scale: 2x", refused]
    );
    // A pattern without effect does not lower a verdict, except in SGLang, which checks only
    // whether patterns exist.
    let mut idle = adapter(&[(Q, 4)]);
    idle.config.alpha_pattern = Patterns(vec![("k_proj".to_owned(), 8.0)]);
    assert_eq!(whole_verdicts(&idle), ["ok"; 4]);
    idle.config.alpha_pattern = Patterns(vec![("k_proj".to_owned(), 1.0)]);
    let refused = "refused: by new versions, which do not support rank_pattern and alpha_pattern";
    assert_eq!(whole_verdicts(&idle), ["ok", "ok", "ok", refused]);
}

#[test]
fn sglang_needs_a_list_of_target_names() {
    let sglang = |targets: Option<TargetModules>| {
        let mut adapter = adapter(&[(Q, 4), (V, 4)]);
        adapter.config.target_modules = targets;
        let table = compatibility(&adapter, PLAIN).unwrap();
        let other_verdicts = &table.whole.verdicts[..3];
        assert!(
            other_verdicts.iter().all(|verdict| *verdict == Verdict::Ok),
            "{other_verdicts:?}"
        );
        let fix = table.whole.fix.unwrap_or_default();
        (table.whole.verdicts[3].to_string(), fix)
    };
    let pattern = |text: &str| Some(TargetModules::Pattern(text.to_owned()));
    assert_eq!(
        sglang(Some(names(&["q_proj", "v_proj"]))),
        ("ok".to_owned(), String::new())
    );
    let (all, _) = sglang(pattern("all-linear"));
    assert_eq!(
        all,
        "ok since March 2026; earlier versions need --lora-target-modules"
    );
    for targets in [pattern(".*q_proj|.*v_proj"), None] {
        let (refused, fix) = sglang(targets);
        assert_eq!(refused, "refused: it needs a list of names");
        assert_eq!(fix, "export with --to peft, which writes a list of names");
    }
}

#[test]
fn unknown_config_keys_have_a_row() {
    let mut adapter = adapter(&[(Q, 4), (V, 4)]);
    adapter.config.unrecognised = vec!["mode_of_tomorrow".to_owned()];
    let expected = "ok if mode_of_tomorrow has no effect";
    assert_eq!(whole_verdicts(&adapter)[1..], [expected; 3]);
}

#[test]
fn ranks_heads_and_targets_have_separate_rows() {
    let mut large = adapter(&[(Q, 48)]);
    large.config.r = 48;
    assert_eq!(whole_verdicts(&large)[1], "ok with --max-lora-rank 64");
    large.config.r = 1000;
    let [peft, vllm, ..] = whole_verdicts(&large);
    assert!(peft.starts_with("refused: the config sets"), "{peft}");
    assert_eq!(vllm, "refused: rank 1000 exceeds its maximum");

    let mut head = adapter(&[(Q, 4), ("lm_head", 4)]);
    assert_eq!(whole_verdicts(&head)[0], "ignores 1 module(s)");
    head.config.target_modules = Some(names(&["q_proj", "lm_head"]));
    let table = compatibility(&head, TIED).unwrap();
    assert_eq!(table.rows.len(), 2);
    let llama_cpp = table.whole.verdicts[2].to_string();
    assert_eq!(llama_cpp, "refused: the base has no output.weight");
    assert!(compatibility(&head, PLAIN).unwrap().whole.verdicts[2].is_ok());

    let unmappable = adapter(&[("model.layers.0.mlp.experts", 4)]);
    let table = compatibility(&unmappable, PLAIN).unwrap();
    let refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_));
    assert!(table.whole.verdicts[1..].iter().all(refused));
    assert_eq!(table.rows.len(), 3);
}

#[test]
fn linear_attention_adapters_depend_on_the_server_version() {
    let module = |name: &str| format!("model.layers.0.linear_attn.{name}");
    let verdicts = |names_of: &[&str]| {
        let modules: Vec<String> = names_of.iter().map(|name| module(name)).collect();
        let modules: Vec<(&str, usize)> = modules.iter().map(|m| (m.as_str(), 4)).collect();
        let mut linear = adapter(&modules);
        linear.config.target_modules = Some(names(names_of));
        compatibility(&linear, PLAIN).unwrap().whole
    };
    let joined = verdicts(&["in_proj_qkv", "in_proj_z", "out_proj"]);
    let [peft, vllm, llama_cpp, sglang] = joined.verdicts.map(|verdict| verdict.to_string());
    assert_eq!((peft.as_str(), llama_cpp.as_str()), ("ok", "ok"));
    assert!(vllm.contains("since April 2026"), "{vllm}");
    assert!(sglang.contains("since July 2026"), "{sglang}");
    assert_eq!(joined.fix, None);
    let gates = verdicts(&["in_proj_qkv", "in_proj_a", "in_proj_b"]);
    assert_eq!(gates.verdicts[3].to_string(), "ignores 2 module(s)");
    assert!(gates.verdicts[..3].iter().all(Verdict::is_ok));
    assert!(gates.fix.unwrap().contains("in_proj_a"));
}

#[test]
fn vllm_ignores_adapters_of_a_language_model_within_a_vision_model() {
    let base = ServedBase {
        within_vision_model: true,
        ..PLAIN
    };
    let table = compatibility(&adapter(&[(Q, 4), (V, 4)]), base).unwrap();
    assert_eq!(table.whole.verdicts[1].to_string(), "ignores 2 module(s)");
    assert!(table.whole.fix.unwrap().contains("--to merged"));
    assert!(table.whole.verdicts[0].is_ok() && table.whole.verdicts[2].is_ok());
}

#[test]
fn the_neutral_adapter_computes_the_same_product() {
    let mut patterned = adapter(&[(Q, 2), (V, 4)]);
    patterned.config.rank_pattern = Patterns(vec![("q_proj".to_owned(), 2)]);
    patterned.config.lora_dropout = 0.1;
    let scalings = peft_rules(&patterned).unwrap();
    let neutral = neutral(&patterned.config, &patterned.tensors, &scalings).unwrap();
    assert_eq!((neutral.config.r, neutral.config.lora_alpha), (4, 4.0));
    assert_eq!(neutral.config.lora_dropout, 0.0);
    assert_eq!(
        neutral.config.target_modules,
        patterned.config.target_modules
    );
    let b = &neutral.tensors[&format!("{Q}.lora_B.weight")];
    assert_eq!(b.shape, [2, 4]);
    assert_eq!(b.values, [4.0, 4.0, 0.0, 0.0, 4.0, 4.0, 0.0, 0.0]);
    let a = &neutral.tensors[&format!("{Q}.lora_A.weight")];
    assert_eq!(a.values[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(a.values[6..], [0.0; 6]);
    for scaling in peft_rules(&neutral).unwrap().values() {
        assert_eq!((scaling.rank, scaling.scaling), (4, 1.0));
    }
}

#[test]
fn a_neutral_adapter_of_untargeted_modules_lists_each_module() {
    let both = adapter(&[(Q, 4), ("lm_head", 4)]);
    let scalings = vllm_rules(&both, None).unwrap().scalings;
    let neutral = neutral(&both.config, &both.tensors, &scalings).unwrap();
    assert_eq!(neutral.config.target_modules, Some(names(&["lm_head", Q])));
    assert_eq!(peft_rules(&neutral).unwrap().len(), 2);
}

#[test]
fn scalings_and_factors_must_belong_to_the_same_adapter() {
    let small = adapter(&[(Q, 4)]);
    let other = peft_rules(&adapter(&[(V, 4)])).unwrap();
    let error = neutral(&small.config, &small.tensors, &other).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("although its module has a scaling"),
        "{error}"
    );
    let ranked = peft_rules(&small).unwrap();
    let error = neutral(&small.config, &adapter(&[(Q, 2)]).tensors, &ranked).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("have rank 2, but the config sets 4"),
        "{error}"
    );
}
