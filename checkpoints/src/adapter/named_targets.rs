//! Converts a target pattern or "all-linear" to a list of names, which every program supports.

use std::collections::BTreeSet;

use super::consumers::ALL_LINEAR;
use super::{PeftConfig, TargetModules};

/// Returns the config with `target_modules` as a list of names, as PEFT does when it saves
/// "all-linear". A config that already lists names is unchanged.
///
/// `adapted` are the paths of the modules that have factors. `linear` are the paths of all linear
/// layers of the base except the head, if known. A name such as `q_proj` is used if all layers with
/// this name are adapted; otherwise each path is listed.
pub fn with_named_targets(
    config: &PeftConfig,
    adapted: &[&str],
    linear: Option<&[String]>,
) -> PeftConfig {
    let is_all = match &config.target_modules {
        Some(TargetModules::Names(names)) if !names.is_empty() => return config.clone(),
        Some(TargetModules::Pattern(all)) => all == ALL_LINEAR && config.exclude_modules.is_none(),
        _ => false,
    };
    let adapted: BTreeSet<&str> = adapted.iter().copied().collect();
    let matches_only_adapted = |name: &str| match linear {
        None => is_all,
        Some(linear) => linear
            .iter()
            .filter(|path| last_component(path) == name)
            .all(|path| adapted.contains(path.as_str())),
    };
    let chosen = adapted.iter().map(|path| {
        if matches_only_adapted(last_component(path)) {
            last_component(path)
        } else {
            path
        }
    });
    let names: BTreeSet<&str> = chosen.collect();
    let names = names.into_iter().map(str::to_owned).collect();
    let mut with_names = config.clone();
    with_names.target_modules = Some(TargetModules::Names(names));
    // The list is exact, so these fields are no longer needed.
    with_names.exclude_modules = None;
    with_names.layers_to_transform = None;
    with_names.layers_pattern = None;
    with_names
}

/// The last component of a path.
fn last_component(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::PeftRules;

    /// The linear layers of two blocks.
    fn linear() -> Vec<String> {
        let names = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"];
        let paths =
            (0..2).flat_map(|layer| names.map(|name| format!("model.layers.{layer}.{name}")));
        paths.collect()
    }

    #[test]
    fn named_targets_select_the_same_modules_as_the_pattern() {
        let pattern = |text: &str| TargetModules::Pattern(text.to_owned());
        let down = || Some(TargetModules::Names(vec!["down_proj".to_owned()]));
        for (targets, excluded, expected) in [
            (
                pattern("all-linear"),
                None,
                vec!["down_proj", "q_proj", "v_proj"],
            ),
            (pattern("all-linear"), down(), vec!["q_proj", "v_proj"]),
            (pattern(".*q_proj|.*v_proj"), None, vec!["q_proj", "v_proj"]),
            (
                pattern(r".*\.1\.mlp.*|.*q_proj"),
                None,
                vec!["model.layers.1.mlp.down_proj", "q_proj"],
            ),
        ] {
            let mut config = PeftConfig::new(4, 8.0, targets);
            config.exclude_modules = excluded;
            let all = linear();
            let rules = PeftRules::new(&config).unwrap();
            let adapted: Vec<&str> = all
                .iter()
                .map(String::as_str)
                .filter(|p| rules.targets(p))
                .collect();
            for linear in [Some(all.as_slice()), None] {
                let named = with_named_targets(&config, &adapted, linear);
                let rules = PeftRules::new(&named).unwrap();
                let chosen: Vec<&str> = all
                    .iter()
                    .map(String::as_str)
                    .filter(|p| rules.targets(p))
                    .collect();
                assert_eq!(chosen, adapted);
                let names: Vec<String> = expected.iter().map(|name| (*name).to_owned()).collect();
                if linear.is_some() {
                    assert_eq!(named.target_modules, Some(TargetModules::Names(names)));
                }
            }
        }
    }

    #[test]
    fn names_are_unchanged() {
        let names = TargetModules::Names(vec!["v_proj".to_owned(), "q_proj".to_owned()]);
        let config = PeftConfig::new(4, 8.0, names);
        assert_eq!(
            with_named_targets(&config, &["model.layers.0.self_attn.q_proj"], None),
            config
        );
    }
}
