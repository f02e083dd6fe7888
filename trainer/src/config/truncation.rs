//! How outputs of tools are shortened in prompts: what was typed, what it means, and back.

use tooltune_agents::truncation::{PruneOptions, ShapeOptions, TruncationOptions, check_filter};
use tooltune_suites::toolqa::{Reduction, Shortening};

use super::choices::ResponseReduction;
use super::defaults;
use super::raw::{RawToolQa, RawTruncate};
use super::rules::Checker;

/// What only `reduce = "truncate"` reads of `[eval.toolqa]`.
const TOOLQA_KEYS: [&str; 4] = ["max_items", "max_depth", "max_chars", "jmespath"];

/// What of an output is kept.
pub(super) fn shape(raw: RawTruncate) -> ShapeOptions {
    ShapeOptions {
        filter: raw.jmespath,
        prune: PruneOptions {
            max_items: raw.max_items.unwrap_or(defaults::MAX_ITEMS),
            max_depth: raw.max_depth.unwrap_or(defaults::MAX_DEPTH),
            ..PruneOptions::default()
        },
    }
}

pub(super) fn raw_shape(shape: &ShapeOptions) -> RawTruncate {
    RawTruncate {
        max_items: Some(shape.prune.max_items),
        max_depth: Some(shape.prune.max_depth),
        jmespath: shape.filter.clone(),
    }
}

/// How `[eval.toolqa]` has responses shortened.
pub(super) fn shortening(raw: &RawToolQa) -> Option<Shortening> {
    let options = TruncationOptions {
        shape: shape(RawTruncate {
            max_items: raw.max_items,
            max_depth: raw.max_depth,
            jmespath: raw.jmespath.clone(),
        }),
        max_chars: raw.max_chars.unwrap_or(defaults::MAX_CHARS),
    };
    raw.reduce.map(|word| word.shortening(options))
}

/// The settings of `[eval.toolqa]` that have responses shortened so; the others are absent.
pub(super) fn raw_shortening(shortening: Option<&Shortening>) -> RawToolQa {
    let reduce = shortening.map(ResponseReduction::of);
    let Some(Shortening::Truncate(options)) = shortening else {
        return RawToolQa {
            reduce,
            ..RawToolQa::default()
        };
    };
    let RawTruncate {
        max_items,
        max_depth,
        jmespath,
    } = raw_shape(&options.shape);
    RawToolQa {
        reduce,
        max_items,
        max_depth,
        max_chars: Some(options.max_chars),
        jmespath,
        ..RawToolQa::default()
    }
}

impl ResponseReduction {
    /// What the word means; `options` are those of [`ResponseReduction::Truncate`].
    pub fn shortening(self, options: TruncationOptions) -> Shortening {
        match self {
            Self::Official => Shortening::Reduce(Reduction::Official),
            Self::Paths => Shortening::Reduce(Reduction::Paths),
            Self::Truncate => Shortening::Truncate(options),
        }
    }

    /// The word for it.
    pub fn of(shortening: &Shortening) -> Self {
        match shortening {
            Shortening::Reduce(Reduction::Official) => Self::Official,
            Shortening::Reduce(Reduction::Paths) => Self::Paths,
            Shortening::Truncate(_) => Self::Truncate,
        }
    }
}

impl Checker<'_> {
    /// Reports settings that nothing reads, and an expression that cannot be applied.
    pub(super) fn toolqa_truncation(&mut self, raw: &RawToolQa) {
        self.jmespath("eval.toolqa.jmespath", raw.jmespath.as_deref());
        let reduce = "eval.toolqa.reduce";
        let is_unreadable = raw.reduce.is_none() && self.is_typed(reduce);
        if raw.reduce == Some(ResponseReduction::Truncate) || is_unreadable {
            return;
        }
        for key in TOOLQA_KEYS {
            let path = format!("eval.toolqa.{key}");
            if self.is_typed(&path) {
                let message = format!("`{path}` is for `{reduce}` = \"truncate\"");
                let help = "write reduce = \"truncate\", or delete this line";
                self.report(&path, message, help);
            }
        }
    }

    /// Reports an expression that no output could be filtered by.
    pub(super) fn jmespath(&mut self, path: &str, typed: Option<&str>) {
        if let Some(Err(error)) = typed.map(check_filter) {
            let help = "write an expression of JMESPath such as \"data[].{id: id, name: name}\", or \
                        delete this line to keep everything";
            self.report(path, format!("`{path}` cannot be applied: {error}"), help);
        }
    }
}
